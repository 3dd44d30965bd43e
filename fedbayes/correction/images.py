"""Separate modes: images of a Gaussian under the symmetries that a program may have, and what searches have found.

A posterior with several modes of equal or similar height mostly owes them to a symmetry of its program: of signs
(``y ~ N(X theta^2, 1)``, a product ``a b x``, a factor's loadings, a hidden unit of a network) or of labels (the
components of a mixture). Draws of a Gaussian around one mode never meet the others, and neither do draws as wide as the
prior where there are more than two or three globals. But *where* the others would be is known: at the images of the
mean. One evaluation of the log posterior at each tells whether it is as high there. Modes to which no symmetry leads
come from the rounds, where these have begun with searches from several starts (:mod:`fedbayes.inference.starts`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from fedbayes.contract.modes import Modes
from fedbayes.correction.proposal import Law
from fedbayes.numerics.host import whiteners

Map = Callable[[np.ndarray], np.ndarray]  # points (n, d) to points (n, d)
Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of the unconstrained globals, by name

_FAR = 4.0  # sds from the mean, from which an image is a place of its own
_LOWER = 10.0  # nats below the density of the typical draw, from which the posterior has no mode there that counts
_MORE = 5.0  # nats above what the Gaussian says of a place, from which the Gaussian does not know that place
_MOST = 64  # images that a proposal may have
_COUNTS = 1e-3  # of the posterior's mass, from which a mode is counted
_VALLEY = 0.5  # of the lower mode's height, below which the density between two falls
_BIN = 0.5  # sds, of the density along a line
_TAILS = 5.0  # degrees of freedom of a law around an image
_FEW = 8  # globals, up to which every two of them are looked at
_LABELS = 4  # up to which every two of them are swapped
_NUMBERS = 1024  # that the places of other modes may take in a message
_CLOUD = 2000  # draws that are mapped to an image, of which it has the moments
_SAME = 1e-6  # sds, up to which two images are one


class Images(NamedTuple):
    """The Gaussian and its images where the posterior is about as high; where chains are apart, of each.

    Attributes
    ----------
    laws
        One for each, the first chain's Gaussian first.
    complete
        Whether these are all that the symmetries lead to.
    """

    laws: list[Law]
    complete: bool

    def modes(self, theta: np.ndarray, weights: np.ndarray) -> int:
        """How many of them are modes of their own, by weighted draws ``(n, d)``, weights ``(n,)``.

        They hold some of the posterior's mass, and a valley lies between every two of them: what a long tail has at the
        image of its mode is no mode.
        """
        if len(self.laws) == 1:
            return 1
        nearest = np.argmax([law.log_density(theta) for law in self.laws], axis=0)
        heavy = np.flatnonzero(np.bincount(nearest, weights, len(self.laws)) > _COUNTS)

        def parted(j: int, k: int) -> bool:
            near = np.isin(nearest, [j, k])
            return _apart(self.laws[j], self.laws[k], theta[near], weights[near])

        found: list[int] = []
        for k in heavy.tolist():
            if all(parted(j, k) for j in found):
                found.append(k)
        return len(found)


def candidates(shapes: Shapes, most: int) -> list[Map]:
    """Symmetries that a program with these globals may have, the likelier ones first, at most ``most``.

    Sign changes: of all globals, of one of them, of what belongs to one index in all arrays with an axis of the same
    length, of a slice of one array, of two globals, of two single numbers among few. Swaps: of two indices in all
    arrays with an axis of the same length, where an array that is one shorter may be the weights of a mixture (a
    simplex); of two arrays of the same shape.
    """
    size = sum(int(np.prod(shape)) for _, shape in shapes)
    generic = np.random.default_rng(0).normal(size=(1, size))
    found: dict[bytes, Map] = {generic.round(6).tobytes(): lambda points: points}
    for each in _candidates(shapes, size):
        if len(found) > most:
            break
        found.setdefault(each(generic).round(6).tobytes(), each)
    return list(found.values())[1:]


def _candidates(shapes: Shapes, size: int) -> Iterator[Map]:
    ends = np.cumsum([int(np.prod(shape)) for _, shape in shapes])
    places = [
        part.reshape(shape) for part, (_, shape) in zip(np.split(np.arange(size), ends[:-1]), shapes, strict=True)
    ]
    lengths = sorted({length for place in places for length in place.shape if length > 1})
    yield _flip(np.arange(size))
    yield from (_flip(place.ravel()) for place in places)
    for length in lengths:
        yield from (_flip(_slices(places, length, k)) for k in range(length))
        for i, j in _swapped(length):
            one, other = _slices(places, length, i), _slices(places, length, j)
            simplexes = [place.ravel() for place in places if place.shape == (length - 1,)]
            yield from (_swap(one, other, size, simplex, (i, j)) for simplex in simplexes)
            yield _swap(one, other, size)
    for place in places:
        for axis, length in enumerate(place.shape):
            yield from (_flip(place.take(k, axis).ravel()) for k in range(length))
    for one, other in combinations(places, 2):
        yield _flip(np.concatenate([one.ravel(), other.ravel()]))
        if one.shape == other.shape:
            yield _swap(one.ravel(), other.ravel(), size)
    if size <= _FEW:
        yield from (_flip(np.asarray(pair)) for pair in combinations(range(size), 2))


def _swapped(length: int) -> Iterator[tuple[int, int]]:
    """Pairs of labels: all of a few, and neighbours of many, whose swaps lead to every order."""
    return combinations(range(length), 2) if length <= _LABELS else pairwise(range(length))


def _slices(places: list[np.ndarray], length: int, index: int) -> np.ndarray:
    """What belongs to one index in all arrays with an axis of that length; of a square one in its last axis."""
    parts = [
        place.take(index, max(axis for axis, each in enumerate(place.shape) if each == length)).ravel()
        for place in places
        if length in place.shape
    ]
    return np.concatenate(parts)


def _flip(which: np.ndarray) -> Map:
    def flipped(points: np.ndarray) -> np.ndarray:
        moved = points.copy()
        moved[:, which] *= -1.0
        return moved

    return flipped


def _swap(
    one: np.ndarray, other: np.ndarray, size: int, simplex: np.ndarray | None = None, labels: tuple[int, int] = (0, 0)
) -> Map:
    order = np.arange(size)
    order[one], order[other] = other, one

    def swapped(points: np.ndarray) -> np.ndarray:
        moved = points[:, order]
        if simplex is not None:
            moved[:, simplex] = _relabelled(points[:, simplex], labels)
        return moved

    return swapped


def _relabelled(points: np.ndarray, labels: tuple[int, int]) -> np.ndarray:
    """Unconstrained weights of a mixture ``(n, K - 1)`` with two labels swapped, by NumPyro's stick breaking."""
    from numpyro.distributions.transforms import StickBreakingTransform

    transform, order = StickBreakingTransform(), np.arange(points.shape[1] + 1)
    order[list(labels)] = order[list(labels)[::-1]]
    return np.asarray(transform.inv(transform(points)[:, order]))


class Looked(NamedTuple):
    """Where separate modes were looked for.

    Attributes
    ----------
    symmetries
        Number of sign changes and swaps of labels whose images of the mode are places of their own.
    starts, arrived
        Newton searches before the rounds, and how many of them have come to a mode.
    as_wide
        Whether draws as wide as the prior are dense enough to meet a mode.
    """

    symmetries: int = 0
    starts: int = 1
    arrived: int = 1
    as_wide: bool = False


NOWHERE = Looked()


class Search(NamedTuple):
    """Where another mode would be, if the posterior has a symmetry.

    Attributes
    ----------
    maps
        Symmetries that the posterior may have.
    places
        The images of the mean under them, dealt out to the chains, shape ``(chain, n, d)``: the first chain has the
        first, the second the second, and so on; the first one comes again where the number does not come out even.
    """

    maps: list[Map]
    places: np.ndarray

    @classmethod
    def around(cls, law: Law, shapes: Shapes, chains: int, most: int) -> "Search":
        """Around the mean of a Gaussian, at most ``most`` places a chain."""
        size = len(law.mean)
        maps, points = [], [law.mean]
        for each in candidates(shapes, min(most * chains, _NUMBERS // max(size, 1))) if shapes else []:
            image = each(law.mean[None])[0]
            known = np.all(np.isfinite(image)) and min(_distance(law, image, other) for other in points) < _SAME
            if np.all(np.isfinite(image)) and not known and _distance(law, image, law.mean) > _FAR:
                maps.append(each)
                points.append(image)
        points = points[1:] + points[1:2] * (-len(maps) % chains)
        return cls(maps, np.asarray(points).reshape(-1, chains, size).swapaxes(0, 1))

    def found(
        self,
        laws: Sequence[Law],
        log_joint: np.ndarray,
        draws: np.ndarray,
        modes: Modes | None,
        rng: np.random.Generator,
    ) -> "Images | None":
        """The modes by what was heard at the places, and by where the chains are; ``None`` where there is one.

        A place counts where the posterior is about as high as at typical draws of the first chain's Gaussian, and far
        higher than the Gaussian is there.

        Parameters
        ----------
        laws
            Each chain's Gaussian; the first is the one around which the places are.
        log_joint
            Of all draws of the exchange, shape ``(chain, draw)``: those at the places are the last ones.
        draws
            Of the Gaussians, shape ``(chain, n, d)``, with which the exchange begins.
        modes
            Modes that searches before the rounds have found.
        rng
            Draws of laws around these.
        """
        # beside draws of the same law: another chain's may be at a higher mode, which has the same symmetries
        maps = self._as_high(laws[0], log_joint[0, : draws.shape[1]], log_joint)
        known, clouds = _apart_from_first(laws, draws[:, :_CLOUD])
        others = [] if modes is None else laws_around(modes, known)
        known, clouds = [*known, *others], [*clouds, *(law.draws(rng, _CLOUD) for law in others)]
        images = closure(known, maps, clouds)
        return images if len(images.laws) > 1 else None

    def _as_high(self, law: Law, at_draws: np.ndarray, log_joint: np.ndarray) -> list[Map]:
        if not self.maps:
            return []
        _, per_chain, size = self.places.shape
        heard = log_joint[:, -per_chain:].T.reshape(-1)[: len(self.maps)]
        points = self.places.swapaxes(0, 1).reshape(-1, size)[: len(self.maps)]
        typical = float(np.median(at_draws))
        top = typical + 0.5 * size  # of a Gaussian, whose log density at a draw is d / 2 lower on average
        squares = np.asarray([_distance(law, point, law.mean) ** 2 for point in points])
        high = (heard > typical - _LOWER) & (heard > top - 0.5 * squares + _MORE)
        return [each for each, is_high in zip(self.maps, high, strict=True) if is_high]


def laws_around(modes: Modes, before: Sequence[Law]) -> list[Law]:
    """Laws around modes of no negligible integral, the heaviest first, each apart from the others and those before.

    Two are apart where the way from one to the other is long beside either: a narrow one on the slope of a broad one is
    a place of its own.
    """
    arrived = np.isfinite(modes.log_integral)
    heavy = arrived & (modes.log_integral > np.max(modes.log_integral, initial=-np.inf, where=arrived) - _LOWER)
    order = [k for k in np.argsort(-modes.log_integral) if heavy[k]]
    whites = whiteners(modes.precision[order])
    laws = [Law(mean, white, _TAILS) for mean, white in zip(modes.mean[order], whites, strict=True)]
    found = list(before)
    for law in laws:
        if all(max(_distance(each, law.mean, other.mean) for each in (law, other)) >= _FAR for other in found):
            found.append(law)
    return found[len(before) :]


def _apart_from_first(laws: Sequence[Law], clouds: np.ndarray) -> tuple[list[Law], list[np.ndarray]]:
    """The first chain's law and those of chains that are apart, with draws of each."""
    first, found, drawn = laws[0], [laws[0]], [clouds[0]]
    for law, cloud in zip(laws[1:], clouds[1:], strict=True):
        if _is_new(first, found, law.mean) and _distance(law, law.mean, first.mean) >= _FAR:
            found.append(law)
            drawn.append(cloud)
    return found, drawn


def closure(laws: Sequence[Law], maps: list[Map], clouds: Sequence[np.ndarray]) -> Images:
    """Laws that are apart, and their images under all compositions of the maps, at most 64.

    Parameters
    ----------
    laws
        Of the first chain, of those that are apart from it, and around modes that are known already.
    maps
        Under which the posterior is about as high.
    clouds
        Draws ``(n, d)`` of each law: an image has the moments of their images.
    """
    known, drawn, place = list(laws[:_MOST]), list(clouds[:_MOST]), 0
    if len(laws) > _MOST:
        return Images(known, complete=False)
    while place < len(known):
        for each in maps:
            image = each(known[place].mean[None])[0]
            if not _is_new(laws[0], known, image):
                continue
            if len(known) == _MOST:
                return Images(known, complete=False)
            moved = each(drawn[place])
            new = Law.of_moments(moved.mean(axis=0), np.atleast_2d(np.cov(moved, rowvar=False)), _TAILS)
            known.append(new._replace(mean=image))
            drawn.append(moved)
        place += 1
    return Images(known, complete=True)


def _is_new(first: Law, known: Sequence[Law], at: np.ndarray) -> bool:
    """Whether a place is one, and in the first law's sds far from all that are known."""
    return bool(np.all(np.isfinite(at))) and min(_distance(first, at, each.mean) for each in known) >= _FAR


def _apart(one: Law, other: Law, theta: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the density of weighted draws has a valley between two laws' means, along the line through them.

    Some of the mass lies on either side of it: at a mean where there is none, an empty bin beside a nearly empty one is
    no valley.
    """
    way = np.linalg.solve(one.white.T, other.mean - one.mean)
    place = np.linalg.solve(one.white.T, (theta - one.mean).T).T @ way / (way @ way)  # 0 at one mean, 1 at the other
    bins = int(np.clip(np.linalg.norm(way) / _BIN, 8, 40))
    edges = np.linspace(-0.5, 1.5, 2 * bins + 1)
    heights, middles = np.histogram(place, edges, weights=weights)[0], 0.5 * (edges[1:] + edges[:-1])
    between = np.abs(middles - 0.5) < 0.25
    peaks = [np.max(heights[(middles - 0.5) * side >= 0.25]) for side in (-1.0, 1.0)]
    bottom = middles[between][np.argmin(heights[between])]
    least = min(np.sum(weights[place < bottom]), np.sum(weights[place > bottom]))
    return bool(np.min(heights[between]) < _VALLEY * min(peaks) and least > _COUNTS)


def _distance(law: Law, one: np.ndarray, other: np.ndarray) -> float:
    """In sds of the law."""
    return float(np.linalg.norm(np.linalg.solve(law.white.T, one - other)))
