"""GIFAIR (Yue, Nouiehed and Al Kontar 2023): clients of groups that fare worse weigh more.

Let ``F_k`` be the mean loss of client k, ``A_i`` the clients of group i, and ``L_i`` the mean of their losses. The
objective adds up the differences between groups,

    H(theta) = sum_k p_k F_k(theta) + lambda sum_(i<j) |L_i - L_j| = sum_k p_k (1 + lambda r_k / (p_k |A_k|)) F_k,

where ``r_k`` is how many groups fare better than that of k, less how many fare worse. Client k goes down its loss
times the factor in brackets, which is positive for ``lambda < min_k p_k |A_k| / (d - 1)`` with d groups; H is convex
then, if the losses are. Its minimum is no mode of the posterior, but of one whose clients count by other weights.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.inference.options import check_choices, is_number
from fedbayes.problem.data.groups import Groups, check_groups, partition
from fedbayes.problem.roster import Roster


@dataclass(frozen=True, kw_only=True)
class GIFAIR:
    """Fairness between groups of clients, for ``fb.FedAvg(fairness=...)`` and its relatives.

    The objective adds the differences between groups' mean losses, ``sum_k p_k F_k + lambda sum_(i<j) |L_i - L_j|``
    (Yue, Nouiehed and Al Kontar 2023): client k goes down its loss times ``1 + lambda r_k / (p_k |A_k|)``, where
    ``r_k`` is how many groups fare better than its own, less how many fare worse.

    Clients send their losses in sums over their groups, and are told nothing but their own factor. Factors act in a
    client's steps alone: many local steps lead each client to its own optimum, whatever its factor, and the rounds end
    beside the optimum of the objective. Up to 512 globals a last round measures how far, and ``repr(fit)`` says so;
    ``local_steps=1`` ends at it.

    Parameters
    ----------
    groups
        From a group's name to the names of its clients; ``None``: each client is a group of its own.
    weight
        ``lambda``; ``None``: half of its bound. Zero is plain averaging.
    losses
        Which losses rank the groups: ``"start"``, those at the server's position, where a client's steps begin, which
        cost nothing; ``"end"``, those where they end, as in the source.
    personalised
        Each client keeps the point where its own steps end (GIFAIR-Per): ``fit.client_posterior(name)``, and what
        ``fit.predict(name, ...)`` and :func:`~fedbayes.fairness_report` go by. The losses there rank the groups. The
        server's point remains in ``fit.idata``.

    See Also
    --------
    FedAvg : Its option ``fairness`` takes this.
    fairness_report : How unequal the clients' losses are.

    Examples
    --------
    >>> import fedbayes as fb
    >>> fair = fb.GIFAIR(groups={"cities": ["north", "south"], "villages": ["west"]})
    >>> method = fb.FedAvg(fairness=fair, local_steps=1)  # one step: ends at the objective's optimum
    >>> method.fairness.losses
    'start'
    """

    groups: Groups | None = None
    weight: float | None = None
    losses: Literal["start", "end"] = "start"
    personalised: bool = False

    def __post_init__(self) -> None:
        if self.weight is not None and not (is_number(self.weight) and 0.0 <= self.weight < np.inf):
            raise ValueError(f"`weight` is {self.weight!r}; write a number, zero or more, or leave it out.")
        check_choices(self, {"losses": ("start", "end"), "personalised": (True, False)})
        check_groups(self.groups)

    @property
    def ranks_ends(self) -> bool:
        """Whether the losses where clients' steps have ended rank the groups."""
        return self.personalised or self.losses == "end"


class Fairness:
    """GIFAIR's factors for the clients of one fit.

    Parameters
    ----------
    config
        The options.
    roster
        Of the clients.
    weights
        Their shares p, shape ``(N,)``.

    Attributes
    ----------
    group, names
        Place of each client's group, shape ``(N,)``, among the groups' names.
    weight
        ``lambda``.
    shares, scale
        ``p_k``, and ``lambda / (p_k |A_k|)``, shape ``(N,)``.

    Raises
    ------
    ValueError
        The groups are no partition of the clients, or ``weight`` lies at its bound or beyond.
    """

    def __init__(self, config: GIFAIR, roster: Roster, weights: np.ndarray) -> None:
        self.names, self.group = partition(config.groups, roster.names)
        if len(self.names) < 2:
            raise ValueError(f"`groups` has the group {list(self.names)} alone: fairness needs two at least.")
        members = np.bincount(self.group)[self.group]
        bound = float(np.min(weights * members)) / (len(self.names) - 1)
        self.weight = 0.5 * bound if config.weight is None else config.weight
        if self.weight >= bound:
            raise ValueError(
                f"`weight` is {self.weight:g}, at or beyond {bound:.4g}, where a client's loss would count for nothing "
                "or less. Write a smaller one, or leave it out, which is half of that."
            )
        self.shares, self.scale = weights, self.weight / (weights * members)

    @property
    def num_groups(self) -> int:
        """D."""
        return len(self.names)

    def ranks(self, losses: Array) -> Array:
        """How many groups fare better than each, less how many fare worse, ``(d,)``; unknown losses are left out."""
        return jnp.sum(jnp.nan_to_num(jnp.sign(losses[:, None] - losses)), axis=1)

    def factors(self, losses: Array) -> Array:
        """Of the clients' losses, ``(N,)``, from those of the groups."""
        return 1.0 + jnp.asarray(self.scale) * self.ranks(losses)[jnp.asarray(self.group)]

    def reported(self, place: Array, loss: Array) -> Array:
        """What a client adds to the groups' sums of losses and of clients, shape ``(2, d)``."""
        mine = jnp.arange(self.num_groups) == jnp.asarray(self.group)[place]
        return jnp.stack([jnp.where(mine, loss, 0.0), jnp.where(mine, 1.0, 0.0)])

    def heard(self, sums: Array, before: Array) -> Array:
        """The groups' mean losses; one that was not heard keeps its own."""
        total, count = sums
        return jnp.where(count > 0.0, total / jnp.where(count > 0.0, count, 1.0), before)
