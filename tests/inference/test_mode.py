"""The federated Newton steps where the curvature is no precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbayes.gaussian import Gaussian
from fedbayes.inference.mode import ModeState, _newton_step


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def state_of(precision: np.ndarray, slope: np.ndarray) -> ModeState:
    """At the origin, with everything in the prior's expansion."""
    size = len(slope)
    prior = Gaussian(jnp.asarray(slope), jnp.asarray(precision), jnp.zeros(()))
    origin = jnp.zeros(size)
    return ModeState(origin, origin, jnp.zeros(()), Gaussian.neutral(size, (1,)), prior, jnp.zeros(()))


@pytest.mark.parametrize("size", [1, 3])
def test_damping_does_not_just_cancel_a_negative_curvature(size) -> None:
    """Damping of one would leave a curvature of 1e-8 and a step of 1e8; the next in the ladder, ten, leaves nine."""
    step, _, undamped, proper, damping = _newton_step(state_of(-np.eye(size), np.ones(size)), jnp.zeros(()))
    np.testing.assert_allclose(step, 1.0 / 9.0, rtol=1e-6)
    assert float(damping) == pytest.approx(10.0)
    assert not bool(proper)
    assert not bool(undamped)


def test_a_precision_needs_no_damping() -> None:
    """However badly conditioned: the bound is on damped curvatures alone."""
    precision = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    step, _, undamped, proper, damping = _newton_step(state_of(precision, precision @ [2.0, -1.0]), jnp.zeros(()))
    np.testing.assert_allclose(step, [2.0, -1.0], rtol=1e-5)
    assert float(damping) == 0.0
    assert bool(proper)
    assert bool(undamped)
