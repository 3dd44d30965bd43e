"""Counts: Poisson and negative binomial, also with more zeros than these have, or with zeros of their own."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

from fedbayes.formula.families.family import (
    Family,
    Outcome,
    Parameter,
    Reading,
    Summary,
    log_scale,
    refuse_outside,
    whole,
)


def _whole(family: str) -> Callable[[Outcome], None]:
    def check(outcome: Outcome) -> None:
        refuse_outside(outcome, whole(outcome.y), family, "whole numbers from 0 on")

    return check


def _always(text: str) -> Callable[[Summary], str]:
    return lambda summary: text


def _log_mean(law: Any) -> Any:
    return jnp.log(law.mean)


def _log_mean_of_count(law: Any) -> Any:
    """Of the count beside which there are more zeros."""
    return jnp.log(law.base_dist.mean)


def _log_rate(law: Any) -> Any:
    """Of the count that was not cut off."""
    return jnp.log(law.rate)


_COUNTS = Reading("rate ratio", "rate", _log_mean)
_INFLATED = _COUNTS._replace(linear=_log_mean_of_count)
_CUT_OFF = _COUNTS._replace(linear=_log_rate)
ALPHA = Parameter("alpha", lambda summary: dist.LogNormal(1.0, 1.5))
PSI = Parameter("psi", lambda summary: dist.Beta(2.0, 2.0), inverse="expit")
_POISSON = "dist.Poisson(jnp.exp(eta))"
_NEGATIVE = "NegativeBinomial(jnp.exp(eta), alpha)"
_OVERDISPERSED = "from fedbayes.formula.families.overdispersed import NegativeBinomial"
_HURDLE = "from fedbayes.formula.families.hurdle import Hurdle"

POISSON = Family("poisson", "log", _always(_POISSON), _whole("poisson"), log_scale, integers=True, reading=_COUNTS)
NEGATIVE_BINOMIAL = Family(
    "negative_binomial",
    "log",
    _always(_NEGATIVE),
    _whole("negative_binomial"),
    log_scale,
    (ALPHA,),
    integers=True,
    imports=(_OVERDISPERSED,),
    reading=_COUNTS,
)
ZERO_INFLATED_POISSON = Family(
    "zero_inflated_poisson",
    "log",
    _always(f"dist.ZeroInflatedDistribution({_POISSON}, gate=psi)"),
    _whole("zero_inflated_poisson"),
    log_scale,
    (PSI,),
    integers=True,
    reading=_INFLATED,
)
ZERO_INFLATED_NEGATIVE_BINOMIAL = Family(
    "zero_inflated_negative_binomial",
    "log",
    _always(f"dist.ZeroInflatedDistribution({_NEGATIVE}, gate=psi)"),
    _whole("zero_inflated_negative_binomial"),
    log_scale,
    (ALPHA, PSI),
    integers=True,
    imports=(_OVERDISPERSED,),
    reading=_INFLATED,
)
HURDLE_POISSON = Family(
    "hurdle_poisson",
    "log",
    _always("Hurdle(jnp.exp(eta), psi)"),
    _whole("hurdle_poisson"),
    log_scale,
    (PSI,),
    integers=True,
    imports=(_HURDLE,),
    reading=_CUT_OFF,
)
HURDLE_NEGATIVE_BINOMIAL = Family(
    "hurdle_negative_binomial",
    "log",
    _always("Hurdle(jnp.exp(eta), psi, alpha)"),
    _whole("hurdle_negative_binomial"),
    log_scale,
    (ALPHA, PSI),
    integers=True,
    imports=(_HURDLE,),
    reading=_CUT_OFF,
)
