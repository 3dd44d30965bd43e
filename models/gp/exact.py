"""Gaussian process regression, exact: the outcomes' law with the function integrated out."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import ArrayLike

from fedbayes.errors import ModelError
from fedbayes.models.gp.algebra import log_normal_density
from fedbayes.models.gp.conditioned import Conditioned
from fedbayes.models.gp.kernels import as_rows, check_positive
from fedbayes.models.gp.normal import Process
from fedbayes.numerics.gaussian import LOG_2PI

JITTER = 1e-9  # of the covariance's mean diagonal
MAX_ROWS = 10_000
_GIB = 2.0**30


class GaussianProcess(Process):
    """Outcomes ``y_i = m(x_i) + f(x_i) + e_i``, ``f ~ GP(0, kernel)``, ``e_i ~ N(0, noise)``: ``f`` is integrated out.

    The log density is the marginal likelihood (Rasmussen and Williams 2006, equation 2.30),

        -1/2 [ (y - m)' C^-1 (y - m) + log |C| + n log 2 pi ],    C = kernel(x, x) + noise I,

    by a Cholesky factor of ``C``: n^3 / 3 operations.

    Parameters
    ----------
    kernel
        One of this module's, or any object that is called like them.
    x
        Inputs, shape ``(n,)`` or ``(n, d)``.
    noise
        VARIANCE of the noise, in squared units of the outcome; one number, or one for each row.
    mean
        ``m(x)``: one number, or one for each row.
    jitter
        What is added to the diagonal for the Cholesky factor's sake, relative to the diagonal's mean. It counts as
        noise: ``law.jitter_variance`` is its size.
    max_rows
        More rows than this are refused.

    Raises
    ------
    ModelError
        More than ``max_rows`` rows.
    ValueError
        ``noise`` is known and negative.
    """

    pytree_data_fields = ("kernel", "x", "noise", "center", "real")
    pytree_aux_fields = ("jitter", "max_rows")

    def __init__(
        self,
        kernel: Any,
        x: ArrayLike,
        noise: ArrayLike,
        mean: ArrayLike = 0.0,
        *,
        jitter: float = JITTER,
        max_rows: int = MAX_ROWS,
        real: Array | None = None,
    ) -> None:
        num = as_rows(x).shape[0]
        check_positive("noise", noise, zero=True)
        if num > max_rows:
            raise ModelError(
                f"A Gaussian process of {num:,} rows needs the Cholesky factor of a matrix of {8 * num**2 / _GIB:.3g} "
                f"GiB, {num**3 / 3e9:,.0f} billion operations for each density; more than {max_rows:,} rows are "
                "refused. Write `fedbayes.models.gp.SparseGaussianProcess(kernel, x, noise, inducing=...)`, or raise "
                "`max_rows`."
            )
        self.jitter, self.max_rows = jitter, max_rows
        super().__init__(kernel, x, noise, mean, real)

    def of_rows(self, mask: Array) -> "GaussianProcess":
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        given = self.kernel, self.x, self.noise, self.center
        return GaussianProcess(*given, jitter=self.jitter, max_rows=self.max_rows, real=self.also_of(mask))

    @property
    def jitter_variance(self) -> Array:
        """What is added to the noise's variance for the Cholesky factor's sake."""
        return self.jitter * jnp.mean(self.kernel(self.x) + self.noise)

    @property
    def covariance(self) -> Array:
        """``C``, shape ``(n, n)``; rows that are masked out are independent of the others, with unit variance."""
        covariance = self.kernel(self.x, self.x) + jnp.diag(self.noise + self.jitter_variance)
        if self.real is None:
            return covariance
        return jnp.where(self.real[:, None] & self.real, covariance, jnp.eye(len(self.real)))

    @property
    def factor(self) -> Array:
        """Lower Cholesky factor of ``C``, shape ``(n, n)``."""
        return jnp.linalg.cholesky(self.covariance)

    def log_prob(self, value: ArrayLike) -> Array:
        """The log marginal likelihood of the outcomes, shape ``(n,)``."""
        density = log_normal_density(self.covariance, self._rest(value))
        return density if self.real is None else density + 0.5 * LOG_2PI * jnp.sum(~self.real)

    def _rest(self, value: ArrayLike) -> Array:
        rest = jnp.asarray(value) - self.center
        return rest if self.real is None else jnp.where(self.real, rest, 0.0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of the outcomes, shape ``sample_shape + (n,)``."""
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.x.dtype)
        return self.center + noise @ self.factor.T

    def given(self, seen: Any, value: Array) -> Conditioned:
        """The outcomes of these rows given others (Rasmussen and Williams 2006, equations 2.23 and 2.24).

        mean        m + K' C^-1 (y - m),         K = kernel(x_seen, x)
        covariance  kernel(x, x) - K' C^-1 K + noise I
        """
        self.check_same_law(seen)
        factor = seen.factor
        cross = seen.kernel(seen.x, self.x)
        if seen.real is not None:
            cross = jnp.where(seen.real[:, None], cross, 0.0)
        white = solve_triangular(factor, cross, lower=True)
        mean = self.center + cross.T @ cho_solve((factor, True), seen._rest(value))
        return Conditioned(self, mean, white)

    def defects(self, value: Array) -> Mapping[str, Array]:
        """Variances that are not positive, and equal inputs with different outcomes where there is no noise."""
        order = jnp.lexsort((value, *self.x.T))
        inputs, outcomes = self.x[order], jnp.asarray(value)[order]
        clash = jnp.all(inputs[1:] == inputs[:-1], axis=-1) & (outcomes[1:] != outcomes[:-1])
        return {
            "has no noise, but equal inputs with different outcomes. Give the noise a prior, or average the outcomes "
            "of equal inputs": jnp.any(clash) & jnp.any(self.noise == 0.0),
            **super().defects(value),
        }
