"""Kernels of Gaussian processes: the few that most models need, with their sums and products.

A kernel is any object that gives a matrix when called with two sets of rows, ``kernel(x, other)`` of shape ``(n, m)``,
and its diagonal when called with one, ``kernel(x)`` of shape ``(n,)``. The kernels of tinygp are called the same way,
and can be used in place of these.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike


def as_rows(x: ArrayLike) -> Array:
    """Inputs with shape ``(n, d)``: those of shape ``(n,)`` are one column."""
    rows = jnp.asarray(x)
    return rows[:, None] if rows.ndim == 1 else rows


def check_positive(name: str, value: ArrayLike, *, zero: bool = False) -> None:
    """Refuse a parameter that is not positive, where it is known before the program is compiled.

    Raises
    ------
    ValueError
        It is not.
    """
    if isinstance(value, jax.core.Tracer):
        return
    array = np.asarray(value)
    if not np.all(np.isfinite(array) & ((array >= 0) if zero else (array > 0))):
        raise ValueError(
            f"`{name}` is {array.tolist()}; a kernel's parameters are positive. For a latent write a prior on positive "
            "numbers, such as `dist.LogNormal(0.0, 1.0)`."
        )


def _squared_distances(x: Array, other: Array, length_scale: ArrayLike) -> Array:
    """``sum_j ((x_j - other_j) / l_j)^2``, shape ``(n, m)``; exactly zero for equal rows."""
    x, other = 1.0 * x, 1.0 * other  # whole numbers would wrap around
    if jnp.ndim(length_scale) == 0:  # whose derivatives then are those of a number
        scale = 1.0 / length_scale
        return jnp.sum((x[:, None] - other[None]) ** 2, axis=-1) * scale * scale
    return jnp.sum((x[:, None] / length_scale - other[None] / length_scale) ** 2, axis=-1)


def _distances(x: Array, other: Array, length_scale: ArrayLike) -> Array:
    """Their roots, with a gradient of zero where rows are equal."""
    squared = _squared_distances(x, other, length_scale)
    apart = squared > 0.0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)


class Kernel:
    """A covariance function; ``+`` and ``*`` make sums and products."""

    def __call__(self, x: ArrayLike, other: ArrayLike | None = None) -> Array:
        """Covariances of the function at two sets of rows, ``(n, m)``; with one set its variances, ``(n,)``."""
        rows = as_rows(x)
        return self.diagonal(rows) if other is None else self.matrix(rows, as_rows(other))

    def matrix(self, x: Array, other: Array) -> Array:
        """Covariances at rows ``(n, d)`` and ``(m, d)``."""
        raise NotImplementedError

    def diagonal(self, x: Array) -> Array:
        """Variances at rows ``(n, d)``."""
        raise NotImplementedError

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


@partial(jax.tree_util.register_dataclass, data_fields=["left", "right"], meta_fields=[])
@dataclass(frozen=True)
class Sum(Kernel):
    """The kernel of a sum of two independent functions."""

    left: Any
    right: Any

    def matrix(self, x: Array, other: Array) -> Array:
        """See :class:`Kernel`."""
        return self.left(x, other) + self.right(x, other)

    def diagonal(self, x: Array) -> Array:
        """See :class:`Kernel`."""
        return self.left(x) + self.right(x)


@partial(jax.tree_util.register_dataclass, data_fields=["left", "right"], meta_fields=[])
@dataclass(frozen=True)
class Product(Kernel):
    """The product of two kernels."""

    left: Any
    right: Any

    def matrix(self, x: Array, other: Array) -> Array:
        """See :class:`Kernel`."""
        return self.left(x, other) * self.right(x, other)

    def diagonal(self, x: Array) -> Array:
        """See :class:`Kernel`."""
        return self.left(x) * self.right(x)


@dataclass(frozen=True)
class _Stationary(Kernel):
    """A kernel of scaled distances.

    Parameters
    ----------
    length_scale
        In units of the inputs; one number, or one for each of the ``d`` columns (automatic relevance determination).
    variance
        Of the function at each point, in squared units of the outcome: not its standard deviation.
    """

    length_scale: ArrayLike
    variance: ArrayLike = 1.0

    def __post_init__(self) -> None:
        if type(self.length_scale) is object:  # JAX takes pytrees apart with placeholders
            return
        check_positive("length_scale", self.length_scale)
        check_positive("variance", self.variance)

    def matrix(self, x: Array, other: Array) -> Array:
        """See :class:`Kernel`."""
        return jnp.asarray(self.variance) * self._correlation(x, other)

    def diagonal(self, x: Array) -> Array:
        """See :class:`Kernel`."""
        return jnp.broadcast_to(jnp.asarray(self.variance), x.shape[:1])

    def _correlation(self, x: Array, other: Array) -> Array:
        raise NotImplementedError


_stationary = partial(jax.tree_util.register_dataclass, data_fields=["length_scale", "variance"], meta_fields=[])


@_stationary
@dataclass(frozen=True)
class RBF(_Stationary):
    """``variance exp(-r^2 / 2)`` with ``r`` the distance in length scales: very smooth functions."""

    def _correlation(self, x: Array, other: Array) -> Array:
        return jnp.exp(-0.5 * _squared_distances(x, other, self.length_scale))


@_stationary
@dataclass(frozen=True)
class Matern12(_Stationary):
    """``variance exp(-r)``: continuous functions without a derivative (the Ornstein-Uhlenbeck process)."""

    def _correlation(self, x: Array, other: Array) -> Array:
        return jnp.exp(-_distances(x, other, self.length_scale))


@_stationary
@dataclass(frozen=True)
class Matern32(_Stationary):
    """``variance (1 + sqrt(3) r) exp(-sqrt(3) r)``: functions with one derivative."""

    def _correlation(self, x: Array, other: Array) -> Array:
        r = np.sqrt(3.0) * _distances(x, other, self.length_scale)
        return (1.0 + r) * jnp.exp(-r)


@_stationary
@dataclass(frozen=True)
class Matern52(_Stationary):
    """``variance (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)``: functions with two derivatives."""

    def _correlation(self, x: Array, other: Array) -> Array:
        r = np.sqrt(5.0) * _distances(x, other, self.length_scale)
        return (1.0 + r + r**2 / 3.0) * jnp.exp(-r)


@partial(jax.tree_util.register_dataclass, data_fields=["length_scale", "period", "variance"], meta_fields=[])
@dataclass(frozen=True)
class Periodic(Kernel):
    """``variance exp(-2 sum_j sin^2(pi (x_j - other_j) / period) / l_j^2)``: functions that repeat themselves.

    Parameters
    ----------
    length_scale
        Relative to the period's unit circle: one number, or one for each column.
    period
        In units of the inputs.
    variance
        Of the function at each point, in squared units of the outcome.
    """

    length_scale: ArrayLike
    period: ArrayLike
    variance: ArrayLike = 1.0

    def __post_init__(self) -> None:
        if type(self.length_scale) is object:
            return
        for name in ("length_scale", "period", "variance"):
            check_positive(name, getattr(self, name))

    def matrix(self, x: Array, other: Array) -> Array:
        """See :class:`Kernel`."""
        turned = jnp.sin(np.pi * (x[:, None] - other[None]) / self.period) / self.length_scale
        return jnp.asarray(self.variance) * jnp.exp(-2.0 * jnp.sum(turned**2, axis=-1))

    def diagonal(self, x: Array) -> Array:
        """See :class:`Kernel`."""
        return jnp.broadcast_to(jnp.asarray(self.variance), x.shape[:1])
