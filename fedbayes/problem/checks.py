"""Checks of a program against its clients, before any work starts."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm
from numpyro.distributions import constraints

from fedbayes.errors import ClientDataError, ModelError
from fedbayes.numerics.derivatives import slope_along
from fedbayes.problem.buckets import Bucket, own_program
from fedbayes.problem.client import Client
from fedbayes.problem.data.padding import pad
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Arrays, Outcome, Program
from fedbayes.problem.program.tracing import Traced, last_trace
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.lru import Kept

_MANY = 8  # clients that a check of the program looks at


def same_globals(programs: Sequence[tuple[str, Program]]) -> None:
    """The globals must have the same names and shapes on every client."""
    first, expected = programs[0]
    for name, program in programs[1:]:
        if program.globals != expected.globals:
            raise ModelError(
                f"The global latents of client '{name}' are {dict(program.globals.shapes)}, those of client '{first}' "
                f"{dict(expected.globals.shapes)}. Globals need the same shapes on every client: mark those sized by "
                "a client's own data with `fedbayes.local()`."
            )


def something_global(program: Program) -> None:
    """Clients that share no latent have nothing to learn from each other, unless a method couples their locals.

    Raises
    ------
    ModelError
        All latents are local.
    """
    if not program.globals.names:
        raise ModelError(
            f"The program has no global latent: {sorted(program.locals.names)} are all marked local, so the clients "
            "share nothing. Leave at least one latent outside `fedbayes.local()` and `local=`, or take a method that "
            "couples the clients' own coefficients (see the table of methods in the README)."
        )


def gradient_exists(program: Program, client: ClientArrays, trace: Traced) -> None:
    """A loop whose length depends on values has no gradient, which every method needs."""
    if "while" not in trace.primitives:
        return
    data = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in client.arrays.items()}
    theta, z = (jax.ShapeDtypeStruct((block.size,), jnp.zeros(0).dtype) for block in (program.globals, program.locals))

    def hessian(theta: Array, z: Array, data: Arrays) -> Array:
        return program.jacobian(jax.grad(program.log_factor))(theta, z, data)

    try:
        jax.eval_shape(hessian, theta, z, data)
    except Exception as error:
        raise ModelError(
            f"The log density of the model has no second derivatives in JAX: {str(error).splitlines()[0]} Write loops "
            "of a fixed length, with `jax.lax.scan` or `jax.lax.fori_loop` over constant bounds."
        ) from error


def prior_ignores_data(names: Sequence[str], buckets: Sequence[Bucket], clients: Sequence[ClientArrays]) -> None:
    """The prior of the globals must be the same on every client, and stay so when its data change."""
    programs = list(dict.fromkeys(bucket.clients.program for bucket in buckets))
    first = buckets[0].clients.program
    theta = np.random.default_rng(1).normal(size=first.globals.size)
    seen = [pair for bucket in buckets for pair in _priors(bucket, clients, theta, alone=len(programs) == 1)]
    if not seen:  # one program, in which nothing leads from the data to the prior
        return
    (member, expected), first_name = seen[0], names[seen[0][0]]
    for member, value in seen:
        if not np.isclose(value, expected, rtol=1e-6, atol=1e-8, equal_nan=True):
            those = f"those of client '{names[member]}'" if names[member] != first_name else "other numbers in them"
            raise ModelError(
                "The prior of the globals depends on the clients' data: its log density at the same point is "
                f"{expected:.6g} with the data of client '{first_name}', but {value:.6g} with {those}. A prior must "
                "not look at the data: write constants, or mark the latent with `fedbayes.local()`."
            )


def _priors(
    bucket: Bucket, clients: Sequence[ClientArrays], theta: np.ndarray, *, alone: bool
) -> list[tuple[int, float]]:
    """The log prior with some clients' data, with other numbers, and with the rows of the smallest client.

    The list is empty if this is the only program, and no operation leads from the data, or their shapes, to the prior.
    """
    program = bucket.clients.program
    smallest = min(bucket.members, key=lambda member: sum(array.size for array in clients[member].arrays.values()))
    own, padded = own_program(program, clients[smallest]), _unbatched(bucket)
    trace = last_trace(own, clients[smallest])
    reshaped = any(clients[smallest].arrays[name].shape != array.shape for name, array in padded.arrays.items())
    other = last_trace(program, padded) if reshaped else trace
    if alone and not trace.prior_reads_data and trace.prior == other.prior:
        return []
    few = jax.tree.map(lambda leaf: np.asarray(leaf)[:_MANY], bucket.clients.data)
    log_prior = jit_cheaply(jax.vmap(program.log_prior, (None, 0)))
    values = [*np.asarray(log_prior(theta, few)), *np.asarray(log_prior(theta, perturbed(few)))]
    pairs = list(zip([*bucket.members[:_MANY], *bucket.members[:_MANY]], values, strict=True))
    if reshaped:
        pairs.append((smallest, float(jax.jit(own.log_prior)(theta, clients[smallest].arrays))))
    return pairs


def _unbatched(bucket: Bucket) -> ClientArrays:
    """One client of a bucket, padded."""
    return ClientArrays({name: np.asarray(array)[0] for name, array in bucket.clients.data.items()}, {})


def perturbed(data: Arrays) -> dict[str, Any]:
    """Arrays of the same shapes with other numbers."""
    change = {"f": lambda array: 1.5 * array + 1.0, "b": lambda array: ~array}
    return {
        name: change.get(array.dtype.kind, lambda array: array + 1)(array).astype(array.dtype)
        for name, array in data.items()
    }


def outcomes_can_occur(names: Sequence[str], buckets: Sequence[Bucket], clients: Sequence[ClientArrays]) -> None:
    """Every observed value must lie in the support of its distribution, because a density means nothing outside it.

    Where the support is fixed and the value is an argument, NumPy looks at it. Elsewhere a small program does, at two
    points of the latents; a value counts as impossible only if the support is the same at both.
    """
    for bucket in buckets:
        program = bucket.clients.program
        others = []
        for outcome in program.outcomes:
            if outcome.support is None or outcome.argument is None:
                others.append(outcome)
                continue
            for member in bucket.members:
                values = clients[member].arrays[outcome.argument]
                _refuse_impossible(names[member], outcome, outcome.support, outcome.support(values), values)
        if others:
            _run_supports(names, bucket, others)


_DEFECTS: Kept[Any] = Kept(64)
_DOUBTS: Kept[Any] = Kept(64)


def processes_are_sound(names: Sequence[str], buckets: Sequence[Bucket]) -> None:
    """The densities of dependent rows must mean something, at a few points of the latents."""
    for bucket in buckets:
        program = bucket.clients.program
        if not program.processes:
            continue
        points = np.random.default_rng(4).normal(size=(_MANY, program.globals.size + program.locals.size)) * 0.3
        found = _DEFECTS.get(program, partial(_defects_of, program))
        flags = found(*np.split(points, [program.globals.size], axis=1), bucket.clients.data)
        for site, complaints in flags.items():
            for complaint, flag in complaints.items():
                bad = np.flatnonzero(np.asarray(flag).any(axis=1))
                if len(bad):
                    name = names[bucket.members[bad[0]]]
                    raise ModelError(f"Client '{name}': the distribution of the site '{site}' {complaint}.")


def processes_are_alike(names: Sequence[str], buckets: Sequence[Bucket]) -> None:
    """Warn of what holds for some clients' dependent rows and not for others', such as a constant predictor."""
    held: dict[str, list[int]] = {}
    for bucket in buckets:
        program = bucket.clients.program
        if program.processes:
            found = _DOUBTS.get(program, partial(_doubts_of, program))
            for doubts in found(bucket.clients.data, bucket.clients.mask).values():
                for doubt, flag in doubts.items():
                    held.setdefault(doubt, []).extend(bucket.members[np.flatnonzero(np.asarray(flag))])
    for doubt, places in held.items():
        if 0 < len(places) < len(names):
            more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
            warnings.warn(f"Client '{names[min(places)]}'{more} {doubt}.", stacklevel=2)


def batches_stand_for_all_rows(programs: Sequence[Program]) -> None:
    """Refuse mini-batches where a process says that their densities are about something else than that of all rows.

    Raises
    ------
    ModelError
        There is such a process.
    """
    whole = [program for program in programs if not program.batches]
    if whole:
        names = ", ".join(map(repr, whole[0].processes))
        raise ModelError(
            f"The outcomes {names} have one density for all rows of a client, which compares them with each other, as "
            "Cox's partial likelihood does: that of a mini-batch compares others, and its gradient is biased. "
            "Leave out `batch_size` and `clip`."
        )


def _doubts_of(program: Program) -> Any:
    return jit_cheaply(jax.vmap(program.doubts))


def _defects_of(program: Program) -> Any:
    return jit_cheaply(jax.vmap(jax.vmap(program.defects, (0, 0, None)), (None, None, 0)))


_SUPPORTS: Kept[Any] = Kept(64)


def _run_supports(names: Sequence[str], bucket: Bucket, outcomes: Sequence[Outcome]) -> None:
    """The part of :func:`outcomes_can_occur` that has to run the program."""
    program, data = bucket.clients.program, bucket.clients.data
    batched = jax.vmap(jax.vmap(program.supports, (0, 0, None)), (None, None, 0))
    found = _SUPPORTS.get(program, lambda: jit_cheaply(batched))
    points = np.random.default_rng(3).normal(size=(2, program.globals.size + program.locals.size)) * 0.3
    theta, z = np.split(points, [program.globals.size], axis=1)
    supports = jax.tree.map(np.asarray, found(theta, z, data))
    for outcome in outcomes:
        inside, values, bounds = supports[outcome.site]
        for at, member in enumerate(bucket.members):
            if all(np.array_equal(bound[at, 0], bound[at, 1]) for bound in bounds):
                words = "" if not bounds else f"bounds {[bound[at, 0].tolist() for bound in bounds]}"
                _refuse_impossible(
                    names[member], outcome, outcome.support or words, inside[at].all(axis=0), values[at, 0]
                )


def _refuse_impossible(name: str, outcome: Outcome, support: Any, inside: Any, values: np.ndarray) -> None:
    bad = np.argwhere(~np.atleast_1d(inside))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        what = f"`{outcome.argument}`" if outcome.argument else f"the outcome '{outcome.site}'"
        raise ClientDataError(
            f"Client '{name}': {what} holds {len(bad)} values that the distribution `{outcome.law}` of the site "
            f"'{outcome.site}' does not take, the first {np.atleast_1d(values)[where]} at {where}. It takes "
            f"{_in_words(support)}. Correct the data, or observe them by another distribution."
        )


def _in_words(support: Any) -> str:
    """The values that a support has."""
    if isinstance(support, type(constraints.boolean)):
        return "0 and 1"
    if isinstance(support, str):
        return f"values within its {support}"
    kind = "integers" if support.is_discrete else "numbers"
    low, high = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    open_ = isinstance(support, type(constraints.positive) | type(constraints.greater_than(0.0)))
    return f"{kind} {'above' if open_ else 'from'} {low}" if low is not None else f"values in {support}"


_INDEPENDENT: Kept[Any] = Kept(64)
_FINITE: Kept[Any] = Kept(64)


def groups_are_independent(bucket: Bucket) -> bool:
    """Whether the rows of the locals' first axis are independent given the globals, on every client of the bucket.

    Then the log factor has no second derivative between two rows, at two points. Any two rows differ in a digit of
    their binary numbers: so for each digit the derivative of the slope is taken along all rows that have it, with
    random parts, and must be exactly zero in all others. That is as many derivatives as digits, where the whole Hessian
    is as many as locals.
    """
    program, clients = bucket.clients.program, bucket.clients
    groups, size = program.locals.groups(), program.globals.size
    if len(groups) < 2 or program.enumerated:
        return False
    random = np.random.default_rng(5)
    points = random.normal(size=(2, size + program.locals.size)) * 0.3
    probes, outside = _probes(groups, random)

    def largest_at(point: Array, client: Client) -> Array:
        slope = jax.grad(client.given(point[:size]))

        def along(probe: Array) -> Array:
            return slope_along(slope, point[size:], probe, program.jacobian)[1]

        return jnp.max(jnp.abs(jax.lax.map(along, probes)) * outside)

    def largest_between(client: Client) -> Array:
        return jnp.max(jax.vmap(lambda point: largest_at(point, client))(points))

    found = _INDEPENDENT.get(program, lambda: jit_cheaply(lambda clients: jax.lax.map(largest_between, clients)))
    return bool(np.all(np.asarray(found(clients)) == 0.0))


def _probes(groups: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Directions within the groups that have one digit in common, and the locals of all others, by digit and place."""
    digits = np.arange((len(groups) - 1).bit_length())
    inside = (np.arange(len(groups)) >> digits[:, None]) & 1  # (digit, group)
    probes = np.zeros((len(digits), groups.shape[1], groups.size))
    outside = np.zeros_like(probes)
    for place in range(groups.shape[1]):
        probes[:, place, groups[:, place]] = inside * random.normal(size=len(groups))
    outside[:, :, groups] = (1.0 - inside)[:, None, :, None]
    return probes.reshape(-1, groups.size), outside.reshape(-1, groups.size)


def curvature_is_finite(bucket: Bucket) -> bool:
    """Whether the log factor of each client has finite second derivatives near zero, where its first ones are finite.

    A program may have none though its density is smooth, since its second derivatives overflow: where a discrete latent
    is summed out, ``clamp_probs`` keeps a probability of zero at 2e-308, whose square is zero.
    """
    program, clients = bucket.clients.program, bucket.clients
    theta = 0.01 * (1.0 + np.arange(program.globals.size))

    def is_finite(client: Client) -> Array:
        found, along = slope_along(jax.grad(client.log_factor), jnp.asarray(theta), jnp.ones(theta.shape))
        return jnp.all(jnp.isfinite(along)) | ~jnp.all(jnp.isfinite(found))

    found = _FINITE.get(program, lambda: jit_cheaply(lambda clients: jax.lax.map(is_finite, clients)))
    return bool(np.all(found(clients)))


class Rows(NamedTuple):
    """What of a program runs over rows: see :class:`~fedbayes.problem.program.program.Program`."""

    axes: dict[str, int]
    locals: tuple[str, ...]


def rows_of(programs: Sequence[Program], traces: Sequence[Traced], rows: tuple[int, int]) -> Rows | None:
    """The axis of each site's log-probability that runs over rows, from two clients with these numbers of rows.

    ``None`` where the rows change more than that: other latents than locals with an entry for each row, or outcomes
    without the first few rows. Processes have one log-probability for all their rows.
    """
    if programs[0].enumerated or programs[0].locals.names != programs[1].locals.names:
        return None
    axes: dict[str, int] = {}
    for name, small in traces[0].shapes.items():
        axis = _moved(small, traces[1].shapes.get(name), rows)
        if axis is None:
            return None
        axes |= {name: axis} if axis >= 0 else {}
    sized = {
        name: _moved(small, large, rows)
        for (name, small), (_, large) in zip(programs[0].locals.shapes, programs[1].locals.shapes, strict=True)
    }
    found = tuple(name for name, axis in sized.items() if axis == 0 and name in axes)
    if (programs[0].processes and found) or any(axis != -1 for name, axis in sized.items() if name not in found):
        return None
    return Rows(axes, found)


def _moved(small: tuple[int, ...], large: tuple[int, ...] | None, rows: tuple[int, int]) -> int | None:
    """The axis along which two shapes have these numbers of rows; -1: they are equal, ``None``: they differ more."""
    if large is None or len(large) != len(small):
        return None
    moved = [axis for axis, pair in enumerate(zip(small, large, strict=True)) if pair[0] != pair[1]]
    if not moved:
        return -1
    return moved[0] if len(moved) == 1 and (small[moved[0]], large[moved[0]]) == rows else None


def plain_and_padded(padded: Program, plain: Program, rows: int, length: int) -> Callable[..., Any]:
    """Log factor and gradient without padding and with it, as functions of data and padded data, at two points."""
    real = jnp.arange(length) < rows
    size, padded = plain.globals.size, padded.with_rows(length)
    points = np.random.default_rng(2).normal(size=(2, size + padded.locals.size)) * 0.3
    mine = padded.places(rows)
    others = np.setdiff1d(np.arange(padded.locals.size), mine)

    def both(x: Array, data: Arrays, longer: Arrays) -> tuple:
        def of_plain(x: Array) -> Array:
            z = x[size:]
            padding = jnp.sum(norm.logpdf(z[others]))
            return plain.log_factor(x[:size], z[mine], data, None) + padding

        one = jax.value_and_grad(of_plain)(x)
        two = jax.value_and_grad(lambda x: padded.log_factor(x[:size], x[size:], longer, real))(x)
        return one, two

    return partial(jit_cheaply(jax.vmap(both, (0, None, None))), points)


def padding_is_exact(
    densities: Callable[..., Any], dtype: Any, client: ClientArrays, arguments: Sequence[str], length: int
) -> bool:
    """Whether padding and masking rows leave a client's log factor and its gradient as they are."""
    tolerance = 1e-9 if dtype == jnp.float64 else 1e-4
    longer = pad(client.arrays, arguments, length)
    one, two = jax.tree.map(np.asarray, densities(dict(client.arrays), longer))
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance * (1.0 + _largest(a)), equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )


def _largest(values: np.ndarray) -> float:
    """The largest size among those that are finite."""
    return float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
