"""Model and clients, checked and ready: what an algorithm is built for and an executor runs on."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.errors import ModelError
from fedbayes.problem import checks
from fedbayes.problem.clients import Client, ClientArrays, prepare_clients
from fedbayes.problem.padding import bucket_lengths, num_rows, pad, row_arguments
from fedbayes.problem.prior import Prior, make_prior
from fedbayes.problem.program import Block, Model, Program
from fedbayes.problem.split import split, trace_sites


@dataclass(frozen=True)
class Bucket:
    """Clients of one padded shape.

    Attributes
    ----------
    clients
        One ``Client`` whose leaves have a leading axis of the bucket's clients.
    members
        Their places among all clients.
    """

    clients: Client
    members: np.ndarray


@dataclass(frozen=True)
class Problem:
    """A split program with its clients.

    Attributes
    ----------
    names
        Clients' names, in the order given.
    globals
        Layout of the unconstrained globals.
    prior
        The global prior.
    buckets
        The clients, grouped by padded shape.
    arrays
        The clients' own arguments, unpadded, in the order of ``names``.
    """

    names: tuple[str, ...]
    globals: Block
    prior: Prior
    buckets: tuple[Bucket, ...]
    arrays: tuple[ClientArrays, ...]

    def num_rows(self) -> np.ndarray:
        """Rows of each client, shape ``(K,)``; the longest leading axis of its arrays where its rows are not known."""
        lengths = [[len(array) for array in client.arrays.values() if array.ndim] for client in self.arrays]
        rows = np.asarray([max(found, default=1) for found in lengths], float)
        for bucket in self.buckets:
            if bucket.clients.program.row_arguments:
                rows[bucket.members] = np.asarray(bucket.clients.mask).sum(axis=1)
        return rows

    def description(self) -> str:
        """Clients and globals in words, with a digest of names, data and precision."""
        digest = hashlib.sha256(str(self.buckets[0].clients.program.dtype).encode())
        for name, client in zip(self.names, self.arrays, strict=True):
            digest.update(repr((name, sorted(client.static.items()))).encode())
            for argument, array in sorted(client.arrays.items()):
                digest.update(repr((argument, array.shape, array.dtype.str)).encode() + array.tobytes())
        return f"{len(self.names)} clients, globals {dict(self.globals.shapes)}, data {digest.hexdigest()[:16]}"

    def client(self, name: str) -> Client:
        """One client, without a leading axis.

        Raises
        ------
        KeyError
            Unknown name.
        """
        if name not in self.names:
            raise KeyError(f"There is no client '{name}'; the clients are {list(self.names)}.")
        bucket, at = self.locate(self.names.index(name))
        return jax.tree.map(lambda leaf: leaf[at], self.buckets[bucket].clients)

    def locate(self, place: int) -> tuple[int, int]:
        """Bucket of the client at ``place`` among all clients, and its place in it."""
        found = [(b, np.flatnonzero(bucket.members == place)) for b, bucket in enumerate(self.buckets)]
        return next((b, int(at[0])) for b, at in found if len(at))


def make_problem(
    model: Model,
    clients: Mapping[str, Mapping[str, Any]],
    *,
    local: Sequence[str] = (),
    dtype: Any = np.float64,
    rows: bool = False,
) -> Problem:
    """Check a model and its clients' data, split the program, and pad and group the clients.

    Parameters
    ----------
    model, clients, local, dtype
        As in :func:`~fedbayes.fit_federated`.
    rows
        Mini-batches are wanted: every program's rows must be known, also where all clients have equally many.

    Raises
    ------
    ClientDataError
        See :func:`~fedbayes.problem.clients.prepare_clients`.
    ModelError
        See :func:`~fedbayes.sites.split` and :mod:`fedbayes.problem.checks`.
    """
    if isinstance(local, str):
        raise TypeError(
            f"`local` is the text {local!r}; write the names of the sites in a tuple, `local=({local!r},)`."
        )
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"`dtype` is {np.dtype(dtype)}; a model runs in float64 or float32.")
    prepared = prepare_clients(clients, np.dtype(dtype))
    names = tuple(prepared)
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(repr(sorted(prepared[name].static.items())), []).append(place)
    arrays = list(prepared.values())
    buckets: list[Bucket] = []
    for members in groups.values():
        buckets += _group_buckets(model, names, arrays, members, tuple(local), jnp.dtype(dtype))
    first = buckets[0].clients.program
    checks.same_globals([(names[bucket.members[0]], bucket.clients.program) for bucket in buckets])
    checks.prior_ignores_data(names, buckets, arrays)
    template = jax.tree.map(lambda leaf: jnp.ones(leaf.shape[1:], leaf.dtype), buckets[0].clients.data)
    prior = make_prior(
        lambda theta: first.log_prior(theta, template),
        first.globals.size,
        tolerance=1e-9 if jnp.dtype(dtype) == jnp.float64 else 1e-5,
    )
    checks.outcomes_vary(model, names, arrays, prior)
    problem = Problem(names, first.globals, prior, tuple(buckets), tuple(arrays))
    return _with_rows(problem, tuple(local)) if rows else problem


def _group_buckets(
    model: Model,
    names: Sequence[str],
    arrays: Sequence[ClientArrays],
    members: list[int],
    local: Sequence[str],
    dtype: Any,
) -> list[Bucket]:
    """Buckets of the clients that share their non-array arguments."""
    group = [arrays[i] for i in members]
    arguments = row_arguments(group)
    lengths = [num_rows(client, arguments) if arguments else None for client in group]
    rows = [length for length in lengths if length is not None]

    def program_of(client: ClientArrays, name: str) -> Program:
        with naming(name, "the model's trace"):
            return split(model, client.static, {k: jnp.asarray(v) for k, v in client.arrays.items()}, local, dtype)

    if not arguments:
        program = program_of(group[0], names[members[0]])
        return [_bucket(program, group, members, (), None)]
    if len(rows) == len(group):
        small, large = int(np.argmin(rows)), int(np.argmax(rows))
        programs = [program_of(group[i], names[members[i]]) for i in (small, large)]
        checks.same_globals([(names[members[i]], program) for i, program in zip((small, large), programs, strict=True)])
        axes = checks.row_axes(programs, [group[small], group[large]])
        if axes is not None:
            program = replace(programs[0], row_axes=axes, row_arguments=tuple(arguments))
            if checks.padding_is_exact(program, programs[0], group[small], arguments, rows[large]):
                return _padded_buckets(program, group, members, arguments, rows)
    return _exact_buckets(program_of, names, group, members)


def _padded_buckets(
    program: Program,
    group: Sequence[ClientArrays],
    members: list[int],
    arguments: Sequence[str],
    rows: list[int],
) -> list[Bucket]:
    lengths = bucket_lengths(rows)
    places = np.searchsorted(lengths, rows)
    buckets = []
    for b, length in enumerate(lengths):
        chosen = [i for i in range(len(group)) if places[i] == b]
        if chosen:
            part = [group[i] for i in chosen]
            buckets.append(_bucket(program, part, [members[i] for i in chosen], arguments, length))
    return buckets


def _exact_buckets(
    program_of: Callable[[ClientArrays, str], Program],
    names: Sequence[str],
    group: Sequence[ClientArrays],
    members: list[int],
) -> list[Bucket]:
    """One bucket per shape, for programs that padding would change."""
    shapes: dict[tuple, list[int]] = {}
    for i, client in enumerate(group):
        shapes.setdefault(tuple((k, v.shape) for k, v in client.arrays.items()), []).append(i)
    return [
        _bucket(program_of(group[c[0]], names[members[c[0]]]), [group[i] for i in c], [members[i] for i in c], (), None)
        for c in shapes.values()
    ]


def _bucket(
    program: Program,
    group: Sequence[ClientArrays],
    members: Sequence[int],
    arguments: Sequence[str],
    length: int | None,
) -> Bucket:
    if length is None:
        padded = [client.arrays for client in group]
        mask = np.ones((len(group), 1), bool)
    else:
        padded = [pad(client.arrays, arguments, length) for client in group]
        counts = np.asarray([num_rows(client, arguments) for client in group])
        mask = np.arange(length) < counts[:, None]
    data = {name: jnp.asarray(np.stack([arrays[name] for arrays in padded])) for name in padded[0]}
    place = np.asarray(members)
    return Bucket(Client(data, jnp.asarray(mask), jnp.asarray(place), program), place)


def _with_rows(problem: Problem, local: tuple[str, ...]) -> Problem:
    """The problem with every program's rows known; a :class:`ModelError` where a factor is no product over rows."""
    buckets = tuple(
        bucket if bucket.clients.program.row_arguments else _rows_found(problem, bucket, local)
        for bucket in problem.buckets
    )
    return replace(problem, buckets=buckets)


def _rows_found(problem: Problem, bucket: Bucket, local: tuple[str, ...]) -> Bucket:
    program, group = bucket.clients.program, [problem.arrays[member] for member in bucket.members]
    first = group[0]
    sites = trace_sites(program.model, program.static, first.arrays).values()
    lengths = {len(first.arrays[site.argument]) for site in sites if site.argument and first.arrays[site.argument].ndim}
    if len(lengths) == 1:
        rows = lengths.pop()
        arguments = [name for name, array in first.arrays.items() if array.ndim and len(array) == rows]
        longer = ClientArrays(pad(first.arrays, arguments, rows + 1), first.static)
        data = {name: jnp.asarray(array) for name, array in longer.arrays.items()}
        other = split(program.model, longer.static, data, local, program.dtype)
        axes = checks.row_axes([program, other], [first, longer])
        if axes:
            found = replace(program, row_axes=axes, row_arguments=tuple(arguments))
            if checks.padding_is_exact(found, program, first, arguments, rows + 1):
                return _bucket(found, group, list(bucket.members), arguments, rows)
    raise ModelError(
        f"The factor of client '{problem.names[bucket.members[0]]}' is not a product over its rows (a latent per row, "
        "`to_event` over rows, or enumerated latents), so it has no mini-batches. Leave out `batch_size` and `clip`."
    )


@contextmanager
def naming(client: str, stage: str) -> Iterator[None]:
    """Add the client's name and the stage to whatever is raised inside, and keep its traceback."""
    try:
        yield
    except Exception as error:
        error.add_note(f"fedbayes: raised for client '{client}' in {stage}.")
        raise
