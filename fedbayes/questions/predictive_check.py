"""Predictive checks at the client: where the statistics of its outcomes lie among those of replicates.

References
----------
Box (1980), Sampling and Bayes' inference in scientific modelling and robustness, Journal of the Royal Statistical
Society A 143(4), for the prior. Gelman, Meng and Stern (1996), Posterior predictive assessment of model fitness via
realized discrepancies, Statistica Sinica 6(4), for the posterior. Bayarri and Berger (2000), P values for composite
null models, Journal of the American Statistical Association 95(452), on the double use of data.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedbayes.contract.answer import shortened
from fedbayes.contract.locals_from import Question, check
from fedbayes.questions.replicates import Replicates, observed_rows, prior_draws, prior_replicates, replicates
from fedbayes.results.arviz import CLIENTS
from fedbayes.results.corrected import theta
from fedbayes.results.fitted import Fitted
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

Statistics = Mapping[str, Callable[[np.ndarray], float]]

TAIL = 0.01  # a statistic whose tail probability is this small, or that large, is named
_FROM_POSTERIOR, _FROM_PRIOR = 250, 1_000  # replicates by default
_SAME = 1e-10  # relative difference of statistics that is round-off, such as of another order of rows
_DEFAULT: Statistics = {"mean": np.mean, "sd": np.std, "min": np.min, "max": np.max}
_OF_COUNTS: Statistics = {"zeros": lambda y: float(np.mean(y == 0))}
_CAVEAT = {
    True: "Prior predictive tail probabilities are uniform where the data obey the model; they depend on the prior's "
    "width.",
    False: "The data are used twice, for the posterior and for the check: posterior predictive tail probabilities are "
    "conservative, closer to 0.5 than uniform ones.",
}


class Placed(NamedTuple):
    """What leaves a client of one statistic; ``observed`` only where it is asked for.

    Attributes
    ----------
    tail_probability
        ``P(T(rep) < T(obs)) + P(T(rep) = T(obs)) / 2``.
    predictive_mean, predictive_sd
        Of ``T(rep)``, in units of the statistic.
    observed
        ``T(obs)``, likewise.
    """

    tail_probability: float
    predictive_mean: float
    predictive_sd: float
    observed: float


def predictive_check(
    fitted: Fitted,
    statistics: Statistics | None = None,
    *,
    prior: bool = False,
    num_draws: int | None = None,
    observed: bool = False,
) -> "xr.Dataset":
    """Where each client's outcomes lie among replicates of them, computed at the client.

    Replicates are drawn with the client's own posterior, locals included, as for ``fit.check``, or from the prior
    (Box 1980; Gelman, Meng and Stern 1996). Of each statistic ``T`` of an outcome three numbers leave the client:
    the mid-tail probability ``P(T(rep) < T(obs)) + P(T(rep) = T(obs)) / 2``, and mean and standard deviation of
    ``T(rep)``. With ``observed=True`` a fourth does, ``T(obs)``, which is a summary of the client's data (its
    smallest value is the value of some row). No row and no replicate leaves it. Of the first three, too, somebody
    who knows the law of ``T(rep)`` can infer about where ``T(obs)`` lies.

    Posterior predictive checks use the data twice, for the posterior and for the check: their tail probabilities
    lie closer to 1/2 than uniform ones (they are conservative), most of all for statistics that the parameters
    fit, such as the mean. Those of the prior are uniform where the data obey the model, and as sensitive to the
    prior as it is wide.

    Parameters
    ----------
    statistics
        From names to functions of a client's outcomes of one site, an array as the model observes it, without the
        missing ones (then flat); ``None``: ``mean``, ``sd``, ``min``, ``max``, and of binary outcomes and counts
        the share of ``zeros``.
    prior
        Replicates of the prior: the globals and all clients' locals are drawn from it.
    num_draws
        Replicates: of each chain of the posterior (``None``: at most 250), or of the prior (``None``: 1,000).
    observed
        Also return the statistics of the observed outcomes.

    Returns
    -------
    xarray.Dataset
        Over ``client_name``, ``site`` and ``statistic``: ``tail_probability``, ``predictive_mean``,
        ``predictive_sd``, and ``observed`` if asked for; NaN where a client has no such outcomes, or the statistic
        is none of theirs. ``attrs["outside"]`` names those below 1 or above 99 percent, of which two in a hundred
        are expected of uniform ones; ``attrs["caveat"]`` repeats what to keep in mind.

    Raises
    ------
    ValueError
        A statistic is no number, ``num_draws`` is out of range, the fit is a point, or the prior can't be drawn
        from.

    Examples
    --------
    >>> fit.predictive_check({"range": np.ptp})  # doctest: +SKIP
    """
    _check_statistics(statistics)
    num = _number(fitted, prior, num_draws)
    parts: dict[str, dict[str, dict[str, Placed]]] = {}
    for each in _from_prior(fitted, num) if prior else replicates(fitted, num):
        name, seen, drawn = _without_missing(fitted, each)
        whose = {site: f"'{site}' of client '{name}'" for site in seen}
        parts[name] = {site: placed(seen[site], drawn[site], statistics, whose[site]) for site in seen}
    together = _side_by_side(parts) if observed else _side_by_side(parts).drop_vars("observed")
    return together.assign_attrs(outside=outside(together["tail_probability"]), caveat=_CAVEAT[prior])


def _side_by_side(parts: Mapping[str, Mapping[str, Mapping[str, Placed]]]) -> "xr.Dataset":
    """What all clients send, by client, site and statistic; NaN where a client has no such thing."""
    import xarray as xr

    sites = list(dict.fromkeys(site for mine in parts.values() for site in mine))
    names = list(dict.fromkeys(name for mine in parts.values() for found in mine.values() for name in found))
    values = np.full((len(Placed._fields), len(parts), len(sites), len(names)), np.nan)
    for k, mine in enumerate(parts.values()):
        for site, found in mine.items():
            for name, numbers in found.items():
                values[:, k, sites.index(site), names.index(name)] = numbers
    dims = (CLIENTS, "site", "statistic")
    variables = {name: (dims, value) for name, value in zip(Placed._fields, values, strict=True)}
    return xr.Dataset(variables, coords={CLIENTS: list(parts), "site": sites, "statistic": names})


def _check_statistics(statistics: Any) -> None:
    """Whether they are functions by name."""
    if statistics is None:
        return
    if not isinstance(statistics, Mapping) or not statistics or not all(map(callable, statistics.values())):
        raise ValueError(
            f"`statistics` is {statistics!r}; write a mapping from names to functions of a client's outcomes, such as "
            '`{"range": np.ptp}`.'
        )


def _number(fitted: Fitted, prior: bool, num_draws: int | None) -> int:
    """Replicates, of each chain of a posterior."""
    if not prior and fitted.posterior is None:
        raise ValueError(
            "This fit is a point, and replicates with the posterior need one: fit by a method that ends with a "
            "posterior, or write `prior=True`."
        )
    if num_draws is None:
        return _FROM_PRIOR if prior else min(_FROM_POSTERIOR, theta(fitted).shape[1])
    most = np.inf if prior else theta(fitted).shape[1]
    if not isinstance(num_draws, int) or isinstance(num_draws, bool) or not 1 <= num_draws <= most:
        upto = "a number from 1" if prior else f"a number from 1 to {most}, a chain's draws"
        raise ValueError(f"`num_draws` is {num_draws!r}; write {upto}.")
    return num_draws


def _from_prior(fitted: Fitted, num: int) -> Iterator[Replicates]:
    """Each client's outcomes, and replicates of them with globals and locals from the prior.

    All clients have the same draws of the globals, as they have in the model.
    """
    check(fitted.answer.locals_from, Question.PRIOR_REPLICATES)
    key = key_for(fitted.key, Purpose.PRIOR)
    values = prior_draws(fitted.problem, fitted.roster.prior, key, num, instead="`prior=False`, or ")
    yield from prior_replicates(fitted.problem, values, key)


def _without_missing(fitted: Fitted, found: Replicates) -> Replicates:
    """Outcomes and replicates in the rows that were observed; in their own shape where all were."""
    with computing():
        masks = observed_rows(fitted.problem.program(found.name), fitted.problem.held(found.name).arrays)
    seen, drawn = dict(found.seen), dict(found.drawn)
    for site, mask in masks.items():
        seen[site], drawn[site] = seen[site][mask], drawn[site][:, :, mask]
    return Replicates(found.name, seen, drawn)


def placed(seen: np.ndarray, drawn: np.ndarray, statistics: Statistics | None, whose: str) -> dict[str, Placed]:
    """Where the statistics of a client's outcomes lie among those of replicates: what the client computes and sends.

    Parameters
    ----------
    seen
        The outcomes of one site.
    drawn
        Replicates of them, two more axes in front: chain and draw.
    statistics
        As for :meth:`fedbayes.FederatedFit.predictive_check`.
    whose
        What these outcomes are, for the message.

    Raises
    ------
    ValueError
        A statistic is no finite number.
    """
    if not seen.size:
        return {}
    if statistics is None:
        statistics = {**_DEFAULT, **_OF_COUNTS} if drawn.dtype.kind in "iub" else _DEFAULT
    flat = drawn.reshape(-1, *drawn.shape[2:])
    found = {}
    for name, statistic in statistics.items():
        at = _number_of(name, statistic, seen, whose)
        values = np.array([_number_of(name, statistic, each, f"replicates of {whose}") for each in flat])
        same = np.isclose(values, at, rtol=_SAME, atol=0.0)
        tail = float(np.mean((values < at) & ~same) + 0.5 * np.mean(same))
        found[name] = Placed(tail, float(values.mean()), float(values.std()), at)
    return found


def _number_of(name: str, statistic: Callable[[np.ndarray], Any], values: np.ndarray, whose: str) -> float:
    found = np.asarray(statistic(values))
    if found.shape != () or found.dtype.kind not in "fiub" or not np.isfinite(found):
        raise ValueError(
            f"The statistic '{name}' of {whose} is {found.tolist()!r}; it must be one finite number, as by `np.ptp`."
        )
    return float(found)


def outside(tails: "xr.DataArray") -> str:
    """The statistics whose tail probability lies below 1 or above 99 percent, in words; empty if there are none."""
    found = []
    for k, s, t in np.argwhere((tails < TAIL).values | (tails > 1.0 - TAIL).values):
        one = tails[int(k), int(s), int(t)]
        client, site, statistic = (one[dim].item() for dim in tails.dims)
        found.append(f"{statistic} of '{site}' of client '{client}' (tail probability {float(one):.3f})")
    return shortened(found)
