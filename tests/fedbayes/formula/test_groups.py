"""Groups: the client itself, groups within a client, and groups that cross clients."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density

import fedbayes as fb
from fedbayes.problem.program.sites import LOCAL

RNG = np.random.default_rng(2)
FRAME = pd.DataFrame({
    "y": RNG.normal(size=90), "x": RNG.normal(size=90), "site": np.repeat(["a", "b", "c"], 30),
    "ward": RNG.choice(["1", "2", "3"], 90), "drug": RNG.choice(["p", "q"], 90),
})  # fmt: skip
FRAME["own"] = FRAME["site"] + FRAME["ward"]


def sites(reg, client="a"):
    return trace(seed(reg.model, 0)).get_trace(**reg.clients[client])


def local(found):
    return {name for name, site in found.items() if site["type"] == "sample" and site["infer"].get(LOCAL)}


def test_the_client_s_own_effect_is_its_own_latent():
    reg = fb.regression("y ~ x + (1 | site)", clients=FRAME)
    found = sites(reg)
    assert local(found) == {"1|site_offset"}
    effect = found["1|site_sigma"]["value"] * found["1|site_offset"]["value"]
    assert float(found["1|site"]["value"]) == pytest.approx(float(effect))
    eta = found["Intercept_centred"]["value"] + reg.clients["a"]["x"] @ np.atleast_1d(found["x"]["value"]) + effect
    np.testing.assert_allclose(found["y"]["fn"].loc, eta, rtol=1e-4, atol=1e-5)


def test_effects_of_a_client_are_correlated():
    reg = fb.regression("y ~ x + (1 + x | site)", clients=FRAME)
    found = sites(reg)
    value = {name: np.asarray(site["value"]) for name, site in found.items()}
    factor = value["1 + x|site_cholesky"]
    effect = value["1 + x|site_sigma"] * (factor @ value["1 + x|site_offset"])
    np.testing.assert_allclose(value["1 + x|site"], effect, rtol=1e-5)
    assert float(value["1 + x|site_correlation"][0]) == pytest.approx((factor @ factor.T)[1, 0])
    assert reg.coords["1 + x|site_dim"] == ["1", "x"]
    np.testing.assert_array_equal(reg.clients["a"]["site_values"], np.column_stack([np.ones(30), FRAME["x"][:30]]))


def test_two_bars_leave_the_correlation_out():
    reg = fb.regression("y ~ x + (1 + x || site)", clients=FRAME)
    assert "LKJ" not in reg.source
    found = {name: np.asarray(site["value"]) for name, site in sites(reg).items()}
    np.testing.assert_allclose(found["1 + x|site"], found["1 + x|site_sigma"] * found["1 + x|site_offset"], rtol=1e-5)


@pytest.mark.parametrize(
    "formula", ["y ~ x + (0 + x | own)", "y ~ x + (1 + x | own)", "y ~ x + (1 + x || own)", "y ~ x + (1 | own)"]
)
def test_each_row_has_the_effects_of_its_group(formula):
    reg = fb.regression(formula, clients=FRAME)
    client, found = reg.clients["b"], sites(reg, "b")
    name = next(name for name in found if name.endswith("|own"))
    effects = np.asarray(found[name]["value"]).reshape(client["own_count"], -1)
    columns = {"x|own": FRAME[["x"]], "1|own": FRAME[["x"]] ** 0}.get(name, FRAME[["x"]].assign(one=1.0)[["one", "x"]])
    rows = FRAME["site"] == "b"
    codes = FRAME["own"][rows].map({label: place for place, label in enumerate(reg.groups["b"]["own"])}).to_numpy()
    common = np.asarray(found["Intercept_centred"]["value"] + client["x"] @ np.atleast_1d(found["x"]["value"]))
    expected = common + (columns[rows].to_numpy() * effects[codes]).sum(axis=1)
    np.testing.assert_allclose(found["y"]["fn"].loc, expected, rtol=1e-4, atol=1e-4)
    assert local(found) == {f"{name}_offset"}


def test_labels_of_groups_within_a_client_stand_beside_it_and_in_no_argument():
    reg = fb.regression("y ~ x + (1 | own)", clients=FRAME)
    assert reg.groups["c"]["own"] == ("c1", "c2", "c3")
    assert "c1" not in reg.source
    assert all(np.asarray(value).dtype.kind in "fi" for client in reg.clients.values() for value in client.values())
    assert not any("own" in dim for dim in reg.coords)


def test_nested_groups_are_the_client_and_the_groups_within_it():
    one = fb.regression("y ~ x + (1 | site/ward)", clients=FRAME)
    two = fb.regression("y ~ x + (1 | site) + (1 | site:ward)", clients=FRAME)
    assert one.source.split("\n", 11)[11] == two.source.split("\n", 11)[11]


def test_the_same_label_at_two_clients_is_refused_until_one_says_what_it_means():
    with pytest.raises(fb.ClientDataError, match=r"the label '1' at the clients 'a' and 'b'.*site:ward.*levels="):
        fb.regression("y ~ x + (1 | ward)", clients=FRAME)


def test_a_new_client_has_groups_of_its_own():
    reg = fb.regression("y ~ x + (1 | own)", clients=FRAME)
    rows = {"x": [0.0, 1.0, 2.0], "own": ["new", "newer", "new"]}
    found = reg.arguments("d", rows)
    assert found["own_count"] == 2
    np.testing.assert_array_equal(found["own_index"], [0, 1, 0])


def test_groups_with_declared_labels_are_shared_by_all():
    reg = fb.regression("y ~ x + (1 | drug)", clients=FRAME, levels={"drug": ["p", "q"]})
    found = sites(reg)
    assert local(found) == set()
    assert found["1|drug_offset"]["value"].shape == (2,)
    assert reg.coords["1|drug_dim"] == ["p", "q"]
    with pytest.raises(fb.ClientDataError, match="rows are of a group of 'drug' that is not there, such as 'q'"):
        fb.regression("y ~ x + (1 | drug)", clients=FRAME, levels={"drug": ["p", "z"]})


def test_another_word_may_stand_for_the_client():
    frames = dict(list(FRAME.groupby("site")))
    reg = fb.regression("y ~ x + (1 | hospital)", clients=frames, site="hospital")
    assert local(sites(reg)) == {"1|hospital_offset"}


def test_clients_with_other_numbers_of_groups_have_other_numbers_of_effects():
    frame = FRAME[~((FRAME["site"] == "a") & (FRAME["ward"] == "3"))]
    reg = fb.regression("y ~ x + (1 | site:ward)", clients=frame)
    assert [client["site_ward_count"] for client in reg.clients.values()] == [2, 3, 3]


def test_the_program_is_that_of_a_random_intercept_written_by_hand():
    """With an intercept, a slope and a client's own effect, none of them centred."""

    def by_hand(x, y=None):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.5))
        with fb.local():
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level + slope * x + sd * own, noise), obs=y)

    priors = {
        "Intercept": dist.Normal(0.0, 2.0), "x": dist.Normal(0.0, 1.0), "1|site_sigma": dist.HalfNormal(1.0),
        "sigma": dist.HalfNormal(1.5),
    }  # fmt: skip
    reg = fb.regression("y ~ x + (1 | site)", clients=FRAME, priors=priors)
    values = {"Intercept_centred": 0.3, "x": -0.4, "1|site_sigma": 0.7, "sigma": 1.1, "1|site_offset": 0.9}
    renamed = dict(zip(("level", "slope", "sd", "noise", "own"), values.values(), strict=True))
    with jax.enable_x64(True):
        for client, data in reg.clients.items():
            found, _ = log_density(reg.model, (), dict(data), values)
            expected, _ = log_density(by_hand, (), {"x": data["x"][:, 0], "y": data["y"]}, renamed)
            assert float(found) == pytest.approx(float(expected), rel=1e-12), client


REFUSED = {
    "y ~ x + (1 | nothing)": "names 'nothing', and client 'a' has no such column",
    "y ~ x + (1 | log(x))": r"The group 'log\(x\)' in .* is no column",
    "y ~ x + (0 | site)": "of a group are none",
    "y ~ x + (1 + offset(x) | site)": "have an offset",
    "y ~ x + (1 | site) + (1 | site)": "stands twice in the formula. Write it once",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_groups_that_mean_nothing_are_refused(formula):
    with pytest.raises(fb.FormulaError, match=REFUSED[formula]):
        fb.regression(formula, clients=FRAME)


GRADES = FRAME.assign(grade=RNG.choice(["a", "b", "c"], 90))
OF_LEVELS = {  # kind of group, its effects, and their number
    "(1 | site)": ("1|site", 1), "(0 + x | site)": ("x|site", 1), "(1 + x || site)": ("1 + x|site", 2),
    "(1 | own)": ("1|own", 1), "(0 + x | own)": ("x|own", 1), "(1 + x || own)": ("1 + x|own", 2),
    "(1 | drug)": ("1|drug", 1), "(1 + x || drug)": ("1 + x|drug", 2),
}  # fmt: skip


@pytest.mark.parametrize("written", OF_LEVELS)
def test_a_categorical_outcome_has_effects_of_each_level_but_the_first(written):
    """The whole density, latents and sds included, against NumPy row by row."""
    levels = {"drug": ["p", "q"]} if "drug" in written else {}
    reg = fb.regression(f"grade ~ x + {written}", family="categorical", clients=GRADES, levels=levels)
    name, number = OF_LEVELS[written]
    with jax.enable_x64(True):
        for client, data in reg.clients.items():
            rows = GRADES[GRADES["site"] == client]
            labels = {"own": reg.groups[client].get("own", ()), "drug": ("p", "q"), "site": (client,)}
            group = name.split("|")[1]
            units = len(labels[group])
            rng = np.random.default_rng(3)
            shape = (number, 2) if number > 1 else (2,)
            sd, offset = rng.uniform(0.5, 2.0, shape), rng.normal(size=(*((units,) if group != "site" else ()), *shape))
            values = {"Intercept_centred": np.array([0.3, -0.2]), "x": np.array([0.6, -0.9])}
            found, _ = log_density(reg.model, (), dict(data), {**values, f"{name}_sigma": sd, f"{name}_offset": offset})
            effects = (sd * offset).reshape(units, number, 2)
            places = {"1": [0], "x": [1]}.get(name.split("|")[0], [0, 1])
            columns = np.column_stack([np.ones(len(rows)), rows["x"]])[:, places]
            expected = -0.5 * (offset**2 + np.log(2.0 * np.pi)).sum()
            expected += sum(
                float(reg.priors[each].log_prob(value).sum())
                for each, value in {
                    "Intercept": values["Intercept_centred"],
                    "x": values["x"],
                    f"{name}_sigma": sd,
                }.items()
            )
            for row, (x, grade, unit) in enumerate(zip(rows["x"], rows["grade"], rows[group], strict=True)):
                eta = values["Intercept_centred"] + (x - FRAME["x"].mean()) * values["x"]
                eta = eta + columns[row] @ effects[labels[group].index(unit)]
                logits = np.append(0.0, eta)
                expected += logits["abc".index(grade)] - np.log(np.exp(logits).sum())
            assert float(found) == pytest.approx(expected, rel=1e-6), client


def test_effects_of_levels_are_named_by_level():
    reg = fb.regression("grade ~ x + (1 + x || site)", family="categorical", clients=GRADES)
    assert reg.dims["1 + x|site_sigma"] == ["1 + x|site_sigma_dim_0", "1 + x|site_sigma_dim_1"]
    assert reg.coords["1 + x|site_sigma_dim_0"] == ["1", "x"]
    assert reg.coords["1 + x|site_sigma_dim_1"] == ["b", "c"]
    assert local(sites(reg)) == {"1 + x|site_offset"}
    given = fb.regression(
        "grade ~ x + (1 | site)", family="categorical", clients=GRADES, priors={"1|site_sigma": dist.HalfNormal(0.4)}
    )
    assert given.priors["1|site_sigma"].event_shape == (2,)


def test_effects_of_levels_are_not_correlated_yet():
    with pytest.raises(fb.FormulaError, match=r"no correlations among them yet: write '\(1 \+ x \|\| site\)'"):
        fb.regression("grade ~ x + (1 + x | site)", family="categorical", clients=GRADES)
