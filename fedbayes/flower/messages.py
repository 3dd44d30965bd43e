"""Bytes as the content of Flower's messages.

Each message holds one record with one array of bytes. Flower sends every record, array and chunk of a message by a
request of its own, so that a message of many arrays would cost many requests.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedbayes.runtime.npy import read_array

ACTION = "fedbayes"
MESSAGE_TYPE = f"query.{ACTION}"
NUDGE = b""  # asks for nothing: a node that is one answer behind sends that when the next message comes
_RECORD, _ARRAY = "message", "bytes"
_STYPE = "numpy.ndarray"  # Flower's name for the format of `numpy.save`
_SHOWN = 40  # characters of a text that came with a message


def pack(payload: bytes) -> RecordDict:
    """The content of a message that carries these bytes."""
    array = Array(np.frombuffer(payload, np.uint8))
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: array})})


def unpack(message: Message) -> bytes:
    """The bytes that a message carries.

    Raises
    ------
    ValueError
        The message is not one that :func:`pack` has filled.
    """
    records = message.content.array_records
    if set(records) != {_RECORD} or set(records[_RECORD]) != {_ARRAY}:
        raise ValueError(f"the message must hold one array {_RECORD}/{_ARRAY}; it holds {len(records)} others")
    array = records[_RECORD][_ARRAY]
    if array.stype != _STYPE:
        raise ValueError(f"the message must hold an array of NumPy; it holds one of {array.stype[:_SHOWN]!r}")
    # not `array.numpy()`, which makes whatever array the bytes name
    found = read_array(array.data)
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"the message must hold a vector of uint8; it holds {found.dtype} of shape {found.shape}")
    return found.tobytes()
