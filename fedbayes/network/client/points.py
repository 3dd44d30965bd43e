"""Where and how finely a site answers: its owner says how far from the prior's centre, and to how many nats.

At points far from all that the prior expects a log-density is nearly a sum of straight lines, one for each row, and a
server that chooses such points reads the rows off where they bend, also off a sum over all sites. Points of an honest
fit are near the posterior, or drawn as wide as the prior.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Reply
from fedbayes.problem.program.prior import Prior

_MANY = 4096  # globals: of more nobody asks how wide the prior is


class Reach(NamedTuple):
    """Where a site answers.

    Attributes
    ----------
    centre, scale
        Of the prior, shape ``(d,)``, see :attr:`~fedbayes.problem.program.prior.Prior.spread`.
    farthest
        How many scales away from the centre each global may be.
    """

    centre: np.ndarray
    scale: np.ndarray
    farthest: float

    def beyond(self, points: np.ndarray) -> np.ndarray:
        """Which of the points ``(..., d)`` are too far away, or none at all."""
        return ~np.all(np.abs(np.asarray(points) - self.centre) <= self.farthest * self.scale, axis=-1)


def reach_of(prior: Prior, farthest: float) -> Reach | None:
    """Where a site answers; ``None``, everywhere: the prior is improper, or has too many globals to ask."""
    if prior.size > _MANY or not np.isfinite(farthest) or prior.spread is None:
        return None
    centre, scale = prior.spread
    return Reach(centre, scale, farthest) if np.all(np.isfinite(scale)) else None


def rounded(reply: Reply, nats: float) -> Reply:
    """Log-likelihoods as multiples of some nats, and that this has made them noisy by ``nats^2 / 12``.

    The noise of a log-likelihood is the relative variance of the likelihood, see
    :class:`~fedbayes.correction.pool.Pool`; an error that is uniform over ``nats`` has this one. It is not drawn anew
    when a server asks again, since errors that are average out. What is said of a value's own error is rounded to such
    variances, too: beside rounded values it would hold as many exact numbers about the same rows.
    """
    error = nats**2 / 12.0

    def coarse(values: np.ndarray) -> np.ndarray:
        return np.round(np.asarray(values) / nats) * nats

    def noisier(info: dict[str, Any]) -> dict[str, Any]:
        steps = {name: np.asarray(value) / error for name, value in info.items()}
        return {
            name: error * (np.ceil(each) + 1.0 if name == "noise" else np.round(each)) for name, each in steps.items()
        }

    if jax.tree.leaves(reply.each):
        return reply._replace(each=coarse(reply.each), info=noisier(dict(reply.info)))
    values, info = reply.total
    return reply._replace(total=(coarse(values), noisier(dict(info))))
