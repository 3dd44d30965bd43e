"""A regression as a value, saved with its fit: what it was, and how the draws of its parameters are read.

The regression's program carries it, so that a fit knows what it is of whoever has made it: in one process, over a
network, or from a folder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedbayes.results.arviz import shown

_CARRIED = "regression"  # the attribute of a program


class Entry(NamedTuple):
    """A number with its draws.

    Attributes
    ----------
    name, what
        What it is called in the posterior, and what it is.
    draws
        Shape ``(chain, draw)``.
    reference
        With which it is compared; NaN: with nothing.
    """

    name: str
    what: str
    draws: np.ndarray
    reference: float = np.nan


class Read(NamedTuple):
    """How a site of the posterior is read.

    Attributes
    ----------
    site, what
        Its name in the posterior, and what its entries are.
    axes
        Labels along each of its axes, where these have any.
    reference
        With which its entries are compared; NaN: with nothing.
    is_log
        Whether the exponential is read, whose reference is the exponential.
    may_lack
        Whether the posterior may be without it.
    """

    site: str
    what: str
    axes: Sequence[Sequence[str]] = ()
    reference: float = np.nan
    is_log: bool = False
    may_lack: bool = False

    def entries(self, posterior: Any) -> list[Entry]:
        """The entries of the site, ``name[label]`` where it has axes."""
        if self.may_lack and shown(self.site) not in posterior:
            return []
        values = np.asarray(posterior[shown(self.site)], float)
        flat = values.reshape(*values.shape[:2], -1)
        labels = [", ".join(filter(None, each)) for each in product(*self.axes)]
        if len(labels) != flat.shape[-1]:  # an axis without names
            labels = [", ".join(map(str, place)) for place in np.ndindex(values.shape[2:])]
        names = [f"{self.site}[{label}]" if label else self.site for label in labels]
        if self.is_log:
            flat = np.exp(flat)
        reference = float(np.exp(self.reference)) if self.is_log else self.reference
        return [Entry(name, self.what, flat[..., place], reference) for place, name in enumerate(names)]


class Share(NamedTuple):
    """An intraclass correlation: a group's share of the variance, on the scale of the link.

    Attributes
    ----------
    group, groups
        The site of the sd of its effects, and those of all groups.
    constant, parameter, power
        The variance of an outcome around its linear predictor is ``constant * parameter ** power``; without a name of
        a parameter it is the constant.
    """

    group: str
    groups: Sequence[str]
    constant: float
    parameter: str = ""
    power: float = 0.0

    def entry(self, posterior: Any) -> Entry:
        """The share with its draws."""
        variances = {name: np.asarray(posterior[shown(name)], float) ** 2 for name in self.groups}
        scale = np.asarray(posterior[shown(self.parameter)], float) ** self.power if self.parameter else 1.0
        whole = sum(variances.values()) + self.constant * scale
        return Entry(f"ICC of {self.group.removesuffix('_sigma')}", "ICC", variances[self.group] / whole)


class Regressed(NamedTuple):
    """A regression that was fitted. It holds nothing of a single client.

    Attributes
    ----------
    formulas
        By parameter of the family; the empty name is the outcome's.
    family, link
        Their names.
    scale
        On which the outcome's coefficients are in the posterior, in words: ``"log odds"``.
    source, priors
        The program's text, and each global's prior in words.
    coefficients
        How every parameter is read; first the intercept of the outcome's formula.
    spread, shares
        How the sds of groups' effects are read, and their shares of the variance.
    notes
        Why there is no such share.
    """

    formulas: Mapping[str, str]
    family: str
    link: str
    scale: str
    source: str
    priors: Mapping[str, str]
    coefficients: Sequence[Read]
    spread: Sequence[Read] = ()
    shares: Sequence[Share] = ()
    notes: Sequence[str] = ()

    @property
    def is_log(self) -> bool:
        """Whether the outcome's coefficients are read as ratios, whose logarithms the posterior has."""
        return self.coefficients[0].is_log

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Regressed":
        """From what JSON has of :meth:`plain`."""
        parts = {
            "coefficients": [Read(*each) for each in told["coefficients"]],
            "spread": [Read(*each) for each in told["spread"]],
            "shares": [Share(*each) for each in told["shares"]],
        }
        return cls(**{**told, **parts})

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return self._asdict()

    def entries(self, posterior: Any) -> list[Entry]:
        """Every parameter on the scale on which it is read."""
        return [entry for each in self.coefficients for entry in each.entries(posterior)]

    def heterogeneity(self, posterior: Any) -> list[Entry]:
        """The sds of effects, and their shares of the variance."""
        return [*self._sds(posterior), *(share.entry(posterior) for share in self.shares)]

    def _sds(self, posterior: Any) -> Iterator[Entry]:
        for each in self.spread:
            for entry in each.entries(posterior):
                yield entry._replace(name=f"tau of {entry.name.replace('_sigma', '', 1)}")


class Effects(NamedTuple):
    """A term of effects of groups, ``(labels | groups)``.

    Attributes
    ----------
    name
        Of their site in the posterior.
    labels
        Of the effects of one group, in the order in which the posterior has them.
    groups
        What the groups within a client are called; empty: they are of the client itself, or cross clients.
    levels
        Of groups that cross clients, whose effects are globals; none: they are the clients' own.
    ratio
        What the exponential of an effect is; empty: nothing that is read.
    """

    name: str
    labels: Sequence[str]
    groups: str
    levels: Sequence[str]
    ratio: str


def effect_in_words(effect: str) -> str:
    """The effect's name as people read it: the formula's ``1`` is the intercept."""
    first, comma, level = effect.partition(", ")
    return f"Intercept{comma}{level}" if first == "1" else effect


class Carried(NamedTuple):
    """What the program of a regression carries, in the process where it was made.

    Attributes
    ----------
    regression
        What its fits are saved with.
    effects
        The effects of groups, term by term.
    groups
        Of each client, the labels of its groups in the order of their effects; where nobody's rows are, none.
    unconstrained
        From draws of the posterior to those of the globals without their bounds, shape ``(draws, d)``.
    whole
        The :class:`fedbayes.Regression` itself, for the rooms above that know it; ``whole.model`` is the program that
        carries this.
    """

    regression: Regressed
    effects: Sequence[Effects]
    groups: Mapping[str, Mapping[str, Sequence[str]]]
    unconstrained: Callable[[Any], np.ndarray]
    whole: Any


def carry(model: Callable[..., Any], carried: Carried) -> None:
    """Have a program carry its regression."""
    setattr(model, _CARRIED, carried)


def carried_by(model: Any) -> Carried | None:
    """What a program carries; ``None``: it is a user's own, which may wrap a regression's with its attributes."""
    found = getattr(model, _CARRIED, None)
    return found if isinstance(found, Carried) and found.whole.model is model else None
