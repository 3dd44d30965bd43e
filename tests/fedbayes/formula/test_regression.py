"""What ``regression`` returns: a program that says what one would write by hand, its data, names and words."""

import inspect

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density

import fedbayes as fb
from fedbayes.models import heart_disease

NAMES = heart_disease.COORDS["coefficient"]
HOSPITALS = {
    name: pd.DataFrame(data["x"], columns=NAMES).assign(sick=data["y"])
    for name, data in heart_disease.clients().items()
}
AS_BY_HAND = {name: dist.Normal(0.0, 1.0) for name in NAMES} | {"Intercept": dist.Normal(0.0, 5.0)}


def hospitals():
    return fb.regression(f"sick ~ {' + '.join(NAMES)}", family="bernoulli", clients=HOSPITALS, priors=AS_BY_HAND)


def test_the_hospitals_by_a_formula_have_the_density_of_the_program_written_by_hand():
    reg, by_hand = hospitals(), heart_disease.clients()
    with jax.enable_x64(True):
        for number, client in enumerate(by_hand):
            beta = np.random.default_rng(number).normal(size=len(NAMES))
            values = {"Intercept": 0.3, **dict(zip(NAMES, beta, strict=True))}
            found, _ = log_density(reg.model, (), dict(reg.clients[client]), values)
            expected, _ = log_density(heart_disease.model, (), by_hand[client], {"intercept": 0.3, "beta": beta})
            assert float(found) == pytest.approx(float(expected), rel=1e-12)


RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({
    "y": RNG.normal(size=60), "age": RNG.normal(50.0, 9.0, 60), "sex": RNG.choice(["f", "m"], 60),
    "ward": RNG.choice(["1", "2", "3"], 60), "site": np.repeat(["a", "b", "c"], 20), "count": RNG.poisson(2.0, 60),
    "w": RNG.random(60) + 0.5,
})  # fmt: skip
FORMULAS = [
    "y ~ age * sex", "y ~ 1", "y ~ 0 + sex", "y ~ bs(age, df=4) + (1 + age | site)", "y ~ age + (1 | site/ward)",
    "y | weights(w) ~ scale(age)", "y ~ I(age / 10)",
]  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_source_runs_and_says_the_same(formula):
    reg = fb.regression(formula, clients=FRAME)
    namespace = {}
    exec(reg.source, namespace)
    client = dict(reg.clients["b"])
    latents = trace(seed(reg.model, 1)).get_trace(**client)
    values = {
        name: site["value"] for name, site in latents.items() if site["type"] == "sample" and not site["is_observed"]
    }
    found, _ = log_density(namespace["model"], (), client, values)
    expected, _ = log_density(reg.model, (), client, values)
    assert float(found) == float(expected)
    assert inspect.getsource(reg.model) in reg.source


def test_weights_count_rows_as_often_as_they_say():
    reg = fb.regression("y | weights(w) ~ 1", clients=FRAME)
    client = dict(reg.clients["a"])
    values = {"Intercept": 0.2, "sigma": 1.3}
    with jax.enable_x64(True):
        found, _ = log_density(reg.model, (), client, values)
    prior = sum(float(reg.priors[name].log_prob(value)) for name, value in values.items())
    expected = (client["weights"] * np.asarray(dist.Normal(0.2, 1.3).log_prob(client["y"]))).sum()
    assert float(found) == pytest.approx(prior + expected, rel=1e-5)


def test_the_intercept_is_the_one_at_zero_and_its_prior_that_at_the_means():
    reg = fb.regression("y ~ age", clients=FRAME)
    sites = trace(seed(reg.model, 0)).get_trace(**reg.clients["a"])
    at_means, slope = float(sites["Intercept_centred"]["value"]), float(sites["age"]["value"])
    assert float(sites["Intercept"]["value"]) == pytest.approx(at_means - slope * FRAME["age"].mean(), rel=1e-4)
    x = np.concatenate([client["x"] for client in reg.clients.values()])
    assert np.abs(x.mean(axis=0)).max() < 1e-10


def test_without_an_intercept_columns_stay_as_they_are():
    reg = fb.regression("y ~ 0 + age", clients=FRAME)
    np.testing.assert_array_equal(reg.clients["a"]["x"][:, 0], FRAME["age"][:20])
    assert "Intercept" not in reg.source


def test_printed_it_shows_formula_family_clients_and_priors():
    reg = fb.regression("y ~ age + (1 | site)", clients=FRAME, priors={"age": dist.Normal(0.0, 0.5)})
    assert repr(reg).splitlines()[:5] == [
        "Regression",
        "  formula: y ~ age + (1 | site)",
        "  family: gaussian, link identity",
        "  clients: 3, rows 20 to 20, 60 in all",
        "  priors:",
    ]
    assert "(at mean covariates)" in repr(reg)
    assert "Normal(0.0, 0.5) (given)" in repr(reg)


def test_a_model_without_parameters_beside_an_intercept_is_printed():
    rows = {"a": {"y": [0, 1, 1, 0, 1]}}
    assert "note:" not in repr(fb.regression("y ~ 1", family="bernoulli", clients=rows))


def test_names_of_levels_and_bases_are_coords():
    reg = fb.regression("y ~ sex + bs(age, df=4)", clients=FRAME)
    assert reg.coords["sex_dim"] == ["m"]
    assert reg.dims["sex"] == ["sex_dim"]
    assert reg.coords["bs(age, df=4)_dim"] == ["1", "2", "3", "4"]
    assert reg.terms == ("sex", "bs(age, df=4)")


def test_a_slash_in_a_term_does_not_make_a_folder():
    assert "I(age ÷ 10)" in fb.regression("y ~ I(age / 10)", clients=FRAME).priors


def test_new_rows_are_read_as_the_old_ones():
    reg = fb.regression("y ~ scale(w) * sex + bs(age, df=4) + (1 | site:ward)", clients=FRAME)
    again = reg.arguments("b", FRAME[FRAME["site"] == "b"], outcome=True)
    for name, value in reg.clients["b"].items():
        np.testing.assert_array_equal(again[name], value)
    without = reg.arguments("b", FRAME[FRAME["site"] == "b"].drop(columns="y"))
    assert "y" not in without


def test_new_rows_of_an_intercept_alone_have_their_number():
    reg = fb.regression("y ~ 1", clients=FRAME)
    np.testing.assert_array_equal(reg.arguments("b", FRAME.head(3))["rows"], [1.0, 1.0, 1.0])


def test_new_rows_with_another_level_or_group_are_refused():
    reg = fb.regression("y ~ sex + (1 | site:ward)", clients=FRAME)
    with pytest.raises(
        fb.ClientDataError, match="1 of 1 rows have a level of 'sex' that is none of the declared ones, such as 'x'"
    ):
        reg.arguments("b", {"sex": ["x"], "ward": ["1"]})
    with pytest.raises(fb.ClientDataError, match="1 of 1 rows are of a group of 'site:ward' that is not there"):
        reg.arguments("b", {"sex": ["m"], "ward": ["9"]})


def test_trials_of_new_rows_are_read():
    rows = FRAME.assign(n=FRAME["count"] + 1)
    reg = fb.regression("count | trials(n) ~ age", family="binomial", clients=rows)
    np.testing.assert_array_equal(reg.arguments("a", rows.head(2).drop(columns="count"))["trials"], rows["n"].head(2))


def test_formulas_of_further_parameters():
    reg = fb.regression({"mu": "y ~ age", "sigma": "~ sex + (1 | site)"}, clients=FRAME)
    client = dict(reg.clients["a"])
    sites = trace(seed(reg.model, 3)).get_trace(**client)
    male = (FRAME["sex"][:20] == "m").to_numpy()
    log_sd = (
        float(sites["sigma_Intercept"]["value"])
        + male * float(sites["sigma_sex"]["value"][0])
        + float(sites["sigma_1|site"]["value"])
    )
    np.testing.assert_allclose(sites["y"]["fn"].scale, np.exp(log_sd), rtol=1e-4)
    assert "formula of sigma: ~ sex + (1 | site)" in repr(reg)


def test_the_family_of_a_formula_has_other_names():
    assert fb.regression("count ~ age", family="NegBinomial", clients=FRAME).family == "negative_binomial"


def test_nothing_of_the_clients_but_sums_is_in_the_program():
    """Another client's rows with the same sums make the same program."""
    one = fb.regression("y ~ age", clients=FRAME)
    shuffled = FRAME.assign(site=FRAME["site"].sample(frac=1.0, random_state=1).to_numpy())
    two = fb.regression("y ~ age", clients=shuffled)
    numbers = [float(part.strip("[]() ")) for part in one.source.split("jnp.array(")[1].split(")")[0].split(",")]
    again = [float(part.strip("[]() ")) for part in two.source.split("jnp.array(")[1].split(")")[0].split(",")]
    np.testing.assert_allclose(numbers, again, rtol=1e-12)


def test_a_covariate_may_be_called_like_an_argument():
    reg = fb.regression(
        "z ~ x + y", clients={"a": {"x": [1.0, 2.0, 4.0, 3.0], "y": [0.0, 1.0, 1.0, 0.0], "z": [1.0, 2.0, 3.0, 5.0]}}
    )
    assert set(reg.priors) == {"Intercept", "x", "y", "sigma"}
