"""What Gaussian processes have in common, exact or sparse, conditioned or not."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from fedbayes.models.gp.kernels import as_rows
from fedbayes.problem.program.row_process import RowProcess


class NormalRows(RowProcess):
    """Rows whose outcomes are jointly normal, with a ``mean`` and a ``variance`` each."""

    arg_constraints: Mapping[str, Any] = {}
    mean: Any
    variance: Any

    @property
    def marginals(self) -> dist.Normal:
        """See :class:`~fedbayes.problem.program.row_process.RowProcess`."""
        return dist.Normal(self.mean, jnp.sqrt(self.variance))


class Process(NormalRows):
    """A process before it is conditioned: ``y = m(x) + f(x) + e`` with the function's kernel and the noise's variance.

    Parameters
    ----------
    kernel, x, noise, mean
        As for :class:`~fedbayes.models.gp.GaussianProcess`.
    real
        Which rows count, shape ``(n,)``; ``None``: all.
    """

    needs_noise = False

    def __init__(self, kernel: Any, x: ArrayLike, noise: ArrayLike, mean: ArrayLike, real: Array | None) -> None:
        self.kernel, self.x, self.real = kernel, as_rows(x), real
        num = self.x.shape[0]
        self.noise = jnp.broadcast_to(jnp.asarray(noise, self.x.dtype), (num,))
        self.center = jnp.broadcast_to(jnp.asarray(mean, self.x.dtype), (num,))
        super().__init__(batch_shape=(), event_shape=(num,), validate_args=False)

    @property
    def mean(self) -> Array:
        """``m(x)``, shape ``(n,)``."""
        return self.center

    @property
    def variance(self) -> Array:
        """Of each outcome, shape ``(n,)``."""
        return self.kernel(self.x) + self.noise

    def also_of(self, mask: Array) -> Array:
        """The rows that count where those of ``mask`` alone may."""
        return mask if self.real is None else self.real & mask

    def check_same_law(self, seen: RowProcess) -> None:
        """Whether these rows can be conditioned on those of ``seen``.

        Raises
        ------
        TypeError
            They have another law.
        """
        if type(seen) is not type(self):
            raise TypeError(
                f"The rows seen have the law {type(seen).__name__}, and the new ones {type(self).__name__}."
            )

    def defects(self, value: Array) -> Mapping[str, Array]:
        """Variances that are not positive."""
        enough = self.noise > 0.0 if self.needs_noise else self.noise >= 0.0
        return {
            "has a kernel or a noise whose variance is not positive. Give it a prior on positive numbers, such as "
            "`dist.LogNormal(0.0, 1.0)`": jnp.any(~((self.kernel(self.x) > 0.0) & enough)),
        }
