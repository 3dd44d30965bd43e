"""What clients and server tell each other before the first round: shapes and names, and no value of the data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.local_latents import LocalLatents
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.program.program import Block
from fedbayes.problem.roster import Roster


class ArrayKind(NamedTuple):
    """Shape and kind of numbers of one argument, and the names of its columns."""

    shape: tuple[int, ...]
    dtype: str
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Hello:
    """What a client tells of itself.

    Attributes
    ----------
    site
        Its name: the holder of the data, whatever node speaks for it.
    arrays
        Its arguments' shapes.
    static
        Its flags, names, and integers that fix shapes of the model.
    mask_key
        Its public key for secure sums, as hexadecimal digits; empty where it can't take part in any.
    """

    site: str
    arrays: dict[str, ArrayKind]
    static: dict[str, Any]
    mask_key: str = ""

    @classmethod
    def of(cls, site: str, client: ClientArrays, mask_key: str = "") -> "Hello":
        """From a client's arrays."""
        kinds = {
            name: ArrayKind(array.shape, array.dtype.str, client.labels.get(name))
            for name, array in client.arrays.items()
        }
        return cls(site, kinds, client.static, mask_key)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Hello":
        """From a message's header.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is none.
        """
        arrays = {
            str(name): ArrayKind(
                tuple(int(n) for n in shape), np.dtype(dtype).str, None if labels is None else tuple(labels)
            )
            for name, (shape, dtype, labels) in told["arrays"].items()
        }
        key = str(told.get("mask_key", ""))
        if not re.fullmatch(r"([0-9a-f]{64})?", key):
            raise ValueError("A site's key for secure sums is none.")
        return cls(str(told["site"]), arrays, dict(told["static"]), key)

    def written(self) -> dict[str, Any]:
        """For a message's header."""
        return asdict(self)

    def stand_in(self) -> ClientArrays:
        """Arrays of these shapes that hold ones, and no memory."""
        arrays = {name: np.broadcast_to(np.ones((), kind.dtype), kind.shape) for name, kind in self.arrays.items()}
        labels = {name: kind.labels for name, kind in self.arrays.items() if kind.labels is not None}
        return ClientArrays(arrays, self.static, labels)


@dataclass(frozen=True)
class Joined:
    """What a client found out when it read the model with the others' numbers of rows.

    Attributes
    ----------
    row_axes
        The axis of each site's log-probability that runs over rows; ``None`` where rows can't be padded.
    row_arguments, row_locals
        The arguments and the locals whose leading axis does.
    independent
        See :attr:`fedbayes.problem.client.Client.independent`.
    """

    row_axes: dict[str, int] | None
    row_arguments: tuple[str, ...]
    row_locals: tuple[str, ...]
    independent: bool

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Joined":
        """From a message's header."""
        axes = told["row_axes"]
        return cls(
            None if axes is None else {str(name): int(axis) for name, axis in axes.items()},
            tuple(map(str, told["row_arguments"])),
            tuple(map(str, told["row_locals"])),
            bool(told["independent"]),
        )


@dataclass(frozen=True)
class Seat:
    """How one client has to read its data, so that all clients have one program.

    Attributes
    ----------
    place
        Among all clients: its identity.
    kinds
        The kind of numbers of each argument that holds every client's.
    template
        Shapes and dtypes of the arrays for which the prior is made.
    row_arguments
        The arguments in whose leading axes clients differ.
    shortest, longest, padded
        Rows of the clients with the fewest and the most, and to which this one is padded.
    """

    place: int
    kinds: dict[str, str]
    template: dict[str, tuple[tuple[int, ...], str]]
    row_arguments: tuple[str, ...] = ()
    shortest: int = 0
    longest: int = 0
    padded: int = 0

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Seat":
        """From a message's header."""
        template = {name: (tuple(shape), dtype) for name, (shape, dtype) in told["template"].items()}
        return cls(**{**told, "template": template, "row_arguments": tuple(told["row_arguments"])})

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The template as JAX has it."""
        return {name: jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for name, (shape, dtype) in self.template.items()}

    def with_padding(self, padded: int) -> "Seat":
        """The same, padded to another number of rows."""
        return replace(self, padded=padded)


def written_roster(roster: Roster) -> dict[str, Any]:
    """What a client needs of the roster beside what its own model tells, for a message's header."""
    return {
        "names": list(roster.names),
        "rows": np.asarray(roster.rows).tolist(),
        "num_locals": np.asarray(roster.num_locals).tolist(),
        "globals": [[name, list(shape)] for name, shape in roster.globals.shapes],
        "locals": [_written_locals(known) for known in _distinct(roster.locals)],
        "kinds_of_locals": [_distinct(roster.locals).index(known) for known in roster.locals],
        "dependent": roster.dependent,
    }


def read_roster(told: Mapping[str, Any], prior: Prior, template: Mapping[str, jax.ShapeDtypeStruct]) -> Roster:
    """The roster, with the prior that the client's own model has."""
    kinds = [_read_locals(each) for each in told["locals"]]
    return Roster(
        tuple(told["names"]),
        np.asarray(told["rows"], float),
        np.asarray(told["num_locals"], int),
        read_block(told["globals"]),
        prior,
        template,
        tuple(kinds[kind] for kind in told["kinds_of_locals"]),
        dependent=told["dependent"],
    )


def read_block(told: Sequence[Sequence]) -> Block:
    """A block of latents from a message's header."""
    return Block(tuple((str(name), tuple(shape)) for name, shape in told))


def _distinct(locals_: Sequence[LocalLatents]) -> list[LocalLatents]:
    return list(dict.fromkeys(locals_))


def _written_locals(known: LocalLatents) -> dict[str, Any]:
    shapes = [[name, list(shape)] for name, shape in known.block.shapes]
    lists = {"real": list(known.real), "related": list(known.related)}
    return {"block": shapes, **lists, "independent": known.independent}


def _read_locals(told: Mapping[str, Any]) -> LocalLatents:
    block, independent = read_block(told["block"]), bool(told["independent"])
    return LocalLatents(block, tuple(told["real"]), tuple(told["related"]), independent)
