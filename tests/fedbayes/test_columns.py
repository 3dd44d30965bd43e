"""A Jacobian some columns at a time, or by differences, is the Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.numerics.columns import by_columns, by_differences

POINT = jnp.linspace(0.5, 2.0, 7)


def curved(x, power=2.0):
    return {"value": jnp.cumsum(x**power) * jnp.sin(x[0]), "single": jnp.prod(x)}


@pytest.mark.parametrize("at_once", [1, 2, 3, 6, 7, 100])
def test_columns_one_part_after_the_other_are_the_jacobian(at_once: int) -> None:
    found, whole = by_columns(curved, at_once=at_once)(POINT, 3.0), jax.jacfwd(curved)(POINT, 3.0)
    assert found["single"].shape == (7,)
    jax.tree.map(lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=1e-6), found, whole)


@pytest.mark.parametrize("at_once", [2, 100])
def test_what_comes_beside_the_value_is_handed_on(at_once: int) -> None:
    def with_more(x):
        return jnp.cumsum(x**2), {"first": x[0]}

    found, more = by_columns(with_more, has_aux=True, at_once=at_once)(POINT)
    np.testing.assert_allclose(found, jax.jacfwd(lambda x: with_more(x)[0])(POINT), rtol=1e-6)
    assert float(more["first"]) == 0.5


def test_no_more_columns_than_said_are_side_by_side() -> None:
    def of_many_rows(x):
        return jnp.sum(jnp.exp(x[0] + jnp.zeros(1000))) * x

    assert "f32[7,1000]" in str(jax.make_jaxpr(by_columns(of_many_rows, at_once=7))(POINT))
    text = str(jax.make_jaxpr(by_columns(of_many_rows, at_once=3))(POINT))
    assert "f32[3,1000]" in text
    assert "f32[7,1000]" not in text


def test_differences_of_a_smooth_function_are_its_jacobian() -> None:
    with jax.enable_x64(True):
        point = jnp.linspace(0.5, 2.0, 7)
        found, whole = by_differences(curved)(point, 3.0), jax.jacfwd(curved)(point, 3.0)
        jax.tree.map(lambda mine, theirs: np.testing.assert_allclose(mine, theirs, atol=1e-7), found, whole)
        found, more = by_differences(lambda x: (x**3, {"first": x[0]}), has_aux=True)(point)
        np.testing.assert_allclose(found, jnp.diag(3.0 * point**2), atol=1e-8)
        assert float(more["first"]) == 0.5
