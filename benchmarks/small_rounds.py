"""Small problems with many rounds: what a round costs beside its arithmetic, against a plain NumPy loop.

    python benchmarks/small_rounds.py          # a minute; writes SMALL_ROUNDS.md

The loop is what one writes from a paper: clients one after the other, gradients by hand, nothing compiled. Both sides
begin at zero and do the same; how far apart they end is in the table. "One by one" is fedbayes with each round by
itself, as it is where clients are other processes.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pages
from scipy.linalg import solve
from scipy.special import expit

import fedbayes as fb
from fedbayes.models import gp

PAGE = Path(__file__).with_name("SMALL_ROUNDS.md")
Array = np.ndarray
Clients = dict[str, dict[str, Array]]
RUNS = 3  # of each, of which the quickest counts


class OneByOne(fb.executors.Batched):
    """Makes each round by itself."""

    def several(self, phase: int, rounds: int) -> None:
        """No rounds in one program."""


class Problem(NamedTuple):
    """What is compared.

    Attributes
    ----------
    name
        In the table.
    model, clients, method
        As for `fb.fit_federated`.
    loop
        ``() -> theta``: the same rounds by NumPy.
    """

    name: str
    model: Callable
    clients: Clients
    method: fb.FedAvg
    loop: Callable[[], Array]


def linear(x: Array, y: Array | None = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def logistic(x: Array, y: Array | None = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def process(x: Array, y: Array | None = None) -> None:
    """An RBF kernel by the logs of length scale, variance and noise."""
    logs = numpyro.sample("logs", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    length_scale, variance, noise = (jax.numpy.exp(each) for each in logs)
    numpyro.sample("y", gp.GaussianProcess(gp.RBF(length_scale, variance), x, noise), obs=y)


def simulated(sizes: list[int], d: int, *, binary: bool = False) -> Clients:
    rng = np.random.default_rng(d)
    center, clients = rng.normal(size=d) / np.sqrt(d), {}
    for k, rows in enumerate(sizes):
        x = rng.normal(size=(rows, d))
        mean = x @ (center + 0.3 * rng.normal(size=d) / np.sqrt(d))
        y = (rng.uniform(size=rows) < expit(mean)).astype(int) if binary else mean + rng.normal(size=rows)
        clients[f"c{k}"] = {"x": x, "y": y}
    return clients


def averaged(clients: Clients, d: int, rounds: int, local: Callable[[Array, dict, float], Array]) -> Array:
    """Rounds of FedAvg: each client's end by its share of the rows."""
    total, theta = sum(len(each["y"]) for each in clients.values()), np.zeros(d)
    for _ in range(rounds):
        theta = sum(len(each["y"]) / total * local(theta, each, len(each["y"]) / total) for each in clients.values())
    return theta


def steps(clients: Clients, d: int, rounds: int, num: int, size: float, residual: Callable) -> Array:
    """FedAvg with plain gradient steps of a generalised linear model."""

    def local(theta: Array, client: dict, share: float) -> Array:
        x, y = client["x"], client["y"]
        for _ in range(num):
            theta = theta - size / len(y) * (x.T @ residual(x @ theta, y) + share * theta)
        return theta

    return averaged(clients, d, rounds, local)


def proximal(clients: Clients, d: int, rounds: int, mu: float) -> Array:
    """FedProx of a linear model, each client's minimum by one solution of its equations."""
    eye = np.eye(d)

    def local(theta: Array, client: dict, share: float) -> Array:
        x, y = client["x"], client["y"]
        return solve(x.T @ x + (share + mu * len(y)) * eye, x.T @ y + mu * len(y) * theta, assume_a="pos")

    return averaged(clients, d, rounds, local)


def proximal_logistic(clients: Clients, d: int, rounds: int, mu: float) -> Array:
    """The same of a logistic model, by Newton's method from the server's position."""

    def local(theta: Array, client: dict, share: float) -> Array:
        x, y, near = client["x"], client["y"], theta
        for _ in range(50):
            chance = expit(x @ theta)
            slope = x.T @ (chance - y) + share * theta + mu * len(y) * (theta - near)
            curvature = (x.T * (chance * (1.0 - chance))) @ x + (share + mu * len(y)) * np.eye(d)
            step = solve(curvature, slope, assume_a="pos")
            theta = theta - step
            if step @ slope < 1e-20:
                break
        return theta

    return averaged(clients, d, rounds, local)


def gaussian_process(clients: Clients, rounds: int, num: int, rate: float) -> Array:
    """FedAvg with Adam, which begins anew in each round, of a Gaussian process's three parameters."""

    def slope(logs: Array, client: dict, share: float) -> Array:
        x, y = client["x"], client["y"]
        square = (x - x.T) ** 2
        length_scale, variance, noise = np.exp(logs)
        kernel, eye = variance * np.exp(-0.5 * square / length_scale**2), np.eye(len(y))
        inverse = solve(kernel + (noise + 1e-9 * (variance + noise)) * eye, eye, assume_a="pos")
        weights = inverse @ y
        inner = np.outer(weights, weights) - inverse
        moves = (kernel * square / length_scale**2, kernel + 1e-9 * variance * eye, (1.0 + 1e-9) * noise * eye)
        return np.array([-0.5 * np.sum(inner * move) for move in moves]) + share * logs

    def local(logs: Array, client: dict, share: float) -> Array:
        first, second = np.zeros(3), np.zeros(3)
        for k in range(1, num + 1):
            g = slope(logs, client, share) / len(client["y"])
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            logs = logs - rate * first / (1 - 0.9**k) / (np.sqrt(second / (1 - 0.999**k)) + 1e-8)
        return logs

    return averaged(clients, 3, rounds, local)


def problems() -> list[Problem]:
    few, unequal = [50] * 4, [20, 30, 40, 50, 60, 80, 100, 120, 150, 200]
    found = []
    small, binary = simulated(few, 5), simulated(unequal, 20, binary=True)
    fixed: dict[str, Any] = {"laplace": False, "tolerance": 1e-13}
    method = fb.FedAvg(local_steps=5, step_size=0.05, max_rounds=2000, **fixed)
    loop = lambda: steps(small, 5, 2000, 5, 0.05, np.subtract)  # noqa: E731
    found.append(Problem("FedAvg, linear, d = 5, 4 clients, 2,000 rounds", linear, small, method, loop))
    method = fb.FedAvg(local_steps=1, step_size=0.5, max_rounds=1000, **fixed)
    loop = lambda: steps(binary, 20, 1000, 1, 0.5, lambda eta, y: expit(eta) - y)  # noqa: E731
    found.append(Problem("FedAvg, logistic, d = 20, 10 clients, 1,000 rounds", logistic, binary, method, loop))
    exact = fb.FedProx(proximal=1.0, solver="newton", max_rounds=300, **fixed)
    for d in (20, 100):
        clients = simulated([2 * d + 10] * 4, d)
        loop = lambda clients=clients, d=d: proximal(clients, d, 300, 1.0)  # noqa: E731
        found.append(Problem(f"FedProx, exact, linear, d = {d}, 4 clients, 300 rounds", linear, clients, exact, loop))
        clients = simulated([2 * d + 10] * 4, d, binary=True)
        loop = lambda clients=clients, d=d: proximal_logistic(clients, d, 300, 1.0)  # noqa: E731
        found.append(
            Problem(f"FedProx, exact, logistic, d = {d}, 4 clients, 300 rounds", logistic, clients, exact, loop)
        )
    rng, curves = np.random.default_rng(2), {}
    for k in range(4):
        x = np.sort(rng.uniform(0, 5, size=(25, 1)), axis=0)
        curves[f"c{k}"] = {"x": x, "y": np.sin(x[:, 0] + k) + 0.2 * rng.normal(size=25)}
    method = fb.FedAvg(optimizer=optax.adam(0.05), local_steps=5, max_rounds=200, **fixed)
    loop = lambda: gaussian_process(curves, 200, 5, 0.05)  # noqa: E731
    found.append(Problem("FedAvg, Gaussian process, 4 clients, 200 rounds", process, curves, method, loop))
    return found


def best(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the quickest run, and what it gives."""
    found = []
    for _ in range(RUNS):
        started = time.perf_counter()
        value = call()
        found.append((time.perf_counter() - started, value))
    return min(found, key=lambda each: each[0])


def fitted(problem: Problem, executor: Any = "batched") -> fb.FederatedFit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rounds end at their limit
        return fb.fit_federated(
            problem.model,
            problem.clients,
            method=problem.method,
            key=jax.random.key(0),
            executor=executor,
            progress=False,
        )


def compared(problem: Problem) -> list[str]:
    """A line of the table."""
    by_numpy, theirs = best(problem.loop)
    started = time.perf_counter()
    fitted(problem)
    first = time.perf_counter() - started
    warm, fit = best(lambda: fitted(problem))
    fitted(problem, OneByOne())
    single, _ = best(lambda: fitted(problem, OneByOne()))
    values = next(iter(fit.idata.posterior.data_vars.values())).values.ravel()
    apart = np.max(np.abs(values - theirs))
    alone = float(fit.rounds["seconds"].sum())
    seconds = [f"{each:.3f}" for each in (by_numpy, single, warm, alone)]
    shown = [problem.name, *seconds, f"{first:.1f}"]
    shown += [f"{by_numpy / each:.2g}" for each in (single, warm, alone)] + [f"{apart:.0e}"]
    print(*shown, flush=True)
    return shown


WORDS = """\
Written by `small_rounds.py`. Many rounds of federated averaging on small problems, against a loop in NumPy as one
writes it from a paper: clients one after the other, gradients by hand. Both begin at zero and make the same rounds;
"apart" is the largest difference between where they end. Seconds of
fedbayes are those of a whole second call of `fit_federated`, with its checks and the dataset of diagnostics, and of the
first one, with compilation. Of three runs the quickest counts. "One by one" makes each round by itself, as over a
network. Ratios are NumPy's seconds over those of fedbayes: above one, fedbayes is faster.

The curvature of a linear model is the same in each round of exact FedProx, and compilation takes it out of the rounds
where these are one program; the logistic model has another one in each.
"""


def main() -> None:
    """Measure, print, write."""
    columns = ["problem", "NumPy, s", "one by one, s", "fedbayes, s", "of it rounds, s", "first call, s"]
    columns += ["NumPy / one by one", "NumPy / fedbayes", "NumPy / rounds", "apart"]
    rows = [compared(problem) for problem in problems()]
    lines = ["# Small problems with many rounds", "", *map(pages.wrapped, WORDS.split("\n\n")), pages.machine(), ""]
    PAGE.write_text("\n".join([*lines, *pages.table(columns, rows, right_from=1)]))


if __name__ == "__main__":
    main()
