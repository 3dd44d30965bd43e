"""Federated averaging Langevin dynamics, FA-LD (Deng, Zhang, Ma, Song and Lin, UAI 2024, algorithms 1 to 4).

Clients start each round at the server's position and run K local Langevin steps; the server averages. With the client
energies ``f_c = -log f_c(theta, z) / p_c - log p(theta)``, so that ``sum_c p_c f_c`` is the energy of the joint
posterior with the prior counted once,

    u_c <- u_c - eta (grad_u f_c - own_c + total) + sqrt(2 eta tau) (rho xi + sqrt((1 - rho^2) / p_c) xi_c)
    v_c <- v_c + eta grad_v log f_c               + sqrt(2 eta tau) zeta_c

with noise ``xi`` shared by all clients and ``xi_c``, ``zeta_c`` private. ``u`` are the globals in the federation's
shared coordinates and ``v`` the client's locals in its own (:mod:`fedbayes.inference.local.steps.coordinates`);
``own_c`` and ``total`` are the control variate: the client's and everybody's gradient at an anchor. A local enters one
client's energy only, so its step is that of the joint target: no ``1 / p_c``, neither in its gradient nor in its noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.inference.fald.answer import DIAGNOSTICS, ChainsAnswer
from fedbayes.inference.fald.differences import differences_phase
from fedbayes.inference.fald.options import Options, check_roster, is_private
from fedbayes.inference.fald.recording import plan_of, recording
from fedbayes.inference.fald.server import langevin
from fedbayes.inference.mode import Needs, mode_phase
from fedbayes.inference.options import client_weights
from fedbayes.problem.roster import Roster


@refused_names(bias="max_bias", num_replicates="num_chains")
@dataclass(frozen=True, kw_only=True)
class FALD(Options, Method):
    """Federated averaging Langevin dynamics.

    In a round each client c takes K Langevin steps from the server's position, in whitened coordinates u, and the
    server averages by the weights::

        u_c <- u_c - eta grad U_c(u_c) + sqrt(2 eta tau) (rho xi + sqrt((1 - rho^2) / p_c) xi_c),   u <- sum_c p_c u_c,

    where ``U_c = -log f_c / p_c - log p`` and all clients share the noise ``xi`` (algorithms 1 to 4 of Deng, Zhang, Ma,
    Song and Lin 2024; the module has control variate and locals). Positions after the rounds are draws of Markov
    chains, with no Gaussian form, and with a bias by step and local steps: ``repr(fit)`` has it, predicted and
    measured.

    Parameters
    ----------
    local_steps
        Langevin steps K of a client per round; ``None``: ``sqrt(1 + kappa)``, which minimises the bound of theorem 5.7.
    step_size
        ``eta`` in the shared coordinates, in which the posterior has about unit curvature (with ``"dense"``);
        ``"decaying"``: ``1 / (2 L + m k / 12)`` (theorem 5.8); a function of the local iteration ``k``, such as an
        optax schedule; ``None``: the largest that keeps the bias predicted to first order below ``bias`` and is at
        most ``1 / (2 L)``.
    noise_correlation
        ``rho`` in ``[0, 1]``: with 1 the clients share all noise, which is cheapest and never less accurate; with less
        they have private noise too, which privacy needs.
    temperature
        ``tau``: draws follow the posterior to the power ``1 / tau``.
    weights
        ``"rows"``: ``p_c = n_c / n``; ``"equal"``; or one number per client name, summing to one. They change the path
        and the noise, not the target.
    scheme
        ``"full"``; ``"with_replacement"``: ``num_active`` clients drawn by their weights (scheme I);
        ``"without_replacement"``: drawn uniformly (scheme II), which needs equal weights. Partial participation
        inflates the posterior: however small the steps, unless ``noise_correlation`` is 1, and then by the product of
        step, local steps and the spread of the clients' curvatures and gradients. With local latents, or without a
        mode, the inflation can't be predicted, and the fit does not count as converged.
    num_active
        Clients S per round of the partial schemes.
    allow_unbalanced
        Lets scheme II run with unequal weights, whose mean is then biased.
    batch_size
        Rows per local step, drawn without replacement; ``None``: all.
    clip
        Largest norm of one row's gradient, in the shared coordinates: bounds the sensitivity for differential privacy,
        and biases the posterior where it bites. A row whose gradient is not finite counts as zero. With ``init="zero"``
        and ``noise_correlation`` below 1 the fit is private; over a network each site then takes part within a budget
        that its owner sets in the site's policy, and answers nothing after the rounds.
    control_variate
        Each client's gradient is shifted by ``total - own_c``, the gradients at an anchor, so that local steps of
        heterogeneous clients no longer drift apart. With the anchor at the mode the mean is exact for quadratic
        energies; an anchor far from it causes a bias of its own. It is the control variate of VR-FALD* (Plassier,
        Moulines and Durmus 2022). The conducive gradients of FSGLD (el Mekkaoui et al. 2021) need a likelihood
        surrogate of each client instead; here one gradient at the federated mode is enough. ``None``: yes, with
        ``init="mode"`` and without ``clip``.
    refresh
        Move the anchor to the chain every so many rounds; ``None``: it stays at the start.
    preconditioner
        ``"dense"`` or ``"diagonal"``: coordinates whitened by the curvature at the federated mode; ``"none"``.
    init
        ``"mode"``: chains start from the Laplace approximation at the federated mode (Newton rounds first);
        ``"zero"``: at zero, with nothing known (needs ``step_size``).
    max_bias
        Largest bias that the defaults may cause, in posterior sds of the mean and as a fraction of an sd. Whatever it
        is, a fit with a bias above 0.1, predicted or measured, has not converged.
    num_chains
        Independent chains, all at once.
    num_warmup
        Draws per chain to throw away.
    thinning
        Rounds from one draw to the next; ``None``: about two per autocorrelation time.
    max_rounds
        Limit of the rounds; fewer rounds per draw are made where it asks for it.

    See Also
    --------
    EP : Far fewer rounds, and an error that is measured.
    Laplace : The mode at which its chains start.
    FedEnsemble : Draws by federated averaging.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.FALD(num_chains=4, num_warmup=500)  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> private = fb.FALD(init="zero", step_size=1e-3, local_steps=1, noise_correlation=0.0, clip=1.0)
    >>> private.num_replicates == private.num_chains  # each a run of its own
    True
    """

    judged_by: ClassVar[str] = "R-hat and the bias of the chains, which come after these rounds"
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    @property
    def num_replicates(self) -> int:
        """The chains."""
        return self.num_chains

    @property
    def needs_rows(self) -> bool:
        """Whether gradients are taken row by row."""
        return self.batch_size is not None or self.clip is not None

    @property
    def single_messages(self) -> str:
        """With partial participation the server sees single expansions, and single rounds."""
        if self.scheme == "full":
            return ""
        return (
            "In a round with some of the clients the sum is over these alone, and what that does to the posterior "
            "depends on each client's own expansion at the mode. With `scheme='full'` sums are enough."
        )

    @property
    def is_private(self) -> bool:
        """Whether the chains begin where no record counts, and hide records in their steps."""
        return self.init == "zero" and is_private(self)

    @property
    def ends_in_chains(self) -> bool:
        """Not of another temperature than one, and not with clipped gradients."""
        return self.temperature == 1.0 and self.clip is None

    def phases(self, roster: Roster) -> list[Phase]:
        """Newton rounds to the federated mode where the start asks for them, then the chains."""
        weights = client_weights(self.weights, roster)
        check_roster(self, roster, weights)
        chains = Phase(
            algorithm=langevin(self, roster, weights),
            max_rounds=self.max_rounds,
            full_participation=True,
            recording=recording(self, roster),
        )
        if self.init == "zero":
            return [chains]
        everybody = self.scheme == "full"
        mode = mode_phase(roster, Needs(single=not everybody), tolerance=1e-3, max_rounds=50)
        return [mode, *([differences_phase(self, roster, weights)] if everybody else []), chains]

    def answer(self, roster: Roster, run: RunState) -> ChainsAnswer:
        """The draws."""
        plan = plan_of(run)
        numbers = {name: float(value) for name, value in plan._asdict().items() if np.ndim(value) == 0}
        return ChainsAnswer(roster, run, options=self, numbers=numbers)
