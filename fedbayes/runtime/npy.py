"""NumPy's format of one array, read from bytes that may come from anybody.

NumPy's own reader makes the array that a header names before it looks how many bytes follow, and evaluates the header
as Python text. Here a header is matched as text, and the array must be exactly the bytes that are there.
"""

import math
import re

import numpy as np

_MAGIC = b"\x93NUMPY\x01\x00"
_LONGEST = 4096  # bytes of a header: 64 axes need half of it
_MOST_AXES = 32
# What NumPy writes for arrays of flags, numbers and text. No more digits: no product of sizes takes long.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][biufU][0-9]{1,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, )*[0-9]{1,18},?|)\), \} *\n"
)


def read_array(content: bytes | memoryview) -> np.ndarray:
    """The array in ``content``, from :func:`numpy.save`: flags, numbers or text, and never an object.

    Raises
    ------
    ValueError
        It is none, or the header names more or fewer bytes than there are. No array has been made then.
    """
    head = bytes(content[: len(_MAGIC) + 2])
    if len(head) < len(_MAGIC) + 2 or not head.startswith(_MAGIC):
        raise ValueError("it has no header of an array")
    length = int.from_bytes(head[-2:], "little")
    found = _HEADER.fullmatch(bytes(content[len(head) : len(head) + min(length, _LONGEST + 1)]))
    if length > _LONGEST or found is None or len(content) < len(head) + length:
        raise ValueError("its header names no array of numbers")
    dtype, shape = _dtype(found[1].decode()), tuple(int(size) for size in re.findall(rb"[0-9]+", found[3]))
    values = memoryview(content)[len(head) + length :]
    if len(shape) > _MOST_AXES or dtype.itemsize * math.prod(shape) != len(values):
        raise ValueError(f"its header names an array of shape {shape[:_MOST_AXES]}, and {len(values)} bytes follow")
    flat = np.frombuffer(values, dtype) if len(values) else np.empty(0, dtype)
    array = flat.reshape(shape[::-1]).T if found[2] == b"True" else flat.reshape(shape)
    return array.copy(order="K")


def _dtype(text: str) -> np.dtype:
    try:
        return np.dtype(text)
    except TypeError as error:
        raise ValueError(f"its header names the type {text!r}, which is none") from error
