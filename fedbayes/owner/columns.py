"""A client's arrays as columns over its rows: outcomes, indices of the model, and all others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpyro.distributions import constraints

from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Model
from fedbayes.problem.program.sites import TracedSite, trace_sites

Labels = Mapping[str, Sequence[str]]


class Roles(NamedTuple):
    """What the model does with its arguments.

    Attributes
    ----------
    outcomes
        Arguments that are observed values.
    counts
        Outcomes without an upper limit, such as those of a Poisson law: numbers, and no groups.
    indices
        Arguments that pick entries of latents: groups of rows.
    """

    outcomes: frozenset[str]
    counts: frozenset[str]
    indices: frozenset[str]


class Columns(NamedTuple):
    """The columns of one argument.

    Attributes
    ----------
    names
        ``"y"``, or ``"x[age]"`` for each.
    values
        Shape ``(rows, columns)``.
    """

    names: tuple[str, ...]
    values: np.ndarray


def roles_of(model: Model, client: ClientArrays) -> Roles:
    """Read off the model, by tracing it on shapes: nothing is computed."""
    sites = [site for site in trace_sites(model, client.static, client.arrays).values() if site.kind == "observed"]
    outcomes = frozenset(site.argument for site in sites if site.argument)
    counts = frozenset(site.argument for site in sites if site.argument and _is_count(site))
    whole = [name for name, array in client.arrays.items() if array.dtype.kind in "iu" and array.ndim]
    indices = frozenset(name for name in whole if name not in outcomes and _is_index(model, client, name))
    return Roles(outcomes, counts, indices)


def _is_count(site: TracedSite) -> bool:
    return site.outcome is not None and site.outcome.support is constraints.nonnegative_integer


def _is_index(model: Model, client: ClientArrays, name: str) -> bool:
    """Whether the model can't do with decimals in place of these whole numbers."""
    like = {key: jax.ShapeDtypeStruct(array.shape, array.dtype) for key, array in client.arrays.items()}
    like[name] = jax.ShapeDtypeStruct(like[name].shape, np.float32)
    try:
        trace_sites(model, client.static, like)  # type: ignore[arg-type]
    except Exception:
        return True
    return False


def num_rows(client: ClientArrays, roles: Roles) -> int:
    """Rows of a client: entries of its outcomes' first axis, or of the longest argument where none is an outcome."""
    chosen = roles.outcomes & client.arrays.keys() or client.arrays.keys()
    return max((len(client.arrays[name]) for name in chosen if client.arrays[name].ndim), default=1)


def columns_of(client: ClientArrays, names: Iterable[str], rows: int, labels: Labels) -> Iterator[Columns]:
    """The arguments that run over the rows, each as columns."""
    for name in names:
        array = client.arrays[name]
        if array.ndim and len(array) == rows:
            yield Columns(_names(name, array.shape[1:], client, labels), array.reshape(rows, -1))


def _names(argument: str, shape: tuple[int, ...], client: ClientArrays, labels: Labels) -> tuple[str, ...]:
    if not shape:
        return (argument,)
    known = labels.get(argument, client.labels.get(argument, ()))
    if len(shape) == 1 and len(known) == shape[0]:
        return tuple(f"{argument}[{label}]" for label in known)
    return tuple(f"{argument}[{','.join(map(str, place))}]" for place in np.ndindex(shape))
