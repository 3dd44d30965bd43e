"""Check and correct a Gaussian answer by one exchange, or up to three.

The server tells all clients of draws ``theta_s`` of the Gaussian ``q``, which they make themselves by a recipe
(:mod:`fedbayes.correction.recipe`), and each answers with its log factor there, its locals integrated out: one number
per draw. With the log prior their sum is the log posterior, so that

    w_s = p(theta_s) prod_k f_k(theta_s) / q(theta_s)

are importance weights, Pareto-smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Where their tail allows it
(k-hat below 0.7) weighted draws are the posterior's, and how far they are from those of ``q`` is the error of the
Gaussian. Where it does not, the next exchange takes draws of a proposal that was fitted to the weighted ones.

Clients with locals answer with estimates ``f_k (1 + e)``, where ``e`` has mean zero, with other random numbers at each
draw. Since ``E[w_s (1 + e_s) | theta_s] = w_s``, weighted means have the same limit as without this noise, at any
number of local draws; it only costs draws: with relative variances ``v_k`` the effective number falls by the factor
``1 / prod_k (1 + v_k)``, about ``1 / (1 + sum_k v_k)``, and the bias of a weighted mean, which is of order one over the
effective number, grows by its inverse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from fedbayes.contract.answer import COORDINATE, Answer
from fedbayes.contract.modes import Modes
from fedbayes.correction.images import NOWHERE, Images, Looked, Search, Shapes
from fedbayes.correction.pool import SHARE, Pool
from fedbayes.correction.proposal import Law, Proposal, fitted
from fedbayes.correction.quantities import short_tails
from fedbayes.correction.recipe import Counts, Drawn, draw
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian
from fedbayes.numerics.host import gaussian_moments, log_joint, normal_from_moments, whiteners
from fedbayes.problem.program.prior import Prior
from fedbayes.rounds.exchange import Heard

if TYPE_CHECKING:
    import xarray as xr

# ``(drawn, turn)``: draws (chain, draw, d) for all clients, which answer with log-likelihoods
Ask = Callable[..., Heard]
_CORRECTED = {
    "inference": "importance-weighted",
    "draws": "of the posterior: proposals of the Gaussian and of wider laws, taken by their importance weights; some "
    "occur more than once",
}

LogDensities = Callable[[np.ndarray], Array]  # of the prior, at points (n, d)

_WIDE = 2  # one wide draw for as many of the Gaussian's, to see tails and modes that it lacks
_WIDER = 1.5  # times as wide
_FAR = 0.2  # share of the wide draws that are as wide as the prior
_MET = 5.0  # of them, expected near a mode as narrow as the Gaussian, from which they are said to look for it
_TAILS = 5.0  # degrees of freedom of the wide draws
_LEAST = 1000  # draws of the Gaussian by all chains together
_PRECISION = 1.5  # times the Monte Carlo error of independent draws, up to which no more draws are asked for
_MORE = 2  # exchanges that may follow the first
_SAME = 0.01  # distance from the posterior, in the sense of chi-square, below which the Gaussian is the posterior
_PROBES = 10  # of so many wide draws one may be spent on the place of another mode
_NARROW = 1e-3  # times as wide as the Gaussian: what is drawn there is the place
_OFF = 3.0  # posterior sds by which the Gaussian's means may be off, beyond which k-hat alone is not believed
_PER_GLOBAL = 10  # effective draws a global, to which a proposal is fitted


@dataclass(frozen=True)
class Correction:
    """What the exchanges after the rounds have found out about a Gaussian answer.

    Attributes
    ----------
    approximation
        The Gaussian, leading axis of chains.
    num
        Draws of the approximation in each chain: the first of the pool.
    pool
        All draws, with the clients' answers.
    key
        For resampling.
    images
        Where separate modes were found; ``None``: none was found.
    finer
        Whether the clients have integrated out their locals by more draws: then the first exchange was made twice.
    looked
        Where separate modes were looked for.
    """

    approximation: Gaussian
    num: int
    pool: Pool
    key: Array
    images: Images | None = None
    finer: bool = False
    looked: Looked = NOWHERE

    @property
    def exchanges(self) -> tuple[int, ...]:
        """Draws of a chain in each exchange: the Gaussian's and the wide ones go together."""
        first, wide, *more = self.pool.counts
        return first + wide, *more

    @property
    def wants_more(self) -> bool:
        """Whether another exchange should follow: it may, and this does not say enough."""
        unseen = self.images is not None and len(self.exchanges) == 1
        return len(self.exchanges) <= _MORE and self.pool.known and (unseen or not self.precise)

    @cached_property
    def modes(self) -> int:
        """Separate modes that hold some of the posterior's mass, among those that were found."""
        if self.images is None or not self.pool.known:
            return 1
        return self.images.modes(self.pool.theta.reshape(-1, self.pool.theta.shape[-1]), self.pool.weights.reshape(-1))

    def extended(self, more: Pool) -> "Correction":
        """With the draws of one more exchange."""
        return replace(self, pool=self.pool.extended(more))

    def exchanged(self) -> list[tuple[int, Drawn]]:
        """The turn of each exchange, by which clients have random numbers, and its draws ``(chain, draw, d)``."""
        parts = np.split(self.pool.theta, np.cumsum(self.exchanges)[:-1], axis=1)
        turns = range(self.turns - len(parts), self.turns)  # without the first one, where it was made again
        return [
            (turn, Drawn(theta, recipe)) for turn, theta, recipe in zip(turns, parts, self.pool.recipes, strict=True)
        ]

    @property
    def turns(self) -> int:
        """Number of exchanges that were made."""
        return len(self.exchanges) + int(self.finer)

    @cached_property
    def _own_weights(self) -> np.ndarray:
        """Weights of the approximation's own density, of all chains together one, shape ``(chain, draw)``."""
        log_density = np.stack(
            [law.log_density(points) for law, points in zip(laws_of(self.approximation), self.pool.theta, strict=True)]
        )
        return replace(self.pool, log_joint=log_density).weights

    @property
    def all_modes(self) -> bool:
        """Whether there are draws of all modes that were found, and of all to which symmetries lead from these."""
        return self.images is None or self.images.complete

    @cached_property
    def distance(self) -> float:
        """``sqrt(E_q (w - 1)^2)`` with weights ``w`` of mean one: no mean is further off, in the Gaussian's sds.

        By the inequality of Cauchy and Schwarz ``|E_p h - E_q h| <= distance * sd_q(h)`` for every function ``h``.
        Infinite where the Gaussian is around one of several modes, and has no draws at the others.
        """
        if self.modes > 1:
            return float("inf")
        own = self._own_weights
        with np.errstate(over="ignore"):
            ratio = np.divide(self.pool.weights, own, out=np.zeros_like(own), where=own > 0.0)
            return float(np.sqrt(np.sum(own * (ratio - 1.0) ** 2)))

    @property
    def reliable(self) -> bool:
        """Whether the weights can be trusted, and no mode is known of that has no draws."""
        return self.pool.reliable and self.all_modes and (self.pool.largest <= SHARE or not self._far_off)

    @property
    def _far_off(self) -> bool:
        """Whether nearly all weight lies where the Gaussian has no draws: then no single draw may count for much.

        What no draw has met has no weight, and the stated error knows nothing of it; k-hat does not either.
        """
        return not np.max(np.abs(self.errors()["mean"]), initial=0.0) <= _OFF

    @property
    def applied(self) -> bool:
        """Whether the posterior is made of weighted draws: they can be trusted, and the Gaussian is not exact."""
        return self.reliable and self.distance > _SAME

    @property
    def precise(self) -> bool:
        """Whether no exchange more is needed: the Gaussian is exact, or the weights can be trusted and say enough.

        They do where means and sds are known nearly as well as from independent draws of the posterior, as many as were
        asked for.
        """
        if not self.applied:
            return self.reliable
        found, num = self.errors(), self.num * len(self.pool.theta)
        limit = _PRECISION / np.sqrt(num)
        return bool(np.max(found["mean_mcse"]) <= limit and np.max(found["sd_mcse"]) <= limit / np.sqrt(2.0))

    @property
    def state(self) -> str:
        """In one word: ``"applied"``, ``"not needed"`` or ``"unreliable"``."""
        if not self.reliable:
            return "unreliable"
        return "applied" if self.applied else "not needed"

    @cached_property
    def places(self) -> np.ndarray:
        """Places in the pool of the posterior's draws, shape ``(chain, num)``."""
        if self.applied:
            return self.pool.resampled(self.num, self.key)
        return np.broadcast_to(np.arange(self.num), (len(self.pool.theta), self.num))

    @property
    def theta(self) -> np.ndarray:
        """Draws of the posterior, corrected where that is possible and needed, shape ``(chain, num, d)``."""
        return self.at(self.pool.theta)

    def at(self, values: np.ndarray) -> np.ndarray:
        """What belongs to these draws, of values at all of the pool's, shape ``(chain, draw, ...)``."""
        return np.stack([mine[places] for mine, places in zip(values, self.places, strict=True)])

    @property
    def gaussian(self) -> Gaussian:
        """The Gaussian with the moments of the posterior's draws, leading axis of chains."""
        if not self.applied:
            return self.approximation
        mean, covariance = self.pool.moments()
        chains = len(self.pool.theta)
        return normal_from_moments(np.tile(mean, (chains, 1)), np.tile(covariance, (chains, 1, 1)))

    def attrs(self) -> dict[str, Any]:
        """What the posterior's draws are, for ArviZ; the approximation's own words stay where these do not differ."""
        told = {"correction": self.state, "k_hat": self.pool.k_hat, "effective_draws": self.pool.effective}
        return {**(_CORRECTED if self.applied else {}), **told}

    @np.errstate(over="ignore", invalid="ignore")  # one draw may hold all weight, and no variance is left
    def errors(self) -> dict[str, np.ndarray]:
        """Errors of the Gaussian's means and sds, each ``(d,)``, with their own Monte Carlo errors.

        Means and variances of the Gaussian are known, so that of its own draws only their difference from the weighted
        ones counts: the nearer the Gaussian is, the less noise there is.
        """
        weights, own, theta = self.pool.weights[..., None], self._own_weights[..., None], self.pool.theta
        mean, variance = pooled_moments(self.approximation)

        def total(values: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.sum(values, axis=(0, 1))
            return found

        gap = theta - mean
        shift = total((weights - own) * gap)
        true_mean = mean + shift
        true_variance = variance + total((weights - own) * gap**2) - shift**2
        true_variance = np.maximum(true_variance, 1e-300)
        sd, true_sd = np.sqrt(variance), np.sqrt(true_variance)
        of_mean = weights * (theta - true_mean) - own * gap
        of_variance = weights * ((theta - true_mean) ** 2 - true_variance) - own * (gap**2 - variance)
        return {
            "mean": -shift / true_sd,
            "mean_mcse": np.sqrt(total(of_mean**2)) / true_sd,
            "sd": sd / true_sd - 1.0,
            "sd_mcse": 0.5 * np.sqrt(total(of_variance**2)) / true_variance * sd / true_sd,
            "posterior_mean": true_mean,
            "posterior_sd": true_sd,
        }

    @cached_property
    def short_tails(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether each global's tail is short enough for the errors of its mean, and of its sd, each ``(d,)``."""
        return short_tails(self.pool.theta, self.pool.weights)

    def dataset(self, labels: list[str]) -> "xr.Dataset":
        """The errors by global, and the numbers that tell how far to trust them, see ``FederatedFit.error``."""
        import xarray as xr

        found, (for_mean, for_sd) = self.errors(), self.short_tails
        found |= {"mean_reliable": for_mean, "sd_reliable": for_sd}
        dataset = xr.Dataset({name: (COORDINATE, value) for name, value in found.items()}, coords={COORDINATE: labels})
        for name, meaning, unit in _MEANINGS:
            dataset[name].attrs |= {"long_name": meaning, "units": unit}
        return dataset.assign_attrs(
            correction=self.state,
            reliable=int(self.reliable),
            mean_error=_root_mean_square(found["mean"][for_mean]),
            sd_error=_root_mean_square(found["sd"][for_sd]),
            distance=self.distance if self.distance <= 1.0 else float("inf"),
            k_hat=self.pool.k_hat,
            largest_weight=self.pool.largest,
            effective_draws=self.pool.effective,
            noise=self.pool.weighted_noise,
            exchanges=self.turns,
            modes=self.modes,
            symmetries=self.looked.symmetries,
            starts=self.looked.starts,
            arrived=self.looked.arrived,
            as_wide=int(self.looked.as_wide),
        )


def _root_mean_square(errors: np.ndarray) -> float:
    """NaN of none."""
    return float(np.sqrt(np.mean(errors**2))) if errors.size else float("nan")


_MEANINGS = (
    ("mean", "error of the Gaussian's mean", "posterior sds"),
    ("mean_mcse", "Monte Carlo error of that error", "posterior sds"),
    ("sd", "error of the Gaussian's sd, relative", "1"),
    ("sd_mcse", "Monte Carlo error of that error", "1"),
    ("mean_reliable", "whether the tail is short enough for the error of the mean", ""),
    ("sd_reliable", "whether the tail is short enough for the error of the sd", ""),
    ("posterior_mean", "mean of the posterior, unconstrained space", "unconstrained units"),
    ("posterior_sd", "sd of the posterior, unconstrained space", "unconstrained units"),
)


def correct(
    approximation: Gaussian,
    num: int,
    prior: Prior,
    ask: Ask,
    keys: tuple[Array, Array],
    shapes: Shapes = (),
    modes: Modes | None = None,
) -> Correction:
    """Ask the clients, and again where the weights can't be trusted, or where there are other modes.

    Parameters
    ----------
    approximation
        Leading axis of chains.
    num
        Draws of it in each chain.
    prior
        Of the globals.
    ask
        One exchange; random numbers of the clients are new in each turn. Where the first one's noise is too large, it
        is made again with more draws of the clients' locals, which all others then have, too.
    keys
        Of the approximation's draws, and of all others.
    shapes
        Of the unconstrained globals, by name: where other modes are looked for (:mod:`fedbayes.correction.images`).
        Empty: nowhere.
    modes
        Modes that searches before the rounds have found.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(keys[1])))
    laws = laws_of(approximation)
    least, _ = num_first(num, len(laws))
    search = Search.around(laws[0], shapes, len(laws), least // _WIDE // _PROBES)
    drawn, proposals, counts = first_draws(approximation, num, prior, keys[0], rng, least, search.places)
    pool = pool_of(drawn, proposals, counts, ask(drawn, 0), prior.log_densities)
    finer = pool.needs_finer
    if finer:
        pool = pool_of(drawn, proposals, counts, ask(drawn, 1, finer=True), prior.log_densities)
    images = search.found(laws, pool.log_joint, drawn.theta[:, :num], modes, rng)
    starts, arrived = (1, 1) if modes is None else (len(modes.mean), int(np.sum(np.isfinite(modes.log_integral))))
    num_far = _FAR * counts[1] * len(laws)
    looked = Looked(len(search.maps), starts, arrived, as_wide=_meet(prior, laws[0], num_far))
    found = Correction(approximation, num, pool, keys[1], images, finer, looked)
    while found.wants_more:
        drawn, proposals = refitted(found.pool, sum(counts), rng, found.images.laws if found.images else ())
        heard = ask(drawn, found.turns, finer=finer)
        found = found.extended(pool_of(drawn, proposals, (sum(counts),), heard, prior.log_densities))
    return found


def num_first(num: int, chains: int) -> tuple[int, int]:
    """How many draws of the Gaussian, and how many wide ones, the first exchange has in each of so many chains.

    ``num`` of the former are asked for at least.
    """
    own = max(num, -(-_LEAST // chains))
    return own, -(-own // _WIDE)


def first_draws(
    approximation: Gaussian,
    num: int,
    prior: Prior,
    key: Array,
    rng: np.random.Generator,
    least: int,
    probes: np.ndarray | None = None,
) -> tuple[Drawn, Sequence[tuple[Proposal, ...]], tuple[int, ...]]:
    """Draws of the Gaussian, ``num`` by the key and at least ``least`` in each chain, and wide ones after them.

    One of five wide draws comes from a t law with the prior's centre and scales: it may see a mode that is far from
    the Gaussian. The last ones are at the ``probes``, shape ``(chain, n, d)``: of laws so narrow that the draw is the
    place, which leave the weights as they are.

    Returns
    -------
    drawn
        Shape ``(chain, draw, d)``.
    proposals
        Of each chain, for the two kinds of draws.
    counts
        Of both kinds in a chain.
    """
    laws, far = laws_of(approximation), _far(prior)
    num_more = max(0, least - num)
    num_wide = -(-(num + num_more) // _WIDE)
    at = np.zeros((len(laws), 0, 0)) if probes is None else probes
    narrow = laws[0]._replace(white=_NARROW * laws[0].white, freedom=_TAILS)
    share = 1.0 / num_wide
    shares = [part * (1.0 - share * at.shape[1]) for part in ([1.0 - _FAR, _FAR] if far else [1.0])]
    wide = [
        Proposal(
            [
                law._replace(white=_WIDER * law.white, freedom=_TAILS),
                *far,
                *(narrow._replace(mean=each) for each in own),
            ],
            [*shares, *[share] * len(own)],
        )
        for law, own in zip(laws, at, strict=True)
    ]
    words = np.asarray(jax.random.key_data(key))
    drawn = draw(Counts(num, num_more, num_wide), rng, own=laws, mixtures=wide, words=words)
    proposals = [(Proposal([law], [1.0]), more) for law, more in zip(laws, wide, strict=True)]
    return drawn, proposals, (num + num_more, num_wide)


def keyed_draws(approximation: Gaussian, num: int, key: Array) -> Drawn:
    """Independent draws of the Gaussian by a key, ``num`` in each chain: the first of :func:`first_draws`."""
    words = np.asarray(jax.random.key_data(key))
    return draw(Counts(num), np.random.default_rng([0]), own=laws_of(approximation), words=words)


def _far(prior: Prior) -> list[Law]:
    """A law as wide as the prior; none where that is improper, or so wide that it says nothing."""
    if prior.spread is None or not np.all(np.isfinite(prior.spread)):
        return []
    centre, scale = prior.spread
    return [Law(centre, np.diag(scale), _TAILS)]


def _meet(prior: Prior, law: Law, num: float) -> bool:
    """Whether some of so many draws as wide as the prior meet a mode as narrow as the law, one prior sd out."""
    if not (far := _far(prior)):
        return False
    place = far[0].mean + np.diagonal(far[0].white)
    log_volume = np.linalg.slogdet(law.white)[1] + 0.5 * len(place) * LOG_2PI
    return bool(num * np.exp(min(far[0].log_density(place[None])[0] + log_volume, 0.0)) >= _MET)


def refitted(
    pool: Pool, num: int, rng: np.random.Generator, modes: Sequence[Law] = ()
) -> tuple[Drawn, Sequence[tuple[Proposal, ...]]]:
    """Draws ``(chain, num, d)`` of a proposal fitted to the pool, the same for all chains, and the proposals.

    Half of the draws are of the laws around several modes, where there are some.
    """
    size = pool.theta.shape[-1]
    weights = pool.tempered(_PER_GLOBAL * (size + 1))
    one = fitted(pool.theta.reshape(-1, size), weights, rng)
    if modes:
        one = Proposal([*one.laws, *modes], [*one.shares, *[sum(one.shares) / len(modes)] * len(modes)])
    proposals = [one] * len(pool.theta)
    return draw(Counts(even=num), rng, mixtures=proposals), [(each,) for each in proposals]


def pool_of(
    drawn: Drawn,
    proposals: Sequence[tuple[Proposal, ...]],
    counts: tuple[int, ...],
    heard: Heard,
    prior: LogDensities,
) -> Pool:
    """The draws of one exchange with the clients' answers."""
    log_likelihood = np.moveaxis(np.asarray(heard.replies.each), 0, -1)
    joint = log_joint(prior, drawn.theta, log_likelihood)

    def summed(name: str) -> np.ndarray:
        """Of all clients, at each draw; where nobody has locals it is the same at all of them."""
        each = np.asarray(heard.infos[name]).sum(axis=0)
        return np.broadcast_to(each.reshape(each.shape + (1,) * (2 - each.ndim)), drawn.theta.shape[:2])

    noise, halved = summed("noise"), summed("halved")
    return Pool(drawn.theta, log_likelihood, joint, tuple(proposals), counts, noise, halved, (drawn.recipe,))


def correctable(answer: Answer) -> bool:
    """Whether an answer is a Gaussian over the globals alone, which weights of its draws can correct."""
    posterior = answer.posterior
    if not isinstance(posterior, Gaussian) or not answer.locals_from.has_cavities:
        return False
    return bool(np.all(correctable_precision(posterior)))


def correctable_precision(posterior: Gaussian) -> np.ndarray:
    """Whether each chain's Gaussian is proper, shape ``(chain,)``."""
    mean, covariance = gaussian_moments(posterior)
    found: np.ndarray = np.isfinite(mean).all(axis=1) & np.isfinite(covariance).all(axis=(1, 2))
    return found


def laws_of(approximation: Gaussian) -> list[Law]:
    """Each chain's Gaussian."""
    means, _ = gaussian_moments(approximation)
    return [Law(mean, white) for mean, white in zip(means, whiteners(approximation.precision), strict=True)]


def pooled_moments(approximation: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance ``(d,)`` of all chains' Gaussians together."""
    means, covariances = gaussian_moments(approximation)
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    mean = means.mean(axis=0)
    return mean, variances.mean(axis=0) + np.mean((means - mean) ** 2, axis=0)
