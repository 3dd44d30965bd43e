"""What becomes of a million mutated answers at the server: ``python benchmarks/hostile.py``.

The messages, their mutations and the places where they are read are those of tests/fedbayes/network/test_hostile.py,
which reads 100,000. Writes ``HOSTILE.md``: how many there were of each mutation, and how many were let in; exceptions;
the memory that they took.
"""

import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import pytest
import typer
from pages import machine, table, wrapped
from rich.console import Console

import fedbayes as fb

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests" / "fedbayes"
sys.path[:0] = [str(TESTS / "network"), str(TESTS)]  # the tests, and their helpers

from attacks import Mutations  # noqa: E402
from conftest import Federation  # noqa: E402
from test_hostile import Server, distinct, is_let_in, resident  # noqa: E402

SEED = 2  # the tests have others
WORDS = {
    "bits": "up to eight bits turned",
    "cut": "a part left out",
    "splice": "the end of another message",
    "doubled": "a part twice",
    "array_header": "another text in the header of an array",
    "zip_field": "another number in a record of the archive",
    "number": "four bytes that are a number at a limit",
    "value": "another value, of another type, in the header, or none",
}


class Read(NamedTuple):
    """What became of mutated messages.

    Attributes
    ----------
    tried, let_in
        Messages by their mutations, of which one has up to three, and how many of these were taken for an answer.
    messages, taken, exceptions
        In all.
    memory
        Bytes by which the process's peak has risen.
    seconds
        It took.
    """

    tried: Counter[str]
    let_in: Counter[str]
    messages: int
    taken: int
    exceptions: int
    memory: int
    seconds: float


def read(server: Any, num: int) -> Read:
    """Have a server read so many."""
    mutations = Mutations(distinct(server.network.answers), SEED)
    tried, let_in, taken, exceptions = Counter[str](), Counter[str](), 0, 0
    before, begin = resident(), time.perf_counter()
    for _ in range(num):
        content = mutations.one()
        try:
            accepted = is_let_in(server, content)
        except Exception:
            traceback.print_exc()
            accepted, exceptions = False, exceptions + 1
        kinds = set(mutations.applied)
        tried.update(kinds)
        let_in.update(kinds if accepted else ())
        taken += accepted
    return Read(tried, let_in, num, taken, exceptions, resident() - before, time.perf_counter() - begin)


def page(found: Read) -> str:
    """The page."""
    rows = [(words, f"{found.tried[kind]:,}", f"{found.let_in[kind]:,}") for kind, words in WORDS.items()]
    return "\n".join(
        [
            "# Answers that mean harm\n",
            wrapped(
                f"""{found.messages:,} mutated answers of three sites, read wherever a server reads one: its first
                message, an answer to a round, and a term of a secure sum. {found.taken:,} were let in, whose changes
                mean nothing or make other numbers, which a site may send as it likes;
                {found.messages - found.taken - found.exceptions:,} were refused, and {found.exceptions} raised an
                exception. The process's peak of memory rose by {found.memory / 1e6:,.0f} MB, and it took
                {found.seconds:,.0f} s."""
            ),
            *table(("mutation, one to three of them in a message", "messages", "let in"), rows, right_from=1),
            f"Measured on {machine().rstrip('.')}.\n",
        ]
    )


def main(
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "HOSTILE.md",
    messages: Annotated[int, typer.Option(help="How many.")] = 1_000_000,
    quick: Annotated[bool, typer.Option(help="Try that everything runs, and write nothing.")] = False,
) -> None:
    """Read mutated answers, and write the page."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        method = fb.EP(solver="laplace", num_replicates=1, tolerance=1e-7)
        found = read(Server(Federation(Path(folder), method), patch), 1000 if quick else messages)
    if quick:
        Console(stderr=True).print(page(found))
        return
    output.write_text(page(found))


if __name__ == "__main__":
    typer.run(main)
