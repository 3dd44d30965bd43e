"""The effects of sites and of groups, with what each is pulled towards: zero, in units of the group's sd."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions import biject_to

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.formula.described import levels_of, reading_of
from fedbayes.formula.program.groups import Group, Kind
from fedbayes.formula.program.source import plain
from fedbayes.formula.reading.places import NO_ROWS, client_posterior, global_posterior
from fedbayes.formula.regression import Regression
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws
from fedbayes.results.arviz import shown
from fedbayes.runtime.precision import computing

_KEYS = ("term", "site", "group", "effect")


class Effect(NamedTuple):
    """One effect: of which term, at which site (empty: at all), of which group (empty: the site), and its draws."""

    term: str
    site: str
    group: str
    effect: str
    draws: np.ndarray
    tau: float  # root mean square of the group's sd over its draws

    @property
    def unit(self) -> str:
        """Whose it is: ``north``, ``north: ward 3``, or ``drug a``."""
        return ": ".join(filter(None, (self.site, self.group)))


@dataclass(frozen=True, eq=False, repr=False)
class RandomEffects(Estimates):
    """Effects with their draws, dimension ``unit``; ``term``, ``site``, ``group``, ``effect`` say which each is.

    ``tau`` is the sd of all such effects, and ``shrinkage`` the posterior variance of this one over ``tau^2``: 0 where
    the data say all of it, and 1 where they say nothing and the effect is a draw of its group. With normal outcomes of
    known variances it is the share by which the site's own estimate is moved towards zero.
    """

    _globals: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    _ratios: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # by term, what an exponential is

    def contrast(
        self, first: str, second: str, *, effect: str = "Intercept", term: str | None = None, ratio: bool = False
    ) -> Estimates:
        """The difference of two effects, ``b_first - b_second``, on the scale of the link.

        Given the globals, the effects of different sites are independent. Each site's draws come with draws of the
        globals; where those of two sites are not the same draws, the second site's effects are moved to the first
        one's globals by their linear regression on these, so that what both owe to the globals is in both.

        Parameters
        ----------
        first, second
            Units, as they are printed: ``"north"``, ``"north: ward 3"``, or a group's label alone.
        effect
            ``"Intercept"``, which the formula writes as ``1``, or the name of a slope; of a categorical outcome
            ``"Intercept, level"``.
        term
            Such as ``"1|site"``, where several have these units.
        ratio
            Whether the exponential is read, such as the odds ratio between two sites.

        Returns
        -------
        Estimates
            ``.draws`` with the dimensions ``chain, draw``.

        Raises
        ------
        FormulaError
            There is no such effect, or several; or the family has no ratios.

        Examples
        --------
        >>> fb.random_effects(reg, fit).contrast("north", "south")  # doctest: +SKIP
        """
        effect = _in_words(effect)
        one, two = self._place(first, effect, term), self._place(second, effect, term)
        values, sites = self.draws.values, self.draws["site"].values.tolist()
        word = self._ratios.get(self.draws["term"].values.tolist()[one], "")
        if ratio and not word:
            raise FormulaError("`ratio` is True, and the link is no logarithm or log odds. Leave it out.")
        moved = values[..., two] + self._moved(values[..., two], sites[two], sites[one])
        draws = named_draws(values[..., one] - moved, {})
        title = f"{first} against {second}, effect {effect}"
        if ratio:
            ratios = draws.copy(data=np.exp(draws.values))
            return Estimates(ratios, f"{word.capitalize()} of {title}", self.level, 1.0)
        return Estimates(draws, f"Difference of {title}", self.level, 0.0)

    def _moved(self, values: np.ndarray, own: str, other: str) -> np.ndarray | float:
        """What is added to a site's effects at its own globals to have them at another site's."""
        if own == other or not own or not other:
            return 0.0
        mine, others = self._globals[own], self._globals[other]
        if np.array_equal(mine, others):
            return 0.0
        centred = mine - mine.mean(axis=0)
        slope, *_ = np.linalg.lstsq(centred, values.ravel() - values.mean(), rcond=1e-8)
        return np.asarray((others - mine) @ slope).reshape(values.shape)

    def _place(self, unit: str, effect: str, term: str | None) -> int:
        labels = {name: np.asarray(self.draws[name].values.tolist(), dtype=object) for name in ("unit", *_KEYS)}
        named = (labels["unit"] == unit) | ((labels["group"] == unit) & (labels["group"] != ""))
        if not named.any():
            raise FormulaError(
                f"'{unit}' has no effect here; those that do are {', '.join(map(repr, dict.fromkeys(labels['unit'])))}."
                f"{did_you_mean(str(unit), labels['unit'])}"
            )
        found = np.flatnonzero(named & (labels["effect"] == effect) & ((labels["term"] == term) | (term is None)))
        if not len(found):
            there = [f"{labels['effect'][place]} of {labels['term'][place]}" for place in np.flatnonzero(named)]
            of_term = f" of {term}" if term else ""
            raise FormulaError(f"'{unit}' has no effect `{effect}`{of_term}; it has {', '.join(there)}.")
        if len(found) > 1:
            raise FormulaError(
                f"'{unit}' has several effects `{effect}`, of {sorted(set(labels['term'][found]))}, at "
                f"{sorted(set(labels['unit'][found]))}. Write `term=`, or the unit as it is printed."
            )
        return int(found[0])

    def _columns(self) -> list[str]:
        return ["unit", "term", "effect", "mean", "lower", "upper", "tau", "shrinkage"]


def random_effects(reg: Regression, fit: Any, level: float = 0.9) -> RandomEffects:
    """The effects of each site, of the groups within it, and of groups that cross sites, on the scale of the link.

    Each site is asked for its own (:meth:`fedbayes.FederatedFit.client_posterior`); one that does not tell is left out
    and named in ``.notes``.

    Parameters
    ----------
    reg
        The regression.
    fit
        Its fit.
    level
        Probability of the intervals.

    Returns
    -------
    RandomEffects
        ``.draws`` with the dimensions ``chain, draw, unit``; ``.summary`` has the effects beside ``tau``, the sd of all
        such effects, and ``shrinkage``, ``Var(b | data) / E(tau^2 | data)``; ``.contrast(first, second)``.

    Raises
    ------
    FormulaError
        The regression has no effects of groups, or the fit is of another one.
    ClientDataError
        No site tells its effects.

    See Also
    --------
    heterogeneity : How large they are.
    summary_table : The coefficients that they vary about.

    Examples
    --------
    >>> fb.random_effects(reg, fit).contrast("north", "south")  # doctest: +SKIP
    """
    level, posterior = check_level(level), global_posterior(reg, fit)
    groups = _groups(reg)
    if not reg.clients and all(group.grouping.kind is not Kind.ACROSS for group, _ in groups.values()):
        raise ClientDataError("The effects of sites are not known here." + NO_ROWS)
    own: dict[str, Any] = {}
    reasons: dict[str, list[str]] = {}
    for client in reg.clients if any(group.grouping.kind is not Kind.ACROSS for group, _ in groups.values()) else ():
        try:
            own[client] = client_posterior(fit, client)
        except ClientDataError as error:
            reasons.setdefault(str(error.__cause__), []).append(client)
    refused = [f"The effects of {', '.join(map(repr, who))} are not known: {why}" for why, who in reasons.items()]
    found = [
        effect
        for name, (group, levels) in groups.items()
        for effect in _effects(reg, posterior, own, name, group, levels)
    ]
    if not found:
        raise ClientDataError(" ".join(refused))
    variances = np.array([effect.draws.var() for effect in found])
    taus = np.array([effect.tau for effect in found])
    coords = {key: ("unit", [getattr(effect, key) for effect in found]) for key in _KEYS}
    coords |= {"tau": ("unit", taus), "shrinkage": ("unit", variances / taus**2)}  # type: ignore[dict-item]
    draws = named_draws(
        np.stack([effect.draws for effect in found], axis=-1), {"unit": [effect.unit for effect in found]}, **coords
    )
    readings = {
        plain(predictor.prefix + group.name): reading_of(reg.parts, predictor)
        for predictor in reg.parts.predictors
        for group in predictor.groups
    }
    return RandomEffects(
        draws, "Effects on the scale of the link", level, 0.0, tuple(refused),
        _globals={client: _unconstrained(reg, values) for client, values in own.items()},
        _ratios={term: reading.coefficient for term, reading in readings.items() if reading.ratio},
    )  # fmt: skip


def _groups(reg: Regression) -> dict[str, tuple[Group, list[list[str]]]]:
    """The terms of groups by name, each with the outcome's levels where it has effects for each."""
    found = {
        plain(predictor.prefix + group.name): (group, levels_of(reg.parts, predictor))
        for predictor in reg.parts.predictors
        for group in predictor.groups
    }
    if not found:
        raise FormulaError("The formula has no effects of groups. Write `(1 | site)` in it, and fit it again.")
    return found


def _effects(
    reg: Regression, posterior: Any, own: Mapping[str, Any], name: str, group: Group, levels: list[list[str]]
) -> Iterator[Effect]:
    """All effects of one term; those for a level of the outcome are called ``Intercept, level``."""
    labels = [_in_words(", ".join(each)) for each in product(group.effects, *levels)]
    sds = np.asarray(posterior[shown(f"{name}_sigma")], float)
    taus = np.sqrt((sds.reshape(*sds.shape[:2], -1) ** 2).mean(axis=(0, 1)))
    kind, label = group.grouping.kind, group.grouping.name
    where: Mapping[str, Any] = {"": posterior} if kind is Kind.ACROSS else own
    for site, values in where.items():
        units = {Kind.CLIENT: ("",), Kind.ACROSS: group.grouping.levels}.get(kind) or reg.groups[site][label]
        effects = np.asarray(values[shown(name)], float)
        effects = effects.reshape(*effects.shape[:2], len(units), len(labels))
        for place, unit in enumerate(units):
            for number, effect in enumerate(labels):
                yield Effect(name, site, unit, effect, effects[:, :, place, number], float(taus[number]))


def _in_words(effect: str) -> str:
    """The effect's name as people read it: the formula's ``1`` is the intercept."""
    first, comma, level = effect.partition(", ")
    return f"Intercept{comma}{level}" if first == "1" else effect


def _unconstrained(reg: Regression, posterior: Any) -> np.ndarray:
    """A client's draws of the globals, each without its bounds, shape ``(draws, d)``."""
    columns = []
    with computing():
        for name, prior in reg.priors.items():
            site = f"{name}_centred" if shown(f"{name}_centred") in posterior else name
            values = np.asarray(posterior[shown(site)], float)
            free = np.asarray(biject_to(prior.support).inv(values))
            columns.append(free.reshape(values.shape[0] * values.shape[1], -1))
    return np.concatenate(columns, axis=1)
