"""Linear regression with normal errors, its coefficients integrated out."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from fedbayes.errors import ModelError
from fedbayes.models.penalised.standardised import log_evidence, whitener_of_coefficients
from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.problem.program.row_process import RowProcess


class NormalRegression(RowProcess):
    """Outcomes ``y = X theta + e``, their coefficients ``theta_j ~ N(center_j, scale_j^2)`` integrated out.

    The errors are ``e_i ~ N(0, noise^2)``, so that the log density is that of ``N(X center, noise^2 I + X diag(scale^2)
    X')``. It costs ``d^3`` whatever the number of rows, which enter by ``X'X``. Rows depend on each other through the
    coefficients. Posteriors of a client contain draws of these under ``name``, from their law given the outcomes,

        theta | y ~ N(center + S e, S M S),   M = (I + S X'X S / noise^2)^-1,   e = M S X'(y - X center) / noise^2.

    So a model with many coefficients keeps few latents, for any prior that makes the coefficients normal given their
    scales.

    Parameters
    ----------
    x
        Predictors, shape ``(n, d)``.
    scale
        Prior standard deviations of the coefficients, scalar or shape ``(d,)``, positive.
    noise
        Standard deviation of the errors, a positive scalar, in units of ``y``.
    center
        Prior means of the coefficients, scalar or shape ``(d,)``.
    name
        What the coefficients are called in posteriors.
    intercept
        Whether the last column of ``x`` is that of an intercept, whose coefficient is called ``intercept``.

    Raises
    ------
    fedbayes.errors.ModelError
        ``x`` is no matrix, or ``noise`` no single number.
    """

    arg_constraints: Mapping[str, Any] = {}
    rows_by_rows = False
    pytree_data_fields = ("x", "scale", "noise", "center", "real")
    pytree_aux_fields = ("name", "intercept")

    def __init__(
        self,
        x: ArrayLike,
        scale: ArrayLike,
        noise: ArrayLike,
        center: ArrayLike = 0.0,
        *,
        name: str = "theta",
        intercept: bool = False,
        real: Array | None = None,
    ) -> None:
        self.x, self.name, self.intercept, self.real = jnp.asarray(x), name, intercept, real
        if self.x.ndim != 2:
            raise ModelError(f"`x` has shape {self.x.shape}; a regression needs rows and columns, (n, d).")
        self.noise = jnp.asarray(noise)
        if self.noise.ndim:
            raise ModelError(
                f"`noise` has shape {self.noise.shape}; a regression has one standard deviation of errors."
            )
        width = self.x.shape[1:]
        self.scale, self.center = jnp.broadcast_to(scale, width), jnp.broadcast_to(center, width)
        super().__init__(batch_shape=(), event_shape=self.x.shape[:1], validate_args=False)

    def of_rows(self, mask: Array) -> "NormalRegression":
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        both = mask if self.real is None else self.real & mask
        given = self.x, self.scale, self.noise, self.center
        return NormalRegression(*given, name=self.name, intercept=self.intercept, real=both)

    def _summaries(self, value: Array) -> tuple[Array, Array, Array]:
        """``X'X``, ``X'r / noise`` and ``r'r / noise^2`` of the rows that count, ``r = y - X center``."""
        rest = (value - self.x @ self.center) / self.noise
        x = self.x
        if self.real is not None:
            rest, x = jnp.where(self.real, rest, 0.0), jnp.where(self.real[:, None], x, 0.0)
        return x.T @ x, x.T @ rest, rest @ rest

    @property
    def _log_scale(self) -> Array:
        return jnp.log(self.scale) - jnp.log(self.noise)

    def log_prob(self, value: Array) -> Array:
        """Of all outcomes together, shape ``()``."""
        gram, projected, squares = self._summaries(value)
        num = self.x.shape[0] if self.real is None else jnp.sum(self.real)
        return (
            log_evidence(self._log_scale, gram, projected) - 0.5 * squares - num * (jnp.log(self.noise) + 0.5 * LOG_2PI)
        )

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Outcomes, shape ``(*sample_shape, n)``, each with coefficients of its own."""
        one, two = jax.random.split(key)
        theta = self.center + self.scale * jax.random.normal(one, sample_shape + self.scale.shape, self.x.dtype)
        return theta @ self.x.T + self.noise * jax.random.normal(two, sample_shape + self.event_shape, self.x.dtype)

    @property
    def marginals(self) -> dist.Normal:
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        variance = jnp.sum((self.x * self.scale) ** 2, axis=1) + self.noise**2
        return dist.Normal(self.x @ self.center, jnp.sqrt(variance))

    @property
    def integrated_names(self) -> tuple[str, ...]:
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        return (self.name, "intercept") if self.intercept else (self.name,)

    def integrated(self, value: Array, key: Array) -> dict[str, Array]:
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`: the coefficients, and the intercept."""
        mean, factor = self.coefficients(value)
        drawn = mean + factor @ jax.random.normal(key, mean.shape, mean.dtype)
        return {self.name: drawn[:-1], "intercept": drawn[-1]} if self.intercept else {self.name: drawn}

    def coefficients(self, value: Array) -> tuple[Array, Array]:
        """Mean ``(d,)`` of the coefficients given the outcomes, and a factor ``(d, d)`` of their covariance."""
        gram, projected, _ = self._summaries(value)
        white = whitener_of_coefficients(self._log_scale, gram)
        factor = self.scale[:, None] * white.T
        return self.center + factor @ (white @ (self.scale / self.noise * projected)), factor

    def given(self, seen: Any, value: Array) -> "KnownRegression":
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        mean, factor = seen.coefficients(value)
        return KnownRegression(self.x, mean, factor, self.noise)

    def defects(self, value: Array) -> Mapping[str, Array]:
        """Scales that are not positive."""
        return {
            "has a scale or a noise that is not positive. Give it a prior on positive numbers, such as "
            "`dist.LogNormal(0.0, 1.0)`": jnp.any(~(self.scale > 0.0)) | ~(self.noise > 0.0),
        }

    def doubts(self, value: Array) -> Mapping[str, Array]:
        """Predictors that are the same in all rows."""
        x = self.x if self.real is None else jnp.where(self.real[:, None], self.x, self.x[jnp.argmax(self.real)])
        constant = jnp.all(x == x[0], axis=0)
        return {
            f"has the same value of predictor {j} in all its rows, and other clients do not: there its coefficient "
            "is part of an intercept, or left to the prior": flag
            for j, flag in enumerate(constant[:-1] if self.intercept else constant)
        }


class KnownRegression(RowProcess):
    """Outcomes of rows ``x`` where the coefficients are known as ``N(mean, factor factor')``.

    Parameters
    ----------
    x
        Predictors, shape ``(n, d)``.
    mean, factor
        Of the coefficients, shapes ``(d,)`` and ``(d, d)``.
    noise
        Standard deviation of the errors.
    """

    arg_constraints: Mapping[str, Any] = {}
    pytree_data_fields = ("x", "known", "factor", "noise")

    def __init__(self, x: Array, mean: Array, factor: Array, noise: Array) -> None:
        self.x, self.known, self.factor, self.noise = x, mean, factor, noise
        super().__init__(batch_shape=(), event_shape=x.shape[:1], validate_args=False)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Outcomes, shape ``(*sample_shape, n)``."""
        one, two = jax.random.split(key)
        theta = self.known + jax.random.normal(one, (*sample_shape, len(self.known))) @ self.factor.T
        return theta @ self.x.T + self.noise * jax.random.normal(two, sample_shape + self.event_shape)

    @property
    def marginals(self) -> dist.Normal:
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        variance = jnp.sum((self.x @ self.factor) ** 2, axis=1) + self.noise**2
        return dist.Normal(self.x @ self.known, jnp.sqrt(variance))

    def log_prob(self, value: Array) -> Array:
        """Of all outcomes together, shape ``()``."""
        spread = self.x @ self.factor
        covariance = spread @ spread.T + self.noise**2 * jnp.eye(len(spread))
        return dist.MultivariateNormal(self.x @ self.known, covariance).log_prob(value)
