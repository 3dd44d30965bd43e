"""Correlated clients: each has coefficients of its own, which are related to the others' (Yue 2023, section 3.3).

    y_k ~ p(y | theta_k, phi),      Theta = (theta_1 ... theta_K) ~ MN(0, I_m, Omega),

so that each of the m components is a draw of ``N(0, Omega)`` across the K clients (model HM1, equation 3.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedbayes.contract.algorithm import Algorithm, Method, Phase, Update, keep
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.correlated.answer import DIAGNOSTICS, BayesAnswer
from fedbayes.inference.correlated.client import after, begin, update
from fedbayes.inference.correlated.options import Layout, Options, layout_of
from fedbayes.inference.correlated.server import aggregate, broadcast, init
from fedbayes.inference.local import solvers
from fedbayes.inference.local.density.moments import score_regression
from fedbayes.problem.roster import Roster


@refused_names(num_replicates="num_chains")
@dataclass(frozen=True, kw_only=True)
class CorrelatedClients(Options, Method):
    """Clients with coefficients of their own, coupled by a covariance between clients.

    The coefficients ``theta_k`` are one local vector latent of the program, of one shape on all clients. The method
    replaces the latent's own prior by ``Theta ~ MN(0, I, Omega)`` (Yue 2023, section 3.3, equation 3.2); everything
    else of the program stays: globals such as a shared noise sd or a common mean (``theta = mu + z`` with ``z`` the
    coupled latent), and other local latents, which are integrated out at the client.

    By default the posterior of globals, coefficients and Omega together is sampled at the server, from the clients'
    Gaussian sites over ``(phi, theta_k)``, as EP makes them::

        Theta_jk = sum_r Z_jr A_kr + e_jk,   Z_jr ~ N(0, 1),   e_jk ~ N(0, psi_k),   Omega = A A' + diag(psi),
        A_kr ~ N(0, lambda_r^2),   lambda_r ~ HalfCauchy(s),   psi_k ~ InverseGamma(2, 2 t^2),

    with ``log s`` and ``log t`` normal around a rough scale of the coefficients (sd 2), so that the answer moves with
    their unit. For a Gaussian likelihood with known noise the sites are exact after one exchange; elsewhere they are
    matched in rounds. ``fit.idata`` holds the globals, ``omega`` and all clients' coefficients, ``<latent>_by_client``;
    ``fit.client_posterior(name)`` a client's latents given everybody's data.

    The source's Algorithm 3.1, gradient steps and a smoothed Omega, is not offered: its joint objective is unbounded
    below, so that it works by early stopping alone, and its answer is a point (the folder's ``DESIGN.md``).

    Every client's site or coefficients are needed one by one: the method can't run under secure aggregation.

    Parameters
    ----------
    latent
        Name of the coupled latent; ``None``: the only local latent with several components.
    rank
        Number of factors R; ``None``: ``min(m - 1, K - 1, 8)``, of which the prior on the columns switches off what
        the data do not need.
    solver
        A client's way to its site: ``"auto"`` (importance sampling; the nested kind for clients with other locals whose
        k-hat exceeds 0.7), ``"importance"``, ``"nested"`` or ``"laplace"``.
    num_samples
        A client's draws in a round, a power of two; ``None``: 256, or more where globals and coefficients need more.
    num_sweeps
        Sweeps of the server's chain in a round, after half as many that are thrown away.
    tolerance
        The rounds have converged when the clients' new sites change their posteriors by less, in posterior sds (root
        mean square, ``sqrt(2 KL / (d + m))``).
    num_chains
        Independent runs of the whole fit, each of which ends in one chain of the posterior.
    thinning
        Sweeps between two draws of the chains at the end; four times as many where R-hat is not below 1.01 then, or
        effective draws of the globals or of Omega are fewer than 400.

    Raises
    ------
    ModelError, ClientDataError, ValueError
        When a fit begins: the program has no such latent, clients' latents have other shapes, the rank is too large,
        or there is one client.

    See Also
    --------
    regression : Clients whose coefficients are exchangeable, ``(1 + x | site)``.
    plots.plot_client_correlation : The correlation of the clients.
    plots.plot_shrinkage : How far they are pulled together.

    Examples
    --------
    >>> import fedbayes as fb, numpyro, numpyro.distributions as dist
    >>> def model(x, y=None):  # the prior of theta gives way to the method's
    ...     with fb.local():
    ...         theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    ...     numpyro.sample("y", dist.Normal(x @ theta, 0.3), obs=y)
    >>> method = fb.CorrelatedClients(rank=2)  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> method.num_replicates == method.num_chains
    True
    """

    single_messages: ClassVar[str] = (
        "The server learns the covariance between the clients' own coefficients, and so each client's coefficients."
    )
    needs_rows: ClassVar[bool] = False
    judged_by: ClassVar[str] = "R-hat and effective draws of the chains"
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS
    only_locals: ClassVar[bool] = True

    @property
    def num_replicates(self) -> int:
        """The chains."""
        return self.num_chains

    def phases(self, roster: Roster) -> list[Phase]:
        """One phase of rounds."""
        layout = layout_of(self, roster)
        return [Phase(algorithm=self._bayes(layout, roster), max_rounds=20)]

    def _bayes(self, layout: Layout, roster: Roster) -> Algorithm:
        num_samples = self.draws_for(layout.joint)
        known = {
            "importance": solvers.importance(num_samples=num_samples, estimator=score_regression),
            "nested": solvers.nested(num_samples=num_samples, estimator=score_regression),
            "laplace": solvers.laplace(),
        }
        others = roster.num_locals > layout.size
        names = (
            (["importance", "nested"] if others.any() else ["importance"]) if self.solver == "auto" else [self.solver]
        )
        return Algorithm(
            name="correlated",
            init=partial(init, layout, roster.prior),
            broadcast=partial(broadcast, bool(others.any())),
            init_client=partial(begin, layout),
            updates={name: update(layout, known[name], draws=name != "laplace") for name in names},
            aggregate=partial(aggregate, layout, roster.prior, self.num_sweeps, self.tolerance),
            choose=partial(_choose, others) if len(names) > 1 else keep,
        )

    def after(self, roster: Roster) -> Mapping[str, Update]:
        """What clients are asked after the rounds."""
        return after(layout_of(self, roster))

    def answer(self, roster: Roster, run: RunState) -> BayesAnswer:
        """The chains at the server."""
        return BayesAnswer(self, layout_of(self, roster), roster, run)


def _choose(others: np.ndarray, variants: Any, infos: Mapping[str, np.ndarray]) -> list[str]:
    """Nested draws for clients with other locals whose weights can't be trusted."""
    heavy = (infos["code"].reshape(len(variants), -1) == ResultCode.UNRELIABLE).any(axis=1) & others
    return ["nested" if needed else now for needed, now in zip(heavy, variants, strict=True)]
