"""Outcomes that are levels: in an order, by cumulative log odds, or in none."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

from fedbayes.formula.families.family import (
    LOGISTIC_VARIANCE,
    Family,
    Outcome,
    Parameter,
    Reading,
    Residual,
    Summary,
    logit_scale,
    refuse_outside,
    whole,
)


class Categorical(dist.CategoricalLogits):
    """NumPyro's, with a density whose derivatives are cheaper: levels come first, and nothing is looked up.

    Parameters
    ----------
    logits
        Log odds of each level, last axis, up to a constant of a row.
    """

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Of places of levels, by row."""
        shape = jnp.broadcast_shapes(jnp.shape(value), self.batch_shape)
        logits = jnp.moveaxis(jnp.broadcast_to(self.logits, (*shape, self.logits.shape[-1])), -1, 0)
        places = jnp.reshape(jnp.arange(len(logits)), (-1, *(1,) * len(shape)))
        there = places == value
        of_value = jnp.where(jnp.any(there, axis=0), jnp.sum(jnp.where(there, logits, 0.0), axis=0), -jnp.inf)
        return of_value - jax.nn.logsumexp(logits, axis=0)


def _places(outcome: Outcome) -> None:
    refuse_outside(outcome, whole(outcome.y), "of levels", "places of levels")


def _number(summary: Summary) -> int:
    return len(summary.levels)


def _thresholds(summary: Summary) -> tuple[str, ...]:
    """Log odds of at most each level but the last, from the levels' probabilities at average covariates."""
    return (
        "below, above = jnp.cumsum(probability)[:-1], jnp.cumsum(probability[::-1])[:-1][::-1]",
        'threshold = numpyro.deterministic("threshold", jnp.log(below) - jnp.log(above))',
    )


def _probabilities(law: Any) -> Any:
    return law.probs


def _predictor(law: Any) -> Any:
    return law.predictor


def _against_the_first(law: Any) -> Any:
    return law.logits[..., 1:] - law.logits[..., :1]


_READING = Reading("odds ratio", "odds", _predictor, _probabilities, "probability")
CUMULATIVE = Family(
    "cumulative",
    "logit",
    lambda summary: "dist.OrderedLogistic(eta, threshold)",
    _places,
    logit_scale,
    (Parameter("probability", lambda summary: dist.Dirichlet(jnp.ones(_number(summary))), _number, None),),
    levels="ordered",
    integers=True,
    intercept=False,
    before=_thresholds,
    reading=_READING._replace(residual=Residual(LOGISTIC_VARIANCE)),
)
CATEGORICAL = Family(
    "categorical",
    "logit",
    lambda summary: "Categorical(logits=jnp.concatenate([jnp.zeros_like(eta[..., :1]), eta], axis=-1))",
    _places,
    logit_scale,
    levels="any",
    integers=True,
    several=True,
    imports=("from fedbayes.formula.families.levels import Categorical",),
    reading=_READING._replace(linear=_against_the_first),
)
