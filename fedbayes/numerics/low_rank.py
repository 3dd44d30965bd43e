"""Gaussians whose precision is the identity minus a matrix of low rank, for dimensions too large for a matrix.

Clients that estimate their covariance from l draws by shrinkage to the identity have such precisions, and so has the
product of K of them, of rank K l at most. Everything below is Woodbury's identity: with ``B`` the basis, ``G = B B'``
its r x r Gram matrix and ``p`` any power,

    (I - B' B)^p = I + B' h(G) B,    h(x) = ((1 - x)^p - 1) / x.

The functions of ``G`` come from its eigenvalues by LAPACK, not from :func:`fedbayes.numerics.gaussian.whitener`: they
can be kept from falling to zero by round-off (:func:`spectrum`), where elimination would break down. This runs at the
edge, once and on a single matrix, where LAPACK cannot deadlock (DESIGN.md, "Traps"); don't map it over a batch inside
a compiled round.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Key

from fedbayes.numerics.gaussian import LOG_2PI


def deflated(basis: Float[Array, "r d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """``(I - basis' basis) vector`` in ``O(r d)``."""
    with jax.default_matmul_precision("highest"):  # a GPU's default float32 products keep few digits
        return vector - (basis @ vector) @ basis


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRankGaussian:
    """The law of ``theta = center + stretch * u``, where ``u`` has precision ``scale (I - basis' basis)``.

    Attributes
    ----------
    mean
        Of ``u``.
    basis
        Its singular values are below one; not necessarily of rank r.
    scale
        Positive.
    center, stretch
        Of the map to ``theta``, shapes ``(d,)`` or ``()``; no ``stretch`` is zero.
    """

    mean: Float[Array, " d"]
    basis: Float[Array, "r d"]
    scale: Float[Array, ""]
    center: Float[Array, " d"] | Float[Array, ""]
    stretch: Float[Array, " d"] | Float[Array, ""]

    @classmethod
    def product(
        cls,
        basis: Float[Array, "k l d"],
        rho: Float[Array, " k"] | Float[Array, ""],
        mean: Float[Array, "k d"],
        weight: Float[Array, " k"],
        center: Array | float = 0.0,
        stretch: Array | float = 1.0,
    ) -> "LowRankGaussian":
        """The product of clients' Gaussians, each raised to the power of its weight, in ``O((K l)^2 d)``.

        Its precision is ``sum_k weight_k P_k`` with ``P_k = (I - basis_k' basis_k) / rho_k``, its mean solves
        ``precision @ mean = sum_k weight_k P_k mean_k``; both are exact. As a convex combination of the
        ``basis_k' basis_k``, whose eigenvalues are below one, the product's has its eigenvalues below one.

        Parameters
        ----------
        basis
            The clients' bases; rows of zeros are harmless.
        rho
            Reciprocals of the clients' scales.
        mean
            The clients' means of ``u``.
        weight
            Positive, sum to one.
        center, stretch
            Of the map to ``theta``, the same for all clients.
        """
        share = weight / rho
        scale = jnp.sum(share)
        root = jnp.sqrt(share / scale)
        # Start at the weighted mean of the clients' means: where they agree it is the solution already. The rest is
        # -(I - B' B)^-1 B' pull = -B' (I - G)^-1 pull.
        middle = (share / scale) @ mean
        pull = root[:, None] * jnp.einsum("kld,kd->kl", basis, mean - middle)
        joined = (root[:, None, None] * basis).reshape(-1, mean.shape[-1])
        left, vectors = spectrum(joined)
        moved = middle - (vectors @ ((pull.reshape(-1) @ vectors) / left)) @ joined
        return cls(moved, joined, scale, jnp.asarray(center, mean.dtype), jnp.asarray(stretch, mean.dtype))

    @property
    def size(self) -> int:
        """Dimension d."""
        return self.mean.shape[-1]

    def is_proper(self) -> Bool[Array, ""]:
        """Whether its numbers are finite and its scale positive: false for a product over no clients."""
        fine = [jnp.all(jnp.isfinite(leaf)) for leaf in (self.mean, self.basis, self.center, self.stretch)]
        return jnp.all(jnp.stack(fine)) & (self.scale > 0.0)

    def log_value(self, theta: Float[Array, " {self.size}"]) -> Float[Array, ""]:
        """Normalised log density at ``theta``."""
        gap = (theta - self.center) / self.stretch - self.mean
        left, _ = spectrum(self.basis)
        log_det = self.size * jnp.log(self.scale) + jnp.sum(jnp.log(left))
        log_stretch = jnp.sum(jnp.log(jnp.abs(jnp.broadcast_to(self.stretch, gap.shape))))
        square = self.scale * gap @ deflated(self.basis, gap)
        return 0.5 * (log_det - square - self.size * LOG_2PI) - log_stretch

    def mean_of_globals(self) -> Float[Array, " {self.size}"]:
        """Mean of ``theta``."""
        return self.center + self.stretch * self.mean

    def variances(self) -> Float[Array, " {self.size}"]:
        """Marginal variances of ``theta``, in ``O(r^2 d)``."""
        left, vectors = spectrum(self.basis)
        return self.stretch**2 * (1.0 + (1.0 / left) @ (vectors.T @ self.basis) ** 2) / self.scale

    def covariance(self) -> Float[Array, "{self.size} {self.size}"]:
        """Covariance of ``theta``: a dense matrix, and so for small d only."""
        left, vectors = spectrum(self.basis)
        axes = vectors.T @ self.basis * self.stretch
        own = jnp.diag(jnp.broadcast_to(self.stretch**2, self.mean.shape))
        return (own + (axes / left[:, None]).T @ axes) / self.scale

    def moments(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean and dense covariance of ``theta``, as :meth:`fedbayes.Gaussian.moments`."""
        return self.mean_of_globals(), self.covariance()

    def sample(self, key: Key[Array, ""], num: int) -> Float[Array, "{num} {self.size}"]:
        """Independent draws of ``theta``, in ``O(r (num + r) d)``."""
        left, vectors = spectrum(self.basis)
        axes = vectors.T @ self.basis
        noise = jax.random.normal(key, (num, self.size), dtype=self.mean.dtype)
        # p = -1/2 of the identity above; h(x) written so that x = 0 is no special case
        root = jnp.sqrt(left)
        noise = noise + ((noise @ axes.T) / (root * (1.0 + root))) @ axes
        return self.center + self.stretch * (self.mean + noise / jnp.sqrt(self.scale))


def spectrum(basis: Float[Array, "r d"]) -> tuple[Float[Array, " r"], Float[Array, "r r"]]:
    """Eigenvalues of ``I - basis @ basis.T``, those of the precision, and the eigenvectors.

    Below ``r`` times the machine epsilon an eigenvalue is round-off, of either sign, and the variance along it is more
    than the numbers can tell. Such an eigenvalue is raised to that level, so that a Gaussian that is proper by
    construction stays so; all others are left as they are.
    """
    values, vectors = jnp.linalg.eigh(basis @ basis.T)
    floor = len(basis) * jnp.finfo(values.dtype).eps
    return jnp.maximum(1.0 - values, floor), vectors
