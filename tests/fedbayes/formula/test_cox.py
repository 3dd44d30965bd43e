"""Cox's partial likelihood: published numbers, sums written out, and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.formula.families.cox import CoxPartial
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
