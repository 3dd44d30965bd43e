"""``fit.conflict``: who disagrees with all the others."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy import stats

from fedbayes.contract.answer import CLIENT, COORDINATE
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import whiteners
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.numerics.p_values import holm
from fedbayes.problem.roster import Roster
from fedbayes.questions.conflict.agreement import averaged, compared, prior_scale, usual_parts
from fedbayes.questions.conflict.likelihood import Ask, by_likelihood
from fedbayes.questions.conflict.words import disagreement, remarks
from fedbayes.results.fitted import Fitted, labels, once, verdict
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

log = logging.getLogger(__name__)
_NOT_CONVERGED = (
    "the rounds have not converged, so that their sites are not yet what the clients say: "
    "a client that is named may agree with all others"
)
_PRODUCT = 1e-6  # relative difference between the posterior and prior times sites that counts as round-off


def conflict(fitted: Fitted) -> "xr.Dataset":
    """Whether what each client says of the globals agrees with what all the others say.

    With the posterior ``N(m, V)`` and the cavity ``N(m_k, V_k)``, that is the prior and all the others, ``m - m_k``
    has mean zero and variance ``V_k - V`` where the client's data obey the model: ``z_ki = (m_i - m_ki) /
    sqrt(V_k,ii - V_ii)`` is standard normal. It is exact for Gaussian sites (:mod:`fedbayes.questions.conflict` has
    the proof and the sources), and as good as the Gaussian form of the posterior otherwise: a fit that ends beside
    the mode, as federated averaging with many local steps does, has sites and z that are off as well. In one process
    the clients that disagree by their Gaussian form are asked for their likelihood on the way from ``m_k``, in 200
    questions at most, about the clearest cases first. Where it gains less than nine tenths of what its Gaussian form
    does, p is taken to be ``e^-g`` at least, with g the most nats that it gains
    (:mod:`fedbayes.questions.conflict.likelihood`). So a client is not named that has few rows and is only extreme. A
    client without a proper cavity is not asked.

    With locals, a client's site speaks of the globals only, its locals integrated out: a client whose locals are
    unusual, but not what they say of the globals, is not found. A client that knows nothing of a global by itself
    may still move it, by way of globals that are correlated with it in the cavity, and is then compared there,
    too. A client that is far off also pulls the cavities of all others, so that in a
    small federation these can seem to disagree, too; with two clients nothing tells which of them is off. Single
    and overall tests are two families, each of which raises a false alarm in at most 5 of 100 federations with
    Gaussian sites. Sites of few rows for a scale raise some more: DESIGN.md has measurements.

    The replicates' natural parameters are averaged before anything is computed from them. In one process nothing is
    exchanged. Over a network each client is asked for its cavity, once, and for no likelihood.

    Returns
    -------
    xarray.Dataset
        Over ``client`` and ``coordinate`` (``fit.global_labels``, in unconstrained space): ``difference`` (``m -
        m_k``), ``share`` (what the client removes of the variance that the others leave), ``z`` (positive where the
        client pulls the global up; limited by what the client's data gain within five prior sds of the others' mean,
        which shows where its site has hardly any curvature, and by its likelihood), ``z_mcse`` (its Monte Carlo
        standard error, from the replicates), ``p`` (two-sided), ``p_adjusted`` (Holm, over all clients and globals).
        Over ``client``: ``chi2`` and its ``rank``, of all directions together in which the client has at least a
        quarter of the information that is usual for its rows, ``p_overall``, ``p_overall_adjusted`` (Holm, over
        clients).

        NaN where there is nothing to compare: where the client says almost nothing of a global (``share`` below
        1e-6 or three Monte Carlo errors, or negative), and where the cavity is improper, as where nobody else says
        anything of it or the client is far from all others (then ``share`` is NaN, too). ``attrs["disagreement"]``
        names in words who disagrees about what at an adjusted p-value below 0.05 and is empty if nobody does;
        ``attrs["remarks"]`` says what could not be compared, and if the rounds have not converged: their sites are
        then not yet what the clients say, and whoever is named may as well agree.

    Raises
    ------
    ValueError
        The answer is no Gaussian, or not the product of the prior and the clients' sites.

    Examples
    --------
    >>> found = fit.conflict()  # doctest: +SKIP
    >>> found.attrs["disagreement"]  # doctest: +SKIP
    "client 'x' disagrees with all the others about beta[3] (z = 4.1, adjusted p = 0.002)"
    """
    found = _found(fitted)
    if verdict(fitted).converged:
        return found.copy(deep=True)
    return found.assign_attrs(remarks="; ".join([_NOT_CONVERGED, *filter(None, [found.attrs["remarks"]])]))


@once
def _found(fitted: Fitted) -> "xr.Dataset":
    """Kept, as clients may have been asked."""
    with computing():
        gaussians = gaussians_of(fitted.posterior, fitted.cavities(), fitted.roster)
        given = *gaussians, fitted.roster, labels(fitted)
        if fitted.problem.elsewhere:
            return conflict_of(*given)
        try:
            return conflict_of(*given, fitted.clients.own_log_likelihood)
        except (MemoryError, RuntimeError) as error:  # what the fit has found does not hang on it
            log.warning("Clients that disagree could not be asked for their likelihood.", exc_info=error)
            return conflict_of(*given)


def conflict_of(
    posterior: Gaussian, cavities: Gaussian, roster: Roster, labels: Sequence[str], ask: Ask | None = None
) -> "xr.Dataset":
    """:func:`conflict` of the Gaussians that :func:`gaussians_of` gives, the globals with these labels.

    ``ask`` tells the log-likelihood of a client; ``None``: nobody can be asked.
    """
    import xarray as xr

    scale = prior_scale(roster.prior)
    found, z, error = compared(posterior, cavities, usual_parts(roster), scale=scale)
    if ask is not None:
        found, z = by_likelihood(found, z, *averaged(posterior, cavities), scale, ask)
    p, p_overall = 2.0 * stats.norm.sf(np.abs(z)), found.p_overall
    each, overall = (CLIENT, COORDINATE), (CLIENT,)
    variables: dict[str, Any] = {
        "difference": (each, found.difference),
        "share": (each, found.share),
        "z": (each, z),
        "z_mcse": (each, error),
        "p": (each, p),
        "p_adjusted": (each, holm(p)),
        "chi2": (overall, np.where(found.rank > 0, found.chi2, np.nan)),
        "rank": (overall, found.rank),
        "p_overall": (overall, p_overall),
        "p_overall_adjusted": (overall, holm(p_overall)),
    }
    dataset = xr.Dataset(variables, coords={CLIENT: list(roster.names), COORDINATE: list(labels)})
    said = remarks(dataset, proper=roster.prior.is_proper)
    return dataset.assign_attrs(disagreement=disagreement(dataset), remarks="; ".join(said))


def gaussians_of(
    posterior: Gaussian | LowRankGaussian | None, cavities: Gaussian | None, roster: Roster
) -> tuple[Gaussian, Gaussian]:
    """Posterior and cavities in natural parameters, leading axes replicate, and replicate and client.

    Raises
    ------
    ValueError
        The answer is no Gaussian, or not the product of a prior and the clients' sites.
    """
    if not isinstance(posterior, Gaussian) or cavities is None:
        raise ValueError(
            "`fit.conflict` compares each client with all the others, and needs the Gaussian that each of them says of "
            "the globals. This fit has none: it is a point, Markov chains, of low rank, or couples the clients. Fit "
            "by the default method."
        )
    whole, others = jax.tree.map(np.asarray, (posterior, cavities))
    if np.isnan(whiteners(whole.precision)).any():
        raise ValueError(
            "`fit.conflict` needs a posterior with a positive definite precision matrix, which this fit has not "
            "arrived at. See `fit.trouble()`."
        )
    _check_product(whole, others, roster)
    return whole, others


def _check_product(posterior: Gaussian, cavities: Gaussian, roster: Roster) -> None:
    """Whether the posterior is prior times sites: then the cavities sum to the prior and K - 1 posteriors."""
    if roster.prior.gaussian is None:
        return
    num = roster.num_clients
    for name in ("precision", "shift"):
        whole, others, prior = (np.asarray(getattr(of, name)) for of in (posterior, cavities, roster.prior.gaussian))
        off = np.abs(others.sum(axis=1) - (num - 1) * whole - prior)
        if np.max(off) > _PRODUCT * num * max(1.0, float(np.max(np.abs(whole)))):
            raise ValueError(
                "`fit.conflict` needs a posterior that is the product of the prior and the clients' sites, and this "
                "one is combined in another way, by which a client's share in it is not known. Fit by the default "
                "method."
            )
