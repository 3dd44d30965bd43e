"""EP where the answer is known in closed form (acceptance tests 1, 2, 7, 10, 11 and 12 of the method notes)."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.inference.local.density.tilted import Tilted
from fedbayes.models import hierarchical_linear as hm2
from fedbayes.models import linear
from fedbayes.numerics.gaussian import packed
from fedbayes.problem.problem import make_problem

TAU, NOISE = np.array([0.5, 1.5, 0.8]), 0.7
EXACT = fb.EP(num_samples=64, num_replicates=1, init="prior", damping=1.0)
# what the sites are made into, whatever gives them: this solver is exact for them, and the smallest program
LAPLACE = fb.EP(solver="laplace", num_replicates=1, init="prior", damping=1.0)


@pytest.fixture
def rounds(rounds):
    """With programs that the tests share: none of them replaces what these are compiled from."""
    return partial(rounds, keep=True)


@pytest.fixture(scope="module")
def clients() -> dict:
    return hm2.simulate(jax.random.key(3), num_clients=10, rows=12, tau=TAU, noise_sd=NOISE)[0]


@pytest.fixture(params=["model", "model_noncentered"])
def model(request: pytest.FixtureRequest) -> partial:
    return partial(getattr(hm2, request.param), tau=TAU, noise_sd=NOISE)


def error(run, clients) -> float:
    """Largest error of the mean, in exact posterior sds, and of the covariance, relative."""
    mean, covariance = run.moments()
    exact, spread = hm2.exact_posterior_mu(clients, TAU, NOISE)
    return max(
        float(np.max(np.abs(mean - exact) / np.sqrt(np.diagonal(spread)))),
        float(np.max(np.abs(covariance - spread)) / np.max(spread)),
    )


def test_one_undamped_round_is_exact(rounds, model, clients) -> None:
    assert error(rounds(model, clients, EXACT).run(1), clients) < 1e-10


def test_damped_rounds_leave_exactly_the_damped_part_of_the_precision(rounds, model, clients) -> None:
    run = rounds(model, clients, fb.EP(num_samples=64, num_replicates=1, init="prior", damping=0.5))
    _, spread = hm2.exact_posterior_mu(clients, TAU, NOISE)
    sites = np.linalg.inv(spread) - np.eye(3)
    for c in range(1, 5):
        left = np.linalg.inv(spread) - run.run(1).posterior.precision[0]
        np.testing.assert_allclose(left, 0.5**c * sites, rtol=1e-8, atol=1e-9)


def test_partial_participation_is_exact_once_every_client_was_seen(rounds, model, clients) -> None:
    run = rounds(model, clients, LAPLACE)
    for active in ([0, 1, 2, 3, 4], [1, 4, 6, 7, 8]):
        assert error(run.run(1, active), clients) > 1e-3
    before = run.sites
    assert error(run.run(1, [0, 1, 2, 5, 9]), clients) < 1e-10
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(run.sites), strict=True):
        absent = [3, 4, 6, 7, 8]
        np.testing.assert_array_equal(old[:, absent], new[:, absent])  # an absent client's site is bit-identical


def test_the_global_is_always_prior_times_sites(rounds, clients) -> None:
    run = rounds(partial(hm2.model, noise_sd=NOISE), clients, fb.EP(num_replicates=1, solver="laplace"))
    # half of them or all: each number of clients is a program
    for active in ([0, 4, 7, 8, 9], [1, 2, 3, 5, 6], [0, 2, 4, 6, 9], list(range(10))):
        state = run.run(1, active).current.state
        sites, moved = run.sites, partial(lambda step, at, to: at + step * to, state.step)
        prior = jax.tree.map(moved, state.prior, state.prior_direction)
        shift = prior.shift + np.sum(sites.shift, axis=1)
        np.testing.assert_allclose(run.posterior.shift, shift, rtol=1e-12, atol=1e-12)
        total = prior.precision + np.sum(sites.precision, axis=1)
        np.testing.assert_allclose(run.posterior.precision, total, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(run.posterior.precision, np.swapaxes(run.posterior.precision, 1, 2))


# planted bugs: each must be caught by the test of exactness (a missing cavity is caught in test_ep_golden.py: score
# regression reads a Gaussian factor off any density)


def with_changed_sites(algorithm, change):
    """The algorithm whose clients send `change(site, cavity)` in the first round; both packed."""
    name, update = next(iter(algorithm.updates.items()))

    def run(shared, told, private, client, inputs):
        reply, private = update.run(shared, told, private, client, inputs)
        message = reply.total._replace(site=change(reply.total.site, shared.global_))
        return reply._replace(total=message), private

    return algorithm._replace(updates={name: update._replace(run=run)})


def site_not_divided(algorithm):
    return with_changed_sites(algorithm, lambda site, cavity: site + cavity)


def prior_in_every_client(algorithm):
    def add(site, cavity):
        prior = packed(fb.Gaussian(site.shift * 0.0, jax.numpy.eye(3), site.log_scale * 0.0))
        return site + prior

    return with_changed_sites(algorithm, add)


@pytest.mark.parametrize("bug", [site_not_divided, prior_in_every_client])
def test_planted_bugs_are_caught(rounds, clients, bug) -> None:
    run = rounds(partial(hm2.model, tau=TAU, noise_sd=NOISE), clients, EXACT, change=bug)
    assert error(run.run(1), clients) > 1e-2


@jax.jit
def tilted_mode(client, cavity):
    return Tilted(client, cavity).mode(np.zeros(6), tolerance=1e-12)


def posterior_of_client(run, name, cavity):
    """Mean and covariance of the locals of a linear-Gaussian client: its tilted density is Gaussian."""
    with jax.enable_x64(True):
        mode = tilted_mode(run.problem.client(name), cavity)
        return np.asarray(mode.position)[3:], np.linalg.inv(np.asarray(mode.curvature))[3:, 3:]


def cavities_of(run):
    """Of every client, in their order; what all of them share is asked once."""
    posterior, sites = run.posterior, run.sites
    return [
        jax.tree.map(lambda q, site, place=place: q[0] - site[0, place], posterior, sites)
        for place in range(len(run.problem.names))
    ]


def test_client_posterior_uses_the_cavity_and_is_exact(rounds, clients) -> None:
    run = rounds(partial(hm2.model, tau=TAU, noise_sd=NOISE), clients, EXACT).run(1)
    everybody = jax.tree.map(lambda leaf: leaf[0], run.posterior)
    for name, cavity in zip(clients, cavities_of(run), strict=True):
        exact, spread = hm2.exact_client_posterior(clients, name, TAU, NOISE)
        mean, covariance = posterior_of_client(run, name, cavity)
        np.testing.assert_allclose(mean, exact, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(covariance, spread, rtol=1e-9, atol=1e-10)
        twice, _ = posterior_of_client(run, name, everybody)
        assert np.max(np.abs(twice - exact)) > 1e-3  # the client's data counted twice


def test_a_new_client_is_what_the_joint_fit_says_of_it(rounds, clients) -> None:
    old = {name: data for name, data in clients.items() if name != list(clients)[-1]}
    name = list(clients)[-1]
    model = partial(hm2.model, tau=TAU, noise_sd=NOISE)
    run = rounds(model, old, LAPLACE).run(1)
    with jax.enable_x64(True):
        run.problem = make_problem(model, {name: clients[name]})
    mean, covariance = posterior_of_client(run, name, jax.tree.map(lambda leaf: leaf[0], run.posterior))
    exact, spread = hm2.exact_client_posterior(clients, name, TAU, NOISE)
    np.testing.assert_allclose(mean, exact, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(covariance, spread, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("tau", "separate"), [(1e-8, False), (1e8, True)])
def test_limits_of_the_spread_between_clients(rounds, clients, tau: float, separate: bool) -> None:
    """No spread: one pooled regression. Unlimited spread: each client on its own."""
    taus = np.full(3, tau)
    run = rounds(partial(hm2.model_noncentered, tau=taus, noise_sd=NOISE), clients, LAPLACE).run(1)
    x = np.concatenate([data["x"] for data in clients.values()])
    y = np.concatenate([data["y"] for data in clients.values()])
    if not separate:
        pooled = np.linalg.solve(x.T @ x + NOISE**2 * np.eye(3), x.T @ y)
        np.testing.assert_allclose(run.moments()[0], pooled, rtol=1e-5)
        return
    for (name, data), cavity in zip(clients.items(), cavities_of(run), strict=True):
        own, *_ = np.linalg.lstsq(data["x"], data["y"], rcond=None)
        exact, _ = hm2.exact_client_posterior(clients, name, taus, NOISE)
        np.testing.assert_allclose(exact, own, rtol=1e-5)
        mean, _ = posterior_of_client(run, name, cavity)
        with jax.enable_x64(True):  # non-centred: z is theta = mu + sqrt(tau) z in other units
            joint = tilted_mode(run.problem.client(name), cavity).position
        np.testing.assert_allclose(np.asarray(joint[:3]) + 1e4 * mean, own, rtol=1e-3)


def test_splitting_merging_and_reordering_clients_changes_nothing(rounds) -> None:
    clients, _ = linear.simulate(jax.random.key(5), rows=(20, 30, 40))
    exact, spread = linear.exact_posterior(clients)
    names = list(clients)
    halves = {
        f"{name}{half}": {key: value[half::2] for key, value in data.items()}
        for name, data in clients.items()
        for half in (0, 1)
    }
    merged = {"all": {key: np.concatenate([clients[name][key] for name in names]) for key in clients[names[0]]}}
    for federation in (clients, dict(reversed(clients.items())), halves, merged):
        mean, covariance = rounds(linear.model, federation, LAPLACE).run(1).moments()
        np.testing.assert_allclose(mean, exact, rtol=1e-10)
        np.testing.assert_allclose(covariance, spread, rtol=1e-9, atol=1e-12)


def test_log_evidence_is_exact_for_a_gaussian_model() -> None:
    clients, _ = linear.simulate(jax.random.key(5), rows=(20, 30, 40))
    x = np.concatenate([data["x"] for data in clients.values()])
    y = np.concatenate([data["y"] for data in clients.values()])
    covariance = np.eye(len(y)) + x @ x.T
    exact = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + len(y) * np.log(2 * np.pi))
    for init in ("prior", "mode"):
        fit = fb.fit_federated(
            linear.model,
            clients,
            method=fb.EP(num_samples=64, num_replicates=1, init=init),
            key=jax.random.key(0),
            progress=False,
            correct=False,
        )
        np.testing.assert_allclose(fit.log_evidence, exact, rtol=1e-10)


def half_normal(y) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(0.0, scale), obs=y)


def fixed_point_of(log_factors: list[np.ndarray], grid: np.ndarray) -> tuple[float, float]:
    """Mean and sd of EP's global with one global, moments from the grid; the prior is one of the factors."""
    shifts, precisions = np.zeros(len(log_factors)), np.full(len(log_factors), 0.1)
    for _ in range(200):
        for k, log_factor in enumerate(log_factors):
            shift, precision = shifts.sum() - shifts[k], precisions.sum() - precisions[k]
            weight = np.exp(log_factor + shift * grid - 0.5 * precision * grid**2 - np.max(log_factor))
            mean = (weight @ grid) / weight.sum()
            variance = (weight @ (grid - mean) ** 2) / weight.sum()
            shifts[k], precisions[k] = mean / variance - shift, 1.0 / variance - precision
    return shifts.sum() / precisions.sum(), 1.0 / np.sqrt(precisions.sum())


@pytest.mark.statistical(key=0, numbers=2, errors=10.0)
def test_a_prior_that_is_not_gaussian_is_one_more_factor() -> None:
    """The server refines its site in every round: the log of a half-normal scale, with two rows at each client."""
    rng, grid = np.random.default_rng(5), np.linspace(-8.0, 6.0, 4001)
    clients = {name: {"y": 2.5 * rng.normal(size=2)} for name in ("a", "b")}
    prior = grid - 0.5 * np.exp(2.0 * grid)
    factors = [-2.0 * grid - 0.5 * np.sum(data["y"] ** 2) * np.exp(-2.0 * grid) for data in clients.values()]
    fit = fb.fit_federated(half_normal, clients, key=jax.random.key(0), progress=False)
    mean, sd = fixed_point_of([prior, *factors], grid)
    found, covariance = (value.mean(axis=0) for value in fit.moments())
    assert fit.converged
    # ten times the error of four replicates, 0.0021 sds, beside the tolerance of the rounds
    np.testing.assert_allclose((found[0] - mean) / sd, 0.0, atol=0.03)
    np.testing.assert_allclose(np.sqrt(covariance[0, 0]) / sd, 1.0, atol=0.03)
