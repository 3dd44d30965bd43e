"""A client's side of a problem: its own data, read as if all clients' were there."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.network.charter import ArrayKind, Hello, Joined, Seat, most_rows
from fedbayes.network.messages import Refusal, Refused
from fedbayes.network.study import Study
from fedbayes.problem.buckets import Bucket, make_bucket
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.data.padding import pad
from fedbayes.problem.data.reading import ClientArrays, cast, read_clients
from fedbayes.problem.problem import Problem, make_problem, prior_of, shapes_of_client
from fedbayes.problem.program.concrete import with_sizes
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

log = logging.getLogger(__name__)


def read_own(study: Study, site: str, data: Mapping[str, Any]) -> ClientArrays:
    """A client's arguments, checked.

    Whole numbers count as data, unless the model needs them as sizes: a client can't know whether the others have the
    same ones, and what is no size does not leave it.

    Raises
    ------
    ClientDataError
        As :func:`~fedbayes.problem.data.reading.read_clients`.
    """
    numbers = (
        {
            name: np.asarray(value) if isinstance(value, int) and not isinstance(value, bool) else value
            for name, value in data.items()
        }
        if isinstance(data, Mapping)
        else data
    )
    return with_sizes(study.model, read_clients({site: numbers}))[site]


def digest_of(client: ClientArrays) -> str:
    """Of a client's data, for itself."""
    digest = hashlib.sha256(repr(sorted(client.static.items())).encode())
    for name, array in sorted(client.arrays.items()):
        digest.update(repr((name, array.shape, array.dtype.str)).encode() + array.tobytes())
    return digest.hexdigest()


def rows_as_bytes(client: ClientArrays) -> Iterator[bytes]:
    """Each row of a client's data, beside the arguments that it has values of.

    Arguments of one length share rows: of 300 patients and 500 knots there are 800. Of which kind numbers are does not
    count: a first decimal in a column makes decimals of them all.
    """
    for num in sorted({len(array) for array in client.arrays.values() if array.ndim and array.size}):
        rows = {name: array for name, array in sorted(client.arrays.items()) if array.ndim and len(array) == num}
        about = repr([(name, array.shape[1:]) for name, array in rows.items()]).encode()
        numbers = np.concatenate([np.reshape(array, (num, -1)).astype(float) for array in rows.values()], axis=1)
        for row in numbers + 0.0:  # there are two noughts
            yield about + row.tobytes()


def digests_of(rows: Iterable[bytes], secret: str) -> np.ndarray:
    """A number for each row, for the site itself."""
    key = bytes.fromhex(secret)
    digests = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in rows)
    return np.frombuffer(digests, np.uint64)


def num_changed(before: np.ndarray, now: np.ndarray) -> int:
    """Rows that one table has and the other has not, in whichever there are more, by their :func:`digests_of`."""
    values, places = np.unique(np.concatenate([before, now]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in np.split(places, [len(before)])]
    common = int(np.minimum(*counts).sum())
    return max(len(before), len(now)) - common


@dataclass(frozen=True)
class OwnProblem:
    """One client's part of a problem.

    Attributes
    ----------
    client
        Its arrays.
    bucket
        The same, padded as seated, as the only member of its bucket.
    seat
        Its seat.
    prior
        Of the globals.
    digest
        Of the data as the site has read them, whatever kinds of numbers the server has seated them as.
    """

    client: ClientArrays
    bucket: Bucket
    seat: Seat
    prior: Prior
    digest: str

    @property
    def joined(self) -> Joined:
        """What the server needs to know of the client's program."""
        program = self.bucket.clients.program
        axes = dict(program.row_axes) if program.row_arguments else None
        return Joined(axes, program.row_arguments, program.row_locals, self.bucket.clients.independent)

    def problem(self, roster: Roster) -> Problem:
        """A problem of all clients, of which this one alone has data."""
        nothing, place = ClientArrays({}, {}), self.seat.place
        arrays = tuple(self.client if at == place else nothing for at in range(roster.num_clients))
        return Problem(roster.names, roster.globals, roster.prior, (self.bucket,), arrays)


def own_problem(study: Study, site: str, client: ClientArrays, seat: Seat, *, made_up: bool = False) -> OwnProblem:
    """Check the model on a client's data, split it, and pad the rows as seated.

    What the others' numbers of rows mean for the program is found out by a copy of the client with one row more. What
    the server says of rows has no part in that: by a number of its choice it could ask about one row. The prior may
    depend on shapes; those of the client's own data count.

    Parameters
    ----------
    study, site, client, seat
        What is read, and where it sits.
    made_up
        Find out what the program is like on made-up numbers of the same shapes, so that what the server is told of it
        depends on no row. The data are checked all the same.

    Raises
    ------
    ClientDataError, ModelError
        As :func:`~fedbayes.problem.problem.make_problem`.
    Refused
        Rows can't be masked out of the program, where it has to be found out on made-up numbers.
    """
    _check_kinds(client, seat, np.dtype(study.dtype))
    _check_rows(client, seat)
    kinds = {name: np.dtype(kind) for name, kind in seat.kinds.items()}
    mine = cast(site, client, kinds, np.dtype(study.dtype))
    whole = _of_made_up_numbers(study, site, mine, seat) if made_up else _looked_at(study, site, mine, seat)
    b, at = whole.locate(0)
    found = whole.buckets[b].clients
    if found.program.row_arguments and seat.row_arguments:
        bucket = make_bucket(found.program, [mine], [seat.place], found.program.row_arguments, seat.padded)
        bucket = replace(bucket, clients=replace(bucket.clients, independent=found.independent))
    elif made_up:
        log.error("Rows can't be masked out of the program, whose answers could then hide none of them.")
        raise Refused(Refusal.FORMAT)
    else:
        alone = jax.tree.map(lambda leaf: leaf[at : at + 1], found)
        place = np.asarray([seat.place])
        bucket = Bucket(replace(alone, index=place), place)
    prior = prior_of(found.program, shapes_of_client(whole.buckets[b]))
    return OwnProblem(mine, bucket, seat, prior, digest_of(client))


def _looked_at(study: Study, site: str, client: ClientArrays, seat: Seat) -> Problem:
    """What the model makes of a client, and of one with a row more where clients differ in their rows."""
    clients = {site: client}
    if seat.row_arguments:
        clients[f"{site}, with its last row twice"] = _with_one_row_more(client, seat.row_arguments)
    given = {name: {**each.static, **each.arrays} for name, each in clients.items()}
    with explaining(given):
        return make_problem(
            study.model,
            given,
            local=study.local,
            dtype=np.dtype(study.dtype),
            rows=study.configured.needs_rows,
            only_locals=study.configured.only_locals,
        )


def _of_made_up_numbers(study: Study, site: str, client: ClientArrays, seat: Seat) -> Problem:
    """The same of arrays of these shapes with numbers that most programs take: between 0 and 1, or all of them 1.

    The data themselves are looked at as well, for the sake of what is wrong with them, and not with the program.
    """
    with suppress(ModelError):
        _looked_at(study, site, client, seat)
    rng = np.random.default_rng(6)
    shares = {
        name: (rng.uniform(0.1, 0.9, array.shape) if array.dtype.kind == "f" else np.ones(array.shape))
        for name, array in client.arrays.items()
    }
    made_up = {name: values.astype(client.arrays[name].dtype) for name, values in shares.items()}
    try:
        return _looked_at(study, site, replace(client, arrays=made_up), seat)
    except ClientDataError:  # outcomes are whole numbers, kept as others
        ones = {name: np.ones_like(array) for name, array in client.arrays.items()}
        return _looked_at(study, site, replace(client, arrays=ones), seat)


def _check_kinds(client: ClientArrays, seat: Seat, dtype: np.dtype) -> None:
    """The kinds of numbers of a seat hold the client's own: a server must not choose what its data are turned into.

    Decimals are of the study's kind, which the site knows itself.
    """
    for name, array in client.arrays.items():
        kind = np.dtype(seat.kinds[name])
        if np.result_type(array.dtype, kind) != kind and not (array.dtype.kind == "f" and kind == dtype):
            log.error("The server wants `%s` as %s, and it is %s: values would change.", name, kind, array.dtype)
            raise Refused(Refusal.FORMAT)


def _check_rows(client: ClientArrays, seat: Seat) -> None:
    """A server must not choose how much memory a site takes."""
    if seat.row_arguments and seat.padded > most_rows(_seated(client, seat), seat.row_arguments):
        log.error("The server wants this site's rows padded to %d.", seat.padded)
        raise Refused(Refusal.FORMAT)


def _seated(client: ClientArrays, seat: Seat) -> dict[str, ArrayKind]:
    """The arrays' shapes, with the kinds of numbers of a seat, as the server counts them."""
    return Hello.of("", client).as_kinds(seat.kinds)


def _with_one_row_more(client: ClientArrays, row_arguments: Sequence[str]) -> ClientArrays:
    """The client with its last row twice; a client with that row masked out must have the same factor."""
    rows = client.arrays[row_arguments[0]].shape[0]
    return replace(client, arrays=pad(client.arrays, row_arguments, rows + 1))
