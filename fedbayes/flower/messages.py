"""Bytes as the content of Flower's messages.

Each message holds one record of settings with one entry of bytes, or a few where it is long. Flower sends every part of
a message by a request of its own: an array would be three parts (record, array, chunk), and a message of many arrays
would cost many requests.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

ACTION = "fedbayes"
MESSAGE_TYPE = f"query.{ACTION}"
NUDGE = b""  # asks for nothing: a node that is one answer behind sends that when the next message comes
_ENTRY = "bytes"
_LONGEST = 16 << 20  # bytes of a record; Flower itself splits arrays at 20 MB


def pack(payload: bytes) -> RecordDict:
    """The content of a message that carries these bytes."""
    starts = range(0, max(len(payload), 1), _LONGEST)
    pieces = (payload[start : start + _LONGEST] for start in starts)
    return RecordDict({str(i): ConfigRecord({_ENTRY: piece}) for i, piece in enumerate(pieces)})


def unpack(message: Message) -> bytes:
    """The bytes that a message carries.

    Raises
    ------
    ValueError
        The message is not one that :func:`pack` has filled.
    """
    content = message.content
    names = [str(i) for i in range(len(content))]
    if not names or set(names) != set(content.config_records):
        raise ValueError(f"the message must hold records of bytes, by number; it holds {len(names)} others")
    return b"".join(_bytes_of(dict(content.config_records[name])) for name in names)


def _bytes_of(record: Mapping[str, Any]) -> bytes:
    piece = record.get(_ENTRY)
    if len(record) > 1 or not isinstance(piece, bytes):
        raise ValueError("the message must hold records of bytes; it holds other entries, or entries of another type")
    return piece
