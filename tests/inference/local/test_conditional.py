"""Locals given the globals: control variates, modes by groups, and nested importance sampling against exact answers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp, roots_hermite, softmax
from scipy.stats import multivariate_normal

import fedbayes as fb
from fedbayes.inference.local import solvers
from fedbayes.inference.local.density import moments
from fedbayes.inference.local.density.conditional import NEAR, Conditional, find_conditional
from fedbayes.inference.local.density.laplace import Mode
from fedbayes.inference.local.density.moments import (
    TiltedDraws,
    control_variates,
    locals_integrated_out,
    score_regression,
)
from fedbayes.inference.local.density.tilted import Tilted, cold_chains, laplace_site
from fedbayes.inference.local.log_factors import log_factors
from fedbayes.inference.local.sampling import integration, nested
from fedbayes.inference.local.sampling.integration import MANY_SINGLES
from fedbayes.inference.local.sampling.nested import _expanded, nested_site
from fedbayes.inference.mode import expansion
from fedbayes.numerics.columns import by_columns
from fedbayes.numerics.gaussian import Gaussian, whitener
from fedbayes.problem.client import Client
from fedbayes.problem.problem import make_problem

GROUPS, NUM_RUNS = 12, 8
RNG = np.random.default_rng(0)
Y = 0.5 * RNG.normal(size=GROUPS) + RNG.normal(size=GROUPS) + 1.0


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def known_scale(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local(), numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(mu, 0.5))
    numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def unknown_scale(y, centred: bool) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with fb.local(), numpyro.plate("groups", GROUPS):
        if centred:
            z = numpyro.sample("z", dist.Normal(mu, tau))
        else:
            z = mu + tau * numpyro.sample("e", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)


def client_of(model, **data: Any):
    return make_problem(model, {"a": {"y": Y, **data}}).client("a")


def marginal_moments(cavity: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Of (mu, log tau) under the cavity times the exact marginal likelihood, on a grid."""
    mu, log_tau = np.meshgrid(np.linspace(-6, 8, 600), np.linspace(-8, 6, 600), indexing="ij")
    theta = np.stack([mu, log_tau], axis=-1)
    shift, precision = np.asarray(cavity.shift), np.asarray(cavity.precision)
    variance = 1.0 + np.exp(2.0 * log_tau)
    log_density = theta @ shift - 0.5 * np.einsum("...i,ij,...j", theta, precision, theta)
    log_density += -0.5 * GROUPS * np.log(variance) - 0.5 * ((Y[:, None, None] - mu) ** 2).sum(axis=0) / variance
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = np.einsum("ij,ijk->k", weight, theta)
    return mean, np.einsum("ij,ijk,ijl->kl", weight, theta - mean, theta - mean)


CAVITY = Gaussian(jnp.array([0.25, 0.0]), jnp.array([[0.25, 0.0], [0.0, 1.0]]), jnp.zeros(()))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.statistical(key=1, numbers=4, errors=5.0)
def test_nested_draws_find_the_moments_of_a_hierarchical_scale(centred) -> None:
    """Against a grid over the globals, with the locals integrated out by hand: five errors of the mean of the runs."""
    tilted = Tilted(client_of(unknown_scale, centred=centred), CAVITY)

    @jax.jit
    def run(shift):
        found = nested_site(
            tilted, cold_chains(jnp.zeros(2 + GROUPS)), shift, num_samples=1024, estimator=score_regression
        )
        kernel = Gaussian(CAVITY.shift + found.site.shift, CAVITY.precision + found.site.precision, jnp.zeros(()))
        mean, covariance = kernel.moments()
        return mean, jnp.sqrt(jnp.diagonal(covariance)), found.error.noise(covariance), found.k_hat

    shifts = np.random.default_rng(1).random((NUM_RUNS, 2 + GROUPS))
    mean, sd, noise, k_hat = (np.asarray(each) for each in zip(*map(run, jnp.asarray(shifts)), strict=True))
    exact_mean, exact_covariance = marginal_moments(CAVITY)
    exact_sd = np.sqrt(np.diagonal(exact_covariance))
    error = np.sqrt(noise.mean() / 2 / NUM_RUNS)
    assert k_hat.max() < 0.5
    assert error < 0.05
    np.testing.assert_allclose((mean.mean(axis=0) - exact_mean) / exact_sd, 0.0, atol=5 * error)
    np.testing.assert_allclose(sd.mean(axis=0) / exact_sd, 1.0, atol=5 * error)


def test_a_wrong_spread_of_the_locals_is_seen(monkeypatch) -> None:
    """Negative control: the weights without the locals' spread, which goes with the scale."""
    monkeypatch.setattr(Conditional, "log_spread", lambda self: jnp.zeros(()))
    with pytest.raises(AssertionError):
        test_nested_draws_find_the_moments_of_a_hierarchical_scale(True)


@pytest.mark.parametrize("start", [(0.01, 0.02), (-20.0, 3.0), (2.0, -1.0)], ids=["near zero", "far", "too narrow"])
def test_the_mode_of_a_level_and_a_log_sd_is_found(start) -> None:
    """In closed form; on the way the curvature is indefinite, and damping that just mends it makes giant steps."""
    y = jnp.asarray(3.0 + 0.8 * np.random.default_rng(2).normal(size=60))

    def log_density(z):
        return jnp.sum(-0.5 * ((y - z[0]) / jnp.exp(z[1])) ** 2 - z[1])

    find = partial(find_conditional, log_density, jnp.array(start), jnp.array([[0, 1]]), max_steps=30)
    found, exact = find(), np.array([y.mean(), jnp.log(y.std())])
    np.testing.assert_allclose(found.mode, exact, atol=1e-4)
    covariance = found.white[0].T @ found.white[0]
    np.testing.assert_allclose(covariance, jnp.diag(jnp.array([y.var(), 0.5])) / len(y), atol=1e-5)
    near = find(near=NEAR)  # enough for a proposal
    in_sds = (near.mode - exact) / np.sqrt(np.diagonal(covariance))
    assert 1e-6 < np.abs(in_sds).max() < 0.05
    np.testing.assert_allclose(near.white[0].T @ near.white[0], covariance, rtol=0.2, atol=1e-4)


def test_a_short_step_is_the_last() -> None:
    """Of one iteration, what a start that is 0.2 sds off in the worse group arrives by; one that is 0.4 off stays."""

    def log_density(z):
        return -0.5 * jnp.sum(z**2) - 0.01 * jnp.sum(z**4)

    def found(start: float, steps: int) -> np.ndarray:
        groups = jnp.array([[0], [1]])
        return find_conditional(log_density, jnp.array([0.1, start]), groups, max_steps=steps, near=NEAR).mode

    np.testing.assert_array_equal(found(0.2, 0), found(0.2, 9))
    assert np.abs(found(0.2, 0)).max() < 0.05
    np.testing.assert_array_equal(found(0.4, 0), [0.1, 0.4])
    assert 0.0 < np.abs(found(0.4, 9)).max() < 0.05


def test_a_short_step_from_a_saddle_is_not_the_last() -> None:
    """At the start both locals grow less likely towards zero, which is near: there the damped steps are short."""
    find = partial(find_conditional, lambda z: -jnp.sum((z**2 - 1.0) ** 2), max_steps=30, near=NEAR)
    for groups in (jnp.array([[0], [1]]), jnp.arange(16)[None]):
        found = find(jnp.full(groups.size, 0.01), groups)
        np.testing.assert_allclose(found.mode, np.ones(groups.size), atol=0.02)


COUNTS = np.array([300.0, 0.0, 20.0, 1.0] * 4)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_large_groups_are_searched_as_small_ones_are(jacobian) -> None:
    """Two groups of 16: log rates of counts, where the first Newton step is far too long, and locals with a saddle."""

    def log_density(z, scale):
        rates = z[:16] + 0.1 * jnp.sum(z[:16])
        return jnp.sum(COUNTS * rates - jnp.exp(rates) - 0.5 * z[:16] ** 2) - scale * jnp.sum((z[16:] ** 2 - 1.0) ** 2)

    groups, start = jnp.arange(32).reshape(2, 16), jnp.concatenate([jnp.zeros(16), jnp.linspace(0.01, 2.0, 16)])

    def find(scale):
        of_scale = partial(log_density, scale=scale)
        return find_conditional(of_scale, start, groups, max_steps=60, jacobian=jacobian)

    scales = jnp.array([1.0, 4.0])
    found = jax.jit(jax.vmap(find))(scales)
    for scale, mode, white in zip(scales, found.mode, found.white, strict=True):
        curvature = -jax.hessian(log_density)(mode, scale)
        precision = [np.linalg.inv(each.T @ each) for each in white]
        np.testing.assert_allclose(precision[0], curvature[:16, :16], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(precision[1], curvature[16:, 16:], rtol=1e-3, atol=1e-3)
        assert np.abs(np.linalg.solve(curvature, jax.grad(log_density)(mode, scale))).max() < 1e-4
        np.testing.assert_allclose(mode[16:], 1.0, atol=1e-4)


def exact_site() -> tuple[float, float]:
    """Shift and precision of the factor of ``known_scale``: Gaussian in mu."""
    variance = 1.0 + 0.5**2
    return Y.sum() / variance, GROUPS / variance


@pytest.mark.parametrize("many", [GROUPS, GROUPS + 1])
def test_nested_draws_are_exact_for_linear_gaussian_clients(many) -> None:
    """Whether their locals are drawn from the Laplace approximation or by quadrature, as where they are many."""
    cavity = Gaussian(jnp.zeros(1), jnp.full((1, 1), 0.25), jnp.zeros(()))
    found = nested_site(
        Tilted(client_of(known_scale), cavity),
        cold_chains(jnp.zeros(1 + GROUPS)),
        jnp.full(1 + GROUPS, 0.3),
        num_samples=64,
        estimator=score_regression,
        many=many,
    )
    np.testing.assert_allclose([found.site.shift[0], found.site.precision[0, 0]], exact_site(), rtol=1e-7)
    assert float(found.k_hat) < 0.7
    # exp(-theta^2 / 8) times the law of the rows: as if theta had been N(0, 4), but for its constant
    law = multivariate_normal(np.zeros(GROUPS), 1.25 * np.eye(GROUPS) + 4.0)
    np.testing.assert_allclose(found.log_evidence, law.logpdf(Y) + 0.5 * np.log(8.0 * np.pi), rtol=1e-3)


@pytest.mark.parametrize("many", [GROUPS, GROUPS + 1], ids=["by quadrature", "by draws"])
def test_the_first_iterations_take_few_draws_and_the_last_all(monkeypatch, many) -> None:
    """A linear Gaussian client's Gaussian is known after a few draws, so that the last ones are the same by many."""
    cavity = Gaussian(jnp.zeros(1), jnp.full((1, 1), 0.25), jnp.zeros(()))

    def found(fewest: int, at_many=Client.at_many):
        taken = []

        def counted(self, function, points, evaluations=1, most=None, num=None):
            if num is not None:
                jax.debug.callback(lambda num: taken.append(int(num)), num)
            return at_many(self, function, points, evaluations, most, num)

        monkeypatch.setattr(nested, "_FEWEST", fewest)
        monkeypatch.setattr(Client, "at_many", counted)
        site = nested_site(
            Tilted(client_of(known_scale), cavity),
            cold_chains(jnp.zeros(1 + GROUPS)),
            jnp.full(1 + GROUPS, 0.3),
            num_samples=256,
            estimator=score_regression,
            many=many,
        )
        jax.effects_barrier()
        return site, sorted(taken)

    (few, taken), (whole, all_taken) = found(16), found(256)
    # searches, at the mean as well, and scores
    assert taken == [16, 16, 17, 17, 256, 257]
    assert all_taken == [256, 256, 256, 257, 257, 257]
    sides = 1 if many == GROUPS else 2
    assert 128.0 * sides < float(few.effective) < 256.0 * sides
    for name in ("site", "log_evidence", "k_hat", "effective"):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), getattr(few, name), getattr(whole, name))


@pytest.mark.parametrize("pair", [(0, 1), (0, 8), (3, 11), (6, 7)])
def test_two_dependent_groups_of_many_are_seen(pair: tuple[int, int]) -> None:
    def coupled(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with fb.local(), numpyro.plate("groups", GROUPS):
            z = numpyro.sample("z", dist.Normal(mu, 0.5))
        numpyro.factor("both", -0.1 * z[pair[0]] * z[pair[1]])
        numpyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    assert client_of(coupled).groups.shape == (1, GROUPS)


def lines(x, y) -> None:
    """An intercept and a slope of each group, whose places are not next to each other."""
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with fb.local(), numpyro.plate("groups", GROUPS):
        a, b = numpyro.sample("a", dist.Normal(mu, tau)), numpyro.sample("b", dist.Normal(0.0, tau))
    numpyro.sample("y", dist.Poisson(jnp.exp(a[:, None] + b[:, None] * x)).to_event(2), obs=y)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev, partial(by_columns, at_once=1)])
def test_what_is_needed_of_a_joint_curvature_is_that_of_the_whole(jacobian) -> None:
    """The globals' precision, their coupling and the evidence are those by the Hessian of all latents."""
    x = np.linspace(-1.0, 1.0, 3)
    y = np.random.default_rng(2).poisson(2.0, size=(GROUPS, 3))
    client = make_problem(lines, {"a": {"x": np.tile(x, (GROUPS, 1)), "y": y}}).client("a")
    assert client.groups.shape == (GROUPS, 2)
    theta, tilted = jnp.array([0.4, -0.3]), Tilted(client, Gaussian(jnp.zeros(2), jnp.eye(2), jnp.zeros(())))
    groups = jnp.asarray(client.groups)
    at_mean = find_conditional(client.given(theta), jnp.zeros(2 * GROUPS), groups, max_steps=30)
    asked = Tilted(Differentiated(client, jacobian), tilted.cavity)
    laplace, precision, coupling = _expanded(asked, theta, at_mean, jnp.array(True))
    centre = jnp.concatenate([theta, at_mean.mode])
    curvature = -jax.hessian(tilted.log_density)(centre)
    expected = locals_integrated_out(curvature, 2)
    np.testing.assert_allclose(precision, expected[0], rtol=1e-6)
    np.testing.assert_allclose(coupling, expected[1], atol=1e-6)
    whole = laplace_site(
        Mode(centre, tilted.log_density(centre), curvature, whitener(curvature), jnp.array(True)), tilted.cavity
    )
    np.testing.assert_allclose(laplace.log_evidence, whole.log_evidence, rtol=1e-8)


class Differentiated:
    """A client whose derivatives are taken in another way."""

    def __init__(self, client, jacobian) -> None:
        self.client, self.jacobian = client, jacobian

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


PERSONS = 300


def counts(y) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with fb.local(), numpyro.plate("persons", PERSONS):
        z = numpyro.sample("z", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Poisson(jnp.exp(z)).to_event(1), obs=y)


@pytest.fixture(scope="module")
def of_persons():
    """The tilted density of a client of 300 persons with few events, and its moments by a grid."""
    y = np.random.default_rng(5).poisson(np.exp(-0.5 + np.random.default_rng(6).normal(size=PERSONS)))
    with jax.enable_x64(True):
        client = client_of(counts, y=y)
        grid = np.stack(np.meshgrid(np.linspace(-1.5, 0.3, 40), np.linspace(-0.8, 0.8, 40)), -1).reshape(-1, 2)
        logs = log_factors(client, jnp.asarray(grid), jnp.zeros(PERSONS)).values
        weight = softmax(np.asarray(logs) - 0.5 * np.sum(grid**2, axis=1))
        mean, covariance = weight @ grid, np.cov(grid.T, aweights=weight, bias=True)
        cell = (grid[1, 0] - grid[0, 0]) * (grid[40, 1] - grid[0, 1])
        evidence = logsumexp(np.asarray(logs) - 0.5 * np.sum(grid**2, axis=1)) + np.log(cell)
        cavity = Gaussian(jnp.zeros(2), jnp.eye(2), jnp.zeros(()))
        return Tilted(client, cavity, jnp.asarray(mean), jnp.linalg.inv(covariance)), mean, covariance, evidence


def nested_of(tilted: Tilted, many: int):
    size = 2 + PERSONS
    solver = solvers.nested(num_samples=256, estimator=score_regression, many=many)
    return solver.run(tilted, cold_chains(jnp.zeros(size)), jnp.linspace(0.1, 0.9, size))


def test_many_single_locals_leave_no_noise_in_the_weights_of_nested_draws(of_persons, monkeypatch) -> None:
    """Two draws of 300 locals have weights of which few hold all; by quadrature they are those of the globals alone."""
    tilted, mean, covariance, evidence = of_persons
    found = nested_of(tilted, MANY_SINGLES)
    precision = np.asarray(tilted.cavity.precision + found.site.precision)
    off = np.linalg.solve(precision, np.asarray(tilted.cavity.shift + found.site.shift)) - mean
    error = float(np.sqrt(found.error.noise(jnp.asarray(covariance)) / 2.0))
    assert error < 0.05
    assert np.sqrt(off @ np.linalg.solve(covariance, off) / 2.0) < 3.0 * error
    np.testing.assert_allclose(np.linalg.inv(precision), covariance, atol=3.0 * error * np.max(covariance))
    assert found.k_hat < 0.5
    assert found.reliable
    assert abs(found.log_evidence - evidence) < 0.05
    monkeypatch.setattr(integration, "_MOST_HALVED", 0.0)  # draws are not trusted where nodes change them more
    assert not nested_of(tilted, MANY_SINGLES).reliable
    drawn = nested_of(tilted, PERSONS + 1)
    assert drawn.k_hat > 0.7
    assert drawn.effective < 0.1 * found.effective


def test_expansions_are_exact_for_linear_gaussian_clients() -> None:
    """The mode phase: noise in the Hessian would look like a saddle where locals are many and rows few."""
    message, _ = expansion(client_of(known_scale), jnp.array([0.3]), jnp.zeros(GROUPS), 64)
    np.testing.assert_allclose([message.site.shift[0], message.site.precision[0, 0]], exact_site(), rtol=1e-8)


def test_groups_are_found_and_change_nothing() -> None:
    client = client_of(unknown_scale, centred=True)
    assert client.groups.shape == (GROUPS, 1)
    theta, start = jnp.array([0.3, -0.5]), jnp.zeros(GROUPS)
    at = lambda z: client.log_factor(jnp.concatenate([theta, z]))  # noqa: E731
    one, many = (
        find_conditional(at, start, jnp.asarray(g), max_steps=30) for g in (np.arange(12)[None], client.groups)
    )
    np.testing.assert_allclose(one.mode, many.mode, rtol=1e-9)
    np.testing.assert_allclose(one.log_spread(), many.log_spread(), rtol=1e-9)
    precision = 1.0 + np.exp(1.0)
    np.testing.assert_allclose(many.mode, (Y + np.exp(1.0) * 0.3) / precision, rtol=1e-7)
    np.testing.assert_allclose(many.white[:, 0, 0], precision**-0.5, rtol=1e-9)


def test_locals_that_share_a_row_are_one_group() -> None:
    def crossed(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with fb.local(), numpyro.plate("groups", GROUPS):
            z = numpyro.sample("z", dist.Normal(mu, 0.5))
        numpyro.sample("y", dist.Normal(z + z[::-1], 1.0).to_event(1), obs=y)

    assert client_of(crossed).groups.shape == (1, GROUPS)


def scores_at(client, theta: np.ndarray, z: np.ndarray) -> TiltedDraws:
    """Draws at one value of the globals and many of a single local."""
    position = jnp.asarray(np.column_stack([np.tile(theta, (len(z), 1)), z]))
    score = jax.vmap(jax.grad(client.log_factor))(position)
    curvature = jnp.array([[2.0, 0.3, -0.4], [0.3, 3.0, 0.2], [-0.4, 0.2, 1.5]])
    even = jnp.full(len(z), 1.0 / len(z))
    laplace = locals_integrated_out(curvature, 2)
    return TiltedDraws(position, score, even, jnp.array([0.1, -0.2, 0.3]), *laplace, jnp.asarray(float(len(z))))


def one_local(y) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def mean_of_columns() -> np.ndarray:
    """Given the globals, by Gauss-Hermite quadrature over the local, whose law is Gaussian."""
    y = np.array([0.4, 1.3])
    client = make_problem(one_local, {"a": {"y": y}}).client("a")
    theta = np.array([0.7, -0.6])
    precision = np.exp(1.2) + 2.0
    nodes, weights = roots_hermite(20)
    z = (np.exp(1.2) * 0.7 + y.sum()) / precision + np.sqrt(2.0 / precision) * nodes
    columns = np.asarray(control_variates(scores_at(client, theta, z), 2))
    return weights @ columns / weights.sum()


def test_control_variates_have_mean_zero_given_the_globals() -> None:
    np.testing.assert_allclose(mean_of_columns(), 0.0, atol=1e-12)


def test_a_control_variate_with_another_mean_is_seen(monkeypatch) -> None:
    """Negative control: the quadratic one without its constant."""
    right = moments.control_variates
    monkeypatch.setitem(globals(), "control_variates", lambda draws, size: right(draws, size) - jnp.array([0, 0, 1.0]))
    assert abs(mean_of_columns()[2]) > 0.9
