"""Effect handlers: a model with other outcomes, or drawn ones, and what is said of a site that can't be drawn."""

from collections.abc import Callable, Mapping
from typing import Any

import numpyro.distributions as dist
from jax import Array
from numpyro.primitives import Messenger

from fedbayes.errors import NotDrawableError


class Replaced(Messenger):
    """The model with other values for some of its observed sites."""

    def __init__(self, model: Callable[..., Any], values: Mapping[str, Array]) -> None:
        super().__init__(model)
        self.values = values

    def process_message(self, msg: dict[str, Any]) -> None:
        """See NumPyro's ``Messenger``."""
        if msg["type"] == "sample" and msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


class Drawn(Messenger):
    """The model, drawn from: where NumPyro can't draw a site, the error says which.

    A fit reads densities alone, so that such a model is found only by a prediction.
    """

    _site: dict[str, Any] | None = None  # that is being drawn; ``None`` while the model's own code runs

    def process_message(self, msg: dict[str, Any]) -> None:
        """See NumPyro's ``Messenger``."""
        self._site = msg if msg["type"] == "sample" else None

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """See NumPyro's ``Messenger``."""
        self._site = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See NumPyro's ``Messenger``."""
        self._site = None
        try:
            return super().__call__(*args, **kwargs)
        except (ImportError, NotImplementedError) as error:
            if self._site is None:
                raise
            raise _not_drawable(str(self._site["name"]), self._site["fn"], error) from error


class Unobserved(Drawn):
    """Draws the sites that the model observes: with the outcome among the arguments, its prediction is asked for."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """See NumPyro's ``Messenger``."""
        super().process_message(msg)
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], dist.Unit):  # no `factor`
            msg["value"], msg["is_observed"] = None, False


def _not_drawable(site: str, law: Any, error: Exception) -> NotDrawableError:
    """What to say of a site that NumPyro can't draw."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        law = law.base_dist
    base = getattr(law, "base_dist", None)
    name = type(law).__name__ + (f" of a {type(base).__name__}" if base is not None else "")
    reason = str(error).rstrip(".")
    if isinstance(error, ImportError):
        return NotDrawableError(
            f"NumPyro can't draw the site '{site}', a {name}: {reason}. A fit needs its density alone, but predictions "
            "and simulated data are drawn. Install that package, or write a distribution that NumPyro draws by itself: "
            "the half of a symmetric one is `dist.FoldedDistribution(dist.StudentT(...))`."
        )
    return NotDrawableError(
        f"The site '{site}', a {name}, can't be drawn{f' ({reason})' if reason else ''}: it is improper, or has a "
        "density alone. A fit needs no more, but predictions and simulated data are drawn. Write a proper "
        "distribution, such as `dist.Normal(0.0, 10.0)`."
    )
