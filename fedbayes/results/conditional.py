"""Outcomes whose rows depend on each other: predictions, and what was integrated out, given the client's own rows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.handlers import seed, substitute, trace

from fedbayes.problem.data.padding import num_rows, pad
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.handlers import Unobserved
from fedbayes.problem.program.program import Program
from fedbayes.problem.program.row_process import Given, OfRows, RowProcess
from fedbayes.problem.program.tracing import digest_of
from fedbayes.runtime.lru import Kept

_COMPILED: Kept[Any] = Kept(32)  # by the digest of its trace, so that equal programs of several fits share it
_INTEGRATED: WeakKeyDictionary[Problem, Kept[Any]] = WeakKeyDictionary()  # of one fit, by program and shapes
_ROWS = 64  # a newcomer's rows are padded to a multiple of this, so that newcomers share a program

Values = Mapping[str, Array]


class Rows(NamedTuple):
    """A client's own rows.

    Attributes
    ----------
    data
        The model's arrays, padded.
    mask
        True for real rows; ``None``: all are.
    """

    data: Mapping[str, Any]
    mask: Any


def rows_of(problem: Problem, name: str) -> Rows:
    """The rows of a client of the fit."""
    problem.held(name)  # a client whose data are elsewhere is refused
    client = problem.client(name)
    return Rows(client.data, client.mask if client.program.row_arguments else None)


def rows_of_newcomer(program: Program, client: ClientArrays) -> Rows:
    """The rows of a client that was no part of the fit."""
    arguments = program.row_arguments
    num = num_rows(client, arguments) if arguments else None
    if num is None:
        return Rows(client.arrays, None)
    length = -(-num // _ROWS) * _ROWS
    return Rows(pad(client.arrays, arguments, length), np.arange(length) < num)


def conditional_draws(
    program: Program, own: Rows, draws: Mapping[str, np.ndarray], key: Array, arguments: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Draws of new rows' outcomes, ``(chain, draw, ...)``, with ``..._mean`` and ``..._sd`` of each process's rows."""

    def predicted(sites: Mapping[str, Any], laws: Mapping[str, RowProcess]) -> dict[str, Array]:
        found = {name: site["value"] for name, site in sites.items() if site["type"] in ("sample", "deterministic")}
        for name, law in laws.items():
            found |= {f"{name}_mean": law.marginals.mean, f"{name}_sd": jnp.sqrt(law.marginals.variance)}
        return found

    return _mapped(program, own, draws, key, arguments, predicted, Unobserved)


def conditional_log_densities(
    program: Program, own: Rows, draws: Mapping[str, np.ndarray], arguments: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Log density of each new outcome by itself given the client's own rows, ``(chain, draw, ...)``, by site."""

    def densities(sites: Mapping[str, Any], laws: Mapping[str, RowProcess]) -> dict[str, Array]:
        observed = {name: site for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]}
        return {
            name: (laws[name].marginals if name in laws else site["fn"]).log_prob(site["value"])
            for name, site in observed.items()
        }

    return _mapped(program, own, draws, jax.random.key(0), arguments, densities, lambda model: model)


def integrated_draws(problem: Problem, name: str, draws: Mapping[str, np.ndarray], key: Array) -> dict[str, np.ndarray]:
    """Draws ``(chain, draw, ...)`` of what a client's processes have integrated out, one at each draw of the latents.

    Clients of one shape in one fit are traced once; another fit is traced anew, since what the processes read then may
    have another value than before, without the density telling.
    """
    program = problem.program(name)

    def one(values: Values, key: Array, own: Rows, arrays: Mapping[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for place, (law, outcomes) in enumerate(_seen(program, values, own).values()):
            found |= law.integrated(outcomes, jax.random.fold_in(key, place))
        return found

    known = _INTEGRATED.setdefault(problem, Kept(32))
    return _at_draws(one, rows_of(problem, name), draws, key, {}, known, program)


def _mapped(
    program: Program,
    own: Rows,
    draws: Mapping[str, np.ndarray],
    key: Array,
    arguments: Mapping[str, Any],
    read: Callable[[Mapping[str, Any], Mapping[str, RowProcess]], dict[str, Array]],
    wrap: Callable[[Any], Any],
) -> dict[str, np.ndarray]:
    """``read(sites, laws of the processes given the own rows)`` for each draw, compiled once for the shapes."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    fixed = {name: value for name, value in arguments.items() if name not in arrays}

    def one(values: Values, key: Array, own: Rows, arrays: Mapping[str, Array]) -> dict[str, Array]:
        seen = _seen(program, values, own)
        model = substitute(seed(wrap(Given(program.model, seen)), key), data=dict(values))
        sites = trace(model).get_trace(**fixed, **arrays)
        laws = {name: sites[name]["fn"] for name in seen if name in sites}
        return {name: value for name, value in read(sites, laws).items() if name not in values}

    return _at_draws(one, own, draws, key, arrays)


def _at_draws(
    one: Callable[[Values, Array, Rows, Mapping[str, Array]], dict[str, Array]],
    own: Rows,
    draws: Mapping[str, np.ndarray],
    key: Array,
    arrays: Mapping[str, np.ndarray],
    known: Kept[Any] | None = None,
    program: Program | None = None,
) -> dict[str, np.ndarray]:
    """``one`` at each draw ``(chain, draw, ...)`` with a key of its own, compiled once for the shapes.

    ``known`` are compiled earlier for the same ``program`` and ``one``, which is not traced again for the same shapes.
    """
    shape = next(iter(draws.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}

    def run(flat: Values, keys: Array, own: Rows, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return jax.lax.map(lambda each: one(each[0], each[1], own, arrays), (flat, keys))

    called = flat, jax.random.split(key, int(np.prod(shape))), own, arrays

    def compiled_once() -> Any:
        traced = jax.jit(run).trace(*called)
        return _COMPILED.get(digest_of(traced.jaxpr), lambda: traced.lower().compile())

    leaves, form = jax.tree.flatten(called)
    shapes = program, form, tuple(map(jax.typeof, leaves))
    compiled = compiled_once() if known is None else known.get(shapes, compiled_once)
    return {name: np.asarray(value).reshape(*shape, *value.shape[1:]) for name, value in compiled(*called).items()}


def _seen(program: Program, values: Values, own: Rows) -> dict[str, tuple[RowProcess, Array]]:
    """The processes of the client's own rows at one draw, with their outcomes."""
    model = substitute(seed(program.model, 0), data=dict(values))
    if own.mask is not None:
        model = OfRows(model, own.mask)
    sites = trace(model).get_trace(**program.static, **own.data)
    return {name: (sites[name]["fn"], sites[name]["value"]) for name in program.processes}
