"""One-shot combinations: exact for Gaussian clients, honest about the rest."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import fedbayes as fb
from fedbayes.inference.local.subposterior import Subposterior
from fedbayes.inference.merging import server
from fedbayes.inference.merging.combinations import wasserstein_barycentre
from fedbayes.models import heart_disease
from fedbayes.models import hierarchical_linear as hm2
from fedbayes.problem.problem import make_problem

KEY = jax.random.key(3)
NOISE = 0.7


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.5, 2.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def regression_clients(sizes=(4, 7, 30), dim=3) -> dict:
    """Covariates that stretch along another axis at each client: heterogeneous covariances."""
    rng = np.random.default_rng(2)
    clients = {}
    for k, rows in enumerate(sizes):
        x = rng.normal(size=(rows, dim)) * np.where(np.arange(dim) == k, 3.0, 0.3)
        clients[f"c{k}"] = {"x": x, "y": x @ np.array([1.0, -2.0, 0.5]) + NOISE * rng.normal(size=rows)}
    return clients


def exact_regression(clients: dict) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log evidence of the pooled regression."""
    x, y = (np.concatenate([client[name] for client in clients.values()]) for name in "xy")
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(3) / 4.0)
    mean = covariance @ (x.T @ y / NOISE**2 + 0.5 / 4.0)
    spread = NOISE**2 * np.eye(len(y)) + 4.0 * x @ x.T
    gap = y - 0.5 * x.sum(axis=1)
    evidence = -0.5 * (gap @ np.linalg.solve(spread, gap) + np.linalg.slogdet(2 * np.pi * spread)[1])
    return mean, covariance, evidence


def fit(method, model=regression, clients=None, **arguments):
    clients = regression_clients() if clients is None else clients
    return fb.fit_federated(model, clients, method=method, progress=False, **{"key": KEY} | arguments)


EXACT = {
    "laplace": fb.OneShot(combine="laplace", num_replicates=1),
    "laplace, prior split": fb.OneShot(combine="laplace", prior="split", num_replicates=1),
    "product, score": fb.OneShot(combine="gaussian_product", num_samples=64, solver="importance", num_replicates=1),
    "product, prior whole": fb.OneShot(
        combine="gaussian_product", num_samples=64, solver="importance", prior="whole", num_replicates=1
    ),
    "product, NUTS": fb.OneShot(combine="gaussian_product", num_samples=64, solver="nuts", num_replicates=1),
}


@pytest.mark.parametrize("name", EXACT)
def test_products_of_gaussian_clients_are_exact(name) -> None:
    found = fit(EXACT[name])
    mean, covariance, evidence = exact_regression(regression_clients())
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((found.moments()[0][0] - mean) / sd, 0.0, atol=1e-8)
    np.testing.assert_allclose(found.moments()[1][0], covariance, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-8)
    assert found.converged
    assert float(found.rounds["merge_error"][-1, 0]) < 1e-8
    np.testing.assert_allclose(found.rounds["misfit"][-1], 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["consensus", "density_product"])
@pytest.mark.statistical(key=3, numbers=6, errors=5.0)
def test_merged_draws_of_gaussian_clients(combine) -> None:
    """Within five Monte Carlo errors of 4 x 2,048 draws; the density estimate may add 12 percent to an sd."""
    found = fit(fb.OneShot(combine=combine, num_samples=2048), num_draws=2048)
    mean, covariance, _ = exact_regression(regression_clients())
    draws = np.asarray(found.idata.posterior["beta"])
    sd, num = np.sqrt(np.diagonal(covariance)), draws.shape[0] * draws.shape[1]
    assert draws.shape == (4, 2048, 3)
    allowed = 0.0 if combine == "consensus" else 0.12
    assert np.all(np.abs(draws.mean(axis=(0, 1)) - mean) / sd < 5.0 / np.sqrt(num) + allowed)
    assert np.all(np.abs(draws.std(axis=(0, 1)) / sd - 1.0) < 5.0 / np.sqrt(2 * num) + allowed)


def test_barycentre_of_gaussian_clients_is_theirs() -> None:
    clients = regression_clients()
    with pytest.warns(fb.NotConvergedWarning, match="it is the combination that is approximate"):
        found = fit(
            fb.OneShot(combine="wasserstein", num_samples=64, solver="importance", num_replicates=1), clients=clients
        )
    rows = np.array([len(client["y"]) for client in clients.values()])
    share = rows / rows.sum()
    precisions = [
        c["x"].T @ c["x"] / NOISE**2 + s * np.eye(3) / 4 for c, s in zip(clients.values(), share, strict=True)
    ]
    shifts = [c["x"].T @ c["y"] / NOISE**2 + s * 0.5 / 4 for c, s in zip(clients.values(), share, strict=True)]
    covariances = np.linalg.inv(precisions)
    means = np.einsum("kij,kj->ki", covariances, shifts)
    with jax.enable_x64(True):
        mean, covariance = wasserstein_barycentre(means, share[:, None, None] * covariances, share)
    np.testing.assert_allclose(found.moments()[0][0], mean, rtol=1e-6)
    np.testing.assert_allclose(found.moments()[1][0], covariance, rtol=1e-5)


def test_barycentre_of_clients_alike_is_the_posterior() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3))
    clients = {f"c{k}": {"x": x, "y": x @ np.ones(3) + NOISE * rng.normal(size=12)} for k in range(4)}
    found = fit(
        fb.OneShot(combine="wasserstein", num_samples=64, solver="importance", num_replicates=1), clients=clients
    )
    mean, covariance, _ = exact_regression(clients)
    np.testing.assert_allclose(found.moments()[0][0], mean, rtol=1e-6)
    np.testing.assert_allclose(found.moments()[1][0], covariance, rtol=1e-6, atol=1e-9)


def test_subposteriors_multiply_to_the_posterior() -> None:
    """The prior counts once: constrained globals, unbalanced clients, local latents."""

    def model(y):
        mu = numpyro.sample("mu", dist.StudentT(3.0, 0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with fb.local():
            z = numpyro.sample("z", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    rng = np.random.default_rng(1)
    clients = {f"c{k}": {"y": rng.normal(size=n)} for k, n in enumerate((1, 9, 40))}
    with jax.enable_x64(True):
        problem = make_problem(model, clients)
        theta, z = jnp.asarray(rng.normal(size=2)), jnp.asarray(rng.normal(size=3))
        joint = problem.prior.log_density(theta)
        product = 0.0
        for k, name in enumerate(clients):
            client, at = problem.client(name), jnp.append(theta, z[k])
            joint += client.log_factor(at)
            product += Subposterior(client, problem.prior, jnp.asarray(1 / 3)).log_factor(at)
    np.testing.assert_allclose(product, joint, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("combine", "model"),
    [
        ("laplace", hm2.model),
        ("laplace", hm2.model_noncentered),
        ("gaussian_product", hm2.model_noncentered),
    ],
)
def test_local_latents_are_integrated_out(combine, model) -> None:
    tau = np.array([0.5, 1.5, 0.8])
    clients = hm2.simulate(jax.random.key(3), num_clients=6, rows=12, tau=tau, noise_sd=NOISE)[0]
    method = fb.OneShot(combine=combine, num_samples=256, num_replicates=1)
    found = fit(method, partial(model, tau=tau, noise_sd=NOISE), clients)
    mean, covariance = hm2.exact_posterior_mu(clients, tau, NOISE)
    np.testing.assert_allclose((found.moments()[0][0] - mean) / np.sqrt(np.diagonal(covariance)), 0.0, atol=1e-7)
    np.testing.assert_allclose(found.moments()[1][0], covariance, atol=1e-7 * covariance.max())
    assert {*found.idata.posterior.data_vars} == {"mu"}  # only statistics of the globals travel
    name = next(iter(clients))
    assert "theta" in found.client_posterior(name).posterior or "offset" in found.client_posterior(name).posterior


def test_picture_of_two_clients() -> None:
    """One global, two clients: every diagnostic by hand."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    clients = {"few": {"y": np.full(4, 3.0)}, "many": {"y": np.zeros(16)}}
    found = fit(fb.OneShot(combine="laplace", prior="split", num_replicates=1), model, clients)
    precision = np.array([4.0, 16.0]) + 0.5 / 100.0
    mean, total = np.array([12.0, 0.0]) / precision, precision.sum()
    center = 12.0 / total
    rounds = found.rounds.isel(round=0, replicate=0)
    rest = np.array([16.0, 4.0]) + 0.01  # the other client, and the prior
    others = np.array([0.0, 12.0]) / rest
    np.testing.assert_allclose(rounds["client_mean"][:, 0], mean, atol=1e-10)
    np.testing.assert_allclose(rounds["client_sd"][:, 0], precision**-0.5)
    np.testing.assert_allclose(rounds["shift"][:, 0], (mean - others) * np.sqrt(total))
    np.testing.assert_allclose(rounds["distance"], np.abs(center - mean) * np.sqrt(precision))
    np.testing.assert_allclose(rounds["effective_clients"], 20.0**2 / (4.0**2 + 16.0**2))
    total = 1.0 / precision + 1.0 / rest
    coefficient = np.sqrt(2.0 / np.sqrt(precision * rest) / total) * np.exp(-0.25 * (mean - others) ** 2 / total)
    np.testing.assert_allclose(rounds["overlap"][:, 0], coefficient)
    assert "'few'" in repr(found) or "'many'" in repr(found)


def skewed(y):
    rate = numpyro.sample("rate", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(rate)), obs=y)


def test_the_check_measures_the_error_of_the_merge() -> None:
    """Three Poisson clients of few counts: the truth by quadrature, the error as announced to a tenth of it."""
    counts = {"a": np.array([0]), "b": np.array([1, 0]), "c": np.array([4, 2, 3])}
    clients = {name: {"y": y} for name, y in counts.items()}
    with pytest.warns(fb.NotConvergedWarning, match="client 'b' fits worst"):
        found = fit(fb.OneShot(combine="laplace", prior="split", num_replicates=1), skewed, clients)
    grid = np.linspace(-6, 6, 20001)
    y = np.concatenate(list(counts.values()))
    log = -(grid**2) / 8 + y.sum() * grid - len(y) * np.exp(grid)
    weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    mean = weight @ grid
    sd = np.sqrt(weight @ (grid - mean) ** 2)
    truth = abs(float(found.moments()[0][0, 0]) - mean) / sd
    assert truth > 0.1
    assert abs(float(found.rounds["merge_error"][-1, 0]) / truth - 1.0) < 0.1
    assert float(found.rounds["merge_k_hat"][-1, 0]) < 0.7


@pytest.mark.slow
@pytest.mark.statistical(key=2, numbers=2, errors=6.0)
def test_heavy_tailed_clients_go_to_nuts() -> None:
    def model(y):
        mu = numpyro.sample("mu", dist.StudentT(1.0, 4.0, 1.0).expand([1]).to_event(1))
        numpyro.sample("y", dist.StudentT(1.0, mu, 1.0).to_event(1), obs=y)

    rng = np.random.default_rng(0)
    clients = {"one": {"y": np.zeros((1, 1))}, "lots": {"y": rng.normal(size=(60, 1))}}
    method = fb.OneShot(combine="gaussian_product", num_samples=8192, num_replicates=2, check=False)
    found = fit(method, model, clients, key=jax.random.key(2))  # k-hat of "one" is 0.82, give or take 0.017
    assert found.rounds["solver"].values.tolist() == [["importance"] * 2, ["nuts", "importance"]]


@pytest.mark.slow
def test_weak_draws_shrink() -> None:
    """With fewer draws than a dense precision needs: a warning, and a proper posterior near the exact one."""
    with pytest.warns(fb.MergeWarning, match="`num_samples` is 8, .* needs 9 draws"):
        found = fit(fb.OneShot(combine="gaussian_product", num_samples=8, solver="importance", check=False))
    mean, covariance, _ = exact_regression(regression_clients())
    sd = np.sqrt(np.diagonal(covariance))
    ratio = np.sqrt(np.diagonal(found.moments()[1], axis1=1, axis2=2)) / sd
    assert np.all((ratio > 0.4) & (ratio < 2.0))
    assert np.all(np.abs(found.moments()[0] - mean) / sd < 4.0)


def test_prior_counted_by_every_client_is_seen(monkeypatch) -> None:
    """Negative control: the whole prior in each client, and nothing divided out."""
    monkeypatch.setattr(server.MergeState, "product", property(lambda state: state.clients.summed()))
    with pytest.raises(AssertionError):
        test_products_of_gaussian_clients_are_exact("laplace")


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=1, errors=5.6)  # a replicate's consensus is off by 0.69, with an sd of 0.027
def test_hospitals_are_as_far_off_as_the_check_says() -> None:
    """The real hospitals against pooled NUTS: rms errors near those of BFI and NumPyro's consensus (0.66, 0.79)."""
    clients = heart_disease.clients()
    pooled = {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}
    with jax.enable_x64(True):
        chains = MCMC(NUTS(heart_disease.model), num_warmup=300, num_samples=1000, progress_bar=False)
        chains.run(jax.random.key(1), **pooled)
        draws = chains.get_samples()
    flat = np.concatenate([np.asarray(draws["intercept"])[:, None], np.asarray(draws["beta"])], axis=1)
    mean, sd = flat.mean(axis=0), flat.std(axis=0)
    for combine, replicates, low, high in (("laplace", 1, 0.6, 0.72), ("consensus", 16, 0.65, 0.9)):
        method = fb.OneShot(combine=combine, solver="importance", num_replicates=replicates)
        with pytest.warns(fb.NotConvergedWarning, match="client 'switzerland' fits worst"):
            found = fit(method, heart_disease.model, clients)
        error = float(np.sqrt(np.mean(((found.moments()[0].mean(axis=0) - mean) / sd) ** 2)))
        assert low < error < high
        assert abs(float(found.rounds["merge_error"][-1].mean()) / error - 1.0) < 0.3


def test_ep_starts_from_a_combination() -> None:
    """Laplace approximations are what EP's own first round asks for."""
    method = fb.EP(num_samples=64, num_replicates=2, init="laplace", solver="importance")
    found = fit(method)
    mean, _, evidence = exact_regression(regression_clients())
    np.testing.assert_allclose(found.moments()[0], np.stack([mean] * 2), rtol=1e-8)
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-8)
    rounds = found.rounds
    assert rounds["phase"].values.tolist() == ["EP", "EP"]
    assert float(rounds["change"][-1].max()) < 1e-7  # the combination was exact: EP has nothing left to do
