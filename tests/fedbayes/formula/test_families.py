"""Every family's log density by a formula against one written by hand, at random points."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import betaln, expit, gammaln

import fedbayes as fb
from fedbayes.formula.families import FAMILIES
from fedbayes.formula.families.hurdle import Hurdle
from fedbayes.formula.families.levels import Categorical
from fedbayes.formula.families.overdispersed import BetaBinomial, NegativeBinomial, log_rising
from fedbayes.formula.families.times import LogLogistic, PiecewiseExponential, Times, Weibull

ROWS = 40


def tables(outcome, **columns):
    rng = np.random.default_rng(3)
    every = {"x": rng.normal(1.0, 2.0, ROWS), "y": outcome, **columns}
    return {"a": {k: v[:25] for k, v in every.items()}, "b": {k: v[25:] for k, v in every.items()}}


def of(family):
    """Outcomes inside of the support, further columns, and the left side of the formula."""
    rng = np.random.default_rng(4)
    counts = rng.poisson(1.5, ROWS)
    times, seen = rng.exponential(3.0, ROWS) + 0.1, (rng.random(ROWS) < 0.7).astype(float)
    trials = rng.integers(1, 9, ROWS)
    return {
        "gaussian": (rng.normal(size=ROWS), {}, "y"),
        "student": (rng.normal(size=ROWS), {}, "y"),
        "bernoulli": (rng.integers(0, 2, ROWS), {}, "y"),
        "binomial": (rng.binomial(trials, 0.4), {"n": trials}, "y | trials(n)"),
        "beta_binomial": (rng.binomial(trials, 0.4), {"n": trials}, "y | trials(n)"),
        "gamma": (times, {}, "y"),
        "lognormal": (times, {}, "y"),
        "beta": (rng.beta(2.0, 3.0, ROWS), {}, "y"),
        "cumulative": (rng.integers(0, 4, ROWS), {}, "y"),
        "categorical": (rng.integers(0, 3, ROWS), {}, "y"),
        "weibull": (times, {"c": 1 - seen}, "y | cens(c)"),
        "loglogistic": (times, {"c": 1 - seen}, "y | cens(c)"),
        "piecewise_exponential": (times, {"c": 1 - seen}, "y | cens(c)"),
        "cox": (times, {"c": 1 - seen}, "y | cens(c)"),
    }.get(family, (counts, {}, "y"))


def negative_binomial(y, mean, alpha):
    return (
        gammaln(y + alpha) - gammaln(alpha) - gammaln(y + 1)
        + alpha * np.log(alpha / (alpha + mean)) + y * np.log(mean / (alpha + mean))
    )  # fmt: skip


def hurdle(y, log_count, log_zero, psi):
    above = np.log1p(-psi) + log_count - np.log1p(-np.exp(log_zero))
    return np.where(y > 0, above, np.log(psi))


def inflated(y, log_count, psi):
    zero = np.log(psi + (1 - psi) * np.exp(log_count))
    return np.where(y == 0, zero, np.log1p(-psi) + log_count)


def by_hand(family, y, eta, v, data, reg):
    """The log density of the outcomes: of outcomes, linear predictor and values of the parameters."""
    mean = np.exp(eta)
    match family:
        case "gaussian":
            return stats.norm.logpdf(y, eta, v["sigma"])
        case "student":
            return stats.t.logpdf(y, v["nu"], eta, v["sigma"])
        case "bernoulli":
            return stats.bernoulli.logpmf(y, expit(eta))
        case "binomial":
            return stats.binom.logpmf(y, data["trials"], expit(eta))
        case "beta_binomial":
            n, a, b = data["trials"], v["kappa"] * expit(eta), v["kappa"] * expit(-eta)
            choose = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
            return choose + betaln(y + a, n - y + b) - betaln(a, b)
        case "poisson":
            return stats.poisson.logpmf(y, mean)
        case "negative_binomial":
            return negative_binomial(y, mean, v["alpha"])
        case "zero_inflated_poisson":
            return inflated(y, stats.poisson.logpmf(y, mean), v["psi"])
        case "zero_inflated_negative_binomial":
            return inflated(y, negative_binomial(y, mean, v["alpha"]), v["psi"])
        case "hurdle_poisson":
            return hurdle(y, stats.poisson.logpmf(y, mean), -mean, v["psi"])
        case "hurdle_negative_binomial":
            zero = negative_binomial(0, mean, v["alpha"])
            return hurdle(y, negative_binomial(y, mean, v["alpha"]), zero, v["psi"])
        case "gamma":
            return stats.gamma.logpdf(y, v["alpha"], scale=mean / v["alpha"])
        case "lognormal":
            return stats.lognorm.logpdf(y, v["sigma"], scale=mean)
        case "beta":
            return stats.beta.logpdf(y, v["kappa"] * expit(eta), v["kappa"] * expit(-eta))
        case "cumulative":
            below = np.concatenate([[0.0], np.cumsum(v["probability"])])
            thresholds = np.append(-np.inf, np.append(np.log(below[1:-1] / (1 - below[1:-1])), np.inf))
            return np.log(expit(thresholds[y + 1] - eta) - expit(thresholds[y] - eta))
        case "categorical":
            logits = np.column_stack([np.zeros(len(y)), eta])
            return logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))
        case "weibull":
            unit = float(f"{np.concatenate([c['y'] for c in reg.clients.values()]).mean():.3g}")
            scale = unit * np.exp(-eta / v["shape"])
            return survival(stats.weibull_min(v["shape"], scale=scale), y, data["observed"])
        case "loglogistic":
            return survival(stats.fisk(v["shape"], scale=mean), y, data["observed"])
        case "piecewise_exponential":
            labels = reg.coords["log_hazard_dim"]
            edges = [0.0, *(float(label.split()[-1]) for label in labels[:-1]), np.inf]
            found = np.zeros(len(y))
            for j, h in enumerate(np.exp(v["log_hazard"])):
                found -= h * mean * np.clip(y - edges[j], 0.0, edges[j + 1] - edges[j])
                found += data["observed"] * ((y > edges[j]) & (y <= edges[j + 1])) * np.log(h * mean)
            return found
        case "cox":
            at_risk = [np.log(np.exp(eta[y >= time]).sum()) for time in y]
            return np.where(data["observed"] > 0, eta - at_risk, 0.0)


def survival(law, y, observed):
    return np.where(observed > 0, law.logpdf(y), law.logsf(y))


def values_of(reg, client, key):
    """A draw of every parameter, as its site has it."""
    trace = numpyro.handlers.trace(seed(reg.model, key)).get_trace(**client)
    return {
        name: site["value"] for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]
    }, trace


@pytest.mark.parametrize("family", FAMILIES)
def test_the_density_is_that_written_by_hand(family):
    outcome, columns, left = of(family)
    reg = fb.regression(f"{left} ~ x", family=family, clients=tables(outcome, **columns))
    client = reg.clients["b"]
    for number in range(3):
        values, trace = values_of(reg, client, random.key(number))
        total, _ = log_density(reg.model, (), client, values)
        prior = sum(float(np.sum(trace[name]["fn"].log_prob(value))) for name, value in values.items())
        level = np.asarray(values.get("Intercept_centred", 0.0))
        eta = level + client["x"] @ np.asarray(values["x"]).reshape(1, -1)
        eta = eta if family == "categorical" else eta[:, 0]
        plain = {name: np.asarray(value, float) for name, value in values.items()}
        expected = by_hand(family, client["y"], eta, plain, client, reg).sum()
        assert float(total) - prior == pytest.approx(expected, rel=2e-5, abs=2e-4)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "cox"])
def test_outcomes_drawn_by_the_program_are_outcomes_of_the_family(family):
    outcome, columns, left = of(family)
    reg = fb.regression(f"{left} ~ x", family=family, clients=tables(outcome, **columns))
    client = {name: value for name, value in reg.clients["b"].items() if name not in ("y", "observed")}
    trace = numpyro.handlers.trace(seed(reg.model, 0)).get_trace(**client)
    drawn = np.asarray(trace["y"]["value"])
    rows = {"x": client["x"][:, 0], "y": drawn, "n": client.get("trials", drawn), "c": drawn * 0}
    again = reg.arguments("b", rows, outcome=True)
    assert drawn.shape == (15,)
    assert np.isfinite(again["y"]).all()


def law(name):
    return {
        "hurdle_poisson": Hurdle(jnp.array(1.7), 0.3),
        "hurdle_negative_binomial": Hurdle(jnp.array(1.7), 0.3, 0.8),
        "weibull": Weibull(jnp.array(0.4), 1.6, 3.0),
        "loglogistic": LogLogistic(jnp.array(0.4), 3.0),
        "piecewise_exponential": PiecewiseExponential(jnp.array(0.4), jnp.array([-1.0, 0.2, -0.5]), (0.5, 1.5)),
    }[name]


@pytest.mark.parametrize("name", ["hurdle_poisson", "hurdle_negative_binomial"])
@pytest.mark.statistical(key=0, numbers=7, errors=5.0)
def test_draws_of_a_hurdle_follow_its_probabilities(name):
    drawn = np.asarray(law(name).sample(random.key(0), (40_000,)))
    for count in range(7):
        p = float(np.exp(law(name).log_prob(count)))
        assert np.mean(drawn == count) == pytest.approx(p, abs=5.0 * np.sqrt(p / len(drawn)))


@pytest.mark.parametrize("name", ["hurdle_poisson", "hurdle_negative_binomial"])
def test_a_hurdle_adds_up_to_one_and_has_its_moments(name):
    counts = np.arange(400)
    p = np.exp(np.asarray(law(name).log_prob(counts), float))
    assert p.sum() == pytest.approx(1.0, abs=1e-4)
    assert float(law(name).mean) == pytest.approx((p * counts).sum(), rel=1e-4)
    assert float(law(name).variance) == pytest.approx((p * counts**2).sum() - (p * counts).sum() ** 2, rel=1e-3)


@pytest.mark.parametrize("name", ["weibull", "loglogistic", "piecewise_exponential"])
def test_a_time_is_found_again_from_its_cumulative_hazard(name):
    times = np.array([0.1, 0.4, 0.9, 1.4, 3.0])
    with jax.enable_x64(True):
        again = np.asarray(law(name).time_at(law(name).cumulative_hazard(times)))
        slope = jax.vmap(jax.grad(law(name).cumulative_hazard))(times)
        np.testing.assert_allclose(again, times, rtol=1e-5)
        np.testing.assert_allclose(np.log(slope), law(name).log_hazard(times), rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (3, 1)], ids=["a level", "levels", "levels for draws"])
def test_levels_have_numpyro_s_density(shape):
    """Values and second derivatives; whatever the shapes of values and logits, of which either may be the larger."""
    rng = np.random.default_rng(3)
    logits, values = jnp.asarray(rng.normal(size=(5, 4))), rng.integers(0, 4, size=shape)

    def of(law):
        return lambda moved: jnp.sum(law(logits + moved).log_prob(values) * jnp.arange(1.0, 6.0))

    with jax.enable_x64(True):
        found, expected = of(Categorical), of(dist.CategoricalLogits)
        at = jnp.asarray(rng.normal(size=4))
        assert Categorical(logits).log_prob(values).shape == dist.CategoricalLogits(logits).log_prob(values).shape
        np.testing.assert_allclose(found(at), expected(at), rtol=1e-14)
        np.testing.assert_array_equal(Categorical(logits).log_prob(1.0 * values), Categorical(logits).log_prob(values))
        with pytest.warns(UserWarning, match="Out-of-support"):
            assert np.isneginf(Categorical(logits, validate_args=True).log_prob(np.full(shape, 4))).all()
        np.testing.assert_allclose(jax.hessian(found)(at), jax.hessian(expected)(at), atol=1e-13)


@pytest.mark.parametrize("large", [1e6, 1e8, 1e12, 1e17, 1e40])
def test_overdispersed_counts_become_binomial_and_poisson(large):
    # the next term of the series is at most 9 * 8 / (2 * 0.3 large)
    with jax.enable_x64(True):
        found = BetaBinomial(0.3 * large, 0.7 * large, 9).log_prob(np.arange(10))
        np.testing.assert_allclose(found, stats.binom.logpmf(np.arange(10), 9, 0.3), atol=120.0 / large + 1e-12)
        found = NegativeBinomial(2.5, large).log_prob(np.arange(10))
        np.testing.assert_allclose(found, stats.poisson.logpmf(np.arange(10), 2.5), atol=120.0 / large + 1e-12)


def test_numpyro_s_own_densities_do_not():
    """Which is why they are not taken."""
    with jax.enable_x64(True):
        found = dist.BetaBinomial(0.3e17, 0.7e17, 9).log_prob(4)
        assert abs(float(found) - stats.binom.logpmf(4, 9, 0.3)) > 1.0


def test_the_logarithm_of_a_rising_product_has_no_step():
    with jax.enable_x64(True):
        for n in (0.0, 1.0, 7.0, 5000.0):
            low, high = log_rising(np.array([1e7 * (1.0 - 1e-12), 1e7 * (1.0 + 1e-12)]), n)
            assert float(high) == pytest.approx(float(low), abs=2e-7)


def test_the_probability_that_an_event_comes_later():
    expected = stats.weibull_min(1.6, scale=3.0 * np.exp(-0.4 / 1.6)).sf(2.0)
    assert float(law("weibull").survival(2.0)) == pytest.approx(expected, rel=1e-5)


def test_a_formula_of_a_probability_is_of_its_log_odds():
    outcome, _, _ = of("hurdle_poisson")
    reg = fb.regression({"mu": "y ~ x", "psi": "~ x"}, family="hurdle_poisson", clients=tables(outcome))
    trace = numpyro.handlers.trace(seed(reg.model, 0)).get_trace(**reg.clients["a"])
    slope, level = trace["psi_x"]["value"], trace["psi_Intercept"]["value"]
    x = tables(outcome)["a"]["x"]
    np.testing.assert_allclose(trace["y"]["fn"].psi, expit(np.asarray(level + slope * x)), rtol=1e-4)


def test_each_level_has_coefficients_of_its_own():
    outcome, _, _ = of("categorical")
    reg = fb.regression("y ~ poly(x, 2)", family="categorical", clients=tables(outcome))
    trace = numpyro.handlers.trace(seed(reg.model, 0)).get_trace(**reg.clients["a"])
    assert trace["poly(x, 2)"]["value"].shape == (2, 2)
    variances = reg.priors["poly(x, 2)"].variance
    assert variances.shape == (2, 2)
    assert (variances[:, 0] == variances[:, 1]).all()
    assert reg.dims["poly(x, 2)"] == ["poly(x, 2)_dim_0", "poly(x, 2)_dim_1"]


def test_a_distribution_that_says_nothing_of_its_hazard_has_none():
    for ask in (lambda t: t.log_hazard(1.0), lambda t: t.cumulative_hazard(1.0), lambda t: t.time_at(1.0)):
        with pytest.raises(NotImplementedError):
            ask(Times(None, ()))
