"""Second derivatives along a direction, whichever way a program can be differentiated."""

from collections.abc import Callable

import jax
from jax import Array
from jaxtyping import Float


def slope_along(
    gradient: Callable[[Array], Array],
    at: Float[Array, " n"],
    direction: Float[Array, " n"],
    jacobian: Callable = jax.jacfwd,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """A gradient ``g(x)``, and its derivative along a direction, ``H(x) v``.

    Parameters
    ----------
    gradient
        Of a function of ``x``.
    at, direction
        ``x`` and ``v``.
    jacobian
        How the gradient is differentiated, see :attr:`fedbayes.problem.program.program.Program.jacobian`: backwards
        where it is ``jax.jacrev``, else forwards.
    """
    if jacobian is jax.jacrev:
        return gradient(at), jax.grad(lambda x: gradient(x) @ direction)(at)
    return jax.jvp(gradient, (at,), (direction,))
