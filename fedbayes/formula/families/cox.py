"""Cox's partial likelihood, stratified by client: hazards are proportional within each, and its baseline is free."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from fedbayes.errors import FormulaError
from fedbayes.problem.program.row_process import RowProcess

NO_TIMES = (
    "Cox's partial likelihood says which row has an event, and not when: there are no expected times, and none can be "
    "drawn. Compare rows by the logarithms of their hazards, scale='link' (`--scale link` of `fedbayes predict`), or "
    "take family='piecewise_exponential', whose baseline hazard is one for all clients, in pieces."
)


class CoxPartial(RowProcess):
    """The partial likelihood of one stratum's times (Cox 1972), with Efron's (1977) treatment of ties.

    Of an event at time ``t`` it is the probability that it hit this row, and not another one at risk:
    ``exp(eta_i) / sum(exp(eta_j), j at risk)``. Of ``d`` events at the same time the ``l``-th, ``l = 0, ..., d - 1``,
    has the denominator ``R - (l / d) D``, where ``R`` sums over all at risk and ``D`` over the ``d`` rows themselves.
    Rows belong together, so the whole stratum has one log density; no times can be drawn from it.

    Parameters
    ----------
    eta
        Linear predictor of each row, shape ``(n,)``. Adding a number to all changes nothing.
    observed
        1 where the event was seen, 0 where the time is censored, shape ``(n,)``; ``None``: all were seen.
    mask
        Rows that count, shape ``(n,)``; the others are never at risk.
    """

    support = constraints.independent(constraints.positive, 1)
    arg_constraints: ClassVar = {"eta": constraints.real_vector}
    pytree_data_fields = ("eta", "observed", "mask")
    rows_by_rows = False
    batches = False  # each row is compared with those at risk: a batch of one row has a density of one

    def __init__(
        self,
        eta: ArrayLike,
        observed: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.eta = jnp.asarray(eta)
        self.observed = None if observed is None else jnp.asarray(observed)
        self.mask = None if mask is None else jnp.asarray(mask)
        super().__init__((), self.eta.shape[-1:], validate_args=validate_args)

    def of_rows(self, mask: Array) -> "CoxPartial":
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        return CoxPartial(self.eta, self.observed, mask if self.mask is None else self.mask & mask)

    def log_prob(self, value: ArrayLike) -> Array:
        """Of all times together, a single number."""
        times, event = jnp.asarray(value), jnp.ones_like(self.eta)
        event = event if self.observed is None else jnp.where(self.observed > 0, event, 0.0)
        if self.mask is not None:  # to leave before the first event is to be at risk at none
            times, event = jnp.where(self.mask, times, -1.0), jnp.where(self.mask, event, 0.0)
        order = jnp.argsort(-times)  # who is at risk comes before
        time, eta, event = times[order], self.eta[order], event[order]
        place = jnp.arange(time.size)
        last = jnp.searchsorted(-time, -time, side="right") - 1  # of the rows with the same time
        at_risk = jax.lax.cumlogsumexp(eta)[last]
        total = lambda values: jax.ops.segment_sum(values, last, num_segments=time.size)[last]  # noqa: E731
        tied, share = total(event), total(event * jnp.exp(eta - at_risk))
        before = jnp.cumsum(event) - event
        first = jax.ops.segment_min(place, last, num_segments=time.size)[last]
        rank = before - before[first]
        taken = rank / jnp.maximum(tied, 1.0) * share
        return jnp.sum(event * (eta - at_risk - jnp.log1p(-taken)))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Refused, as there is no law of times.

        Raises
        ------
        FormulaError
            Always.
        """
        raise FormulaError(NO_TIMES)

    def given(self, seen: RowProcess, value: Array) -> RowProcess:
        """Refused as :meth:`sample`."""
        raise FormulaError(NO_TIMES)

    @property
    def marginals(self) -> dist.Distribution:
        """Refused as :meth:`sample`."""
        raise FormulaError(NO_TIMES)


def no_times(law: Any) -> Any:
    """Refuses expected times."""
    raise FormulaError(NO_TIMES)
