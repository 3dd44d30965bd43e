"""Federated posterior averaging, FedPA (Al-Shedivat, Gillenwater, Xing and Rostamizadeh, ICLR 2021), with a posterior.

Client k draws l samples of its subposterior ``f_k(theta) p(theta)^(1/K)`` in the federation's shared coordinates ``u``,
and sends

    delta_k = Sigma_k^-1 (u - mean_k),     Sigma_k = rho_l I + (1 - rho_l) p_k S_k,     rho_l = 1 / (1 + (l - 1) rho)

with weights ``p_k`` and ``S_k`` the samples' covariance (:mod:`fedbayes.inference.fedpa.shrinkage`; there are other
estimates to choose from). The server takes a step of an optimiser along ``sum p_k delta_k / sum p_k``, the gradient of
the Gaussian product's energy. With one sample ``Sigma_k = I`` and the round is FedAvg's.

A last round sends the clients' precisions; their sum, with the prior counted once, is a Gaussian posterior, where the
algorithm of the paper ends with a mode (:mod:`fedbayes.inference.merging.server`). It is exact for Gaussian clients
with exact moments. With the shrinkage covariance of few samples its precision is the identity's, over ``rho_l``, in all
directions that the samples do not span: for networks it is far too narrow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.inference.fedpa.answer import DIAGNOSTICS, merged_answer
from fedbayes.inference.fedpa.client import Clients, Shared
from fedbayes.inference.fedpa.drawing import drawing_clients
from fedbayes.inference.fedpa.low_rank_merge import low_rank_merging
from fedbayes.inference.fedpa.options import STEPPING, Options, check_roster
from fedbayes.inference.fedpa.server import FedPAState, descending, first_state
from fedbayes.inference.fedpa.stepping import stepping_clients
from fedbayes.inference.merging.answer import MergedAnswer
from fedbayes.inference.merging.check import check_phase
from fedbayes.inference.merging.combinations import COMBINATIONS
from fedbayes.inference.merging.estimators import check_subposteriors
from fedbayes.inference.merging.server import merging
from fedbayes.inference.mode import Needs, mode_phase
from fedbayes.inference.options import DENSE_LIMIT, client_weights
from fedbayes.problem.roster import Roster


@refused_names(covariance="estimator", num_chains="num_replicates")
@dataclass(frozen=True, kw_only=True)
class FedPA(Options, Method):
    """Federated posterior averaging.

    In a round each client k draws from its subposterior ``f_k p^(1/K)``, and the server takes an optimiser's step along
    the mean of ::

        delta_k = Sigma_k^-1 (u - mean_k),

    with the draws' mean and covariance (Al-Shedivat et al. 2021; the module has the shrinkage). The rounds end at the
    mode of the Gaussians' product; a last round merges the clients' precisions to a posterior, and a check measures its
    error. With ``estimator="score"`` it is exact where clients are linear-Gaussian.

    Parameters
    ----------
    num_samples
        Samples l of a client and round; ``None``: enough for a dense precision, or 20 for ``"iasg"`` and ``"sgld"``.
        With one sample the method is FedAvg.
    solver
        ``"auto"``: draws of the whole subposterior by importance sampling, by NUTS where its weights are heavy-tailed;
        ``"importance"`` and ``"nuts"``: one of them; ``"laplace"``: mode and curvature, exact for Gaussian clients;
        ``"iasg"``: averages of stochastic gradient steps from the server's position, the paper's; ``"sgld"``:
        stochastic gradient Langevin steps from there.
    estimator
        Of the precisions: ``"score"`` (by regression of the score: exact for Gaussian clients), ``"sample"`` (inverse
        of the sample covariance, corrected for its bias) or ``"shrinkage"`` (the paper's). ``None``: the score where
        draws have one, else shrinkage. Too few samples for a dense precision: shrinkage, with a warning.
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
        The rounds end when one moves the server by less, in shared coordinates (root mean square), and the clients'
        mean delta is at most 0.1 there: the server's small steps are no convergence.
    max_rounds
        Limit of the rounds.
    check
        Add the round that measures the error of the merge; left out above 512 globals.
    num_replicates
        Independent runs, which become the chains of the posterior.

    See Also
    --------
    OneShot : The same average by one exchange.
    FedAvg : The rounds that it begins with.
    EP : Clients' sites in place of their averages.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.FedPA()  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> network = fb.FedPA(solver="iasg", batch_size=32, preconditioner="none", init="zero", step_size=0.01)
    >>> network.estimator is None  # then shrinkage, as in the paper
    True
    """

    single_messages: ClassVar[str] = (
        "The last round merges the clients' own posteriors, of which the server compares each with the others."
    )
    judged_by: ClassVar[str] = "the clients' pull, the error of the merge and its gap from the rounds"
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    @property
    def needs_rows(self) -> bool:
        """Whether gradients are taken of batches."""
        return self.batch_size is not None

    def phases(self, roster: Roster) -> list[Phase]:
        """Newton rounds to the mode where asked for, FedAvg, FedPA, the merge and its check."""
        weights = client_weights(self.weights, roster)
        check_roster(self, roster)
        check_subposteriors(roster)
        clients = make_clients(self, roster, weights)
        start = partial(first_state, self, roster, weights)
        phases = []
        if self.init == "mode":
            phases.append(mode_phase(roster, Needs(single=True), tolerance=1e-3, max_rounds=50))
        if self.fedavg_rounds:
            fedavg = descending(self, roster, weights, clients.averages, clients, start, "FedAvg")
            phases.append(Phase(algorithm=fedavg, max_rounds=self.fedavg_rounds, main=False))
        rounds = descending(self, roster, weights, clients.deltas, clients, start, "FedPA")
        phases.append(Phase(algorithm=rounds, max_rounds=self.max_rounds))
        return [*phases, *_conclusion(self, roster, clients, start)]

    def answer(self, roster: Roster, run: RunState) -> MergedAnswer:
        """The merged posterior, dense or of low rank."""
        return merged_answer(roster, client_weights(self.weights, roster), run)


def make_clients(config: Options, roster: Roster, weights: np.ndarray) -> Clients:
    """The clients of a configured FedPA."""
    if config.solver in STEPPING:
        return stepping_clients(config, roster, jnp.asarray(weights))
    return drawing_clients(config, roster, jnp.asarray(weights))


def _conclusion(config: FedPA, roster: Roster, clients: Clients, start: Callable[[Any], FedPAState]) -> list[Phase]:
    """The round that merges, and its check; with very many globals precisions are sent as factors."""
    if clients.factor is not None and roster.size > DENSE_LIMIT:

        def last(previous: Any) -> tuple[Shared, Array]:
            state = start(previous)
            return state.shared, state.change

        num = config.samples_for(roster.size)
        factors = low_rank_merging(roster, clients, clients.factor, last, num, config.tolerance)
        return [Phase(algorithm=factors, max_rounds=1, full_participation=True, main=False)]
    algorithm = merging(
        roster,
        np.full(roster.num_clients, 1.0 / roster.num_clients),
        clients.summaries,
        name="merge",
        combination=COMBINATIONS["gaussian_product"],
        num_draws=0,
        init_shared=lambda previous: start(previous).shared,
        init_client=clients.init,
        anchor=lambda shared: shared.coordinates.globals_at(shared.position),
        retry=clients.retry,
    )
    merge = Phase(algorithm=algorithm, max_rounds=2, full_participation=True, main=False)
    return [merge, *([check_phase(roster, algorithm)] if config.check else [])]
