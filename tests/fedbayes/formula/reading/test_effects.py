"""Effects of sites and groups, their shrinkage and contrasts, by made draws and by a fit."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.formula.program.source import compiled


@pytest.fixture(scope="module")
def many(tables, made):
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression(
        "y ~ x + (1 + x | site) + (1 | site:ward) + (1 | sex)", clients=clients, levels={"sex": ["m", "f"]}
    )
    return reg, made(reg)


def test_every_effect_is_there_under_its_name(many):
    reg, fit = many
    shown = fb.random_effects(reg, fit).to_pandas()
    assert shown["unit"].tolist() == ["a", "a", "b", "b", "a: 1", "a: 2", "b: 1", "b: 2", "m", "f"]
    assert shown["effect"].tolist() == ["Intercept", "x", "Intercept", "x", *["Intercept"] * 6]
    own, found = fit.client_posterior("b").posterior, fb.random_effects(reg, fit).draws.values
    np.testing.assert_array_equal(found[..., 3], own["1 + x|site"].values[..., 1])
    np.testing.assert_array_equal(found[..., 7], own["1|site:ward"].values[..., 1])
    np.testing.assert_array_equal(found[..., 8], fit.idata.posterior["1|sex"].values[..., 0])


def test_effects_for_each_level_of_a_categorical_outcome(tables, made):
    clients = tables(np.arange(40) % 3)
    reg = fb.regression("y ~ x + (1 + x || site) + (1 | site:ward)", family="categorical", clients=clients)
    fit = made(reg)
    found = fb.random_effects(reg, fit)
    shown = found.to_pandas()
    assert (
        shown["effect"].tolist()
        == ["Intercept, 1", "Intercept, 2", "x, 1", "x, 2"] * 2 + ["Intercept, 1", "Intercept, 2"] * 4
    )
    own = fit.client_posterior("b").posterior
    np.testing.assert_array_equal(found.draws.values[..., 6], own["1 + x|site"].values[..., 1, 0])
    np.testing.assert_array_equal(found.draws.values[..., 15], own["1|site:ward"].values[..., 1, 1])
    squared = (fit.idata.posterior["1 + x|site_sigma"].values[..., 1, 0] ** 2).mean()
    assert shown.loc[6, "tau"] == pytest.approx(np.sqrt(squared))
    assert found.contrast("b: 1", "b: 2", effect="Intercept, 2", ratio=True).reference == 1.0
    names = fb.summary_table(reg, fit).to_pandas()["coefficient"].tolist()
    assert {"1 + x|site_sigma[x, 2]", "1|site:ward_sigma[1]"} <= set(names)
    quantities = fb.heterogeneity(reg, fit).to_pandas()["quantity"].tolist()
    assert "tau of 1 + x|site[1, 2]" in quantities


def test_the_intercept_of_a_contrast_is_also_what_the_formula_calls_it(many):
    found = fb.random_effects(*many)
    np.testing.assert_array_equal(
        found.contrast("a", "b", effect="1").draws, found.contrast("a", "b", effect="Intercept").draws
    )


def test_probabilities_of_levels_at_a_site_have_its_effects(tables, made):
    clients = tables(np.arange(40) % 3)
    reg = fb.regression("y ~ x + (1 | site:ward)", family="categorical", clients=clients)
    fit = made(reg)
    own, rows = fit.client_posterior("b").posterior, {"x": [0.3, 1.4], "ward": ["2", "1"]}
    x = np.concatenate([table["x"] for table in clients.values()])
    centred = (np.asarray(rows["x"]) - x.mean())[:, None]
    eta = own["Intercept_centred"].values[..., None, :] + centred * own["x"].values[..., None, :]
    eta = eta + own["1|site:ward"].values[:, :, [1, 0]]
    logits = np.concatenate([np.zeros((*eta.shape[:-1], 1)), eta], axis=-1)
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found = fb.predictions(reg, fit, rows, where="b").draws.values
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_shrinkage_is_the_variance_beside_that_of_the_group(many):
    reg, fit = many
    shown = fb.random_effects(reg, fit).to_pandas()
    squared = (fit.idata.posterior["1 + x|site_sigma"].values[..., 1] ** 2).mean()
    draws = fit.client_posterior("a").posterior["1 + x|site"].values[..., 1]
    assert shown.loc[1, "tau"] == pytest.approx(np.sqrt(squared))
    assert shown.loc[1, "shrinkage"] == pytest.approx(draws.var() / squared)


def test_contrasts(many):
    reg, fit = many
    effects = fb.random_effects(reg, fit)
    own = {name: fit.client_posterior(name).posterior for name in "ab"}
    site = effects.contrast("a", "b")
    np.testing.assert_allclose(site.draws, (own["a"]["1 + x|site"] - own["b"]["1 + x|site"])[..., 0])
    ward = effects.contrast("b: 2", "b: 1")
    np.testing.assert_allclose(ward.draws, own["b"]["1|site:ward"][..., 1] - own["b"]["1|site:ward"][..., 0])
    sex = effects.contrast("f", "m").draws
    np.testing.assert_allclose(sex, fit.idata.posterior["1|sex"][..., 1] - fit.idata.posterior["1|sex"][..., 0])
    slope = effects.contrast("a", "b", effect="x").draws
    np.testing.assert_allclose(slope, (own["a"]["1 + x|site"] - own["b"]["1 + x|site"])[..., 1])


REFUSED = {
    "an unknown unit": (("c", "a"), {}, "'c' has no effect here; those that do are 'a', 'b', 'a: 1'"),
    "an unknown effect": (("a", "b"), {"effect": "z"}, "'a' has no effect `z`; it has Intercept of .*, x of"),
    "an unknown term": (("a", "b"), {"term": "1|site"}, r"'a' has no effect `Intercept` of 1\|site; it has"),
    "a label of two sites": (("1", "2"), {}, "'1' has several effects `Intercept`, .*'a: 1', 'b: 1'"),
    "a ratio of means": (("a", "b"), {"ratio": True}, "the link is no logarithm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contrasts_of_nothing_are_refused(case, many):
    units, options, words = REFUSED[case]
    with pytest.raises(fb.FormulaError, match=words):
        fb.random_effects(*many).contrast(*units, **options)


def test_the_ratio_between_sites(tables, made):
    reg = fb.regression("y ~ x + (1 | site)", family="poisson", clients=tables(np.arange(40) % 5))
    effects = fb.random_effects(reg, made(reg))
    ratio = effects.contrast("a", "b", ratio=True)
    assert ratio.title == "Rate ratio of a against b, effect Intercept"
    np.testing.assert_allclose(ratio.draws, np.exp(effects.contrast("a", "b").draws))
    assert repr(ratio).splitlines()[1].split() == ["median", "lower", "upper", "direction"]  # no sd that one draw makes


def refusing(fit, *names):
    def ask(name):
        if name in names:
            raise ValueError("the site keeps them.")
        return fit.client_posterior(name)

    return SimpleNamespace(idata=fit.idata, client_names=fit.client_names, client_posterior=ask)


def test_a_site_that_does_not_tell_is_named(many):
    reg, fit = many
    found = fb.random_effects(reg, refusing(fit, "a"))
    assert found.notes == ("The effects of 'a' are not known: the site keeps them.",)
    assert "a" not in found.draws["unit"]
    with pytest.raises(fb.ClientDataError, match="effects of 'a' are not known: the site keeps them"):
        fb.predictions(reg, refusing(fit, "a"), {"x": [0.0], "ward": ["1"], "sex": ["m"]}, where="a")


def test_where_no_site_tells_there_are_no_effects(tables, made):
    reg = fb.regression("y ~ x + (1 | site)", clients=tables(np.arange(40.0) % 7))
    with pytest.raises(fb.ClientDataError, match="The effects of 'a', 'b' are not known: the site"):
        fb.random_effects(reg, refusing(made(reg), "a", "b"))


KNOWN = {
    "Intercept": dist.Normal(0.0, 10.0),
    "1|site_sigma": dist.LogNormal(0.0, 1e-3),
    "sigma": dist.LogNormal(0.0, 1e-3),
}


@pytest.fixture(scope="module")
def balanced():
    """``y_ij = mu + b_i + e_ij`` with sds of one all but known: its posterior has a closed form; and its fit."""
    rng = np.random.default_rng(0)
    rows = {"a": 3, "b": 6, "c": 12}
    clients = {name: {"y": 2.0 + rng.normal() + rng.normal(size=n)} for name, n in rows.items()}
    reg = fb.regression("y ~ 1 + (1 | site)", clients=clients, priors=KNOWN)
    fit = reg.fit(key=jax.random.key(0), method=fb.Laplace(), progress=False, correct=False)
    return reg, fit, clients


def exact(clients):
    """Mean and covariance of ``(mu, b_a, b_b, b_c)``."""
    design = np.concatenate([
        np.column_stack([np.ones(len(each["y"])), np.tile(np.eye(3)[place], (len(each["y"]), 1))])
        for place, each in enumerate(clients.values())
    ])  # fmt: skip
    covariance = np.linalg.inv(design.T @ design + np.diag([0.01, 1.0, 1.0, 1.0]))
    return covariance @ design.T @ np.concatenate([each["y"] for each in clients.values()]), covariance


def test_a_corrected_fit_has_the_same_globals_at_all_sites():
    """So that nothing is moved: a contrast is the difference of the draws."""
    rng = np.random.default_rng(1)
    clients = {name: {"y": rng.integers(0, 2, 12)} for name in "abc"}
    reg = fb.regression("y ~ 1 + (1 | site)", family="bernoulli", clients=clients)
    fit = reg.fit(key=jax.random.key(1), method=fb.Laplace(), progress=False)
    assert fit.error.attrs["correction"] == "applied"
    found = fb.random_effects(reg, fit)
    difference = found.draws.values[..., 0] - found.draws.values[..., 1]
    np.testing.assert_array_equal(found.contrast("a", "b").draws, difference)


@pytest.mark.statistical(key=0, numbers=6, errors=6.0)
def test_effects_and_contrasts_of_a_fit_are_the_exact_ones(balanced):
    """Sites' draws come with other draws of the globals: taken as they are, a contrast's sd would be too large."""
    reg, fit, clients = balanced
    mean, covariance = exact(clients)
    found = fb.random_effects(reg, fit)
    draws = found.draws.values.reshape(-1, 3)
    sds, size = np.sqrt(np.diag(covariance))[1:], len(draws)
    assert (np.abs(draws.mean(axis=0) - mean[1:]) < 0.02 * sds + 6.0 * sds / np.sqrt(size)).all()
    np.testing.assert_allclose(draws.std(axis=0), sds, rtol=0.05)
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        one, two = "abc".index(first) + 1, "abc".index(second) + 1
        variance = covariance[one, one] + covariance[two, two] - 2.0 * covariance[one, two]
        contrast = found.contrast(first, second).draws.values
        assert contrast.std() == pytest.approx(np.sqrt(variance), rel=0.05)
        assert contrast.mean() == pytest.approx(mean[one] - mean[two], abs=0.1 * np.sqrt(variance))
    apart = draws[:, 0] - draws[:, 1]
    assert apart.std() > 1.15 * found.contrast("a", "b").draws.values.std()


def test_shrinkage_of_a_balanced_design_is_the_textbook_s(balanced):
    """``1 / (1 + n)`` of the site's own mean if ``mu`` were known; here ``Var(b | y)`` of the closed form."""
    reg, fit, clients = balanced
    _, covariance = exact(clients)
    found = fb.random_effects(reg, fit).summary["shrinkage"].values
    np.testing.assert_allclose(found, np.diag(covariance)[1:], rtol=0.1)


def test_a_fit_has_them_by_itself(balanced, tmp_path):
    """Also where sites' draws come with other draws of the globals, and where the fit was read again."""
    reg, fit, _ = balanced
    expected, found = fb.random_effects(reg, fit, 0.5), fit.random_effects(0.5)
    assert repr(found) == repr(expected)
    np.testing.assert_array_equal(found.draws, expected.draws)
    np.testing.assert_array_equal(found.contrast("a", "b").draws, expected.contrast("a", "b").draws)
    with pytest.raises(ValueError, match="`level` is 95; it is the probability"):
        fit.random_effects(95)
    fit.save(tmp_path / "fit")
    read = fb.load_fit(tmp_path / "fit", reg.model, reg.clients)
    assert read.random_effects(0.5).draws["unit"].values.tolist() == ["a", "b", "c"]
    by_its_text = fb.load_fit(tmp_path / "fit", compiled(reg.source), reg.clients)
    assert by_its_text.summary_table().draws.sizes["coefficient"] == 3
    with pytest.raises(
        fb.FormulaError, match=r"is no `reg.model`.*`fb.random_effects\(reg, fit\)` with its regression.$"
    ):
        by_its_text.random_effects()


def test_labels_of_groups_are_known_where_the_rows_are(tables):
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ x + (1 | site:ward)", clients=clients)
    options = {"key": jax.random.key(0), "method": fb.Laplace(), "progress": False, "correct": False, "num_draws": 20}
    fit = fb.fit_federated(reg.model, reg.clients, **options)
    assert fit.random_effects().draws["unit"].values.tolist() == ["a: 1", "a: 2", "b: 1", "b: 2"]
    agreed = fb.regression("y ~ x + (1 | site:ward)", agreed=reg.agreed)
    there = fb.fit_federated(agreed.model, reg.clients, **options)
    with pytest.raises(fb.ClientDataError, match="'a' has 2 groups 'site:ward', and their labels are not known here"):
        there.random_effects()
    none = fb.regression("y ~ x", clients=clients).fit(**options)
    with pytest.raises(fb.FormulaError, match=r"no effects of groups. Write `\(1 \| site\)`"):
        none.random_effects()


def test_a_fit_reads_back_as_the_made_ones_do(balanced):
    reg, fit, clients = balanced
    own = fb.predictions(reg, fit, {"any": [1.0]}, where="c").draws.values
    mean, covariance = exact(clients)
    both = np.array([1.0, 0.0, 0.0, 1.0])
    sd = np.sqrt(both @ covariance @ both)
    assert own.std() == pytest.approx(sd, rel=0.05)
    assert own.mean() == pytest.approx(both @ mean, abs=0.1 * sd)
    joined = fit.adapt(reg.clients["c"])
    assert fb.predictions(reg, fit, {"any": [1.0]}, where=joined).draws.shape[2] == 1


def test_a_ratio_is_called_what_it_is_of_each_parameter(tables, made):
    clients = tables(np.arange(40.0) % 5)
    inflated = fb.regression({"mu": "y ~ x", "psi": "~ (1 | site)"}, family="zero_inflated_poisson", clients=clients)
    found = fb.random_effects(inflated, made(inflated)).contrast("a", "b", ratio=True)
    assert found.title.startswith("Odds ratio of psi of")
    spread = fb.regression({"mu": "y ~ x", "sigma": "~ (1 | site)"}, clients=clients)
    found = fb.random_effects(spread, made(spread)).contrast("a", "b", ratio=True)
    assert found.title.startswith("Ratio of sigma of")
