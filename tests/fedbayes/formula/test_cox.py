"""Cox's partial likelihood: published numbers, sums written out, and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.errors import ClientDataError, FormulaError, ModelError
from fedbayes.formula.families.cox import CoxPartial
from fedbayes.network.fit import fit_over
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.problem.problem import make_problem

# the example of `coxph` in R's survival: coxph(Surv(time, status) ~ x + strata(sex), test1), ties as Efron has them
R_EXAMPLE = [
    ([4.0, 3.0, 1.0, 1.0], [1, 1, 1, 0], [0.0, 2.0, 1.0, 1.0]),
    ([2.0, 2.0, 3.0], [1, 1, 0], [1.0, 0.0, 0.0]),
]


def total(beta):
    """Minus the log partial likelihood of R's example."""
    return -sum(
        CoxPartial(beta * jnp.asarray(x), jnp.asarray(status)).log_prob(jnp.asarray(time))
        for time, status, x in R_EXAMPLE
    )


def test_the_example_of_r():
    """R prints the coefficient .802, its standard error .822, and a likelihood ratio of 1.09."""
    with jax.enable_x64(True):
        slope, curvature, beta = jax.grad(total), jax.hessian(total), 0.0
        for _ in range(8):
            beta -= float(slope(beta) / curvature(beta))
        assert beta == pytest.approx(0.8023, abs=5e-5)
        assert float(curvature(beta)) ** -0.5 == pytest.approx(0.8224, abs=5e-5)
        assert 2.0 * float(total(0.0) - total(beta)) == pytest.approx(1.087, abs=5e-4)


def written_out(time, event, eta):
    """Efron's sums, event by event."""
    found = 0.0
    for each in np.unique(time[event > 0]):
        tied, at_risk = np.flatnonzero((time == each) & (event > 0)), time >= each
        found += eta[tied].sum()
        for place in range(len(tied)):
            found -= np.log(np.exp(eta[at_risk]).sum() - place / len(tied) * np.exp(eta[tied]).sum())
    return found


@pytest.mark.parametrize("seed", range(6))
def test_ties_as_efron_treats_them_with_any_order_of_rows(seed):
    """Also where rows are masked out, which are then as if they were not there."""
    rng = np.random.default_rng(seed)
    time, event, eta = rng.integers(1, 5, 11).astype(float), rng.integers(0, 2, 11), 3.0 * rng.normal(size=11)
    mask = rng.random(11) < 0.7
    with jax.enable_x64(True):
        law = CoxPartial(jnp.asarray(eta), jnp.asarray(event))
        assert float(law.log_prob(time)) == pytest.approx(written_out(time, event, eta), abs=1e-10)
        expected = written_out(time[mask], event[mask], eta[mask])
        assert float(law.of_rows(jnp.asarray(mask)).log_prob(time)) == pytest.approx(expected, abs=1e-10)
        assert float(CoxPartial(jnp.asarray(eta)).log_prob(time)) == pytest.approx(
            written_out(time, np.ones(11), eta), abs=1e-10
        )


def test_predictors_of_any_size_have_a_finite_density_and_slope():
    time, event = jnp.array([1.0, 2.0, 2.0, 3.0]), jnp.array([1, 1, 1, 0])
    eta = jnp.array([800.0, -800.0, 900.0, -900.0])
    density, slope = jax.value_and_grad(lambda eta: CoxPartial(eta, event).log_prob(time))(eta)
    assert np.isfinite(density)
    assert np.isfinite(slope).all()
    shifted = CoxPartial(eta + 5.0, event).log_prob(time)
    assert float(shifted) == pytest.approx(float(density), rel=1e-6)


def frames(*sizes):
    rng = np.random.default_rng(0)
    return {
        f"c{place}": {
            "x": rng.normal(size=size), "g": rng.choice(["a", "b"], size),
            "t": rng.exponential(size=size) + 0.1, "event": rng.integers(0, 2, size),
        }
        for place, size in enumerate(sizes)
    }  # fmt: skip


def test_clients_of_different_sizes_share_one_program():
    """Rows are masked out of the whole: one program for all, and one compilation."""
    reg = fb.regression("Surv(t, event) ~ x + g", family="cox", clients=frames(5, 9, 14, 20))
    with jax.enable_x64(True):
        problem = make_problem(reg.model, reg.clients)
    assert len(problem.programs) == 1
    assert [bucket.clients.mask.shape[1] for bucket in problem.buckets] == [20]


def test_coefficients_may_differ_between_clients_and_groups():
    reg = fb.regression(
        "Surv(t, event) ~ x + (0 + x | site) + (1 | g)", family="cox", clients=frames(9, 14), levels={"g": ["a", "b"]}
    )
    assert list(reg.priors) == ["x", "x|site_sigma", "1|g_sigma"]


BATCHES = [
    fb.FedAvg(batch_size=4),
    fb.FedProx(batch_size=4),
    fb.FedEnsemble(batch_size=4),
    fb.FALD(batch_size=4),
    fb.FedPA(batch_size=4, solver="iasg"),
]


@pytest.mark.parametrize("method", BATCHES, ids=lambda method: type(method).__name__)
def test_batches_are_refused_by_every_method(method):
    """A batch of one row has a partial likelihood of one, whatever the coefficients."""
    reg = fb.regression("Surv(t, event) ~ x", family="cox", clients=frames(9, 14))
    with pytest.raises(ModelError, match=r"one density for all rows of a client.* Leave out `batch_size`"):
        reg.fit(method=method, key=jax.random.key(0), progress=False)


def test_batches_are_refused_over_a_network(tmp_path):
    reg = fb.regression("Surv(t, event) ~ x", family="cox", clients=frames(60, 80))
    study = Study(reg.model, fb.FedAvg(batch_size=4))
    sites = [
        Site(study, lambda config, rows=rows: rows, {"site-id": name, "state-dir": str(tmp_path / name)})
        for name, rows in reg.clients.items()
    ]
    with pytest.raises(ModelError, match=r"one density for all rows of a client.* Leave out `batch_size`"):
        fit_over(Rehearsal(*sites), study, num_clients=2, join_timeout=2.0, key=jax.random.key(0), progress=False)


def hospitals():
    """Columns that are the same within each client, or differ from others by a client's number alone."""
    found = frames(9, 14, 20)
    for place, table in enumerate(found.values()):
        size, kind = len(table["t"]), "public" if place else "private"
        table |= {
            "bed": np.full(size, [-1e6 + 0.1, 0.0, 1e6 - 0.1][place]), "kind": np.full(size, kind),
            "also": table["x"] + place, "region": np.full(size, "abc"[place]), "ward": np.full(size, f"w{place}"),
        }  # fmt: skip
    return found


SAME = [
    ("bed", "`bed` does not vary within any client"),
    ("x + kind", r"`kind\[public\]` does not vary within any client"),
    ("x + also", "`x`, `also` are collinear: within each client"),
    ("x + (0 + bed | site)", "`bed` does not vary within any client"),
    ("x + (1 | region)", r"No client has rows of several groups of 'region'.*\(1\|region\)"),
    ("x + (1 + x | ward)", "No client has rows of several groups of 'ward'"),
]


@pytest.mark.parametrize(("terms", "words"), SAME, ids=[terms for terms, _ in SAME])
def test_what_does_not_vary_within_clients_is_refused(terms, words):
    """Its posterior would be the prior: a baseline holds it."""
    levels = {"kind": ["private", "public"], "region": ["a", "b", "c"]}
    used = {name: of for name, of in levels.items() if name in terms}
    with pytest.raises(ClientDataError, match=words) as error:
        fb.regression(f"Surv(t, event) ~ {terms}", family="cox", clients=hospitals(), levels=used)
    assert "baseline of its own" in str(error.value)


def test_what_varies_within_one_client_is_learned_there():
    clients = hospitals()
    clients["c2"]["bed"] = clients["c2"]["bed"] + 1e5 * clients["c2"]["x"]
    clients["c1"]["region"] = np.where(clients["c1"]["x"] > 0.0, "a", "b")
    reg = fb.regression(
        "Surv(t, event) ~ bed + (1 | region)", family="cox", clients=clients, levels={"region": ["a", "b", "c"]}
    )
    within = np.sum((clients["c2"]["bed"] - clients["c2"]["bed"].mean()) ** 2) / (9 + 14 + 20)
    assert reg.agreed.predictors[""].sds == pytest.approx(within**0.5)


def test_a_formula_without_predictors_is_refused():
    for formula in ("Surv(t, event) ~ 1", "Surv(t, event) ~ offset(x)"):
        with pytest.raises(FormulaError, match="no predictor beside it"):
            fb.regression(formula, family="cox", clients=frames(9, 14))
