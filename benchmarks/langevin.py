"""FA-LD's speed: against a NumPy loop, blackjax's SGLD, its own program without noise, and pooled NUTS.

python benchmarks/langevin.py            writes LANGEVIN.md
python benchmarks/langevin.py --quick    does everything run? nothing is written

Each row is measured in one process, rivals alternating, best of several repetitions; ratios mean more than times.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from pages import head, row

import fedbayes as fb
from fedbayes.inference.fald import client as fald
from fedbayes.inference.local.after import AFTER
from fedbayes.models import heart_disease
from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs

STEPS, ROWS = 10, 100  # local steps per round, rows per client
COVARIANCE = np.array([[5.0, -2.0], [-2.0, 1.0]])


def gaussian(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.MultivariateNormal(mu, jnp.asarray(COVARIANCE)), obs=y)


def logistic(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def gaussian_clients(num: int, rows: int = 10) -> dict:
    rng = np.random.default_rng(0)
    return {f"c{k}": {"y": rng.multivariate_normal([0.0, 0.0], COVARIANCE, size=rows)} for k in range(num)}


def logistic_clients(num: int, size: int) -> dict:
    rng = np.random.default_rng(0)
    beta, clients = rng.normal(size=size) / np.sqrt(size), {}
    for k in range(num):
        x = rng.normal(size=(ROWS, size))
        clients[f"c{k}"] = {"x": x, "y": (rng.random(ROWS) < 1 / (1 + np.exp(-x @ beta))).astype(int)}
    return clients


# --- contenders: functions of no argument that do `rounds` rounds of one chain


def fedbayes_rounds(
    model: Callable, clients: dict, rounds: int, rho: float, impl: str, *, silent: bool = False
) -> Callable:
    """The fused program of `fedbayes.FALD`; `silent`: with zeros for noise, the bound to approach."""
    correct = fald._noise
    if silent:
        fald._noise = lambda rho, weight, size, num_locals, *keys: (jnp.zeros(size), jnp.zeros(num_locals))
    try:
        problem, executor, key = make_problem(model, clients), Batched(), jax.random.key(0, impl=impl)
        method = fb.FALD(
            local_steps=STEPS, step_size=1e-6, noise_correlation=rho, num_chains=1, num_warmup=0, init="zero",
            preconditioner="none", control_variate=False,
        )  # fmt: skip
        programs = Programs(method.phases(problem.roster), AFTER, method.num_replicates)
        executor.connect(programs, problem, key)
        current, block = Run(programs, problem.roster, executor, key).begin(0, None), executor.fuse(0, rounds)
        run = lambda: block(current.state, key, 0, 1, rounds)  # noqa: E731
        run()
    finally:
        fald._noise = correct
    return run


def numpy_rounds(clients: dict, rounds: int, slope: Callable, size: int) -> Callable:
    """Clients and steps in Python loops; gradients and noise by NumPy."""
    rng, weight, eta = np.random.default_rng(1), 1.0 / len(clients), 1e-6

    def run() -> np.ndarray:
        theta = np.zeros(size)
        for _ in range(rounds):
            total = np.zeros(size)
            for data in clients.values():
                local = theta
                for _ in range(STEPS):
                    noise = np.sqrt(2.0 * eta / weight) * rng.standard_normal(size)
                    local = local - eta * (slope(local, data) / weight + local) + noise
                total += weight * local
            theta = total
        return theta

    run()
    return run


PRECISION = np.linalg.inv(COVARIANCE)


def gaussian_slope(theta: np.ndarray, data: dict) -> np.ndarray:
    return PRECISION @ (len(data["y"]) * theta - data["y"].sum(axis=0))


def logistic_slope(theta: np.ndarray, data: dict) -> np.ndarray:
    return data["x"].T @ (1.0 / (1.0 + np.exp(-data["x"] @ theta)) - data["y"])


def blackjax_steps(data: dict, num: int, size: int) -> Callable:
    """Blackjax's SGLD on the whole data of one client, all steps in one compiled scan."""
    import blackjax

    def log_density(theta: jax.Array, batch: dict) -> jax.Array:
        logits = batch["x"] @ theta
        return jnp.sum(batch["y"] * logits - jax.nn.softplus(logits)) - 0.5 * theta @ theta

    sampler = blackjax.sgld(jax.grad(log_density))

    @jax.jit
    def scan(key: jax.Array, data: dict) -> jax.Array:
        def step(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            return sampler.step(key, theta, data, 1e-6), None

        return jax.lax.scan(step, jnp.zeros(size), jax.random.split(key, num))[0]

    arrays = jax.tree.map(jnp.asarray, data)
    run = lambda: jax.block_until_ready(scan(jax.random.key(0), arrays))  # noqa: E731
    run()
    return run


def best(runs: dict[str, Callable], repetitions: int) -> dict[str, float]:
    """Seconds of each, the best of several alternating repetitions."""
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(repetitions):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return seconds


# --- the three comparisons


def against_loops(quick: bool) -> list[str]:
    """(a), and how much of a step is random numbers."""
    cases = {
        "Gaussian, N = 50, d = 2": (gaussian, gaussian_clients(50), gaussian_slope, 2),
        "logistic, N = 10, d = 20": (logistic, logistic_clients(10, 20), logistic_slope, 20),
        "logistic, N = 100, d = 20": (logistic, logistic_clients(100, 20), logistic_slope, 20),
        "logistic, N = 10, d = 1000": (logistic, logistic_clients(10, 1000), logistic_slope, 1000),
        "logistic, N = 100, d = 1000": (logistic, logistic_clients(100, 1000), logistic_slope, 1000),
    }
    speeds, quotients = ("no noise", "rho = 1", "rho = 0", "rho = 0, rbg"), ("loop / rho = 1", "loop / rho = 0")
    lines = head(["problem", "NumPy loop", *speeds, *quotients, "rho = 0 / no noise"])
    for name, (model, clients, slope, size) in cases.items():
        rounds = 2 if quick else max(4, 20_000 // (len(clients) * size))
        seconds = best(
            {
                "loop": numpy_rounds(clients, min(rounds, 20), slope, size),
                "none": fedbayes_rounds(model, clients, rounds, 1.0, "threefry2x32", silent=True),
                "one": fedbayes_rounds(model, clients, rounds, 1.0, "threefry2x32"),
                "zero": fedbayes_rounds(model, clients, rounds, 0.0, "threefry2x32"),
                "rbg": fedbayes_rounds(model, clients, rounds, 0.0, "rbg"),
            },
            1 if quick else 7,
        )
        step = {k: 1e6 * s / STEPS / (min(rounds, 20) if k == "loop" else rounds) for k, s in seconds.items()}
        ratios = [step["loop"] / step["one"], step["loop"] / step["zero"], step["zero"] / step["none"]]
        cells = [f"{step[k]:.3g}" for k in ("loop", "none", "one", "zero", "rbg")] + [f"{r:.1f}" for r in ratios]
        lines.append(row(name, *cells))
        print(lines[-1], flush=True)
    return lines


def against_blackjax(quick: bool) -> list[str]:
    """(b): one client, the same target, steps per second."""
    lines = head(["problem", "blackjax SGLD, steps/s", "fedbayes, steps/s", "fedbayes / blackjax"])
    for size in (20, 1000):
        clients = logistic_clients(1, size)
        rounds = 2 if quick else 400_000 // (size * STEPS)
        runs = {
            "blackjax": blackjax_steps(clients["c0"], rounds * STEPS, size),
            "fedbayes": fedbayes_rounds(logistic, clients, rounds, 0.0, "threefry2x32"),
        }
        speed = {name: rounds * STEPS / s for name, s in best(runs, 1 if quick else 7).items()}
        ratio = speed["fedbayes"] / speed["blackjax"]
        speeds = (f"{speed[name]:,.0f}" for name in ("blackjax", "fedbayes"))
        lines.append(row(f"logistic, d = {size}", *speeds, f"{ratio:.2f}"))
        print(lines[-1], flush=True)
    return lines


def against_nuts(quick: bool) -> list[str]:
    """(c): effective draws per second on the heart data, everything but compilation."""
    clients, draws = heart_disease.clients(), 50 if quick else 1000
    fit = fb.fit_federated(
        heart_disease.model,
        clients,
        method=fb.FALD(local_steps=10),
        key=jax.random.key(0),
        num_draws=draws,
        progress=False,
    )
    chains = fit.rounds.sel(round=fit.rounds["phase"] == "FALD")
    # the first block holds the compilation: it took as long as the others otherwise
    seconds = float(chains["seconds"][1:].sum()) * float(chains["rounds"].sum() / chains["rounds"][1:].sum())
    x = jnp.concatenate([data["x"] for data in clients.values()])
    y = jnp.concatenate([data["y"] for data in clients.values()])
    mcmc = MCMC(
        NUTS(heart_disease.model), num_warmup=draws, num_samples=draws, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), x, y)
    started = time.perf_counter()
    mcmc.run(jax.random.key(1), x, y)
    nuts_seconds = time.perf_counter() - started
    samples = mcmc.get_samples(group_by_chain=True)
    theta = np.concatenate([np.asarray(samples["intercept"])[..., None], np.asarray(samples["beta"])], axis=-1)
    least = {
        "FALD": float(chain_diagnostics(np.asarray(fit.theta))["ess"].min()),
        "NUTS": float(chain_diagnostics(theta)["ess"].min()),
    }
    rounds = int(chains["rounds"].sum())
    mine, theirs = least["FALD"] / seconds, least["NUTS"] / nuts_seconds
    lines = [
        *head(["method", "seconds", "least effective draws", "per second"]),
        row(f"FALD, {rounds:,} rounds of 10 steps", f"{seconds:.2f}", f"{least['FALD']:.0f}", f"{mine:.0f}"),
        row("pooled NUTS, warm-up included", f"{nuts_seconds:.2f}", f"{least['NUTS']:.0f}", f"{theirs:.0f}"),
    ]
    print("\n".join(lines[2:]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with jax.enable_x64(True):
        loops, rival, nuts = against_loops(quick), against_blackjax(quick), against_nuts(quick)
    if not quick:
        text = [
            "# FA-LD's speed",
            "",
            "Written by `python benchmarks/langevin.py`; one chain, float64, 10 local steps.",
            "",
        ]
        text += [f"JAX {jax.__version__}, {len(jax.devices())} CPU device.", ""]
        text += [
            "## A NumPy loop over clients and steps",
            "",
            "Microseconds of one step of all clients.",
            "",
            *loops,
            "",
        ]
        text += ["## Blackjax's SGLD, one client", "", *rival, ""]
        text += ["## Pooled NUTS, heart data", "", *nuts, ""]
        (Path(__file__).parent / "LANGEVIN.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
