"""Several processes whose devices are one mesh: each runs the same script, and the same programs at the same time."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_EVERYWHERE = PartitionSpec()


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether devices of a mesh belong to another process than this one."""
    return mesh is not None and any(device.process_index != jax.process_index() for device in mesh.devices.flat)


def check_processes(mesh: Mesh) -> None:
    """Refuse a mesh over some of the processes, which would wait for each other for ever, or over unequal ones.

    Raises
    ------
    ValueError
        It has devices of several processes, but not of all; or these have unequal numbers of devices.
    """
    taking_part = {device.process_index for device in mesh.devices.flat}
    left_out = set(range(jax.process_count())) - taking_part
    if spans_processes(mesh) and left_out:
        raise ValueError(
            f"`mesh` has devices of the processes {sorted(taking_part)} and none of {sorted(left_out)}, while all "
            f"{jax.process_count()} processes work together. Write "
            "`jax.make_mesh((jax.device_count(),), ('clients',))`, which has the devices of all."
        )
    numbers = Counter(device.process_index for device in jax.devices())
    if spans_processes(mesh) and len(set(numbers.values())) > 1:
        raise ValueError(
            f"The processes have {[numbers[each] for each in sorted(numbers)]} devices, and JAX lets them speak to "
            "each other only where these are equally many. Start each with as many, by `local_device_ids` of "
            "`jax.distributed.initialize`."
        )


def own_devices(mesh: Mesh) -> Mesh | None:
    """Those of a mesh that belong to this process; ``None`` for a single one, which needs no mesh."""
    mine = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    return Mesh(np.array(mine), mesh.axis_names) if len(mine) > 1 else None


def is_first(mesh: Mesh | None) -> bool:
    """Whether this process shows the progress and writes files; without other processes it does."""
    return not spans_processes(mesh) or jax.process_index() == 0


def wait_for_all() -> None:
    """Wait until every process has come here."""
    multihost_utils.sync_global_devices("fedbayes")


def check_alike(given: Mapping[str, str]) -> None:
    """Compare what all processes were given, before any of them computes something of its own.

    Parameters
    ----------
    given
        From what it is called to its text.

    Raises
    ------
    ValueError
        In all processes: what differs, and in which of them.
    """
    digests = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in given.values()]
    each = multihost_utils.process_allgather(np.stack(digests))
    differs = np.any(each != each[:1], axis=2)
    if np.any(differs):
        names = [name for name, column in zip(given, differs.T, strict=True) if np.any(column)]
        others = np.flatnonzero(np.any(differs, axis=1)).tolist()
        raise ValueError(
            "The processes whose devices are one `mesh` must be given the same, but process 0 and the processes "
            f"{others} differ in {', '.join(names)}. Run the same script on the same files in all of them."
        )


def of_the_first(number: int, mesh: Mesh | None) -> int:
    """A number by which process 0 has decided, told to all."""
    return int(multihost_utils.broadcast_one_to_all(number)) if spans_processes(mesh) else number


def on_each_device(tree: Any, mesh: Mesh) -> Any:
    """The arrays on each device of a mesh, where they stay, instead of being sent with each call of a program."""
    sharding = NamedSharding(mesh, _EVERYWHERE)
    if not spans_processes(mesh):
        return jax.device_put(tree, sharding)
    # what `device_put` would compare between processes, every element over the network, `check_alike` has compared
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, np.asarray(leaf).__getitem__), tree
    )


def readable(program: Callable, mesh: Mesh | None) -> Callable:
    """The program, with its whole value on each device, because a process can't read another one's devices."""
    if mesh is None or not spans_processes(mesh):
        return program
    sharding = NamedSharding(mesh, _EVERYWHERE)

    @wraps(program)
    def run(*arguments: Any) -> Any:
        return jax.lax.with_sharding_constraint(program(*arguments), sharding)

    return run


def copied(tree: Any, mesh: Mesh) -> Any:
    """Within a program: arrays whose leading axis lies on all devices, as copies on each device.

    All go as bytes of one array, by one exchange: in rounds that are one program it is the network's latency that
    counts.
    """
    leaves, structure = jax.tree.flatten(tree)
    parts = [_as_bytes(leaf) for leaf in leaves]
    ends = np.cumsum([part.shape[1] for part in parts])[:-1].tolist()
    rows = jax.lax.with_sharding_constraint(jnp.concatenate(parts, axis=1), NamedSharding(mesh, _EVERYWHERE))
    whole = map(_from_bytes, jnp.split(rows, ends, axis=1), leaves)
    return jax.tree.unflatten(structure, whole)


def _as_bytes(leaf: Array) -> Array:
    """Shape ``(n, ...)`` as bytes of shape ``(n, number)``."""
    numbers = leaf.astype(np.uint8) if leaf.dtype == bool else leaf
    return jax.lax.bitcast_convert_type(numbers, np.uint8).reshape(len(leaf), -1)


def _from_bytes(part: Array, like: Array) -> Array:
    """What :func:`_as_bytes` made bytes of, with the shape and the kind of numbers of ``like``."""
    if like.dtype == bool:
        return part.reshape(like.shape).astype(bool)
    if like.dtype.itemsize == 1:
        return jax.lax.bitcast_convert_type(part.reshape(like.shape), like.dtype)
    return jax.lax.bitcast_convert_type(part.reshape(*like.shape, like.dtype.itemsize), like.dtype)
