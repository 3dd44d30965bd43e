"""Positive outcomes, and shares: Gamma, log-normal and beta."""

from collections.abc import Callable

import numpyro.distributions as dist

from fedbayes.formula.families.family import (
    Family,
    Outcome,
    Parameter,
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


GAMMA = Family(
    "gamma",
    "log",
    lambda summary: "dist.Gamma(alpha, alpha * jnp.exp(-eta))",
    _positive("gamma"),
    log_scale,
    (Parameter("alpha", lambda summary: dist.LogNormal(1.0, 1.5)),),
)
LOGNORMAL = Family(
    "lognormal",
    "identity",
    lambda summary: "dist.LogNormal(eta, sigma)",
    _positive("lognormal"),
    _scale_of_logs,
    (Parameter("sigma", lambda summary: half_student(summary.sd_log)),),
)
BETA = Family(
    "beta",
    "logit",
    lambda summary: "dist.Beta(kappa * expit(eta), kappa * expit(-eta))",
    _share,
    logit_scale,
    (Parameter("kappa", lambda summary: dist.LogNormal(2.0, 1.5)),),
)
