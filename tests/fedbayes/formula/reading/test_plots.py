"""Pictures of estimates and of survival curves."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fedbayes as fb
from fedbayes import plots

ROWS = {"x": [0.2, 1.0, 1.9], "sex": ["m", "f", "m"]}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted(tables, made):
    rng = np.random.default_rng(0)
    clients = tables(rng.exponential(2.0, 40) + 0.1)
    reg = fb.regression("y ~ x + sex + (1 | site)", family="weibull", clients=clients)
    return reg, made(reg)


def names(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def test_ratios_have_a_logarithmic_axis_and_their_names(fitted):
    table = fb.summary_table(*fitted)
    ax = plots.plot_estimates(table)
    assert names(ax) == ["x", "sex[m]"]
    assert ax.get_xscale() == "log"
    assert 1.0 in ax.get_xticks()
    assert np.isin(ax.get_xticks(), 2.0 ** np.arange(-20, 21)).all()
    medians = table.summary["median"].sel(coefficient=names(ax)).values
    np.testing.assert_allclose(ax.lines[-1].get_xdata(), medians)


def test_effects_have_their_sites(fitted):
    ax = plots.plot_estimates(fb.random_effects(*fitted))
    assert names(ax) == ["a", "b"]
    assert ax.get_xscale() == "linear"


def test_a_single_quantity(fitted):
    ax = plots.plot_estimates(fb.slopes(*fitted, ROWS, "x"), ax=plt.figure().add_subplot())
    assert len(ax.lines[-1].get_xdata()) == 1


def test_survival_curves(fitted):
    curves = fb.survival_curves(*fitted, ROWS, np.linspace(0.0, 5.0, 11))
    ax = plots.plot_survival(curves)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), curves.summary["median"][1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["row 0", "row 1", "row 2"]


def test_priors_have_a_panel_each(tables):
    """Entries with one prior share a panel; of correlations there is a histogram of draws."""
    clients = tables(np.arange(40.0) % 7)
    reg = fb.regression("y ~ sex + poly(x, 2) + (1 + x | site)", clients=clients)
    axes = plots.plot_priors(reg)
    titles = ["Intercept_centred", "sex", "poly(x, 2)", "1 + x|site_sigma[1]", "1 + x|site_sigma[x]"]
    assert [ax.get_title(loc="left") for ax in axes] == [*titles, "1 + x|site_correlation[x, 1]", "sigma"]
    at, density = axes[4].lines[0].get_data()
    expected = [np.exp(reg.priors["1 + x|site_sigma"].base_dist.log_prob(x)[1]) for x in at]
    np.testing.assert_allclose(density, expected, rtol=1e-4)
    at, density = axes[5].lines[0].get_data()
    np.testing.assert_allclose(density, 0.5, rtol=0.15)  # uniform


def test_priors_need_no_rows(tables):
    agreed = fb.regression("y ~ sex", clients=tables(np.arange(40.0) % 7)).agreed
    axes = plots.plot_priors(fb.regression("y ~ sex", agreed=agreed))
    assert [ax.get_title(loc="left") for ax in axes] == ["Intercept_centred", "sex", "sigma"]


def test_what_is_no_picture_is_refused(fitted):
    with pytest.raises(ValueError, match="`estimates` is a dict; write"):
        plots.plot_estimates({})
    with pytest.raises(ValueError, match="`curves` is a Estimates; write"):
        plots.plot_survival(fb.predictions(*fitted, ROWS))
    with pytest.raises(ValueError, match="has 9 rows, of which at most 8"):
        plots.plot_survival(fb.survival_curves(*fitted, {"x": np.zeros(9), "sex": ["m"] * 9}, [1.0]))
    with pytest.raises(fb.FormulaError, match="`reg` is a dict; write"):
        plots.plot_priors({})
    nothing = fb.regression("y ~ 0", family="poisson", clients={"a": {"y": [1, 2, 0, 3, 2]}})
    assert "y ~ 0" in repr(nothing)
    with pytest.raises(ValueError, match="has 0 priors to draw"):
        plots.plot_priors(nothing)
    with pytest.raises(ValueError, match="has 70 quantities to draw"):
        plots.plot_estimates(fb.predictions(*fitted, {"x": np.zeros(70), "sex": ["m"] * 70}))


def test_differences_and_ratios_have_no_axis_in_common(tables, made):
    formulas = {"mu": "y ~ x", "sigma": "~ sex"}
    reg = fb.regression(formulas, clients=tables(np.arange(40.0) % 7))
    with pytest.raises(ValueError, match="differences as well as ratios"):
        plots.plot_estimates(fb.summary_table(reg, made(reg)))
