"""The server's side of a problem: what clients have told of their data, in the place of the data."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, NoReturn

import numpy as np

from fedbayes.errors import UNREADABLE, ClientDataError, FedbayesError, FederatedError
from fedbayes.network.charter import FREE, Hello, Joined, Seat, most_rows
from fedbayes.network.study import Study
from fedbayes.problem import checks
from fedbayes.problem.buckets import Bucket
from fedbayes.problem.client import Client
from fedbayes.problem.data.padding import bucket_lengths, num_rows, row_arguments
from fedbayes.problem.data.reading import ClientArrays, check_like, common_kinds
from fedbayes.problem.problem import Problem, known_program, prior_of, shapes_of_client
from fedbayes.problem.program.program import Program
from fedbayes.runtime.lru import Kept

_SEATED: Kept[Program] = Kept(64)


@dataclass(frozen=True, eq=False)
class Described(Problem):
    """A problem whose clients' data are elsewhere: its arrays have their shapes, and hold ones."""

    elsewhere: ClassVar[bool] = True

    def held(self, name: str) -> NoReturn:
        """See :meth:`fedbayes.problem.problem.Problem.held`."""
        raise elsewhere(name)

    def description(self) -> str:
        """Clients and globals in words, with a digest of names, shapes and precision."""
        digest = hashlib.sha256(str(self.buckets[0].clients.program.dtype).encode())
        for name, client in zip(self.names, self.arrays, strict=True):
            digest.update(repr(sorted(asdict(Hello.of(name, client)).items())).encode())
        return f"{len(self.names)} clients, globals {dict(self.globals.shapes)}, shapes {digest.hexdigest()[:16]}"


def elsewhere(name: str) -> ClientDataError:
    """The refusal of what only the client itself can answer."""
    return ClientDataError(
        f"The data of client '{name}' are not in this process: they stay with the client. What is about its own rows "
        "or latents is computed there; `fedbayes client-posterior` writes the client's posterior."
    )


def seats(hellos: Sequence[Hello], dtype: np.dtype) -> list[Seat]:
    """How each client has to read its data.

    Raises
    ------
    ClientDataError
        Clients have different arguments or columns.
    """
    clients = [hello.stand_in() for hello in hellos]
    for hello, client in zip(hellos, clients, strict=True):
        check_like(hellos[0].site, clients[0], hello.site, client)
    kinds = {name: (dtype if kind.kind == "f" else kind).str for name, kind in common_kinds(clients).items()}
    found = {place: Seat(place, kinds, {}) for place in range(len(clients))}
    for members in _groups(clients):
        arguments = row_arguments([clients[place] for place in members])
        rows = [num_rows(clients[place], arguments) if arguments else None for place in members]
        known = [length for length in rows if length is not None]
        if not arguments or len(known) < len(rows):
            continue
        lengths = bucket_lengths(known)
        for place, length in zip(members, known, strict=True):
            padded = lengths[int(np.searchsorted(lengths, length))]
            if padded > most_rows(hellos[place].as_kinds(kinds), arguments):
                padded = length  # what another site claims must not cost this one its memory
            found[place] = Seat(place, kinds, {}, tuple(arguments), padded)
    first = min(found.values(), key=lambda seat: (_group_of(clients, seat.place), seat.padded))
    template = _template(clients[first.place], first)
    return [replace(found[place], template=template) for place in range(len(clients))]


def _groups(clients: Sequence[ClientArrays]) -> list[list[int]]:
    """Places of the clients that share their non-array arguments."""
    groups: dict[str, list[int]] = {}
    for place, client in enumerate(clients):
        groups.setdefault(repr(sorted(client.static.items())), []).append(place)
    return list(groups.values())


def _group_of(clients: Sequence[ClientArrays], place: int) -> int:
    return next(group for group, members in enumerate(_groups(clients)) if place in members)


def _template(client: ClientArrays, seat: Seat) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes of a client's arrays, its rows padded."""
    return {
        name: ((seat.padded, *array.shape[1:]) if name in seat.row_arguments else array.shape, seat.kinds[name])
        for name, array in client.arrays.items()
    }


def described_problem(
    study: Study, hellos: Sequence[Hello], places: Sequence[Seat], joined: Sequence[Joined]
) -> Described:
    """The problem as the server knows it.

    Raises
    ------
    ModelError
        As :func:`~fedbayes.problem.problem.make_problem`, of what shapes alone tell.
    """
    names = tuple(hello.site for hello in hellos)
    arrays = [_as_seated(hello.stand_in(), seat) for hello, seat in zip(hellos, places, strict=True)]
    alike: dict[tuple, list[int]] = {}
    for place, (client, seat, found) in enumerate(zip(arrays, places, joined, strict=True)):
        shapes = tuple(
            _template(client, seat if found.row_axes is not None else replace(seat, row_arguments=())).items()
        )
        alike.setdefault((_group_of(arrays, place), seat.padded, repr(found), shapes), []).append(place)
    buckets = []
    for _, members in sorted(alike.items(), key=lambda item: item[0][:2]):
        try:
            buckets.append(_bucket(study, names, arrays, members, places[members[0]], joined[members[0]]))
        except FedbayesError:
            raise
        except UNREADABLE as error:
            raise FederatedError(
                f"What the sites {[names[place] for place in members]} have told of their data and what they have told "
                "of the model do not fit together. Start the run again without them."
            ) from error
    program = buckets[0].clients.program
    checks.same_globals([(names[bucket.members[0]], bucket.clients.program) for bucket in buckets])
    if not study.configured.only_locals:
        checks.something_global(program)
    if study.configured.needs_rows:
        checks.batches_stand_for_all_rows([bucket.clients.program for bucket in buckets])
    prior = prior_of(program, shapes_of_client(buckets[0]))
    return Described(names, program.globals, prior, tuple(buckets), tuple(arrays))


def _as_seated(client: ClientArrays, seat: Seat) -> ClientArrays:
    """The client's stand-in, its numbers of the kind that all clients have."""
    arrays = {
        name: np.broadcast_to(np.ones((), seat.kinds[name]), array.shape) for name, array in client.arrays.items()
    }
    return replace(client, arrays=arrays)


def _bucket(
    study: Study,
    names: Sequence[str],
    arrays: Sequence[ClientArrays],
    members: Sequence[int],
    seat: Seat,
    joined: Joined,
) -> Bucket:
    """Clients of one padded shape."""
    first = arrays[members[0]]
    program = known_program(study.options, _shortened(first, joined), names[members[0]]).program
    rows = {name: first.arrays[name].shape[0] for name in joined.row_arguments}
    if joined.row_axes is not None:
        length = seat.padded if seat.row_arguments else next(iter(rows.values()))
        program = _with_rows(program, joined).with_rows(length)
        counts = np.asarray([arrays[place].arrays[joined.row_arguments[0]].shape[0] for place in members])
        mask = np.zeros((len(members), length), bool)
        for row, count in zip(mask, counts, strict=True):
            row[:count] = True
        lengths = dict.fromkeys(joined.row_arguments, length)
    else:
        mask, lengths = np.ones((len(members), 1), bool), {}
    data = {
        name: np.broadcast_to(np.ones((), array.dtype), (len(members), *_padded_shape(array, lengths.get(name))))
        for name, array in first.arrays.items()
    }
    place = np.asarray(members)
    return Bucket(Client(data, mask, place, program, joined.independent), place)  # type: ignore[arg-type]


def _shortened(client: ClientArrays, joined: Joined) -> ClientArrays:
    """The client with no more rows than a server needs to trace its program, whose number is set later."""
    if joined.row_axes is None:
        return client
    most = max(FREE // sum(client.arrays[name][0].nbytes for name in joined.row_arguments), 1)
    arrays = {name: each[:most] if name in joined.row_arguments else each for name, each in client.arrays.items()}
    return replace(client, arrays=arrays)


def _with_rows(program: Program, joined: Joined) -> Program:
    """The program with what the clients have found of its rows; kept, as whatever was compiled for it is."""
    axes, arguments, locals_ = dict(joined.row_axes or {}), joined.row_arguments, joined.row_locals
    key = (program, tuple(sorted(axes.items())), arguments, locals_)
    return _SEATED.get(key, lambda: replace(program, row_axes=axes, row_arguments=arguments, row_locals=locals_))


def _padded_shape(array: np.ndarray, length: int | None) -> tuple[int, ...]:
    return array.shape if length is None else (length, *array.shape[1:])
