"""Messages as bytes: named arrays with checked shapes and dtypes, and no pickle."""

import io
import zipfile
from collections.abc import Mapping
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
    """The named arrays in ``content``, from :func:`encode`; pickled objects are never loaded.

    Raises
    ------
    ValueError
        It is no such archive, or its members are compressed: a small message could then become very large.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("Its members are compressed.")
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{len(content)} bytes are no message of fedbayes: {error}") from error


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
    return from_arrays(arrays_of(content), template)


def from_arrays(arrays: Mapping[str, np.ndarray], template: Any) -> Any:
    """The pytree of the named arrays, see :func:`decode`."""
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
