"""Draws under the names that the user gave: a client's own posterior, and every ArviZ object of a fit."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from fedbayes.contract.locals_from import Personal
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.program import Program
from fedbayes.results import arviz
from fedbayes.results.conditional import integrated_draws, rows_of
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing


class Presentation(NamedTuple):
    """How the posterior is shown.

    Attributes
    ----------
    num_draws
        Posterior draws per chain.
    coords, dims
        ArviZ's.
    local
        Names of local latents that the model itself does not mark.
    correct
        Whether a Gaussian answer is checked, and corrected by importance weights.
    """

    num_draws: int
    coords: dict[str, Any]
    dims: dict[str, Any]
    local: tuple[str, ...]
    correct: bool = True

    def plain(self) -> dict[str, Any]:
        """The same as JSON knows it: labels in arrays, also numbers and dates, as lists."""
        labels = {name: [_label(each) for each in np.asarray(values).tolist()] for name, values in self.coords.items()}
        return self._asdict() | {"coords": labels}


def _label(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else str(value)


def presented(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    program: Program,
    data: Mapping[str, Any],
    shown: Presentation,
    attrs: Mapping[str, Any],
    dims: Mapping[str, list[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> Any:
    """An ArviZ object whose dimensions have the names of plates, and those that the user gave.

    Parameters
    ----------
    groups
        Arrays ``(chain, draw, ...)``, a group ``posterior`` among them.
    program, data
        Whose sites they are; ``data`` give shapes.
    shown
        The user's names.
    attrs
        For every group.
    dims, coords
        Beside those.
    """
    with computing():
        known = arviz.site_dims(program, data, shown.dims)
    defaults = arviz.plate_coords(known, groups["posterior"])
    return arviz.to_arviz(groups, defaults | shown.coords | dict(coords or {}), known | dict(dims or {}), attrs)


def presented_client(
    problem: Problem, name: str, mine: Personal, shown: Presentation, key: Array, attrs: Mapping[str, Any]
) -> Any:
    """One client's own posterior for ArviZ, with what its density has integrated out.

    Parameters
    ----------
    problem, name
        The client, whose data this process holds.
    mine
        Its draws, unconstrained.
    shown
        The user's names.
    key
        Of the fit.
    attrs
        For the group.
    """
    program, data = problem.client(name).program, problem.held(name).arrays
    with computing():
        values = arviz.constrained(program, data, mine.draws)
        integrated = _integrated(problem, name, values, key)
    dims = {site: [f"{site}_dim_{axis}" for axis in range(value.ndim - 2)] for site, value in integrated.items()}
    dims |= {site: list(labels) for site, labels in shown.dims.items() if site in integrated}
    told = {**attrs, "client": name, **mine.attrs}
    return presented({"posterior": values | integrated}, program, data, shown, told, dims)


def _integrated(problem: Problem, name: str, values: Mapping[str, np.ndarray], key: Array) -> dict[str, np.ndarray]:
    """A client's draws of what the rounds have integrated out, one at each draw of its latents."""
    program = problem.client(name).program
    if not program.integrated:
        return {}
    latents = {site: values[site] for site in (*program.globals.names, *program.locals.names)}
    key = key_for(key, Purpose.INTEGRATED, problem.place(name))
    return integrated_draws(program, rows_of(problem, name), latents, key)
