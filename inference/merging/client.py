"""The client's half of a merge: it sums up its subposterior, as a Gaussian and as draws where they are needed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import ResultCode
from fedbayes.inference.local.subposterior import Summary
from fedbayes.numerics.gaussian import Gaussian, packed
from fedbayes.problem.client import Client


class LocalSummary(NamedTuple):
    """A client's way to sum up its subposterior in a round.

    Attributes
    ----------
    run
        ``(shared, private, client, inputs) -> (summary, private)``.
    inputs
        As of an :class:`~fedbayes.contract.algorithm.Update`.
    """

    run: Callable[[Any, Any, Client, Any], tuple[Summary, Any]]
    inputs: Callable[[Array, Any, int], Any]


class MergeMessage(NamedTuple):
    """A client's message: its subposterior's Gaussian, packed, and draws ``(n, d)`` where they are needed."""

    gaussian: Gaussian
    draws: Array


def local_update(
    summarise: Callable, shared: Any, personal: tuple[()], private: Any, client: Client, inputs: Any
) -> tuple[Reply, Any]:
    """A client's round: its subposterior by the way ``summarise``."""
    found, after = summarise(shared, private, client, inputs)
    finite = jnp.all(jnp.isfinite(found.gaussian.shift)) & jnp.all(jnp.isfinite(found.gaussian.precision))
    proper = found.gaussian.is_proper()
    fine = jnp.where(found.reliable, ResultCode.OK, ResultCode.UNRELIABLE)
    code = jnp.where(finite, jnp.where(proper, fine, ResultCode.IMPROPER), ResultCode.NOT_FINITE)
    after = jax.tree.map(lambda new, old: jnp.where(finite & proper, new, old), after, private)
    info = {"k_hat": found.k_hat, "effective_draws": found.effective}
    message = MergeMessage(packed(found.gaussian.symmetrised()), found.draws)
    return Reply(each=message, code=code, info=info), after
