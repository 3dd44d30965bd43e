"""The Laplace approximation: the federated mode as a method of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic, GaussianAnswer
from fedbayes.contract.client_locals import FromCavity
from fedbayes.contract.state import RunState
from fedbayes.errors import FederatedError
from fedbayes.inference.mode import DIAGNOSTICS, USUAL_ROUNDS, ModeState, Needs, Own, federated_mode
from fedbayes.inference.options import check_whole
from fedbayes.inference.own_site import EVERYBODY, NEVER, Everybody, OwnSite, own_cavity, told_everybody
from fedbayes.inference.starts import with_starts
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import product_of
from fedbayes.problem.roster import Roster


@dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """The Laplace approximation by federated Newton steps: a start for EP, and a quick approximation by itself.

    In a round every client sends the expansion of its log factor to second order at the server's position, its locals
    integrated out, and the server moves to the mode of the prior times all expansions::

        theta <- theta - (H_0 + sum_k H_k)^-1 (g_0 + sum_k g_k),

    with gradients ``g`` and Hessians ``H`` of minus the log prior and the log factors; shorter steps where that does
    not raise the posterior density. The posterior is ``N(theta, (H_0 + sum_k H_k)^-1)`` at the mode, in unconstrained
    space.

    Parameters
    ----------
    tolerance
        Stop once the Newton step is shorter, in posterior sds (root mean square).
    num_samples
        Draws that integrate out local latents at each position; not used without them, nor for single ones that are
        independent given the globals, which quadrature integrates out.
    num_starts
        Newton searches that begin apart, as :class:`~fedbayes.EP` has them.

    See Also
    --------
    EP : Corrects what is not Gaussian.
    fit_federated : Fits a model by a method.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.Laplace(tolerance=1e-6)  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> method.num_replicates
    1
    """

    tolerance: float = 1e-3
    num_samples: int = 256
    num_starts: int = 1
    needs_rows: ClassVar[bool] = False
    takes_local_steps: ClassVar[bool] = False
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def __post_init__(self) -> None:
        check_whole(self, {"num_starts": 1})
        if not self.tolerance > 0.0:
            raise ValueError(
                f"`tolerance` is {self.tolerance}; it is the length of a step in posterior sds, such as 1e-3."
            )
        if self.num_samples < 16 or self.num_samples & (self.num_samples - 1):
            raise ValueError(
                f"`num_samples` is {self.num_samples}; quasi-random draws need a power of two from 16 on, such as 256."
            )

    @property
    def num_replicates(self) -> int:
        """One: the draws of the local latents are fixed, and several searches are one run."""
        return 1

    def phases(self, roster: Roster) -> list[Phase]:
        """Newton rounds, after the searches from several starts where these are asked for."""
        needs = Needs(own_sites=True)
        algorithm = federated_mode(roster, needs, num_samples=self.num_samples, tolerance=self.tolerance)
        newton = Phase(algorithm=algorithm, max_rounds=50, full_participation=True, usual_rounds=USUAL_ROUNDS)
        return with_starts(roster, self.num_starts, newton)

    def answer(self, roster: Roster, run: RunState) -> GaussianAnswer:
        """The Laplace approximation at the best position."""
        state: ModeState = run.state
        if not np.all(np.isfinite(state.value)):
            raise FederatedError(
                "The rounds ended before the clients had answered about any values of the globals, since at the first "
                "ones nothing came of it. Raise `num_rounds`."
            )
        posterior = product_of(state.prior, state.sites)
        told = told_everybody(posterior, np.where(state.heard, state.best_round[:, None], NEVER), 1.0 * state.heard)
        return GaussianAnswer(posterior, FromCavity(told, posterior), run, state.modes)

    def told_at_end(self, roster: Roster) -> Everybody:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        return EVERYBODY

    def own_cavity(self, told: Everybody, private: Own) -> Gaussian:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        assert isinstance(private.site, OwnSite)  # noqa: S101
        return own_cavity(private.site, told)
