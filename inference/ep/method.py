"""Federated expectation propagation with Gaussian sites (Algorithms 3.2 and 3.3 of Yue 2023, completed).

The posterior of the globals is ``q(theta) = p(theta) prod_k s_k(theta)`` with one Gaussian site per client. A round,
for client k:

    cavity      q / s_k                             natural parameters subtract
    tilted      (q / s_k) f_k(theta, z)             z: the client's local latents
    new site    moment match of the tilted density, divided by the cavity

The site is the client's own, and so is the cavity that it forms from it. A message is how the site should change, of
which the server sees the sum alone; it takes the step ``q <- q prod_k (new / s_k)^eta`` with ``eta`` small enough that
the global stays proper. A client whose cavity is improper leaves a power of its site out of the global in place of the
whole. Which of its replies counted, and how far, a client learns with the next broadcast
(:mod:`fedbayes.inference.own_site`).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbayes.contract.algorithm import Method, Phase
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.inference.ep.answer import DIAGNOSTICS, EPAnswer
from fedbayes.inference.ep.client import Own
from fedbayes.inference.ep.options import Options
from fedbayes.inference.ep.server import algorithm, startable
from fedbayes.inference.laplace import Laplace
from fedbayes.inference.mode import Needs, mode_phase
from fedbayes.inference.own_site import EVERYBODY, Everybody, own_cavity
from fedbayes.inference.starts import with_starts
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.program.hierarchy import of_funnel
from fedbayes.problem.roster import Roster

_USUAL_ROUNDS = {False: 4, True: 6}  # without locals, and with them


@refused_names(covariance="estimator", num_chains="num_replicates")
@dataclass(frozen=True, kw_only=True)
class EP(Options, Method):
    """Federated expectation propagation.

    Each client k keeps a Gaussian site ``s_k`` in place of its factor ``f_k``, its locals integrated out, so that the
    global is ``q(theta) = p(theta) prod_k s_k(theta)``. In a round all clients at once match moments, and the global
    takes a step::

        new_k = N(mean, covariance of (q / s_k) f_k) / (q / s_k),      q <- q + eta sum_k (new_k - s_k)

    in natural parameters (algorithms 3.2 and 3.3 of Yue 2023, after Minka 2001). The global is exact where clients are
    linear-Gaussian; elsewhere ``fit.error`` has its error.

    A cavity ``q / s_k`` that was improper in some round, by Monte Carlo noise or on the way to the fixed point, is
    replaced by ``q / s_k^a`` from then on, with the largest ``a <= 1`` for which ``s_k^a`` has at most nine tenths of
    the global's precision in every direction. Where the site has no more than that at the end, ``a`` is 1.

    Parameters
    ----------
    num_samples
        Draws per client, round and replicate, a power of two; ``None``: 256, or more where the globals need more.
    solver
        Local solver: ``"auto"`` (importance sampling; the nested kind where all clients have a few locals, or small
        independent groups, and for a client with locals whose k-hat exceeds 0.7 or whose noise is too large; once the
        global has settled, eight times the draws for a client whose noise is still too large, or whose nested draws
        still have a k-hat above 0.7, and NUTS where k-hat stays above it), ``"importance"``, ``"nested"`` (draws of the
        locals given the globals, as hierarchical models need them), ``"nuts"``, ``"laplace"`` or ``"variational"``.
    damping
        Step ``eta`` in ``(0, 1]``; ``None``: one, or less where the Monte Carlo noise of all sites together asks for
        it, so that ``eta / (2 - eta) noise^2`` stays below ``0.1^2`` (in posterior sds).
    init
        ``"laplace"``: in an opening round every client sends the Laplace approximation of its factor times the prior,
        the prior divided out; ``"newton"``: sites start at the clients' expansions, after as many Newton rounds as make
        the global proper and come within three posterior sds of the mode; ``"auto"``: one of these two, by the rule
        of :meth:`start`; ``"mode"``: at the expansions at the federated mode; ``"prior"``: at one, so that the first
        cavity is the prior. Of an expansion that is not concave, the convex part is taken.
    estimator
        How the covariance of the tilted density is estimated, from which the site follows: ``"score"`` (score
        regression) or ``"sample"`` (that of the draws, the classical estimate, for comparison).
    family
        ``"dense"`` sites, or ``"diagonal"`` for large dimensions: messages of ``2 d`` numbers, at the price of the
        global's correlations, without which heterogeneous clients can be far off.
    tolerance
        The fit has converged when an undamped round would change the global by less, in posterior sds (root mean
        square, ``sqrt(2 KL / d)``); or by about its Monte Carlo noise, if that is at most 0.1: then no smaller change
        is to be had, and ``repr(fit)`` says so. Either way the rounds go on while the last two tell of more than 0.1 to
        the fixed point.
    num_replicates
        Independent runs of the whole fit with other keys; they become the chains of the posterior, so that R-hat and
        Monte Carlo standard errors speak about the fit.
    num_starts
        Newton searches that begin apart, to find separate modes that no symmetry leads to: the first near zero, the
        others at draws of the prior; none goes beyond 40 prior sds. EP begins at the mode whose Laplace approximation
        has the largest integral, and the check after the rounds has draws of all that come within 10 nats of that.
        They take some tens of exchanges more, at most 100, each with as many Gaussians.

    See Also
    --------
    Laplace : Its start, and enough where the posterior is nearly Gaussian.
    FALD : Chains, for posteriors that are not.
    OneShot : One exchange in place of rounds.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.EP(num_samples=512, num_replicates=2)  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> method.tolerance
    0.02
    """

    needs_rows: ClassVar[bool] = False
    takes_local_steps: ClassVar[bool] = False
    judged_by: ClassVar[str] = "the distance that is left; Monte Carlo noise may end the rounds above the tolerance"
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def phases(self, roster: Roster) -> list[Phase]:
        """What the start asks for, then EP; a hierarchy among the globals is warned of."""
        if hierarchy := roster.prior.hierarchy:
            warnings.warn(of_funnel(hierarchy), stacklevel=2)
        usual = _USUAL_ROUNDS[bool(np.any(roster.num_locals))]
        ep = Phase(algorithm=algorithm(self, roster), max_rounds=30, usual_rounds=usual)
        start = self.start(roster)
        if start not in ("newton", "mode"):
            return [ep]
        needs, ready = Needs(own_sites=True, convex=True), startable if start == "newton" else None
        mode = mode_phase(roster, needs, tolerance=0.1, max_rounds=25, ready=ready)
        return [*with_starts(roster, self.num_starts, mode), ep]

    def answer(self, roster: Roster, run: RunState) -> EPAnswer:
        """Prior times sites."""
        has_locals = bool(np.any(roster.num_locals))
        return EPAnswer(run, self.tolerance, has_locals=has_locals, prior=roster.prior)

    def cheaper(self, roster: Roster) -> Mapping[str, Method]:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        found: dict[str, Method] = {}
        if self.num_replicates > 1:
            found["`num_replicates=1` of EP"] = replace(self, num_replicates=1)
        if self.solver != "auto":
            single = all(each.group_size <= 1 for each in roster.locals)
            memory = " (the default solver takes memory in proportion to the locals)" if single else ""
            found[f'`solver="auto"` of EP{memory}'] = replace(self, solver="auto")
        if self.solver != "laplace":
            found['`solver="laplace"` of EP'] = replace(self, solver="laplace")
        return {**found, '`method="laplace"`': Laplace()}

    def told_at_end(self, roster: Roster) -> Everybody:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        return EVERYBODY

    def own_cavity(self, told: Everybody, private: Own) -> Gaussian:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        return own_cavity(private.site, told)
