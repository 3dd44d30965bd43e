"""Data sets from a model's own prior, and what is asked of those that a user simulates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
from jax import Array
from numpyro.handlers import seed, substitute, trace

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.problem.program.handlers import Unobserved
from fedbayes.problem.program.program import Block, Model, Program
from fedbayes.problem.program.sites import trace_sites
from fedbayes.runtime.compiling import jit_quickly
from fedbayes.runtime.precision import computing

Clients = Mapping[str, Mapping[str, Any]]
Simulate = Callable[[Array], tuple[Clients, Mapping[str, Any]]]


def prior_simulator(
    model: Model, clients: Clients, *, local: Sequence[str] = (), dtype: Any = np.float64
) -> Callable[[Array], tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]]:
    """A simulator of the model's own prior predictive law, for :func:`fedbayes.calibrate`.

    The globals are drawn once from the prior, for all clients. Each client's locals and outcomes are drawn from the
    program given these. All other arguments of a client, such as covariates, stay as they are.

    Parameters
    ----------
    model, local, dtype
        As in :func:`fedbayes.fit_federated`.
    clients
        Their covariates and shapes. The outcomes' values are replaced.

    Returns
    -------
    Callable
        ``(key) -> (clients, truth)``: the clients as in :func:`fedbayes.fit_federated`, and the globals, constrained,
        by name.

    Raises
    ------
    ModelError
        A prior is improper, or soft (``numpyro.factor`` of the globals); an outcome is no argument of the model as it
        is, or may be missing.

    See Also
    --------
    calibrate : Fits what it draws.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> simulate = fb.prior_simulator(linear.model, clients)
    >>> simulated, truth = simulate(jax.random.key(1))
    >>> truth["beta"].shape
    (3,)
    """
    with computing(), explaining(clients):
        problem = make_problem(model, clients, local=local, dtype=dtype)
    outcomes = [_outcomes(problem, place) for place in range(len(problem.names))]
    programs = [problem.program(name) for name in problem.names]
    draws = {program: _drawing(program) for program in programs}

    def simulate(key: Array) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
        with computing():
            first = draws[programs[0]](jax.random.fold_in(key, 0), {}, problem.arrays[0].arrays)
            truth = {name: first[name] for name in problem.globals.names}
            found = {}
            for place, (name, mine) in enumerate(zip(problem.names, problem.arrays, strict=True)):
                sites = draws[programs[place]](jax.random.fold_in(key, place + 1), truth, mine.arrays)
                drawn = {
                    argument: np.asarray(sites[site]).astype(mine.arrays[argument].dtype)
                    for site, argument in outcomes[place].items()
                }
                found[name] = {**mine.static, **mine.arrays, **drawn}
        return found, {name: np.asarray(value) for name, value in truth.items()}

    simulate(jax.random.key(0))  # raises where a site can't be drawn
    return simulate


def _drawing(program: Program) -> Callable[[Array, Mapping[str, Any], Mapping[str, Any]], dict[str, Array]]:
    """``(key, globals, arrays) -> sites``: all of a client's sites, drawn anew given the globals that are given."""

    def draw(key: Array, known: Mapping[str, Array], arrays: Mapping[str, Array]) -> dict[str, Array]:
        model = substitute(seed(Unobserved(program.model), key), data=dict(known))
        with numpyro.validation_enabled(False):
            sites = trace(model).get_trace(**program.static, **arrays)
        return {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}

    return jit_quickly(draw)


def _outcomes(problem: Problem, place: int) -> dict[str, str]:
    """Observed sites of a client, each with the argument that it observes.

    Raises
    ------
    ModelError
        The program says something of data or globals that can't be drawn.
    """
    program, mine = problem.program(problem.names[place]), problem.arrays[place]
    write = "Write a simulator of your own, `(key) -> (clients, truth)`."
    if program.prior_terms:
        raise ModelError(
            f"The prior holds more than the priors of the globals: {list(program.prior_terms)}, from which nothing can "
            f"be drawn. {write}"
        )
    if program.missing:
        raise ModelError(f"Outcomes may be missing ({list(program.missing)}), and which ones is not simulated. {write}")
    sites = trace_sites(program.model, mine.static, mine.arrays)
    observed = {name: site.argument for name, site in sites.items() if site.kind == "observed"}
    if computed := [name for name, argument in observed.items() if argument is None]:
        raise ModelError(
            f"The observed sites {computed} are computed values or `numpyro.factor`, and no arguments of the model as "
            f"they are, so that their data can't be drawn anew. {write}"
        )
    return {name: argument for name, argument in observed.items() if argument is not None}


def check_simulated(found: Any) -> tuple[Clients, Mapping[str, Any]]:
    """What a simulator has returned, if it is clients and truth.

    Raises
    ------
    TypeError
        It is not.
    """
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Mapping) for part in found)):
        kind = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise TypeError(
            f"`simulate` returned {kind}; it returns the clients and the true globals by name, "
            '`({"north": dict(x=..., y=...)}, {"beta": ...})`.'
        )
    return found


def flat_truth(truth: Mapping[str, Any], globals_: Block) -> np.ndarray:
    """The true constrained globals, scalar by scalar, shape ``(p,)``; other names in ``truth`` are left out.

    Parameters
    ----------
    truth
        By name.
    globals_
        The names with their constrained shapes.

    Raises
    ------
    ValueError
        A global is missing, has another shape, or is not finite.
    """
    if missing := [name for name in globals_.names if name not in truth]:
        raise ValueError(
            f"`simulate` returned no true value of the globals {missing}, but of {sorted(truth)}: give the constrained "
            "value of every global by the name of its site."
        )
    parts = []
    for name, shape in globals_.shapes:
        value = np.asarray(truth[name], float)
        if value.shape != shape:
            raise ValueError(f"`simulate` returned `{name}` of shape {value.shape}, but the site has shape {shape}.")
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"`simulate` returned `{name}` = {value}, which is not finite: no rank can be given to it."
            )
        parts.append(value.ravel())
    return np.concatenate(parts)


def check_same_shape(number: int, name: str, first: ClientArrays, client: ClientArrays) -> None:
    """A client of a later data set needs the arguments and shapes that it has in the first.

    Raises
    ------
    ClientDataError
        It has others.
    """
    advice = (
        "All simulated data sets need the same shapes, because they are fitted by one program: keep them fixed, or "
        "write `vectorised=False`."
    )
    where = f"Simulated data set {number}, client '{name}'"
    mine, theirs = {*client.arrays, *client.static}, {*first.arrays, *first.static}
    if mine != theirs:
        raise ClientDataError(f"{where} has the arguments {sorted(mine)}, but {sorted(theirs)} in the first. {advice}")
    if client.static != first.static:
        raise ClientDataError(f"{where} has {client.static}, but {first.static} in the first. {advice}")
    for argument, array in client.arrays.items():
        if array.shape != first.arrays[argument].shape:
            raise ClientDataError(
                f"{where}: `{argument}` has shape {array.shape}, but {first.arrays[argument].shape} in the first. "
                f"{advice}"
            )
