"""The server's chain against dense Gaussian algebra, and against NUTS of the same joint model.

``python tests/inference/correlated/test_gibbs.py`` runs NUTS anew (minutes) and stores its summary.
"""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from fedbayes.inference.correlated import gibbs
from fedbayes.inference.correlated.server import cavity_of, convex
from fedbayes.numerics.gaussian import Gaussian

KEY = jax.random.key(3)
BY_NUTS = Path(__file__).parents[2] / "data" / "gibbs_by_nuts.json"


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


class Linear(NamedTuple):
    """Sites over ``(phi, theta_k)`` of ``y = x (B phi + theta_k) + 0.3 noise``, and what they came from."""

    prior: Gaussian
    sites: Gaussian
    x: list
    y: list
    mean: np.ndarray


def linear(num_clients=4, size=3, num_globals=2, rows=(2, 6, 9, 5), seed=0) -> Linear:
    """The first client has fewer rows than coefficients."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(size, num_globals))
    x = [rng.normal(size=(n, size)) for n in rows[:num_clients]]
    y = [each @ rng.normal(size=size) + 0.3 * rng.normal(size=len(each)) for each in x]
    design = [np.concatenate([each @ spread, each], axis=1) for each in x]
    precision = np.stack([d.T @ d for d in design]) / 0.09
    shift = np.stack([d.T @ v for d, v in zip(design, y, strict=True)]) / 0.09
    prior = Gaussian(jnp.full(num_globals, 0.4), 2.0 * jnp.eye(num_globals), jnp.zeros(()))
    return Linear(prior, Gaussian(jnp.asarray(shift), jnp.asarray(precision), jnp.zeros(num_clients)), x, y, spread)


def dense(problem: Linear, loadings, psi) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of ``(phi, theta_1 ... theta_K)`` given Omega."""
    d, (num, joint) = problem.prior.size, problem.sites.shift.shape
    m = joint - d
    omega = loadings @ loadings.T + np.diag(psi)
    precision = np.zeros((d + num * m,) * 2)
    precision[:d, :d] = problem.prior.precision
    precision[d:, d:] = np.kron(np.linalg.inv(omega), np.eye(m))
    shift = np.zeros(len(precision))
    shift[:d] = problem.prior.shift
    for k in range(num):
        places = np.r_[:d, d + k * m : d + (k + 1) * m]
        precision[np.ix_(places, places)] += problem.sites.precision[k]
        shift[places] += problem.sites.shift[k]
    covariance = np.linalg.inv(precision)
    return covariance @ shift, covariance


def collapsed(problem: Linear, loadings, psi) -> tuple[np.ndarray, np.ndarray]:
    """The same by the server's steps: factors first, then each client's coefficients."""
    sites, rank = gibbs.turned(problem.prior, problem.sites), loadings.shape[1]
    d, (num, joint) = problem.prior.size, problem.sites.shift.shape
    m = joint - d
    core = gibbs.core(sites, jnp.asarray(loadings), jnp.asarray(psi))
    covariance = np.linalg.inv(core.precision)
    centre = covariance @ core.shift

    def means(point):
        factors = point[d:].reshape(rank, m).T
        chain = gibbs.Chain(point[:d], factors, jnp.asarray(loadings), jnp.log(psi), jnp.zeros(rank), jnp.zeros(2))
        mean, variance = gibbs.coefficients(sites, chain)
        return jnp.concatenate([point[:d], mean.ravel()]), variance

    (mean, variance), slope = means(centre), jax.jacobian(lambda point: means(point)[0])(centre)
    total = slope @ covariance @ slope.T
    for k in range(num):
        own = slice(d + k * m, d + (k + 1) * m)
        total = total.at[own, own].add(sites.basis[k] @ jnp.diag(variance[k]) @ sites.basis[k].T)
    return np.asarray(mean), np.asarray(total)


LOADINGS = np.random.default_rng(1).normal(size=(4, 2))
PSI = np.array([0.3, 1e-4, 2.0, 0.05])


@pytest.mark.parametrize("num_globals", [0, 2])
def test_integrating_factors_and_coefficients_is_exact(num_globals):
    problem = linear(num_globals=num_globals)
    for ours, theirs in zip(collapsed(problem, LOADINGS, PSI), dense(problem, LOADINGS, PSI), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_planted_bug_in_the_core_is_found(monkeypatch):
    """Negative control: without the coupling between globals and coefficients the means are off."""
    problem, right = linear(), gibbs.turned
    monkeypatch.setattr(
        gibbs, "turned", lambda *given: (found := right(*given))._replace(coupling=0.0 * found.coupling)
    )
    assert np.max(np.abs(collapsed(problem, LOADINGS, PSI)[0] - dense(problem, LOADINGS, PSI)[0])) > 1e-2


def test_permuting_the_clients_permutes_the_answer():
    problem, order = linear(), np.array([2, 0, 3, 1])
    turned = problem._replace(sites=jax.tree.map(lambda leaf: leaf[order], problem.sites))
    mean, _ = collapsed(problem, LOADINGS, PSI)
    other, _ = collapsed(turned, LOADINGS[order], PSI[order])
    np.testing.assert_allclose(other[:2], mean[:2], rtol=1e-9)
    np.testing.assert_allclose(other[2:].reshape(4, 3), mean[2:].reshape(4, 3)[order], rtol=1e-9, atol=1e-11)


def test_a_client_without_information_gets_the_conditional_prior():
    problem = linear()
    silent = jax.tree.map(lambda leaf: leaf.at[0].set(0.0), problem.sites)
    sites = gibbs.turned(problem.prior, silent)
    factors = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2)))
    chain = gibbs.Chain(jnp.ones(2), factors, jnp.asarray(LOADINGS), jnp.log(PSI), jnp.zeros(2), jnp.zeros(2))
    mean, variance = gibbs.coefficients(sites, chain)
    np.testing.assert_allclose(mean[0], factors @ LOADINGS[0], rtol=1e-12)
    np.testing.assert_allclose(variance[0], PSI[0], rtol=1e-12)


def test_moves_that_rewrite_the_product_leave_it():
    rng = np.random.default_rng(5)
    chain = gibbs.Chain(
        jnp.zeros(0),
        jnp.asarray(rng.normal(size=(5, 3))),
        jnp.asarray(rng.normal(size=(7, 3))),
        jnp.zeros(7),
        jnp.asarray(rng.normal(size=3)),
        jnp.zeros(2),
    )
    product = chain.factors @ chain.loadings.T
    for move in (gibbs._sheared, gibbs._rescaled):
        moved = move(chain, KEY)
        np.testing.assert_allclose(moved.factors @ moved.loadings.T, product, rtol=1e-10, atol=1e-10)
        assert np.max(np.abs(moved.factors - chain.factors)) > 0.01


def test_the_rough_scale_moves_with_the_unit():
    problem = linear(num_globals=0)
    scale = gibbs.rough_estimates(gibbs.turned(problem.prior, problem.sites), jnp.zeros(0))[1]
    other = Gaussian(problem.sites.shift / 7.0, problem.sites.precision / 49.0, jnp.zeros(4))
    np.testing.assert_allclose(
        gibbs.rough_estimates(gibbs.turned(problem.prior, other), jnp.zeros(0))[1], 7.0 * scale, rtol=1e-10
    )


def moments_of(size, seed):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size))
    return gibbs.Moments(jnp.asarray(rng.normal(size=size)), jnp.asarray(half @ half.T + np.eye(size)))


def test_cavity_times_site_has_the_posteriors_moments():
    moments = moments_of(4, 0)
    site = Gaussian(jnp.ones(4), 0.3 * jnp.linalg.inv(moments.covariance), jnp.zeros(()))
    mean, covariance = (cavity_of(moments, site) + site).moments()
    np.testing.assert_allclose(mean, moments.mean, rtol=1e-9)
    np.testing.assert_allclose(covariance, moments.covariance, rtol=1e-9)
    # negative control: with the site left in
    left_in = cavity_of(moments, Gaussian.neutral(4)) + site
    assert np.max(np.abs(left_in.moments()[0] - moments.mean)) > 0.05


def test_a_cavity_is_proper_also_where_the_site_knows_more_than_the_posterior():
    moments = moments_of(4, 1)
    site = Gaussian(jnp.ones(4), 1.7 * jnp.linalg.inv(moments.covariance), jnp.zeros(()))
    cavity = cavity_of(moments, site)
    assert np.all(np.linalg.eigvalsh(cavity.precision) > 0)
    np.testing.assert_allclose((cavity + site).moments()[0], moments.mean, rtol=1e-9)


def test_convex_sites_stay_as_they_are():
    site = Gaussian(jnp.ones(3), jnp.diag(jnp.array([1.0, 0.0, 5.0])), jnp.zeros(()))
    assert np.array_equal(convex(site, jnp.ones(3)).precision, site.precision)
    bent = Gaussian(jnp.ones(3), jnp.diag(jnp.array([1.0, -2.0, 5.0])), jnp.zeros(()))
    found = convex(bent, jnp.full(3, 2.0))
    np.testing.assert_allclose(jnp.diagonal(found.precision), [1.0, 0.0, 5.0], atol=1e-12)
    slope = lambda g: g.shift - g.precision @ jnp.full(3, 2.0)  # noqa: E731
    np.testing.assert_allclose(slope(found), slope(bent), rtol=1e-12)


def chains(problem: Linear, rank, num_draws=2000, thinning=5, num=4):
    sites = gibbs.turned(problem.prior, problem.sites)

    def one(key):
        start = gibbs.first_position(sites, jnp.zeros(problem.prior.size), rank, key)
        return gibbs.long_chain(sites, start, key, num_warmup=500, num_draws=num_draws, thinning=thinning)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(KEY, num)))


def joint_model(problem: Linear, rank):
    """The server's model as one NumPyro program on everybody's data."""
    sites = gibbs.turned(problem.prior, problem.sites)
    log_c = jnp.log(gibbs.rough_estimates(sites, jnp.zeros(problem.prior.size))[1])
    num, m = len(problem.x), problem.x[0].shape[1]
    phi = numpyro.sample("phi", dist.Normal(0.2, 0.5**0.5).expand([problem.prior.size]).to_event(1))
    s = jnp.exp(numpyro.sample("log_s", dist.Normal(log_c, gibbs.SCALE_SD)))
    t = jnp.exp(numpyro.sample("log_t", dist.Normal(log_c, gibbs.SCALE_SD)))
    scales = numpyro.sample("lambda", dist.HalfCauchy(1.0).expand([rank]).to_event(1)) * s
    own = numpyro.sample("psi", dist.InverseGamma(2.0, 2.0).expand([num]).to_event(1)) ** 0.5 * t
    factors = numpyro.sample("Z", dist.Normal(0.0, 1.0).expand([m, rank]).to_event(2))
    loadings = numpyro.sample("A", dist.Normal(0.0, 1.0).expand([num, rank]).to_event(2)) * scales
    e = numpyro.sample("e", dist.Normal(0.0, 1.0).expand([num, m]).to_event(2))
    theta = numpyro.deterministic("theta", loadings @ factors.T + own[:, None] * e)
    numpyro.deterministic("omega", loadings @ loadings.T + jnp.diag(own**2))
    for k in range(num):
        mean = problem.x[k] @ (problem.mean @ phi + theta[k])
        numpyro.sample(f"y{k}", dist.Normal(mean, 0.3), obs=problem.y[k])


def flattened(phi, theta, omega) -> np.ndarray:
    """Draws ``(chain, draw, number)`` of the globals, the coefficients, and the lower half of ``arcsinh(Omega)``."""
    lower = np.arcsinh(omega[(..., *np.tril_indices(omega.shape[-1]))])
    return np.concatenate([phi, theta.reshape(*theta.shape[:2], -1), lower], axis=-1)


def summary(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Means and log sds with their Monte Carlo errors, by effective sample sizes."""
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    squares = ((draws - mean) / sd) ** 2
    return {
        "mean": mean,
        "mean_error": sd / np.sqrt(effective_sample_size(draws)),
        "log_sd": np.log(sd),
        "log_sd_error": 0.5 * squares.std(axis=(0, 1)) / np.sqrt(effective_sample_size(squares)),
    }


def by_nuts(rank: int) -> dict[str, np.ndarray]:
    """The reference: NumPyro's NUTS of the joint model."""
    kernel = NUTS(partial(joint_model, linear(), rank), target_accept_prob=0.95)
    sampler = MCMC(
        kernel, num_warmup=2000, num_samples=10_000, num_chains=4, chain_method="sequential", progress_bar=False
    )
    sampler.run(jax.random.key(0))
    drawn = sampler.get_samples(group_by_chain=True)
    return summary(flattened(*(np.asarray(drawn[name]) for name in ("phi", "theta", "omega"))))


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.statistical(key=3, numbers=48, errors=5.0)
def test_chain_agrees_with_nuts_of_the_joint_model(rank):
    """A stored run of NUTS: 24 means and sds to five standard errors of the difference, a quarter sd at most."""
    drawn = chains(linear(), rank)
    omega = np.einsum("csir,csjr->csij", drawn.loadings, drawn.loadings)
    omega[..., range(4), range(4)] += drawn.psi
    ours, theirs = summary(flattened(drawn.phi, drawn.theta, omega)), json.loads(BY_NUTS.read_text())[str(rank)]
    for name, unit in (("mean", np.exp(theirs["log_sd"])), ("log_sd", 1.0)):
        error = 5.0 * np.hypot(ours[f"{name}_error"], theirs[f"{name}_error"])
        assert np.max(error / unit) < 0.25, name
        assert np.all(np.abs(ours[name] - theirs[name]) < error), name


def simulated(num_clients, size, rank, rows, noise, seed, own=0.01):
    """Sites of a linear model with a strongly correlated Omega (notes on E3.1), and the true coefficients."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(num_clients, rank)) / np.sqrt(rank)
    theta = loadings @ rng.normal(size=(rank, size)) + own * rng.normal(size=(num_clients, size))
    x = rng.normal(size=(num_clients, rows, size))
    y = np.einsum("kni,ki->kn", x, theta) + noise * rng.normal(size=(num_clients, rows))
    precision = np.einsum("kni,knj->kij", x, x) / noise**2
    shift = np.einsum("kni,kn->ki", x, y) / noise**2
    sites = Gaussian(jnp.asarray(shift), jnp.asarray(precision), jnp.zeros(num_clients))
    return Linear(Gaussian.neutral(0), sites, [], [], np.zeros(0)), theta


def errors(estimate, theta):
    return np.sqrt(((estimate - theta) ** 2).sum(axis=1)).mean()


def test_strong_correlation_pays_and_intervals_cover():
    """Errors near ``sqrt(r / m)`` of separate fits, and 90 percent intervals that hold that many coefficients."""
    problem, theta = simulated(40, 8, 2, 20, 0.1, 4)
    drawn = chains(problem, 5, num_draws=400, thinning=1, num=2)
    alone = np.stack([np.linalg.solve(p, h) for p, h in zip(problem.sites.precision, problem.sites.shift, strict=True)])
    draws = drawn.theta.reshape(-1, 40, 8)
    ratio = errors(draws.mean(axis=0), theta) / errors(alone, theta)
    assert 0.35 < ratio < 0.75  # sqrt(2 / 8) = 0.5
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    coverage = np.mean((low < theta) & (theta < high))
    assert abs(coverage - 0.9) < 0.06  # 320 coefficients in groups of 8 that share their factors


if __name__ == "__main__":
    with jax.enable_x64(True):
        found = {rank: {name: np.round(each, 6).tolist() for name, each in by_nuts(rank).items()} for rank in (1, 2)}
    BY_NUTS.write_text(json.dumps(found, indent=1) + "\n")
