"""Many points at once: as many side by side as fit into memory, with the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.models import linear
from fedbayes.problem import client as module
from fedbayes.problem.problem import make_problem
from fedbayes.runtime.precision import computing

POINTS = np.random.default_rng(0).normal(size=(7, 2))


@pytest.fixture
def client():
    x, y = np.ones((5, 2)), np.arange(5.0)
    with computing():
        [bucket] = make_problem(linear.model, {"one": {"x": x, "y": y}}).buckets
        yield jax.tree.map(lambda leaf: leaf[0], bucket.clients)


def programs(client) -> tuple[np.ndarray, str]:
    """Log factors at all points, and the program that computes them."""
    run = jax.jit(lambda points: client.at_many(client.log_factor, points))
    points = jnp.asarray(POINTS[:, : client.program.globals.size])
    return np.asarray(run(points)), str(jax.make_jaxpr(run)(points))


@pytest.mark.parametrize("at_once", [1, 10, 15, 1000])
def test_points_are_computed_in_parts_where_all_at_once_take_too_much(client, at_once, monkeypatch) -> None:
    whole, text = programs(client)
    assert "scan" not in text
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    parts, text = programs(client)
    assert ("scan" in text) == (at_once < 5 * len(POINTS))
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_what_is_computed_at_once_is_bounded(client) -> None:
    """A million rows take two points at once, whatever is asked for."""
    rows = 1_000_000
    many = jax.ShapeDtypeStruct((rows,), bool)
    shapes = jax.tree.map(lambda leaf: leaf, client)
    large = module.replace(
        shapes,
        mask=many,
        data={name: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in client.data.items()},
    )
    points = jax.ShapeDtypeStruct((4000, client.program.globals.size), jnp.float64)
    text = str(jax.make_jaxpr(lambda given, at: given.at_many(given.log_factor, at))(large, points))
    assert f"f64[2,{rows}]" in text or f"f64[{rows},2]" in text
    assert f"4000,{rows}" not in text


@pytest.mark.parametrize("bounds", [(1000, None), (1, 1)])
def test_fewer_points_are_computed_at_once_where_each_takes_many_evaluations(client, bounds, monkeypatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1000)
    whole, _ = programs(client)
    run = jax.jit(lambda points: client.at_many(client.log_factor, points, *bounds))
    points = jnp.asarray(POINTS[:, : client.program.globals.size])
    assert "scan" in str(jax.make_jaxpr(run)(points))
    np.testing.assert_allclose(run(points), whole, rtol=1e-12)


@pytest.mark.parametrize("at_once", [1, 5, 10, 1000])
def test_curvature_is_computed_by_parts_where_all_columns_take_too_much(client, at_once, monkeypatch) -> None:
    slope, point = jax.grad(client.log_factor), jnp.asarray([0.3, -0.2])
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    found = client.jacobian(slope)
    np.testing.assert_allclose(found(point), jax.hessian(client.log_factor)(point), rtol=1e-12)
    assert ("scan" in str(jax.make_jaxpr(found)(point))) == (at_once < 5 * len(point))


def test_rows_are_counted_where_clients_of_one_size_need_no_mask() -> None:
    with computing():
        same = {name: {"x": np.ones((50, 2)), "y": np.ones(50)} for name in ("a", "b")}
        [bucket] = make_problem(linear.model, same).buckets
    assert bucket.clients.mask.shape == (2, 1)
    assert module.length(bucket.clients.data, axis=1) == 50
