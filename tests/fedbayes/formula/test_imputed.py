"""Missing covariates as latents: the program against closed forms and one written by hand, and what is refused."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density
from scipy import stats

import fedbayes as fb
from fedbayes.formula.program.source import compiled
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.sites import LOCAL
from fedbayes.runtime.precision import computing

GLOBALS = {
    "mi(x)_mean": 4.2, "mi(x)_sigma": 1.7, "Intercept_centred": 0.3, "mi(x)": -0.8, "sex": np.array([0.4]),
    "mi(x):sex": np.array([0.5]), "sigma": 0.9,
}  # fmt: skip


def table(rng, rows, missing=0.3):
    sex, x = rng.choice(["f", "m"], rows), rng.normal(5.0, 2.0, rows)
    y = 1.0 + 0.5 * x + 0.3 * (sex == "m") * x + rng.normal(size=rows)
    return {"x": np.where(rng.random(rows) < missing, np.nan, x), "sex": sex, "y": y}


def tables():
    """Clients with some gaps, with none, and with nothing but gaps."""
    rng = np.random.default_rng(5)
    return {"some": table(rng, 20), "none": table(rng, 12, 0.0), "all": table(rng, 6, 1.0)}


@cache
def product():
    return fb.regression("y ~ mi(x) * sex", clients=tables())


@cache
def without_latents(model, name):
    """The log density of a client without its latents, exact as it is quadratic in them."""
    client = product().clients[name]

    def density(values):
        def of(offset):
            return log_density(model, (), dict(client), {**values, "mi(x)_offset": offset})[0]

        start = jnp.zeros(client["gap_count"])
        curvature = -jax.hessian(of)(start)
        mode = jnp.linalg.solve(curvature, jax.grad(of)(start))
        return of(mode) - 0.5 * jnp.linalg.slogdet(curvature / (2.0 * np.pi))[1]

    return jax.jit(density)


def marginal(model, name, values):
    with jax.enable_x64(True):
        return float(without_latents(model, name)(values))


def by_hand(reg, rows, values):
    """The same in closed form: seen rows by both laws, others by a normal law of the outcome alone."""
    x, male, y = rows["x"], (rows["sex"] == "m").astype(float), rows["y"]
    means = reg.agreed.predictors[""].means
    v = {name: np.squeeze(value) for name, value in values.items()}
    level = v["Intercept_centred"] - means @ [v["mi(x)"], v["sex"], v["mi(x):sex"]] + v["sex"] * male
    slope, there = v["mi(x)"] + v["mi(x):sex"] * male, ~np.isnan(x)
    mean = level + slope * np.where(there, x, v["mi(x)_mean"])
    sd = np.where(there, v["sigma"], np.hypot(v["sigma"], slope * v["mi(x)_sigma"]))
    covariates = stats.norm.logpdf(x[there], v["mi(x)_mean"], v["mi(x)_sigma"])
    priors = [float(reg.priors[name.removesuffix("_centred")].log_prob(value).sum()) for name, value in values.items()]
    return stats.norm.logpdf(y, mean, sd).sum() + covariates.sum() + sum(priors)


@pytest.mark.parametrize("client", tables())
@pytest.mark.parametrize("factor", [1.0, 0.6, 1.5])
def test_without_the_latents_it_is_the_joint_normal_law(client, factor):
    reg = product()
    values = {name: factor * value for name, value in GLOBALS.items()}
    found, expected = marginal(reg.model, client, values), by_hand(reg, tables()[client], values)
    assert found == pytest.approx(expected, rel=1e-6)


PLANTED = {
    "gaps that are observed at their place-holders": (".mask(mi_x_seen)", ""),
    "gaps that stay at their place-holders": ("mi_x_gaps[gap_index]", "mi_x"),
    "gaps that are all the first one": ("[gap_index]", "[0]"),
    "products that are not imputed": ("[True, False, True]", "[True, False, False]"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen(fault):
    reg, (old, new) = product(), PLANTED[fault]
    assert old in reg.source
    model = compiled(reg.source.replace(old, new))
    found, expected = marginal(model, "some", GLOBALS), by_hand(reg, tables()["some"], GLOBALS)
    assert abs(found - expected) > 0.1


def two_columns():
    rng = np.random.default_rng(6)
    found = {}
    for name, rows in (("a", 25), ("b", 18)):
        x, z = rng.normal(2.0, 1.0, rows), rng.normal(-1.0, 3.0, rows)
        y = rng.integers(0, 2, rows)
        gaps = [np.where(rng.random(rows) < 0.3, np.nan, each) for each in (x, z)]
        found[name] = {"x": gaps[0], "z": gaps[1], "w": rng.normal(size=rows), "y": y}
    return found


def test_two_columns_and_their_product_are_those_of_a_program_written_by_hand():
    """With a latent for each row and column, where the formula's program has them for rows with gaps alone."""
    reg = fb.regression("y ~ mi(x) * mi(z) + w", family="bernoulli", clients=two_columns())
    means = reg.agreed.predictors[""].means
    order = [block.name for block in reg.parts.predictors[0].design.blocks]
    assert order == ["mi(x)", "mi(z)", "w", "mi(x):mi(z)"]

    def model(x, z, w, y):
        level = numpyro.sample("Intercept_centred", reg.priors["Intercept"])
        beta = jnp.stack([numpyro.sample(name, reg.priors[name]) for name in order])
        whole = []
        for name, values in (("x", x), ("z", z)):
            mean = numpyro.sample(f"mi({name})_mean", reg.priors[f"mi({name})_mean"])
            sd = numpyro.sample(f"mi({name})_sigma", reg.priors[f"mi({name})_sigma"])
            offset = numpyro.sample(f"mi({name})_offset", dist.Normal(0.0, 1.0).expand(values.shape).to_event(1))
            whole.append(jnp.where(jnp.isnan(values), mean + sd * offset, values))
            observed = jnp.where(jnp.isnan(values), 0.0, dist.Normal(mean, sd).log_prob(jnp.nan_to_num(values)))
            numpyro.factor(f"{name} seen", observed.sum())
        x, z = whole
        eta = level + (jnp.stack([x, z, w, x * z], axis=-1) - means) @ beta
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    values = {"mi(x)_mean": 1.8, "mi(x)_sigma": 0.9, "mi(z)_mean": -0.7, "mi(z)_sigma": 2.5, "Intercept_centred": 0.2}
    values |= dict(zip(order, (0.4, -0.3, 0.7, 0.25), strict=True))
    with jax.enable_x64(True):
        for name, rows in two_columns().items():
            client = reg.clients[name]
            lacking = np.isnan(rows["x"]) | np.isnan(rows["z"])
            offsets = np.random.default_rng(7).normal(size=(2, client["gap_count"]))
            offsets[:, lacking.sum() :] = 0.0
            of_rows = [np.where(lacking, offset[client["gap_index"]], 0.0) for offset in offsets]
            names = ("mi(x)_offset", "mi(z)_offset")
            found, _ = log_density(model, (), rows, {**values, **dict(zip(names, of_rows, strict=True))})
            given = {**values, **dict(zip(names, offsets, strict=True))}
            expected, _ = log_density(reg.model, (), dict(client), given)
            latents = 2 * (client["gap_count"] - len(lacking))  # standard normal ones at zero that one program has
            assert float(expected) == pytest.approx(float(found) + latents * stats.norm.logpdf(0.0), rel=1e-6)


def test_latents_are_the_client_s_own_and_independent_by_row():
    reg = fb.regression("y ~ mi(x) * mi(z) + w", family="bernoulli", clients=two_columns())
    sites = trace(seed(reg.model, 0)).get_trace(**reg.clients["a"])
    local = {name for name, site in sites.items() if site["type"] == "sample" and site["infer"].get(LOCAL)}
    assert local == {"mi(x)_offset", "mi(z)_offset"}
    with computing():
        problem = make_problem(reg.model, reg.clients)
    assert all(bucket.clients.independent for bucket in problem.buckets)
    assert all(bucket.clients.groups.shape[1] == 2 for bucket in problem.buckets)


def test_their_number_is_rounded_up_so_that_clients_share_programs_and_tell_little():
    reg = product()
    missing = {name: int(np.isnan(rows["x"]).sum()) for name, rows in tables().items()}
    counts = {name: client["gap_count"] for name, client in reg.clients.items()}
    assert missing == {"some": 5, "none": 0, "all": 6}
    assert counts == {"some": 8, "none": 1, "all": 8}


def test_means_and_scales_are_those_of_values_that_are_there():
    reg, rows = product(), tables()
    x, sex = (np.concatenate([each[name] for each in rows.values()]) for name in ("x", "sex"))
    mean, sd = np.nanmean(x), np.nanstd(x, ddof=1)
    assert reg.agreed.columns.scales["mi(x)"] == pytest.approx((mean, sd))
    columns = reg.agreed.predictors[""]
    assert columns.means == pytest.approx([mean, (sex == "m").mean(), np.nanmean(x * (sex == "m"))])
    assert columns.sds[0] == pytest.approx(np.nanstd(x))
    assert float(reg.priors["mi(x)_mean"].loc) == pytest.approx(mean, rel=1e-2)


def test_without_gaps_coefficients_have_the_priors_and_columns_of_the_formula_without():
    clients = {"none": tables()["none"]}
    imputed, plain = (fb.regression(f"y ~ {x} * sex", clients=clients) for x in ("mi(x)", "x"))
    assert float(imputed.priors["mi(x)"].scale) == float(plain.priors["x"].scale)
    with jax.enable_x64(True):
        values = {name: value for name, value in GLOBALS.items() if not name.startswith("mi(x)_")}
        sites = [
            trace(numpyro.handlers.substitute(seed(reg.model, 0), data=given)).get_trace(**reg.clients["none"])
            for reg, given in ((imputed, GLOBALS), (plain, {**values, "x": -0.8, "x:sex": np.array([0.5])}))
        ]
    np.testing.assert_allclose(sites[0]["y"]["fn"].loc, sites[1]["y"]["fn"].loc, rtol=1e-5)


def test_a_saved_agreement_makes_the_same_program_and_data(tmp_path):
    reg = product()
    reg.agreed.save(tmp_path / "agreed.json")
    again = fb.regression("y ~ mi(x) * sex", agreed=tmp_path / "agreed.json")
    assert again.source == reg.source
    found = again.arguments("some", tables()["some"], outcome=True)
    for name, value in reg.clients["some"].items():
        np.testing.assert_array_equal(found[name], value)


def test_other_rows_that_lack_values_are_left_out_and_imputed_ones_kept():
    clients = tables()
    clients["some"]["y"][:2] = np.nan
    reg = fb.regression("y ~ mi(x) * sex", clients=clients, missing="drop")
    assert len(reg.clients["some"]["y"]) == 18
    assert not reg.clients["all"]["mi_x_seen"].any()


def test_new_rows_lack_nothing_and_have_the_latents_of_the_fit():
    reg = product()
    rows = {"x": [4.0, 5.0], "sex": ["f", "m"]}
    found = reg.arguments("all", rows)
    assert found["gap_count"] == 8
    assert found["mi_x_seen"].all()
    with pytest.raises(fb.ClientDataError, match="column 'x' lacks 1 of 2 values"):
        reg.arguments("all", {**rows, "x": [4.0, np.nan]})


REFUSED = {
    "missing values that nobody asked to impute": ("y ~ x", {}, r"'some': column 'x' lacks 5 of 20 .* `mi\(x\)`"),
    "a transformation": ("y ~ mi(log(x))", {}, "`mi` takes a column's name alone"),
    "within a transformation": ("y ~ log(mi(x))", {}, r"`mi\(...\)` stands within 'log\(mi\(x\)\)'"),
    "a spline": ("y ~ bs(mi(x), df=4)", {}, r"`mi\(...\)` stands within"),
    "an offset": ("y ~ sex + offset(mi(x))", {}, r"`mi\(x\)` stands in an offset"),
    "text": ("y ~ mi(sex)", {}, "column 'sex' holds text, and `mi\\(sex\\)` imputes numbers alone"),
    "as it is beside": ("y ~ mi(x) + log(x)", {}, r"is read as it is in `log\(x\)`"),
    "of another parameter as it is": ({"mu": "y ~ mi(x)", "sigma": "~ x"}, {}, "is read as it is in `x`"),
    "the outcome": ("x ~ mi(x)", {}, "as it is as an outcome or a group"),
    "effects of a group": ("y ~ sex + (1 + mi(x) | site)", {}, "Missing values are imputed in common terms alone"),
    "weights": ("y | weights(n) ~ mi(x)", {}, "would share one imputed value"),
    "a partial likelihood": ("n ~ mi(x)", {"family": "cox"}, "has no imputed covariates"),
    "zeros and ones": ("y ~ mi(one)", {}, "all values of 'one' are 0 or 1"),
    "no value at all": ("y ~ mi(never)", {}, "together have 0 values of 'never'"),
    "a product of which no row has all": ("y ~ mi(x):mi(other)", {}, "has all values of `mi\\(x\\):mi\\(other\\)`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_imputed_is_refused(name):
    formula, options, words = REFUSED[name]
    clients = tables()
    for rows in clients.values():
        number = len(rows["y"])
        rows |= {"n": np.arange(1.0, number + 1), "never": np.full(number, np.nan)}
        rows |= {"one": np.where(np.arange(number) % 3, np.arange(number) % 2, np.nan)}
        rows |= {"other": np.where(np.isnan(rows["x"]), np.arange(number), np.nan)}
    with pytest.raises((fb.FormulaError, fb.ClientDataError), match=words):
        fb.regression(formula, clients=clients, **options)


def test_values_may_be_missing_in_any_way_that_a_table_can_say():
    import pandas as pd

    rows = tables()["some"]
    ways = {
        "nan": rows["x"],
        "none": [None if np.isnan(value) else value for value in rows["x"]],
        "masked": pd.array(rows["x"], dtype="Float64"),
    }
    for name, values in ways.items():
        reg = fb.regression("y ~ mi(x)", clients={"a": pd.DataFrame({"x": values, "y": rows["y"]})})
        np.testing.assert_array_equal(reg.clients["a"]["mi_x_seen"], ~np.isnan(rows["x"]), err_msg=name)
