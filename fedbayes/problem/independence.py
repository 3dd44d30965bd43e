"""Which of a program's locals are independent given its globals, as its second derivatives tell."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.problem.buckets import Bucket
from fedbayes.problem.client import Client
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.lru import Kept

MANY = 64  # single locals from which they are integrated out one by one, whatever other locals there are
FEW = 16  # other locals up to which that is done, exclusive

_FOUND: Kept = Kept(64)


def with_independence(bucket: Bucket) -> Bucket:
    """The bucket whose clients know which of their locals are independent."""
    found = replace(bucket.clients, independent=groups_are_independent(bucket), singles=singles_of(bucket))
    return replace(bucket, clients=found)


def groups_are_independent(bucket: Bucket) -> bool:
    """Whether the rows of the locals' first axis are independent given the globals, on every client of the bucket."""
    return _are_apart(bucket, bucket.clients.program.locals.groups(), ())


def singles_of(bucket: Bucket) -> tuple[str, ...]:
    """The local latents whose entries are all independent given the globals and the other locals.

    None where they have fewer than ``MANY`` entries, or the others have ``FEW`` and more: then a joint Laplace
    approximation of all locals is the better way.
    """
    block = bucket.clients.program.locals
    sizes = {name: prod(shape) for name, shape in block.shapes}
    found: tuple[str, ...] = ()
    if sum(size for size in sizes.values() if size >= FEW) < MANY:
        return ()
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        wanted = (*found, name)
        if sizes[name] >= FEW and _are_apart(bucket, block.places(wanted)[:, None], wanted):
            found = wanted
    number = sum(sizes[name] for name in found)
    return found if number >= MANY and block.size - number < FEW else ()


def _are_apart(bucket: Bucket, groups: np.ndarray, names: Sequence[str]) -> bool:
    """Whether no second derivative of the log factor connects two groups of locals, on every client, in two points.

    Two groups differ in a binary digit of their numbers. So the Hessian is multiplied, for each digit, by random
    numbers in the groups that have a one there: the product is zero in all others. That takes as many products as
    digits, where the Hessian's columns would be as many as locals.

    Parameters
    ----------
    bucket
        The clients.
    groups
        Places of each group's locals, shape ``(groups, size)``; what is in no group is held fixed.
    names
        The latents of the groups, by which compiled code is kept; none for groups by the first axis.
    """
    program, clients = bucket.clients.program, bucket.clients
    size = program.globals.size
    if len(groups) < 2 or program.enumerated:
        return False
    digits = (np.arange(len(groups)) >> np.arange((len(groups) - 1).bit_length())[:, None]) & 1
    rng = np.random.default_rng(5)
    points = rng.normal(size=(2, size + program.locals.size)) * 0.3
    probes, others = np.zeros((2, len(digits), program.locals.size))
    for probe, other, digit in zip(probes, others, digits, strict=True):
        probe[groups[digit == 1]] = rng.uniform(0.5, 1.5, size=groups[digit == 1].shape)
        other[groups[digit == 0]] = 1.0

    def reached(client: Client) -> Array:
        """The largest second derivative between two groups, as far as the probes meet it."""

        def along(point: Array, probe: Array) -> Array:
            slope = jax.grad(lambda z: client.log_factor(jnp.concatenate([point[:size], z])))
            if program.jacobian is jax.jacrev:
                return jax.grad(lambda z: slope(z) @ probe)(point[size:])
            product: Array = jax.jvp(slope, (point[size:],), (probe,))[1]
            return product

        def largest(pair: tuple[Array, Array]) -> Array:
            return jnp.max(jnp.abs(jax.vmap(along, (0, None))(jnp.asarray(points), pair[0])) * pair[1])

        return jnp.max(jax.lax.map(largest, (jnp.asarray(probes), jnp.asarray(others))))

    found = _FOUND.get((program, tuple(names)), lambda: jit_cheaply(lambda clients: jax.lax.map(reached, clients)))
    return bool(np.all(np.asarray(found(clients)) == 0.0))
