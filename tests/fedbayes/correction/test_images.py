"""Separate modes by symmetries: posteriors in closed form, whose modes are known, and no fit."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions.transforms import StickBreakingTransform

from fedbayes.contract.modes import Modes
from fedbayes.correction.correct import Correction, _meet, correct
from fedbayes.correction.images import Images, _swap, candidates, closure, laws_around
from fedbayes.correction.proposal import Law
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.program.prior import Prior
from fedbayes.results.checked import Checked

CHAINS, NUM = 4, 1000
SD = 0.1  # of each mode


def corrected(log_factor, mean, shapes, sd=SD, modes=None) -> Correction:
    """One client with this log factor, a prior of Normal(0, 10), and a Gaussian around one place, or one a chain."""
    mean = np.asarray(mean, float)
    size = mean.shape[-1]
    with jax.enable_x64(True):
        prior = Prior(lambda theta: -0.5 * jnp.sum((theta / 10.0) ** 2), size)
        precision = np.broadcast_to(np.eye(size) / sd**2, (CHAINS, size, size))
        law = Gaussian(np.broadcast_to(mean, (CHAINS, size)) / sd**2, precision, np.zeros(CHAINS))

        def ask(drawn, turn, finer=False):
            value = log_factor(drawn.theta)
            return SimpleNamespace(
                replies=SimpleNamespace(each=value[None]),
                infos={"noise": np.zeros((1, CHAINS)), "halved": np.zeros((1, CHAINS))},
            )

        keys = jax.random.key(1), jax.random.key(2)
        return correct(law, NUM, prior, ask, keys, shapes, modes)


def squares(theta):
    """``|theta_i|`` is Normal(1 + i / 4, SD): two modes a global, in all ``2^d`` equal ones."""
    centre = 1.0 + 0.25 * np.arange(theta.shape[-1])
    return -0.5 * np.sum(((np.abs(theta) - centre) / SD) ** 2, axis=-1)


def around_one(size):
    return 1.0 + 0.25 * np.arange(size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_signs_are_found_and_weigh_the_same(size: int) -> None:
    found = corrected(squares, around_one(size), (("theta", (size,)),))
    assert (found.modes, found.state, found.distance) == (2**size, "applied", np.inf)
    weights, theta = found.pool.weights, found.pool.theta
    for signs in np.ndindex(*[2] * size):
        share = np.sum(weights, where=np.all((theta > 0.0) == np.asarray(signs, bool), axis=-1))
        error = np.sqrt(2.0**-size / found.pool.effective)  # of a share of effective draws
        np.testing.assert_allclose(share, 2.0**-size, atol=6.0 * error)
    told = found.dataset([str(i) for i in range(size)])
    np.testing.assert_allclose(told["posterior_sd"], np.sqrt(around_one(size) ** 2 + SD**2), rtol=0.05)
    assert f"around one of {2**size} separate modes" in Checked.of(found).lines()[0]


def test_without_a_search_one_of_four_modes_looks_like_all() -> None:
    """What the search is for: the weights around one mode can be trusted."""
    found = corrected(squares, around_one(4), ())
    assert (found.modes, found.reliable) == (1, True)
    assert np.sum(found.pool.weights, where=np.any(found.pool.theta < 0.0, axis=-1)) < 0.05  # and not 15 of 16


def test_more_modes_than_draws_can_cover_are_refused() -> None:
    found = corrected(squares, around_one(7), (("theta", (7,)),))
    assert not found.reliable
    assert "more separate modes than the draws can cover" in Checked.of(found).trouble()


def test_a_posterior_with_one_mode_costs_one_exchange() -> None:
    def one(theta):
        return -0.5 * np.sum(((theta - around_one(4)) / SD) ** 2, axis=-1)

    found = corrected(one, around_one(4) + 0.05, (("theta", (4,)),))
    assert (found.modes, len(found.exchanges), found.state) == (1, 1, "applied")
    mean = found.dataset(list("abcd"))["posterior_mean"]
    np.testing.assert_allclose(mean, around_one(4), atol=6.0 * SD / np.sqrt(found.pool.effective))


def test_a_mode_of_little_mass_is_no_mode_and_one_of_a_tenth_has_its_share() -> None:
    def uneven(drop):
        return lambda theta: squares(theta) - drop * (theta[..., 0] < 0.0)

    shapes = (("theta", (2,)),)
    assert corrected(uneven(30.0), around_one(2), shapes).modes == 2
    found = corrected(uneven(np.log(9.0)), around_one(2), shapes)
    share = np.sum(found.pool.weights, where=found.pool.theta[..., 0] < 0.0)
    np.testing.assert_allclose(share, 0.1, atol=6.0 * np.sqrt(0.1 / found.pool.effective))


def test_chains_that_are_apart_are_weighed_together() -> None:
    """Two places without a symmetry; one chain of four has found the one with 9 / 10 of the mass."""
    places = np.asarray([[0.0, 0.0], [2.0, 3.0]])

    def two(theta):
        near, far = (-0.5 * np.sum(((theta - place) / SD) ** 2, axis=-1) for place in places)
        return np.logaddexp(near + np.log(0.9), far + np.log(0.1))

    found = corrected(two, places[[1, 1, 0, 1]], (("a", ()), ("b", ())))
    share = np.sum(found.pool.weights, where=found.pool.theta[..., 0] < 1.0)
    assert (found.modes, found.state) == (2, "applied")
    np.testing.assert_allclose(share, 0.9, atol=6.0 * np.sqrt(0.09 / found.pool.effective))


def around(places, log_integrals, sds=SD) -> Modes:
    """Modes at these places, of one sd, or one each, and with these log integrals."""
    places = np.asarray(places)
    sds = np.broadcast_to(sds, len(places))
    return Modes(places, np.eye(places.shape[1]) / sds[:, None, None] ** 2, np.asarray(log_integrals))


def test_a_mode_that_a_search_has_found_has_its_share() -> None:
    """All chains are around the heavier of two places without a symmetry; one search has come to each, one nowhere."""
    places = np.asarray([[0.0, 0.0, 0.0, 0.0], [2.0, 3.0, -1.0, 1.0]])

    def two(theta):
        near, far = (-0.5 * np.sum(((theta - place) / SD) ** 2, axis=-1) for place in places)
        return np.logaddexp(near + np.log(0.8), far + np.log(0.2))

    shapes, heights = (("a", (4,)),), np.log([0.2, 0.8, np.nan])
    assert corrected(two, places[0], shapes).modes == 1  # what the search is for
    found = corrected(two, places[0], shapes, modes=around(places[[1, 0, 0]], heights))
    share = np.sum(found.pool.weights, where=found.pool.theta[..., 0] > 1.0)
    assert (found.modes, found.state) == (2, "applied")
    assert (found.looked.starts, found.looked.arrived) == (3, 2)
    np.testing.assert_allclose(share, 0.2, atol=6.0 * np.sqrt(0.16 / found.pool.effective))


def test_modes_of_negligible_integral_and_searches_that_led_nowhere_have_no_law() -> None:
    first = Law.of_moments(np.zeros(2), SD**2 * np.eye(2))
    found = laws_around(around([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], [-30.0, -2.0, np.nan, 0.0]), [first])
    np.testing.assert_allclose([law.mean for law in found], [[7.0, 8.0], [3.0, 4.0]])
    np.testing.assert_allclose([law.white.T @ law.white for law in found], [SD**2 * np.eye(2)] * 2, atol=1e-12)
    assert laws_around(around([[1.0, 2.0]], [np.nan]), [first]) == []


def test_several_searches_at_one_mode_are_one_law_and_a_spike_on_its_slope_another() -> None:
    """In the broad one's sds the spike is near; in its own it is far."""
    broad, spike = Law.of_moments(np.zeros(2), np.eye(2)), Law.of_moments(np.full(2, 2.0), 1e-4 * np.eye(2))
    found = around([[0.05, 0.0], [2.0, 2.0], [0.0, -0.03], [2.0, 2.0]], np.zeros(4), [1.0, 0.01, 1.1, 0.01])
    np.testing.assert_allclose([law.mean for law in laws_around(found, [broad])], [[2.0, 2.0]])
    np.testing.assert_allclose([law.mean for law in laws_around(found, [spike])], [[0.05, 0.0]])


def test_a_spike_on_a_slope_has_its_share() -> None:
    """Half of the mass at six globals' sd of 1, half at 0.01, 3.4 sds from the first: next to no draw would meet it."""
    place = np.full(6, 3.4 / np.sqrt(6.0))

    def both(theta):
        near = -0.5 * np.sum(theta**2, axis=-1)
        far = -0.5 * np.sum(((theta - place) / 0.01) ** 2, axis=-1) - 6.0 * np.log(0.01)
        return np.logaddexp(near, far)

    modes = around([np.zeros(6), place], np.zeros(2), [1.0, 0.01])
    found = corrected(both, np.zeros(6), (), sd=1.0, modes=modes)
    share = np.sum(found.pool.weights, where=np.all(np.abs(found.pool.theta - place) < 0.1, axis=-1))
    weight = np.exp(-0.5 * np.sum((place / 10.0) ** 2))  # of the prior there; that of the broad one is nearly flat
    np.testing.assert_allclose(share, weight / (weight + 1.01**-3), atol=6.0 * 0.5 / np.sqrt(found.pool.effective))


def test_more_laws_than_there_is_room_for_are_not_all() -> None:
    laws = [Law.of_moments(np.full(1, 100.0 * k), np.eye(1)) for k in range(65)]
    found = closure(laws, [], np.zeros((65, 10, 1)))
    assert (len(found.laws), found.complete) == (64, False)
    assert closure(laws[:64], [], np.zeros((64, 10, 1))).complete


@pytest.mark.parametrize(("prior_sd", "met"), [(1.0, True), (1000.0, False)])
def test_draws_as_wide_as_a_vague_prior_meet_nothing(prior_sd: float, met: bool) -> None:
    prior = Prior(lambda theta: -0.5 * jnp.sum((theta / prior_sd) ** 2), 1)
    assert _meet(prior, Law.of_moments(np.zeros(1), SD**2 * np.eye(1)), 400.0) == met


def test_a_first_chain_around_a_lower_mode_shows_the_symmetries_of_all() -> None:
    """Its images are 20 nats below what the other chains' draws are at, and as high as its own."""
    low = around_one(4)
    high = low + 2.0

    def uneven(theta):
        def of(centre):
            return -0.5 * np.sum(((np.abs(theta) - centre) / SD) ** 2, axis=-1)

        return np.logaddexp(of(high), of(low) - 20.0)

    found = corrected(uneven, np.stack([low, high, high, high]), (("theta", (4,)),))
    assert (found.modes, found.state) == (2**4, "applied")
    told = found.dataset(list("abcd"))
    np.testing.assert_allclose(told["posterior_sd"], np.sqrt(high**2 + SD**2), rtol=0.05)


def test_the_labels_of_a_mixture_are_swapped_with_its_weights() -> None:
    points = np.random.default_rng(0).normal(size=(5, 5))  # three means, then weights of three components
    moved = _swap(np.asarray([0]), np.asarray([2]), 5, np.asarray([3, 4]), (0, 2))(points)
    weights = StickBreakingTransform()
    np.testing.assert_array_equal(moved[:, :3], points[:, [2, 1, 0]])
    np.testing.assert_allclose(weights(moved[:, 3:]), weights(points[:, 3:])[:, [2, 1, 0]], atol=1e-6)


def test_labels_are_found_where_the_program_has_components() -> None:
    """Two components at -1 and 2 with weights .3 and .7: the image has all of it the other way round."""
    logit = np.log(0.3 / 0.7)

    def mixture(theta):
        def around(means, weight):
            gaps = theta - np.asarray([*means, weight])
            return -0.5 * np.sum((gaps / SD) ** 2, axis=-1)

        return np.logaddexp(around((-1.0, 2.0), logit), around((2.0, -1.0), -logit))

    found = corrected(mixture, [-1.0, 2.0, logit], (("means", (2,)), ("weights", (1,))))
    assert (found.modes, found.state) == (2, "applied")
    means = found.dataset(["m0", "m1", "w"])["posterior_mean"]
    np.testing.assert_allclose(means, [0.5, 0.5, 0.0], atol=6.0 * 1.5 / np.sqrt(found.pool.effective))


@pytest.mark.parametrize(
    ("shapes", "image"),
    [
        ((("a", ()), ("b", ()), ("c", ())), [-1.0, 2.0, -3.0]),  # two numbers of a product
        ((("height", ()), ("slopes", (2,))), [-1.0, -2.0, -3.0]),
        ((("loadings", (2, 2)),), [1.0, -2.0, 3.0, -4.0]),  # of one factor, which columns stand for
        ((("inner", (2,)), ("outer", (2,))), [-1.0, 2.0, -3.0, 4.0]),  # of one hidden unit
        ((("inner", (2,)), ("outer", (2,))), [2.0, 1.0, 4.0, 3.0]),  # of both
        ((("one", (2,)), ("other", (2,))), [3.0, 4.0, 1.0, 2.0]),
    ],
)
def test_what_is_looked_at(shapes, image) -> None:
    points = 1.0 + np.arange(len(image))[None]
    assert image in [each(points)[0].tolist() for each in candidates(shapes, 100)]
    assert len(candidates(shapes, 3)) == 3


def test_of_a_long_tail_the_error_of_the_sd_is_not_told() -> None:
    """A t law of 2.2 degrees of freedom beside a normal: it has a mean, and next to no sd that draws could tell."""

    def log_factor(theta):
        long, short = np.moveaxis(theta / 0.01, -1, 0)  # so far within the prior that its draws don't help
        return -1.6 * np.log1p(long**2 / 2.2) - 0.5 * short**2

    found = corrected(log_factor, [0.0, 0.0], (), sd=0.01)
    told, check = found.dataset(["long", "short"]), Checked.of(found)
    assert found.reliable
    assert told["sd_reliable"].values.tolist() == [False, True]
    assert told.attrs["sd_error"] == pytest.approx(abs(float(told["sd"][1])))
    assert check.untold == 1
    assert "(1 with long tails left out)" in check.lines()[0]


def test_a_long_tail_has_no_mode_of_its_own() -> None:
    """The log of a scale that may be zero: half-normal, so that the density falls as ``exp(x)`` to the left."""

    def log_factor(theta):
        return theta[..., 0] - 0.5 * np.exp(2.0 * theta[..., 0] - 4.0) + 0.005 * theta[..., 0] ** 2

    found = corrected(log_factor, [2.0], (("log_scale", ()),), sd=0.7)
    assert found.images is not None  # its image was taken for a place with mass
    assert found.modes == 1


@pytest.mark.parametrize(("mass", "modes"), [(1e-9, 1), (0.02, 2)])
def test_next_to_no_mass_at_the_mean_of_a_chain_that_is_off_is_no_mode(mass: float, modes: int) -> None:
    laws = [Law.of_moments(np.full(1, mean), np.full((1, 1), var)) for mean, var in ((0.0, 1.0), (12.0, 16.0))]
    rng = np.random.default_rng(0)
    theta = np.concatenate([rng.normal(0.0, 1.0, 4000), rng.normal(12.0, 1.0, 20)])[:, None]
    weights = np.repeat([(1.0 - mass) / 4000, mass / 20], [4000, 20])
    assert Images(laws, complete=True).modes(theta, weights) == modes
