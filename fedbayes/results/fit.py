"""``FederatedFit``, what a fit returns: each method is a function of a ``Fitted``, in the file of its subject."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np

from fedbayes.contract.algorithm import Method
from fedbayes.correction.correct import Correction
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.owner.columns import Labels
from fedbayes.owner.disclosure import Disclosure, disclosure_of
from fedbayes.owner.rules import DisclosureRules
from fedbayes.problem.problem import Problem
from fedbayes.problem.roster import Roster
from fedbayes.questions.clients import adapt, arguments_of, client_posterior, client_posteriors
from fedbayes.questions.conflict.question import conflict
from fedbayes.questions.leaving_out import leave_one_out, loo, loo_rows
from fedbayes.questions.predictions import log_predictive_density, predict, predict_probabilities
from fedbayes.questions.predictive_check import predictive_check
from fedbayes.questions.regression.coefficients import summary_table
from fedbayes.questions.regression.effects import random_effects
from fedbayes.questions.replicates import check
from fedbayes.questions.selection import select
from fedbayes.questions.sensitivity import sensitivity, with_log_prior
from fedbayes.questions.summary import as_html, save, summary, trouble, usable
from fedbayes.report.writing import report
from fedbayes.results.corrected import correction, log_evidence, theta
from fedbayes.results.exact import exact
from fedbayes.results.fitted import Fitted, cost, labels, moments, rounds, verdict
from fedbayes.results.posterior import approximate_idata, idata
from fedbayes.results.quantities import error
from fedbayes.results.rounds import Communication

if TYPE_CHECKING:
    import xarray as xr

P = ParamSpec("P")
Found = TypeVar("Found")


def _asks(
    question: Callable[Concatenate[Fitted, P], Found],
) -> Callable[Concatenate["FederatedFit", P], Found]:
    """The method that asks a fit this question, with the function's name, arguments and documentation."""

    @wraps(question)
    def method(self: "FederatedFit", /, *args: P.args, **kwargs: P.kwargs) -> Found:
        return question(self.fitted, *args, **kwargs)

    signature = inspect.signature(question)
    first, *others = signature.parameters.values()
    itself = inspect.Parameter("self", first.kind)
    method.__signature__ = signature.replace(parameters=[itself, *others])  # type: ignore[attr-defined]
    method.__qualname__ = f"FederatedFit.{question.__name__}"
    return method


class FederatedFit:
    """A fitted federation: the global posterior, the clients' own, and how the rounds went.

    Attributes
    ----------
    fitted
        The fit as a value, of which every question is a function: for whoever writes one more.

    See Also
    --------
    fit_federated : Fits a model by a method.
    load_fit : Reads one that was saved.
    summary_table : The coefficients of a regression.
    federation_gain : What each client has of the others.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, truth = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> fit.error.attrs["correction"]  # the Gaussian is exact here
    'not needed'
    >>> dict(fit.idata.posterior["beta"].sizes)["draw"] == fit.num_draws
    True
    >>> fit.predict(x=clients["client0"]["x"])["posterior_predictive"]["y"].dims[:2]
    ('chain', 'draw')
    """

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted

    @property
    def problem(self) -> Problem:
        """The model and the clients as they were read: for a process that may hold the clients' data."""
        return self.fitted.problem

    @property
    def roster(self) -> Roster:
        """What the server knows of the clients: names, rows, globals, prior."""
        return self.fitted.roster

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients, in the order given."""
        return self.roster.names

    @property
    def global_labels(self) -> list[str]:
        """Names of the unconstrained globals, as in ``moments()``: ``beta[0]``, or ``beta[age]`` by ``coords``."""
        return labels(self.fitted)

    @property
    def method(self) -> Method:
        """The configured method, with its tolerance."""
        return self.fitted.method

    # how the rounds went

    @property
    def converged(self) -> bool:
        """Whether the rounds have ended where they lead, every client was heard, and no known error is above the limit.

        An error is known if the rounds measure or predict it: the distance that is left, the bias of the answer, the
        chains' R-hat. The limit is 0.1 posterior sds for each that is measured in them, whatever the method's tolerance
        is; the section "What converged means" of ``DESIGN.md`` has the table of all methods. Of the Gaussian's own
        error it says nothing: that is :attr:`error`, measured by the check after the rounds.
        """
        return verdict(self.fitted).converged

    @property
    def usable(self) -> bool:
        """Whether :attr:`idata` can be used as it is, as the last line of the printed fit says: its error is known.

        So it is where the check after the rounds has measured and corrected the error of their Gaussian, whether or not
        they have converged; and where converged rounds need no check, as Markov chains.
        """
        return usable(self.fitted)

    @property
    def monte_carlo_error(self) -> float:
        """Monte Carlo error of the means, in posterior sds (root mean square over the globals).

        The replicates' spread (NaN with one replicate); for Markov chains ``1 / sqrt(effective sample size)``.
        """
        return verdict(self.fitted).error

    @property
    def rounds(self) -> "xr.Dataset":
        """Diagnostics per round, client and replicate; for Markov chains, means over blocks of rounds.

        The attributes hold what the rounds have cost (``exchanges``, ``bytes_down``, ``bytes_up``, see
        :attr:`communication`), and what the method has chosen and theory predicts of it.
        """
        return rounds(self.fitted)

    @property
    def communication(self) -> Communication:
        """Exchanges and bytes per client of all rounds and checks, and of all that the fit was asked since."""
        return cost(self.fitted)

    # the global posterior

    @property
    def posterior(self) -> Gaussian | LowRankGaussian | None:
        """The Gaussian over the unconstrained globals, one per replicate (leading axis).

        Of Markov chains the Gaussians with their moments; for FedPA with very many globals a
        :class:`~fedbayes.numerics.low_rank.LowRankGaussian`; ``None`` where the fit is a point.
        """
        return self.fitted.posterior

    moments = _asks(moments)
    """Mean and covariance of the unconstrained globals, by replicate."""

    @property
    def idata(self) -> Any:
        """The global posterior for ArviZ, with ``sample_stats`` and one log-likelihood per client and draw.

        Over a network the clients have sent terms of a sum, so there is no group ``log_likelihood``.

        A Gaussian answer is corrected by importance weights where they can be trusted, and where it is not exact
        already; the attribute ``correction`` says so (:attr:`error` has the numbers), and :attr:`approximate_idata` has
        the Gaussian's own draws. Its chains are replicates of the whole fit: R-hat compares replicates, and speaks
        about Monte Carlo error. The chains of FA-LD are Markov chains. The log-likelihoods are the clients' answers in
        the exchange that checks the fit, or take one more. A loaded fit reads all this from its file. No question
        changes it.

        Examples
        --------
        >>> az.summary(fit.idata)  # doctest: +SKIP
        >>> az.plot_posterior(fit.idata, var_names=["beta"])  # doctest: +SKIP
        """
        return idata(self.fitted)

    @property
    def approximate_idata(self) -> Any:
        """The same with the draws of the approximation, whether the posterior is corrected or not."""
        return approximate_idata(self.fitted)

    @property
    def theta(self) -> np.ndarray:
        """Draws of the unconstrained globals behind :attr:`idata`, shape ``(chain, draw, d)``."""
        return theta(self.fitted)

    @property
    def num_draws(self) -> int:
        """Posterior draws per chain."""
        return self.theta.shape[1]

    @property
    def num_chains(self) -> int:
        """Replicates of the fit or Markov chains: the chains of the posterior."""
        return self.theta.shape[0]

    # its error

    @property
    def correction(self) -> Correction | None:
        """What the clients' answers to draws of the Gaussian have shown.

        ``None`` where the answer is no Gaussian, such as the draws of Markov chains, and with ``correct=False``.
        """
        return correction(self.fitted)

    @property
    def error(self) -> "xr.Dataset":
        """How far the Gaussian answer is from the posterior, by importance weights.

        Returns
        -------
        xarray.Dataset
            Over ``coordinate``, the unconstrained globals: ``mean`` and ``sd``, the errors of the Gaussian's means (in
            posterior sds) and sds (relative); their own Monte Carlo errors ``mean_mcse`` and ``sd_mcse``;
            ``mean_reliable`` and ``sd_reliable``, false where few draws in a long tail make most of the mean, or of the
            sd, so that its error is not known; ``posterior_mean`` and ``posterior_sd``, which ``fit.idata`` has where
            it is corrected. The attributes: ``mean_error`` and ``sd_error``, root mean squares of the errors that are
            known; ``reliable``, without which none of these
            numbers can be trusted; ``k_hat``, ``largest_weight`` (its share), ``effective_draws`` and ``noise``
            (relative variance of the clients' estimates, in sum, averaged by the weights), which decide that: k-hat
            must be below 0.7 or the largest weight below 0.01, with 100 effective draws at least and a noise of 1 at
            most; ``distance``, a bound of the error of every mean, in posterior sds, infinite where it is above 1;
            ``correction``: ``"applied"`` to ``fit.idata``, ``"not needed"`` or ``"unreliable"``; ``exchanges`` that
            this has taken; ``modes``, the separate ones that were found and hold some of the posterior's mass;
            where they were looked for: at images under so many ``symmetries`` of signs and labels, by so many searches
            before the rounds, of which ``arrived`` came to a mode (``starts``, see ``num_starts`` of EP and Laplace),
            and ``as_wide``, one where draws as wide as the prior are dense enough to meet one.

            Over ``quantity``, what the user reads in ``fit.idata``, constrained globals and deterministic functions of
            them: ``quantity_mean``, ``quantity_sd`` and ``quantity_quantiles`` (along ``probability``) in the
            quantity's own units, with the Monte Carlo errors that they have in ``fit.idata``, ``quantity_mean_mcse``
            and so on: of the weights that were used, and of taking draws by them
            (:mod:`fedbayes.correction.quantities`). ``quantity_mean_reliable`` and ``quantity_sd_reliable`` are false
            where few draws in a long tail make most of the mean, or of the sd: their Monte Carlo errors are then too
            small, and the quantiles are what to read.

        Raises
        ------
        ValueError
            The answer is no Gaussian, or the fit was asked not to correct it.
        """
        return error(self.fitted)

    @property
    def log_evidence(self) -> np.ndarray:
        """Estimate of the log marginal likelihood per replicate; NaN under an improper prior, and for Markov chains.

        By importance weights where the posterior is corrected, else that of the Gaussian.
        """
        return log_evidence(self.fitted)

    summary_table = _asks(summary_table)
    """Every coefficient of a regression on its natural scale: odds, rate and hazard ratios, or differences."""

    random_effects = _asks(random_effects)
    """The effects of each site and of groups of a regression, their shrinkage, and contrasts between them."""

    exact = _asks(exact)
    """Markov chains with the exact posterior as their stationary law."""

    trouble = _asks(trouble)
    """What is wrong with the fit, in words, and what to try; empty if nothing is."""

    # the clients, and new rows of theirs

    client_posterior = _asks(client_posterior)
    """One client's posterior: its local latents and the globals, given everybody's data."""

    client_posteriors = _asks(client_posteriors)
    """All clients' local latents in one ArviZ object."""

    adapt = _asks(adapt)
    """Posterior of a client that joins after the fit."""

    arguments_of = _asks(arguments_of)
    """What `fit_federated` was called with, for one client alone."""

    predict = _asks(predict)
    """Posterior predictive draws of the observed sites."""

    predict_probabilities = _asks(predict_probabilities)
    """Probability of each value that an outcome can take, averaged over the draws."""

    log_predictive_density = _asks(log_predictive_density)
    """Log density of a client's new outcomes, given everybody's data."""

    # what does not fit, and what matters

    check = _asks(check)
    """Posterior predictive replicates of the clients' own outcomes, for `az.plot_ppc`."""

    predictive_check = _asks(predictive_check)
    """Where each client's outcomes lie among replicates of them, computed at the client."""

    conflict = _asks(conflict)
    """Whether what each client says of the globals agrees with what all the others say."""

    sensitivity = _asks(sensitivity)
    """How much the posterior would change with a stronger or weaker prior, or likelihood."""

    with_log_prior = _asks(with_log_prior)
    """`fit.idata` with the group `log_prior`, for ArviZ's own sensitivity."""

    select = _asks(select)
    """Which coefficients are included: by each client, for the population, and by vote."""

    leave_one_out = _asks(leave_one_out)
    """How well each client is predicted by all the others, without another fit."""

    loo = _asks(loo)
    """The same in ArviZ's form, with the client as the unit, for `az.compare`."""

    loo_rows = _asks(loo_rows)
    """Leave-one-out over single rows, at the clients."""

    def disclosure(self, rules: DisclosureRules | None = None, columns: Labels | None = None) -> Disclosure:
        """What the clients' owners would refuse to send over a network, see :func:`fedbayes.disclosure`.

        Raises
        ------
        ClientDataError
            The clients' data are in other processes.
        """
        return disclosure_of(self.problem, rules or DisclosureRules(), self.fitted.shown.local, columns)

    # files, and the screen

    save = _asks(save)
    """Write the fit to a folder, for `load_fit`."""

    report = _asks(report)
    """Write a report of the fit, one HTML file without scripts."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A fit can't be pickled or copied: it holds compiled programs, the model and the clients' data. Write "
            "`fit.save(path)`, and elsewhere `fedbayes.load_fit(path, model, clients)`; `fit.idata` can be pickled."
        )

    def __repr__(self) -> str:
        return summary(self.fitted)

    def _repr_html_(self) -> str:
        return as_html(self.fitted)
