"""Bytes as the content of Flower's messages.

Each message holds one record with one array of bytes. Flower sends every record, array and chunk of a message by a
request of its own, so that a message of many arrays would cost many requests.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

ACTION = "fedbayes"
MESSAGE_TYPE = f"query.{ACTION}"
_RECORD, _ARRAY = "message", "bytes"


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
        raise ValueError(f"the message must hold one array {_RECORD}/{_ARRAY}; it holds {sorted(records)}")
    array = records[_RECORD][_ARRAY].numpy()
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError(f"the message must hold a vector of uint8; it holds {array.dtype} of shape {array.shape}")
    return array.tobytes()
