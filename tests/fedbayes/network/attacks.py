"""Bytes that attack whoever reads them: known ones by name, and endless mutations of good messages."""

import io
import json
import struct
import zipfile

import numpy as np

from fedbayes.network.messages import pack, unpack
from fedbayes.rounds.wire import encode

JUNK = [None, True, False, 0, 1, -1, 10**30, 1e400, -1e400, float("nan"), 0.5, "", "x", "\ud800", "\n", "a" * 2000]
JUNK += [[], {}, [[]], [None], {"": None}, ["round"], 1 << 40]


def header_of(descr="<f8", shape=(3,), *, order=False, version=(1, 0), text=None) -> bytes:
    """The beginning of an array in NumPy's format, with whatever it claims."""
    text = text or f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape!r}, }}"
    written = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(written)) + written


def archive(*members, compression=zipfile.ZIP_STORED) -> bytes:
    """An archive of ``(name, bytes)``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def of_array(content: bytes) -> bytes:
    return archive(("value.npy", content))


def with_field(content: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    """The archive with another field in each of its records of a kind."""
    changed, start = bytearray(content), content.find(signature)
    while start >= 0:
        changed[start + at : start + at + len(value)] = value
        start = content.find(signature, start + 4)
    return bytes(changed)


def bare(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def known_archives() -> dict[str, bytes]:
    """Archives that are none, each by the name of its attack."""
    good, three = encode({"value": np.zeros(3)}), np.zeros(3).tobytes()
    central, local = b"PK\x01\x02", b"PK\x03\x04"
    huge = struct.pack("<L", 0xFFFFFFF0)
    start = "{'descr': '<f8', 'fortran_order': False, 'shape': "
    nested = "(" * 3000 + ")" * 3000
    return {
        "nothing": b"",
        "no archive": b"no archive",
        "a pickle": b"\x80\x04K\x01.",
        "half of one": good[: len(good) // 2],
        "a bare array": bare(np.zeros(3)),
        "a bare array of objects": bare(np.array([{}], object)),
        "73 TiB": of_array(header_of(shape=(10**13,)) + three),
        "a product of sizes that overflows": of_array(header_of(shape=(2**32, 2**32)) + three),
        "a size of a thousand digits": of_array(header_of(text=f"{start}({'9' * 1000},), }}") + three),
        "a negative size": of_array(header_of(shape=(-3,)) + three),
        "a flag for a size": of_array(header_of(shape=(True,)) + three),
        "sizes without end": of_array(header_of(shape=(1,) * 2000) + three),
        "fewer bytes": of_array(header_of(shape=(4,)) + three),
        "more bytes": of_array(header_of(shape=(2,)) + three),
        "objects": of_array(header_of("|O") + three),
        "records": of_array(header_of([("a", "<f8")]) + three),
        "a record of a terabyte": of_array(header_of("|V1000000000000", ()) + three),
        "text of a terabyte": of_array(header_of("<U250000000000", ()) + three),
        "text of no size": of_array(header_of("<U0", (10**15,))),
        "dates": of_array(header_of("<M8[ns]") + three),
        "a number of three bytes": of_array(header_of("<f3", (8,)) + three),
        "a header of brackets": of_array(header_of(text=nested) + three),
        "a header of signs": of_array(header_of(text="-" * 9000 + "1") + three),
        "a header that is called": of_array(header_of(text="__import__('os').getpid()") + three),
        "a header of 4 GiB": of_array(header_of(version=(2, 0))[:8] + b"\xff" * 4 + three),
        "another version": of_array(header_of(version=(9, 9)) + three),
        "no header": of_array(b""),
        "compressed": archive(("value.npy", bare(np.zeros(10**6))), compression=zipfile.ZIP_DEFLATED),
        "encrypted": with_field(with_field(good, central, 8, b"\x01\0"), local, 6, b"\x01\0"),
        "larger than it is": with_field(with_field(good, central, 20, huge * 2), local, 18, huge * 2),
        "a size that is wrong": with_field(good, central, 24, struct.pack("<L", 10)),
        "an offset beyond it": with_field(good, central, 42, huge),
        "a method that nobody knows": with_field(good, central, 10, b"\x63\0"),
        "a version that nobody has": with_field(good, central, 6, b"\xff\xff"),
        "patched": with_field(with_field(good, central, 8, b"\x20\0"), local, 6, b"\x20\0"),
        "another checksum": with_field(good, central, 16, b"\1\2\3\4"),
        "one name twice": archive(("aaa.npy", bare(np.zeros(3))), ("bbb.npy", bare(np.zeros(3)))).replace(
            b"bbb", b"aaa"
        ),
        "a name and the same with its ending": archive(("a", bare(np.zeros(1))), ("a.npy", bare(np.zeros(1)))),
        "members that overlap": overlapping(2000),
        "a list without end": b"PK\x01\x02" * ((1 << 18) + 1) + good,
        "a name without end": archive(("n" * 60_000, bare(np.zeros(1)))),
    }


def overlapping(num: int) -> bytes:
    """An archive whose list names one member many times, under many names."""
    content = bare(np.zeros(10_000, np.uint8))
    whole = archive(("00000.npy", content))
    start, end = whole.find(b"PK\x01\x02"), whole.find(b"PK\x05\x06")
    entries = [whole[start:end].replace(b"00000", f"{number:05d}".encode()) for number in range(num)]
    size = sum(map(len, entries))
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, num, num, size, start, 0)
    return whole[:start] + b"".join(entries) + tail


def of_header(text: bytes) -> bytes:
    """A message with this text for a header."""
    return encode({"header": np.frombuffer(text, np.uint8), "body": np.zeros(0, np.uint8)})


def known_headers() -> dict[str, bytes]:
    """Messages whose headers are none."""
    deep = 100_000
    return {
        "a header of lists 1e5 deep": of_header(b"[" * deep + b"]" * deep),
        "a header of tables 1e5 deep": of_header(b'{"a":' * deep + b"1" + b"}" * deep),
        "values 100 deep": of_header(b'{"format": 1, "kind": ' + b"[" * 100 + b"]" * 100 + b"}"),
        "no table": of_header(b"[1]"),
        "no format": of_header(b"{}"),
        "a flag for a format": of_header(b'{"format": true}'),
        "no JSON": of_header(b"\xff\xfe{"),
        "a number of a million digits": of_header(b'{"format": ' + b"1" * 1_000_000 + b"}"),
        "32 MiB of header": of_header(b'{"format": 1, "kind": "' + b"a" * (1 << 25) + b'"}'),
        "no parts": encode({}),
        "another part": encode({"header": np.zeros(0, np.uint8), "body": np.zeros(0, np.uint8), "c": np.zeros(1)}),
        "decimals for a header": encode({"header": np.zeros(3), "body": np.zeros(0, np.uint8)}),
        "a matrix for a body": encode({"header": np.frombuffer(b'{"format":1}', np.uint8), "body": np.zeros((2, 2))}),
    }


class Mutations:
    """Endless mutations of good messages, the same for the same seed.

    Parameters
    ----------
    good
        Messages.
    seed
        Of the choices.
    """

    def __init__(self, good, seed: int) -> None:
        self.good, self.rng = list(good), np.random.default_rng(seed)
        self.kinds = [self.bits, self.cut, self.splice, self.doubled, self.array_header, self.zip_field, self.number]
        self.kinds += [self.value, self.value, self.value]
        self.applied: list[str] = []  # in the latest message

    def one(self) -> bytes:
        """A good message after one to three mutations."""
        content, self.applied = self.good[self.rng.integers(len(self.good))], []
        for _ in range(self.rng.integers(1, 4)):
            kind = self.kinds[self.rng.integers(len(self.kinds))]
            content = kind(content)
            self.applied.append(kind.__name__)
        return content

    def place(self, content: bytes, margin: int = 0) -> int:
        return int(self.rng.integers(max(1, len(content) - margin)))

    def bits(self, content: bytes) -> bytes:
        changed = bytearray(content or b"\0")
        for _ in range(self.rng.integers(1, 9)):
            changed[self.place(changed)] ^= 1 << int(self.rng.integers(8))
        return bytes(changed)

    def cut(self, content: bytes) -> bytes:
        first, last = sorted((self.place(content), self.place(content)))
        return content[:last] if self.rng.random() < 0.5 else content[:first] + content[last:]

    def splice(self, content: bytes) -> bytes:
        other = self.good[self.rng.integers(len(self.good))]
        return content[: self.place(content)] + other[self.place(other) :]

    def doubled(self, content: bytes) -> bytes:
        first, last = sorted((self.place(content), self.place(content)))
        return content[:last] + content[first:]

    def number(self, content: bytes) -> bytes:
        """A word of four bytes becomes one that is at a limit."""
        at, value = self.place(content, 4), (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)[self.rng.integers(5)]
        return content[:at] + struct.pack("<L", value) + content[at + 4 :]

    def _found(self, content: bytes, what: bytes) -> int:
        places, at = [], content.find(what)
        while at >= 0:
            places.append(at)
            at = content.find(what, at + 1)
        return places[self.rng.integers(len(places))] if places else -1

    def array_header(self, content: bytes) -> bytes:
        """Another text in the header of an array, of the same length or another."""
        at = self._found(content, b"\x93NUMPY")
        texts = [b"'|O'", b"(-1,)", b"(99999999999999,)", b"'<f4'", b"((((", b"True", b"'<U9'", b"(0, 9)", b"'shape'"]
        end = content.find(b"\n", at)
        if at < 0 or end < 0:
            return content
        where, text = at + int(self.rng.integers(6, end - at + 1)), texts[self.rng.integers(len(texts))]
        return content[:where] + text + content[where + len(text) * int(self.rng.integers(2)) :]

    def zip_field(self, content: bytes) -> bytes:
        """Another number in a record of the archive."""
        signature = (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")[self.rng.integers(3)]
        at = self._found(content, signature)
        if at < 0:
            return content
        where = at + int(self.rng.integers(4, 46))
        value = (b"\0\0", b"\xff\xff", b"\1\0", b"\x08\0", b"\xff\xff\xff\xff")[self.rng.integers(5)]
        return content[:where] + value + content[where + len(value) :]

    def value(self, content: bytes) -> bytes:
        """Another value, of another type, somewhere in the header; or none; the archive itself is sound."""
        try:
            message = unpack(content)
        except ValueError:
            return content
        header = json.loads(json.dumps(message.header))
        header.pop("format")
        self._edit(header)
        try:
            return pack(header, message.body)
        except ValueError:
            return content

    def _edit(self, value) -> None:
        """Changes one entry of a list or a table, or one below it."""
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            if isinstance(value, list):
                value.append(self._junk())
            return
        key = keys[self.rng.integers(len(keys))]
        below = value[key]
        if isinstance(below, dict | list) and self.rng.random() < 0.8:
            return self._edit(below)
        chance = self.rng.random()
        if chance < 0.2:
            del value[key]
        elif chance < 0.3 and isinstance(value, dict):
            value[str(self._junk())] = value.pop(key)
        elif chance < 0.4 and isinstance(value, list):
            value.append(below)
        else:
            value[key] = self._junk()
        return None

    def _junk(self):
        return JUNK[self.rng.integers(len(JUNK))]
