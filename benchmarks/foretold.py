"""How long fits say that they will take, and how long they take.

    python benchmarks/foretold.py                  # all programs; writes FORETOLD.md
    python benchmarks/foretold.py walk slopes      # some of them; prints what would stand there

Each program is fitted twice in one process, with two keys. The second fit compiles nothing: its clock is compared with
what its forecast says after each round (`fedbayes/rounds/forecast.py`), whether or not a user would be told.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import pages
import typer
from hierarchies_programs import HIERARCHIES, rows

import fedbayes as fb
from fedbayes.correction import foretold as making
from fedbayes.rounds.forecast import Forecast, Part

PAGE = Path(__file__).with_name("FORETOLD.md")
COLUMNS = ("program", "method", "after", "said, s", "took, s", "ratio", "of it the check: said, s", "took, s", "ratio")
FLAT = 20_000  # rows of each of three clients


class Program(NamedTuple):
    """A model, its clients' data, and a method."""

    model: Callable[..., Any]
    clients: Callable[[], Any]
    method: Any = "ep"


class Said(NamedTuple):
    """After a round: which one, when, and what is left by the forecast."""

    after: str
    at: float
    left: list[Part]


class Heard(Forecast):
    """A forecast that keeps all that it says."""

    said: list[Said]

    def after_round(self, current: Any, waited: float, progress: Any) -> None:
        """See :class:`Forecast`."""
        found = self.left(current, max(0.0, float(current.history[-1]["seconds"]) - waited))
        name = self._programs.phases[current.phase].algorithm.name
        self.said.append(Said(f"{name}, round {current.rounds_in_phase}", time.perf_counter(), found))


def _of(name: str, **options: Any) -> Program:
    example = HIERARCHIES[name]
    return Program(example.model, example.clients, **options)


PROGRAMS = {
    "20,000 rows": Program(rows.logistic, partial(rows.clients, FLAT)),
    "logistic": _of("logistic"),
    "negative binomial": _of("negative binomial"),
    "slopes": _of("slopes"),
    "walk, Laplace": _of("walk", method="laplace"),
}


def measure(program: Program) -> tuple[list[Said], float]:
    """What the second fit says, and when it ends."""
    data = program.clients()
    for seed in (0, 1):
        Heard.said = []
        fb.fit_federated(program.model, data, method=program.method, key=jax.random.key(seed), progress=False)
    return Heard.said, time.perf_counter()


def lines(name: str, program: Program) -> list[list[str]]:
    """Rows of the table: after the first round, and after the first two of the last phase."""
    said, end = measure(program)
    last = said[-1]
    of_last = [i for i, each in enumerate(said) if each.after.split()[0] == last.after.split()[0]]
    found = []
    for i in sorted({0, *of_last[:2]}):
        of_check = [part.seconds for part in said[i].left if part.of_check]
        method = program.method if isinstance(program.method, str) else repr(program.method)
        total = sum(part.seconds for part in said[i].left)
        cells = [name, method, said[i].after, *_compared(total, end - said[i].at)]
        found.append([*cells, *(_compared(of_check[0], end - last.at) if of_check else ["", "", ""])])
    return found


def _compared(said: float, took: float) -> list[str]:
    return [f"{said:.1f}", f"{took:.1f}", f"{said / took:.2f}"]


def _range(found: list[list[str]], column: int) -> str:
    ratios = [row[column] for row in found if row[column]]
    return f"{min(ratios, key=float)} to {max(ratios, key=float)}"


def main(names: Annotated[list[str], typer.Argument(help="Programs.")] = []) -> None:  # noqa: B006
    """Fit the programs, and write the page if it was all of them."""
    making.Forecast = Heard  # type: ignore[misc]
    found: list[list[str]] = []
    for name in names or PROGRAMS:
        found += lines(name, PROGRAMS[name])
        print(name, flush=True)
    words = f"""Written by `foretold.py`. What a fit says of its time after a round, whether or not it is long enough
for a user to be told, and what it took from there on, the check included, in a process that had compiled all its
programs. The ratios are {_range(found, 5)}, and those of the check alone {_range(found, 8)}. {pages.machine()}"""
    page = "\n".join(["# How long a fit says that it will take\n", pages.wrapped(words), *pages.table(COLUMNS, found)])
    print(page)
    if not names:
        PAGE.write_text(page)


if __name__ == "__main__":
    typer.run(main)
