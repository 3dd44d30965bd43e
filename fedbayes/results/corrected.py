"""Draws of a fit's posterior, checked and corrected where that is possible, and what the fit knows of their error.

Functions of a :class:`~fedbayes.results.fitted.Fitted`. With ``correct=True`` the clients have answered to draws of a
Gaussian answer; importance weights by their answers measure its error, and correct the draws where the weights can be
trusted (:mod:`fedbayes.correction`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedbayes.contract.answer import GaussianAnswer
from fedbayes.correction.correct import Correction, correct, correctable, correctable_precision, keyed_draws
from fedbayes.correction.recipe import Drawn, Recipe
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.results.checked import Checked
from fedbayes.results.fitted import Fitted, once, was_asked
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing


@once
def is_checked(fitted: Fitted) -> bool:
    """Whether checking the answer is part of the fit."""
    return fitted.shown.correct and correctable(fitted.answer)


@once
def weighed(fitted: Fitted) -> Correction:
    """Draws of the Gaussian, or of the one with the chains' moments, with the clients' answers: at most 3 exchanges."""
    with computing():
        keys = key_for(fitted.key, Purpose.DRAWS), key_for(fitted.key, Purpose.RESAMPLED)
        ask = partial(fitted.clients.log_likelihood, what="posterior" if is_checked(fitted) else "exact")
        modes = fitted.answer.modes if isinstance(fitted.answer, GaussianAnswer) else None
        shapes = fitted.roster.globals.shapes
        return correct(fitted.dense("exact"), fitted.shown.num_draws, fitted.roster.prior, ask, keys, shapes, modes)


def correction(fitted: Fitted) -> Correction | None:
    """What the clients' answers to draws of the Gaussian have shown; ``None`` where the answer isn't checked."""
    return weighed(fitted) if is_checked(fitted) else None


@once
def _checked_now(fitted: Fitted) -> Checked:
    with computing():
        return Checked.of(weighed(fitted))


def checked(fitted: Fitted) -> Checked | None:
    """What the check has shown; a loaded fit knows it from its file, and asks nobody.

    Only a fit saved by a version that did not write it down is checked anew.
    """
    if fitted.saved is not None and fitted.saved.checked is not None:
        return fitted.saved.checked
    return _checked_now(fitted) if is_checked(fitted) else None


def check_is_due(fitted: Fitted) -> bool:
    """Whether the answer would have to be checked now, by exchanges, for :func:`checked` to say something."""
    in_file = fitted.saved is not None and fitted.saved.checked is not None
    return is_checked(fitted) and not in_file and not was_asked(fitted, weighed)


def log_evidence(fitted: Fitted) -> np.ndarray:
    """Estimate of the log marginal likelihood per replicate, see :attr:`fedbayes.FederatedFit.log_evidence`."""
    approximate, found = fitted.answer.log_evidence(), correction(fitted)
    if found is None or not found.applied or fitted.roster.prior.is_flat():
        return approximate
    return found.pool.log_evidence()


@once
def approximate_theta(fitted: Fitted) -> np.ndarray:
    """Draws of the answer itself, shape ``(chain, draw, d)``."""
    with computing():
        return fitted.answer.draws(key_for(fitted.key, Purpose.DRAWS), fitted.shown.num_draws)


def theta(fitted: Fitted) -> np.ndarray:
    """Draws of the unconstrained globals, corrected where that is possible, shape ``(chain, draw, d)``."""
    found = correction(fitted)
    return approximate_theta(fitted) if found is None or not found.applied else found.theta


@once
def log_likelihood(fitted: Fitted) -> np.ndarray:
    """Of each client at :func:`theta`, shape ``(chain, draw, client)``; over a network of all together, as one."""
    found = correction(fitted)
    if found is not None and found.applied:
        return found.at(found.pool.log_likelihood)
    return approximate_log_likelihood(fitted)


@once
def approximate_log_likelihood(fitted: Fitted) -> np.ndarray:
    """The same at :func:`approximate_theta`: the clients were asked for them, or are asked now."""
    found, draws = correction(fitted), approximate_theta(fitted)
    if found is not None and np.array_equal(found.pool.theta[:, : found.num], draws):
        return found.pool.log_likelihood[:, : found.num]
    what = "posterior" if found is None else "approximate posterior"  # of which `idata` needs no more
    with computing():
        return np.moveaxis(fitted.clients.log_likelihood(_with_recipe(fitted, draws), what=what).replies.each, 0, -1)


@once
def single_correction(fitted: Fitted) -> Correction | None:
    """:func:`correction` with the log-likelihoods client by client.

    Over a network the clients are asked for them, at the same draws and with the same random numbers.
    """
    found = correction(fitted)
    if found is None or not fitted.problem.elsewhere:
        return found
    with computing():
        single = [_single(fitted, draws, turn, found.finer) for turn, draws in found.exchanged()]
    return replace(found, pool=replace(found.pool, log_likelihood=np.concatenate(single, axis=1)))


@once
def single_log_likelihood(fitted: Fitted) -> np.ndarray:
    """:func:`log_likelihood` client by client, also over a network, where the clients are asked for it."""
    if not fitted.problem.elsewhere:
        return log_likelihood(fitted)
    found = single_correction(fitted)
    if found is not None:
        return found.at(found.pool.log_likelihood)
    with computing():
        return _single(fitted, _with_recipe(fitted, theta(fitted)))


def _single(fitted: Fitted, drawn: Drawn, turn: int = 0, finer: bool = False) -> np.ndarray:
    """Each client's log-likelihoods at draws ``(chain, draw, d)``, shape ``(chain, draw, client)``."""
    heard = fitted.clients.log_likelihood(drawn, turn, what="single log-likelihoods", finer=finer, single=True)
    return np.moveaxis(heard.replies.each, 0, -1)


def recipes(fitted: Fitted) -> tuple[Sequence[Recipe], np.ndarray] | None:
    """By which a client makes the draws of :func:`theta`, and which of them; ``None`` where they have to be sent."""
    found = correction(fitted)
    if found is not None and found.applied:
        made = [recipe for recipe in found.pool.recipes if recipe is not None]
        return (made, found.places) if len(made) == len(found.pool.recipes) else None
    theta, recipe = _with_recipe(fitted, approximate_theta(fitted))
    return None if recipe is None else ([recipe], np.tile(np.arange(theta.shape[1]), (len(theta), 1)))


def _with_recipe(fitted: Fitted, theta: np.ndarray) -> Drawn:
    """Draws with their recipe, where they are those of a Gaussian answer."""
    with computing():
        if isinstance(fitted.posterior, Gaussian) and np.all(correctable_precision(fitted.posterior)):
            drawn = keyed_draws(fitted.posterior, theta.shape[1], key_for(fitted.key, Purpose.DRAWS))
            if np.array_equal(drawn.theta, theta):
                return drawn
    return Drawn(theta)
