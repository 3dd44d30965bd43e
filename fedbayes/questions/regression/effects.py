"""The effects of sites and of groups, with what each is pulled towards: zero, in units of the group's sd."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.questions.clients import client_posterior
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.coefficients import known
from fedbayes.questions.regression.estimates import Estimates, named_draws
from fedbayes.results.arviz import shown
from fedbayes.results.fitted import Fitted
from fedbayes.results.posterior import idata
from fedbayes.results.saved.regression import Carried, Effects, effect_in_words

_KEYS = ("term", "site", "group", "effect")
_AT_SITES = (
    "They are computed at the sites, where the rows are: there `fedbayes client-posterior` writes them, and `fedbayes "
    "predict` predicts new rows with them. How much sites differ is known here, by `fb.heterogeneity(reg, fit)`."
)


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
        >>> fit.random_effects().contrast("north", "south")  # doctest: +SKIP
        """
        effect = effect_in_words(effect)
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


def random_effects(fitted: Fitted, level: float = 0.9) -> RandomEffects:
    """The effects of each site, of the groups within it, and of groups that cross sites, on the scale of the link.

    Each site is asked for its own (:meth:`client_posterior`); one that does not tell is left out and named in
    ``.notes``. Over a network no site tells its effects: there they are read at the site.

    Parameters
    ----------
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
        The fit knows of no regression, or this one has no effects of groups.
    ClientDataError
        No site tells its effects.
    ValueError
        ``level`` is no probability.

    See Also
    --------
    heterogeneity : How large they are.
    summary_table : The coefficients that they vary about.

    Examples
    --------
    >>> reg.fit(key=jax.random.key(0)).random_effects().contrast("north", "south")  # doctest: +SKIP
    """
    known(fitted.regression, "random_effects")
    if fitted.carried is None:
        raise FormulaError(
            "The model of this fit is no `reg.model`, and does not say which effects are whose. Write "
            "`fb.random_effects(reg, fit)` with its regression."
        )

    def ask(name: str) -> Any:
        if fitted.problem.elsewhere:
            raise ClientDataError(_AT_SITES)
        return client_posterior(fitted, name)["posterior"]

    return effects(fitted.carried, idata(fitted)["posterior"], fitted.roster.names, ask, level)


def effects(
    carried: Carried, posterior: Any, names: Sequence[str], ask: Callable[[str], Any], level: float
) -> RandomEffects:
    """The effects of a fit.

    Parameters
    ----------
    carried
        Which effects there are.
    posterior
        Draws of the globals.
    names, ask
        The sites, and the draws of one of them, of its effects and of the globals.
    level
        Probability of the intervals.

    Raises
    ------
    FormulaError
        There are none.
    ClientDataError
        No site tells them.
    ValueError
        ``level`` is no probability.
    """
    level = check_level(level)
    if not carried.effects:
        raise FormulaError("The formula has no effects of groups. Write `(1 | site)` in it, and fit it again.")
    own: dict[str, Any] = {}
    reasons: dict[str, list[str]] = {}
    for name in names if any(not term.levels for term in carried.effects) else ():
        try:
            own[name] = ask(name)
        except ValueError as error:
            reasons.setdefault(str(error), []).append(name)
    refused = [f"The effects of {', '.join(map(repr, who))} are not known: {why}" for why, who in reasons.items()]
    found = [effect for term in carried.effects for effect in _of_term(term, carried, posterior, own)]
    if not found:
        raise ClientDataError(" ".join(refused))
    variances = np.array([effect.draws.var() for effect in found])
    taus = np.array([effect.tau for effect in found])
    coords = {key: ("unit", [getattr(effect, key) for effect in found]) for key in _KEYS}
    coords |= {"tau": ("unit", taus), "shrinkage": ("unit", variances / taus**2)}  # type: ignore[dict-item]
    draws = named_draws(
        np.stack([effect.draws for effect in found], axis=-1), {"unit": [effect.unit for effect in found]}, **coords
    )
    return RandomEffects(
        draws, "Effects on the scale of the link", level, 0.0, tuple(refused),
        _globals={name: carried.unconstrained(values) for name, values in own.items()},
        _ratios={term.name: term.ratio for term in carried.effects if term.ratio},
    )  # fmt: skip


def _of_term(term: Effects, carried: Carried, posterior: Any, own: Mapping[str, Any]) -> Iterator[Effect]:
    """All effects of one term."""
    sds = np.asarray(posterior[shown(f"{term.name}_sigma")], float)
    taus = np.sqrt((sds.reshape(*sds.shape[:2], -1) ** 2).mean(axis=(0, 1)))
    where: Mapping[str, Any] = {"": posterior} if term.levels else own
    for site, values in where.items():
        draws = np.asarray(values[shown(term.name)], float)
        draws = draws.reshape(*draws.shape[:2], -1, len(term.labels))
        units = term.levels or _units(term, carried, site, draws.shape[2])
        for place, unit in enumerate(units):
            for number, label in enumerate(term.labels):
                yield Effect(term.name, site, unit, label, draws[:, :, place, number], float(taus[number]))


def _units(term: Effects, carried: Carried, site: str, count: int) -> Sequence[str]:
    """Whose effects of a site these are: the site's own, or those of its groups.

    Raises
    ------
    ClientDataError
        The labels of its groups are not at hand.
    """
    if not term.groups:
        return ("",)
    labels = carried.groups.get(site, {}).get(term.groups, ())
    if len(labels) != count:
        raise ClientDataError(
            f"'{site}' has {count} groups '{term.groups}', and their labels are not known here: they stay with the "
            "site's rows. Make the regression with `clients=`, and fit that one."
        )
    return labels
