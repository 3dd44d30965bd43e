"""What theory predicts of a run's bias, held against the limit of a converged fit, in words and with the remedy."""

from collections.abc import Mapping

import numpy as np

from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.fald.options import Options


def predicted_too_large(config: Options, known: Mapping[str, float]) -> list[str]:
    """The biases above the limit, and those that can't be predicted though there is one; a sentence or two for each.

    Parameters
    ----------
    config
        Of the sampler.
    known
        The numbers of the :class:`~fedbayes.inference.fald.plan.Plan`; NaN where nothing is predicted.
    """
    return [*_of_means(config, known), *_of_sds(known), *_of_participation(config, known)]


def _of_means(config: Options, known: Mapping[str, float]) -> list[str]:
    bias = known["mean_bias"]
    if not bias > ERROR_LIMIT:
        return []
    ways = [] if config.control_variate or config.clip else ["`control_variate=True`"]
    ways += ["`weights='equal'`"] if config.allow_unbalanced else []
    ways += ["`local_steps=1`"] if known["local_steps"] > 1 else []
    return [
        f"The predicted bias of the means is {bias:.2g} posterior sds (the limit is {ERROR_LIMIT}): in their local "
        f"steps clients drift to their own optima. Write {', '.join([*ways, _smaller(known, bias)])}."
    ]


def _of_sds(known: Mapping[str, float]) -> list[str]:
    bias = known["sd_bias"]
    if not bias > ERROR_LIMIT:
        return []
    return [
        f"The predicted bias of the sds is {bias:+.0%} (the limit is {ERROR_LIMIT:.0%}), for so large a step and so "
        f"many local ones. Write {_smaller(known, bias)}, or fewer `local_steps`."
    ]


def _of_participation(config: Options, known: Mapping[str, float]) -> list[str]:
    bias = known["participation_bias"]
    if np.isnan(bias):
        return [
            "The bias of the sds by partial participation can't be predicted: it depends on the clients' curvatures, "
            "which are not known with `init='zero'`, and on local latents, which move only when their client takes "
            "part. Write `scheme='full'`."
        ]
    if not bias > ERROR_LIMIT:
        return []
    size = f"{bias:+.0%}" if np.isfinite(bias) else "infinite"
    way = _smaller(known, bias) if config.noise_correlation == 1.0 else "`noise_correlation=1.0`"
    return [
        f"The predicted bias of the sds by partial participation is {size} (the limit is {ERROR_LIMIT:.0%}). Write "
        f"`scheme='full'`, {way}, or a larger `num_active`."
    ]


def _smaller(known: Mapping[str, float], bias: float) -> str:
    """A step at which a bias in proportion to it would be half the limit; no less than a hundredth of the present."""
    return f"`step_size={known['step_size'] * max(0.5 * ERROR_LIMIT / bias, 0.01):.2g}`"
