"""Default priors: the stated scales from everybody's sums; and those that a user gives in their place."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import fedbayes as fb
from fedbayes.formula.program.typed import NAMES, prior_of
from fedbayes.formula.program.written import made, written

RNG = np.random.default_rng(5)
ROWS = 200
FRAME = pd.DataFrame({
    "x": RNG.normal(3.0, 7.0, ROWS), "sex": RNG.choice(["f", "m"], ROWS), "site": RNG.choice(["a", "b", "c"], ROWS),
    "y": RNG.normal(100.0, 30.0, ROWS), "count": RNG.poisson(5.0, ROWS), "days": RNG.integers(1, 9, ROWS),
    "sick": RNG.integers(0, 2, ROWS), "time": RNG.exponential(4.0, ROWS) + 0.1, "seen": RNG.integers(0, 2, ROWS),
    "grade": RNG.integers(1, 4, ROWS),
})  # fmt: skip
SD = float(FRAME["x"].std(ddof=0))
MALE = float((FRAME["sex"] == "m").std(ddof=0))
SD_Y = float(FRAME["y"].std())


def priors(formula, family="gaussian", **options):
    return fb.regression(formula, family=family, clients=FRAME, **options).priors


def scale(prior):
    inner = prior.base_dist if isinstance(prior, dist.Independent) else prior
    return np.asarray(inner.scale if hasattr(inner, "scale") else inner.base_dist.scale, float).reshape(-1)


def near(value):
    return pytest.approx(value, rel=0.006)  # they are written with three digits


def test_a_gaussian_outcome_has_the_scales_of_rstanarm():
    found = priors("y ~ x + sex + (1 + x | site)")
    assert float(found["Intercept"].loc) == near(FRAME["y"].mean())
    assert scale(found["Intercept"]) == near(2.5 * SD_Y)
    assert scale(found["x"]) == near(2.5 * SD_Y / SD)
    assert scale(found["sex"]) == near(2.5 * SD_Y / MALE)
    assert isinstance(found["sigma"].base_dist, dist.StudentT)
    assert float(found["sigma"].base_dist.df) == 4.0
    assert float(found["sigma"].base_dist.scale) == near(SD_Y)
    np.testing.assert_allclose(scale(found["1 + x|site_sigma"]), [2.5 * SD_Y, 2.5 * SD_Y / SD], rtol=0.006)
    assert isinstance(found["1 + x|site_cholesky"], dist.LKJCholesky)


def test_log_odds_have_an_intercept_of_one_and_a_half_and_slopes_per_sd():
    found = priors("sick ~ x + sex + (1 | site)", "bernoulli")
    assert float(found["Intercept"].loc) == 0.0
    assert scale(found["Intercept"]) == near(1.5)
    assert scale(found["x"]) == near(1.0 / SD)
    assert scale(found["sex"]) == near(1.0)
    assert scale(found["1|site_sigma"]) == near(1.5)


def test_a_logarithm_is_around_that_of_the_mean_rate():
    found = priors("count ~ x + offset(log(days))", "poisson")
    assert float(found["Intercept"].loc) == near(np.log(FRAME["count"].mean()) - np.log(FRAME["days"]).mean())
    assert scale(found["x"]) == near(1.0 / SD)


def test_hazards_are_around_the_share_of_events():
    found = priors("Surv(time, seen) ~ x", "weibull")
    assert float(found["Intercept"].loc) == near(np.log(FRAME["seen"].mean()))
    found = priors("Surv(time, seen) ~ x", "piecewise_exponential", ends=[1.0, 5.0])
    assert found["log_hazard"].event_shape == (3,)


def test_levels_of_an_ordered_outcome_are_equally_likely_at_average_covariates():
    found = priors("grade ~ x", "cumulative")["probability"]
    np.testing.assert_array_equal(found.concentration, [1.0, 1.0, 1.0])


def test_the_scales_do_not_depend_on_units():
    plain, metres = priors("y ~ x"), priors("y ~ I(x * 1000)")
    assert scale(metres["I(x * 1000)"]) * 1000.0 == near(scale(plain["x"])[0])


def test_the_scale_of_a_parameter_with_a_formula_is_around_its_default():
    found = priors({"mu": "y ~ x", "sigma": "~ sex"})
    assert float(found["sigma_Intercept"].loc) == pytest.approx(np.log(0.74 * SD_Y), abs=0.1)  # median of |t4|: 0.74


def test_a_column_that_nobody_has_takes_the_scale_of_one_sd():
    found = priors("y ~ sex", levels={"sex": ["f", "m", "x"]})
    np.testing.assert_allclose(scale(found["sex"])[1], 2.5 * SD_Y, rtol=0.006)


def test_a_folded_prior_is_printed_as_a_half() -> None:
    reg = fb.regression("y ~ x", clients=FRAME)
    assert re.search(r"^    sigma +half of StudentT\(4\.0, 0\.0, [\d.]+\)$", repr(reg), re.MULTILINE)
    assert "dist.FoldedDistribution(dist.StudentT(4.0, 0.0, " in reg.source


def test_given_priors_replace_the_defaults_and_are_printed():
    given = {"x": dist.StudentT(3.0, 0.5, 0.25), "sex": dist.Laplace(0.0, 1.5), "sigma": dist.HalfNormal(2.0)}
    reg = fb.regression("y ~ x + sex", clients=FRAME, priors=given)
    assert "x          StudentT(3.0, 0.5, 0.25) (given)" in repr(reg)
    assert "Laplace(0.0, 1.5).expand([1]).to_event(1) (given)" in repr(reg)
    assert float(reg.priors["x"].log_prob(0.3)) == pytest.approx(float(given["x"].log_prob(0.3)))


REFUSED = [
    ({"xx": dist.Normal(0.0, 1.0)}, "is no parameter of this regression.*Did you mean 'x'"),
    ({"x": 3.0}, "is 3.0; write a distribution"),
    ({"x": dist.Normal(jnp.zeros(2), 1.0)}, r"has the shape \(2,\), but the parameter has \(\)"),
    ([], "`priors` is a list"),
    (
        {"x": dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(0.0, 2.0))},
        "can't be written",
    ),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_priors_that_mean_nothing_are_refused(given, words):
    with pytest.raises(fb.FormulaError, match=words):
        fb.regression("y ~ x", clients=FRAME, priors=given)


SUPPORTS = [
    ("sigma", dist.Normal(0.0, 1.0), "the law Normal, whose values are all real numbers, .*above zero.*`dist.HalfNo"),
    ("sigma", dist.Uniform(-1.0, 2.0), "values are from -1 to 2, but 'sigma' is above zero"),
    ("sigma", dist.Poisson(3.0), "whole numbers"),
    ("1|ward_sigma", dist.StudentT(3.0, 0.0, 1.0), "'1|ward_sigma' is above zero"),
    ("1 + x|site_sigma", dist.Normal(jnp.zeros(2), 1.0).to_event(1), "the law Normal, .*above zero"),
    ("1 + x|site_cholesky", dist.Normal(0.0, 1.0), r"the Cholesky factor of correlations.*LKJCholesky\(2, 1.0\)"),
    ("1 + x|site_cholesky", dist.LKJ(2, 1.0), "of the kind CorrMatrix"),
    ("x", dist.Poisson(3.0), r"'x' is a real number.*`dist.Normal\(0.0, 1.0\)`"),
    ("nu", dist.Normal(30.0, 1.0), "'nu' is above zero"),
    ("psi", dist.HalfNormal(1.0), r"values are from 0 to inf, but 'psi' is between 0 and 1.*`dist.Beta\(2.0, 2.0\)`"),
    ("probability", dist.Beta(1.0, 1.0), r"add up to one. Write .*`dist.Dirichlet\(jnp.array\(\[1.0, 1.0, 1.0"),
    ("shape", dist.Laplace(0.0, 1.0), "'shape' is above zero"),
    ("mi(x)_sigma", dist.Normal(0.0, 1.0), "is above zero"),
]
OF_PARAMETER = {
    "nu": ("y ~ x", "student"),
    "psi": ("count ~ x", "hurdle_poisson"),
    "probability": ("grade ~ x", "cumulative"),
    "shape": ("time ~ x", "weibull"),
    "mi(x)_sigma": ("y ~ mi(x)", "gaussian"),
}
GROUPED = ("y ~ x + (1 + x | site) + (1 | ward)", "gaussian")


def with_prior(name, prior):
    formula, family = OF_PARAMETER.get(name, GROUPED)
    frame = FRAME.assign(ward=FRAME["site"] + FRAME["sex"])
    return fb.regression(formula, family=family, clients=frame, priors={name: prior})


@pytest.mark.parametrize(("name", "prior", "words"), SUPPORTS)
def test_a_prior_of_values_that_the_parameter_can_not_have_is_refused(name, prior, words):
    with pytest.raises(fb.FormulaError, match=words.replace("|", r"\|")):
        with_prior(name, prior)


WITHIN = [
    ("sigma", dist.Uniform(0.5, 3.0)), ("sigma", dist.Beta(2.0, 2.0)), ("sigma", dist.Pareto(0.1, 2.0)),
    ("sigma", dist.TruncatedNormal(1.0, 1.0, low=0.0)), ("psi", dist.Uniform(0.1, 0.3)), ("nu", dist.Chi2(3.0)),
    ("x", dist.Exponential(1.0)), ("x", dist.Uniform(-1.0, 1.0)),
    ("probability", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0]))),
    ("1 + x|site_sigma", dist.LogNormal(jnp.zeros(2), 1.0)), ("1 + x|site_cholesky", dist.LKJCholesky(2, 3.0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "prior"), WITHIN)
def test_a_prior_of_fewer_values_is_taken(name, prior):
    assert "(given)" in repr(with_prior(name, prior))


WRITTEN = [
    dist.Normal(0.0, 0.1), dist.LogNormal(1.0, 2.0), dist.Gamma(2.0, 0.1), dist.Beta(2.0, 2.0), dist.HalfCauchy(1.0),
    dist.Normal(jnp.array([0.1, 0.2]), 1.0).to_event(1), dist.Exponential(0.3).expand([2]), dist.Dirichlet(jnp.ones(5)),
    dist.TruncatedNormal(0.0, 1.0, low=0.0), dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 1.3)),
    dist.LKJCholesky(3, 2.0),    dist.Uniform(-1.0, 2.5), dist.InverseGamma(2.0, 3.0),
]  # fmt: skip


@pytest.mark.parametrize("prior", WRITTEN, ids=lambda prior: type(prior).__name__)
def test_a_prior_is_made_again_from_its_text(prior):
    again = made(written("x", prior))
    draws = prior.sample(jax.random.key(1), (3,))
    np.testing.assert_allclose(again.log_prob(draws), prior.log_prob(draws), rtol=1e-5)


def test_numbers_of_32_bits_are_written_as_they_were_meant():
    assert written("x", dist.Normal(jnp.float32(0.1), 1.0)) == "dist.Normal(0.1, 1.0)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Normal(0, 2.5)", dist.Normal(0.0, 2.5)),
        (" dist.StudentT(3.0, -1, scale=2.5) ", dist.StudentT(3.0, -1.0, 2.5)),
        ("FoldedDistribution(StudentT(4.0, 0.0, 2.0))", dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 2.0))),
        ("LKJCholesky(2, 1.0)", dist.LKJCholesky(2, 1.0)),
        ("TruncatedNormal(0, 1, low=0)", dist.TruncatedNormal(0.0, 1.0, low=0.0)),
        ("TruncatedCauchy(0, 2.5, low=0)", dist.TruncatedCauchy(0.0, 2.5, low=0.0)),
        ("dist.Normal(0.0, 0.1).expand([2]).to_event(1)", dist.Normal(0.0, 0.1)),
    ],
)
def test_priors_as_they_are_typed(text, expected):
    found = prior_of(text)
    draws = expected.sample(jax.random.key(0), (5,))
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found.log_prob(draws), expected.log_prob(draws))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Normal", "is no prior"),
        ("Normal(", "is no prior"),
        ("Normal(0, __import__('os').getpid())", "names no distribution"),
        ("Normal(0, x)", "is no prior"),
        ("Normal(0, True)", "is no prior"),
        ("Normal(*[0, 1])", "is no prior"),
        ("Normal(**{'loc': 0})", "is no prior"),
        ("(lambda: 0)()", "names no distribution"),
        ("dist.Normal.__init__(0)", "names no distribution"),
        ("constraints(0)", "names no distribution"),
        ("Normal(0, -1)", "is no distribution: .*scale"),
        ("Normal(0, 1, 2, 3)", "is no distribution"),
        ("Normall(0, 1)", "Did you mean 'Normal'"),
        ("Normal(0, 1e400)", "a number above 3.4e[+]38"),
        ("Normal(0, -1e39)", "a number above 3.4e[+]38"),
        (f"Normal(0, {10**400})", "a number above 3.4e[+]38"),
        ("LKJCholesky(100000, 1)", "a number above 1e[+]03"),
        ("LKJCholesky(2, 'cvine')", "is no prior"),
        ("Normal(Normal(0, 1), 1)", "is no distribution"),
        ("LeftTruncatedDistribution(1, 0)", "is no distribution"),
        ("Normal(0, 1" + " " * 500 + ")", "has 512 characters, and may have 500"),
        ("Normal(0, " + "(" * 100 + "1" + ")" * 101, "has more than 5 brackets within each other"),
        ("Distribution()", "names no distribution"),
        ("Bernoulli(0.5)", "names no distribution"),
    ],
)
def test_what_is_typed_is_read_and_never_run(text, told):
    with pytest.raises(fb.FormulaError, match=f"`--prior` of 'age': .*{told}"):
        prior_of(text, "`--prior` of 'age'")


def test_every_name_that_is_listed_is_a_law_of_numpyro():
    assert [name for name in NAMES if name not in dist.__all__] == []
