"""A client's arrays as columns, and what the model does with them: outcomes, indices, and all others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Model
from fedbayes.problem.program.sites import TracedSite, base_law, run_trace, trace_sites
from fedbayes.problem.program.tracing import leading_to

Labels = Mapping[str, Sequence[str]]


class Roles(NamedTuple):
    """What the model does with its arguments.

    Attributes
    ----------
    outcomes
        Arguments that observed values are made of, each with whether these are categories by their law.
    parts
        Outcomes of which other parts may be covariates: an observed value has fewer entries than the argument.
    indices
        Whole numbers that pick entries of the globals: groups of rows.
    groups
        Whole numbers that pick entries of local latents, which never leave the client.
    """

    outcomes: Mapping[str, bool]
    parts: frozenset[str] = frozenset()
    indices: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


class Columns(NamedTuple):
    """The columns of one argument.

    Attributes
    ----------
    argument
        Its name.
    names
        ``"y"``, or ``"x[age]"`` for each.
    values
        Shape ``(columns, rows)``.
    """

    argument: str
    names: tuple[str, ...]
    values: np.ndarray


class _Seen(NamedTuple):
    """An observed value: what it is made of, its size, and whether it is a category."""

    arguments: frozenset[str]
    size: int
    categories: bool


def roles_of(model: Model, client: ClientArrays, local: Sequence[str] = ()) -> Roles:
    """Read off the model, by tracing it on shapes: nothing is computed."""
    seen = _observed(model, client)
    outcomes: dict[str, bool] = {}
    for each in seen:
        outcomes |= {name: outcomes.get(name, True) and each.categories for name in sorted(each.arguments)}
    sizes = {name: client.arrays[name].size for name in outcomes}
    parts = frozenset(
        name for name in outcomes if any(name in each.arguments and each.size < sizes[name] for each in seen)
    )
    whole = [name for name, array in client.arrays.items() if array.dtype.kind in "iu" and array.ndim == 1]
    indices = [name for name in whole if name not in outcomes and _is_index(model, client, name)]
    sites = trace_sites(model, client.static, client.arrays) if indices else {}
    groups = frozenset(name for name in indices if _of_locals(sites, local, int(client.arrays[name].max())))
    return Roles(outcomes, parts, frozenset(indices) - groups, groups)


def _observed(model: Model, client: ClientArrays) -> list[_Seen]:
    """What each observed value is made of."""
    found: list[tuple[int, bool]] = []

    def values(data: dict[str, Array]) -> list[Array]:
        sites = run_trace(model, client.static, data).values()
        observed = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
        known = [site for site in observed if not isinstance(site["fn"], dist.Unit)]
        found[:] = [(int(np.size(site["value"])), _has_categories(site["fn"])) for site in known]
        return [jnp.asarray(site["value"]) for site in known]

    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in client.arrays.items()}
    jaxpr = jax.make_jaxpr(values)(like).jaxpr
    names = dict(zip(map(id, jaxpr.invars), sorted(like), strict=True))
    seen = []
    for var, (size, categories) in zip(jaxpr.outvars, found, strict=True):
        needed = leading_to(jaxpr, [var])[1]
        seen.append(_Seen(frozenset(name for key, name in names.items() if key in needed), size, categories))
    return [each for each in seen if each.arguments]


def _has_categories(law: Any) -> bool:
    """Whether an outcome is one of some categories, and no count of something."""
    law = base_law(law)
    return bool(law.has_enumerate_support) and not hasattr(law, "total_count")


def _is_index(model: Model, client: ClientArrays, name: str) -> bool:
    """Whether the model can't be run with decimals in place of these whole numbers."""
    like = {key: jax.ShapeDtypeStruct(array.shape, array.dtype) for key, array in client.arrays.items()}
    like[name] = jax.ShapeDtypeStruct(like[name].shape, np.float32)
    try:
        trace_sites(model, client.static, like)  # type: ignore[arg-type]
    except Exception:
        return True
    return False


def _of_locals(sites: Mapping[str, TracedSite], local: Sequence[str], highest: int) -> bool:
    """Whether only local latents have so many entries."""
    long = [
        site.local or name in local
        for name, site in sites.items()
        if site.kind == "latent" and site.shape and max(site.shape) > highest
    ]
    return bool(long) and all(long)


def num_rows(client: ClientArrays, roles: Roles) -> int:
    """Rows of a client: entries of its outcomes' first axis, or of the longest argument where none is an outcome."""
    chosen = roles.outcomes.keys() & client.arrays.keys() or client.arrays.keys()
    return max((len(client.arrays[name]) for name in chosen if client.arrays[name].ndim), default=1)


def columns_of(client: ClientArrays, names: Iterable[str], rows: int, labels: Labels) -> Iterator[Columns]:
    """Arguments as columns over their first axis, or over the one that has as many entries as there are rows."""
    for name in names:
        array = client.arrays[name]
        if not array.ndim:
            continue
        if len(array) != rows and rows in array.shape:
            array = np.moveaxis(array, array.shape.index(rows), 0)
        yield Columns(
            name, _names(name, array.shape[1:], client, labels), np.ascontiguousarray(array.reshape(len(array), -1).T)
        )


def _names(argument: str, shape: tuple[int, ...], client: ClientArrays, labels: Labels) -> tuple[str, ...]:
    if not shape:
        return (argument,)
    told = client.labels.get(argument, ())
    axes = [each.removeprefix("axis ") for each in told if each.startswith("axis ")]  # of a labelled array
    own = [each.removeprefix(f"{axes[-1]}=") for each in told[len(axes) :]] if axes else list(told)
    known = list(labels.get(argument, own))
    if len(shape) == 1 and len(known) == shape[0]:
        return tuple(f"{argument}[{label}]" for label in known)
    return tuple(f"{argument}[{','.join(map(str, place))}]" for place in np.ndindex(shape))
