"""Power-scaling: closed forms of scaled posteriors, ArviZ's own diagnostic, the three diagnoses, refusals."""

from types import SimpleNamespace
from typing import Any

import arviz as az
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

import fedbayes as fb
from fedbayes.contract.client_locals import FromServer
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.questions.sensitivity import (
    CONFLICT,
    FINE,
    STRONG_PRIOR,
    diagnosis,
    distance,
    log_prior_terms,
    log_priors,
    power_scaled,
    scalars,
)
from fedbayes.results.arviz import shapes_of
from fedbayes.runtime.precision import computing

ALPHAS = (0.99, 1.01)


@pytest.fixture(scope="module")
def fitted(stored_fits: Any) -> fb.FederatedFit:
    return stored_fits.read("scale")


def test_the_log_prior_is_that_of_the_constrained_globals(fitted) -> None:
    """Against SciPy's densities; the term that looks at the globals alone counts once."""
    found = fitted.with_log_prior()
    draws, group = found.posterior, found.log_prior
    mu, sigma = draws["mu"].values, draws["sigma"].values
    assert set(group.data_vars) == {"mu", "sigma", "soft"}
    np.testing.assert_allclose(group["mu"], stats.norm(1.0, 2.0).logpdf(mu).sum(axis=-1))
    np.testing.assert_allclose(group["sigma"], stats.lognorm(0.5).logpdf(sigma))
    np.testing.assert_allclose(group["soft"], -0.5 * mu[..., 0] ** 2)
    assert group["mu"].dims == ("chain", "draw")
    assert "log_likelihood" in found
    assert "log_prior" not in fitted.idata


def test_a_jacobian_would_be_noticed(fitted) -> None:
    """Planted bug: the prior of the unconstrained globals, which power-scaling would raise to a power, too."""
    shapes = shapes_of(fitted.problem)[0]
    with computing():
        terms = log_prior_terms(shapes.program, shapes.ones(), fitted.theta)
        unconstrained = np.asarray(fitted.roster.prior.log_densities(fitted.theta.reshape(-1, 3))).reshape(2, 500)
    log_sigma = np.log(fitted.idata.posterior["sigma"].values)
    np.testing.assert_allclose(unconstrained - sum(terms.values()), log_sigma, atol=1e-9)
    assert np.std(log_sigma) > 0.05


def test_as_arviz_has_it(fitted) -> None:
    """Both smooth the weights' tails, but fit them to other numbers of draws: equal to 2 percent."""
    ours = fitted.sensitivity()
    if hasattr(az, "psens"):
        alphas = (1.0 / 1.01, 1.01)
        ours = fitted.sensitivity(alphas)
        theirs = [az.psens(fitted.with_log_prior(), component=name, delta=0.01) for name in ours["component"].values]
        values = [[*one["mu"].values, float(one["sigma"])] for one in theirs]
    else:
        table = az.psense_summary(fitted.with_log_prior(), round_to=8)
        values = table.loc[["mu[0]", "mu[1]", "sigma"], ["prior", "likelihood"]].values.T
    np.testing.assert_allclose(ours["sensitivity"], values, rtol=0.02)
    assert ours["parameter"].values.tolist() == ["mu[0]", "mu[1]", "sigma"]


def test_each_client_by_itself(fitted) -> None:
    ours = fitted.sensitivity(by_client=True)
    assert ours["client_sensitivity"].dims == ("client_name", "parameter")
    draws = np.stack(list(scalars(fitted.idata.posterior).values()))
    north = fitted.idata.log_likelihood["client"].sel(client_name="north").values
    with computing():
        alone, k_hat = power_scaled(draws, north[None], ALPHAS)
    np.testing.assert_allclose(ours["client_sensitivity"].sel(client_name="north"), alone[0])
    np.testing.assert_allclose(ours["client_k_hat"].sel(client_name="north"), k_hat[0])
    assert set(ours["diagnosis"].values) <= {CONFLICT, STRONG_PRIOR, FINE}
    assert ours.to_dataframe().size


class Mean:
    """A normal mean with known noise: everything in closed form.

    ``mean | y ~ N``, with prior ``N(prior_mean, prior_sd)`` to the power a: precision ``a / prior_sd^2``.
    """

    def __init__(self, prior_mean: float, prior_sd: float, mean: float, rows: int) -> None:
        self.prior, self.likelihood = stats.norm(prior_mean, prior_sd), stats.norm(mean, 1.0 / np.sqrt(rows))
        grid = (np.arange(4000) + 0.5) / 4000
        self.draws = np.asarray(self.scaled(1.0, 1.0).ppf(np.random.default_rng(0).permutation(grid)))
        logs = [self.prior.logpdf(self.draws), self.likelihood.logpdf(self.draws)]
        self.logs = np.array(logs).reshape(2, 4, 1000)

    def scaled(self, prior: float, likelihood: float) -> Any:
        """The posterior with prior and likelihood to these powers."""
        weights = np.array([prior / self.prior.var(), likelihood / self.likelihood.var()])
        mean = weights @ [self.prior.mean(), self.likelihood.mean()] / weights.sum()
        return stats.norm(mean, 1.0 / np.sqrt(weights.sum()))

    def sensitivity(self) -> np.ndarray:
        with computing():
            return power_scaled(self.draws.reshape(1, 4, 1000), self.logs, ALPHAS)[0][:, 0]

    def exact(self) -> np.ndarray:
        """The same by quadrature of the distribution functions, over the range of the draws."""
        return np.array([0.5 * sum(self.apart(c, alpha) / abs(np.log2(alpha)) for alpha in ALPHAS) for c in (0, 1)])

    def apart(self, component: int, alpha: float) -> float:
        x = np.linspace(self.draws.min(), self.draws.max(), 20001)
        powers = (alpha, 1.0) if component == 0 else (1.0, alpha)
        found = []
        for tail in ("cdf", "sf"):
            p, q = (getattr(self.scaled(*each), tail)(x) for each in ((1.0, 1.0), powers))
            middle = 0.5 * (p + q)
            inside = p * np.log2(p / middle) + q * np.log2(q / middle)
            found.append(np.sqrt(np.trapezoid(inside, x) / np.trapezoid(p + q, x)))
        return max(found)


CASES = {
    "vague": (Mean(0.0, 10.0, 1.0, 50), FINE),
    "wrong": (Mean(-3.0, 0.4, 1.0, 12), CONFLICT),
    "strong": (Mean(1.0, 0.1, 1.02, 1), STRONG_PRIOR),
}


@pytest.mark.parametrize("case", CASES)
def test_diagnoses_of_a_normal_mean(case: str) -> None:
    found = CASES[case][0].sensitivity()
    assert diagnosis(*found) == CASES[case][1]


@pytest.mark.parametrize("case", CASES)
def test_distances_against_quadrature(case: str) -> None:
    """Stratified draws, so the error is that of the smoothed tail: 5 percent, and 0.001 of what is nearly zero."""
    np.testing.assert_allclose(CASES[case][0].sensitivity(), CASES[case][0].exact(), rtol=0.05, atol=1e-3)


def test_weighted_moments_are_those_of_the_scaled_posterior() -> None:
    """At powers far from one; to 4 Monte Carlo errors, of which each is at most sd / 60 for 4,000 draws."""
    model = CASES["wrong"][0]
    for alpha in (0.8, 1.25):
        with computing():
            weights = np.asarray(pareto_smooth((alpha - 1.0) * model.logs[0].ravel())[0])
        mean = weights @ model.draws
        sd = np.sqrt(weights @ (model.draws - mean) ** 2)
        exact = model.scaled(alpha, 1.0)
        assert abs(mean - exact.mean()) < 4.0 / 60.0 * exact.std()
        assert abs(sd - exact.std()) < 4.0 / 60.0 * exact.std()
        assert abs(model.draws.mean() - exact.mean()) > 4.0 / 60.0 * exact.std()  # planted bug: no weights


def test_a_distance_by_hand() -> None:
    """Two points, all the weight on the upper one: ``F = 1/2`` and ``G = 0`` between them."""
    by_hand = np.sqrt((0.5 * np.log2(2.0) - 0.25 / np.log(2.0) + 0.25 / np.log(2.0)) / 0.5)
    mirrored = 0.5 * np.log2(0.5 / 0.75) + 1.0 * np.log2(1.0 / 0.75)
    assert distance(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == pytest.approx(max(by_hand, np.sqrt(mirrored / 1.5)))
    draws = ndtri((np.arange(100) + 0.5) / 100)
    assert distance(draws, np.full(100, 0.01)) == pytest.approx(0.0, abs=1e-7)
    assert np.isnan(distance(np.ones(5), np.full(5, 0.2)))  # a constant has no scale


def test_a_loaded_fit_is_as_sensitive(fitted, stored_fits, tmp_path) -> None:
    ours = fitted.sensitivity()
    fitted.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", stored_fits.with_scale, stored_fits.read_clients("scale"))
    np.testing.assert_allclose(again.sensitivity()["sensitivity"], ours["sensitivity"], rtol=1e-6)
    np.testing.assert_allclose(again.conflict()["z"], fitted.conflict()["z"], rtol=1e-6)


@pytest.mark.parametrize("alphas", [(1.01, 0.99), (0.0, 1.0), 0.8, (0.5, "2"), (0.9, 1.1, 1.2)])
def test_powers_out_of_range_are_refused(alphas: Any, small_fit) -> None:
    with pytest.raises(ValueError, match=r"`alphas` is .*; write a power below 1 and one above it"):
        small_fit.sensitivity(alphas)


def test_fits_without_such_a_posterior_are_refused() -> None:
    point: Any = SimpleNamespace(posterior=None)
    with pytest.raises(ValueError, match="This fit is a point, which no weights on prior or likelihood change"):
        log_priors(point)
    answer = SimpleNamespace(locals_from=FromServer((), {}, {}, "CorrelatedClients"))
    coupled: Any = SimpleNamespace(posterior=object(), answer=answer)
    with pytest.raises(ValueError, match="CorrelatedClients couples the clients by a prior that is no part"):
        log_priors(coupled)
