"""Independence Metropolis: the walk itself, the stationary law, and what it refuses."""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.correction import exact
from fedbayes.correction.exact import _Visited, _walked
from fedbayes.models import eight_schools, linear


def two_places(y) -> None:
    theta = numpyro.sample("theta", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Cauchy(theta, 0.5), obs=y)


CLIENTS = {"one": {"y": np.array([-3.0, -2.5])}, "two": {"y": np.array([2.5, 3.2])}}


def grid_moments() -> tuple[float, float]:
    theta = np.linspace(-12.0, 12.0, 20_001)
    y = np.concatenate([client["y"] for client in CLIENTS.values()])
    logs = -0.5 * (theta / 10.0) ** 2 - np.log1p(((y[:, None] - theta) / 0.5) ** 2).sum(axis=0)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = float(weights @ theta)
    return mean, float(np.sqrt(weights @ (theta - mean) ** 2))


def states(log_weight: list[list[float]]) -> _Visited:
    """Draws whose positions are their weights, so that paths can be read."""
    values = np.asarray(log_weight)
    return _Visited(values[..., None], values[..., None], values, values)


def test_a_chain_moves_up_and_stays_before_the_improbable() -> None:
    here, proposed = states([[0.0]]), states([[5.0, -1e9, 7.0, -1e9]])
    last, path, moves = _walked(here, proposed, np.random.default_rng(0))
    np.testing.assert_array_equal(path.theta[0, :, 0], [5.0, 5.0, 7.0, 7.0])
    assert moves == 2
    assert last.theta[0, 0, 0] == 7.0


@pytest.mark.statistical(key=0, numbers=3, errors=4.3)  # measured: 0.5 sqrt(3 / n) is what the third share has
def test_the_walk_has_the_target_as_stationary_law() -> None:
    """Three states with proposal 1/3 each and target weights 1, 2, 4: shares are those within four errors."""
    rng = np.random.default_rng(0)
    which = rng.integers(3, size=(4, 20_000))
    logs = np.log(np.array([1.0, 2.0, 4.0]))[which]
    proposed = _Visited(which[..., None].astype(float), which[..., None].astype(float), logs, logs)
    _, path, _ = _walked(states([[0.0]] * 4), proposed, rng)
    shares = np.bincount(path.theta.astype(int).ravel(), minlength=3) / path.theta.size
    np.testing.assert_allclose(shares, np.array([1.0, 2.0, 4.0]) / 7.0, atol=4 * 0.5 * np.sqrt(3.0 / 80_000))


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=3, errors=4.0)
def test_chains_visit_both_modes() -> None:
    """A posterior with two modes, of which a Gaussian gives a wrong picture: moments against a grid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rounds may not converge here
        fit = fb.fit_federated(
            two_places, CLIENTS, method=fb.EP(num_replicates=2), key=jax.random.key(0), num_rounds=8, progress=False
        )
    drawn = fit.exact(2000, progress=False)
    theta = drawn.posterior["theta"]
    assert theta.shape == (4, 2000)
    attrs = theta.to_dataset().attrs | drawn.posterior.attrs
    assert attrs["inference"] == "independence-metropolis"
    assert attrs["r_hat"] < 1.01
    mean, sd = grid_moments()
    error = sd / np.sqrt(attrs["effective_draws"])
    assert abs(float(theta.mean()) - mean) < 4.0 * error
    assert abs(float(theta.std()) / sd - 1.0) < 0.1
    assert float((theta > 0.0).mean()) == pytest.approx(0.5, abs=0.2)
    assert set(drawn.log_likelihood.data_vars) == {"client"}


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=1, errors=5.3)  # 4,000 draws of a law that is exactly proposed
def test_a_walk_that_forgets_the_proposal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: without the proposal's density in the ratio the chains are drawn towards its centre."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(5, 5), dim=1)
    fit = fb.fit_federated(linear.model, clients, method=fb.EP(num_replicates=2), key=jax.random.key(0), progress=False)
    true_sd = np.sqrt(linear.exact_posterior(clients)[1][0, 0])
    right = fit.exact(progress=False).posterior["beta"].values.std()
    pool_of = exact.pool_of

    def forgetful(*arguments):
        pool = pool_of(*arguments)
        object.__setattr__(pool, "log_weights", pool.log_joint)
        return pool

    monkeypatch.setattr(exact, "pool_of", forgetful)
    wrong = fit.exact(progress=False).posterior["beta"].values.std()
    assert abs(right / true_sd - 1.0) < 0.06 < abs(wrong / true_sd - 1.0)


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=3, errors=4.0)
def test_the_bias_of_langevin_steps_is_removed() -> None:
    """Coarse steps leave the chains' sds off; exact chains from them are right, by the closed form."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fb.fit_federated(
            linear.model, clients, method=fb.FALD(num_chains=4), key=jax.random.key(0), num_draws=500, progress=False
        )
    sd = np.sqrt(np.diagonal(linear.exact_posterior(clients)[1]))
    drawn = fit.exact(2000, progress=False).posterior
    error = 1.0 / np.sqrt(2.0 * drawn.attrs["effective_draws"])
    np.testing.assert_allclose(drawn["beta"].values.reshape(-1, 3).std(axis=0), sd, rtol=4.0 * error)


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=2, errors=4.0)
def test_exact_chains_of_eight_schools_are_the_references() -> None:
    """Pseudo-marginal: the schools' effects are integrated out by estimates."""
    fit = fb.fit_federated(
        eight_schools.model, eight_schools.clients(), key=jax.random.key(0), num_draws=2000, progress=False
    )
    drawn = fit.exact(5000, progress=False).posterior
    log_tau = np.log(drawn["tau"].values)
    error = 1.174 / np.sqrt(drawn.attrs["effective_draws"])
    assert abs(log_tau.mean() - 0.808) < 4.0 * np.hypot(error, 0.012)
    assert abs(log_tau.std() / 1.174 - 1.0) < 0.08


def test_what_is_no_number_of_draws_is_refused() -> None:
    clients, _ = linear.simulate(jax.random.key(0), rows=(5, 5), dim=1)
    fit = fb.fit_federated(linear.model, clients, method=fb.EP(num_replicates=2), key=jax.random.key(0), progress=False)
    with pytest.raises(ValueError, match="`max_exchanges` is 0; write a whole number, at least 1"):
        fit.exact(max_exchanges=0)
    with pytest.raises(ValueError, match=r"`num_draws` is 2\.5"):
        fit.exact(2.5)


def test_chains_that_do_not_mix_warn() -> None:
    clients, _ = linear.simulate(jax.random.key(0), rows=(5, 5), dim=1)
    fit = fb.fit_federated(
        linear.model, clients, method=fb.EP(num_replicates=2), key=jax.random.key(0), num_draws=20, progress=False
    )
    with pytest.warns(fb.UnreliableWarning, match="have not mixed after 1 exchanges"):
        fit.exact(max_exchanges=1, progress=False)
