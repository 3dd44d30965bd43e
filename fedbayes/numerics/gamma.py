"""The logarithm of the gamma function, by functions that are differentiated twice at the price of a logarithm.

JAX differentiates its own ``gammaln`` by polygamma functions, which are long series: a curvature takes many times as
long as one of these.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

_SHIFT = 8.0
_TERMS = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)  # B_2k / 2k (2k - 1)


def log_gamma(x: ArrayLike) -> Array:
    """``log Gamma(x)`` for ``x > 0``: Stirling's series at ``x + 8``, less ``log x (x + 1) ... (x + 7)``.

    The series ends with the eighth term; what is left out is below 1e-16 (Abramowitz and Stegun, 6.1.15 and 6.1.40).
    """
    z = jnp.asarray(x) + _SHIFT
    return (z - 0.5) * jnp.log(z) - z + 0.5 * jnp.log(2.0 * jnp.pi) + _rest(z) - _first_factors(x)


def log_rising(a: ArrayLike, n: ArrayLike) -> Array:
    """``log Gamma(a + n) - log Gamma(a)``, the logarithm of ``a (a + 1) ... (a + n - 1)``, for ``a > 0``, ``n >= 0``.

    With ``z = a + 8`` it is ``n log z + (z + n - 1/2) log(1 + n / z) - n`` and what is small: no difference of large
    numbers, so that it is right for any ``a``.
    """
    a, n = jnp.asarray(a), jnp.asarray(n)
    both = jnp.stack(jnp.broadcast_arrays(a + n, a))  # evaluated as one array: half as much to compile
    small = _rest(both + _SHIFT) - _first_factors(both)
    z = both[1] + _SHIFT
    return n * jnp.log(z) + (z + n - 0.5) * jnp.log1p(n / z) - n + small[0] - small[1]


def _rest(z: Array) -> Array:
    """What Stirling's series adds to its leading terms."""
    return _inverse_powers(_TERMS, 1, z)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _inverse_powers(terms: tuple[float, ...], power: int, z: Array) -> Array:
    """``terms[0] / z^p + terms[1] / z^(p + 2) + ...`` with ``p = power``: its derivatives are such sums, too."""
    square, found = 1.0 / (z * z), jnp.zeros_like(z)
    for term in reversed(terms):
        found = found * square + term
    return found * square ** (power // 2) / (z if power % 2 else 1.0)


@_inverse_powers.defjvp
def _slope(terms: tuple[float, ...], power: int, at: tuple[Array], along: tuple[Array]) -> tuple[Array, Array]:
    below = tuple(-(power + 2 * place) * term for place, term in enumerate(terms))
    return _inverse_powers(terms, power, *at), along[0] * _inverse_powers(below, power + 1, *at)


def _first_factors(x: ArrayLike) -> Array:
    """``log x (x + 1) ... (x + 7)``, whose factors are taken in pairs: ``x (x + 7)``, ``(x + 1)(x + 6)``, ...

    Four of them would overflow beyond the fourth root of the largest number, where eight factors more or less are lost
    in rounding.
    """
    x = jnp.asarray(x)
    x = jnp.minimum(x, 0.1 * jnp.finfo(x.dtype).max ** 0.25)
    pair = x * (x + 7.0)
    return jnp.log(pair * (pair + 6.0)) + jnp.log((pair + 10.0) * (pair + 12.0))
