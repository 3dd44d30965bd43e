"""Posterior predictive draws by NumPyro, compiled once for a model and the shapes of its arguments."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.primitives import Messenger

from fedbayes.kept import Kept
from fedbayes.problem.program import Program
from fedbayes.problem.tracing import digest_of

_PREDICTORS: Kept[Any] = Kept(32)


class _Unobserved(Messenger):
    """Draws the sites that the program observes: with the outcome among the arguments, its prediction is asked for."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], dist.Unit):  # no `factor`
            msg["value"], msg["is_observed"] = None, False


def predictive_draws(
    program: Program, draws: Mapping[str, np.ndarray], key: Array, arguments: Mapping[str, Any]
) -> Any:
    """NumPyro's ``Predictive``, compiled once for a model and the shapes of its arguments.

    It is traced each time: without the outcome a model may read variables that the traces before the fit did not see.
    """
    arrays = {name: np.asarray(value) for name, value in arguments.items() if _is_array(value)}
    fixed = {name: value for name, value in arguments.items() if name not in arrays}

    def run(key: Array, draws: Mapping[str, Array], arrays: Mapping[str, Array]) -> Any:
        from numpyro.infer import Predictive

        return Predictive(_Unobserved(program.model), dict(draws), batch_ndims=2)(key, **fixed, **arrays)

    arguments_ = key, dict(draws), arrays
    traced = jax.jit(run).trace(*arguments_)
    kept = _PREDICTORS.get(digest_of(traced.jaxpr), lambda: traced.lower().compile())
    return kept(*arguments_)


def _is_array(value: Any) -> bool:
    """Whether an argument is data, rather than a size, a flag or a name."""
    return hasattr(value, "__array__") or isinstance(value, list | tuple | float)
