"""What a client's private steps tell of a record: the law at the client, and that arithmetic keeps to it."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.inference.fald.client import Shared
from fedbayes.inference.fald.released import released
from fedbayes.inference.local.steps.coordinates import Coordinates, local_coordinates
from fedbayes.inference.local.steps.energy import Energy, clipped
from fedbayes.numerics.accounting import divergences
from fedbayes.problem.problem import make_problem

METHOD = fb.FALD(init="zero", step_size=1e-3, clip=1.5, noise_correlation=0.6, temperature=2.0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def told(step_size=(1e-3, 4e-3), local_steps=(2.0, 3.0), round_=5.0) -> Shared:
    """A broadcast to two chains."""
    both, coordinates = np.ones(2), Coordinates(np.zeros((2, 1)), np.ones((2, 1)))
    return Shared(
        np.zeros((2, 1)), coordinates, np.asarray(step_size), 50.0 * both, 10.0 * both, np.asarray(local_steps),
        np.zeros((2, 1)), round_ * both, np.zeros((2, 2), np.uint32),
    )  # fmt: skip


def client(rows=20, num_locals=0):
    return SimpleNamespace(mask=np.arange(24) < rows, index=np.asarray(1), num_locals=num_locals)


WEIGHTS = np.array([0.75, 0.25])


def test_each_chain_is_charged_for_its_own_steps():
    first, second = released(METHOD, WEIGHTS, told(), client())
    assert (first.rows, first.batch, first.steps, second.steps) == (20, 20, 2, 3)
    moved, noise = 1e-3 * 3.0 / 0.25, np.sqrt(2.0 * 1e-3 * 2.0 * (1.0 - 0.36) / 0.25)
    assert first.ratio == pytest.approx(moved / noise)
    assert second.ratio == pytest.approx(2.0 * first.ratio)
    (batch, _) = released(replace(METHOD, batch_size=5), WEIGHTS, told(), client())
    assert (batch.batch, batch.ratio) == (5, pytest.approx(4.0 * first.ratio))


@pytest.mark.parametrize("step_size", ["decaying", lambda k: 0.01 / (1.0 + k)], ids=["decaying", "a schedule"])
def test_a_schedule_is_charged_step_by_step(step_size):
    config = replace(METHOD, init="mode", step_size=step_size, control_variate=False)
    k = 5.0 * 3.0 + np.arange(3)
    sizes = 1.0 / (100.0 + 10.0 * k / 12.0) if step_size == "decaying" else 0.01 / (1.0 + k)
    squares = 9.0 * sizes / (2.0 * 2.0 * 0.64 * 0.25)
    (_, second) = released(config, WEIGHTS, told(), client())
    np.testing.assert_allclose(divergences(second)[0], 0.5 * 1.1 * squares.sum())
    (_, batch) = released(replace(config, batch_size=10), WEIGHTS, told(), client())
    assert batch.ratio == pytest.approx(2.0 * np.sqrt(squares.max()))


@pytest.mark.parametrize(
    ("broadcast", "own"),
    [
        (told(step_size=(1e-3, -1e-3)), client()),
        (told(step_size=(np.nan, 1e-3)), client()),
        (told(local_steps=(2.5, 3.0)), client()),
        (told(local_steps=(0.0, 3.0)), client()),
        (told(local_steps=(3.0, np.inf)), client()),
        (told(), client(num_locals=2)),
    ],
)
def test_what_can_not_be_bounded_is_refused(broadcast, own):
    with pytest.raises(ValueError, match=r"."):
        released(METHOD, WEIGHTS, broadcast, own)


def test_a_step_whose_noise_would_be_zero_is_refused():
    """What is below 2.2e-308 is zero for XLA: the variance of the noise, where the step itself is not yet."""
    config, size = replace(METHOD, temperature=0.25), 3e-308
    scale, step = jax.jit(lambda eta: (jnp.sqrt(2.0 * eta * 0.25), 1e3 * eta))(size)
    assert (float(scale), float(step)) == (0.0, pytest.approx(3e-305))
    with pytest.raises(ValueError, match="noise would be rounded to zero"):
        released(config, WEIGHTS, told(step_size=(1e-3, size)), client())
    assert released(config, WEIGHTS, told(step_size=(1e-3, 0.0)), client())[1].ratio == 0.0


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match=r"20 rows and the weight 0\.25, for batches of 21"):
        released(replace(METHOD, batch_size=21), WEIGHTS, told(), client())


@pytest.mark.parametrize("weight", [0.0, -0.5, np.nan, 2.0, 1e-10, 1e-307, 5e-324])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(ValueError, match="20 rows and the weight"):
        released(METHOD, np.array([0.5, weight]), told(), client())


def test_rows_are_clipped_whatever_their_size():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [1e300, -1e300], [1e-200, 0.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0]])
    found = np.asarray(clipped(jnp.asarray(rows), 1.0))
    half = np.sqrt(0.5)
    expected = [[0.6, 0.8], [0.3, 0.4], [half, -half], [1e-200, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    np.testing.assert_allclose(clipped(jnp.full((1, 2), 1e-180), 1e-200), half * 1e-200, rtol=1e-14)


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_a_row_is_not_seen_by_what_rounds_its_gradient():
    """At a place of the server's choice the prior's gradient is a multiple of 128, and so is its sum with the rows'.

    The rows' own sum is -64.5, or -61.5 with one row changed: beside the prior these are -128 and 0 without noise.
    """
    slopes, bounded = [], []
    for last in (0.0, 1e25):
        y = np.append(np.zeros(42), last)
        problem = make_problem(model, {"a": {"y": y}}, local=(), dtype=np.float64, rows=True)
        shared = Coordinates(jnp.full(1, 1.4e19), jnp.ones(1))
        own, quarter = local_coordinates(problem.client("a"), shared), jnp.asarray(0.25)
        energy = Energy(problem.prior, quarter, quarter, problem.client("a"), shared, own, None, 1.5)
        given = jnp.zeros(1), jnp.zeros(0), jax.random.key(0)
        slopes.append(float(energy.slopes(*given)[0][0]))
        bounded.append(float(energy.clipped_slopes(*given)[0][0]))
    assert bounded == pytest.approx([64.5 / 0.25, 61.5 / 0.25])
    assert abs(slopes[1] - slopes[0]) == 128.0 / 0.25  # planted: both terms in one number


def test_a_sum_of_gradients_that_could_overflow_is_refused():
    """By a weight next to zero whether ``sum / p_c`` is finite would tell the sum itself, at a step of size zero."""
    with pytest.raises(ValueError, match="overflow"):
        released(replace(METHOD, clip=1e200), WEIGHTS, told(step_size=(0.0, 0.0)), client())
    with pytest.raises(ValueError, match="A step size of the broadcast is"):
        released(METHOD, WEIGHTS, told(step_size=(1e-3, 1e200)), client())


@pytest.mark.parametrize("round_", [-1.0, 0.5, 2.0**60, np.nan, np.inf])
def test_a_schedule_is_charged_where_rounds_can_be_counted(round_):
    config = replace(METHOD, step_size=lambda k: 0.01 / (1.0 + k))
    with pytest.raises(ValueError, match="rounds are counted in whole numbers"):
        released(config, WEIGHTS, told(round_=round_), client())
