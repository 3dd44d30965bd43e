"""Whose effects a reading has: the average site's, a new site's, a client's, or those of one that has joined."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
from jax import Array
from numpyro.handlers import seed, trace

from fedbayes.errors import ClientDataError, FormulaError, did_you_mean
from fedbayes.formula.planned import groups_of
from fedbayes.formula.program.groups import Group, Kind
from fedbayes.formula.program.source import plain
from fedbayes.formula.regression import Regression, own_rows
from fedbayes.problem.program.sites import LOCAL
from fedbayes.questions.regression.entries import check_numbers
from fedbayes.results.arviz import shown

NEW = "new rows"  # what messages call rows of no client
NO_ROWS = " This regression was made of an agreement, without anybody's rows: what is a site's own is known there."


@dataclass(frozen=True)
class Place:
    """Where outcomes are expected.

    Attributes
    ----------
    client
        Whose rows these are, for messages.
    words
        In words.
    posterior
        Draws of the globals, and of a client's effects.
    effects
        Where the posterior has no effects of clients: ``"average"`` or ``"new"``.
    groups
        The labels of a client's groups, in the order of their effects; ``None``: those of the rows.
    """

    client: str
    words: str
    posterior: Any
    effects: str = ""
    groups: Mapping[str, tuple[str, ...]] | None = None


class Latent(NamedTuple):
    """A latent of the program: its shape, and whether it is the client's own."""

    shape: tuple[int, ...]
    local: bool


def global_posterior(reg: Regression, fit: Any) -> Any:
    """The fit's draws of the globals.

    Raises
    ------
    FormulaError
        The fit is of another regression.
    """
    if not isinstance(reg, Regression):
        raise FormulaError(f"`reg` is a {type(reg).__name__}; write what `fb.regression` has returned.")
    if not hasattr(fit, "idata"):
        raise FormulaError(f"`fit` is a {type(fit).__name__}; write what `reg.fit(key=...)` has returned.")
    posterior = fit.idata.posterior
    _check_clients(reg, fit)
    for name, shape in _globals(reg).items():
        _checked(posterior, name, shape)
    for name, dims in reg.dims.items():
        for dim in dims if shown(name) in posterior else ():
            _check_labels(posterior, shown(dim), reg.coords[dim])
    return posterior


def place_of(reg: Regression, fit: Any, where: Any) -> Place:
    """The place of a word, of a client's name, or of what ``fit.adapt`` has returned, with the table it is about.

    Raises
    ------
    FormulaError
        There is no such place, or the fit is of another regression.
    ClientDataError
        The client does not tell its effects.
    """
    posterior = global_posterior(reg, fit)
    adapted, rows = where if isinstance(where, tuple) and len(where) == 2 else (where, None)
    if hasattr(getattr(adapted, "posterior", None), "data_vars"):
        return _joined(reg, adapted.posterior, rows)
    if isinstance(where, str) and where in ("average", "new"):
        if where in reg.clients:
            raise FormulaError(f"`where` is {where!r}, a word that a client is called by, too. Rename the client.")
        return Place(NEW, "at the average site" if where == "average" else "at a new site", posterior, where)
    if not isinstance(where, str) or where not in reg.clients:
        written = ascii(where) if isinstance(where, str | int) else f"a {type(where).__name__}"
        clients = f"a client's name, {_few(reg.clients)}, " if reg.clients else ""
        raise FormulaError(
            f"`where` is {written}; write 'average', 'new', {clients}or what `fit.adapt(...)` has returned."
            f"{did_you_mean(str(where), reg.clients)}{'' if reg.clients else NO_ROWS}"
        )
    own = client_posterior(fit, where) if has_own_effects(reg) else posterior
    return Place(where, f"at '{where}'", own, groups=reg.groups[where])


def has_own_effects(reg: Regression) -> bool:
    """Whether any effects are the clients' own."""
    return any(
        group.grouping.kind is not Kind.ACROSS for predictor in reg.parts.predictors for group in predictor.groups
    )


def client_posterior(fit: Any, name: str) -> Any:
    """A client's draws of its effects and of the globals.

    Raises
    ------
    ClientDataError
        The fit has none.
    """
    try:
        return fit.client_posterior(name).posterior
    except ValueError as error:
        raise ClientDataError(f"The effects of '{name}' are not known: {error}") from error


def _joined(reg: Regression, posterior: Any, rows: Any) -> Place:
    """The place of a client that is none of the fit's; its own rows say which groups its effects are of."""
    words = "at a site that has joined"
    within = {name: group for name, group in _offsets(reg).items() if group.grouping.kind is Kind.WITHIN}
    if not within:
        return Place(NEW, words, posterior)
    if rows is None:
        group = next(iter(within.values()))
        raise FormulaError(
            f"`where` is a client that has joined after the fit, and the labels of its groups '{group.grouping.name}' "
            "are not known here. Write `where=(fit.adapt(...), table)`, with the table whose data it has joined with."
        )
    table = own_rows(reg, NEW, rows)
    table.check_there(dict.fromkeys(name for group in within.values() for name in group.grouping.columns))
    groups = groups_of(reg.parts.predictors, table)
    for name, group in within.items():
        found, told = len(groups[group.grouping.name]), np.shape(posterior.get(shown(name)))[2:3]
        if told and told != (found,):
            raise FormulaError(
                f"`where` has the effects of {told[0]} groups '{group.grouping.name}', and a table with {found}. Write "
                "the table whose data the client has joined with, all of its rows."
            )
    return Place(NEW, words, posterior, groups=groups)


def latents_of(reg: Regression, arguments: Mapping[str, Any]) -> dict[str, Latent]:
    """All latents of the program with these arguments; nothing is computed."""
    found: dict[str, Latent] = {}

    def look() -> None:
        for name, site in trace(seed(reg.model, 0)).get_trace(**arguments).items():
            if site["type"] == "sample" and not site["is_observed"]:
                found[name] = Latent(np.shape(site["value"]), bool(site["infer"].get(LOCAL)))

    with numpyro.validation_enabled(False):
        jax.eval_shape(look)
    return found


def values_at(reg: Regression, place: Place, arguments: Mapping[str, Any], key: Array) -> dict[str, np.ndarray]:
    """Draws of all latents at a place, shape ``(chain, draw, ...)`` each.

    A client's own effects are standard normal latents, times sds and correlations. At the average site they are zero;
    at a new site each draw of the globals has its own draw of them, and so have new groups of a client.
    """
    found = {}
    offsets = _offsets(reg)
    idle = {shown(name) for name in reg.parts.gaps.offsets}  # rows that are read lack nothing
    for number, (name, latent) in enumerate(latents_of(reg, arguments).items()):
        if name in idle:
            found[name] = np.zeros((*_samples(place.posterior), *latent.shape))
        elif latent.local and place.effects:
            if name not in offsets:
                raise FormulaError(f"'{name}' is no effect of a group: `where` has to be a client's name.")
            shape = (*_samples(place.posterior), *latent.shape)
            drawn = jax.random.normal(jax.random.fold_in(key, number), shape)
            found[name] = np.asarray(drawn, float) if place.effects == "new" else np.zeros(shape)
        else:
            known = _shape_known(place, offsets[name], latent) if name in offsets else latent.shape
            values = _checked(place.posterior, name, known)
            found[name] = _extended(values, latent.shape, jax.random.fold_in(key, number))
    return found


def _shape_known(place: Place, group: Group, latent: Latent) -> tuple[int, ...]:
    """The shape of the effects in the fit; the rows of a client may have more groups within it than these."""
    if group.grouping.kind is not Kind.WITHIN or place.groups is None:
        return latent.shape
    return (len(place.groups[group.grouping.name]), *latent.shape[1:])


def _extended(values: np.ndarray, shape: tuple[int, ...], key: Array) -> np.ndarray:
    """Effects of a client's groups, and those of its new groups, which are drawn."""
    if values.shape[2:] == shape:
        return values
    more = (*values.shape[:2], shape[0] - values.shape[2], *shape[1:])
    return np.concatenate([values, np.asarray(jax.random.normal(key, more), float)], axis=2)


def _offsets(reg: Regression) -> dict[str, Group]:
    """The terms of groups by the names of their latents."""
    return {
        f"{plain(predictor.prefix + group.name)}_offset": group
        for predictor in reg.parts.predictors
        for group in predictor.groups
    }


def _samples(posterior: Any) -> tuple[int, int]:
    return posterior.sizes["chain"], posterior.sizes["draw"]


def _globals(reg: Regression) -> dict[str, tuple[int, ...]]:
    """Shapes of the globals; of an agreement without rows the labels alone are checked."""
    if not reg.clients:
        return {}
    arguments = next(iter(reg.clients.values()))
    return {name: latent.shape for name, latent in latents_of(reg, arguments).items() if not latent.local}


def _checked(posterior: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if shown(name) not in posterior:
        raise FormulaError(
            f"The fit is of another regression: its posterior has no '{name}', but {_few(map(str, posterior))}. Write "
            "the regression whose `fit` it came from."
        )
    values = np.asarray(posterior[shown(name)], float)
    check_numbers(name, values)
    if values.shape[2:] != shape:
        raise FormulaError(
            f"The fit is of another regression: its '{name}' has the shape {values.shape[2:]}, and that of this one "
            f"{shape}. Write the regression whose `fit` it came from."
        )
    return values


def _check_labels(posterior: Any, dim: str, labels: list[str]) -> None:
    found = [str(label) for label in posterior[dim].values] if dim in posterior.coords else labels
    if found != [str(label) for label in labels]:
        raise FormulaError(
            f"The fit is of another regression: along '{dim}' it has {found}, and this one {labels}. Write the "
            "regression whose `fit` it came from."
        )


def _check_clients(reg: Regression, fit: Any) -> None:
    names = getattr(fit, "client_names", tuple(reg.clients))
    if reg.clients and set(names) != set(reg.clients):
        raise FormulaError(
            f"The fit is of other clients, {_few(names)}, than the regression, {_few(reg.clients)}. Write the "
            "regression whose `fit` it came from."
        )


def _few(names: Any, most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")
