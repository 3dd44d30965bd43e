"""The server's side of secure sums: of each site it sees masked integers, whose sum over all sites it asked for."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np

from fedbayes.contract.algorithm import Method, Reply, Teams
from fedbayes.network.fixed_point import MOST_SITES, plus, to_numbers
from fedbayes.network.messages import HIDDEN
from fedbayes.rounds.exchange import Round

FEWEST = 3  # of the sum of two sites each can subtract its own term


def is_sum(order: Round, templates: Sequence[Reply]) -> bool:
    """Whether all sites take part in an order, and nothing but the sum of their replies is asked for."""
    everybody = len(order.active) == len(order.updates)
    alike = len({str(jax.tree.map(_kind, each.total)) for each in templates}) == 1
    sums = all(jax.tree.leaves(each.total) and not jax.tree.leaves(each.each) for each in templates)
    return everybody and sums and alike and not isinstance(order.shared, Teams)


def hindrance(keys: Mapping[str, str]) -> str:
    """Why these sites can't hide their terms of a sum, in a sentence; empty where they can.

    Parameters
    ----------
    keys
        The public key of each site.
    """
    if not FEWEST <= len(keys) <= MOST_SITES:
        return (
            f"Secure sums need {FEWEST} to {MOST_SITES} sites, and there are {len(keys)}: each site's messages are "
            "asked for by themselves. Sites let them leave by `single = true` under `[sums]` of their policy."
        )
    if without := [name for name, key in keys.items() if not key]:
        return (
            f"The sites {without} have no key for secure sums, since the package `cryptography` is not installed "
            "there: each site's messages are asked for by themselves."
        )
    return ""


def of_method(method: Method) -> str:
    """Why a method asks for single messages, in sentences; empty where sums are enough for it."""
    if not method.single_messages:
        return ""
    return f"{type(method).__name__} needs such messages: {method.single_messages}"


def masked(template: Reply) -> dict[str, Any]:
    """Names, shapes and dtypes of a hidden reply."""
    num = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(template.total))
    return {HIDDEN: jax.ShapeDtypeStruct((num, 2), np.dtype(np.uint64)), "code": template.code}


def total(answers: Sequence[dict[str, Any]], template: Reply) -> Any:
    """The sum, with the structure of a reply's total."""
    numbers = to_numbers(reduce(plus, (answer[HIDDEN] for answer in answers)))
    leaves, structure = jax.tree.flatten(template.total)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    parts = np.split(numbers, ends[:-1])
    found = [_as(part.reshape(leaf.shape), leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def _kind(leaf: Any) -> str:
    return f"{leaf.shape} {leaf.dtype}"


def _as(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return (np.rint(numbers) if np.dtype(dtype).kind != "f" else numbers).astype(dtype)
