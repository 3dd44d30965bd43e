"""Markov chains with the exact posterior, from a fit whose answer is a Gaussian or chains of its own."""

import warnings
from functools import partial
from typing import Any

import numpy as np

from fedbayes.contract.locals_from import Question, check
from fedbayes.correction.exact import ExactChains, exact_chains
from fedbayes.errors import UnreliableWarning
from fedbayes.results.corrected import weighed
from fedbayes.results.fitted import Fitted
from fedbayes.results.posterior import of_globals
from fedbayes.rounds.progress import show
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing


def exact(fitted: Fitted, num_draws: int | None = None, *, max_exchanges: int = 10, progress: bool = True) -> Any:
    """Markov chains with the exact posterior as their stationary law, whatever the fit's method approximates.

    Independence Metropolis: in each exchange all clients answer with their log-likelihoods at many draws of a
    fixed proposal, which was fitted to the weighted draws of the fit, and the server accepts or rejects them, one
    after the other (:mod:`fedbayes.correction.exact`). This also removes the bias of Langevin steps. Where clients
    have locals the answers are unbiased estimates, which are kept, so that the chains stay exact.

    The chains start at weighted draws of the fit, and so at each separate mode that the check has found: those to which
    symmetries of signs and labels lead (:mod:`fedbayes.correction.images`), those that draws as wide as the prior have
    met, which they do with few globals and priors that are not vague, and those that searches from several starts have
    found, where the fit was made by ``EP(num_starts=...)`` or ``Laplace(num_starts=...)``. A mode that none of these
    has met is not looked for: all chains then agree about the others, R-hat included.

    The price: at most three exchanges to fit the proposal, of which the fit may have made some, and at most
    ``max_exchanges`` more, of ``8 S`` bytes from each client for ``S`` draws, ``num_draws`` for each chain of the
    fit; to it goes the recipe by which it makes the draws (:mod:`fedbayes.correction.recipe`). The chains stop
    earlier where R-hat is below 1.01 with 100 effective draws a chain.

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
        As ``fit.idata``, without the clients' locals; the attributes hold ``acceptance_rate``, ``r_hat``,
        ``effective_draws`` and ``exchanges``.

    Raises
    ------
    ValueError
        A parameter is no positive number; the posterior has low rank, is a point, or couples the clients' locals.

    Warns
    -----
    UnreliableWarning
        The chains have not mixed: their draws are not to be trusted.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> chains = fit.exact(num_draws=100, progress=False)
    >>> bool(chains["posterior"].attrs["r_hat"] < 1.01)
    True
    """
    for name, value in (("num_draws", num_draws), ("max_exchanges", max_exchanges)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"`{name}` is {value!r}; write a whole number, at least 1.")
    check(fitted.answer.locals_from, Question.EXACT)
    fitted.dense("exact")
    found = _run(fitted, num_draws or fitted.shown.num_draws, max_exchanges, progress)
    if not found.mixed:
        warnings.warn(
            f"The chains have not mixed after {found.exchanges} exchanges: R-hat is {found.r_hat:.3g}, with "
            f"{found.effective:.0f} effective draws, and {100.0 * found.acceptance:.2g} percent of the proposals "
            "were accepted. Raise `max_exchanges`, or write the model in another parametrisation, nearer to "
            "Gaussian in unconstrained space.",
            UnreliableWarning,
            stacklevel=3,  # the caller of the method
        )
    length = found.theta.shape[1]
    kept = np.linspace(0, length - 1, min(num_draws or fitted.shown.num_draws, length)).round().astype(int)
    with computing():
        theta, log_likelihood = found.theta[:, kept], found.log_likelihood[:, kept]
        return of_globals(fitted, theta, log_likelihood, {"lp": found.log_joint[:, kept]}, found.attrs())


def _run(fitted: Fitted, num_draws: int, max_exchanges: int, progress: bool) -> ExactChains:
    """The chains, while a bar is shown."""
    bar, num = show(progress), fitted.shown.num_draws
    try:
        bar.start(f"exact chains, at most {max_exchanges} exchanges of {num:,} draws a chain", max_exchanges)
        with computing():
            found = weighed(fitted)
            return exact_chains(
                found,
                fitted.roster.prior.log_densities,
                partial(fitted.clients.log_likelihood, what="exact", finer=found.finer),
                key_for(fitted.key, Purpose.EXACT),
                num_draws=num_draws,
                num_proposals=num,
                max_exchanges=max_exchanges,
                progress=bar,
            )
    finally:
        bar.close()
