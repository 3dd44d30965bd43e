"""Conflict between clients: whether what one client says of the globals agrees with what all the others say.

Each client is split from the rest (node splitting: Marshall and Spiegelhalter 2007; Presanis, Ohlssen, Spiegelhalter
and De Angelis 2013). Its cavity ``N(m_k, V_k)`` is the prior times all other sites, and with its own site this gives
the posterior ``N(m, V)``. If the client's data obey the model, then given everybody else's data
``theta ~ N(m_k, V_k)``, and over the client's data

    E[m] = m_k,        V_k = Var(m) + E[V] = Var(m) + V        (law of total variance),

as ``V`` of a Gaussian factor does not depend on its data. So ``m - m_k ~ N(0, V_k - V)``. Both moments are defined
where the client's own site is flat or improper. Where it is a proper ``N(s_k, S_k)``, this is the comparison of the
two: by ``m - m_k = V_k (V_k + S_k)^-1 (s_k - m_k)`` and ``V_k - V = V_k (V_k + S_k)^-1 V_k`` the test of all directions
together is that of ``s_k - m_k ~ N(0, V_k + S_k)``.

References
----------
Marshall and Spiegelhalter (2007), Identifying outliers in Bayesian hierarchical models: a simulation-based approach,
Bayesian Analysis 2(2). Presanis, Ohlssen, Spiegelhalter and De Angelis (2013), Conflict diagnostics in directed acyclic
graphs, with applications in Bayesian evidence synthesis, Statistical Science 28(3). Holm (1979), A simple sequentially
rejective multiple test procedure, Scandinavian Journal of Statistics 6(2).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from fedbayes.contract.answer import CLIENT, COORDINATE, shortened
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import whiteners
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster
from fedbayes.results.fitted import Fitted, labels, verdict
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

LEVEL = 0.05  # of the adjusted p-values
_KNOWN = 1e-9  # share of the posterior's precision that the others hold: below it they know nothing of a direction
_SAYS = 1e-6  # share of the cavity's variance that a client removes: below it the client says nothing
_TYPICAL = 0.25  # of the information that a client has on average: a direction with less is left out of the joint test
_AWAY = 5.0  # prior sds from what all others say: farther away no client is believed to have its likeliest values
_ORDINARY = 2.0  # z that needs no limit
_ERRORS = 3.0  # Monte Carlo standard errors by which both must exceed zero
_JOINTLY = "jointly"  # about no global by itself, but in the test of all of them together
_NAMED = 3  # globals of one client that are named in words
_NOT_CONVERGED = (
    "the rounds have not converged, so that their sites are not yet what the clients say: "
    "a client that is named may agree with all others"
)
_PRODUCT = 1e-6  # relative difference between the posterior and prior times sites that counts as round-off


class Agreement(NamedTuple):
    """How far each client's data move the posterior from its cavity, and how far they should.

    Attributes
    ----------
    difference
        ``m - m_k``, shape ``(K, d)``; NaN where nobody but the client knows anything of a global.
    variance
        Its variance under agreement, the diagonal of ``V_k - V``, shape ``(K, d)``.
    share
        ``variance`` over the diagonal of ``V_k``: what the client removes of the others' uncertainty, shape ``(K, d)``.
    limit
        What ``|z|`` can be at most, shape ``(K, d)``, see :func:`_limits`; infinite for most.
    chi2
        ``(m - m_k)' (V_k - V)^+ (m - m_k)`` over the directions in which client and others both know something, shape
        ``(K,)``.
    rank
        Number of these directions, shape ``(K,)``.
    """

    difference: np.ndarray
    variance: np.ndarray
    share: np.ndarray
    limit: np.ndarray
    chi2: np.ndarray
    rank: np.ndarray

    @property
    def z(self) -> np.ndarray:
        """The difference in standard deviations; NaN where the client does not narrow what the others know."""
        informed = self.variance > 0.0
        z = np.where(informed, self.difference / np.sqrt(np.where(informed, self.variance, 1.0)), np.nan)
        return np.clip(z, -self.limit, self.limit)

    @property
    def p_overall(self) -> np.ndarray:
        """Of all directions together, shape ``(K,)``; NaN where there is none."""
        return np.where(self.rank > 0, stats.chi2.sf(self.chi2, np.maximum(self.rank, 1)), np.nan)


def agreement(
    posterior: Gaussian,
    cavities: Gaussian,
    part: np.ndarray | float = 0.0,
    replicates: tuple[Gaussian, Gaussian] | None = None,
    information: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> Agreement:
    """Each client's cavity against the posterior.

    The directions are those of the generalised eigenproblem of the cavity's and the posterior's precisions, ``A' Q A =
    I`` and ``A' Q_k A = diag(lambda)``. In direction j the others hold the share ``lambda_j`` of the posterior's
    precision, and ``V_k - V`` is ``(1 - lambda_j) / lambda_j`` without a difference of large numbers.

    Parameters
    ----------
    posterior
        Over the unconstrained globals, shapes ``(d,)`` and ``(d, d)``.
    cavities
        Leading axis of clients.
    part
        What part of all clients' information each one has on average, shape ``(K,)``: from the overall test those
        directions are left out in which it has less than a quarter of that. For Gaussian factors information is a
        matter of design, and to leave some out is a choice of directions and no more. For others it depends on the
        data. Where it is next to nothing by chance, so is ``V_k - V``, and any difference would be taken for a large
        one.
    replicates
        Posteriors and cavities of which these are the means over a leading axis of replicates: a client, or the others,
        know something of a direction where their precision exceeds three Monte Carlo standard errors. ``None``: there
        is no Monte Carlo noise.
    information
        The precision of all clients' sites together, ``(d, d)``; ``None``: as the cavities, of all clients, say.
    scale
        The prior's sds, ``(d,)``; ``None``: of what the posterior has beside that information.
    """
    white = whiteners(np.asarray(posterior.precision)[None])[0]
    precisions = white @ np.asarray(cavities.precision) @ white.T
    share, turn = np.linalg.eigh(0.5 * (precisions + np.swapaxes(precisions, 1, 2)))
    axes = white.T @ turn  # (K, d, d), columns are directions
    noise, own_noise = (0.0, 0.0) if replicates is None else _noises(*replicates, axes)
    known = share > np.maximum(_KNOWN, _ERRORS * noise)
    all_cavities = len(share) * np.asarray(posterior.precision) - np.sum(cavities.precision, axis=0)
    sites = all_cavities if information is None else information
    scale = _scales(np.asarray(posterior.precision) - sites) if scale is None else scale
    usual = np.reshape(part, (-1, 1)) * np.sum(axes * (sites @ axes), axis=1)
    informed = known & (1.0 - share > np.maximum(np.maximum(_SAYS, _TYPICAL * usual), _ERRORS * own_noise))
    safe = np.where(known, share, 1.0)
    own = np.einsum("kij,i->kj", axes, np.asarray(posterior.shift))
    others = np.einsum("kij,ki->kj", axes, np.asarray(cavities.shift))
    gap, expected = own - others / safe, _expected(safe)
    lost = np.einsum("kij,kj->ki", axes**2, ~known) > 1e-6 * np.einsum("kij->ki", axes**2)
    variance = np.einsum("kij,kj->ki", axes**2, expected)
    return Agreement(
        np.where(lost, np.nan, np.einsum("kij,kj->ki", axes, np.where(known, gap, 0.0))),
        np.where(lost, np.nan, variance),
        np.where(lost, np.nan, variance / np.einsum("kij,kj->ki", axes**2, 1.0 / safe)),
        _limits(posterior, cavities, np.einsum("kij,klj,kj->kil", axes, axes, 1.0 / safe), scale),
        np.sum(np.where(informed, gap**2 / np.where(informed, expected, 1.0), 0.0), axis=1),
        informed.sum(axis=1),
    )


def _expected(share: np.ndarray) -> np.ndarray:
    """``V_k - V`` along directions in which the others hold this share of the posterior's precision."""
    return (1.0 - share) / share


def other_scale(prior: Prior) -> np.ndarray | None:
    """The sds ``(d,)`` of a proper prior that is not Gaussian; ``None`` for others, whose precision has them."""
    return prior.spread[1] if prior.gaussian is None and prior.spread is not None else None


def _scales(precision: np.ndarray) -> np.ndarray:
    """Sds of a Gaussian, infinite where it is improper."""
    white = whiteners(precision[None])[0]
    return np.where(np.all(np.isfinite(white)), np.sqrt(np.sum(white**2, axis=0)), np.inf)


def _limits(posterior: Gaussian, cavities: Gaussian, covariances: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How large ``|z|`` can be by what the client's factor gains, shape ``(K, d)``.

    A factor whose curvature is next to nothing by chance, as Laplace's of a scale of locals that are close to each
    other, is highest nowhere that the prior knows, and ``V_k - V`` is next to nothing, too. Of data that obey the
    model, the likelihood at any one other value is ``e^g`` times as high with probability at most ``e^-g`` (Markov's
    inequality). So where a factor is highest beyond five prior sds of a global from the cavity's mean, along the
    cavity's regression on that global, the two-sided p-value is no less than ``e^-g``, with ``g`` the nats that are
    gained on the way to these five, and ``|z|`` up to two is left alone. Elsewhere z is exact for Gaussian factors.

    Parameters
    ----------
    posterior, cavities
        As for :func:`agreement`.
    covariances
        Of the cavities, ``(K, d, d)``.
    scale
        The prior's sds, ``(d,)``; infinite where it knows no bounds.
    """
    farthest = np.where(np.isfinite(scale), _AWAY * scale, 0.0)
    own = np.asarray(posterior.precision) - cavities.precision
    means = np.einsum("kij,kj->ki", covariances, np.asarray(cavities.shift))
    slope = np.asarray(posterior.shift) - cavities.shift - np.einsum("kij,kj->ki", own, means)
    moves = covariances / np.einsum("kii->ki", covariances)[:, None, :]  # a column for a global that moves by one
    pull = np.abs(np.einsum("kji,kj->ki", moves, slope))
    curvature = np.einsum("kji,kjl,kli->ki", moves, own, moves)
    gain = pull * farthest - 0.5 * curvature * farthest**2
    limit = np.maximum(stats.norm.isf(0.5 * np.exp(-np.maximum(gain, 0.0))), _ORDINARY)
    return np.where((pull > curvature * farthest) & np.isfinite(scale), limit, np.inf)


def _noises(posterior: Gaussian, cavities: Gaussian, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte Carlo standard errors of the others' and the client's own precision along directions, each ``(K, d)``."""
    others = np.asarray(cavities.precision)
    own = np.asarray(posterior.precision)[:, None] - others
    along = [np.sum(axes * (matrices @ axes), axis=-2) for matrices in (others, own)]
    return _standard_error(along[0]), _standard_error(along[1])


def conflict(fitted: Fitted) -> "xr.Dataset":
    """Whether what each client says of the globals agrees with what all the others say.

    With the posterior ``N(m, V)`` and the cavity ``N(m_k, V_k)``, that is the prior and all the others, ``m - m_k``
    has mean zero and variance ``V_k - V`` where the client's data obey the model: ``z_ki = (m_i - m_ki) /
    sqrt(V_k,ii - V_ii)`` is standard normal. It is exact for Gaussian sites (:mod:`fedbayes.questions.conflict` has
    the proof and the sources), and as good as the Gaussian form of the posterior otherwise: a fit that ends beside
    the mode, as federated averaging with many local steps does, has sites and z that are off as well.

    With locals, a client's site speaks of the globals only, its locals integrated out: a client whose locals are
    unusual, but not what they say of the globals, is not found. A client that knows nothing of a global by itself
    may still move it, by way of globals that are correlated with it in the cavity, and is then compared there,
    too. A client that is far off also pulls the cavities of all others, so that in a
    small federation these can seem to disagree, too; with two clients nothing tells which of them is off. Single
    and overall tests are two families, each of which raises a false alarm in at most 5 of 100 federations with
    Gaussian sites. Sites of few rows for a scale raise some more: DESIGN.md has measurements.

    The replicates' natural parameters are averaged before anything is computed from them. In one
    process nothing is exchanged; over a network each client is asked for its cavity, once.

    Returns
    -------
    xarray.Dataset
        Over ``client`` and ``coordinate`` (``fit.global_labels``, in unconstrained space): ``difference`` (``m -
        m_k``), ``share`` (what the client removes of the variance that the others leave), ``z`` (positive where the
        client pulls the global up; limited by what the client's data gain within five prior sds of the others' mean,
        which shows where its site has hardly any curvature), ``z_mcse`` (its Monte Carlo standard error, from the
        replicates), ``p``
        (two-sided), ``p_adjusted`` (Holm, over all clients and globals). Over ``client``: ``chi2`` and its
        ``rank``, of all directions together in which the client has at least a quarter of the information that is
        usual for its rows, ``p_overall``, ``p_overall_adjusted`` (Holm, over clients).

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
    with computing():
        gaussians = gaussians_of(fitted.posterior, fitted.cavities(), fitted.roster)
        found = conflict_of(*gaussians, fitted.roster, labels(fitted))
    if verdict(fitted).converged:
        return found
    return found.assign_attrs(remarks="; ".join([_NOT_CONVERGED, *filter(None, [found.attrs["remarks"]])]))


def conflict_of(posterior: Gaussian, cavities: Gaussian, roster: Roster, labels: Sequence[str]) -> "xr.Dataset":
    """:func:`conflict` of the Gaussians that :func:`gaussians_of` gives, the globals with these labels."""
    import xarray as xr

    found, z, error = compared(posterior, cavities, usual_parts(roster), scale=other_scale(roster.prior))
    p = 2.0 * stats.norm.sf(np.abs(z))
    p_overall = found.p_overall
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
    remarks = _remarks(dataset, proper=roster.prior.is_proper)
    return dataset.assign_attrs(disagreement=disagreement(dataset), remarks="; ".join(remarks))


def usual_parts(roster: Roster) -> np.ndarray:
    """What part of all clients' information each one has on average, shape ``(K,)``: as its rows are of all rows.

    It is no more than that of one of K clients: with locals, many rows of one client are one observation.
    """
    return np.minimum(roster.rows / np.sum(roster.rows), 1.0 / roster.num_clients)


def compared(
    posterior: Gaussian,
    cavities: Gaussian,
    part: np.ndarray | float,
    information: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> tuple[Agreement, np.ndarray, np.ndarray]:
    """:func:`agreement` of the means of replicates' natural parameters, and how far each client pulls each global.

    Parameters
    ----------
    posterior, cavities
        Leading axes replicate, and replicate and client.
    part, information, scale
        As for :func:`agreement`.

    Returns
    -------
    found, z, error
        ``z`` and its Monte Carlo standard error, both ``(K, d)``, are NaN where a client says nothing beyond noise.
    """
    num = len(cavities.shift)
    replicates = [jax.tree.map(lambda leaf, r=r: leaf[r], (posterior, cavities)) for r in range(num)]
    single = [agreement(whole, without, 0.0, None, information, scale) for whole, without in replicates]
    mean, others = jax.tree.map(lambda leaf: leaf.mean(axis=0), (posterior, cavities))
    found = agreement(mean, others, part, (posterior, cavities) if num > 1 else None, information, scale)
    spread = _standard_error([one.share for one in single]) if num > 1 else 0.0
    z = np.where(found.share > np.maximum(_SAYS, _ERRORS * spread), found.z, np.nan)
    error = np.where(np.isnan(z), np.nan, _standard_error([one.z for one in single]) if num > 1 else np.nan)
    return found, z, error


def _standard_error(values: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Of the mean over a leading axis of replicates; NaN where one of them has none."""
    return np.std(values, axis=0, ddof=1) / np.sqrt(len(values))


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


def holm(p: np.ndarray) -> np.ndarray:
    """P-values adjusted for the number of comparisons (Holm 1979), in the shape of ``p``; NaN does not count."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")[: np.count_nonzero(~np.isnan(flat))]
    adjusted = np.full(flat.shape, np.nan)
    steps = flat[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.reshape(p.shape)


def disagreeing(conflict: "xr.Dataset") -> list[str]:
    """The clients that disagree with all the others, the clearest case first, each with the globals that it is about.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    found = []
    for place in _at_odds(conflict):
        single = conflict["p_adjusted"].isel({CLIENT: place})
        about = [str(label) for label in single[COORDINATE].values[single.values < LEVEL]]
        name = str(conflict[CLIENT].values[place])
        found.append(f"{name} ({shortened(about, _NAMED) if about else _JOINTLY})")
    return found


def left_out(conflict: "xr.Dataset") -> list[str]:
    """The clients that have no proper cavity to be compared with, in some direction or all.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    return list(conflict[CLIENT].values[np.isnan(conflict["share"].values).any(axis=1)])


def _at_odds(conflict: "xr.Dataset") -> list[int]:
    """Places of the clients that disagree, the clearest case first."""
    single = np.any(conflict["p_adjusted"].values < LEVEL, axis=1)
    disagrees = single | (conflict["p_overall_adjusted"].values < LEVEL)
    return [int(place) for place in _by_weight(conflict) if disagrees[place]]


def _by_weight(conflict: "xr.Dataset") -> np.ndarray:
    """Places of the clients, the clearest case first."""
    single, overall = conflict["p_adjusted"], conflict["p_overall_adjusted"]
    least = np.fmin(single.fillna(1.0).min(COORDINATE).values, overall.values)
    farthest = abs(conflict["z"]).fillna(0.0).max(COORDINATE).values  # where p is too small for a number
    return np.lexsort((-farthest, least))


def disagreement(conflict: "xr.Dataset") -> str:
    """Who disagrees with all the others about what, in words; empty if nobody does.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    parts = []
    for client in _at_odds(conflict):
        mine = conflict.isel({CLIENT: client})
        p = mine["p_adjusted"].values
        about = [_about(mine.isel({COORDINATE: place})) for place in np.argsort(p) if p[place] < LEVEL]
        if not about:
            about = [
                f"several globals together (chi-squared {float(mine['chi2']):.1f} on {int(mine['rank'])} degrees of "
                f"freedom, adjusted p = {float(mine['p_overall_adjusted']):.2g})"
            ]
        name = str(mine[CLIENT].values)
        parts.append(f"client '{name}' disagrees with all the others about {shortened(about, _NAMED)}")
    return "; ".join(parts)


def _about(one: "xr.Dataset") -> str:
    return f"{one[COORDINATE].item()} (z = {float(one['z']):.1f}, adjusted p = {float(one['p_adjusted']):.2g})"


def _remarks(conflict: "xr.Dataset", *, proper: bool) -> list[str]:
    """What could not be compared, and why.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    proper
        Whether the prior is: then no client knows alone what nobody else speaks of.
    """
    alone = np.isnan(conflict["share"].values)
    unheard = np.isnan(conflict["z"].values) & ~alone.any(axis=1, keepdims=True)
    silent = (conflict["rank"].values == 0) & ~alone.any(axis=1)
    without = (
        "client '{}' can't be compared about {}: the others' sites leave it an improper cavity, as where it is far "
        "from them or the rounds have not converged; a fit without it tells what they say"
        if proper
        else "nobody but client '{}' knows anything of {}"
    )
    clients, labels = conflict[CLIENT].values, conflict[COORDINATE].values
    found = [
        without.format(client, shortened(list(labels[row])))
        for client, row in zip(clients, alone, strict=True)
        if row.any()
    ]
    who: dict[tuple[str, ...], list[str]] = {}
    for client, row in zip(clients[~silent], unheard[~silent], strict=True):
        who.setdefault(tuple(labels[row]), []).append(client)
    too_little = "too little to compare is said"
    found += [f"{too_little} of {shortened(about)} by {shortened(them)}" for about, them in who.items() if about]
    return [*found, *([f"{too_little} by {shortened(list(clients[silent]))}"] if silent.any() else [])]
