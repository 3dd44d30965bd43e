"""Many points in batches: each once, in order, and of the first ones no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.numerics.batches import in_batches, in_batches_up_to

POINTS = {"x": jnp.arange(1.0, 11.0), "y": jnp.arange(20.0).reshape(10, 2)}


def both(point):
    return {"sum": point["x"] + point["y"], "square": point["x"] ** 2}


@pytest.mark.parametrize("size", [1, 3, 4, 10, 100])
def test_batches_are_the_whole(size: int) -> None:
    found, whole = in_batches(both, POINTS, size), jax.vmap(both)(POINTS)
    jax.tree.map(np.testing.assert_array_equal, found, whole)


@pytest.mark.parametrize(("size", "computed"), [(1, 7), (3, 9), (4, 8), (5, 10), (10, 10), (100, 10)])
def test_of_the_first_entries_no_batch_is_computed_that_is_not_needed(size: int, computed: int) -> None:
    """Seven of ten entries, and what else is in their batches, by one program for any number."""
    seen = []

    def watched(point):
        jax.debug.callback(lambda x: seen.append(float(x)), point["x"])
        return both(point)

    found = jax.jit(lambda num: in_batches_up_to(num, watched, POINTS, size))(7)
    jax.effects_barrier()
    whole = jax.vmap(both)(POINTS)
    assert set(seen) == set(range(1, computed + 1))
    jax.tree.map(lambda mine, all_: np.testing.assert_array_equal(mine[:computed], all_[:computed]), found, whole)
    jax.tree.map(lambda mine: np.testing.assert_array_equal(mine[computed:], 0.0), found)
    seen.clear()
    offsets = jnp.array([0.0, 100.0])  # mapped over all else, the number of batches stays one number
    moved = lambda offset: in_batches_up_to(7, watched, {**POINTS, "x": POINTS["x"] + offset}, size)  # noqa: E731
    mapped = jax.vmap(moved)(offsets)
    jax.effects_barrier()
    assert set(seen) == {x + offset for x in range(1, computed + 1) for offset in (0.0, 100.0)}
    jax.tree.map(lambda mine, one: np.testing.assert_array_equal(mine[0], one), mapped, found)
    nothing = jax.jit(lambda num: in_batches_up_to(num, both, POINTS, size))(0)
    jax.tree.map(lambda mine: np.testing.assert_array_equal(mine, 0.0), nothing)


def test_a_single_entry_is_not_mapped() -> None:
    """Mapped, a branch would run both sides."""
    ran = []

    def branching(x):
        return jax.lax.cond(x > 0.0, lambda x: x, lambda x: (jax.debug.callback(ran.append, x), -x)[1], x)

    points, single = jnp.arange(1.0, 4.0), jnp.ones(1)
    np.testing.assert_array_equal(in_batches(branching, single, 100), single)
    for found in (in_batches(branching, points, 1), in_batches_up_to(3, branching, points, 1)):
        np.testing.assert_array_equal(found, [1.0, 2.0, 3.0])
    jax.effects_barrier()
    assert not ran
