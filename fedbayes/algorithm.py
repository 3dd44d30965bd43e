"""The contract: what a federated algorithm is.

A round: the server broadcasts, every active client runs one pure function on its own data, messages come back and are
combined, the server moves. One value holds both halves, client and server. The library owns the loop: no algorithm
iterates over clients, and none knows where it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.gaussian import Gaussian
from fedbayes.low_rank import LowRankGaussian
from fedbayes.problem.clients import Client

if TYPE_CHECKING:
    from fedbayes.problem.problem import Problem
    from fedbayes.rounds.loop import Progressing

ServerState = Any
ClientState = Any
Shared = Any
Personal = Any
Message = Any
Info = dict[str, Array]
LocalUpdate = Callable[[Shared, Personal, ClientState, Client, Array], tuple[Message, ClientState, Info]]


class FederatedAlgorithm(NamedTuple):
    """Both halves of a federated algorithm as pure functions.

    Attributes
    ----------
    name
        For progress and reports.
    init
        ``(key, previous) -> state``; ``previous`` is the final state of the phase before, or ``None``.
    init_client
        ``(client, shared, key) -> client_state``: private, never leaves the client; ``shared`` is the first broadcast.
    broadcast
        ``(state) -> (shared, personal)``: the same for all, and a part addressed to each client (leading axis of
        clients).
    local_updates
        Named variants of ``(shared, personal, client_state, client, key) -> (message, client_state, info)``: one
        client, pure, jit- and vmap-able. ``info["code"]`` is a :class:`~fedbayes.errors.ResultCode`. The first is used
        unless ``choose`` says otherwise.
    choose
        ``(variants, infos) -> variants``: the variant of each client for the next round, from what clients and server
        reported.
    aggregate
        ``(state, messages, used, key) -> (state, info)``; ``info["converged"]`` may stop the loop. With
        ``reduction="stack"`` messages have a leading axis of clients and ``used``, shape ``(K,)``, says whose message
        counts; with ``"sum"`` they are summed over the used clients, and ``used`` is their number.
    posterior
        ``(state) -> Gaussian`` over the unconstrained globals; ``None`` for a sampler, or where a later phase finds it.
    reduction
        ``"sum"`` wherever the mathematics allows it: then vmap-sum, psum, streaming sums and secure aggregation are the
        same thing.
    draw
        For a sampler, ``(state) -> (d,)``: the chain's position in the unconstrained globals.
    private_draw
        For a sampler, ``(shared, client_state) -> (m,)``: the client's own part of the draw, which stays with it.
    participants
        ``(state) -> (K,)`` booleans: the clients that this round needs; ``None``: all.
    sample
        ``(state, key, num) -> (num, d)``: draws of a posterior merged from the clients' own, which need not be
        Gaussian; fewer where no more are stored.
    """

    name: str
    init: Callable[[Array, ServerState | None], ServerState]
    init_client: Callable[[Client, Shared, Array], ClientState]
    broadcast: Callable[[ServerState], tuple[Shared, Personal]]
    local_updates: Mapping[str, LocalUpdate]
    choose: Callable[[Sequence[str], Mapping[str, np.ndarray]], list[str]]
    aggregate: Callable[[ServerState, Message, Array, Array], tuple[ServerState, Info]]
    posterior: Callable[[ServerState], Gaussian | LowRankGaussian] | None
    reduction: Literal["sum", "stack"]
    draw: Callable[[ServerState], Array] | None = None
    private_draw: Callable[[Shared, ClientState], Array] | None = None
    participants: Callable[[ServerState], Array] | None = None
    sample: Callable[[ServerState, Array, int], Array] | None = None


def same_variants(variants: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
    """``choose`` of an algorithm whose clients stay with their local updates."""
    return list(variants)


class Method(Protocol):
    """A configured method, such as ``fedbayes.EP(damping=0.5)``: builds its algorithm for a problem."""

    @property
    def num_replicates(self) -> int:
        """Independent runs of the whole fit, which become the chains of the posterior."""
        ...

    @property
    def needs_rows(self) -> bool:
        """Whether single rows of the clients' data are asked for, as by mini-batches."""
        ...

    def phases(self, problem: "Problem") -> list["Phase"]:
        """The algorithms to run one after the other, each starting from the last state of the one before."""
        ...


class Sampling(NamedTuple):
    """How a sampler's rounds become draws.

    Attributes
    ----------
    num_warmup
        Draws to throw away.
    temperature
        The draws follow the posterior to the power of its inverse.
    stride
        ``(state) -> rounds`` between two draws.
    check
        ``(progressing, problem)``: raises where the chains can't start, or have diverged.
    report
        ``(state) -> numbers``: what the sampler has chosen, and what theory predicts of it.
    """

    num_warmup: int
    temperature: float
    stride: Callable[[ServerState], int]
    check: Callable[["Progressing", "Problem"], None]
    report: Callable[[ServerState], dict[str, float]]


class Phase(NamedTuple):
    """One algorithm of a fit with its budget of rounds; a sampler says how its rounds become draws.

    Attributes
    ----------
    main
        Whether the user's number of rounds is this phase's; what comes before prepares it, what comes after concludes.
    once
        Whether all replicates share one run of it.
    """

    algorithm: FederatedAlgorithm
    max_rounds: int
    full_participation: bool
    sampling: Sampling | None = None
    main: bool = True
    once: bool = False


def phases_of(method: Method, problem: "Problem") -> list[Phase]:
    """The method's phases, replicated but for those run once for all."""
    return [
        phase._replace(algorithm=replicated(phase.algorithm, 1 if phase.once else method.num_replicates))
        for phase in method.phases(problem)
    ]


def replicated(algorithm: FederatedAlgorithm, num: int) -> FederatedAlgorithm:
    """``num`` independent runs of an algorithm as one: every state and message gets a leading axis of replicates.

    Their spread is the Monte Carlo error of the answer.
    """

    def keys(key: Array) -> Array:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(num))

    def replicate(update: LocalUpdate) -> LocalUpdate:
        batched = jax.vmap(update, in_axes=(0, 0, 0, None, 0))
        return lambda shared, personal, state, client, key: batched(shared, personal, state, client, keys(key))

    def init(key: Array, previous: ServerState | None) -> ServerState:
        # a phase that was not replicated starts all the replicates of the next
        return jax.vmap(algorithm.init)(keys(key), jax.tree.map(lambda leaf: _repeated(leaf, num), previous))

    return algorithm._replace(
        init=init,
        init_client=lambda client, shared, key: jax.vmap(algorithm.init_client, (None, 0, 0))(
            client, shared, keys(key)
        ),
        broadcast=jax.vmap(algorithm.broadcast, out_axes=(0, 1)),
        local_updates={name: replicate(update) for name, update in algorithm.local_updates.items()},
        aggregate=lambda state, messages, used, key: jax.vmap(
            algorithm.aggregate, (0, *((1, 1) if algorithm.reduction == "stack" else (0, 0)), 0)
        )(state, messages, used, keys(key)),
        posterior=_batched(algorithm.posterior),
        draw=_batched(algorithm.draw),
        private_draw=_batched(algorithm.private_draw),
        participants=_anybody(algorithm.participants),
        sample=_sampled(algorithm.sample),
    )


def _repeated(leaf: Array, num: int) -> Array:
    return jnp.repeat(leaf, num // leaf.shape[0], axis=0)


def _sampled(sample: Callable[[ServerState, Array, int], Array] | None) -> Callable | None:
    """Keys get a leading axis of replicates too."""
    return None if sample is None else lambda state, keys, num: jax.vmap(lambda s, k: sample(s, k, num))(state, keys)


def _batched(function: Callable | None) -> Callable | None:
    return None if function is None else jax.vmap(function)


def _anybody(participants: Callable[[ServerState], Array] | None) -> Callable[[ServerState], Array] | None:
    """A client is needed where any replicate needs it."""
    return None if participants is None else lambda state: jnp.any(jax.vmap(participants)(state), axis=0)
