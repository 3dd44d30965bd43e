"""How the clients differ at the federated mode: what the step is chosen by, from sums over them.

With ``H_c`` the Hessian and ``g_c`` the gradient of client c's energy at the mode, in the shared coordinates, that is

    S = sum p_c H_c^2,    r = sum p_c H_c g_c,    L = max_c lambda_max(H_c),    m = min_c lambda_min(H_c).

The search for the mode knows the sum of the Hessians alone. Where all clients take part, one round after it asks for
these, L and ``1 / m`` by :mod:`fedbayes.inference.largest`. What partial participation does depends on each client's
Hessian, so the search for the mode sees them one by one.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Phase, Replies, Reply, Update
from fedbayes.contract.answer import CLIENT, REPLICATE, Diagnostic
from fedbayes.errors import ResultCode
from fedbayes.inference.curvature import client_energies, client_energy, largest_eigenvalue, shared_coordinates
from fedbayes.inference.fald.options import Options
from fedbayes.inference.largest import hiding, largest_of, terms_of
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.steps.coordinates import Coordinates
from fedbayes.inference.mode import ModeState, expanded
from fedbayes.inference.mode import Own as AtMode
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

DIAGNOSTICS = {
    "curvature": Diagnostic(
        (CLIENT, REPLICATE), "largest curvature of the client's energy at the mode", "shared coordinates"
    )
}
_NUM_SAMPLES = 64  # of the locals, as in the search for the mode


class Differences(NamedTuple):
    """See the module.

    Attributes
    ----------
    square
        S, shape ``(d, d)``.
    pull
        r, shape ``(d,)``.
    smooth, convex
        L, which may be above the largest curvature by a percent or so, and m, which is zero where it is not positive.
    """

    square: Array
    pull: Array
    smooth: Array
    convex: Array


class Known(NamedTuple):
    """The server's state: the mode, the coordinates there, and what it knows of the clients."""

    mode: ModeState
    coordinates: Coordinates
    differences: Differences


class Terms(NamedTuple):
    """What one client adds to the sums.

    Attributes
    ----------
    square, pull
        ``p_c H_c^2`` and ``p_c H_c g_c``.
    largest, flattest
        Terms for ``lambda_max(H_c)`` and ``1 / lambda_min(H_c)``.
    concave
        Zero where ``lambda_min(H_c)`` is positive, else a random number of its own.
    """

    square: Array
    pull: Array
    largest: Array
    flattest: Array
    concave: Array


def known_of(config: Options, mode: ModeState, p: Array) -> Known:
    """From the clients' single expansions."""
    coordinates = shared_coordinates(mode, mode.best.shape[0], config.preconditioner, config.init)
    hessians, slopes = client_energies(mode, coordinates, p)
    largest, least = jax.vmap(_ends)(hessians)
    differences = Differences(
        square=jnp.einsum("c,cij,cjk->ik", p, hessians, hessians),
        pull=jnp.einsum("c,cij,cj->i", p, hessians, slopes),
        smooth=jnp.max(largest),
        convex=jnp.maximum(jnp.min(least), 0.0),
    )
    return Known(mode, coordinates, differences)


def differences_phase(config: Options, roster: Roster, weights: np.ndarray) -> Phase:
    """The round that asks for the sums; one serves all chains."""
    prior, size = roster.prior, roster.size

    def init(key: Array, mode: ModeState | None) -> Known:
        unknown, square = jnp.full((), jnp.nan), jnp.zeros((size, size))
        coordinates = shared_coordinates(mode, size, config.preconditioner, config.init)
        mode = _no_mode(roster) if mode is None else mode
        return Known(mode, coordinates, Differences(square, jnp.zeros(size), unknown, unknown))

    def aggregate(state: Known, replies: Replies, key: Array) -> tuple[Known, Info]:
        total: Terms = replies.total
        convex = jnp.where(total.concave > 0.0, 0.0, 1.0 / largest_of(total.flattest))
        found = Differences(total.square, total.pull, largest_of(total.largest), convex)
        return state._replace(differences=found), {"converged": jnp.array(True)}

    algorithm = Algorithm(
        name="curvature",
        init=init,
        broadcast=lambda state: ((state.mode.best, state.coordinates), ()),
        init_client=lambda client, shared, key: cold_start(client.num_locals),
        continue_client=_with_locals_as_before,
        updates={"differences": Update(partial(_terms, prior, jnp.asarray(weights)), _random)},
        aggregate=aggregate,
        asked_at=lambda shared: shared[0],
    )
    return Phase(algorithm=algorithm, max_rounds=1, full_participation=True, main=False, once=True)


def _with_locals_as_before(client: Client, shared: Any, key: Array, before: AtMode) -> Array:
    return before.z


def _random(key: Array, shared: Any, num_locals: int) -> tuple[Array, Array, Array]:
    one, two, three = jax.random.split(key, 3)
    return hiding(one, shared, num_locals), hiding(two, shared, num_locals), hiding(three, shared, num_locals)[0]


def _terms(
    prior: Prior,
    weights: Array,
    shared: tuple[Array, Coordinates],
    personal: tuple[()],
    z: Array,
    client: Client,
    random: tuple[Array, Array, Array],
) -> tuple[Reply, Array]:
    """A client's terms at the mode."""
    (mode, coordinates), p = shared, weights[client.index]
    reply, _ = expanded(client, mode, z, _NUM_SAMPLES)
    hessian, slope = client_energy(unpacked(reply.total.site), prior.tangent(mode), mode, coordinates, p)
    top, least = _ends(hessian)
    terms = Terms(
        square=p * hessian @ hessian,
        pull=p * hessian @ slope,
        largest=terms_of(top, random[0]),
        flattest=terms_of(jnp.where(least > 0.0, 1.0 / least, 0.0), random[1]),
        concave=jnp.where(least > 0.0, 0.0, random[2]),
    )
    code = jnp.where(jnp.isfinite(top) & jnp.isfinite(least), reply.code, ResultCode.NOT_FINITE)
    return Reply(total=terms, code=code, info={"curvature": top}), z


def _ends(hessian: Array) -> tuple[Array, Array]:
    """The largest and the smallest eigenvalue."""
    top = largest_eigenvalue(hessian)
    return top, top - largest_eigenvalue(top * jnp.eye(len(hessian)) - hessian)


def _no_mode(roster: Roster) -> ModeState:
    """Its shapes."""
    flat, zero, nobody = Gaussian.neutral(roster.size), jnp.zeros(()), jnp.zeros(roster.num_clients, bool)
    start = cold_start(roster.size)
    return ModeState(start, start, zero, flat, flat, (), (), nobody, zero, zero, zero, zero)
