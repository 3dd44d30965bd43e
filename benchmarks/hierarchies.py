"""Programs with latents of each client: what do they cost, against pooled NUTS, and is what they say right?

    python benchmarks/hierarchies.py                                  # what has no result yet, with both cores free
    python benchmarks/hierarchies.py --only logistic                  # anew
    python benchmarks/hierarchies.py --label after --rows             # memory with many rows, anew
    python benchmarks/hierarchies.py --table                          # HIERARCHIES.md from what is stored

Each fit and each NUTS runs in a fresh process, which compiles everything, with a time limit; one after the other.
Results go to ``hierarchies.json`` after each, by label, so that the page has a change's before and after.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import jax
import pages
import typer
from examples.pooled import nuts
from examples.processes import digest, fresh
from hierarchies_programs import HIERARCHIES, rows
from hierarchies_programs.page import BOTH, LABELS, of_nuts_under, page, ratios
from hierarchies_programs.timed import fit_twice, rows_of_all
from rich.console import Console

SCRIPT, SECONDS = Path(__file__), 300.0
STORED = SCRIPT.with_suffix(".json")
_REFERENCE = 120.0  # seconds after which NUTS makes no more draws for a better reference

_MANY_ROWS = 1800.0  # seconds for a fit with many rows


def markdown(results: dict[str, Any]) -> str:
    """The page, from what is stored."""
    parts = [page(results["programs"], HIERARCHIES, SECONDS), *rows.section(results["rows"])]
    return "\n".join(parts)


def measured(name: str, before: dict[str, Any], label: str, again: bool, reference: bool) -> dict[str, Any]:
    """What is stored, with a fit of this label, and with NUTS where that is missing or of another program."""
    nuts = of_nuts_under(label)
    example, found = HIERARCHIES[name], {nuts: {}, **before}
    known = digest(example)
    if reference or found[nuts].get("digest") != known:
        found[nuts] = {**fresh(SCRIPT, "nuts", name, SECONDS, cold=True), "digest": known}
    if again or found.get(label, {}).get("digest") != known:
        machine = pages.machine(alone=label == BOTH)
        found[label] = {**fresh(SCRIPT, "fit", name, 2 * SECONDS + 60), "digest": known, "machine": machine}
    if found == {nuts: {}, **before}:
        return before
    num_locals = found[nuts]["latents"] - len(found[nuts]["labels"]) if "latents" in found[nuts] else None
    of_all = {"rows": rows_of_all(example), "locals": found[label].get("locals", num_locals)}
    return {**found, **of_all}


def _child(part: str, name: str, output: Path) -> None:
    if part == "rows":
        output.write_text(json.dumps(rows.measure(int(name))))
        return
    example = HIERARCHIES[name]
    if part == "fit":
        fit_twice(example, output, SECONDS)
        return
    jax.config.update("jax_enable_x64", True)
    output.write_text(json.dumps(nuts(example, _REFERENCE, twice=True)))


def main(
    only: Annotated[list[str], typer.Option(help="Programs to run anew, or with --rows numbers of rows.")] = [],  # noqa: B006
    label: Annotated[str, typer.Option(help=f"Of the results, one of {LABELS}.")] = LABELS[-1],
    again: Annotated[bool, typer.Option("--again", help="Run all fits of this label anew.")] = False,
    reference: Annotated[bool, typer.Option("--reference", help="Run NUTS anew, too.")] = False,
    many_rows: Annotated[bool, typer.Option("--rows", help="Measure memory with many rows alone.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(hidden=True)] = SECONDS,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the programs, store the results after each, write the page."""
    if part:
        _child(part, only[0], output)
        return
    if label not in LABELS:
        raise typer.BadParameter(f"{label}: the labels are {LABELS}")
    results = json.loads(STORED.read_text()) if STORED.exists() else {"programs": {}, "rows": {}}
    if many_rows:
        _run_rows(results, label, only or [str(size) for size in rows.SIZES])
    elif unknown := [name for name in only if name not in HIERARCHIES]:
        raise typer.BadParameter(f"{unknown}: the programs are {list(HIERARCHIES)}")
    elif not table:
        _run(results, only or list(HIERARCHIES), label, again or bool(only), reference)
    SCRIPT.with_name("HIERARCHIES.md").write_text(markdown(results))


def _run(results: dict[str, Any], names: list[str], label: str, again: bool, reference: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for name in names:
        before = results["programs"].get(name, {})
        found = measured(name, before, label, again, reference)
        if found == before:
            continue
        programs = {**results["programs"], name: found}
        results["programs"] = {each: programs[each] for each in HIERARCHIES if each in programs}
        STORED.write_text(json.dumps(results, indent=1) + "\n")
        console.print(
            name, found[label].get("slow"), ratios(found[label], found[of_nuts_under(label)], label), markup=False
        )


def _run_rows(results: dict[str, Any], label: str, sizes: list[str]) -> None:
    for size in sizes:
        results["rows"].setdefault(label, {})[size] = fresh(SCRIPT, "rows", size, _MANY_ROWS, cold=True)
        STORED.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
