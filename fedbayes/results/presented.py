"""Draws under the names that the user gave: a client's own posterior, and every ArviZ object of a fit."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from fedbayes.contract.locals_from import Personal
from fedbayes.errors import did_you_mean
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.program import Arrays, Program
from fedbayes.problem.program.sites import trace_sites
from fedbayes.results import arviz
from fedbayes.results.conditional import integrated_draws
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


class _Site(NamedTuple):
    """A site of one client's program: its dimensions with the number of entries of each; 0 where that may change."""

    name: str
    sizes: Mapping[str, int]


def check_names(problem: Problem, shown: Presentation) -> None:
    """Whether ``coords`` and ``dims`` fit the sites of the model, before any work starts.

    Raises
    ------
    ValueError
        ``dims`` name a site that there is not, or more dimensions than it has; ``coords`` name a dimension that there
        is not, or have another number of labels than it has entries.
    """
    if not (shown.coords or shown.dims):
        return
    for name, given in shown.dims.items():
        if isinstance(given, str):
            raise ValueError(f"`dims['{name}']` is the text {given!r}; write a list of names, `[{given!r}]`.")
    first = [bucket.members[0] for bucket in problem.buckets]
    clients = [(problem.program(problem.names[place]), problem.arrays[place].arrays) for place in first]
    with computing():
        sites = [site for program, data in clients for site in _sites(program, data, shown.dims)]
    given = {dim for dims in shown.dims.values() for dim in dims}
    _check_known("dims", shown.dims, {site.name for site in sites} | {*problem.integrated}, "sites")
    _check_known("coords", shown.coords, {dim for site in sites for dim in site.sizes} | given, "dimensions")
    for name, dim in {(site.name, dim): None for site in sites for dim in site.sizes if dim in shown.coords}:
        sizes, labels = {site.sizes[dim] for site in sites if site.name == name}, len(shown.coords[dim])
        if len(sizes) == 1 and not sizes & {0, labels}:
            raise ValueError(
                f"`coords['{dim}']` has {labels} labels, but '{name}' has {sizes.pop()} entries along that dimension. "
                "Write one label for each entry."
            )


def _sites(program: Program, data: Arrays, dims: Mapping[str, Sequence[str]]) -> Iterator[_Site]:
    """The program's sites. How many rows are predicted may differ from how many there are in the fit."""
    labels, rows = arviz.site_dims(program, data, dims), {len(array) for array in data.values() if array.ndim}
    for name, site in trace_sites(program.model, program.static, data).items():
        if site.kind in ("latent", "observed", "deterministic"):
            fixed = site.kind == "latent" or (site.kind == "deterministic" and not rows & {*site.shape})
            yield _Site(name, dict(zip(labels[name], site.shape if fixed else (0,) * len(site.shape), strict=True)))


def _check_known(argument: str, given: Iterable[str], known: Collection[str], what: str) -> None:
    """Whether all the names given are known ones."""
    for name in given:
        if name not in known:
            raise ValueError(
                f"`{argument}` names '{name}', which is none of the {what} of the model: {sorted(known)}."
                f"{did_you_mean(name, known)}"
            )


def labels_of_globals(problem: Problem, shown: Presentation) -> list[str]:
    """One label per coordinate of the unconstrained globals: ``beta[age]`` where ``coords`` name the entries.

    A simplex and its like have fewer coordinates than entries; those have numbers.
    """
    if not shown.coords:
        return problem.globals.labels()
    first = problem.buckets[0].members[0]
    program, data = problem.program(problem.names[first]), problem.arrays[first].arrays
    with computing():
        dims = arviz.site_dims(program, data, shown.dims)
    entries = {}
    for name, shape in problem.globals.shapes:
        axes = [shown.coords.get(dim, range(size)) for dim, size in zip(dims[name], shape, strict=False)]
        if set(dims[name]) & shown.coords.keys() and tuple(map(len, axes)) == shape:
            entries[name] = [np.asarray(axis).tolist() for axis in axes]
    return problem.globals.labels(entries)


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
    program, data = problem.program(name), problem.held(name).arrays
    with computing():
        values = arviz.constrained(program, data, problem.unpadded(name, mine.draws))
        integrated = _integrated(problem, name, values, key)
    dims = {site: [f"{site}_dim_{axis}" for axis in range(value.ndim - 2)] for site, value in integrated.items()}
    dims |= {site: list(labels) for site, labels in shown.dims.items() if site in integrated}
    told = {**attrs, "client": name, **mine.attrs}
    return presented({"posterior": values | integrated}, program, data, shown, told, dims)


def _integrated(problem: Problem, name: str, values: Mapping[str, np.ndarray], key: Array) -> dict[str, np.ndarray]:
    """A client's draws of what the rounds have integrated out, one at each draw of its latents."""
    program = problem.program(name)
    if not program.integrated:
        return {}
    latents = {site: values[site] for site in (*program.globals.names, *program.locals.names)}
    key = key_for(key, Purpose.INTEGRATED, problem.place(name))
    return integrated_draws(problem, name, latents, key)
