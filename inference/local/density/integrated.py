"""A client's factor with its single locals integrated out, as a function of the globals and the few other locals.

A client with hundreds of groups of a few rows has a local for each, independent of each other given the globals and the
few locals that all rows share. One Gaussian of them all would need a matrix of locals by locals, and weights of draws
from it would vary the more the more groups there are. Integrated out by
:mod:`~fedbayes.inference.local.density.quadrature` they leave a factor of few dimensions and no noise, which is
explored as that of a client without them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.arrow import Arrow, Places, find_arrow
from fedbayes.inference.local.density.conditional import Conditional, find_singles
from fedbayes.numerics.batches import in_batches
from fedbayes.problem.client import Client

_CACHE = 8  # so many times smaller parts than memory would allow fit into a processor's cache
_FAR, _NEAR = 30, 4  # most steps to the locals' mode at the first globals, and from its prediction at all others


@partial(
    jax.tree_util.register_dataclass, data_fields=["client", "theta", "mode", "slope", "across"], meta_fields=["nodes"]
)
@dataclass(frozen=True)
class Integrated:
    """A factor, see :class:`~fedbayes.inference.local.density.tilted.Factor`, whose locals are the others ``w`` alone.

    Attributes
    ----------
    client
        Whose it is.
    theta, mode
        Globals near those that are asked for, and the mode of all locals there.
    slope, across
        How the mode moves with the globals, and that of the single locals with the others.
    nodes
        Of the quadrature.
    """

    client: Client
    theta: Float[Array, " d"]
    mode: Float[Array, " m"]
    slope: Float[Array, "m d"]
    across: Float[Array, "n o"]
    nodes: int = quadrature.NODES

    @classmethod
    def around(
        cls, client: Client, theta: Float[Array, " d"], start: Float[Array, " m"], *, nodes: int = quadrature.NODES
    ) -> "Integrated":
        """The factor for globals near ``theta``, with a search for the locals' mode there from ``start``."""
        places, log_density = places_of(client), client.given(theta)

        def of_singles(v: Array) -> Array:
            return log_density(places.joined(v, start[places.others]))

        # far from the mode each single local takes steps of its own length
        singles, _, _ = find_singles(of_singles, start[places.singles], jacobian=client.jacobian)
        begin = places.joined(singles, start[places.others])
        found = find_arrow(log_density, begin, places, max_steps=_FAR, jacobian=client.jacobian)
        if client.jacobian is jax.jacrev:
            score = jax.grad(lambda one, z: client.given(one)(z))
            cross = jax.jacrev(score, argnums=1)(theta, found.mode).T
        else:
            cross = jax.jacfwd(lambda one: jax.grad(client.given(one))(found.mode))(theta)
        slope = jax.vmap(partial(found.solve, places=places), 1, 1)(cross)
        return cls(client, theta, found.mode, slope, found.across, nodes)

    @property
    def num_locals(self) -> int:
        """Number of the other locals."""
        return len(self.client.others)

    @property
    def jacobian(self) -> Callable:
        """See :class:`~fedbayes.inference.local.density.tilted.Factor`."""
        return self.client.jacobian

    @property
    def groups(self) -> np.ndarray:
        """All other locals in one group."""
        return np.arange(self.num_locals)[None]

    @property
    def at_once(self) -> int:
        """Points that are computed side by side."""
        return max(1, self.client.at_once(self.nodes) // _CACHE)

    def at_many(self, function: Callable[[Any], Any], points: Any) -> Any:
        """``function`` of each row of ``points``, side by side, as many as fit into memory."""
        return in_batches(function, points, self.at_once)

    def log_factor(self, position: Float[Array, " p"]) -> Float[Array, ""]:
        """Log factor at the joint position of globals and other locals."""
        size = len(self.theta)
        return self.given(position[:size])(position[size:])

    def given(self, theta: Float[Array, " d"]) -> Callable[[Array], Array]:
        """The log factor as a function of the other locals, at the globals."""
        return lambda w: self.log_integral(theta, w)[0]

    def log_integral(
        self, theta: Float[Array, " d"], w: Float[Array, " o"]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, ""]]:
        """The log factor, less that by half of the nodes, and whether all single locals' modes were found."""
        known = self.reference(theta, w)
        value, halved = quadrature.log_integral(self._of_singles(theta, w), known)
        return value, halved, known.found

    def reference(self, theta: Float[Array, " d"], w: Float[Array, " o"]) -> quadrature.Reference:
        """What quadrature needs of the single locals' densities.

        The integral does not depend on where its nodes are, so that they stay while it is differentiated.
        """
        held = jax.tree.map(jax.lax.stop_gradient, (theta, w))
        start = self._expected(*held)
        centre, scale, found = find_singles(self._of_singles(*held), start, jacobian=self.client.jacobian)
        centre, scale = jax.lax.stop_gradient((centre, scale))
        known = quadrature.reference_at(self._of_singles(theta, w), centre, scale, nodes=self.nodes)
        return known._replace(found=found)

    def conditional(self, theta: Float[Array, " d"]) -> Arrow:
        """The Laplace approximation of all locals given the globals."""
        start = self.mode + self.slope @ (theta - self.theta)
        places, jacobian = places_of(self.client), self.client.jacobian
        return find_arrow(self.client.given(theta), start, places, max_steps=_NEAR, jacobian=jacobian)

    def conditional_of_others(self, theta: Float[Array, " d"]) -> Conditional:
        """The same of the other locals alone."""
        found = self.conditional(theta)
        return Conditional(found.mode[self.client.others], found.white[None])

    def joined(self, theta: Float[Array, " d"], w: Float[Array, " o"]) -> Float[Array, " m"]:
        """All locals, the single ones where their mode is expected."""
        return places_of(self.client).joined(self._expected(theta, w), w)

    def _expected(self, theta: Array, w: Array) -> Array:
        """Where the mode of the single locals is expected."""
        singles, others = places_of(self.client)
        mode = self.mode + self.slope @ (theta - self.theta)
        return mode[singles] + self.across @ (w - mode[others])

    def _of_singles(self, theta: Array, w: Array) -> Callable[[Array], Array]:
        given, places = self.client.given(theta), places_of(self.client)
        return lambda v: given(places.joined(v, w))


def places_of(client: Client) -> Places:
    """Which of the client's locals are the single ones."""
    return Places(client.single_places, client.others)
