"""Variable selection from posterior draws: by credible interval, practical threshold, or false discovery rate."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.errors import NotConvergedWarning
from fedbayes.problem.roster import Roster
from fedbayes.questions.clients import client_posterior
from fedbayes.questions.hypothesis import SAMPLES, check_level, equal_tailed, probability_of_direction
from fedbayes.questions.summary import trouble
from fedbayes.results.arviz import CLIENTS, shown
from fedbayes.results.corrected import theta
from fedbayes.results.fitted import Fitted, verdict
from fedbayes.results.posterior import idata

if TYPE_CHECKING:
    import xarray as xr

INTERVALS = ("equal-tailed", "hdi")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a coefficient is included, see :meth:`fedbayes.FederatedFit.select`; checked when it is made."""

    level: float = 0.9
    interval: str = "equal-tailed"
    rope: float = 0.0
    fdr: float | None = None

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.interval not in INTERVALS:
            raise ValueError(f"`interval` is {self.interval!r}; it is one of {list(INTERVALS)}.")
        if not (isinstance(self.rope, Real) and 0.0 <= self.rope < np.inf):
            raise ValueError(
                f"`rope` is {self.rope!r}; it is the largest absolute value that is practically zero, in units of the "
                "coefficients, such as 0.1."
            )
        if self.fdr is not None and not _between(self.fdr):
            raise ValueError(
                f"`fdr` is {self.fdr!r}; it is the expected share of false inclusions that is tolerated and lies in "
                "(0, 1), such as 0.1. Leave it out to select by the credible interval."
            )
        if self.fdr is not None and not self.rope:
            raise ValueError(
                "`fdr` needs `rope`, the largest absolute value that is practically zero, such as `rope=0.1`: under "
                "these priors no coefficient is exactly zero, so that only of practically irrelevant ones can be said "
                "how many are expected among those included."
            )

    def told(self) -> str:
        """In words."""
        nothing = f"[-{self.rope:g}, {self.rope:g}]" if self.rope else "0"
        if self.fdr is not None:
            return f"it is in the largest set whose expected share of false inclusions is at most {self.fdr:g}"
        return f"the {self.level:.0%} {self.interval} credible interval excludes {nothing}"


def select(
    fitted: Fitted,
    coefficients: str | None = None,
    *,
    level: float = 0.9,
    interval: str = "equal-tailed",
    rope: float = 0.0,
    fdr: float | None = None,
    population: str | None = None,
    vote: float | None = None,
) -> "xr.Dataset":
    """Which coefficients are included: by each client, for the population, and by vote.

    A coefficient is included where its credible interval excludes zero (Yue 2023, section 3.4.3), or lies wholly
    outside ``[-rope, rope]``. With ``fdr``: as many as keep the expected share of false inclusions below it, those
    of the largest probability ``outside`` first (Mueller, Parmigiani, Robert and Rousseau 2004).

    What multiplicity does is said by the expected number of false inclusions. Under these priors no coefficient is
    exactly zero, so that false means practically zero, inside the rope, with probability ``1 - outside``. Without a
    rope it is the number of wrong signs, with probability ``1 - direction`` each, which says nothing of irrelevant
    coefficients: of these an interval of 90 percent includes up to one in ten.

    A client's selection is computed from its own posterior, where its coefficients are; for it no client sends
    anything beyond the messages of the fit. The population's is computed from the globals. ``vote`` alone needs
    more: one bit from each client for each coefficient, whether it is included there.

    Parameters
    ----------
    coefficients
        The variable of :meth:`client_posterior` that holds them; ``None``: the only array of the client's own, or
        the only one that was integrated out, such as ``theta`` of :mod:`fedbayes.models.penalised`.
    level
        Probability of the credible interval.
    interval
        ``"equal-tailed"``, or ``"hdi"``: the shortest interval that has this share of the draws.
    rope
        Largest absolute value that is practically zero (region of practical equivalence), in the coefficients'
        units.
    fdr
        Expected share of false inclusions, for each client by itself; needs a ``rope``.
    population
        A global that holds the coefficients' mean over clients, such as ``mu``.
    vote
        Share of the clients that must include a coefficient.

    Returns
    -------
    xarray.Dataset
        Over ``client_name`` and the coefficients, with their names from ``coords``: ``mean``, ``sd``, ``lower``,
        ``upper``, ``direction`` (the probability of the likelier sign), ``outside`` (of lying outside the rope),
        ``included``; over clients ``expected_false`` or, without a rope, ``expected_wrong_signs``. With
        ``population`` the same called ``population_...``; with ``vote`` also ``votes`` and ``voted``. Its ``attrs``
        hold the rule in words, and remarks.

    Raises
    ------
    ValueError
        A parameter is out of its range; no variable, or several, may be meant; the fit is a point.

    Warns
    -----
    fedbayes.errors.NotConvergedWarning
        The fit has not converged.
    """
    import xarray as xr

    rule = Rule(level=level, interval=interval, rope=rope, fdr=fdr)
    if theta(fitted).shape[1] == 1:
        raise ValueError(
            "This fit is a point, and credible intervals need a posterior: fit by a method that ends with one."
        )
    converged = verdict(fitted).converged
    if not converged:
        told = f"This selection is made from a fit that did not converge. {trouble(fitted)}"
        warnings.warn(told, NotConvergedWarning, stacklevel=3)  # the caller of the method
    parts: list[xr.Dataset] = []
    remarks: list[str] = []
    if coefficients is not None or vote is not None or population is None or _own_variables(fitted):
        name = coefficients_name(_own_variables(fitted), coefficients, fitted)
        groups = {each: _variable(client_posterior(fitted, each).posterior, name) for each in fitted.roster.names}
        parts, remarks = [by_client(groups, rule)], _undecided(fitted.roster, groups)
        if vote is not None:
            parts.append(voted(parts[0]["included"], vote))
    if population is not None:
        draws = _variable(idata(fitted).posterior, population)
        parts.append(of_population(with_same_labels(draws, parts[0]) if parts else draws, rule))
    attrs = {"rule": rule.told(), "level": rule.level, "converged": int(converged), "remarks": "; ".join(remarks)}
    return xr.merge(parts, join="exact").assign_attrs(attrs)


def selected(draws: "xr.DataArray", rule: Rule) -> "xr.Dataset":
    """What one client's draws, or the population's, say of each coefficient, and which are included.

    It needs these draws and nothing else, so that each client computes its own.

    Parameters
    ----------
    draws
        Dimensions ``chain``, ``draw`` and those of the coefficients.
    rule
        When a coefficient is included.
    """
    import xarray as xr

    lower, upper = _interval(draws, rule)
    direction: Any = probability_of_direction(draws)
    found: dict[str, Any] = {"mean": draws.mean(SAMPLES), "sd": draws.std(SAMPLES), "lower": lower, "upper": upper}
    found["direction"] = direction
    probability = direction
    if rule.rope:
        probability = found["outside"] = (abs(draws) > rule.rope).mean(SAMPLES)
    if rule.fdr is None:
        included = (lower > rule.rope) | (upper < -rule.rope)
    else:
        included = probability.copy(data=_largest(1.0 - probability.values, rule.fdr))
    found["included"] = included
    found["expected_false" if rule.rope else "expected_wrong_signs"] = (1.0 - probability).where(included, 0.0).sum()
    return xr.Dataset(found)


def by_client(groups: Mapping[str, "xr.DataArray"], rule: Rule) -> "xr.Dataset":
    """:func:`selected` of each client's draws, side by side."""
    import xarray as xr

    parts = [selected(draws, rule) for draws in groups.values()]
    together = xr.concat(parts, xr.DataArray(list(groups), dims=CLIENTS, name=CLIENTS), join="outer")
    return together.assign(included=together["included"].fillna(False).astype(bool))


def of_population(draws: "xr.DataArray", rule: Rule) -> "xr.Dataset":
    """:func:`selected` of the population's mean, its variables called ``population_...``."""
    found = selected(draws, rule)
    return found.rename({name: f"population_{name}" for name in found.data_vars})


def voted(included: "xr.DataArray", share: float) -> "xr.Dataset":
    """How many clients include each coefficient, and which have at least this share of them.

    Raises
    ------
    ValueError
        ``share`` is no share.
    """
    import xarray as xr

    if not (isinstance(share, Real) and 0.0 < share <= 1.0):
        raise ValueError(
            f"`vote` is {share!r}; it is the share of the clients that must agree, in (0, 1], such as 0.5."
        )
    votes = included.sum(CLIENTS)
    return xr.Dataset({"votes": votes, "voted": votes >= share * included.sizes[CLIENTS]})


def with_same_labels(population: "xr.DataArray", clients: "xr.Dataset") -> "xr.DataArray":
    """The population's draws with the dimensions and labels of the clients' coefficients, where their shapes agree."""
    like = clients["mean"].isel({CLIENTS: 0}, drop=True)
    mine = [str(dim) for dim in population.dims if dim not in SAMPLES]
    if [population.sizes[dim] for dim in mine] != list(like.shape):
        return population
    renamed = population.drop_vars(mine, errors="ignore").rename(dict(zip(mine, like.dims, strict=True)))
    return renamed.assign_coords({dim: like[dim] for dim in like.dims})


def coefficients_name(known: Sequence[str], asked: str | None, fitted: Fitted) -> str:
    """The variable of the coefficients: the one that was asked for, or the only one there is.

    Raises
    ------
    ValueError
        None was asked for, and there is none of the clients' own, or several.
    """
    if asked is not None:
        return asked
    if not known:
        raise ValueError(
            "The clients have no coefficients of their own. Select for the population: write "
            f"`fit.select(population=...)` with one of the globals {list(map(str, idata(fitted).posterior.data_vars))}."
        )
    if len(known) > 1:
        raise ValueError(
            f"Which are the coefficients? A client's own variables are {list(known)}: write one of them, such as "
            f"`fit.select({known[0]!r})`."
        )
    return known[0]


def _variable(posterior: "xr.Dataset", name: str) -> "xr.DataArray":
    if name not in posterior.data_vars:
        raise ValueError(
            f"There is no variable {name!r} here; the posterior has {list(map(str, posterior.data_vars))}."
        )
    return posterior[name]


def _own_variables(fitted: Fitted) -> list[str]:
    """What may be a client's coefficients: its own arrays, those that were integrated out if there are any."""
    integrated = {shown(name) for name in fitted.problem.integrated}
    if not integrated and not fitted.roster.num_locals.any():
        return []
    mine = client_posterior(fitted, fitted.roster.names[0]).posterior
    own = integrated or {str(name) for name in mine.data_vars} - set(map(str, idata(fitted).posterior.data_vars))
    return [str(name) for name in mine.data_vars if name in own and mine[name].ndim > len(SAMPLES)]


def _undecided(roster: Roster, groups: Mapping[str, "xr.DataArray"]) -> list[str]:
    """The clients whose rows leave some directions of the coefficients to the prior."""
    found = []
    for (name, draws), rows in zip(groups.items(), roster.rows, strict=True):
        num = int(np.prod([size for dim, size in draws.sizes.items() if dim not in SAMPLES]))
        if rows < num:
            found.append(
                f"client '{name}' has {rows:.0f} rows for {num} coefficients: in {num - rows:.0f} directions the "
                "penalty and the other clients decide alone"
            )
    return found


def _between(value: Any) -> bool:
    return isinstance(value, Real) and 0.0 < float(value) < 1.0


def _interval(draws: "xr.DataArray", rule: Rule) -> tuple["xr.DataArray", "xr.DataArray"]:
    """Bounds of the credible interval."""
    if rule.interval == "equal-tailed":
        return equal_tailed(draws, rule.level)
    import arviz as az
    import xarray as xr

    def shortest(values: np.ndarray) -> np.ndarray:
        return np.asarray(az.hdi(values.ravel(), rule.level))

    bounds = xr.apply_ufunc(shortest, draws, input_core_dims=[SAMPLES], output_core_dims=[["bound"]], vectorize=True)
    return bounds.isel(bound=0), bounds.isel(bound=1)


def _largest(errors: np.ndarray, share: float) -> np.ndarray:
    """The largest set, in order of the probabilities of error, whose mean is at most ``share``."""
    flat = errors.ravel()
    order = np.argsort(flat, kind="stable")
    running = np.cumsum(flat[order]) / np.arange(1, len(flat) + 1)
    included = np.zeros(len(flat), bool)
    included[order[: np.count_nonzero(running <= share)]] = True  # running means of sorted numbers never fall
    return included.reshape(errors.shape)
