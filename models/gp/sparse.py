"""Gaussian process regression for many rows: the function is known through its values at a few inducing inputs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.typing import ArrayLike

from fedbayes.models.gp.conditioned import Conditioned
from fedbayes.models.gp.kernels import as_rows, check_positive
from fedbayes.models.gp.normal import Process
from fedbayes.numerics.gaussian import LOG_2PI

JITTER = 1e-6  # of the mean diagonal of K_mm; it lowers the bound by about 1e-2 nats for 1,500 rows


class SparseGaussianProcess(Process):
    """The sparse variational approximation of :class:`~fedbayes.models.gp.GaussianProcess` (Titsias 2009).

    Its log density is a lower bound of the exact marginal likelihood,

        log N(y; m, Q + noise I) - 1/2 sum_i (k_ii - q_ii) / noise_i,    Q = K_nm K_mm^-1 K_mn,

    with the m inducing inputs of ``K_mm``: n m^2 operations in place of n^3 / 3. The bound is tight where the function
    between the inducing inputs is known from its values there; at ``inducing = x`` it is exact.

    Parameters
    ----------
    kernel, x, noise, mean
        As for :class:`~fedbayes.models.gp.GaussianProcess`; ``noise`` must be positive.
    inducing
        Inputs, shape ``(m,)`` or ``(m, d)``, such as a grid a length scale wide, or some of the client's own rows.
    jitter
        What is added to the diagonal of ``K_mm``, relative to its mean. It lowers the bound a little; with much less,
        close inducing inputs leave the gradient to rounding.
    """

    pytree_data_fields = ("kernel", "x", "noise", "inducing", "center", "real")
    pytree_aux_fields = ("jitter",)
    needs_noise = True

    def __init__(
        self,
        kernel: Any,
        x: ArrayLike,
        noise: ArrayLike,
        inducing: ArrayLike,
        mean: ArrayLike = 0.0,
        *,
        jitter: float = JITTER,
        real: Array | None = None,
    ) -> None:
        check_positive("noise", noise)
        self.inducing, self.jitter = as_rows(inducing), jitter
        super().__init__(kernel, x, noise, mean, real)

    def of_rows(self, mask: Array) -> "SparseGaussianProcess":
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        given = self.kernel, self.x, self.noise, self.inducing, self.center
        return SparseGaussianProcess(*given, jitter=self.jitter, real=self.also_of(mask))

    @property
    def jitter_variance(self) -> Array:
        """What is added to the variance of the function at the inducing inputs."""
        return self.jitter * jnp.mean(self.kernel(self.inducing))

    @property
    def among(self) -> Array:
        """``K_mm``, shape ``(m, m)``."""
        return self.kernel(self.inducing, self.inducing) + self.jitter_variance * jnp.eye(len(self.inducing))

    @property
    def features(self) -> Array:
        """``L^-1 K_mn`` with ``L L' = K_mm``, shape ``(m, n)``: the function's weights have unit variance."""
        return solve_triangular(jnp.linalg.cholesky(self.among), self.kernel(self.inducing, self.x), lower=True)

    def _scaled(self, matrix: Array) -> Array:
        """Rows in units of their noise; zero where they are masked out."""
        kept = matrix if self.real is None else jnp.where(self.real, matrix, 0.0)  # first: the gradient of NaN is NaN
        return kept / jnp.sqrt(self.noise)

    def log_prob(self, value: ArrayLike) -> Array:
        """The lower bound of the log marginal likelihood of the outcomes, shape ``(n,)``.

        It is differentiated through the Cholesky factors: closed forms in the inverse of ``K_mm`` would multiply
        rounding by its condition number, which is large where inducing inputs are close.
        """
        rest, scaled = self._scaled(jnp.asarray(value) - self.center), self._scaled(self.features)
        factor = jnp.linalg.cholesky(jnp.eye(len(scaled)) + scaled @ scaled.T)
        explained = solve_triangular(factor, scaled @ rest, lower=True)
        real = jnp.ones(self.event_shape, bool) if self.real is None else self.real
        quadratic = rest @ rest - explained @ explained
        log_dets = 2.0 * jnp.sum(jnp.log(jnp.diag(factor))) + jnp.sum(jnp.where(real, jnp.log(self.noise), 0.0))
        unexplained = jnp.sum(jnp.where(real, self.kernel(self.x) / self.noise, 0.0)) - jnp.sum(scaled**2)
        return -0.5 * (quadratic + log_dets + real.sum() * LOG_2PI + unexplained)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of the outcomes, shape ``sample_shape + (n,)``; the function between inducing inputs varies by row."""
        ours, noise = jax.random.split(key)
        features = self.features
        weights = jax.random.normal(ours, (*sample_shape, len(features)), self.x.dtype)
        rest = jnp.maximum(self.kernel(self.x) - jnp.sum(features**2, axis=0), 0.0) + self.noise
        own = jax.random.normal(noise, sample_shape + self.event_shape, self.x.dtype)
        return self.center + weights @ features + jnp.sqrt(rest) * own

    def given(self, seen: Any, value: Array) -> Conditioned:
        """The outcomes of these rows given others (Titsias 2009, equation 6)."""
        self.check_same_law(seen)
        scaled, rest = seen._scaled(seen.features), seen._scaled(jnp.asarray(value) - seen.center)
        factor = jnp.linalg.cholesky(jnp.eye(len(scaled)) + scaled @ scaled.T)
        weights = cho_solve((factor, True), scaled @ rest)
        here = SparseGaussianProcess(self.kernel, self.x, self.noise, seen.inducing, self.center, jitter=self.jitter)
        features = here.features
        remaining = solve_triangular(factor, features, lower=True)
        return Conditioned(here, self.center + features.T @ weights, features, remaining)
