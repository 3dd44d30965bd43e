"""Each client given all the others: closed forms, refits, and ArviZ's comparison of models."""

from types import SimpleNamespace

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import fedbayes as fb
from fedbayes.correction.left_out import cavity_pool, left_out
from fedbayes.correction.pool import Pool
from fedbayes.correction.proposal import Law, Proposal
from fedbayes.models import eight_schools, heart_disease
from fedbayes.numerics.gaussian import Gaussian

PRIOR_SD, NOISE = 2.0, 1.5
VALUES = {"a": np.array([1.0, 0.3]), "b": np.array([2.2]), "c": np.array([-0.4, 0.1, 0.9]), "d": np.array([4.5])}


def mean_model(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR_SD))
    numpyro.sample("y", dist.Normal(mu, NOISE), obs=y)


def same_rows(rows: dict[str, np.ndarray]) -> dict:
    return {name: {"y": y} for name, y in rows.items()}


def exact_elpd(name: str) -> float:
    """The client's outcomes are jointly Normal given the others."""
    others = np.concatenate([y for other, y in VALUES.items() if other != name])
    precision = 1.0 / PRIOR_SD**2 + len(others) / NOISE**2
    mean, y = others.sum() / NOISE**2 / precision, VALUES[name]
    covariance = np.full((len(y), len(y)), 1.0 / precision) + NOISE**2 * np.eye(len(y))
    return float(stats.multivariate_normal(np.full(len(y), mean), covariance).logpdf(y))


@pytest.fixture(scope="module")
def fit() -> fb.FederatedFit:
    return fb.fit_federated(
        mean_model, same_rows(VALUES), method=fb.EP(num_replicates=2), key=jax.random.key(0), progress=False
    )


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=6, errors=5.5)  # measured: 6.8 of elpd, whose mcse is cautious, 5.5 of psis
def test_each_client_given_the_others_is_the_closed_form(fit: fb.FederatedFit) -> None:
    exact = np.array([exact_elpd(name) for name in VALUES])
    found = fit.leave_one_out()
    np.testing.assert_allclose(found["gaussian"], exact, rtol=1e-8)
    np.testing.assert_array_less(np.abs(found["elpd"] - exact), 4.0 * found["mcse"].values)
    assert float(found["mcse"].max()) < 0.03
    assert bool(found["reliable"].all())
    np.testing.assert_allclose(found["psis"][:2], exact[:2], atol=0.05)  # c and d say too much for it
    assert found.attrs["remarks"] == ""


def test_draws_of_cavities_are_as_many_as_are_asked_for_and_each_has_its_law() -> None:
    """Of seven clients the first chain knows six cavities, so that in both chains six laws share 2,000 draws."""
    rng, mean = np.random.default_rng(0), 100.0 * np.arange(14.0).reshape(2, 7, 1)
    precision = np.ones((2, 7, 1, 1))
    precision[0, 2] = -1.0
    cavities = Gaussian(mean * precision[..., 0], precision, np.zeros((2, 7)))
    theta, zeros = rng.normal(size=(2, 10, 1)), np.zeros((2, 10))
    law = (Proposal([Law(np.zeros(1), np.eye(1))], [1.0]),)
    pool = Pool(theta, np.zeros((2, 10, 7)), zeros, (law, law), (10,), zeros, zeros)

    def ask(drawn, turn):
        infos = {name: np.zeros((7, *drawn.theta.shape[:2])) for name in ("noise", "halved")}
        return SimpleNamespace(replies=SimpleNamespace(each=np.zeros((7, *drawn.theta.shape[:2]))), infos=infos)

    found = cavity_pool(pool, cavities, 2000, lambda theta: np.zeros(theta.shape[:-1]), ask, jax.random.key(0))
    assert found.counts == (10, 333, 333, 334, 333, 333, 334)
    assert found.theta.shape == (2, 2010, 1)
    for chain, clients in enumerate(([0, 1, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5])):
        centres = np.repeat(mean[chain, clients, 0], found.counts[1:])
        assert np.abs(found.theta[chain, 10:, 0] - centres).max() < 50.0
        for own, k in zip(found.proposals[chain][1:], clients, strict=True):
            assert own.laws[0].mean == mean[chain, k]


def test_a_factor_that_would_overflow_at_a_draw_of_next_to_no_weight_has_its_error() -> None:
    """Of 2,000 draws one has the weight 1e-318 and the factor e^720, the others a factor of one."""
    log_likelihood, given_others = np.zeros((2000, 1)), np.zeros(2000)
    log_likelihood[0], given_others[0] = 720.0, -724.0
    found = left_out(given_others + log_likelihood[:, 0], log_likelihood)
    share = np.exp(720.0 - 724.0) / 2000
    np.testing.assert_allclose(found.elpd, np.log1p(share), rtol=1e-3)  # such a small weight has few digits
    np.testing.assert_allclose(found.mcse, share / (1.0 + share), rtol=1e-3)


def test_one_exchange_is_counted(fit: fb.FederatedFit) -> None:
    fit.leave_one_out()
    before = fit.communication
    fit.leave_one_out()
    assert fit.communication == before
    assert fit.leave_one_out().attrs["exchanges"] == 1
    assert [each.what for each in fit.fitted.ledger].count("leave_one_out") == 1  # no part of what `idata` costs


def test_it_is_in_arviz_form(fit: fb.FederatedFit) -> None:
    found, told = fit.leave_one_out(), fit.loo()
    pointwise = told["loo_i"] if hasattr(told, "loo_i") else told.elpd_i
    np.testing.assert_array_equal(np.asarray(pointwise), found["elpd"])
    assert "p_loo" in str(told)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in ArviZ 0.x
def test_models_are_compared_over_clients(fit: fb.FederatedFit) -> None:
    """A model with a far too small noise predicts left-out clients worse."""

    def sharp(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR_SD))
        numpyro.sample("y", dist.Normal(mu, 0.3), obs=y)

    other = fb.fit_federated(
        sharp, same_rows(VALUES), method=fb.EP(num_replicates=2), key=jax.random.key(0), progress=False
    )
    table = az.compare({"right": fit.loo(), "sharp": other.loo()})
    assert list(table.index) == ["right", "sharp"]
    gap = float(fit.leave_one_out()["elpd"].sum() - other.leave_one_out()["elpd"].sum())
    assert gap > 10.0


def test_the_cavitys_place_taken_by_the_posterior_is_seen(fit: fb.FederatedFit) -> None:
    """Planted bug: weights that keep the client in answer how well it is fitted, not how well it is predicted."""
    pool = fit.correction.pool
    flat = pool.log_likelihood.reshape(-1, 4)
    with jax.enable_x64(True):
        wrong = left_out(pool.log_weights.reshape(-1), flat * 0.0).elpd
    assert np.all(np.abs(wrong - [exact_elpd(name) for name in VALUES]) > 0.5)


@pytest.mark.slow
@pytest.mark.statistical(key="0 to 7", numbers=2, errors=5.5)  # measured: an sd of 0.051 for each key
def test_rows_are_left_out_at_the_client() -> None:
    """Each row given all others, of all clients: a closed form too."""
    method = fb.EP(num_replicates=2)
    fits = [
        fb.fit_federated(mean_model, same_rows(VALUES), method=method, key=jax.random.key(seed), progress=False)
        for seed in range(8)
    ]
    rows = np.concatenate(list(VALUES.values()))
    exact = []
    for i, y in enumerate(rows):
        others = np.delete(rows, i)
        precision = 1.0 / PRIOR_SD**2 + len(others) / NOISE**2
        exact.append(stats.norm(others.sum() / NOISE**2 / precision, np.sqrt(1.0 / precision + NOISE**2)).logpdf(y))
    each = [fit.loo_rows() for fit in fits]
    np.testing.assert_allclose(np.mean([found.attrs["elpd"] for found in each]), np.sum(exact), atol=0.1)
    spread = np.mean([found.attrs["se"] for found in each])
    np.testing.assert_allclose(spread, np.sqrt(len(rows) * np.var(exact)), rtol=0.05)
    found = each[0]
    np.testing.assert_array_equal(found["rows"], [2, 1, 3, 1])
    assert set(found.data_vars) == {"elpd", "se", "p_loo", "rows", "worst_k_hat", "rows_above_limit"}


def test_a_point_has_nothing_to_leave_out() -> None:
    rng = np.random.default_rng(0)
    clients = {f"client{k}": {"y": rng.normal(size=4)} for k in range(3)}
    method = fb.FedEnsemble(num_modes=2)
    fit = fb.fit_federated(mean_model, clients, method=method, key=jax.random.key(0), progress=False)
    with pytest.raises(ValueError, match="needs draws of a posterior, and this fit ends with points"):
        fit.loo()
    with pytest.raises(ValueError, match=r"`fit.error` is about a Gaussian approximation"):
        _ = fit.error


@pytest.mark.slow
@pytest.mark.parametrize("data", ["hospitals", "schools"])
# errors from twelve replicates each: Student's t of 22 degrees of freedom beyond 5, twice
@pytest.mark.statistical(key="0 and 1", alarm=1.1e-4)
def test_it_agrees_with_fits_without_the_client(data: str) -> None:
    """Within five Monte Carlo errors of both, of the evidence with and without the client."""
    model, clients = (
        (heart_disease.model, heart_disease.clients())
        if data == "hospitals"
        else (eight_schools.model, eight_schools.clients())
    )
    method = fb.EP(num_replicates=12)
    whole = fb.fit_federated(model, clients, method=method, key=jax.random.key(0), progress=False)
    found = whole.leave_one_out()
    for name in list(clients)[:2]:
        # numbered, so that schools, which are alike in size, share their programs
        rest = [each for other, each in clients.items() if other != name]
        numbered = {f"client{k}": each for k, each in enumerate(rest)}
        without = fb.fit_federated(model, numbered, method=method, key=jax.random.key(1), progress=False)
        gap = whole.log_evidence.mean() - without.log_evidence.mean()
        error = np.sqrt((whole.log_evidence.var(ddof=1) + without.log_evidence.var(ddof=1)) / 12)
        own = found.sel(client_name=name)
        assert abs(float(own["elpd"]) - gap) < 5.0 * np.hypot(error, float(own["mcse"]))
