"""What a fit knows of its own error: draws of the posterior, corrected where that is possible."""

import warnings
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from fedbayes.answer import Answer
from fedbayes.client_locals import Question, check
from fedbayes.computing import computing
from fedbayes.correction.correct import Correction, correct, correctable
from fedbayes.correction.exact import exact_chains
from fedbayes.errors import UnreliableWarning
from fedbayes.keys import Purpose, key_for
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import log_joint
from fedbayes.problem.problem import Problem
from fedbayes.problem.roster import Roster
from fedbayes.results import arviz
from fedbayes.results.checked import Checked
from fedbayes.results.personal import Clients, asked_for
from fedbayes.results.rounds import Communication
from fedbayes.results.saved import Presentation, SavedPosterior
from fedbayes.rounds.progress import Bar, Silent

if TYPE_CHECKING:
    import xarray as xr


class Corrected:
    """The part of :class:`~fedbayes.FederatedFit` that checks and corrects its answer."""

    roster: Roster
    problem: Problem
    _answer: Answer
    _clients: Clients
    _key: Array
    _shown: Presentation
    _saved: SavedPosterior | None

    @cached_property
    def correction(self) -> Correction | None:
        """What the clients' answers to draws of the Gaussian have shown.

        ``None`` where the answer is no Gaussian, such as the draws of Markov chains, and with ``correct=False``.
        """
        return self._weighed if self._to_check() else None

    def _to_check(self) -> bool:
        """Whether the answer is checked as part of the fit."""
        return self._shown.correct and correctable(self._answer)

    @cached_property
    def _checked(self) -> Checked | None:
        """What the check has shown; a loaded fit knows it from its file, and asks nobody.

        Only a fit saved by a version that did not write it down is checked anew.
        """
        if self._saved is not None and (self._saved.checked is not None or not self._to_check()):
            return self._saved.checked
        with computing():
            return None if self.correction is None else Checked.of(self.correction)

    @cached_property
    def _weighed(self) -> Correction:
        """Draws of the Gaussian, or of the one with the chains' moments, with the clients' answers."""
        keys = key_for(self._key, Purpose.DRAWS), key_for(self._key, Purpose.RESAMPLED)
        with computing():
            ask = partial(self._clients.log_likelihood, what="posterior" if self._to_check() else "exact")
            return correct(self._dense("exact"), self._shown.num_draws, self.roster.prior, ask, keys)

    @property
    def error(self) -> "xr.Dataset":
        """How far the Gaussian answer is from the posterior, by importance weights.

        Returns
        -------
        xarray.Dataset
            Over ``coordinate``, the unconstrained globals: ``mean`` and ``sd``, the errors of the Gaussian's means (in
            posterior sds) and sds (relative); their own Monte Carlo errors ``mean_mcse`` and ``sd_mcse``;
            ``posterior_mean`` and ``posterior_sd``, which ``fit.idata`` has where it is corrected. The attributes:
            ``mean_error`` and ``sd_error``, root mean squares of the errors; ``reliable``, without which none of these
            numbers can be trusted; ``k_hat``, ``largest_weight`` (its share), ``effective_draws`` and ``noise``
            (relative variance of the clients' estimates, in sum), which decide that: k-hat must be below 0.7 or the
            largest weight below 0.01, with 100 effective draws at least and a noise of 1 at most; ``distance``, a
            bound of the error of every mean, in posterior sds, infinite where it is above 1; ``correction``:
            ``"applied"`` to ``fit.idata``, ``"not needed"`` or ``"unreliable"``; ``exchanges`` that this has taken.

        Raises
        ------
        ValueError
            The answer is no Gaussian, or the fit was asked not to correct it.
        """
        found = self.correction
        if found is None:
            raise ValueError(
                "This fit has not measured its error: it was made with `correct=False`."
                if not self._shown.correct
                else "`fit.error` is about a Gaussian approximation, and this fit has none: Markov chains tell of "
                "themselves by R-hat and effective sample size, and a point has no posterior, as where a search for "
                "the mode has stopped too early."
            )
        with computing():
            return found.dataset(self.roster.globals.labels())

    @property
    def log_evidence(self) -> np.ndarray:
        """Estimate of the log marginal likelihood per replicate; NaN under an improper prior, and for Markov chains.

        By importance weights where the posterior is corrected, else that of the Gaussian.
        """
        approximate, found = self._answer.log_evidence(), self.correction
        if found is None or not found.applied or self.roster.prior.is_flat():
            return approximate
        return found.pool.log_evidence()

    @cached_property
    def _approximate_theta(self) -> np.ndarray:
        with computing():
            return self._answer.draws(key_for(self._key, Purpose.DRAWS), self._shown.num_draws)

    @cached_property
    def _theta(self) -> np.ndarray:
        found = self.correction
        return self._approximate_theta if found is None or not found.applied else found.theta

    @property
    def theta(self) -> np.ndarray:
        """Draws of the unconstrained globals behind :attr:`idata`, shape ``(chain, draw, d)``."""
        return self._theta

    @cached_property
    def _log_likelihood(self) -> np.ndarray:
        """Of each client at the posterior's draws, shape ``(chain, draw, client)``."""
        found = self.correction
        if found is not None and found.applied:
            return found.at(found.pool.log_likelihood)
        return self._approximate_log_likelihood

    @cached_property
    def _approximate_log_likelihood(self) -> np.ndarray:
        """The same at the approximation's draws: the clients were asked for them, or are asked now."""
        found, theta = self.correction, self._approximate_theta
        if found is not None and np.array_equal(found.pool.theta[:, : found.num], theta):
            return found.pool.log_likelihood[:, : found.num]
        what = "posterior" if found is None else "approximate posterior"  # of which `idata` needs no more
        return np.moveaxis(self._clients.log_likelihood(theta, what=what).replies.each, 0, -1)

    def _cost(self) -> Communication | None:
        """What the check and :attr:`idata` have taken beyond the rounds; of a loaded fit: when it was made."""
        if self._saved is not None and self._saved.cost is not None:
            return self._saved.cost
        return asked_for([each for each in self._clients.exchanges if each.what == "posterior"])

    def _cost_of_questions(self) -> Communication | None:
        """The same of all other questions, and of what a loaded fit was asked for again."""
        known = self._saved is not None and self._saved.cost is not None
        return asked_for([each for each in self._clients.exchanges if known or each.what != "posterior"])

    @cached_property
    def idata(self) -> Any:
        """The global posterior for ArviZ, with ``sample_stats`` and one log-likelihood per client and draw.

        A Gaussian answer is corrected by importance weights where they can be trusted, and where it is not exact
        already; the attribute ``correction`` says so (:attr:`error` has the numbers), and :attr:`approximate_idata` has
        the Gaussian's own draws. Its chains are replicates of the whole fit: R-hat compares replicates, and speaks
        about Monte Carlo error. The chains of FA-LD are Markov chains. The log-likelihoods are the clients' answers in
        the exchange that checks the fit, or take one more. A loaded fit reads all this from its file.
        """
        if self._saved is not None and (found := self._saved.read()) is not None:
            return found
        correction = self.correction
        applied = correction is not None and correction.applied
        with computing():
            if applied:
                lp = log_joint(self.roster.prior.log_densities, self._theta, self._log_likelihood)
                stats = {"lp": lp}
            else:
                stats = self._answer.sample_stats(self._theta, self._log_likelihood)
            return self._global_idata(
                self._theta, self._log_likelihood, stats, {} if correction is None else correction.attrs()
            )

    @cached_property
    def approximate_idata(self) -> Any:
        """The same with the draws of the approximation, whether the posterior is corrected or not."""
        with computing():
            theta, log_likelihood = self._approximate_theta, self._approximate_log_likelihood
            stats = self._answer.sample_stats(theta, log_likelihood)
            return self._global_idata(theta, log_likelihood, stats, {"correction": "none"})

    def exact(self, num_draws: int | None = None, *, max_exchanges: int = 10, progress: bool = True) -> Any:
        """Markov chains with the exact posterior as their stationary law, whatever the fit's method approximates.

        Independence Metropolis: in each exchange all clients answer with their log-likelihoods at many draws of a
        fixed proposal, which was fitted to the weighted draws of the fit, and the server accepts or rejects them, one
        after the other (:mod:`fedbayes.correction.exact`). This also removes the bias of Langevin steps. Where clients
        have locals the answers are unbiased estimates, which are kept, so that the chains stay exact.

        The price: at most three exchanges to fit the proposal, of which the fit may have made some, and at most
        ``max_exchanges`` more, of ``8 d S`` bytes to and ``8 S`` bytes from each client, for ``d`` globals and ``S``
        draws, ``num_draws`` for each chain of the fit. The chains stop earlier where R-hat is below 1.01 with 100
        effective draws a chain.

        Parameters
        ----------
        num_draws
            Draws of each of the four chains that are returned, evenly spaced; ``None``: as many as the fit's.
        max_exchanges
            At most so many.
        progress
            Show a bar, which says what the chains may cost.

        Returns
        -------
        InferenceData or DataTree
            As :attr:`idata`, without the clients' locals; the attributes hold ``acceptance_rate``, ``r_hat``,
            ``effective_draws`` and ``exchanges``.

        Raises
        ------
        ValueError
            A parameter is no positive number; the posterior has low rank, is a point, or couples the clients' locals.

        Warns
        -----
        UnreliableWarning
            The chains have not mixed: their draws are not to be trusted.
        """
        for name, value in (("num_draws", num_draws), ("max_exchanges", max_exchanges)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"`{name}` is {value!r}; write a whole number, at least 1.")
        check(self._answer.locals_from, Question.EXACT)
        self._dense("exact")
        bar = Bar() if progress else Silent()
        num = self._shown.num_draws
        try:
            bar.start(f"exact chains, at most {max_exchanges} exchanges of {num:,} draws a chain", max_exchanges)
            with computing():
                key = key_for(self._key, Purpose.EXACT)
                found = exact_chains(
                    self._weighed,
                    self.roster.prior.log_densities,
                    partial(self._clients.log_likelihood, what="exact"),
                    key,
                    num_draws=num_draws or num,
                    num_proposals=num,
                    max_exchanges=max_exchanges,
                    progress=bar,
                )
        finally:
            bar.close()
        if not found.mixed:
            warnings.warn(
                f"The chains have not mixed after {found.exchanges} exchanges: R-hat is {found.r_hat:.3g}, with "
                f"{found.effective:.0f} effective draws, and {100.0 * found.acceptance:.2g} percent of the proposals "
                "were accepted. Raise `max_exchanges`, or write the model in another parametrisation, nearer to "
                "Gaussian in unconstrained space.",
                UnreliableWarning,
                stacklevel=2,
            )
        kept = np.linspace(0, found.theta.shape[1] - 1, min(num_draws or num, found.theta.shape[1])).round().astype(int)
        with computing():
            theta, log_likelihood = found.theta[:, kept], found.log_likelihood[:, kept]
            return self._global_idata(theta, log_likelihood, {"lp": found.log_joint[:, kept]}, found.attrs())

    def _global_idata(
        self, theta: np.ndarray, log_likelihood: np.ndarray, stats: dict[str, np.ndarray], attrs: dict[str, Any]
    ) -> Any:
        """Draws ``(chain, draw, d)`` of the globals and what belongs to them, for ArviZ."""
        clients, source = arviz.shapes_of(self.problem), self._answer.locals_from
        extra = source.variables
        groups = {
            "posterior": arviz.global_values(clients, theta) | {name: values for name, (values, _) in extra.items()},
            "sample_stats": stats,
            "log_likelihood": {"client": log_likelihood},
        }
        names = {"client_name": list(self.roster.names), **source.coords}
        dims = {"client": ["client_name"], **{name: labels for name, (_, labels) in extra.items()}}
        return self._to_arviz(groups, clients[0].program, clients[0].ones(), dims, names, attrs)

    if TYPE_CHECKING:  # what the fit itself has

        def _to_arviz(self, *arguments: Any) -> Any: ...

        def _dense(self, what: str) -> Gaussian: ...
