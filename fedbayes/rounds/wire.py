"""Messages as bytes: named arrays with checked shapes and dtypes, and no pickle."""

import io
from typing import Any

import jax
import numpy as np


def _name(path: Any) -> str:
    """A leaf's path in its pytree, such as ``sites/shift``."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "value"


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """A pytree's leaves by their path, such as ``sites/shift``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def encode(tree: Any) -> bytes:
    """A pytree of arrays as bytes: an uncompressed ``.npz`` archive, one named array per leaf."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **named_arrays(tree))
    return buffer.getvalue()


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """The named arrays in ``content``, from :func:`encode`; pickled objects are never loaded."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def decode(content: bytes, template: Any) -> Any:
    """The pytree in ``content``, which must look like ``template``.

    Parameters
    ----------
    content
        From :func:`encode`.
    template
        A pytree of arrays or ``jax.ShapeDtypeStruct``: the structure, shapes and dtypes expected.

    Raises
    ------
    ValueError
        Other names, shapes or dtypes than expected; pickled objects are never loaded.
    """
    arrays = arrays_of(content)
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_name(path) for path, _ in leaves]
    if set(names) != set(arrays):
        raise ValueError(f"A message holds the arrays {sorted(arrays)}; expected {sorted(names)}.")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        array = arrays[name]
        if array.shape != tuple(leaf.shape) or array.dtype != leaf.dtype:
            raise ValueError(
                f"Array '{name}' of a message has shape {array.shape} and dtype {array.dtype}; "
                f"expected {tuple(leaf.shape)} and {leaf.dtype}."
            )
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in names])
