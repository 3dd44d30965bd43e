"""What the server of a run over real processes has been sent, byte for byte, and attacks on it."""

from pathlib import Path

import jax
import numpy as np

from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.mode import expansion
from fedbayes.network.fixed_point import FRACTION, cancelled, plus
from fedbayes.network.messages import Message, unpack
from fedbayes.numerics.gaussian import packed
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.wire import arrays_of

_RECORDING = '''

def _record():
    """Each answer as it has come, before anything has read it."""
    from itertools import count
    from pathlib import Path

    from fedbayes.flower.grid import GridTransport

    folder, numbers, send = Path({folder!r}), count(), GridTransport.send

    def recorded(self, requests, timeout):
        for address, answer in send(self, requests, timeout):
            if isinstance(answer, bytes):
                (folder / f"{{next(numbers):06d}}").write_bytes(answer)
            yield address, answer

    GridTransport.send = recorded


_record()
'''


def record(app: Path) -> Path:
    """Make the server of an app write down what it is sent, into the folder that is returned."""
    folder = app.parent / f"{app.name}-recorded"
    folder.mkdir()
    with (app / "hospitals" / "server.py").open("a") as file:
        file.write(_RECORDING.format(folder=str(folder)))
    return folder


def forget(folder: Path) -> None:
    """Delete the answers of earlier runs."""
    for path in folder.iterdir():
        path.unlink()


class Recording:
    """All answers of a run."""

    def __init__(self, folder: Path) -> None:
        self.bytes = [path.read_bytes() for path in sorted(folder.iterdir())]
        self.answers = [unpack(each) for each in self.bytes]
        self.numbers = [each for each in self.answers if each.header["kind"] in ("round", "after")]

    def of(self, site: str) -> list[Message]:
        """The answers of a site that hold numbers."""
        return [each for each in self.numbers if each.header["site"] == site]


def numbers_in(answer: Message) -> np.ndarray:
    """The numbers of an answer; of a hidden one those that its bits would be."""
    told = arrays_of(answer.body)
    if "masked" in told:
        lower, upper = told["masked"].T
        value = (upper << np.uint64(16)).view(np.int64) >> np.int64(16)  # without the bits that count
        return (value * 2.0**64 + lower) * 2.0**-FRACTION
    return np.concatenate([np.ravel(told[name]) for name in told if name.startswith("total")])


def expansions(model, clients) -> dict[str, np.ndarray]:
    """The Gaussian summary of each site where a fit begins, which its first answer in a search for the mode holds."""
    with jax.enable_x64(True):
        problem = make_problem(model, clients)
        start = cold_start(problem.roster.size)
        found = {name: packed(expansion(problem.client(name), start, np.zeros(0), 64)[0].site) for name in clients}
    return {name: np.concatenate([site.shift, site.precision]) for name, site in found.items()}


def seen_in(numbers: np.ndarray, wanted: np.ndarray) -> float:
    """How many of the wanted numbers are among these, to six digits, as a fraction."""
    order = np.sort(numbers[np.isfinite(numbers)])
    at = np.searchsorted(order, wanted)
    near = np.stack([order[np.clip(at + shift, 0, len(order) - 1)] for shift in (-1, 0)])
    return float(np.mean(np.min(np.abs(near - wanted), axis=0) <= 1e-6 * np.abs(wanted)))


def assert_nothing_of_a_site(recording: Recording, clients, summaries: dict[str, np.ndarray]) -> None:
    """What a server that keeps all it is sent could try, and what it finds: codes, and uniform bits.

    - Every answer with numbers is a hidden term.
    - No summary of a site is in its answers, nor any number of its rows in any bytes.
    - No mask was used twice: no 128 bits are there twice, as those of a nought would be.
    - The bits are even, at each of the 128 places, to 6.5 standard errors, so that 128 even places fail once in 1e8.
    - The terms of all sites together are sums: so it is the masks, and not other numbers, that hide them.
    """
    assert recording.numbers
    assert all(set(arrays_of(each.body)) == {"masked", "code"} for each in recording.numbers)
    for name, summary in summaries.items():
        assert all(seen_in(numbers_in(each), summary) == 0.0 for each in recording.of(name))
    sent = b"".join(recording.bytes)
    for client in clients.values():
        values = np.unique(client["x"])
        assert [value for value in values[values != np.round(values, 2)] if value.tobytes() in sent] == []
    words = np.concatenate([arrays_of(each.body)["masked"] for each in recording.numbers])
    assert len(np.unique(words, axis=0)) == len(words)
    ones = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1).mean(axis=0)
    assert np.max(np.abs(ones - 0.5)) < 6.5 * 0.5 / np.sqrt(len(words))
    for terms in zip(*(recording.of(name) for name in clients), strict=True):
        first, second, third = (arrays_of(each.body)["masked"] for each in terms)
        assert cancelled(plus(plus(first, second), third), 3)
