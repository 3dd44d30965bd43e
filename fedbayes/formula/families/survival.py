"""Times until an event, censored on the right: Weibull, log-logistic, piecewise exponential, and Cox."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError
from fedbayes.formula.design.totals import binned, mean_and_sd, moments, quantiles
from fedbayes.formula.families.cox import no_times
from fedbayes.formula.families.family import (
    LOGISTIC_VARIANCE,
    Ask,
    Family,
    Outcome,
    Parameter,
    Reading,
    Residual,
    Scale,
    Summary,
    refuse_outside,
    rounded,
)

_MODULE = "from fedbayes.formula.families.times import"
_PIECES = 5


def _times(family: str) -> Callable[[Outcome], None]:
    def check(outcome: Outcome) -> None:
        refuse_outside(outcome, outcome.y > 0, family, "times above zero")

    return check


def _scale_of_hazard(summary: Summary) -> Scale:
    """Of the log cumulative hazard at the mean time: around the log of the share of events."""
    share = max(summary.events, 0.5) / summary.rows
    return Scale(float(np.log(share)), 2.5, 1.0, 1.0)


def _scale_of_median(summary: Summary) -> Scale:
    return Scale(summary.mean_log, 2.5, 1.0, 1.0)


def _scale_of_pieces(summary: Summary) -> Scale:
    return Scale(0.0, 2.5, 1.0, 1.0)


def _unit(summary: Summary) -> float:
    """The mean time, in which the Weibull law counts time, so that its intercept is about the times that occur."""
    return rounded(summary.mean)


def _ends(ask: Ask, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where pieces end: as declared, or at quantiles of all clients' times of events, from binned counts."""
    given = options.get("ends")
    if given is not None:
        ends = [float(end) for end in given]
        if not ends or ends[0] <= 0 or any(first >= second for first, second in pairwise(ends)):
            raise FormulaError(
                f"The ends of the pieces are {list(given)}; write rising times above zero, [30, 90, 365]."
            )
        return {"ends": tuple(ends)}
    sums = ask("times of events", lambda outcome: {"events": moments(_events(outcome))})["events"]
    mean, sd = mean_and_sd(name, sums)
    counts = ask("binned times of events", lambda outcome: {"events": binned(_events(outcome), mean, sd)})["events"]
    found = quantiles(counts, np.linspace(0.0, 1.0, _PIECES + 1)[1:-1], mean, sd)
    return {"ends": tuple(sorted({rounded(float(end)) for end in found if end > 0}))}


def _events(outcome: Outcome) -> np.ndarray:
    """The times at which an event was seen."""
    return outcome.y if outcome.observed is None else outcome.y[outcome.observed > 0]


def _hazards(summary: Summary) -> dist.Distribution:
    rate = np.log(max(summary.events, 0.5) / (summary.rows * summary.mean))
    return dist.Normal(rounded(float(rate)), 2.5).expand([_number(summary)]).to_event(1)


def _number(summary: Summary) -> int:
    return len(summary.settings["ends"]) + 1


def _predictor(law: Any) -> Any:
    return law.eta


# the variance of a logarithm of a time around that of its median, a logistic variable over the shape
_OF_LOG_TIME = Residual(LOGISTIC_VARIANCE, "shape", -2.0)


_HAZARD = Reading("hazard ratio", "cumulative hazard", _predictor, response="mean time")
_EXTREME_VALUE = np.pi**2 / 6.0  # variance of the logarithm of an exponential variable
_SHAPE = Parameter("shape", lambda summary: dist.LogNormal(0.0, 1.0))

WEIBULL = Family(
    "weibull",
    "log hazard",
    lambda summary: f"Weibull(eta, shape, {_unit(summary)!r}, observed)",
    _times("weibull"),
    _scale_of_hazard,
    (_SHAPE,),
    additions=("weights", "cens"),
    imports=(f"{_MODULE} Weibull",),
    reading=_HAZARD._replace(residual=Residual(_EXTREME_VALUE)),
)
LOGLOGISTIC = Family(
    "loglogistic",
    "log median",
    lambda summary: "LogLogistic(eta, shape, observed)",
    _times("loglogistic"),
    _scale_of_median,
    (_SHAPE,),
    additions=("weights", "cens"),
    imports=(f"{_MODULE} LogLogistic",),
    reading=Reading("time ratio", "median time", _predictor, response="mean time", residual=_OF_LOG_TIME),
)
PIECEWISE_EXPONENTIAL = Family(
    "piecewise_exponential",
    "log hazard",
    lambda summary: f"PiecewiseExponential(eta, log_hazard, {summary.settings['ends']!r}, observed)",
    _times("piecewise_exponential"),
    _scale_of_pieces,
    (Parameter("log_hazard", _hazards, _number, None),),
    additions=("weights", "cens"),
    intercept=False,
    imports=(f"{_MODULE} PiecewiseExponential",),
    agree=_ends,
    reading=_HAZARD,
)
COX = Family(
    "cox",
    "log hazard",
    lambda summary: "CoxPartial(eta, observed)",
    _times("cox"),
    _scale_of_pieces,
    additions=("cens",),
    intercept=False,
    imports=("from fedbayes.formula.families.cox import CoxPartial",),
    stratified=True,
    reading=Reading("hazard ratio", "", _predictor, no_times, "time"),
)
