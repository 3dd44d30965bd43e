"""Yes or no: single outcomes, and how many of so many trials."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import ClientDataError
from fedbayes.formula.families.family import (
    LOGISTIC_VARIANCE,
    Family,
    Outcome,
    Parameter,
    Reading,
    Residual,
    logit_scale,
    refuse_outside,
    whole,
)


def _zero_or_one(outcome: Outcome) -> None:
    refuse_outside(outcome, np.isin(outcome.y, (0.0, 1.0)), "bernoulli", "0 or 1")


def _of_trials(family: str):  # type: ignore[no-untyped-def]
    def check(outcome: Outcome) -> None:
        trials = np.ones_like(outcome.y) if outcome.trials is None else outcome.trials
        if bad := int((~(whole(trials) & (trials >= 1))).sum()):
            raise ClientDataError(
                f"Client '{outcome.client}': {bad} of {len(trials)} numbers of trials are no whole numbers from 1 on. "
                "Leave these rows out."
            )
        refuse_outside(outcome, whole(outcome.y) & (outcome.y <= trials), family, "whole numbers from 0 to the trials")

    return check


def _log_odds(law: Any) -> Any:
    return law.logits


def _mean_log_odds(law: Any) -> Any:
    return jnp.log(law.concentration1) - jnp.log(law.concentration0)


def _mean_share(law: Any) -> Any:
    return law.concentration1 / (law.concentration1 + law.concentration0)


_READING = Reading(
    "odds ratio", "odds", _log_odds, lambda law: law.probs, "probability", residual=Residual(LOGISTIC_VARIANCE)
)
BERNOULLI = Family(
    "bernoulli",
    "logit",
    lambda summary: "dist.Bernoulli(logits=eta)",
    _zero_or_one,
    logit_scale,
    levels="two",
    integers=True,
    reading=_READING,
)
BINOMIAL = Family(
    "binomial",
    "logit",
    lambda summary: "dist.Binomial(trials, logits=eta)",
    _of_trials("binomial"),
    logit_scale,
    additions=("weights", "trials"),
    needs=("trials",),
    integers=True,
    reading=_READING,
)
BETA_BINOMIAL = Family(
    "beta_binomial",
    "logit",
    lambda summary: "BetaBinomial(kappa * expit(eta), kappa * expit(-eta), trials)",
    _of_trials("beta_binomial"),
    logit_scale,
    (Parameter("kappa", lambda summary: dist.LogNormal(2.0, 1.5)),),
    imports=("from fedbayes.formula.families.overdispersed import BetaBinomial",),
    additions=("weights", "trials"),
    needs=("trials",),
    integers=True,
    reading=Reading("odds ratio", "odds", _mean_log_odds, _mean_share, "probability"),
)
