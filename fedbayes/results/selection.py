"""Variable selection from posterior draws: by credible interval, against a practical threshold, by false discovery rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.results.hypothesis import probability_of_direction
from fedbayes.results.replicates import CLIENTS

if TYPE_CHECKING:
    import xarray as xr

SAMPLES = ["chain", "draw"]
INTERVALS = ("equal-tailed", "hdi")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a coefficient is included, see :meth:`fedbayes.FederatedFit.select`; checked when it is made."""

    level: float = 0.9
    interval: str = "equal-tailed"
    rope: float = 0.0
    fdr: float | None = None

    def __post_init__(self) -> None:
        if not _between(self.level):
            raise ValueError(
                f"`level` is {self.level!r}; it is the probability of the credible interval and lies in (0, 1), such as "
                "0.9."
            )
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

    def told(self) -> str:
        """In words."""
        nothing = f"[-{self.rope:g}, {self.rope:g}]" if self.rope else "0"
        if self.fdr is not None:
            return f"as many as keep the expected share of false inclusions at most {self.fdr:g}"
        return f"the {self.level:.0%} {self.interval} credible interval excludes {nothing}"


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
    direction = probability_of_direction(draws)
    found = {"mean": draws.mean(SAMPLES), "sd": draws.std(SAMPLES), "lower": lower, "upper": upper}
    found["direction"] = direction
    probability = direction
    if rule.rope:
        probability = found["outside"] = (abs(draws) > rule.rope).mean(SAMPLES)
    if rule.fdr is None:
        included = (lower > rule.rope) | (upper < -rule.rope)
    else:
        included = probability.copy(data=_largest(1.0 - probability.values, rule.fdr))
    found["included"] = included
    found["expected_false"] = (1.0 - probability).where(included, 0.0).sum()
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
        raise ValueError(f"`vote` is {share!r}; it is the share of the clients that must agree, in (0, 1], such as 0.5.")
    votes = included.sum(CLIENTS)
    return xr.Dataset({"votes": votes, "voted": votes >= share * included.sizes[CLIENTS]})


def with_same_labels(population: "xr.DataArray", like: "xr.DataArray") -> "xr.DataArray":
    """The population's draws with the dimensions of the clients' coefficients, where the numbers of these agree.

    A client's intercept comes after the others, and the population has none: labels are those of the first entries.
    """
    mine = [str(dim) for dim in population.dims if dim not in SAMPLES]
    theirs = [str(dim) for dim in like.dims if dim not in SAMPLES]
    if mine == theirs or len(mine) != len(theirs):
        return population
    if any(population.sizes[a] > like.sizes[b] for a, b in zip(mine, theirs, strict=True)):
        return population
    renamed = population.drop_vars(mine, errors="ignore").rename(dict(zip(mine, theirs, strict=True)))
    return renamed.assign_coords({dim: like[dim].values[: renamed.sizes[dim]] for dim in theirs})


def coefficients_of(posterior: "xr.Dataset", known: Sequence[str], asked: str | None) -> "xr.DataArray":
    """The draws of the coefficients among a client's posterior: those that were asked for, or the only ones there are.

    Parameters
    ----------
    posterior
        A client's, with the globals.
    known
        What may be meant: the variables that are the client's own.
    asked
        A name, or ``None``.

    Raises
    ------
    ValueError
        There is no such variable, or several might be meant.
    """
    if asked is not None and asked not in posterior.data_vars:
        raise ValueError(f"`coefficients` is {asked!r}; a client's posterior has {list(map(str, posterior.data_vars))}.")
    if asked is None and len(known) != 1:
        raise ValueError(
            f"Which are the coefficients? A client's own variables are {list(known)}: write one of them, such as "
            f"`fit.select({known[0]!r})`."
            if known
            else "The clients have no coefficients of their own. Select for the population: `fit.select(population=...)` "
            f"with one of the globals {list(map(str, posterior.data_vars))}."
        )
    return posterior[asked or known[0]]


def _between(value: Any) -> bool:
    return isinstance(value, Real) and 0.0 < value < 1.0


def _interval(draws: "xr.DataArray", rule: Rule) -> tuple["xr.DataArray", "xr.DataArray"]:
    """Bounds of the credible interval."""
    import xarray as xr

    if rule.interval == "equal-tailed":
        tails = [0.5 - rule.level / 2, 0.5 + rule.level / 2]
        bounds = draws.quantile(tails, SAMPLES)
        return bounds.isel(quantile=0, drop=True), bounds.isel(quantile=1, drop=True)
    values = draws.stack(sample=SAMPLES).transpose("sample", ...)
    ordered = np.sort(values.values, axis=0)
    inside = max(1, int(np.floor(rule.level * len(ordered))))
    first = np.argmin(ordered[inside:] - ordered[: len(ordered) - inside], axis=0)[None]
    like = draws.isel(chain=0, draw=0, drop=True)
    ends = [np.take_along_axis(ordered, first + shift, axis=0)[0] for shift in (0, inside)]
    return xr.zeros_like(like) + ends[0], xr.zeros_like(like) + ends[1]


def _largest(errors: np.ndarray, share: float) -> np.ndarray:
    """The largest set, in order of the probabilities of error, whose mean is at most ``share`` (Mueller et al. 2004)."""
    flat = errors.ravel()
    order = np.argsort(flat, kind="stable")
    running = np.cumsum(flat[order]) / np.arange(1, len(flat) + 1)
    included = np.zeros(len(flat), bool)
    included[order[: np.count_nonzero(running <= share)]] = True  # running means of sorted numbers never fall
    return included.reshape(errors.shape)
