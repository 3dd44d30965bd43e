"""Federated posterior averaging, FedPA (Al-Shedivat, Gillenwater, Xing and Rostamizadeh, ICLR 2021), with a posterior.

Client k draws l samples of its subposterior ``f_k(theta) p(theta)^(1/K)`` in the federation's shared coordinates ``u``,
and sends

    delta_k = Sigma_k^-1 (u - mean_k),     Sigma_k = rho_l I + (1 - rho_l) p_k S_k,     rho_l = 1 / (1 + (l - 1) rho)

with weights ``p_k`` and ``S_k`` the samples' covariance (:mod:`fedbayes.inference.fedpa.shrinkage`; there are other
estimates to choose from). The server takes a step of an optimiser along ``sum p_k delta_k / sum p_k``, the gradient of
the Gaussian product's energy. With one sample ``Sigma_k = I`` and the round is FedAvg's.

A last round sends the clients' precisions; their sum, with the prior counted once, is a Gaussian posterior, where the
algorithm of the paper ends with a mode (:mod:`fedbayes.inference.merging.merge`). It is exact for Gaussian clients with
exact moments. With the shrinkage covariance of few samples it has the identity's precision, over ``rho_l``, wherever
the samples have not been: for networks far too narrow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Info, Phase
from fedbayes.errors import ResultCode, usable
from fedbayes.inference.coordinates import shared_coordinates
from fedbayes.inference.fald.plan import largest_curvature
from fedbayes.inference.fedpa import options as fedpa_checks
from fedbayes.inference.fedpa import sketch
from fedbayes.inference.fedpa.clients import Clients, LocalDelta, Private, Shared, make_clients
from fedbayes.inference.merging import merge
from fedbayes.inference.merging.check import checked
from fedbayes.inference.merging.options import check_subposteriors
from fedbayes.inference.mode import ModeState, federated_mode
from fedbayes.inference.options import client_weights
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem

_STEP = 0.2  # of the client's gradient steps by default, over the largest curvature


class FedPAState(NamedTuple):
    """The server's state.

    Attributes
    ----------
    shared
        What the clients are told: position, coordinates and step size.
    optimizer
        The optimiser's own state.
    change
        By how much the last round moved the server, in shared coordinates (root mean square).
    """

    shared: Shared
    optimizer: Any
    change: Array


class DeltaMessage(NamedTuple):
    """A client's delta, shape ``(d,)``, times its weight, and the weight: sums make weighted means."""

    delta: Array
    weight: Array


@dataclass(frozen=True, kw_only=True)
class FedPA:
    """Federated posterior averaging.

    Parameters
    ----------
    num_samples
        Samples l of a client and round; ``None``: enough for a dense precision, or 20 for ``"iasg"`` and ``"sgld"``.
        With one sample the method is FedAvg.
    sampler
        ``"auto"``: draws of the whole subposterior by importance sampling, by NUTS where its weights are heavy-tailed;
        ``"importance"`` and ``"nuts"``: one of them; ``"laplace"``: mode and curvature, exact for Gaussian clients;
        ``"iasg"``: averages of stochastic gradient steps from the server's position, the paper's; ``"sgld"``:
        stochastic gradient Langevin steps from there.
    covariance
        ``"score"`` (by regression of the score: exact for Gaussian clients), ``"sample"`` (inverse of the sample
        covariance, corrected for its bias) or ``"shrinkage"`` (the paper's). ``None``: the score where draws have one,
        else shrinkage. Too few samples for a dense precision: shrinkage, with a warning.
    shrinkage
        ``rho`` of the shrinkage covariance: the larger, the more weight the samples get. With 20 samples the identity
        keeps 84 percent at 0.01, which is near FedAvg and stable, and 34 percent at 0.1.
    server_optimizer
        An optax optimiser, which takes the mean delta for a gradient; ``None``: ``optax.sgd(1.0)``, with which Gaussian
        clients converge in one round of dense coordinates. Without whitening steps of one may diverge.
    fedavg_rounds
        Rounds of FedAvg first: the same steps with one sample, as in the paper.
    local_steps, burn_in
        Gradient steps of ``"iasg"`` and ``"sgld"`` in a round, and those thrown away; the rest makes l windows.
    step_size
        Of these steps, in the shared coordinates; ``None``: 0.2 over the clients' largest curvature at the mode.
    batch_size
        Rows per gradient, drawn without replacement; ``None``: all, which leaves ``"iasg"`` without noise.
    weights
        ``"rows"``: ``p_k = n_k / n``; ``"equal"``; or one number per client name, summing to one. They scale the
        identity that covariances shrink to and weigh FedAvg's mean; the posterior stays.
    preconditioner
        Shared coordinates: ``"dense"`` or ``"diagonal"`` whiten by the curvature at the federated mode. ``"none"``:
        parameters times the square root of the number of rows, in which gradients are those of the mean loss.
    init
        ``"mode"``: the federated mode (Newton rounds first); ``"zero"``; or arrays by global site, in unconstrained
        space, as networks need.
    tolerance
        The rounds end when one moves the server by less, in shared coordinates (root mean square).
    max_rounds
        Limit of the rounds.
    check
        Add the round that measures the error of the merge; left out above 512 globals.
    num_replicates
        Independent runs, which become the chains of the posterior.
    """

    num_samples: int | None = None
    sampler: Literal["auto", "importance", "nuts", "laplace", "iasg", "sgld"] = "auto"
    covariance: Literal["score", "sample", "shrinkage"] | None = None
    shrinkage: float = 0.01
    server_optimizer: optax.GradientTransformation | None = None
    fedavg_rounds: int = 0
    local_steps: int = 220
    burn_in: int = 20
    step_size: float | None = None
    batch_size: int | None = None
    weights: str | Mapping[str, float] = "rows"
    preconditioner: Literal["dense", "diagonal", "none"] = "dense"
    init: str | Mapping[str, Any] = "mode"
    tolerance: float = 0.02
    max_rounds: int = 30
    check: bool = True
    num_replicates: int = 4

    def __post_init__(self) -> None:
        fedpa_checks.check_options(self)

    def samples_for(self, size: int) -> int:
        """Samples l per client and round for d globals."""
        if self.num_samples is not None:
            return self.num_samples
        return 20 if self.sampler in fedpa_checks.STEPPING else max(1024, 1 << (8 * (size + 1) - 1).bit_length())

    @property
    def needs_rows(self) -> bool:
        """Whether gradients are taken of batches."""
        return self.batch_size is not None

    def phases(self, problem: Problem) -> list[Phase]:
        """Newton rounds to the mode where asked for, FedAvg, FedPA, the merge and its check."""
        weights = client_weights(self.weights, problem)
        fedpa_checks.check_problem(self, problem)
        check_subposteriors(problem)
        clients = make_clients(self, problem, weights)
        start = partial(_start, self, problem, weights)
        phases = []
        if self.init == "mode":
            phases.append(Phase(federated_mode(problem, num_draws=64, tolerance=1e-3), 50, True, main=False, once=True))
        if self.fedavg_rounds:
            fedavg = _rounds(self, problem, weights, clients.averages, clients, start, "FedAvg")
            phases.append(Phase(fedavg, self.fedavg_rounds, False, main=False))
        rounds = _rounds(self, problem, weights, clients.deltas, clients, start, "FedPA")
        phases.append(Phase(rounds, self.max_rounds, False))
        return [*phases, *_conclusion(self, problem, weights, clients, start)]


def _conclusion(
    config: FedPA, problem: Problem, weights: np.ndarray, clients: Clients, start: Callable[[Any], FedPAState]
) -> list[Phase]:
    """The round that merges, and its check; above so many globals precisions are sent as factors."""
    if problem.globals.size > fedpa_checks.DENSE_LIMIT:

        def last(previous: Any) -> tuple[Shared, Array]:
            state = start(previous)
            return state.shared, state.change

        sketching = sketch.sketching(problem, weights, clients, last, config.tolerance)
        return [Phase(sketching, 1, True, main=False)]
    algorithm = merge.merging(
        problem,
        np.full(len(weights), 1.0 / len(weights)),
        clients.summaries,
        name="merge",
        combine=merge.gaussian_product,
        num_draws=0,
        init_shared=lambda previous: start(previous).shared,
        init_client=clients.init,
        anchor=lambda shared: shared.coordinates.globals_at(shared.position),
        retry=clients.retry,
    )
    return [Phase(algorithm, 2, True, main=False), *checked(problem, algorithm, config.check)]


def _start(config: FedPA, problem: Problem, weights: np.ndarray, previous: Any) -> FedPAState:
    """The state in which a phase begins: the last one's, the federated mode's, or the user's."""
    if isinstance(previous, FedPAState):
        return previous
    size = problem.globals.size
    mode = previous if isinstance(previous, ModeState) else None
    coordinates = shared_coordinates(mode, size, config.preconditioner, str(config.init))
    if config.preconditioner == "none":  # gradients are then those of the mean loss
        coordinates = coordinates._replace(white=coordinates.white / np.sqrt(problem.num_rows().sum()))
    if isinstance(config.init, Mapping):
        coordinates = coordinates._replace(center=jnp.asarray(fedpa_checks.given_start(config.init, problem)))
    step_size = jnp.full((), jnp.nan) if config.step_size is None else jnp.asarray(config.step_size, jnp.float64)
    if mode is not None and config.step_size is None:
        step_size = _STEP / largest_curvature(mode, coordinates, jnp.asarray(weights))
    position = jnp.zeros(size)
    return FedPAState(
        Shared(position, coordinates, step_size), server_optimizer(config).init(position), jnp.full((), jnp.inf)
    )


def server_optimizer(config: FedPA) -> optax.GradientTransformation:
    """The server's optimiser."""
    return optax.sgd(1.0) if config.server_optimizer is None else config.server_optimizer


def _rounds(
    config: FedPA,
    problem: Problem,
    weights: np.ndarray,
    deltas: Mapping[str, LocalDelta],
    clients: Clients,
    start: Callable[[Any], FedPAState],
    name: str,
) -> FederatedAlgorithm:
    """Rounds in which the server descends along the clients' mean delta."""
    num_clients, optimizer = len(problem.names), server_optimizer(config)

    def local_update(
        delta: LocalDelta, shared: Shared, personal: Array, private: Private, client: Client, key: Array
    ) -> tuple[DeltaMessage, Private, Info]:
        found, after = delta(shared, private, client, key)
        fine = jnp.all(jnp.isfinite(found.delta)) & jnp.all(jnp.isfinite(found.mean))
        code = jnp.where(found.reliable, ResultCode.OK, ResultCode.UNRELIABLE)
        weight = jnp.asarray(weights)[client.index]
        after = jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, private)
        info = {
            "code": jnp.where(fine, code, ResultCode.NOT_FINITE),
            "k_hat": found.k_hat,
            "drift": jnp.sqrt(jnp.mean((found.mean - shared.position) ** 2)),
        }
        return DeltaMessage(weight * found.delta, weight), after, info

    def aggregate(state: FedPAState, total: DeltaMessage, used: Array, key: Array) -> tuple[FedPAState, Info]:
        old = state.shared.position
        somebody = total.weight > 0
        delta = total.delta / jnp.where(somebody, total.weight, 1.0)
        moves, after = optimizer.update(delta, state.optimizer, old)
        position = jnp.where(somebody, old + moves, old)
        change = jnp.where(somebody, jnp.sqrt(jnp.mean((position - old) ** 2)), jnp.inf)
        kept = jax.tree.map(lambda new, before: jnp.where(somebody, new, before), after, state.optimizer)
        info = {"change": change, "converged": change <= config.tolerance}
        if old.shape[0] <= fedpa_checks.DENSE_LIMIT:
            info["server"] = state.shared.coordinates.globals_at(position)
        return FedPAState(state.shared._replace(position=position), kept, change), info

    def choose(variants: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
        chosen = merge.retry_unreliable(clients.retry, variants, infos)
        heard = usable(infos["code"]).reshape(num_clients, -1).all(axis=1)
        if "kept" not in deltas:
            return chosen
        return ["kept" if ok and new == old else new for new, old, ok in zip(chosen, variants, heard, strict=True)]

    return FederatedAlgorithm(
        name=name,
        init=lambda key, previous: start(previous),
        init_client=clients.init,
        broadcast=lambda state: (state.shared, jnp.zeros((num_clients, 0))),
        local_updates={label: partial(local_update, delta) for label, delta in deltas.items()},
        choose=choose,
        aggregate=aggregate,
        posterior=None,
        reduction="sum",
    )
