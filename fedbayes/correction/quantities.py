"""Monte Carlo errors of what a user reads: means, sds and quantiles of any functions of the globals.

The draws of a corrected fit are taken from a pool, chain by chain, by weights ``w_s`` that sum to one in each of ``C``
chains. A mean over the ``N`` draws of a chain has the error of the weights, and that of taking whole draws by them:

    var = C^-2 sum_rs (w_rs^2 + f_rs (1 - f_rs) / N^2) (h_rs - m_r)^2,    f = N w - floor(N w),

where the first term is the self-normalised estimate's own variance, to first order, and a draw is taken ``N w`` times,
rounded up or down. A variance is the mean of ``(h - m)^2``, and a quantile is read off where the mean of ``1[h <= q]``
has its error.

All this is right where the terms ``w |h - m|``, of a mean, or ``w (h - m)^2``, of a sd, have a variance themselves.
Weights may be fine, and ``h`` have so long a tail that a few draws make its sd: the Pareto shape of the terms' tail
tells (Vehtari, Simpson, Gelman, Yao and Gabry 2024, section 3), with ``m`` the median, which no single draw moves.
"""

from typing import NamedTuple

import numpy as np

from fedbayes.correction.pool import largest_share, tail_shape

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles
_MEDIAN = PROBABILITIES.index(0.5)
_SHARE = 0.02  # of one term in the sum, up to which the shape of the tail does not matter
_SHAPE = 0.5  # k-hat of terms, above which they have no variance, so that a Monte Carlo error means nothing
_NUMBERS = 1 << 22  # of draws times functions at once


class Taken(NamedTuple):
    """How a posterior's draws were taken from others.

    Attributes
    ----------
    weights
        Of all draws, summing to one in each chain, shape ``(chain, draw)``.
    num
        Draws that each chain has got by them; zero: all draws with a weight count, as they are.
    """

    weights: np.ndarray
    num: int = 0

    @classmethod
    def evenly(cls, shape: tuple[int, int], num: int) -> "Taken":
        """The first ``num`` of each chain's draws, each as often as the others; ``shape`` is of all."""
        weights = np.zeros(shape)
        weights[:, :num] = 1.0 / num
        return cls(weights)

    @property
    def squares(self) -> np.ndarray:
        """Factor of each draw's squared deviation in the variance of a mean, shape ``(chain, draw)``."""
        found: np.ndarray = self.weights**2
        if self.num:
            rest = np.mod(self.num * self.weights, 1.0)
            found = found + rest * (1.0 - rest) / self.num**2
        return found / len(self.weights) ** 2


class Summary(NamedTuple):
    """Of ``n`` functions of the globals, each ``(n,)``, quantiles ``(n, probability)``.

    Attributes
    ----------
    mean, sd, quantiles
        Of the posterior.
    mean_mcse, sd_mcse, quantiles_mcse
        Their Monte Carlo errors, in the same units.
    mean_reliable, sd_reliable
        Whether the tail is short enough for the mean, and for the sd, with its error.
    """

    mean: np.ndarray
    mean_mcse: np.ndarray
    mean_reliable: np.ndarray
    sd: np.ndarray
    sd_mcse: np.ndarray
    sd_reliable: np.ndarray
    quantiles: np.ndarray
    quantiles_mcse: np.ndarray


def summarised(values: np.ndarray, taken: Taken) -> Summary:
    """Moments and quantiles of functions at draws ``(chain, draw, n)``, with their errors."""
    step = max(1, _NUMBERS // max(taken.weights.size, 1))
    parts = [_summarised(values[..., i : i + step], taken) for i in range(0, values.shape[-1], step)]
    return Summary(*map(np.concatenate, zip(*parts, strict=True)))


def _summarised(values: np.ndarray, taken: Taken) -> Summary:
    values = np.where(taken.weights[..., None] > 0.0, values, 0.0)  # which need not be finite there
    mean, mean_mcse = _mean(values, taken)
    gap = values - mean
    variance, variance_mcse = _mean(gap**2, taken)
    sd = np.sqrt(variance)
    at, at_mcse = map(np.stack, zip(*(_quantiles(each, taken) for each in np.moveaxis(values, -1, 0)), strict=True))
    for_mean, for_sd = _short_tails(values - at[:, _MEDIAN], taken)
    return Summary(
        mean,
        mean_mcse,
        for_mean,
        sd,
        0.5 * np.divide(variance_mcse, sd, out=np.zeros_like(sd), where=sd > 0.0),
        for_sd,
        at,
        at_mcse,
    )


def short_tails(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether the tails of functions at weighted draws are short enough for their means, and for their sds.

    Parameters
    ----------
    values, weights
        Shapes ``(chain, draw, n)`` and ``(chain, draw)``.

    Returns
    -------
    for_mean, for_sd
        Each of shape ``(n,)``.
    """
    taken = Taken(weights)
    medians = [_quantiles(each, taken)[0][_MEDIAN] for each in np.moveaxis(values, -1, 0)]
    return _short_tails(values - np.asarray(medians), taken)


def _short_tails(from_median: np.ndarray, taken: Taken) -> tuple[np.ndarray, np.ndarray]:
    for_mean = _short(from_median, taken)
    return for_mean, for_mean & _short(from_median**2, taken)


def _mean(values: np.ndarray, taken: Taken) -> tuple[np.ndarray, np.ndarray]:
    """Mean over draws ``(chain, draw, n)`` and its error, each ``(n,)``."""
    own = np.einsum("rs,rsn->rn", taken.weights, values)  # each chain's
    variance = np.einsum("rs,rsn->n", taken.squares, (values - own[:, None]) ** 2)
    return own.mean(axis=0), np.sqrt(variance)


def _quantiles(values: np.ndarray, taken: Taken) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of one function at draws ``(chain, draw)``, and their errors."""
    flat, weights = values.reshape(-1), taken.weights.reshape(-1)
    order = np.argsort(flat)
    reached = np.cumsum(weights[order]) / weights.sum()

    def quantile(p: np.ndarray) -> np.ndarray:
        places = np.searchsorted(reached, p - 1e-12)
        found: np.ndarray = flat[order[np.minimum(places, len(flat) - 1)]]
        return found

    probabilities = np.asarray(PROBABILITIES)
    found = quantile(probabilities)
    _, error = _mean((values[..., None] <= found).astype(float), taken)
    return found, 0.5 * (quantile(probabilities + error) - quantile(probabilities - error))


def _short(terms: np.ndarray, taken: Taken) -> np.ndarray:
    """Whether weights times these terms ``(chain, draw, n)`` have a variance, by their tail, shape ``(n,)``."""
    counts = taken.weights > 0.0
    log_weights = np.log(taken.weights, out=np.full(counts.shape, -np.inf), where=counts)
    return np.array([_has_variance(each, log_weights, counts) for each in np.moveaxis(np.abs(terms), -1, 0)])


def _has_variance(terms: np.ndarray, log_weights: np.ndarray, counts: np.ndarray) -> bool:
    """The same of one function; the shape of the tail, which takes longer to find, only where it matters."""
    if np.count_nonzero(terms[counts] == np.max(terms[counts])) > 1:
        return True  # a bound, as of an indicator
    with np.errstate(divide="ignore"):
        logs = (log_weights + np.log(terms)).reshape(-1)
    return largest_share(logs) <= _SHARE or tail_shape(logs) <= _SHAPE
