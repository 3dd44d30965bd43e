"""Draws of the globals, and the recipe by which whoever has it makes the same ones.

The server has to know the log-likelihood at thousands of draws. It need not send them: they follow from the laws that
they are drawn from and from the state of a random number generator, which is what the clients are told.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbayes.correction.proposal import Law, Proposal
from fedbayes.errors import FedbayesError
from fedbayes.numerics.host import normal_draws

_MOST = 1 << 24  # numbers that a recipe may ask for
_MOST_LAWS = 1 << 12  # in its mixtures together: each takes a sequence of its own
_SAME = 1e-9  # difference of the marks, relative to the draws' scale, that rounding may explain
_WORD, _HALF_WORD = (1 << 64) - 1, (1 << 32) - 1


class OtherDraws(FedbayesError, ValueError):
    """A recipe leads to other draws here than where it was written."""

    def __init__(self) -> None:
        super().__init__(
            "The same seed gives other random numbers here than at the server, since NumPy or SciPy is of another "
            "version. The server sends the draws instead; with its versions installed here it need not."
        )


class Counts(NamedTuple):
    """How many draws each chain gets, in the order in which they are made.

    Attributes
    ----------
    keyed
        Of the chain's own law, a Gaussian, by a key of their own.
    single
        More of the same law, independent ones.
    even
        Of the chain's mixture, evenly spread.
    shuffled
        Of the chain's mixture, independent ones in random order.
    """

    keyed: int = 0
    single: int = 0
    even: int = 0
    shuffled: int = 0


class Recipe(NamedTuple):
    """From what draws ``(chain, draw, d)`` are made; arrays alone, so that it can be sent.

    Attributes
    ----------
    words
        Of the key of the Gaussians' own draws.
    seed, state
        Of the generator of all others: the words that it began with, and where it is before the first of them.
    counts
        See :class:`Counts`.
    means, freedom
        Of ``L`` laws, shapes ``(L, d)`` and ``(L,)``, see :class:`~fedbayes.correction.proposal.Law`.
    whites, white
        Different whiteners ``(W, d, d)``, and which of them each law has, shape ``(L,)``.
    own
        Each chain's own law, shape ``(chain,)``; empty where none is asked for.
    mixed, shares
        The laws of each chain's mixture, shape ``(chain, M)``, and their shares ``(M,)``.
    mark
        A mean of the draws of each chain in their order, shape ``(chain, d)``, by which they are known.
    """

    words: np.ndarray
    seed: np.ndarray
    state: np.ndarray
    counts: np.ndarray
    means: np.ndarray
    freedom: np.ndarray
    whites: np.ndarray
    white: np.ndarray
    own: np.ndarray
    mixed: np.ndarray
    shares: np.ndarray
    mark: np.ndarray

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Recipe":
        """From arrays by name, as another machine has sent them.

        Raises
        ------
        ValueError
            They are no recipe, or one for more draws than anybody needs.
        """
        if set(arrays) != set(cls._fields):
            raise ValueError(f"A recipe has the arrays {sorted(cls._fields)}, not {sorted(arrays)}.")
        recipe = cls(**arrays)
        if wrong := recipe._wrong():
            raise ValueError(f"Draws can't be made by this recipe: {wrong}.")
        return recipe

    def _wrong(self) -> str:
        """What is wrong with the arrays, in words; empty where nothing is."""
        for name, kind in _KINDS.items():
            array = getattr(self, name)
            if (array.dtype, array.ndim) != (np.dtype(kind), _AXES[name]):
                return f"`{name}` is of {array.dtype} with {array.ndim} axes"
        laws, size = self.means.shape
        chains = max(len(self.own), len(self.mixed))
        shapes = (self.state.size, self.counts.size, self.freedom.size, self.white.size, self.whites.shape[1:])
        if shapes != (7, len(Counts._fields), laws, laws, (size, size)) or self.mark.shape != (chains, size):
            return "its shapes do not fit"
        if self.mixed.shape[1] != self.shares.size or len(self.own) not in (0, chains):
            return "its laws do not fit"
        for places, number in ((self.white, len(self.whites)), (self.own, laws), (self.mixed, laws)):
            if np.any((places < 0) | (places >= number)):
                return "it names a law that it does not have"
        if np.any(self.counts < 0) or chains * int(self.counts.astype(object).sum()) * (size + 1) > _MOST:
            return f"it asks for {self.counts.tolist()} draws of {size} numbers in each of {chains} chains"
        if size == 0 or self.mixed.size > _MOST_LAWS:
            return f"it has {self.mixed.size} laws of {size} numbers"
        if np.any(self.state[4:] > np.uint64(_HALF_WORD)):
            return "its generator has no such state"
        sound = np.all(self.freedom > 0.0) and np.all(self.shares > 0.0) and np.isfinite(self.shares.sum())
        return "" if sound else "its numbers are not positive"

    def draws(self) -> np.ndarray:
        """The draws, shape ``(chain, draw, d)``.

        Raises
        ------
        OtherDraws
            They are not those that the recipe was written for.
        """
        try:
            theta = self.drawn_by(_generator(self.seed, self.state))
        except Exception as error:  # of a version that lacks what the server's has
            raise OtherDraws from error
        mark = _mark(theta)
        same = np.abs(mark - self.mark) <= _SAME * (theta.std(axis=1) + np.abs(self.mark))
        if not np.all(same | (np.isnan(mark) & np.isnan(self.mark))):
            raise OtherDraws
        return theta

    def drawn_by(self, rng: np.random.Generator) -> np.ndarray:
        """The same by a generator that is in the recipe's state, and goes on from there."""
        counts = Counts(*self.counts.tolist())
        own = [self._law(place) for place in self.own]
        mixtures = [Proposal([self._law(place) for place in places], self.shares.tolist()) for places in self.mixed]
        parts = []
        if counts.keyed:
            means, whites = np.stack([law.mean for law in own]), np.stack([law.white for law in own])
            parts.append(normal_draws(means, whites, self.words, counts.keyed))
        if counts.single:
            parts.append(np.stack([law.draws(rng, counts.single) for law in own]))
        if counts.even:
            parts.append(np.stack([mixture.draws(rng, counts.even) for mixture in mixtures]))
        if counts.shuffled:
            parts.append(np.stack([mixture.shuffled(rng, counts.shuffled) for mixture in mixtures]))
        return np.concatenate(parts, axis=1)

    def _law(self, place: int) -> Law:
        return Law(self.means[place], self.whites[self.white[place]], float(self.freedom[place]))


_KINDS = {
    **dict.fromkeys(("words", "seed"), np.uint32),
    "state": np.uint64,
    **dict.fromkeys(("counts", "white", "own", "mixed"), np.int64),
    **dict.fromkeys(("means", "freedom", "whites", "shares", "mark"), np.float64),
}
_AXES = {name: 1 for name in _KINDS} | {"means": 2, "whites": 3, "mixed": 2, "mark": 2}


class Drawn(NamedTuple):
    """Draws ``(chain, draw, d)`` of the globals, and the recipe for them; without one they are sent as they are."""

    theta: np.ndarray
    recipe: Recipe | None = None


def draw(
    counts: Counts,
    rng: np.random.Generator,
    *,
    own: Sequence[Law] = (),
    mixtures: Sequence[Proposal] = (),
    words: np.ndarray | None = None,
) -> Drawn:
    """Draws of laws and mixtures of them, by a generator, with their recipe.

    Parameters
    ----------
    counts
        Of each chain.
    rng
        Of all draws but the keyed ones.
    own
        Each chain's own law.
    mixtures
        Each chain's, with the same shares.
    words
        The data of the key of the keyed draws.
    """
    laws: list[Law] = []
    mixed = [[_placed(law, laws) for law in mixture.laws] for mixture in mixtures]
    own_places = [_placed(law, laws) for law in own]
    different: list[np.ndarray] = []
    white = [_placed(law.white, different) for law in laws]
    recipe = Recipe(
        words=np.asarray([] if words is None else words, np.uint32),
        seed=np.asarray(_sequence(rng).entropy, np.uint32),
        state=_state(rng),
        counts=np.asarray(counts, np.int64),
        means=np.stack([law.mean for law in laws]),
        freedom=np.asarray([law.freedom for law in laws], np.float64),
        whites=np.stack(different),
        white=np.asarray(white, np.int64),
        own=np.asarray(own_places, np.int64),
        mixed=np.asarray(mixed, np.int64).reshape(len(mixtures), -1 if mixtures else 0),
        shares=np.asarray(mixtures[0].shares if mixtures else [], np.float64),
        mark=np.zeros((0, 0)),
    )
    theta = recipe.drawn_by(rng)
    recipe = recipe._replace(mark=_mark(theta))
    shorter = sum(array.nbytes for array in recipe) < theta.nbytes
    return Drawn(theta, recipe if shorter and not recipe._wrong() else None)


def _mark(theta: np.ndarray) -> np.ndarray:
    """Means of draws ``(chain, draw, d)`` by weights that tell their order."""
    weights = 1.0 + np.arange(theta.shape[1]) / theta.shape[1]
    return np.einsum("s,rsi->ri", weights / theta.shape[1], theta)


def _placed(item: Any, among: list) -> int:
    """The place of an object in a list, to which it is added where it is not there."""
    for place, each in enumerate(among):
        if each is item:
            return place
    among.append(item)
    return len(among) - 1


def _sequence(rng: np.random.Generator) -> np.random.SeedSequence:
    """What a generator was seeded with; a scrambled sequence takes a child of it."""
    sequence = rng.bit_generator.seed_seq
    assert isinstance(sequence, np.random.SeedSequence)  # noqa: S101  (of `default_rng`)
    return sequence


def _state(rng: np.random.Generator) -> np.ndarray:
    """Where a generator is, as 64-bit words: those of PCG64, and how many children it has had."""
    told = rng.bit_generator.state
    wide = [told["state"]["state"], told["state"]["inc"]]
    words = [part for number in wide for part in (number >> 64, number & _WORD)]
    return np.asarray([*words, told["has_uint32"], told["uinteger"], _sequence(rng).n_children_spawned], np.uint64)


def _generator(seed: np.ndarray, words: np.ndarray) -> np.random.Generator:
    """The generator there."""
    first, second, third, fourth, has_half, half, children = map(int, words)
    stream = np.random.PCG64(np.random.SeedSequence(seed, n_children_spawned=children))
    stream.state = {
        "bit_generator": "PCG64",
        "state": {"state": first << 64 | second, "inc": third << 64 | fourth},
        "has_uint32": has_half,
        "uinteger": half,
    }
    return np.random.Generator(stream)
