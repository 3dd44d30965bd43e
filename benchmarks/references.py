"""Long reference posteriors, kept as JSON files of means and covariances.

``python benchmarks/references.py [SET ...]`` makes them afresh. Without local latents: importance sampling from the
Laplace approximation with 2^17 quasi-random draws (2^15 for the largest set), essentially exact. With them: pooled
NUTS, Rao-Blackwellised (given each draw of the locals the moments of the globals are known up to one integral).
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from nuts import PooledChain
from problems import LOG_TAU_MEAN, LOG_TAU_SD, MU_SD, SETS, BenchmarkSet
from scipy.stats import norm, qmc
from scores import Moments, kl

from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.problem.problem import make_problem

FOLDER = Path(__file__).parent / "references"
_EVALUATIONS = 1 << 33  # rows x draws of a reference; at most 2^17 draws
_SECONDS = 240.0


class Reference(NamedTuple):
    """Moments of the unconstrained globals.

    Attributes
    ----------
    moments
        Mean and covariance.
    method
        How they were found, in words.
    own_kl
        Estimate of the KL that their own Monte Carlo error causes: a quarter of that between two independent halves.
    """

    moments: Moments
    method: str
    own_kl: float


def read(name: str) -> Reference:
    """The stored reference of a set."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return Reference(
        Moments(np.array(content["mean"]), np.array(content["covariance"])), content["method"], content["own_kl"]
    )


def write(name: str, reference: Reference) -> None:
    """Store a reference."""
    content = {
        "method": reference.method,
        "own_kl": reference.own_kl,
        "mean": reference.moments.mean.tolist(),
        "covariance": reference.moments.covariance.tolist(),
    }
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def by_importance(problem: BenchmarkSet) -> Reference:
    """Laplace proposal, two independently scrambled Sobol sequences, the proposal's own moments as control variates."""
    log_draws = min(17, (_EVALUATIONS // len(problem.pooled_data["y"])).bit_length() - 1)
    pooled = make_problem(problem.model, {"everybody": problem.pooled_data})
    client = pooled.client("everybody")
    log_density = lambda theta: pooled.prior.log_density(theta) + client.log_factor(theta)  # noqa: E731
    mode = jax.jit(lambda start: find_mode(log_density, start, tolerance=1e-10))(0.01 * jnp.ones(pooled.globals.size))
    weigh = jax.jit(
        lambda noise: (
            jax.lax.map(log_density, mode.position + noise @ mode.white, batch_size=16)
            + 0.5 * jnp.sum(noise**2, axis=1)
        )
    )
    halves, k_hats = [], []
    for seed in range(2):
        noise = _normals(pooled.globals.size, log_draws - 1, seed)
        log_weight = np.concatenate([np.asarray(weigh(part)) for part in np.split(noise, 16)])
        weight, k_hat = pareto_smooth(jnp.asarray(log_weight))
        halves.append(_corrected(noise, np.asarray(weight)))
        k_hats.append(float(k_hat))
    white = np.asarray(mode.white)
    halves = [
        Moments(np.asarray(mode.position) + half.mean @ white, white.T @ half.covariance @ white) for half in halves
    ]
    draws = f"2^{log_draws} quasi-random draws, largest k-hat {max(k_hats):.2f}"
    method = f"importance sampling from the Laplace approximation, {draws}"
    return Reference(_average(halves), method, kl(*halves) / 4)


def _normals(size: int, log_draws: int, seed: int) -> np.ndarray:
    points = qmc.Sobol(size, scramble=True, rng=np.random.default_rng(seed)).random_base2(log_draws)
    return norm.ppf(np.clip(points, 1e-12, 1 - 1e-12))


def _corrected(noise: np.ndarray, weight: np.ndarray) -> Moments:
    """Weighted moments of standard normal draws, minus what the draws' unweighted moments are off by."""
    excess = weight - 1.0 / len(weight)
    mean = excess @ noise
    second = np.eye(noise.shape[1]) + noise.T @ (excess[:, None] * noise)
    return Moments(mean, second - np.outer(mean, mean))


def _average(parts: list[Moments]) -> Moments:
    """Moments of the mixture of equal parts, whose means differ by noise alone."""
    return Moments(np.mean([p.mean for p in parts], axis=0), np.mean([p.covariance for p in parts], axis=0))


def by_nuts(problem: BenchmarkSet, seconds: float = _SECONDS) -> Reference:
    """Two chains one after the other, each for half of the time."""
    chain = PooledChain(problem.pooled_model, problem.pooled_data, num_warmup=500, block=250)
    halves, total = [], 0
    for seed in range(2):
        started, parts = time.perf_counter(), []
        state = chain.begin(jax.random.key(seed))
        while time.perf_counter() - started < seconds / 2:
            state, draws, _ = chain.more(state)
            parts.append(_given_locals(draws["beta"]))
        mean, second = (np.concatenate(values) for values in zip(*parts, strict=True))
        total += len(mean)
        average = mean.mean(axis=0)
        halves.append(Moments(average, second.mean(axis=0) - np.outer(average, average)))
    method = f"pooled NUTS, {total} draws of two chains, Rao-Blackwellised over the local latents"
    return Reference(_average(halves), method, kl(*halves) / 4)


def _given_locals(beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second moments of (mu, log tau) given the locals, ``(draws, clients, 5)``, by a grid over log tau."""
    num, size = beta.shape[1:]
    grid = np.linspace(-4.0, 2.0, 1201)
    precision = np.exp(-2.0 * grid)[:, None, None]
    average, scatter = beta.mean(axis=1), beta.var(axis=1) * num
    variance = 1.0 / (num * precision + 1.0 / MU_SD**2)
    expected = variance * num * precision * average
    marginal = MU_SD**2 + 1.0 / (num * precision)
    logs = -(num - 1) * grid[:, None, None] - 0.5 * precision * scatter - 0.5 * average**2 / marginal
    logs = np.sum(logs - 0.5 * np.log(marginal), axis=2)
    logs = logs - 0.5 * ((grid[:, None] - LOG_TAU_MEAN) / LOG_TAU_SD) ** 2
    weight = np.exp(logs - logs.max(axis=0))
    weight /= weight.sum(axis=0)
    joint = np.concatenate([expected, np.broadcast_to(grid[:, None, None], (*logs.shape, 1))], axis=2)
    mean = np.einsum("gn,gni->ni", weight, joint)
    second = np.einsum("gn,gni,gnj->nij", weight, joint, joint)
    second[:, range(size), range(size)] += np.sum(weight * variance[:, :, 0], axis=0)[:, None]
    return mean, second


def make(name: str) -> Reference:
    """Compute the reference of a set."""
    problem = SETS[name]()
    return by_nuts(problem) if problem.has_locals else by_importance(problem)


def main(names: list[str]) -> None:
    """Make the named references, or all."""
    jax.config.update("jax_enable_x64", True)
    for name in names or SETS:
        started = time.perf_counter()
        found: Any = make(name)
        write(name, found)
        print(f"{name}: {found.method}; own KL {found.own_kl:.1e}; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
