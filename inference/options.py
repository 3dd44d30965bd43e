"""Checks that the options of several methods share."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import jax
import numpy as np

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.problem.roster import Roster

DENSE_LIMIT = 512  # globals up to which clients send matrices
TINY, HUGE = float(np.finfo(float).tiny), float(np.finfo(float).max)
Range = tuple[float, float, str]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is an ``int`` or ``float``; a ``bool`` does not count as one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_choices(config: object, choices: Mapping[str, tuple]) -> None:
    """Options that are one of a few values."""
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise ValueError(f"`{name}` is {getattr(config, name)!r}; it is one of {list(known)}.")


def check_whole(config: object, least: Mapping[str, int], optional: tuple[str, ...] = ()) -> None:
    """Options that are whole numbers with a smallest value, or left out."""
    for name, low in least.items():
        value = getattr(config, name)
        if not ((value is None and name in optional) or (type(value) is int and value >= low)):
            raise ValueError(f"`{name}` is {value!r}; it is a whole number (an `int`), at least {low}.")


def check_ranges(config: object, ranges: Mapping[str, Range], optional: tuple[str, ...] = ()) -> None:
    """Options that are numbers in an interval, or left out; each with what to write."""
    for name, (low, high, wanted) in ranges.items():
        value = getattr(config, name)
        if not ((value is None and name in optional) or (is_number(value) and low <= value <= high)):
            raise ValueError(f"`{name}` is {value!r}; write {wanted}.")


def check_weights(given: Any) -> None:
    """Clients' weights, before the clients are known."""
    if not isinstance(given, Mapping) and not (isinstance(given, str) and given in ("rows", "equal")):
        raise ValueError(
            f"`weights` is {given!r}; write 'rows', 'equal', or a mapping from each client's name to its number."
        )


def client_weights(weights: str | Mapping[str, float], roster: Roster) -> np.ndarray:
    """``p_c``, shape ``(N,)``, summing to one."""
    names = roster.names
    if isinstance(weights, str):
        rows = roster.rows if weights == "rows" else np.ones(len(names))
        return rows / rows.sum()
    given = {str(name): weight for name, weight in weights.items()}
    if set(given) != set(names):
        raise ValueError(
            f"`weights` names the clients {sorted(given)}; the clients are {sorted(names)}. Give each of them a number."
        )
    for name, weight in given.items():
        if not (is_number(weight) and 0.0 < weight < np.inf):
            raise ValueError(f"`weights` of client '{name}' is {weight!r}; write a positive number.")
    values = np.asarray([given[name] for name in names], float)
    if abs(values.sum() - 1.0) > 1e-6:
        raise ValueError(f"`weights` sum to {values.sum():.9g}; they must sum to 1: divide them by their sum.")
    return values / values.sum()


def check_batch(batch_size: int | None, roster: Roster) -> None:
    """A batch is drawn without replacement from each client's rows, and its gradient must be unbiased."""
    rows = roster.rows
    if batch_size is not None and roster.dependent:
        raise ModelError(
            f"`batch_size` is {batch_size}, but the rows of a client depend on each other, as in a Gaussian process: "
            "the gradient of a batch is biased, and so would be the posterior. Leave it out."
        )
    if batch_size is not None and batch_size > rows.min():
        raise ClientDataError(
            f"Client '{roster.names[int(np.argmin(rows))]}' has {int(rows.min())} rows, but `batch_size` is "
            f"{batch_size}. Write {int(rows.min())} or less."
        )


def check_optimizer(name: str, optimizer: Any) -> None:
    """An optax optimiser that needs no more than gradients, or none."""
    if optimizer is None:
        return
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(f"`{name}` is {optimizer!r}; write an optax optimiser, such as `optax.adam(0.05)`.")
    point = jax.ShapeDtypeStruct((1,), np.float32)
    try:
        jax.eval_shape(lambda at: optimizer.update(at, optimizer.init(at), at), point)
    except TypeError as error:
        raise TypeError(
            f"`{name}` needs more than the gradient ({error}). Write an optimiser that does not, such as "
            "`optax.adam(0.05)`."
        ) from error


def check_start(init: Any, known: tuple[str, ...]) -> None:
    """Where a method starts, before the globals are known."""
    if not isinstance(init, Mapping) and not (isinstance(init, str) and init in known):
        names = ", ".join(f"'{name}'" for name in known)
        raise ValueError(f"`init` is {init!r}; write {names}, or arrays by global site, in unconstrained space.")


def given_start(given: Mapping[str, Any], roster: Roster) -> np.ndarray:
    """The user's start as a flat vector, shape ``(d,)``."""
    shapes = dict(roster.globals.shapes)
    if {*map(str, given)} != {*shapes}:
        raise ValueError(
            f"`init` has the sites {sorted(map(str, given))}; the globals are {sorted(shapes)}. Give each of them an "
            "array."
        )
    flat = []
    for name, shape in shapes.items():
        try:
            value = np.asarray(given[name], float)
        except (TypeError, ValueError):
            value = np.full(shape, np.nan)
        fine = bool(np.all(np.isfinite(value)))
        if value.shape != shape or not fine:
            seen = f"has shape {value.shape}" if fine else f"is {given[name]!r}"
            raise ValueError(
                f"`init` of '{name}' {seen}; write finite numbers of shape {shape}, in unconstrained space."
            )
        flat.append(value.ravel())
    return np.concatenate(flat)
