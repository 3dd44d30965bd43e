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
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.arrow import Arrow, Places, find_arrow
from fedbayes.inference.local.density.conditional import Conditional, find_singles
from fedbayes.numerics.batches import in_batches
from fedbayes.numerics.gaussian import symmetrised
from fedbayes.problem.client import Client

_CACHE = 8  # so many times smaller parts than memory would allow fit into a processor's cache
_FLAT = 1e-8  # least curvature of a single local
_FAR, _NEAR = 30, 4  # most steps to the locals' mode at the first globals, and from its prediction at all others


@partial(jax.tree_util.register_dataclass, data_fields=["client", "theta", "there", "slope"], meta_fields=["nodes"])
@dataclass(frozen=True)
class Integrated:
    """A factor, see :class:`~fedbayes.inference.local.density.tilted.Factor`, whose locals are the others ``w`` alone.

    Attributes
    ----------
    client
        Whose it is.
    theta, there
        Globals near those that are asked for, and the Laplace approximation of all locals there.
    slope
        How its mode moves with the globals.
    nodes
        Of the quadrature.
    """

    client: Client
    theta: Float[Array, " d"]
    there: Arrow
    slope: Float[Array, "m d"]
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
        return cls(client, theta, found, slope, nodes)

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
        start = self.there.mode + self.slope @ (theta - self.theta)
        places, jacobian = places_of(self.client), self.client.jacobian
        return find_arrow(self.client.given(theta), start, places, max_steps=_NEAR, jacobian=jacobian)

    def conditional_of_others(self, theta: Float[Array, " d"]) -> Conditional:
        """The same of the other locals alone."""
        return self.of_others(self.conditional(theta))

    def of_others(self, found: Arrow) -> Conditional:
        """The part of a Laplace approximation of all locals that is about the others."""
        return Conditional(found.mode[self.client.others], found.white[None])

    def curvature(self, position: Float[Array, " p"]) -> Float[Array, "p p"]:
        """Minus the Hessian of the log factor, the single locals put at their mode instead of integrated out.

        It takes two derivatives of the client's own factor, where the Hessian of the integral takes three.
        """
        size = len(self.theta)
        singles, others = places_of(self.client)
        kept = np.concatenate([np.arange(size), size + others])
        everywhere = self.everywhere(position)
        gradient = jax.grad(self.client.log_factor)
        alone = jnp.zeros_like(everywhere).at[size + singles].set(1.0)
        if self.jacobian is jax.jacrev:
            own = jax.grad(lambda at: gradient(at) @ alone)(everywhere)
            columns = jax.jacrev(lambda at: gradient(at)[kept])(everywhere).T
        else:
            own = jax.jvp(gradient, (everywhere,), (alone,))[1]
            columns = self.jacobian(lambda at: gradient(everywhere.at[kept].set(at)))(everywhere[kept])
        cross = columns[size + singles]
        diagonal = jnp.minimum(own[size + singles], -_FLAT)
        return symmetrised(cross.T @ (cross / diagonal[:, None]) - columns[kept])

    def everywhere(self, position: Float[Array, " p"]) -> Float[Array, " all"]:
        """The client's joint position of globals and all locals, the single ones where their mode is expected."""
        theta, w = position[: len(self.theta)], position[len(self.theta) :]
        return jnp.concatenate([theta, places_of(self.client).joined(self._expected(theta, w), w)])

    def _expected(self, theta: Array, w: Array) -> Array:
        """Where the mode of the single locals is expected."""
        singles, others = places_of(self.client)
        mode = self.there.mode + self.slope @ (theta - self.theta)
        return mode[singles] + self.there.across @ (w - mode[others])

    def _of_singles(self, theta: Array, w: Array) -> Callable[[Array], Array]:
        given, places = self.client.given(theta), places_of(self.client)
        return lambda v: given(places.joined(v, w))


def places_of(client: Client) -> Places:
    """Which of the client's locals are the single ones."""
    return Places(client.single_places, client.others)
