"""Draws by a recipe are the server's, to the last bit, and a recipe that can't be meant is refused."""

import io

import jax
import numpy as np
import pytest

from fedbayes.correction import recipe as module
from fedbayes.correction.correct import first_draws, keyed_draws
from fedbayes.correction.proposal import Law, Proposal
from fedbayes.correction.recipe import Counts, OtherDraws, Recipe, draw
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_draws

D, CHAINS = 3, 2
SQUARE = np.tril(np.arange(1.0, 10.0).reshape(D, D))
LAWS = [Law(np.arange(D) + chain, SQUARE) for chain in range(CHAINS)]
KERNEL = Law(np.zeros(D), 0.1 * SQUARE, 5.0)
MIXTURES = [Proposal([law._replace(freedom=5.0), KERNEL], [0.8, 0.2]) for law in LAWS]
WORDS = np.array([7, 8], np.uint32)


def generator() -> np.random.Generator:
    rng = np.random.default_rng(np.array([3, 4], np.uint32))
    rng.permutation(5)  # half a word is left over
    MIXTURES[0].draws(rng, 3)  # and a scrambled sequence has taken a child of the seed
    return rng


def made(counts: Counts, rng: np.random.Generator | None = None) -> module.Drawn:
    return draw(counts, rng or generator(), own=LAWS, mixtures=MIXTURES, words=WORDS)


def sent(recipe: Recipe) -> Recipe:
    """As it comes out of a message."""
    buffer = io.BytesIO()
    np.savez(buffer, **recipe._asdict())
    buffer.seek(0)
    return Recipe.read(dict(np.load(buffer)))


@pytest.mark.parametrize(
    "counts",
    [Counts(keyed=50), Counts(single=50), Counts(even=50), Counts(shuffled=50), Counts(20, 30, 40, 50)],
    ids=repr,
)
def test_a_client_makes_the_servers_draws(counts: Counts) -> None:
    rng = generator()
    drawn = made(counts, rng)
    assert drawn.theta.shape == (CHAINS, sum(counts), D)
    np.testing.assert_array_equal(sent(drawn.recipe).draws(), drawn.theta)
    more = draw(Counts(even=40), rng, mixtures=MIXTURES)  # the next exchange, by the same generator
    np.testing.assert_array_equal(sent(more.recipe).draws(), more.theta)
    assert not np.isin(more.theta, drawn.theta).any()


def test_the_first_draws_are_the_gaussians_own() -> None:
    posterior = Gaussian(np.ones((CHAINS, D)), np.stack([SQUARE @ SQUARE.T] * CHAINS), np.zeros(CHAINS))

    class Wide:
        spread = np.zeros(D), np.ones(D)

    key = jax.random.key(1)
    drawn, proposals, counts = first_draws(posterior, 60, Wide(), key, generator(), 100)
    assert counts == (100, 50)
    assert len(proposals) == CHAINS
    np.testing.assert_array_equal(drawn.theta[:, :60], gaussian_draws(posterior, key, 60))
    keyed = keyed_draws(posterior, 60, key)
    np.testing.assert_array_equal(sent(keyed.recipe).draws(), drawn.theta[:, :60])
    np.testing.assert_array_equal(sent(drawn.recipe).draws(), drawn.theta)


def test_a_recipe_holds_each_whitener_once_and_no_draw() -> None:
    drawn = draw(Counts(even=1000), generator(), mixtures=MIXTURES)
    assert len(drawn.recipe.whites) == 2
    assert sum(np.size(leaf) for leaf in drawn.recipe) < 70 < drawn.theta.size


def test_draws_that_are_none_stay_so() -> None:
    """Of a proposal whose covariance could not be factorised: the client answers NaN, as it did to such draws."""
    drawn = draw(Counts(even=50), generator(), mixtures=[Proposal([Law(np.zeros(D), np.full((D, D), np.nan))], [1.0])])
    assert np.isnan(sent(drawn.recipe).draws()).all()


def test_other_random_numbers_are_noticed(monkeypatch) -> None:
    recipe = made(Counts(even=50)).recipe
    monkeypatch.setattr(module, "_generator", lambda seed, state: np.random.default_rng(0))
    with pytest.raises(OtherDraws, match="NumPy or SciPy"):
        recipe.draws()


def test_another_order_of_the_same_draws_is_noticed(monkeypatch) -> None:
    recipe = made(Counts(shuffled=50)).recipe
    shuffled = Proposal.shuffled
    monkeypatch.setattr(Proposal, "shuffled", lambda self, rng, num: shuffled(self, rng, num)[::-1])
    with pytest.raises(OtherDraws):
        recipe.draws()


def test_a_version_that_lacks_a_function_makes_other_draws(monkeypatch) -> None:
    def lacks(self, rng, num):
        raise TypeError("Sobol() got an unexpected keyword argument 'rng'")

    recipe = made(Counts(even=50)).recipe
    monkeypatch.setattr(Proposal, "draws", lacks)
    with pytest.raises(OtherDraws):
        recipe.draws()


def test_there_is_no_recipe_where_the_draws_are_shorter_or_too_many() -> None:
    """Whoever asks sends the draws then; a recipe that a client would refuse is none."""
    assert draw(Counts(even=3), generator(), mixtures=MIXTURES).recipe is None
    wide = Law(np.zeros(600), np.eye(600))
    assert draw(Counts(single=3), generator(), own=[wide]).recipe is None


def test_another_rounding_is_none() -> None:
    drawn = made(Counts(even=50))
    assert drawn.recipe._replace(mark=drawn.recipe.mark * (1.0 + 1e-12)).draws().shape == drawn.theta.shape
    with pytest.raises(OtherDraws):
        drawn.recipe._replace(mark=drawn.recipe.mark * (1.0 + 1e-7)).draws()


WRONG = {
    "too many draws": {"counts": np.array([0, 0, 1 << 40, 0])},
    "too many draws together": {"counts": np.array([1 << 62] * 4)},
    "a negative number of draws": {"counts": np.array([0, 0, -1, 0])},
    "a law that is not there": {"mixed": np.array([[0, 9], [0, 1]])},
    "a negative place": {"own": np.array([-1, 0])},
    "a whitener that is not there": {"white": np.array([5] * 5)},
    "another kind of number": {"means": np.zeros((5, D), np.float32)},
    "another number of axes": {"means": np.zeros(D)},
    "another dimension": {"whites": np.zeros((2, D, D + 1))},
    "no freedom": {"freedom": np.zeros(5)},
    "a share of nothing": {"shares": np.array([0.5, 0.0])},
    "another number of chains": {"own": np.array([0])},
    "no dimension": {"means": np.zeros((5, 0)), "whites": np.zeros((2, 0, 0)), "mark": np.zeros((2, 0))},
    "a share of everything": {"shares": np.array([0.5, np.inf])},
    "a state of another generator": {"state": np.array([1, 1, 1, 1, 0, 1 << 40, 0], np.uint64)},
    "too many laws": {"mixed": np.zeros((2, 5000), np.int64), "shares": np.ones(5000)},
    "a short state": {"state": np.zeros(3, np.uint64)},
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_not_be_meant_is_refused(case: str) -> None:
    recipe = made(Counts(20, 30, 40, 50)).recipe
    assert len(recipe.means) == 5
    assert sent(recipe).draws().shape[1] == 140
    with pytest.raises(ValueError, match="recipe"):
        sent(recipe._replace(**WRONG[case]))


def test_missing_and_unknown_arrays_are_refused() -> None:
    arrays = made(Counts(even=50)).recipe._asdict()
    with pytest.raises(ValueError, match="more"):
        Recipe.read({**arrays, "more": np.zeros(1)})
    with pytest.raises(ValueError, match="whites"):
        Recipe.read({name: array for name, array in arrays.items() if name != "whites"})
