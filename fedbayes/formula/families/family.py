"""What a family is: its outcome's support, its link, further parameters, and its likelihood as text of a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import ClientDataError


class Outcome(NamedTuple):
    """One client's outcomes.

    Attributes
    ----------
    client, name
        Whose they are, and how the outcome is written.
    y
        Numbers, or places of levels, shape ``(n,)``.
    trials, observed, weights, errors
        Shape ``(n,)``, or ``None``: trials of a binomial, whether an event was seen (1) or the time is censored (0),
        how often a row counts, and known standard errors.
    """

    client: str
    name: str
    y: np.ndarray
    trials: np.ndarray | None = None
    observed: np.ndarray | None = None
    weights: np.ndarray | None = None
    errors: np.ndarray | None = None


class Ask(Protocol):
    """Asks for a sum over all clients."""

    def __call__(self, name: str, tell: Callable[[Outcome], Mapping[str, Any]]) -> dict[str, Any]:
        """The sum of what each tells of its outcomes; ``name`` tells it from others."""


class Summary(NamedTuple):
    """What is known of all outcomes together, from sums.

    Attributes
    ----------
    rows
        Of all clients.
    mean, sd
        Of the outcome; of binomial outcomes their share of the trials.
    mean_log, sd_log
        Of its logarithm, where it is positive.
    events
        Outcomes that are not censored.
    levels
        Of a categorical outcome, in order.
    settings
        What the family has agreed on, such as the ends of pieces.
    """

    rows: float
    mean: float
    sd: float
    mean_log: float = 0.0
    sd_log: float = 1.0
    events: float = 0.0
    levels: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}


class Scale(NamedTuple):
    """Scales of default priors: of the intercept at mean covariates, of coefficients per sd, and of those of levels."""

    centre: float
    intercept: float
    slope: float
    level: float | None = None  # None: as a slope, by the sd of the level's column


@dataclass(frozen=True)
class Parameter:
    """A parameter of the likelihood beside the linear predictor.

    Attributes
    ----------
    name
        Its name in the posterior.
    prior
        Its default prior.
    shape
        Number of entries, or ``None`` for a single number.
    inverse
        The function that makes it of a linear predictor of its own, as text: ``"jnp.exp"``.
    """

    name: str
    prior: Callable[[Summary], dist.Distribution]
    shape: Callable[[Summary], int | None] = lambda summary: None
    inverse: str | None = "jnp.exp"


def _mean(law: Any) -> Any:
    return law.mean


LOGISTIC_VARIANCE = np.pi**2 / 3.0
"""Of a logistic variable, which an outcome of log odds compares with zero or thresholds."""


class Residual(NamedTuple):
    """The variance of an outcome around its linear predictor, ``constant * parameter ** power``."""

    constant: float
    parameter: str = ""
    power: float = 0.0


class Reading(NamedTuple):
    """How the fits of a family are read.

    Attributes
    ----------
    coefficient, intercept
        What a coefficient is called on the scale on which it is read, and what the intercept is: ``"odds ratio"`` and
        ``"odds"``.
    linear
        From the law of the outcomes to the linear predictor, shape ``(n,)``, or ``(n, levels - 1)``.
    expected
        From the law to the expected outcome, shape ``(n,)``; of outcomes of levels the probabilities, ``(n, levels)``.
    response
        What the expected outcome is called.
    ratio
        Whether the exponential of a coefficient is read.
    residual
        The variance of an outcome around its linear predictor, on the scale of the latter; ``None`` where there is none
        that does not depend on the row.
    """

    coefficient: str
    intercept: str
    linear: Callable[[Any], Any]
    expected: Callable[[Any], Any] = _mean
    response: str = "mean"
    ratio: bool = True
    residual: Residual | None = None


@dataclass(frozen=True)
class Family:
    """A family of outcomes.

    Attributes
    ----------
    name, link
        Their names; the link's inverse makes the mean, or what ``likelihood`` says, of the linear predictor.
    likelihood
        From the summary to the distribution of the outcomes as text: of ``eta``, the parameters' names, and
        ``trials``, ``observed`` and ``errors``.
    check
        Raises for outcomes outside of the support.
    scale
        Of default priors.
    parameters
        Beside the linear predictor.
    additions
        What may follow the outcome's bar.
    needs
        What has to.
    levels
        Whether outcomes are levels; ``"two"``, ``"ordered"``, ``"any"`` or none.
    intercept
        Whether the linear predictor has one; families with thresholds have these in its place.
    stratified
        Whether each client has a free baseline, in which an intercept, and an effect of the client, can't be told.
    several
        Whether there is a linear predictor for each level but the first.
    integers
        Whether outcomes are whole numbers.
    before
        Lines of the program before the likelihood.
    imports
        Lines at the program's top.
    agree
        From what asks for a sum over all clients' outcomes, the outcome's name and options to settings.
    reading
        How its fits are read.
    """

    name: str
    link: str
    likelihood: Callable[[Summary], str]
    check: Callable[[Outcome], None]
    scale: Callable[[Summary], Scale]
    parameters: tuple[Parameter, ...] = ()
    additions: tuple[str, ...] = ("weights",)
    needs: tuple[str, ...] = ()
    levels: str = ""
    intercept: bool = True
    stratified: bool = False
    several: bool = False
    integers: bool = False
    before: Callable[[Summary], tuple[str, ...]] = lambda summary: ()
    imports: tuple[str, ...] = ()
    agree: Callable[[Ask, str, Mapping[str, Any]], Mapping[str, Any]] = lambda ask, name, options: {}
    reading: Reading = field(kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict)


def refuse_outside(outcome: Outcome, inside: np.ndarray, family: str, support: str) -> None:
    """Refuse a client's outcomes that are not all inside of the family's support.

    Raises
    ------
    ClientDataError
        With the count, and one of them.
    """
    if inside.all():
        return
    bad = outcome.y[~inside]
    raise ClientDataError(
        f"Client '{outcome.client}': {len(bad)} of {len(inside)} outcomes `{outcome.name}` are not {support}, as the "
        f"family {family} needs, such as {bad[0]:g}. Correct them, or take another family."
    )


def rounded(value: float) -> float:
    """Three significant digits, in which default priors are written."""
    return float(f"{value:.3g}")


def identity_scale(summary: Summary) -> Scale:
    """Of an outcome on its own scale: 2.5 sds, as rstanarm and Bambi do."""
    return Scale(summary.mean, 2.5 * summary.sd, 2.5 * summary.sd)


def logit_scale(summary: Summary) -> Scale:
    """Of log odds: an intercept of 1.5, a coefficient of 1 per sd and of 1 for a level."""
    return Scale(0.0, 1.5, 1.0, 1.0)


def log_scale(summary: Summary) -> Scale:
    """Of a logarithm: the intercept 2.5 around that of the mean, a coefficient of 1 per sd and of 1 for a level."""
    return Scale(float(np.log(max(summary.mean, 1e-3))), 2.5, 1.0, 1.0)


def half_student(scale: float) -> dist.Distribution:
    """A t law of 4 degrees of freedom, folded at zero."""
    return dist.FoldedDistribution(dist.StudentT(4.0, 0.0, rounded(scale)))


def whole(values: np.ndarray) -> np.ndarray:
    """Which of these are whole numbers from zero on."""
    return (values >= 0) & (values == np.floor(values))
