"""How much optimisation is a program worth? ``python benchmarks/effort.py``; writes ``EFFORT.md``.

An update that a whole fit calls for few rows is compiled without optimisation (``fedbayes.runtime.compiling``). Here
each update of a few hierarchies is compiled with and without it and run on the arguments of its first call.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import typer
from hierarchies_programs import HIERARCHIES
from pages import machine, table, wrapped

import fedbayes as fb
from fedbayes.rounds.executors import Batched
from fedbayes.runtime import compiling
from fedbayes.runtime.compiling import Compiled, jit_cheaply, jit_quickly

HERE = Path(__file__).parent
NAMES = ("eight schools", "meta-analysis", "logistic", "radon 17", "negative binomial", "variances")
COLUMNS = (
    "program",
    "update",
    "calls",
    "evaluations, millions",
    "optimised",
    "compile, CPU s",
    "a call, CPU ms",
    "saved, CPU s",
)


class Called(NamedTuple):
    """An update, as a fit has called it.

    Attributes
    ----------
    update
        Its name.
    function, arguments
        The program, not yet compiled, and the arguments of its first call.
    evaluations
        By all calls of a fit, as they are foretold.
    """

    update: str
    function: Callable
    arguments: tuple
    evaluations: float


class Cost(NamedTuple):
    """CPU seconds to compile a program, and of a call."""

    compile: float
    call: float


@contextmanager
def recorded(found: dict[int, Called], calls: list[int]) -> Iterator[None]:
    """Note the first call of each update, and every call, within."""
    program, call, updates = Batched._program, Compiled.__call__, {}

    def of_update(self: Batched, phase: int | None, name: str) -> Compiled:
        made = program(self, phase, name)
        updates[id(made)] = phase, name, self._programs
        return made

    def noted(self: Compiled, *arguments: Any) -> Any:
        if id(self) in updates:
            calls.append(id(self))
            if id(self) not in found:
                phase, name, programs = updates[id(self)]
                evaluations = programs.evaluations(phase, name, arguments[0], arguments[3])
                found[id(self)] = Called(name, self._jitted.__wrapped__, arguments, evaluations)
        return call(self, *arguments)

    Batched._program, Compiled.__call__ = of_update, noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Batched._program, Compiled.__call__ = program, call  # type: ignore[method-assign]


def cost(jit: Callable[[Callable], Any], called: Called) -> Cost:
    """Of an update; the fastest of three calls."""
    jax.clear_caches()  # the fit has compiled one of the two
    lowered, seconds = jit(called.function).lower(*called.arguments), []
    begun = time.process_time()
    compiled = lowered.compile()
    taken = time.process_time() - begun
    for _ in range(4):  # the first one loads what it needs
        begun = time.process_time()
        jax.block_until_ready(compiled(*called.arguments))
        seconds.append(time.process_time() - begun)
    return Cost(taken, min(seconds[1:]))


def rows(name: str) -> list[list[str]]:
    """The updates of a fit."""
    example, found, calls = HIERARCHIES[name], {}, []
    with recorded(found, calls), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fb.fit_federated(example.model, example.clients(), key=jax.random.key(0), progress=False)
        assert fit.idata is not None
    rows = []
    for place, called in found.items():
        much, little = cost(jit_quickly, called), cost(jit_cheaply, called)
        rows.append(
            [
                name,
                f"`{called.update}`",
                str(calls.count(place)),
                f"{called.evaluations / 1e6:,.2f}",
                "yes" if called.evaluations > compiling._FEW else "no",
                f"{much.compile:.1f} or {little.compile:.1f}",
                f"{1e3 * much.call:.1f} or {1e3 * little.call:.1f}",
                f"{much.compile - little.compile - calls.count(place) * (little.call - much.call):+.1f}",
            ]
        )
    return rows


def main(only: Annotated[list[str], typer.Option(help="Programs of hierarchies.py.")] = list(NAMES)) -> None:  # noqa: B006
    """Compile and run the updates of these programs, and write the page."""
    jax.config.update("jax_enable_x64", True)
    found = [row for name in only for row in rows(name)]
    opening = f"""
        Written by `effort.py`: updates of a first fit with its check, for programs of [HIERARCHIES.md](HIERARCHIES.md),
        each compiled with and without LLVM's optimisation ("a or b") and run on the arguments of its first call.
        *Evaluations* of a row's log density by all calls of a fit are foretold from shapes before it is compiled; up to
        {compiling._FEW / 1e6:.0f} million it is not optimised. *Saved* is what a fit saves, or loses, without
        optimisation: the compilation less what all calls take longer. {machine()}"""
    page = ["# How much optimisation is a program worth?\n", wrapped(opening), *table(COLUMNS, found)]
    (HERE / "EFFORT.md").write_text("\n".join(page))


if __name__ == "__main__":
    typer.run(main)
