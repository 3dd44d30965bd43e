"""Separate modes of a posterior, as the server's state has them."""

from typing import NamedTuple

from jax import Array


class Modes(NamedTuple):
    """Laplace approximations at the ends of several searches, leading axis of searches.

    Attributes
    ----------
    mean, precision
        Shapes ``(search, d)`` and ``(search, d, d)``.
    log_integral
        Of the approximation with the posterior's unnormalised density at its mean, shape ``(search,)``; NaN of a search
        that has come to no mode.
    """

    mean: Array
    precision: Array
    log_integral: Array
