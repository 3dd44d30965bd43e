"""What clients and server tell each other before the first round: shapes and names, and no value of the data."""

import math
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

_LONGEST_NAME = 200  # characters of a site's name
_LONGEST_WORD = 1000  # of an argument's name, and of a column's
_MOST_AXES = 32
_MOST_ROWS = 1 << 28
_MOST_BYTES = 1 << 36  # of one site's data
_LARGEST = 1 << 31  # of whole numbers that fix shapes
_KINDS = re.compile(r"[<>|=][biuf][0-9]{1,2}")
FREE = 1 << 24  # bytes of one site's data that a claim may cost anybody, however few it has
_TIMES = 16  # how often its own number of rows a larger one may be padded to


def plain_name(told: Any, longest: int = _LONGEST_NAME) -> str:
    """A name that logs and errors can show as it is.

    Raises
    ------
    ValueError
        It is no text, is empty, too long, or can't be printed.
    """
    if not isinstance(told, str) or not 0 < len(told) <= longest or not told.isprintable():
        raise ValueError(f"A name is no printable text of 1 to {longest} characters.")
    return told


def most_rows(arrays: Mapping[str, Any], row_arguments: Sequence[str]) -> int:
    """How many rows a site's arrays may be padded to, whatever other sites claim to have.

    Parameters
    ----------
    arrays
        The site's: whatever has a shape and a dtype, or stands for it.
    row_arguments
        Those that are padded.
    """
    rows = max(arrays[name].shape[0] for name in row_arguments)
    width = sum(math.prod(arrays[name].shape[1:]) * np.dtype(arrays[name].dtype).itemsize for name in row_arguments)
    return int(max(_TIMES * rows, FREE // max(width, 1)))


class ArrayKind(NamedTuple):
    """Shape and kind of numbers of one argument, and the names of its columns."""

    shape: tuple[int, ...]
    dtype: str
    labels: tuple[str, ...] | None = None

    @property
    def num_bytes(self) -> int:
        """Of such an array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _read_kind(shape: Any, dtype: Any, labels: Any) -> ArrayKind:
    """From a message's header. Sites refuse data without rows or columns themselves."""
    sizes = tuple(_read_int(size, 1, _MOST_ROWS) for size in shape)
    if len(sizes) > _MOST_AXES or not isinstance(dtype, str) or not _KINDS.fullmatch(dtype):
        raise ValueError("An array is no array of numbers.")
    words = None if labels is None else tuple(_read_label(label) for label in labels)
    return ArrayKind(sizes, np.dtype(dtype).str, words)


def _read_label(told: Any) -> str:
    """A column's name; in a table of anybody's it may hold a line break, which is written as an escape."""
    if not isinstance(told, str) or len(told) > _LONGEST_WORD:
        raise ValueError(f"The name of a column is no text of at most {_LONGEST_WORD} characters.")
    return told if told.isprintable() else told.encode("unicode_escape").decode()


def _read_static(told: Any) -> Any:
    if told is None or isinstance(told, str | bool):
        return told
    return _read_int(told, -_LARGEST, _LARGEST)


def _read_int(told: Any, least: int, most: int) -> int:
    if isinstance(told, bool) or not isinstance(told, int) or not least <= told <= most:
        raise ValueError(f"A number of a message is no whole number between {least} and {most}.")
    return told


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
        ValueError, TypeError, LookupError, AttributeError
            It is none, or one of data that no site has.
        """
        arrays = {plain_name(name, _LONGEST_WORD): _read_kind(*kind) for name, kind in told["arrays"].items()}
        if not arrays or sum(kind.num_bytes for kind in arrays.values()) > _MOST_BYTES:
            raise ValueError(f"A site has no arrays, or arrays of more than {_MOST_BYTES} bytes.")
        static = {plain_name(name, _LONGEST_WORD): _read_static(value) for name, value in told["static"].items()}
        if static.keys() & arrays.keys():
            raise ValueError("A site has one argument twice.")
        key = str(told.get("mask_key", ""))
        if not re.fullmatch(r"([0-9a-f]{64})?", key):
            raise ValueError("A site's key for secure sums is none.")
        return cls(plain_name(told["site"]), arrays, static, key)

    def written(self) -> dict[str, Any]:
        """For a message's header."""
        return asdict(self)

    def as_kinds(self, kinds: Mapping[str, str]) -> dict[str, ArrayKind]:
        """The arrays' shapes with other kinds of numbers."""
        return {name: kind._replace(dtype=kinds[name]) for name, kind in self.arrays.items()}

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
        """From a message's header.

        Raises
        ------
        ValueError, TypeError, LookupError, AttributeError
            It is none.
        """
        axes, independent = told["row_axes"], told["independent"]
        if not isinstance(independent, bool):
            raise ValueError("Whether rows are independent is told by no flag.")
        return cls(
            None if axes is None else {str(name): _read_int(axis, 0, _MOST_AXES) for name, axis in axes.items()},
            tuple(plain_name(name, _LONGEST_WORD) for name in told["row_arguments"]),
            tuple(plain_name(name, _LONGEST_WORD) for name in told["row_locals"]),
            independent,
        )

    def check(self, hello: Hello) -> None:
        """That it can be about the arrays of which the same client has told before.

        Raises
        ------
        ValueError
            It can't.
        """
        if (self.row_axes is None) != (not self.row_arguments):
            raise ValueError("Rows can be padded, and no argument has them.")
        shapes = [hello.arrays[name].shape if name in hello.arrays else () for name in self.row_arguments]
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError("The arguments with rows have none, or different numbers of them.")


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
        Shapes and dtypes of one client's arrays, as the server knows them; a site's prior is made for its own.
    row_arguments
        The arguments in whose leading axes clients differ.
    padded
        Rows to which this client is padded.
    """

    place: int
    kinds: dict[str, str]
    template: dict[str, tuple[tuple[int, ...], str]]
    row_arguments: tuple[str, ...] = ()
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
