"""Fed-ensemble (Shi, Lai, Al Kontar and Chowdhury 2021): several modes for the messages and the work of one.

K modes ``w_1 ... w_K`` begin at random. The clients are cut into strata; in each round every stratum trains one mode by
federated averaging, and over an *age* of K rounds each mode visits every stratum once:

    w_k <- sum_c d_ck p_c w^(c) / sum_c d_ck p_c,    d_ck = 1 where client c trains mode k in this round.

Predictions average over the modes. For a linear model that interpolates the data, started at ``w_k ~ N(0, s^2 I)``, the
modes end at ``w_k + F^+ (y - F w_k)``, whatever the assignment: draws of the Gaussian-process posterior without noise.
Under a prior and noise each mode goes towards a mode of the posterior instead, and K modes of a log-concave posterior
are nearly K times the same point. ``randomised`` tilts each mode's energy, ``U_c(w) - s_ck' w``, such that modes become
draws: exactly, where the model is linear and Gaussian (Matthews et al. 2017, "sample-then-optimise").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.state import RunState
from fedbayes.inference.fed_ensemble.answer import DIAGNOSTICS, EnsembleAnswer
from fedbayes.inference.fed_ensemble.options import Options, check_roster
from fedbayes.inference.fed_ensemble.perturbation import Perturbed
from fedbayes.inference.fed_ensemble.server import in_teams, together
from fedbayes.inference.fedavg.probe import probed
from fedbayes.inference.fedavg.server import averaging
from fedbayes.inference.options import client_weights
from fedbayes.problem.roster import Roster


@dataclass(frozen=True, kw_only=True)
class FedEnsemble(Options, Method):
    """An ensemble of modes by federated averaging; ``fit.idata`` holds them as the draws of one chain.

    In each round every stratum of clients trains one mode, and every mode is averaged over those that trained it::

        w_k <- sum_c d_ck p_c w^(c) / sum_c d_ck p_c,      d_ck = 1 where client c trains mode k in this round

    (Shi, Lai, Al Kontar and Chowdhury 2021). Predictions average over the modes. These are no draws of the posterior,
    but for ``randomised=True``.

    All options of :class:`FedAvg` but ``laplace`` and ``num_replicates`` hold for the members, ``proximal`` (FedProx)
    among them. Each mode sees about ``1 / num_modes`` of the clients' work: compare methods after equally many rounds.
    Where clients have very unequal rows take ``assignment="all"``: a small client that trains a mode alone moves it as
    far as a large one would.

    Parameters
    ----------
    num_modes
        K.
    assignment
        In K rounds each stratum trains each mode once. ``"latin"``: in the order of one random permutation, shifted
        from stratum to stratum, so that modes share each round's strata out evenly. ``"random"``, as in the source: in
        an order of its own, so that a mode may have many strata in one round and none in the next. ``"all"``: every
        client trains every mode in every round, at K times the work and the bytes, which is K independent federated
        averagings.
    num_strata
        Random parts of the clients, drawn once; ``None``: each client is a stratum of its own.
    clients_per_stratum
        Clients of each stratum that take part in a round, drawn afresh; ``None``: all.
    randomised
        After the rounds, as many again under perturbed energies: each mode becomes a draw of the posterior. Exact for
        linear-Gaussian models; elsewhere right as far as the posterior is Gaussian around each mode, and where it is
        far from that some draws run away, which the fit says. With ``assignment="all"``, one plain local step of all
        rows, full participation, and without local latents.
    init
        As for :class:`FedAvg`; ``"random"`` by default. With another, all modes begin at one point.

    See Also
    --------
    FedAvg : The rounds of a single mode.
    FedPA : A Gaussian about one mode.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.FedEnsemble(num_modes=5)  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> draws = fb.FedEnsemble(num_modes=50, assignment="all", local_steps=1, randomised=True)  # of the posterior
    >>> method.assignment
    'latin'
    """

    progress: ClassVar[tuple[str, ...]] = ("left", "objective")
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    @property
    def single_messages(self) -> str:
        """Modes that are trained by some of the clients are averages over few."""
        if self.assignment == "all":
            return ""
        return (
            'A mode is averaged over those clients that train it in a round, often one alone. With `assignment="all"` '
            "sums are enough."
        )

    @property
    def num_replicates(self) -> int:
        """One: the modes are the members of one ensemble."""
        return 1

    def phases(self, roster: Roster) -> list[Phase]:
        """The clients' curvature where steps need it, the rounds, and those under perturbed energies."""
        check_roster(self, roster)
        weights = client_weights(self.weights, roster)
        member = averaging(self, roster, weights)
        if self.randomised:
            perturbed = Perturbed(roster.prior, weights)
            member = member._replace(init_client=perturbed.untilted)
        arranged = together if self.assignment == "all" else in_teams
        phases = probed(self, arranged(self, roster, member), roster, weights)
        if self.randomised:
            tilted = averaging(self, roster, weights, init_client=perturbed)
            again = together(self, roster, tilted, name="perturbed")
            phases.append(Phase(algorithm=again, max_rounds=self.max_rounds))
        return phases

    def answer(self, roster: Roster, run: RunState) -> EnsembleAnswer:
        """The modes."""
        return EnsembleAnswer(self, roster, run)
