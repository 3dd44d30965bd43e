"""What fedbayes is compared with: pooled NUTS, NumPyro's consensus, naive expectation propagation."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from federated import Step
from numpyro.infer import MCMC, NUTS
from numpyro.infer.hmc_util import consensus
from nuts import Chain, PooledChain
from problems import BenchmarkSet
from scores import Moments, of_draws

from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.problem import Problem


class Trial(NamedTuple):
    """A method on a set.

    Attributes
    ----------
    steps
        What it had reached after how many seconds, everything compiled before; empty where the method was only timed.
    compile_seconds
        To be added for a first call.
    note
        Sizes of the run, and what was extrapolated.
    seconds
        Of the whole method, everything compiled; extrapolated where `note` says so.
    """

    steps: list[Step]
    compile_seconds: float
    note: str
    seconds: float


def pooled_nuts(problem: BenchmarkSet, seconds: float, num_warmup: int = 300, block: int = 250) -> Trial:
    """One chain over all rows; the first time costs compilation, the second run of the same programs is scored.

    Parameters
    ----------
    problem
        The set.
    seconds
        Draws are added until then.
    num_warmup, block
        Steps of adaptation, draws between two scores.
    """
    jax.clear_caches()
    key = jax.random.key(1)
    started = time.perf_counter()
    chain = PooledChain(problem.pooled_model, problem.pooled_data, num_warmup, block)
    chain.more(chain.begin(key))
    first = time.perf_counter() - started

    started = time.perf_counter()
    state = chain.begin(key)
    parts: list[np.ndarray] = []
    steps: list[Step] = []
    lengths: list[float] = []
    while not steps or steps[-1].seconds < seconds:
        state, draws, gradients = chain.more(state)
        parts.append(problem.flat(draws))
        lengths.append(gradients)
        steps.append(Step(time.perf_counter() - started, of_draws(np.concatenate(parts))))
    note = f"{num_warmup} + {block * len(parts)} draws, {np.mean(lengths):.0f} gradients each"
    return Trial(steps, max(first - steps[0].seconds, 0.0), note, steps[-1].seconds)


def _start(client: Client, mean: np.ndarray) -> jax.Array:
    return jnp.concatenate([jnp.asarray(mean), jnp.zeros(client.num_locals)])


def _timed_clients(problem: Problem, most: int) -> np.ndarray:
    """All clients in order of their rows, or, where there are more than ``most``, 16 of them evenly spaced."""
    order = _by_rows(problem)
    if len(order) <= most:
        return order
    return order[np.linspace(0, len(order) - 1, min(16, most)).round().astype(int)]


def _by_rows(problem: Problem) -> np.ndarray:
    return np.argsort([len(client.arrays["y"]) for client in problem.arrays])


def consensus_draws(problem: Problem, most_clients: int, num_warmup: int = 300, num_draws: int = 1000) -> Trial:
    """NUTS at each client under ``prior^(1/K)``, merged by `numpyro.infer.hmc_util.consensus`.

    With more clients than ``most_clients`` the time is extrapolated from clients of evenly spaced sizes, and nothing is
    merged. One program is compiled for each padded shape.
    """
    num = len(problem.names)

    def potential_gen(client: Client) -> Callable[[jax.Array], jax.Array]:
        size = client.program.globals.size
        return lambda x: -(problem.prior.log_density(x[:size]) / num + client.log_factor(x))

    chain = Chain(potential_gen, num_warmup, num_draws)
    size = problem.globals.size

    def run(place: int) -> jax.Array:
        client = problem.client(problem.names[place])
        state = chain.warmup(_start(client, np.full(size, 0.01)), client, jax.random.key(int(place)))
        _, (draws, _) = chain.draws(state, client)
        return jax.block_until_ready(draws[:, :size])

    jax.clear_caches()
    places = _timed_clients(problem, most_clients)
    cold = 0.0
    for bucket in problem.buckets:  # each padded shape compiles once
        started = time.perf_counter()
        run(int(bucket.members[0]))
        cold += time.perf_counter() - started
    started = time.perf_counter()
    subposteriors = [run(place) for place in places]
    seconds = time.perf_counter() - started
    compiled = max(cold - len(problem.buckets) * seconds / len(places), 0.0)
    note = f"{num_warmup} + {num_draws} draws a client, full covariance"
    if len(places) < num:
        return Trial([], compiled, f"{note}; time extrapolated from {len(places)} clients", seconds * num / len(places))
    merged = np.asarray(consensus(subposteriors, num_draws, diagonal=False, rng_key=jax.random.key(0)))
    return Trial([Step(seconds, of_draws(merged))], compiled, note, seconds)


def naive_ep(
    problem: Problem,
    cavities: list[Gaussian],
    most_clients: int,
    num_rounds: int = 8,
    num_warmup: int = 300,
    num_draws: int = 1000,
) -> Trial:
    """The textbook loop: NUTS at one client after the other, the draws' covariance inverted, the cavity subtracted.

    As first written it compiles at every client of every round (`MCMC` with another potential each time); that is what
    ``compile_seconds`` adds. The warm time is that of one compiled chain which takes client and cavity as arguments.

    Parameters
    ----------
    problem
        Split program and clients.
    cavities
        Converged ones: where only some clients are timed, they are timed at these.
    most_clients
        With more, one round is timed at clients of evenly spaced sizes and extrapolated, and no fit is run.
    num_rounds, num_warmup, num_draws
        Of the whole fit.
    """
    size, num = problem.globals.size, len(problem.names)

    def potential_gen(data: tuple[Client, Gaussian]) -> Callable[[jax.Array], jax.Array]:
        client, cavity = data
        return lambda x: -(cavity.log_value(x[:size]) + client.log_factor(x))

    chain = Chain(potential_gen, num_warmup, num_draws)

    def draws_of(place: int, cavity: Gaussian, seed: int) -> np.ndarray:
        client = problem.client(problem.names[place])
        start = _start(client, np.asarray(cavity.moments()[0]))
        state = chain.warmup(start, (client, cavity), jax.random.key(seed))
        _, (draws, _) = chain.draws(state, (client, cavity))
        return np.asarray(draws[:, :size])

    jax.clear_caches()
    compiled = _mcmc_compilation(problem, cavities, potential_gen, num_warmup, num_draws)
    note = f"{num_warmup} + {num_draws} draws a client, {num_rounds} rounds"
    for bucket in problem.buckets:
        draws_of(int(bucket.members[0]), cavities[int(bucket.members[0])], 0)
    if num > most_clients:
        places = _timed_clients(problem, most_clients)
        started = time.perf_counter()
        for place in places:
            draws_of(int(place), cavities[place], int(place))
        seconds = (time.perf_counter() - started) * num / len(places) * num_rounds
        return Trial([], compiled * num * num_rounds, f"{note}; time extrapolated from {len(places)} clients", seconds)
    return Trial(*_rounds(problem, draws_of, num_rounds, compiled * num * num_rounds, note))


def _mcmc_compilation(
    problem: Problem, cavities: list[Gaussian], potential_gen: Callable, num_warmup: int, num_draws: int
) -> float:
    """Seconds by which a fresh `MCMC` exceeds a second run of the same one, at the client of median size."""
    place = int(_by_rows(problem)[len(problem.names) // 2])
    client = problem.client(problem.names[place])
    start = _start(client, np.asarray(cavities[place].moments()[0]))
    mcmc = MCMC(
        NUTS(potential_fn=potential_gen((client, cavities[place]))),
        num_warmup=num_warmup,
        num_samples=num_draws,
        progress_bar=False,
    )
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        mcmc.run(jax.random.key(0), init_params=start)
        jax.block_until_ready(mcmc.get_samples())
        seconds.append(time.perf_counter() - started)
    return max(seconds[0] - seconds[1], 0.0)


def _rounds(
    problem: Problem, draws_of: Callable, num_rounds: int, compiled: float, note: str
) -> tuple[list[Step], float, str, float]:
    """Sequential rounds from sites that say nothing; half a step, and none where the cavity is improper."""
    prior = problem.prior.gaussian
    sites, skipped = [Gaussian.neutral(prior.size)] * len(problem.names), 0
    started, steps = time.perf_counter(), []
    for turn in range(num_rounds):
        for place in range(len(sites)):
            cavity = _product(prior, sites) - sites[place]
            if np.linalg.eigvalsh(cavity.precision)[0] <= 0.0:
                skipped += 1
                continue
            draws = draws_of(place, cavity, 1000 * turn + place)
            precision = np.linalg.inv(np.cov(draws, rowvar=False))
            site = Gaussian(
                precision @ draws.mean(axis=0) - cavity.shift, precision - np.asarray(cavity.precision), jnp.zeros(())
            )
            sites[place] = sites[place].scaled(0.5) + site.scaled(0.5)
        whole = _product(prior, sites)
        covariance = np.linalg.inv(whole.precision)
        steps.append(Step(time.perf_counter() - started, Moments(covariance @ np.asarray(whole.shift), covariance)))
    note += f"; {skipped} updates skipped, whose cavities were improper"
    return steps, compiled, note, steps[-1].seconds


def _product(prior: Gaussian, sites: list[Gaussian]) -> Gaussian:
    whole = prior
    for site in sites:
        whole = whole + site
    return whole
