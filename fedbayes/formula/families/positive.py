"""Positive outcomes, and shares: Gamma, log-normal and beta."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

from fedbayes.formula.families.family import (
    Family,
    Outcome,
    Parameter,
    Reading,
    Residual,
    Scale,
    Summary,
    half_student,
    log_scale,
    logit_scale,
    refuse_outside,
)


def _positive(family: str) -> Callable[[Outcome], None]:
    def check(outcome: Outcome) -> None:
        refuse_outside(outcome, outcome.y > 0, family, "above zero")

    return check


def _share(outcome: Outcome) -> None:
    refuse_outside(outcome, (outcome.y > 0) & (outcome.y < 1), "beta", "between 0 and 1")


def _scale_of_logs(summary: Summary) -> Scale:
    return Scale(summary.mean_log, 2.5 * summary.sd_log, 2.5 * summary.sd_log)


def _log_mean(law: Any) -> Any:
    return jnp.log(law.concentration) - jnp.log(law.rate)


def _location(law: Any) -> Any:
    return law.loc


def _log_odds(law: Any) -> Any:
    return jnp.log(law.concentration1) - jnp.log(law.concentration0)


GAMMA = Family(
    "gamma",
    "log",
    lambda summary: "dist.Gamma(alpha, alpha * jnp.exp(-eta))",
    _positive("gamma"),
    log_scale,
    (Parameter("alpha", lambda summary: dist.LogNormal(1.0, 1.5)),),
    reading=Reading("ratio of means", "mean", _log_mean),
)
LOGNORMAL = Family(
    "lognormal",
    "identity",
    lambda summary: "dist.LogNormal(eta, sigma)",
    _positive("lognormal"),
    _scale_of_logs,
    (Parameter("sigma", lambda summary: half_student(summary.sd_log)),),
    reading=Reading("ratio of medians", "median", _location, residual=Residual(1.0, "sigma", 2.0)),
)
BETA = Family(
    "beta",
    "logit",
    lambda summary: "Beta(kappa * expit(eta), kappa * expit(-eta))",
    _share,
    logit_scale,
    (Parameter("kappa", lambda summary: dist.LogNormal(2.0, 1.5)),),
    imports=("from fedbayes.formula.families.shares import Beta",),
    reading=Reading("odds ratio of means", "odds of the mean", _log_odds),
)
