"""Where a first fit's time goes: programs, tracing, lowering and XLA, step by step, against NumPyro's NUTS.

    python benchmarks/first_fit.py              # three fresh processes: no cache, a warm persistent cache, NUTS
    python benchmarks/first_fit.py steps        # one of them, here: prints one JSON line

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
        before, started = dict(self.now), time.perf_counter()
        result = call()
        spent = {key: round(self.now[key] - before[key], 3) for key in self.now}
        self.steps[name] = {"seconds": round(time.perf_counter() - started, 2), **spent}
        return result


def steps() -> dict:
    """A first fit, all that is asked of it, and a second fit of other data with another key."""
    import jax
    import numpy as np

    import fedbayes as fb
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

    from fedbayes.demo import pooled
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


def fresh(what: str, cache: str | None) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, str(Path(__file__).resolve()), what]
    with tempfile.TemporaryDirectory() as elsewhere:
        found = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(found.stdout.splitlines()[-1])


def table(steps: dict) -> str:
    lines = ["| step | seconds | programs | tracing | lowering | XLA |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {s['seconds']:.1f} | {s['programs']:.0f} | {s['trace']:.1f} | {s['lower']:.1f} | {s['xla']:.1f} |"
        for name, s in steps.items()
    ]
    return "\n".join(lines)


def main() -> None:
    reference = fresh("nuts", None)
    cold = fresh("steps", None)
    with tempfile.TemporaryDirectory() as cache:
        fresh("steps", cache)
        warm = fresh("steps", cache)
    rival = reference["NUTS to its first draw"]["seconds"]
    print(f"Without a cache:\n\n{table(reference | cold)}\n\nWith the persistent cache of an earlier process:\n")
    print(table(warm))
    for label, found in (("without a cache", cold), ("with the persistent cache", warm)):
        seconds = found["first fit"]["seconds"] + found["first idata"]["seconds"]
        print(f"\nFirst fit with idata, {label}: {seconds:.1f} s, {seconds / rival:.2f} of NUTS to its first draw.")
    second = cold["second fit"]
    ratio = second["seconds"] / second["rounds"]
    print(f"\nSecond fit: {second['programs']:.0f} programs, {ratio:.1f} times its rounds ({second['rounds']:.2f} s).")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"steps": steps, "nuts": nuts}[sys.argv[1]]()))
    else:
        main()
