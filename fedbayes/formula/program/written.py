"""Distributions of NumPyro as the text that makes them."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError


def written(name: str, prior: Any, *, checked: bool = True) -> str:
    """The text that makes a prior again, such as ``dist.Normal(0.0, 2.5)``.

    Parameters
    ----------
    name
        Whose prior it is, for messages.
    prior
        A distribution of ``numpyro.distributions``.
    checked
        Whether the text is tried: it makes a distribution with the same log densities.

    Raises
    ------
    FormulaError
        It is no distribution, or one that can't be written as text.
    """
    if not isinstance(prior, dist.Distribution):
        raise FormulaError(
            f"`priors[{name!r}]` is {prior!r}; write a distribution of NumPyro, `numpyro.distributions.Normal(0.0, "
            "1.0)`."
        )
    text = _text(prior)
    if text is None or (checked and not _same(text, prior)):
        raise FormulaError(
            f"`priors[{name!r}]` is a {type(prior).__name__}, which can't be written as text for the program's "
            "source. Take a distribution of `numpyro.distributions` with numbers as its parameters, or edit `.source`."
        )
    return text


def made(text: str) -> dist.Distribution:
    """The distribution of a text that :func:`written` has returned."""
    found: dist.Distribution = eval(text, {"dist": dist, "jnp": jnp, "__builtins__": {}})  # noqa: S307 (our own text)
    return found


def _text(prior: dist.Distribution) -> str | None:
    if isinstance(prior, dist.Independent):
        inner = _text(prior.base_dist)
        return inner and f"{inner}.to_event({prior.reinterpreted_batch_ndims})"
    if isinstance(prior, dist.ExpandedDistribution):
        inner = _text(prior.base_dist)
        return inner and f"{inner}.expand({list(prior.batch_shape)})"
    kind = type(prior)
    if getattr(dist, kind.__name__, None) is not kind:
        return None
    arguments = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.name == "validate_args" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(prior, parameter.name, None)
        if isinstance(value, str | None) and value == parameter.default:
            continue
        shown = _text(value) if isinstance(value, dist.Distribution) else _number(value)
        if shown is None:
            return None
        separate = parameter.kind is parameter.KEYWORD_ONLY
        arguments.append(f"{parameter.name}={shown}" if separate else shown)
    return f"dist.{kind.__name__}({', '.join(arguments)})"


def _number(value: Any) -> str | None:
    if isinstance(value, bool | int | float | str) or value is None:
        return repr(value)
    try:
        array = np.asarray(value)
    except Exception:
        return None
    if array.dtype.kind not in "fiub":
        return None
    if array.dtype == np.float32:  # 0.1 as it was meant, and not with the digits that 32 bits add
        array = np.reshape([float(str(each)) for each in array.ravel()], array.shape)
    if array.ndim == 0:
        return repr(array.item())
    if array.ndim == 1 and array.size > 3 and (array == array[0]).all():
        return f"jnp.full({array.size}, {array[0].item()!r})"
    return f"jnp.array({array.tolist()!r})"


def _same(text: str, prior: dist.Distribution) -> bool:
    """Whether the text makes a distribution with the same shapes and the same log densities."""
    try:
        again = made(text)
        if (again.batch_shape, again.event_shape) != (prior.batch_shape, prior.event_shape):
            return False
        draws = prior.sample(jax.random.key(0), (5,))
        return bool(jnp.allclose(prior.log_prob(draws), again.log_prob(draws), rtol=1e-4, atol=1e-5))
    except Exception:
        return False
