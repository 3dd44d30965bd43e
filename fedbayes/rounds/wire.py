"""Messages as bytes: named arrays with checked shapes and dtypes, and no pickle."""

import io
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from fedbayes.runtime.npy import read_array

_ENTRY = b"PK\x01\x02"  # with which each member's line in the archive's list begins
_MOST = 1 << 18  # such lines in a message, those of archives within it included
_LONGEST_NAME = 1000  # characters
_SHOWN = 20  # names in the text of an error
_ENCRYPTED = 1  # of a member's flags


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

    Whatever the bytes are, no more memory is taken than a small multiple of theirs.

    Raises
    ------
    ValueError
        It is no such archive, or its members are compressed: a small message could then become very large.
    """
    try:
        return _members(content)
    except Exception as error:  # zipfile raises a dozen types, also on sizes that it multiplies
        raise ValueError(f"{len(content)} bytes are no message of fedbayes: {error}") from error


def _members(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an archive whose members do not overlap, are not compressed, and have names of their own."""
    if content.count(_ENTRY) > _MOST:  # before an object is made for each
        raise ValueError(f"It has more than {_MOST} members.")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED for member in members):
            raise ValueError("Its members are compressed or encrypted.")
        if any(member.file_size != member.compress_size for member in members) or len(content) < sum(
            member.file_size for member in members
        ):
            raise ValueError("Its members are larger than it is.")
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) < len(names) or any(len(name) > _LONGEST_NAME for name in names):
            raise ValueError("Two of its members have one name, or a name is too long.")
        return {name: read_array(archive.read(member)) for name, member in zip(names, members, strict=True)}


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
        raise ValueError(f"A message holds the arrays {_shown(arrays)}; expected {_shown(names)}.")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        array = arrays[name]
        if array.shape != tuple(leaf.shape) or array.dtype != leaf.dtype:
            raise ValueError(
                f"Array '{name}' of a message has shape {array.shape} and dtype {array.dtype}; "
                f"expected {tuple(leaf.shape)} and {leaf.dtype}."
            )
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in names])


def _shown(names: Iterable[str]) -> str:
    """Names for a log: not more than a person reads, whoever has chosen them."""
    known = sorted(names)
    return f"{known[:_SHOWN]}{f' and {len(known) - _SHOWN} more' if len(known) > _SHOWN else ''}"
