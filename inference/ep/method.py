"""Federated expectation propagation with Gaussian sites (Algorithms 3.2 and 3.3 of Yue 2023, completed).

The posterior of the globals is ``q(theta) = p(theta) prod_k s_k(theta)`` with one Gaussian site per client. A round,
for client k:

    cavity      q / s_k                             natural parameters subtract
    tilted      (q / s_k) f_k(theta, z)             z: the client's local latents
    new site    moment match of the tilted density, divided by the cavity

The message is the new site itself; it replaces the last one, so a lost or repeated reply can't break the product. The
server takes the step ``s_k <- s_k + eta (new - s_k)`` with ``eta`` small enough that the global and every cavity stay
proper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedbayes.algorithm import Method, Phase
from fedbayes.answer import Diagnostic
from fedbayes.inference.ep.answer import DIAGNOSTICS, EPAnswer
from fedbayes.inference.ep.options import Options
from fedbayes.inference.ep.server import algorithm, startable
from fedbayes.inference.merging.method import OneShot, one_shot
from fedbayes.inference.mode import mode_phase
from fedbayes.problem.roster import Roster
from fedbayes.rounds.state import RunState


@dataclass(frozen=True, kw_only=True)
class EP(Options, Method):
    """Federated expectation propagation.

    Parameters
    ----------
    num_samples
        Draws per client, round and replicate, a power of two; ``None``: 256, or more where the globals need more.
    solver
        Local solver: ``"auto"`` (importance sampling; the nested kind for a client with locals whose k-hat exceeds 0.7
        or whose noise is too large; once the global has settled, eight times the draws for a client whose noise is
        still too large, and NUTS where k-hat stays above 0.7), ``"importance"``, ``"nested"`` (draws of the
        locals given the globals, as hierarchical models need them), ``"nuts"``, ``"laplace"`` or ``"variational"``.
    damping
        Step ``eta`` in ``(0, 1]``; ``None``: one, or less where the Monte Carlo noise of all sites together asks for
        it, so that ``eta / (2 - eta) noise^2`` stays below ``0.1^2`` (in posterior sds).
    init
        ``"laplace"``: in an opening round every client sends the Laplace approximation of its factor times the prior,
        the prior divided out; ``"newton"``: sites start at the clients' expansions, after as many Newton rounds as make
        all cavities proper and come within three posterior sds of the mode; ``"auto"``: one of these two, by the rule
        of :meth:`start`; ``"mode"``: at the expansions at the federated mode; ``"prior"``: at one, so that the first
        cavity is the prior; ``"gaussian_product"``: at the clients' Gaussians of that one-shot combination.
    covariance
        How the covariance of the tilted density is estimated, from which the site follows: ``"score"`` (score
        regression) or ``"sample"`` (that of the draws, the classical estimate, for comparison).
    family
        ``"dense"`` sites, or ``"diagonal"`` for large dimensions: messages of ``2 d`` numbers, at the price of the
        global's correlations, without which heterogeneous clients can be far off.
    tolerance
        The fit has converged when an undamped round would change the global by less, in posterior sds (root mean
        square, ``sqrt(2 KL / d)``); or by about its Monte Carlo noise, if that is at most 0.1: then no smaller change
        is to be had, and ``repr(fit)`` says so.
    num_replicates
        Independent runs of the whole fit with other keys; they become the chains of the posterior, so that R-hat and
        Monte Carlo standard errors speak about the fit.
    """

    needs_rows: ClassVar[bool] = False
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def phases(self, roster: Roster) -> list[Phase]:
        """What the start asks for, then EP."""
        ep = Phase(algorithm=algorithm(self, roster), max_rounds=30)
        start = self.start(roster)
        if start == "newton":
            return [mode_phase(roster, tolerance=0.1, max_rounds=25, ready=startable), ep]
        if start == "mode":
            return [mode_phase(roster, tolerance=0.1, max_rounds=25), ep]
        if start == "gaussian_product":
            combination = OneShot(combine="gaussian_product", num_replicates=1)
            return [replace(one_shot(combination, roster), main=False, once=True), ep]
        return [ep]

    def answer(self, roster: Roster, run: RunState) -> EPAnswer:
        """Prior times sites."""
        return EPAnswer(run, self.tolerance, has_locals=bool(np.any(roster.num_locals)))
