"""Where a first fit's time goes: programs, tracing, lowering and XLA, step by step, against NumPyro's NUTS.

    python benchmarks/first_fit.py              # four fresh processes: NUTS, no cache, a persistent cache twice;
                                                # writes FIRST_FIT.md
    python benchmarks/first_fit.py steps        # one of them, here: prints one JSON line
    python benchmarks/first_fit.py parts        # the parts of EP's programs, each compiled alone

Every process is fresh and every step is timed once: a first call has no second. The imports are not counted. The
ratios compare steps of one run of this script.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pages import table

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}


class Clock:
    """Seconds of each step, and what JAX did in it."""

    def __init__(self) -> None:
        import jax

        self.now = {"trace": 0.0, "lower": 0.0, "xla": 0.0, "programs": 0}
        self.steps: dict[str, dict[str, float]] = {}
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **kwargs: object) -> None:
        if event in EVENTS:
            self.now[EVENTS[event]] += seconds
            self.now["programs"] += EVENTS[event] == "xla"

    def time(self, name: str, call: Callable) -> object:
        before, started, cpu = dict(self.now), time.perf_counter(), time.process_time()
        result = call()
        spent = {key: round(self.now[key] - before[key], 3) for key in self.now}
        taken = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
        self.steps[name] = {**{key: round(value, 2) for key, value in taken.items()}, **spent}
        return result


def steps() -> dict:
    """A first fit, all that is asked of it, and a second fit of other data with another key."""
    import arviz  # noqa: F401  (fedbayes imports it when it is first needed)
    import jax
    import numpy as np

    import fedbayes as fb
    import fedbayes.fit  # a name of `fb` is loaded when it is first used
    from fedbayes.models import heart_disease

    clock, clients = Clock(), heart_disease.clients()
    rng = np.random.default_rng(0)
    others = {name: {**data, "y": rng.permutation(data["y"])} for name, data in clients.items()}

    def fit(clients: dict, seed: int) -> fb.FederatedFit:
        return fb.fit_federated(heart_disease.model, clients, key=jax.random.key(seed), progress=False)

    for label, given, seed in (("first", clients, 0), ("second", others, 1)):
        found = clock.time(f"{label} fit", lambda given=given, seed=seed: fit(given, seed))
        clock.time(f"{label} idata", lambda found=found: found.idata)
        clock.time(f"{label} client_posterior", lambda found=found: found.client_posterior("va"))
        clock.time(f"{label} adapt", lambda found=found, given=given: found.adapt(given["va"]))
        clock.time(f"{label} predict", lambda found=found, given=given: found.predict("va", x=given["va"]["x"]))
        clock.steps[f"{label} fit"]["rounds"] = round(float(found.rounds["seconds"].sum()), 3)
    return clock.steps


def nuts() -> dict:
    """NumPyro's NUTS on the pooled data, four chains, from its first call to its first draw."""
    import jax
    from numpyro.infer import MCMC, NUTS

    from fedbayes.cli.demo import pooled
    from fedbayes.models import heart_disease

    clock, data = Clock(), pooled(heart_disease.clients())
    with jax.enable_x64(True):
        mcmc = MCMC(
            NUTS(heart_disease.model),
            num_warmup=500,
            num_samples=1,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        clock.time("NUTS to its first draw", lambda: jax.block_until_ready(mcmc.run(jax.random.key(0), **data)))
    return clock.steps


def parts() -> dict:
    """The parts of EP's two large programs, each compiled alone for 4 clients and 4 replicates."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fedbayes as fb
    from fedbayes.inference.local.density import moments
    from fedbayes.inference.local.density.tilted import Tilted
    from fedbayes.inference.local.sampling.draws import by_importance
    from fedbayes.models import heart_disease
    from fedbayes.numerics import importance
    from fedbayes.numerics.gaussian import unpacked, whitener
    from fedbayes.problem.problem import make_problem
    from fedbayes.rounds.exchange import Round
    from fedbayes.rounds.executors import Batched
    from fedbayes.rounds.programs import Programs

    jax.config.update("jax_enable_x64", True)
    problem, method, executor, key = (
        make_problem(heart_disease.model, heart_disease.clients()),
        fb.EP(init="prior"),
        Batched(),
        jax.random.key(0),
    )
    programs = Programs(method.phases(problem.roster), {}, method.num_replicates)
    executor.connect(programs, problem, key)
    server, algorithm = programs.server(0), programs.phases[0].algorithm
    state = jax.tree.map(np.asarray, server.init(key, None))
    shared, told = server.broadcast(state)
    executor.begin(0, shared, key)
    warm, clients = executor._states[0].warm, problem.buckets[0].clients
    mine = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), shared.global_)  # with flat sites it is every cavity
    clock, order = Clock(), Round(0, shared, told, key, np.arange(4), ["importance"] * 4)
    heard = clock.time("EP's update, whole, with its first round", lambda: executor.run(order))
    shift = programs.inputs(0, "importance", 0)(executor._secrets, np.arange(4), shared, key)
    draws = jax.vmap(jax.vmap(lambda w, c, k, s: by_importance(Tilted(k, unpacked(c)), w, s, num_samples=256).draws,
                              (0, 0, None, 0)), (0, 0, 0, 0))(warm, mine, clients, shift)  # fmt: skip
    matrices = state.white[None] + jnp.eye(14)

    def alone(name: str, function: Callable, *arguments: object, client: bool = True) -> None:
        axes = (0, 0, None) if client else (0,) * len(arguments)
        batched = jax.jit(jax.vmap(jax.vmap(function, axes), (0,) * len(arguments)))
        clock.time(name, lambda: batched.lower(*arguments).compile())

    density = lambda c, k: Tilted(k, unpacked(c)).log_density  # noqa: E731
    alone("log density", lambda w, c, k: density(c, k)(w.position), warm, mine, clients)
    alone("its gradient", lambda w, c, k: jax.grad(density(c, k))(w.position), warm, mine, clients)
    alone("its Hessian", lambda w, c, k: jax.hessian(density(c, k))(w.position), warm, mine, clients)
    alone("mode", lambda w, c, k: Tilted(k, unpacked(c)).mode(w.position), warm, mine, clients)
    alone("whitener", whitener, jnp.broadcast_to(matrices, (4, 4, 14, 14)), client=False)
    alone("Pareto smoothing", importance.pareto_smooth, draws.weight, client=False)
    regression = lambda d, c: moments.score_regression(d._replace(sides=1), unpacked(c))  # noqa: E731
    alone("score regression", regression, draws, mine, client=False)
    aggregate = jax.jit(algorithm.aggregate)
    clock.time("EP's aggregate, whole", lambda: aggregate.lower(state, heard.replies, key).compile())
    return clock.steps


def fresh(what: str, cache: str | None) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, str(Path(__file__).resolve()), what]
    with tempfile.TemporaryDirectory() as elsewhere:
        found = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(found.stdout.splitlines()[-1])


def times_table(steps: dict) -> str:
    columns = ("step", "seconds", "programs", "tracing", "lowering", "XLA")
    rows = [
        [name, f"{s['seconds']:.1f}", f"{s['programs']:.0f}", *(f"{s[what]:.1f}" for what in ("trace", "lower", "xla"))]
        for name, s in steps.items()
    ]
    return "\n".join(table(columns, rows)).strip()


# Measured by this script at the state before programs were kept (commit b5b904e), alone on the same kind of machine.
BEFORE = """
| step | seconds | programs | tracing | lowering | XLA |
|---|---|---|---|---|---|
| NUTS to its first draw | 7.6 | 66 | 1.4 | 0.8 | 5.2 |
| first fit | 11.6 | 48 | 2.2 | 0.8 | 8.2 |
| first idata | 4.8 | 50 | 0.1 | 0.3 | 3.1 |
| first client_posterior | 3.9 | 25 | 0.4 | 0.4 | 3.0 |
| first adapt | 3.8 | 17 | 0.6 | 0.3 | 2.9 |
| first predict | 1.0 | 9 | 0.0 | 0.1 | 0.7 |
| second fit | 8.9 | 14 | 1.0 | 0.5 | 7.2 |
| second idata | 0.8 | 5 | 0.0 | 0.1 | 0.6 |
| second client_posterior | 3.7 | 3 | 0.4 | 0.2 | 2.9 |
| second adapt | 4.0 | 5 | 0.4 | 0.4 | 3.0 |
| second predict | 0.8 | 3 | 0.0 | 0.1 | 0.5 |

First fit with idata: 16.3 s, 2.14 of NUTS to its first draw; with the persistent cache 5.0 s, 0.66 of NUTS.
""".strip()


def page(reference: dict, cold: dict, warm: dict, alone: dict) -> str:
    rival = reference["NUTS to its first draw"]["seconds"]
    ratios = [
        f"{label} {found['first fit']['seconds'] + found['first idata']['seconds']:.1f} s, "
        f"{(found['first fit']['seconds'] + found['first idata']['seconds']) / rival:.2f} of NUTS"
        for label, found in (("without a cache", cold), ("with the persistent cache", warm))
    ]
    second = cold["second fit"]
    times, programs = second["seconds"] / second["rounds"], second["programs"]
    return f"""# Where the time of a first fit goes

Made by `python benchmarks/first_fit.py`: four hospitals, EP with its defaults, in fresh processes without imports.
"Programs" are XLA compilations. What other threads compile counts in full, so that parts may add up to more than the
seconds. The second fit has other outcomes, of the same shapes, and another key.

## Now

First fit with idata: {"; ".join(ratios)} to its first draw.
The second fit takes {times:.1f} times its rounds ({second["rounds"]:.2f} s) and compiles {programs:.0f} programs.

Without a cache:

{times_table(reference | cold)}

With the persistent cache of an earlier process:

{times_table(warm)}

## What bounds it

XLA compiles two large programs, a client's update and the server's aggregate. A cache leaves tracing and lowering.
These are the parts of the two programs, each compiled alone:

{times_table(alone)}

## Before

{BEFORE}
"""


def main() -> None:
    reference = fresh("nuts", None)
    cold = fresh("steps", None)
    with tempfile.TemporaryDirectory() as cache:
        fresh("steps", cache)
        warm = fresh("steps", cache)
    text = page(reference, cold, warm, fresh("parts", None))
    (Path(__file__).parent / "FIRST_FIT.md").write_text(text)
    print(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"steps": steps, "nuts": nuts, "parts": parts}[sys.argv[1]]()))
    else:
        main()
