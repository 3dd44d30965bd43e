"""Where and how finely a site answers: its owner says how far from the prior's centre, and to how many nats.

At points far from all that the prior expects a log-density is nearly a sum of straight lines, one for each row, and a
server that chooses such points reads the rows off where they bend, also off a sum over all sites. Nearer, where nearly
all rows are decided, a sum is about the few that are not. By a site's own data such points are far less likely than
any that a fit comes through near its end.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Reply
from fedbayes.problem.program.prior import Prior

Ask = Callable[[str, np.ndarray], Any]
_MANY = 4096  # globals: of more nobody asks how wide the prior is
_SLACK = 50.0  # nats beside those of the rows: what few rows leave open


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


class OwnView:
    """Log prior plus a client's own log-likelihood, its locals integrated out, beside the largest that is known.

    Where values become implausible is blurred by the site's secret. At a sharp limit a server would find the site's
    own log-likelihood by bisection; behind this one each answer tells it to some thirty nats, and answers are counted.

    Parameters
    ----------
    ask
        Runs one of the client's own updates at globals of shape ``(replicate, n, d)``.
    size, num_replicates
        Globals, and replicates of the method.
    num_rows
        How many rows the client has.
    secret
        Of the site for these data.
    """

    def __init__(self, ask: Ask, size: int, num_replicates: int, num_rows: float, secret: str) -> None:
        self._ask, self._size, self._num_replicates, self._num_rows = ask, size, num_replicates, num_rows
        self._secret, self._highest, self._searched = secret, -np.inf, False

    def implausible(self, points: np.ndarray, nats_per_row: float, values: np.ndarray | None = None) -> np.ndarray:
        """Which of the points are less likely than the likeliest by more than so many nats a row.

        A point that is likelier than all before counts as the likeliest from then on.

        Parameters
        ----------
        points
            Unconstrained globals, shape ``(..., d)``.
        nats_per_row
            How much less likely each row may be, on average.
        values
            Log prior plus log-likelihood at the points, where they are known.

        Returns
        -------
        np.ndarray
            Of the leading shape. A point where the value is no number is among them.
        """
        shape = np.shape(points)[:-1]
        if np.isinf(nats_per_row) or not self._size or not np.size(points):
            return np.zeros(shape, bool)
        flat = np.reshape(points, (-1, self._size))
        found = self._values(flat) if values is None else np.ravel(values)
        limit = self._likeliest(found) - nats_per_row * self._num_rows - blurred(flat, self._secret)
        return ~(found >= limit).reshape(shape)

    def _likeliest(self, values: np.ndarray) -> float:
        """The largest value, of those that were asked for and the mode's."""
        if not self._searched:
            mode = self._ask("own_mode", np.zeros((self._num_replicates, 0, self._size)))
            values, self._searched = np.concatenate([values, self._values(mode[:1])]), True
        self._highest = max(self._highest, float(np.max(values, initial=-np.inf, where=np.isfinite(values))))
        return self._highest

    def _values(self, points: np.ndarray) -> np.ndarray:
        """At points of shape ``(n, d)``, dealt to the replicates, with copies of the last where there are fewer."""
        padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % self._num_replicates, axis=0)])
        found: np.ndarray = self._ask("own_values", padded.reshape(self._num_replicates, -1, self._size))
        return found.reshape(-1)[: len(points)]


def blurred(points: np.ndarray, secret: str) -> np.ndarray:
    """Nats beside those of the rows, for points ``(n, d)``: one to three times the least, drawn by a secret.

    The same point has the same.
    """
    digests = [hashlib.sha256(secret.encode() + row.tobytes()).digest()[:8] for row in np.ascontiguousarray(points)]
    return _SLACK * (1.0 + 2.0 * np.frombuffer(b"".join(digests), "<u8") * 2.0**-64)


def num_expanded(size: int) -> int:
    """Numbers of an expansion to second order: a value, and a Gaussian's shift, precision and log scale."""
    return 2 + size + size * (size + 1) // 2


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
