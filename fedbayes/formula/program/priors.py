"""Default priors from the scales of columns and outcome, and those that a user gives in their place.

Scales are those of rstanarm and Bambi (https://mc-stan.org/rstanarm/articles/priors.html): weak, and the same whatever
the units of outcome and covariates are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from fedbayes.errors import FormulaError, did_you_mean
from fedbayes.formula.families.family import Scale, rounded
from fedbayes.formula.program.supports import check_support
from fedbayes.formula.program.written import made, written


class Prior(NamedTuple):
    """One prior of the program.

    Attributes
    ----------
    name
        The site's.
    text
        The distribution, with the shape of the site.
    given
        Whether the user gave it.
    """

    name: str
    text: str
    given: bool


class Priors:
    """The priors of a program: the defaults, unless the user gave others.

    Parameters
    ----------
    given
        By the names of sites.
    """

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise FormulaError(
                f"`priors` is a {type(given).__name__}; write `priors={{'age': dist.Normal(0.0, 1.0)}}`."
            )
        self._given = dict(given or {})
        self.all: dict[str, Prior] = {}

    def text(self, name: str, default: dist.Distribution, shape: Sequence[int] = ()) -> str:
        """The text of a site's prior.

        Parameters
        ----------
        name
            The site's.
        default
            Its prior where none is given; one number's, or of the site's shape.
        shape
            Of the site.

        Raises
        ------
        FormulaError
            The given prior has another shape or another support, or can't be written.
        """
        prior = self._given.get(name, default)
        if isinstance(prior, dist.Distribution):
            check_support(name, prior, default)
        text = written(name, prior, checked=name in self._given) + _expansion(name, prior, tuple(shape))
        self.all[name] = Prior(name, text, name in self._given)
        return text

    def check_used(self) -> None:
        """Refuse priors of sites that there are not."""
        for name in self._given:
            if name not in self.all:
                raise FormulaError(
                    f"`priors` names '{name}', which is no parameter of this regression: {list(self.all)}."
                    f"{did_you_mean(str(name), self.all)}"
                )

    def distributions(self) -> dict[str, dist.Distribution]:
        """By the names of sites."""
        return {name: made(prior.text) for name, prior in self.all.items()}


def _expansion(name: str, prior: dist.Distribution, shape: tuple[int, ...]) -> str:
    """What makes a prior of one number one of the site's shape."""
    if prior.event_shape == shape and not prior.batch_shape:
        return ""
    if prior.batch_shape == shape and not prior.event_shape:
        return f".to_event({len(shape)})"
    if not prior.batch_shape and not prior.event_shape:
        return f".expand({list(shape)}).to_event({len(shape)})"
    raise FormulaError(
        f"`priors[{name!r}]` has the shape {prior.batch_shape + prior.event_shape}, but the parameter has {shape}. "
        "Write a distribution of one number, which is then the prior of each entry, or of this shape."
    )


def of_columns(scale: Scale, sds: np.ndarray, categorical: bool) -> np.ndarray:
    """Default scales of coefficients, one for each column with these sds, shape ``(k,)``."""
    if categorical and scale.level is not None:
        return np.full(len(sds), rounded(scale.level))
    return np.array([rounded(scale.slope / sd if sd > 0 else scale.slope) for sd in sds])


def normal(scales: np.ndarray) -> dist.Distribution:
    """Normal laws around zero; one alone where all scales are equal."""
    if (scales == scales[0]).all():
        return dist.Normal(0.0, float(scales[0]))
    return dist.Normal(0.0, jnp.asarray(scales))


def half_normal(scales: np.ndarray) -> dist.Distribution:
    """Half-normal laws with these scales."""
    if (scales == scales[0]).all():
        return dist.HalfNormal(float(scales[0]))
    return dist.HalfNormal(jnp.asarray(scales))
