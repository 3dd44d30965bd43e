"""Outcomes whose rows depend on each other: a Gaussian process, its function integrated out, is the chief example.

The log density of such outcomes is no sum over rows, so that rows can't be masked out of it, nor a mini-batch's sum be
scaled up. But the law of some of the rows is known, and of the same kind. With that clients of different sizes share
one program, gradients are taken of subsets, and predictions are conditioned on the client's own rows.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints
from numpyro.primitives import Messenger


class RowProcess(dist.Distribution):
    """A distribution of outcomes, shape ``(n,)``, one of each row; its rows depend on each other."""

    support = constraints.real_vector
    rows_by_rows = True
    """Whether a density takes a matrix of rows by rows, so that those of many draws do not fit side by side."""
    batches = True
    """Whether the density of a mini-batch's rows, scaled up, says something of that of all rows.

    It is biased in any case; ``False`` where it is about something else, so that no method may take batches.
    """

    def of_rows(self, mask: Array) -> "RowProcess":
        """The law of the rows where ``mask``, shape ``(n,)``, is true; the others have a log density of zero."""
        raise NotImplementedError

    def given(self, seen: "RowProcess", value: Array) -> "RowProcess":
        """The law of these rows given that the rows of ``seen`` have the outcomes ``value``."""
        raise NotImplementedError

    @property
    def marginals(self) -> dist.Distribution:
        """The law of each row by itself, batch shape ``(n,)``; it has a ``mean`` and a ``variance``."""
        raise NotImplementedError

    @property
    def integrated_names(self) -> tuple[str, ...]:
        """Names of the client's own latents that the density has integrated out and :meth:`integrated` gives back."""
        return ()

    def integrated(self, value: Array, key: Array) -> Mapping[str, Array]:
        """A draw of what the density has integrated out, given the outcomes ``value`` of the client's rows, by name."""
        return {}

    def defects(self, value: Array) -> Mapping[str, Array]:
        """What makes the density meaningless for these outcomes, shape ``(n,)``: a flag for each complaint in words."""
        return {}

    def doubts(self, value: Array) -> Mapping[str, Array]:
        """What is worth a warning where it holds for some clients and not for others: a flag for each, in words."""
        return {}


class OfRows(Messenger):
    """The model with some of each process's rows alone; a mask of one entry says the same of all rows."""

    def __init__(self, model: object, mask: Array) -> None:
        super().__init__(model)
        self.mask = mask

    def process_message(self, msg: dict) -> None:
        """See NumPyro's ``Messenger``."""
        if msg["type"] == "sample" and isinstance(msg["fn"], RowProcess):
            msg["fn"] = msg["fn"].of_rows(jnp.broadcast_to(self.mask, msg["fn"].event_shape))


class Given(Messenger):
    """The model for new rows, whose processes are conditioned on others, by site: their laws and outcomes."""

    def __init__(self, model: object, seen: Mapping[str, tuple[RowProcess, Array]]) -> None:
        super().__init__(model)
        self.seen = seen

    def process_message(self, msg: dict) -> None:
        """See NumPyro's ``Messenger``."""
        if msg["type"] == "sample" and msg["name"] in self.seen:
            msg["fn"] = msg["fn"].given(*self.seen[msg["name"]])
