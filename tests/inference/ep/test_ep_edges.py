"""EP where it is hard: coordinates that don't suit the clients, wrong ideas of the noise, and when it may stop."""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.linalg import helmert

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.step import noise_limited
from fedbayes.inference.local.density import moments

KEY = jax.random.key(0)


def flat(name: str, size: int):
    return numpyro.sample(name, dist.ImproperUniform(dist.constraints.real_vector, (), (size,)))


def logistic(x, y) -> None:
    numpyro.sample("y", dist.Bernoulli(logits=x @ flat("beta", x.shape[1])), obs=y)


def linear(x, y) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(x @ flat("beta", x.shape[1]), scale), obs=y)


def clinics(contrasts: np.ndarray) -> dict:
    """Three clinics with an intercept each, in the coordinates of these contrasts; two covariates come first."""
    rng, found = np.random.default_rng(0), {}
    for k, contrast in enumerate(contrasts):
        x = rng.normal(size=(100, 2))
        y = (rng.logistic(size=100) < 0.5 * x[:, 0] - x[:, 1] + 0.4 * (k - 1)).astype(float)
        found[f"clinic{k}"] = {"x": np.column_stack([x, np.tile(contrast, (100, 1))]), "y": y}
    return found


def uncentred(num: int = 4) -> dict:
    """An intercept beside correlated covariates that are ten sds from zero."""
    rng, found = np.random.default_rng(1), {}
    for k in range(num):
        common = rng.normal(size=(50, 1))
        x = np.column_stack([np.ones(50), 50.0 + 5.0 * (common + 0.3 * rng.normal(size=(50, 4)))])
        found[f"client{k}"] = {"x": x, "y": x @ np.full(5, 0.1) + rng.normal(size=50)}
    return found


def by_outcome() -> dict:
    """Answers on a scale of three, sorted: the first and the last client have one answer only, the extreme ones."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(400), rng.normal(size=(400, 2))])
    y = np.round(x @ [0.0, 1.0, -1.0] + 1.5 * rng.normal(size=400)).clip(-1, 1)
    parts = np.array_split(np.argsort(y, kind="stable"), 5)
    return {f"client{k}": {"x": x[rows], "y": y[rows]} for k, rows in enumerate(parts)}


def flat_linear(x, y) -> None:
    scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(x @ flat("beta", x.shape[1]), scale), obs=y)


def fit(model, clients, **options) -> fb.FederatedFit:
    return fb.fit_federated(model, clients, method=fb.EP(**options), key=KEY, progress=False)


def moments_of(found: fb.FederatedFit) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the replicates, and standard deviations."""
    covariance = np.linalg.inv(found.posterior.precision)
    mean = np.einsum("rij,rj->ri", covariance, found.posterior.shift).mean(axis=0)
    return mean, np.sqrt(np.diagonal(covariance.mean(axis=0)))


@pytest.fixture(scope="module")
def in_intercepts():
    return fit(logistic, clinics(np.eye(3)))


@pytest.mark.statistical(key=0, numbers=5, errors=12.0)
def test_clients_that_alone_know_a_direction_need_no_coordinates_of_their_own(in_intercepts) -> None:
    """Flat priors; each clinic alone knows its intercept, which in contrasts is no coordinate axis."""
    contrasts = np.column_stack([np.ones(3), helmert(3).T])
    turned = fit(logistic, clinics(contrasts))
    assert turned.converged
    assert turned.rounds.sizes["round"] == in_intercepts.rounds.sizes["round"]
    assert float(turned.rounds["step"].min()) == 1.0
    assert float(turned.rounds["smallest_cavity_eigenvalue"].min()) > -1e-9  # singular, and not improper by noise
    expected, sd = moments_of(in_intercepts)
    mean, _ = moments_of(turned)
    np.testing.assert_allclose(mean[:2], expected[:2], atol=0.02 * sd[0])  # 12 errors
    np.testing.assert_allclose(contrasts @ mean[2:], expected[2:], atol=0.02 * sd[2:].min())
    noise = [float(found.rounds["monte_carlo_noise"][-1].mean()) for found in (turned, in_intercepts)]
    np.testing.assert_allclose(*noise, rtol=0.2)


def test_symmetry_entry_by_entry_is_seen(monkeypatch) -> None:
    """Planted bug: slopes and their mirror images averaged by the variances of single entries, in these coordinates."""

    def by_entries(raw, spread, leverage):
        values = np.finfo(float).tiny + jax.numpy.diagonal(spread)[:, None] * jax.numpy.diagonal(leverage)
        mine = values.T / (values + values.T)
        precision = moments.symmetrised(mine * raw + (1.0 - mine) * raw.T)
        return precision, moments.SiteError(spread, jax.numpy.eye(len(raw)), values * mine)

    monkeypatch.setattr(moments, "symmetric_slope", by_entries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)  # it may not even converge
        found = fit(logistic, clinics(np.column_stack([np.ones(3), helmert(3).T])))
    assert float(found.rounds["smallest_cavity_eigenvalue"].min()) < -1e-5


@pytest.mark.statistical(key=0, alarm=1e-6)
def test_the_noise_of_uncentred_covariates_is_not_exaggerated() -> None:
    """Random numbers that are quasi-random make the noise smaller than is said, which takes them for independent."""
    found = fit(linear, uncentred())
    noise = float(found.rounds["monte_carlo_noise"][-1].mean())
    assert found.monte_carlo_error / 2.0 < noise < 10.0 * found.monte_carlo_error
    assert found.converged
    assert np.all(found.rounds["solver"].values[-1] == "importance")


@pytest.mark.statistical(key=0, numbers=8, errors=10.0)
def test_a_client_whose_likelihood_grows_for_ever_waits_for_the_others() -> None:
    """Under a flat prior a constant outcome has a likelihood without a maximum, and no Laplace approximation."""
    clients = by_outcome()
    ends = [len(np.unique(clients[name]["y"])) for name in ("client0", "client4")]
    assert ends == [1, 1]
    found = fit(flat_linear, clients)
    first = found.rounds["code"][0].isel(replicate=0)
    assert (first.sel(client=["client0", "client4"]) == ResultCode.IMPROPER).all()
    assert found.converged
    assert found.rounds.sizes["round"] <= 6
    x, y = (np.concatenate([data[name] for data in clients.values()]) for name in ("x", "y"))
    mean, sd = moments_of(found)
    expected, spread = moments_of(fit(flat_linear, {"all": {"x": x, "y": y}}))
    # more than ten errors: that of four replicates is below 0.001
    np.testing.assert_allclose((mean - expected) / spread, 0.0, atol=0.02)
    np.testing.assert_allclose(sd / spread, 1.0, atol=0.02)


@pytest.mark.parametrize("damping", [0.2, 0.5])
@pytest.mark.statistical(key=0, numbers=1, errors=4.0)
def test_a_damped_fit_converges_no_sooner_than_it_is_there(in_intercepts, damping) -> None:
    """Small steps make small changes: what counts is the change that an undamped round would make."""
    found = fit(logistic, clinics(np.eye(3)), damping=damping, init="prior", num_replicates=2)
    mean, _ = moments_of(found)
    expected, sd = moments_of(in_intercepts)
    away = np.sqrt(np.mean(((mean - expected) / sd) ** 2))
    assert found.converged
    assert away < 0.03  # the tolerance is 0.02, and both have Monte Carlo errors of 0.003


def test_a_fit_at_its_noise_says_that_the_tolerance_was_not_met(in_intercepts) -> None:
    assert "noise" not in repr(in_intercepts).split("\n")[0]
    assert in_intercepts.idata["posterior"].attrs["remarks"] == ""
    found = fit(logistic, clinics(np.eye(3)), tolerance=1e-9, num_replicates=2)
    noise = float(found.rounds["monte_carlo_noise"][-1].max())
    assert found.converged
    assert (
        f"converged, to Monte Carlo noise of {noise:.2g} posterior sds (the tolerance 1e-09 was not reached)"
        in repr(found)
    )
    assert "the tolerance 1e-09 was not reached" in found.idata["posterior"].attrs["remarks"]
    assert float(found.rounds["change"][-1].max()) < 4.0 * noise


@pytest.mark.parametrize(
    ("change", "last_change", "step", "expected"),
    [
        (0.019, 1.0, 1.0, True),  # twice the noise
        (0.03, 0.035, 1.0, True),  # above it, and no longer shrinking
        (0.03, 0.07, 1.0, False),  # still on its way
        (0.03, 0.036, 0.2, False),  # as far as a step of 0.2 goes
        (0.05, 0.05, 1.0, False),  # too large to be noise
    ],
)
def test_what_counts_as_noise(change, last_change, step, expected) -> None:
    assert bool(noise_limited(0.01, np.asarray(change), last_change, step)) is expected
    assert not noise_limited(0.2, np.asarray(20.0 * change), 20.0 * last_change, step)  # above what may be left
