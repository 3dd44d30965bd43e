"""Gaussian factors in natural parameters: the algebra that federated posteriors are made of.

A factor ``exp(shift' x - x' precision x / 2 + log_scale)`` need not be normalisable: a client's site may be improper.
Products add natural parameters, quotients subtract them, and neither needs a normalising constant (Lemma 16 of Yue
2023).

All linear algebra of compiled rounds goes through :func:`whitener` and :func:`eigenvectors`, written in plain array
operations: two independent batched LAPACK calls in one CPU program can deadlock in JAX 0.10 (DESIGN.md, "Traps"), and
one batched elimination is also faster for the many small matrices that federated inference needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float, Key

LOG_2PI = 1.8378770664093453
LARGE = 16  # rows of a matrix from which LAPACK, one matrix after the other, is faster than many eliminations at once


def whitener(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Lower-triangular ``W`` with ``W @ matrix @ W.T = I``, the inverse Cholesky factor.

    Everything needed of a positive definite matrix follows from it: the inverse is ``W.T @ W``, the log determinant
    ``-2 sum(log diag W)``, and ``mean + W.T @ noise`` draws from the Gaussian whose precision is ``matrix``.

    Parameters
    ----------
    matrix
        Symmetric.

    Returns
    -------
    Array
        Not finite where ``matrix`` is not positive definite, so that the check costs nothing more.
    """
    size = matrix.shape[-1]
    if size == 0:
        return matrix
    rows = jnp.arange(size)

    def eliminate(j: Array, block: Array) -> Array:
        # Gaussian elimination of [A | I]: A becomes L', and I becomes L^-1
        pivot = jnp.sqrt(block[j, j])
        row = block[j] / pivot
        column = jnp.where(rows > j, block[:, j] / pivot, 0.0)
        return (block - column[:, None] * row[None, :]).at[j].set(row)

    block = jnp.concatenate([matrix, jnp.eye(size, dtype=matrix.dtype)], axis=1)
    return jnp.tril(jax.lax.fori_loop(0, size, eliminate, block)[:, size:])


@jax.custom_batching.sequential_vmap
def large_whitener(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """:func:`whitener` by LAPACK, for matrices of 16 rows and more; without derivatives.

    Many matrices are worked one by one: batches of LAPACK calls side by side can deadlock on the CPU (DESIGN.md,
    "Traps"), and from this size on they would gain nothing. For 1,024 matrices of 38 rows it takes a quarter of the
    time.
    """
    factor = jnp.linalg.cholesky(matrix)
    return solve_triangular(factor, jnp.eye(len(factor), dtype=factor.dtype), lower=True)


def whitener_for(size: int) -> Callable[[Array], Array]:
    """The faster of the two for matrices of this size, where nobody differentiates it."""
    return large_whitener if size >= LARGE else whitener


def eigenvectors(matrix: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Eigenvalues, in no order, and eigenvectors, in columns, by Jacobi's rotations.

    Jacobi's method disturbs small eigenvalues of a positive semidefinite matrix less than other methods do (Demmel and
    Veselic 1992). This matters where a direction with eigenvalue zero must stay apart from one with a small eigenvalue.

    Parameters
    ----------
    matrix
        Symmetric.
    """
    size = matrix.shape[-1]
    half = (size + 1) // 2
    if half == 0:
        return jnp.zeros(0, matrix.dtype), matrix
    # as in a tournament: two rows of players change places so that in 2 half - 1 steps each meets every other one
    players = np.arange(2 * half).reshape(2, half)
    (first, *top), bottom = players[0], players[1]
    order = np.array([first, *([bottom[0], *top[:-1], *bottom[1:], top[-1]] if top else bottom)])

    def rotate(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        block, vectors = carry
        diagonal, off = jnp.diagonal(block), 2.0 * jnp.diagonal(block[:half, half:])
        gap = diagonal[half:] - diagonal[:half]
        away = jnp.abs(gap) + jnp.hypot(gap, off)
        tangent = jnp.where(off == 0.0, 0.0, jnp.where(gap < 0.0, -off, off) / jnp.where(off == 0.0, 1.0, away))
        cosine = 1.0 / jnp.sqrt(1.0 + tangent**2)[:, None]
        sine = cosine * tangent[:, None]

        def turned(rows: Array) -> Array:
            one, two = rows[:half], rows[half:]
            return jnp.concatenate([cosine * one - sine * two, sine * one + cosine * two])[order]

        return turned(turned(block).T).T, turned(vectors)

    padded = jnp.zeros((2 * half, 2 * half), matrix.dtype).at[:size, :size].set(matrix)
    start = padded, jnp.eye(2 * half, dtype=matrix.dtype)
    sweeps = 5 + size.bit_length()  # convergence is quadratic at the end; a sweep ends in the order it began with
    block, vectors = jax.lax.fori_loop(0, sweeps * (2 * half - 1), rotate, start)
    return jnp.diagonal(block)[:size], vectors[:size, :size].T


def log_det(white: Float[Array, "d d"]) -> Float[Array, ""]:
    """Log determinant of the matrix whose :func:`whitener` is ``white``."""
    return -2.0 * jnp.sum(jnp.log(jnp.diagonal(white)))


def symmetrised(matrix: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    """The symmetric part: antisymmetric round-off would grow by ``1 - eta K`` each round of EP."""
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """An unnormalised Gaussian factor ``exp(shift' x - x' precision x / 2 + log_scale)``.

    Attributes
    ----------
    shift
        Information vector ``r = precision @ mean``.
    precision
        Symmetric; indefinite for an improper site.
    log_scale
        Log of the factor's value at zero: what the evidence needs, and nothing else.

    See Also
    --------
    EP : Its sites are of this kind.
    Laplace : Its expansions are of this kind.

    Examples
    --------
    >>> import numpy as np, fedbayes as fb
    >>> one = fb.Gaussian(np.array([2.0]), np.array([[4.0]]), np.array(0.0))  # mean 0.5, variance 0.25
    >>> mean, covariance = (one + one).moments()
    >>> round(float(mean[0]), 3), round(float(covariance[0, 0]), 3)
    (0.5, 0.125)
    """

    shift: Float[Array, "*batch d"]
    precision: Float[Array, "*batch d d"]
    log_scale: Float[Array, "*batch"]

    @classmethod
    def neutral(cls, size: int, batch: tuple[int, ...] = ()) -> "Gaussian":
        """The constant factor 1, neutral in products."""
        return cls(jnp.zeros((*batch, size)), jnp.zeros((*batch, size, size)), jnp.zeros(batch))

    def __add__(self, other: "Gaussian") -> "Gaussian":
        """Product of the densities."""
        return jax.tree.map(jnp.add, self, other)

    def __sub__(self, other: "Gaussian") -> "Gaussian":
        """Quotient of the densities."""
        return jax.tree.map(jnp.subtract, self, other)

    def scaled(self, factor: Array | float) -> "Gaussian":
        """The factor raised to a power."""
        return jax.tree.map(lambda leaf: factor * leaf, self)

    def summed(self) -> "Gaussian":
        """Product over the leading axis."""
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), self)

    def symmetrised(self) -> "Gaussian":
        """The same factor with an exactly symmetric precision."""
        return Gaussian(self.shift, symmetrised(self.precision), self.log_scale)

    @property
    def size(self) -> int:
        """Dimension d."""
        return self.shift.shape[-1]

    def log_value(self, position: Float[Array, " {self.size}"]) -> Float[Array, ""]:
        """Log of the factor at ``position``."""
        return self.log_scale + self.shift @ position - 0.5 * position @ self.precision @ position

    def moments(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean and covariance; not finite for an improper factor."""
        white = whitener(self.precision)
        covariance = white.T @ white
        return covariance @ self.shift, covariance

    def log_integral(self) -> Float[Array, ""]:
        """Log of the integral over R^d; not finite for an improper factor."""
        white = whitener(self.precision)
        half = white @ self.shift
        return self.log_scale + 0.5 * (half @ half - log_det(white) + self.size * LOG_2PI)

    def is_proper(self) -> Bool[Array, ""]:
        """Whether the precision is positive definite."""
        return jnp.all(jnp.isfinite(whitener(self.precision))) & jnp.all(jnp.isfinite(self.shift))

    def normalised(self) -> "Gaussian":
        """The probability density proportional to the factor."""
        unscaled = Gaussian(self.shift, self.precision, jnp.zeros_like(self.log_scale))
        return Gaussian(self.shift, self.precision, -unscaled.log_integral())  # whatever the scale, known or not

    def sample(self, key: Key[Array, ""], num: int) -> Float[Array, "{num} {self.size}"]:
        """Independent draws."""
        white = whitener(self.precision)
        mean = white.T @ (white @ self.shift)
        return mean + jax.random.normal(key, (num, self.size), dtype=mean.dtype) @ white


STRUCTURE = Gaussian(0.0, 0.0, 0.0)  # type: ignore[arg-type]  # its structure alone is meant


def packed(gaussian: Gaussian) -> Gaussian:
    """The same factor with its precision as a triangle, shape ``(..., d (d + 1) / 2)``: what travels."""
    rows, columns = np.tril_indices(gaussian.size)
    return Gaussian(gaussian.shift, gaussian.precision[..., rows, columns], gaussian.log_scale)


def unpacked(gaussian: Gaussian) -> Gaussian:
    """The factor whose precision came as a triangle."""
    size = gaussian.size
    places = np.zeros((size, size), int)
    rows, columns = np.tril_indices(size)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return Gaussian(gaussian.shift, gaussian.precision[..., places], gaussian.log_scale)


def gaussian_from_moments(mean: Float[Array, " d"], covariance: Float[Array, "d d"]) -> Gaussian:
    """The normalised Gaussian with the given mean and covariance."""
    white = whitener(covariance)
    precision = white.T @ white
    shift = precision @ mean
    scale = -0.5 * (mean @ shift + log_det(white) + mean.shape[-1] * LOG_2PI)
    return Gaussian(shift, precision, scale)


def where(condition: Bool[Array, "..."], new: Gaussian, old: Gaussian) -> Gaussian:
    """``new`` where ``condition``, whose shape leads that of the factors, else ``old``."""

    def choose(one: Array, other: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (one.ndim - condition.ndim)), one, other)

    return jax.tree.map(choose, new, old)
