"""The server's side of secure sums: of each site it sees masked integers, whose sum over all sites it asked for."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.contract.algorithm import Method, Reply, Teams
from fedbayes.errors import FederatedError
from fedbayes.network.fixed_point import FEWEST_SITES, MOST_SITES, cancelled, plus, to_numbers
from fedbayes.network.messages import HIDDEN
from fedbayes.rounds.exchange import Round


class NoSum(FederatedError):
    """Sites that keep a secure sum from coming out, however often they are asked; the others may begin without them.

    Parameters
    ----------
    said
        What has happened, in sentences.
    sites
        Why each of these is of no use, in words that go on after its name; empty where they take turns.
    others
        All others in the sum.
    run
        The run's name.
    """

    def __init__(self, said: str, sites: Mapping[str, str], others: Sequence[str], run: str) -> None:
        super().__init__(f"{said} A secure sum needs all sites: set them right, or begin a new run without them.")
        self.sites, self.others, self.run = sites, others, run


class Term(NamedTuple):
    """What one site has answered.

    Attributes
    ----------
    words
        Integers, see :mod:`~fedbayes.network.fixed_point`; under masks where they are not open.
    code
        Result codes.
    is_open
        Whether the site has nothing to add that would have to be hidden.
    """

    words: np.ndarray
    code: np.ndarray
    is_open: bool


def no_sum(order: Round, templates: Sequence[Reply]) -> str:
    """Why an order is no sum over all sites, in a sentence; empty where it is one."""
    if len(order.active) < len(order.updates):
        return (
            f"In this round {len(order.active)} of {len(order.updates)} sites take part, and a secure sum needs all: "
            "leave out `participation`, or the method's scheme of participation."
        )
    if isinstance(order.shared, Teams):
        return "The sites are in teams, of which the server needs the sums by themselves."
    if any(np.any(leaf != leaf[:1]) for leaf in map(np.asarray, jax.tree.leaves(order.personal))):
        return (
            "The sites are told different things in this round, as after one of them has lost what it kept, and single "
            "terms could be seen by that. Begin a new run."
        )
    if any(jax.tree.leaves(each.each) or not jax.tree.leaves(each.total) for each in templates):
        return "The server needs the sites' messages by themselves."
    if len({str(jax.tree.map(_kind, each.total)) for each in templates}) > 1:
        return "The sites' messages are of different shapes, and can't be added up."
    if any(leaf.dtype.kind != "f" for each in templates for leaf in jax.tree.leaves(each.total)):
        return "The sites' messages hold whole numbers, which are not added up under masks."
    return ""


def hindrance(keys: Mapping[str, str]) -> str:
    """Why these sites can't hide their terms of a sum, in a sentence; empty where they can.

    Parameters
    ----------
    keys
        The public key of each site.
    """
    if not FEWEST_SITES <= len(keys) <= MOST_SITES:
        return (
            f"Secure sums need {FEWEST_SITES} to {MOST_SITES} sites, and there are {len(keys)}: each site's messages "
            "are asked for by themselves. Sites let them leave by `single = true` under `[sums]` of their policy."
        )
    if without := [name for name, key in keys.items() if not key]:
        return (
            f"The sites {without} have no key for secure sums, since the package `cryptography` is not installed "
            "there: each site's messages are asked for by themselves."
        )
    return ""


def of_method(method: Method) -> str:
    """Why a method asks for single messages, in sentences; empty where sums are enough for it."""
    if method.is_private or not method.single_messages:
        return ""
    return f"{type(method).__name__} needs such messages: {method.single_messages}"


def masked(template: Reply) -> dict[str, Any]:
    """Names, shapes and dtypes of a hidden reply."""
    num = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(template.total))
    return {HIDDEN: jax.ShapeDtypeStruct((num, 2), np.dtype(np.uint64)), "code": template.code}


def total(terms: Sequence[Term], template: Reply) -> Any:
    """The sum, with the structure of a reply's total.

    Raises
    ------
    FederatedError
        The masks do not cancel: the sites were not asked the same.
    """
    words = reduce(plus, (term.words for term in terms))
    if not cancelled(words, len(terms)):
        raise FederatedError(
            "The sites' masks do not cancel in a secure sum, so they were not told the same in this round or an "
            "earlier one, or one has lost what it kept. Nothing of their answers is lost or known; start the run again."
        )
    leaves, structure = jax.tree.flatten(template.total)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    parts = np.split(to_numbers(words), ends[:-1])
    found = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def _kind(leaf: Any) -> str:
    return f"{leaf.shape} {leaf.dtype}"
