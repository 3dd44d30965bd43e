"""Model and clients, checked and ready: what an algorithm is built for and an executor runs on."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.errors import ModelError
from fedbayes.numerics.columns import by_differences
from fedbayes.problem import checks
from fedbayes.problem.buckets import Bucket, make_bucket, own_program
from fedbayes.problem.client import Client
from fedbayes.problem.data.padding import bucket_lengths, num_rows, pad, row_arguments
from fedbayes.problem.data.reading import ClientArrays, prepare_clients
from fedbayes.problem.program.called import misfit
from fedbayes.problem.program.concrete import mixes_precisions, needs_value, precision_refusal, refusal, with_sizes
from fedbayes.problem.program.hierarchy import hierarchy_of
from fedbayes.problem.program.local_latents import LocalLatents, local_latents
from fedbayes.problem.program.prior import Hierarchy, Prior, make_prior
from fedbayes.problem.program.prior_terms import with_prior_terms
from fedbayes.problem.program.program import Block, Model, Program
from fedbayes.problem.program.same_model import model_key
from fedbayes.problem.program.sites import trace_sites
from fedbayes.problem.program.split import split
from fedbayes.problem.program.tracing import Traced, traced
from fedbayes.problem.roster import Roster
from fedbayes.runtime.lru import Kept


@dataclass(frozen=True, eq=False)
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
    elsewhere: ClassVar[bool] = False  # whether the clients' data are in other processes

    @property
    def roster(self) -> Roster:
        """What a server knows of these clients."""
        known: dict[int, LocalLatents] = {}
        for bucket in self.buckets:
            program = bucket.clients.program
            found = local_latents(program, shapes_of_client(bucket))
            known |= {
                place: found._replace(
                    block=own_program(program, self.arrays[place]).locals, independent=bucket.clients.independent
                )
                for place in bucket.members.tolist()
            }
        locals_ = tuple(known[place] for place in range(len(self.names)))
        num_locals = np.asarray([each.block.size for each in locals_])
        template = shapes_of_client(self.buckets[0])
        return Roster(
            self.names,
            self.num_rows(),
            num_locals,
            self.globals,
            self.prior,
            template,
            locals_,
            dependent=any(program.processes for program in self.programs),
        )

    @property
    def programs(self) -> tuple[Program, ...]:
        """The split programs, one for each bucket."""
        return tuple(bucket.clients.program for bucket in self.buckets)

    def program(self, name: str) -> Program:
        """The program for one client's own arguments, without padding.

        Raises
        ------
        KeyError
            Unknown name.
        """
        place = self.place(name)
        return own_program(self.buckets[self.locate(place)[0]].clients.program, self.arrays[place])

    def unpadded(self, name: str, position: np.ndarray) -> np.ndarray:
        """Joint positions ``(..., d + m)`` of one client without the locals of padded rows."""
        padded, own = self.buckets[self.locate(self.place(name))[0]].clients.program, self.program(name)
        if own is padded:
            return position
        rows = dict(own.locals.shapes)[padded.row_locals[0]][0]
        size = self.globals.size
        return position[..., np.concatenate([np.arange(size), size + padded.places(rows)])]

    def num_rows(self) -> np.ndarray:
        """Rows of each client, shape ``(K,)``; the longest leading axis of its arrays where its rows are not known."""
        lengths = [[len(array) for array in client.arrays.values() if array.ndim] for client in self.arrays]
        rows = np.asarray([max(found, default=1) for found in lengths], float)
        for bucket in self.buckets:
            if bucket.clients.program.row_arguments:
                rows[bucket.members] = np.asarray(bucket.clients.mask).sum(axis=1)
        return rows

    @property
    def integrated(self) -> tuple[str, ...]:
        """Names of the clients' own latents that densities integrate out, and that are drawn after the fit."""
        return tuple(dict.fromkeys(name for program in self.programs for name in program.integrated))

    def description(self) -> str:
        """Clients and globals in words, with a digest of names, data and precision."""
        digest = hashlib.sha256(str(self.buckets[0].clients.program.dtype).encode())
        for name, client in zip(self.names, self.arrays, strict=True):
            digest.update(repr((name, sorted(client.static.items()))).encode())
            for argument, array in sorted(client.arrays.items()):
                digest.update(repr((argument, array.shape, array.dtype.str)).encode() + array.tobytes())
        return f"{len(self.names)} clients, globals {dict(self.globals.shapes)}, data {digest.hexdigest()[:16]}"

    def place(self, name: str) -> int:
        """Where a client stands in the order given.

        Raises
        ------
        KeyError
            Unknown name.
        """
        if name not in self.names:
            raise KeyError(f"There is no client '{name}'; the clients are {list(self.names)}.")
        return self.names.index(name)

    def client(self, name: str) -> Client:
        """One client, without a leading axis.

        Raises
        ------
        KeyError
            Unknown name.
        """
        bucket, at = self.locate(self.place(name))
        return jax.tree.map(lambda leaf: leaf[at], self.buckets[bucket].clients)

    def held(self, name: str) -> ClientArrays:
        """One client's own arguments, for what looks at their values; they must be in this process."""
        return self.arrays[self.place(name)]

    def outcomes(self, name: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the values that a client has observed, by site."""
        program, data = self.client(name).program, self.arrays[self.place(name)].arrays
        at = np.zeros(program.globals.size), np.zeros(program.locals.size)
        with jax.enable_x64(True):
            found: dict[str, jax.ShapeDtypeStruct] = jax.eval_shape(program.observed, *at, dict(data))
        return found

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
    only_locals: bool = False,
) -> Problem:
    """Check a model and its clients' data, split the program, and pad and group the clients.

    Parameters
    ----------
    model, clients, local, dtype
        As in :func:`~fedbayes.fit_federated`.
    rows
        Mini-batches are wanted: every program's rows must be known, also where all clients have equally many.
    only_locals
        Programs without global latents will do.

    Raises
    ------
    ClientDataError
        See :func:`~fedbayes.problem.data.reading.prepare_clients` and :mod:`fedbayes.problem.checks`.
    ModelError
        See :func:`~fedbayes.problem.program.split.split` and :mod:`fedbayes.problem.checks`.
    """
    check_local(local)
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"`dtype` is {np.dtype(dtype)}; a model runs in float64 or float32.")
    prepared = with_sizes(model, prepare_clients(clients, np.dtype(dtype)))
    names, arrays = tuple(prepared), list(prepared.values())
    groups: dict[str, list[int]] = {}
    for place, client in enumerate(arrays):
        groups.setdefault(repr(sorted(client.static.items())), []).append(place)
    options = Options(model, tuple(local), jnp.dtype(dtype))
    found = [bucket for members in groups.values() for bucket in _group_buckets(options, names, arrays, members)]
    buckets = [_with_curvature(_with_independence(bucket)) for bucket in found]
    program = buckets[0].clients.program
    checks.same_globals([(names[bucket.members[0]], bucket.clients.program) for bucket in buckets])
    if not only_locals:
        checks.something_global(program)
    checks.outcomes_can_occur(names, buckets, arrays)
    checks.processes_are_sound(names, buckets)
    checks.processes_are_alike(names, buckets)
    checks.prior_ignores_data(names, buckets, arrays)
    template = shapes_of_client(buckets[0])
    prior = prior_of(program, template)
    problem = Problem(names, program.globals, prior, tuple(buckets), tuple(arrays))
    return _with_rows(problem, options) if rows else problem


def check_local(local: Sequence[str]) -> None:
    """Names of local latents, and no text, whose letters would be names."""
    if isinstance(local, str):
        raise TypeError(
            f"`local` is the text {local!r}; write the names of the sites in a tuple, `local=({local!r},)`."
        )


def shapes_of_client(bucket: Bucket) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the arrays of one client of a bucket."""
    return {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in bucket.clients.data.items()}


class Known(NamedTuple):
    """A split program with its trace on one client's shapes."""

    program: Program
    trace: Traced


_SPLIT: Kept[Known] = Kept(64)
_PADDED: Kept["Padded | None"] = Kept(64)
_PRIORS: Kept[Prior] = Kept(64)
_BY_DIFFERENCES: Kept[Program] = Kept(64)  # kept, since compiled code is found by the program's identity


def known_program(options: "Options", client: ClientArrays, name: str) -> Known:
    """The split program for a client's shapes; one that was split before, if its trace is still the same."""
    # 1, 1.0 and True are equal, and make different programs
    static = tuple((key, type(value), value) for key, value in sorted(client.static.items()))
    shapes = tuple((key, array.shape, array.dtype.str) for key, array in client.arrays.items())

    def build() -> Known:
        arrays = {key: jax.device_put(value) for key, value in client.arrays.items()}
        program = split(options.model, client.static, arrays, options.local, options.dtype)
        return _refined(program, client)

    def unchanged(known: Known) -> bool:
        try:
            return traced(known.program, client).digest == known.trace.digest
        except Exception:  # `build` says what is wrong with the program
            return False

    with naming(name, "the model's trace"):
        try:
            return _SPLIT.get((model_key(options.model), *options[1:], static, shapes), build, unchanged)
        except Exception as error:
            if isinstance(error, TypeError) and (words := misfit(options.model, {*client.static, *client.arrays})):
                raise ModelError(f"The clients' data don't fit the model. It {words}") from None
            if needs_value(error):
                raise refusal(error, options.model, name) from error
            if mixes_precisions(error):
                raise precision_refusal(error, options.model, name) from error
            raise


def _refined(program: Program, client: ClientArrays) -> Known:
    """The program with what only its trace tells of it."""
    trace = traced(program, client)
    if "custom_vjp_call" in trace.primitives:
        program = replace(program, jacobian=jax.jacrev)
    if trace.alone:
        program = with_prior_terms(program, client, trace)
        trace = traced(program, client)
    checks.gradient_exists(program, client, trace)
    return Known(program, trace)


class Padded(NamedTuple):
    """A program whose rows are known, and its densities with and without padding, compiled once for all data."""

    program: Program
    densities: Callable[..., Any]


class Options(NamedTuple):
    """What a split depends on beside a client's arguments."""

    model: Model
    local: tuple[str, ...]
    dtype: Any


def _group_buckets(
    options: Options, names: Sequence[str], arrays: Sequence[ClientArrays], members: list[int]
) -> list[Bucket]:
    """Buckets of the clients that share their non-array arguments."""
    group = [arrays[i] for i in members]
    arguments = row_arguments(group)
    lengths = [num_rows(client, arguments) if arguments else None for client in group]
    rows = [length for length in lengths if length is not None]
    if not arguments:
        return [make_bucket(known_program(options, group[0], names[members[0]]).program, group, members)]
    if len(rows) == len(group):
        ends = (int(np.argmin(rows)), int(np.argmax(rows)))
        known = [known_program(options, group[i], names[members[i]]) for i in ends]
        checks.same_globals([(names[members[i]], one.program) for i, one in zip(ends, known, strict=True)])
        program = _padded_program(known, group[ends[0]], arguments, rows[ends[1]])
        if program is not None:
            return _padded_buckets(program, group, members, arguments, rows)
    return _exact_buckets(options, names, group, members)


def _with_independence(bucket: Bucket) -> Bucket:
    return replace(bucket, clients=replace(bucket.clients, independent=checks.groups_are_independent(bucket)))


def _with_curvature(bucket: Bucket) -> Bucket:
    """With second derivatives by differences where a discrete latent that is summed out leaves no finite ones."""
    program = bucket.clients.program
    usual = not program.enumerated or bool(program.locals.size) or program.jacobian is not jax.jacfwd
    if usual or checks.curvature_is_finite(bucket):
        return bucket
    other = _BY_DIFFERENCES.get(program, lambda: replace(program, jacobian=by_differences))
    return replace(bucket, clients=replace(bucket.clients, program=other))


def _padded_program(
    known: Sequence[Known], client: ClientArrays, arguments: Sequence[str], length: int
) -> Program | None:
    """The program with its rows known, or ``None`` where padding would change it, which depends on the data."""
    rows = (client.arrays[arguments[0]].shape[0], length)

    def find() -> Padded | None:
        found = checks.rows_of([one.program for one in known], [one.trace for one in known], rows)
        if found is None or not (found.axes or known[0].program.processes):
            return None
        program = replace(
            known[0].program, row_axes=found.axes, row_arguments=tuple(arguments), row_locals=found.locals
        )
        return Padded(program, checks.plain_and_padded(program, known[0].program, *rows))

    kept = _PADDED.get((*(one.program for one in known), tuple(arguments), rows), find)
    if kept is None or not checks.padding_is_exact(kept.densities, kept.program.dtype, client, arguments, length):
        return None
    return kept.program


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
            buckets.append(make_bucket(program, part, [members[i] for i in chosen], arguments, length))
    return buckets


def _exact_buckets(
    options: Options, names: Sequence[str], group: Sequence[ClientArrays], members: list[int]
) -> list[Bucket]:
    """One bucket per shape, for programs that padding would change."""
    shapes: dict[tuple, list[int]] = {}
    for i, client in enumerate(group):
        shapes.setdefault(tuple((k, v.shape) for k, v in client.arrays.items()), []).append(i)
    return [
        make_bucket(
            known_program(options, group[same[0]], names[members[same[0]]]).program,
            [group[i] for i in same],
            [members[i] for i in same],
        )
        for same in shapes.values()
    ]


def prior_of(program: Program, template: Mapping[str, jax.ShapeDtypeStruct]) -> Prior:
    """The prior of a program, which does not look at the values of the data; it is made once."""
    tolerance = 1e-9 if program.dtype == jnp.float64 else 1e-5

    def shapes() -> dict[str, Array]:
        return {name: jnp.ones(like.shape, like.dtype) for name, like in template.items()}

    def log_density(theta: Array) -> Array:
        return program.log_prior(theta, shapes())

    def draw(key: Array) -> Array:
        return program.draw_prior(key, shapes())

    def find_hierarchy() -> Hierarchy:
        return hierarchy_of(program, shapes())

    def make() -> Prior:
        return make_prior(log_density, program.globals.size, tolerance, draw, find_hierarchy)

    return _PRIORS.get(program, make)


def _with_rows(problem: Problem, options: Options) -> Problem:
    """The problem with every program's rows known; a :class:`ModelError` where a factor is no product over rows."""
    buckets = tuple(
        bucket
        if bucket.clients.program.row_arguments and not bucket.clients.program.row_locals
        else _rows_found(problem, bucket, options)
        for bucket in problem.buckets
    )
    return replace(problem, buckets=buckets)


def _rows_found(problem: Problem, bucket: Bucket, options: Options) -> Bucket:
    program, group = bucket.clients.program, [problem.arrays[member] for member in bucket.members]
    first, name = group[0], problem.names[bucket.members[0]]
    sites = trace_sites(program.model, program.static, first.arrays).values()
    lengths = {len(first.arrays[site.argument]) for site in sites if site.argument and first.arrays[site.argument].ndim}
    if len(lengths) == 1:
        rows = lengths.pop()
        arguments = [key for key, array in first.arrays.items() if array.ndim and len(array) == rows]
        longer = ClientArrays(pad(first.arrays, arguments, rows + 1), first.static)
        known = [known_program(options, client, name) for client in (first, longer)]
        found = _padded_program(known, first, arguments, rows + 1)
        if found is not None and not found.row_locals:
            return make_bucket(found, group, list(bucket.members), arguments, rows)
    raise ModelError(
        f"The factor of client '{name}' is not a product over its rows (a latent per row, `to_event` over rows, or "
        "enumerated latents), so it has no mini-batches. Leave out `batch_size` and `clip`."
    )


@contextmanager
def naming(client: str, stage: str) -> Iterator[None]:
    """Add the client's name and the stage to whatever is raised inside, and keep its traceback."""
    try:
        yield
    except Exception as error:
        error.add_note(f"fedbayes: raised for client '{client}' in {stage}.")
        raise
