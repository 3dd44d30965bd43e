"""Test functions of several fidelities: a costly one, and cheaper ones that resemble it (multi-fidelity regression).

Each level of fidelity is one client. The functions are those of Yue and Al Kontar (2024, section 5 and its table 1),
who take most of them from Cutajar et al. (2019). Inputs ``u`` lie in the unit cube, and each function maps them to its
own domain. Federated Gaussian processes share the kernel alone: the cheap clients say how smooth such a function is,
never what its value is.

==============  ====  ================================  ==============================================================
problem         d     levels: rows by default           function
==============  ====  ================================  ==============================================================
``linear``      1     low: 100, high: 20                Forrester's, of which the low one is a linear image
``nonlinear``   1     low: 100, high: 20                an exponential of the low one, a cosine
``currin``      2     low: 200, high: 40                Currin's exponential function
``park``        4     low: 300, high: 50                Park's
``branin``      2     low: 200, medium: 40, high: 20    Branin's
``hartmann3``   3     low: 200, medium: 100, high: 50   Hartmann's in three dimensions
``borehole``    8     low: 200, high: 50                flow of water through a borehole
==============  ====  ================================  ==============================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedbayes.models._random import generator

Array = np.ndarray
LEVELS = ("low", "medium", "high")


@dataclass(frozen=True)
class Problem:
    """A function at several levels of fidelity.

    Attributes
    ----------
    dim
        Number of inputs.
    levels
        From a level's name, in rising order, to the function of inputs in the unit cube, ``(n, d) -> (n,)``.
    sizes
        Rows of each level in the source.
    """

    dim: int
    levels: Mapping[str, Callable[[Array], Array]]
    sizes: Mapping[str, int]


def linear(u: Array, level: str) -> Array:
    """``high(x) = (6 x - 2)^2 sin(12 x - 4)``, ``low(x) = high(x) / 2 + 10 (x - 1/2) + 5``; x in [0, 1].

    Forrester, Sobester and Keane (2007).
    """
    x = u[:, 0]
    high = (6.0 * x - 2.0) ** 2 * np.sin(12.0 * x - 4.0)
    return high if level == "high" else 0.5 * high + 10.0 * (x - 0.5) + 5.0


def nonlinear(u: Array, level: str) -> Array:
    """``low(x) = cos(15 x)``, ``high(x) = x exp(low(2 x - 0.2)) - 1``; x = 2 u in [0, 2] (Cutajar et al. 2019).

    The high level has a period of 0.209, and 20 equally spaced rows are 0.105 apart: two a period, which no Gaussian
    process of the high level alone can follow.
    """
    x = 2.0 * u[:, 0]
    return x * np.exp(np.cos(15.0 * (2.0 * x - 0.2))) - 1.0 if level == "high" else np.cos(15.0 * x)


def currin(u: Array, level: str) -> Array:
    """Currin's exponential function on the unit square (Currin et al. 1991; levels of Xiong, Qian and Wu 2013).

    high(x) = [1 - exp(-1 / (2 x_2))] (2300 x_1^3 + 1900 x_1^2 + 2092 x_1 + 60) / (100 x_1^3 + 500 x_1^2 + 4 x_1 + 20),

    where the bracket is 1 at ``x_2 = 0``; the low level is the mean of ``high`` at ``x_1 +- 0.05`` and
    ``x_2 + 0.05, max(0, x_2 - 0.05)``.
    """

    def high(first: Array, second: Array) -> Array:
        bracket = 1.0 - np.exp(-0.5 / np.maximum(second, 1e-300))
        above = 2300.0 * first**3 + 1900.0 * first**2 + 2092.0 * first + 60.0
        return bracket * above / (100.0 * first**3 + 500.0 * first**2 + 4.0 * first + 20.0)

    first, second = u.T
    if level == "high":
        return high(first, second)
    places = product((first + 0.05, first - 0.05), (second + 0.05, np.maximum(0.0, second - 0.05)))
    return np.mean([high(*place) for place in places], axis=0)


def park(u: Array, level: str) -> Array:
    """Park's function of four inputs in the unit cube (Cox, Park and Singer 2001; levels of Xiong, Qian and Wu 2013).

    high(x) = x_1 / 2 [sqrt(1 + (x_2 + x_3^2) x_4 / x_1^2) - 1] + (x_1 + 3 x_4) exp(1 + sin x_3),
    low(x)  = [1 + sin(x_1) / 10] high(x) - 2 x_1 + x_2^2 + x_3^2 + 1/2.

    Written so that ``x_1 = 0``, where the formula divides by zero, has its limit. Some libraries have ``x_3`` in place
    of its square.
    """
    a, b, c, d = u.T
    high = 0.5 * (np.sqrt(a**2 + (b + c**2) * d) - a) + (a + 3.0 * d) * np.exp(1.0 + np.sin(c))
    return high if level == "high" else (1.0 + np.sin(a) / 10.0) * high - 2.0 * a + b**2 + c**2 + 0.5


def branin(u: Array, level: str) -> Array:
    """Branin's function, ``x = (15 u_1 - 5, 15 u_2)`` (levels of Perdikaris et al. 2017).

    high(x)   = (-1.275 x_1^2 / pi^2 + 5 x_1 / pi + x_2 - 6)^2 + (10 - 5 / (4 pi)) cos x_1 + 10,
    medium(x) = 10 sqrt(high(x - 2)) + 2 (x_1 - 1/2) - 3 (3 x_2 - 1) - 1,
    low(x)    = medium(1.2 (x + 2)) - 3 x_2 + 1,

    shifts being of both inputs. The source's own program leaves out the square root; the formula is its paper's.
    """

    def high(x: Array) -> Array:
        inner = -1.275 * x[0] ** 2 / np.pi**2 + 5.0 * x[0] / np.pi + x[1] - 6.0
        return inner**2 + (10.0 - 5.0 / (4.0 * np.pi)) * np.cos(x[0]) + 10.0

    def medium(x: Array) -> Array:
        return 10.0 * np.sqrt(high(x - 2.0)) + 2.0 * (x[0] - 0.5) - 3.0 * (3.0 * x[1] - 1.0) - 1.0

    x = 15.0 * u.T - np.array([[5.0], [0.0]])
    if level == "low":
        return medium(1.2 * (x + 2.0)) - 3.0 * x[1] + 1.0
    return high(x) if level == "high" else medium(x)


_WIDTHS = np.array([[3.0, 10.0, 30.0], [0.1, 10.0, 35.0], [3.0, 10.0, 30.0], [0.1, 10.0, 35.0]])
_PLACES = np.array(
    [[0.3689, 0.1170, 0.2673], [0.4699, 0.4387, 0.7470], [0.1091, 0.8732, 0.5547], [0.0381, 0.5743, 0.8828]]
)
_HEIGHTS, _CHANGES = np.array([1.0, 1.2, 3.0, 3.2]), np.array([0.01, -0.01, -0.1, 0.1])


def hartmann3(u: Array, level: str) -> Array:
    """Hartmann's function of three inputs in the unit cube: ``sum_i a_i exp(-sum_j A_ij (x_j - P_ij)^2)``.

    At level t, 1 (low) to 3 (high), ``a = (1, 1.2, 3, 3.2) + (3 - t) (0.01, -0.01, -0.1, 0.1)``. The usual Hartmann
    function, and the source's program, have the opposite sign; standardised outcomes have the same error either way.
    """
    heights = _HEIGHTS + (2 - LEVELS.index(level)) * _CHANGES
    return np.exp(-np.sum(_WIDTHS * (u[:, None] - _PLACES) ** 2, axis=-1)) @ heights


_BOREHOLE = np.array(
    [
        [0.05, 0.15],
        [100.0, 50_000.0],
        [63_070.0, 115_600.0],
        [990.0, 1110.0],
        [63.1, 115.0],
        [700.0, 820.0],
        [1120.0, 1680.0],
        [9855.0, 12_045.0],
    ]
)


def borehole(u: Array, level: str) -> Array:
    """Flow of water through a borehole (Harper and Gupta 1983; levels of Xiong, Qian and Wu 2013), eight inputs.

    high(x) = 2 pi x_3 (x_4 - x_6) / { log(x_2 / x_1) [1 + 2 x_7 x_3 / (log(x_2 / x_1) x_1^2 x_8) + x_3 / x_5] }

    with x in [.05, .15] x [100, 50000] x [63070, 115600] x [990, 1110] x [63.1, 115] x [700, 820] x [1120, 1680] x
    [9855, 12045]. The low level has 5 pi in place of 2 pi, and 1.5 in place of the bracket's 1. Its usual form has 5,
    without pi: the source's constant is kept, and standardised outcomes don't depend on it.
    """
    x = _BOREHOLE[:, 0] + u * np.diff(_BOREHOLE, axis=1)[:, 0]
    log_ratio = np.log(x[:, 1] / x[:, 0])
    factor, one = (2.0, 1.0) if level == "high" else (5.0, 1.5)
    inner = one + 2.0 * x[:, 6] * x[:, 2] / (log_ratio * x[:, 0] ** 2 * x[:, 7]) + x[:, 2] / x[:, 4]
    return factor * np.pi * x[:, 2] * (x[:, 3] - x[:, 5]) / (log_ratio * inner)


def _problem(function: Callable[[Array, str], Array], dim: int, **sizes: int) -> Problem:
    def at(level: str) -> Callable[[Array], Array]:
        return lambda u: function(u, level)

    return Problem(dim, {level: at(level) for level in sizes}, sizes)


PROBLEMS: Mapping[str, Problem] = {
    "linear": _problem(linear, 1, low=100, high=20),
    "nonlinear": _problem(nonlinear, 1, low=100, high=20),
    "currin": _problem(currin, 2, low=200, high=40),
    "park": _problem(park, 4, low=300, high=50),
    "branin": _problem(branin, 2, low=200, medium=40, high=20),
    "hartmann3": _problem(hartmann3, 3, low=200, medium=100, high=50),
    "borehole": _problem(borehole, 8, low=200, high=50),
}


def problem(name: str) -> Problem:
    """The problem of that name.

    Raises
    ------
    ValueError
        There is none.
    """
    if name not in PROBLEMS:
        raise ValueError(f"There is no multi-fidelity problem {name!r}; it is one of {sorted(PROBLEMS)}.")
    return PROBLEMS[name]


def evaluate(name: str, u: ArrayLike, level: str = "high") -> Array:
    """A problem's function at inputs in the unit cube, shape ``(n, d)``, in its own units, shape ``(n,)``.

    Raises
    ------
    ValueError
        Unknown problem or level, or inputs of another number of columns or outside of the unit cube.
    """
    found, rows = problem(name), np.atleast_1d(np.asarray(u, float))
    rows = rows[:, None] if rows.ndim == 1 else rows
    if level not in found.levels:
        raise ValueError(f"{name!r} has no level {level!r}; it has {list(found.levels)}.")
    if rows.ndim != 2 or rows.shape[1] != found.dim:
        raise ValueError(f"`u` has shape {np.shape(u)}; {name!r} takes shape (n, {found.dim}).")
    if not np.all((rows >= 0.0) & (rows <= 1.0)):
        raise ValueError(f"`u` lies between {rows.min():g} and {rows.max():g}; scale each input to the unit interval.")
    return found.levels[level](rows)


def simulate(
    key: jax.Array,
    name: str = "currin",
    *,
    sizes: Mapping[str, int] | None = None,
    num_test: int = 1000,
    corners: bool = False,
) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """One client a level of fidelity, with uniform inputs and outcomes without noise.

    Parameters
    ----------
    key
        JAX random key.
    name
        Of a problem: ``"linear"``, ``"nonlinear"``, ``"currin"``, ``"park"``, ``"branin"``, ``"hartmann3"`` or
        ``"borehole"``.
    sizes
        Rows by level, for those levels that shall have other sizes than in the source.
    num_test
        Test inputs.
    corners
        Add the ``2^d`` corners of the unit cube to each client's inputs, as the source's program does.

    Returns
    -------
    clients
        ``{"low": {"x": (n, d), "y": (n,)}, ..., "high": ...}``; each client's outcomes have mean 0 and variance 1.
    truth
        Test inputs ``"x"``, ``(num_test, d)``, and the function of the highest fidelity there, ``"f"``, scaled by the
        mean and sd of the high client's outcomes, ``"mean"`` and ``"sd"``.

    Raises
    ------
    ValueError
        Unknown problem or level, or a level with less than two rows.
    """
    found = problem(name)
    given = {} if sizes is None else dict(sizes)
    unknown = set(given) - set(found.levels)
    if unknown:
        raise ValueError(f"`sizes` names {sorted(unknown)}; the levels of {name!r} are {list(found.levels)}.")
    wanted = {**found.sizes, **given}
    small = {level: num for level, num in wanted.items() if num < 2}
    if small:
        raise ValueError(f"`sizes` is {small}; outcomes are standardised, which takes two rows or more.")
    edges = np.array(list(product((0.0, 1.0), repeat=found.dim)))
    clients, scales = {}, {}
    for level, function in found.levels.items():
        x = generator(key, 0, LEVELS.index(level)).uniform(size=(wanted[level], found.dim))
        x = np.concatenate([x, edges]) if corners else x
        y = function(x)
        scales[level] = y.mean(), y.std()
        clients[level] = {"x": x, "y": (y - y.mean()) / y.std()}
    x, (mean, sd) = generator(key, 1).uniform(size=(num_test, found.dim)), scales["high"]
    return clients, {"x": x, "f": (found.levels["high"](x) - mean) / sd, "mean": mean, "sd": sd}
