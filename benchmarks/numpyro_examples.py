"""NumPyro's own example programs, said anew for one client's data: what does a fit with defaults make of them?

    python benchmarks/numpyro_examples.py                   # what has no stored result yet; an hour for all
    python benchmarks/numpyro_examples.py --only gp --only ode          # these anew
    python benchmarks/numpyro_examples.py --again                       # all fits anew, against the stored NUTS
    python benchmarks/numpyro_examples.py --only gp --reference         # NUTS anew as well
    python benchmarks/numpyro_examples.py --only gp --missing           # NUTS for it, if its fit is there
    python benchmarks/numpyro_examples.py --fits                        # without NUTS, which a later call adds
    python benchmarks/numpyro_examples.py --table                       # NUMPYRO_EXAMPLES.md from what is stored

Each fit and each NUTS runs in a fresh process with a time limit; results go to ``numpyro_examples.json`` after each.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import pages
import typer
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
STORED, PAGE = FOLDER / "numpyro_examples.json", FOLDER / "NUMPYRO_EXAMPLES.md"
SECONDS = 180.0  # a fit, or NUTS, that takes longer is too slow
_COLUMNS = ("program", "NumPyro's", "clients", "globals", "outcome", "mean, sds", "sd ratio", "rounds", "s", "NUTS")

_HEAD = """\
# NumPyro's example programs

Written by `numpyro_examples.py`: the programs of NumPyro's `examples/` and some of its tutorials, said anew for one
client's data, fitted by `fedbayes.fit_federated` with its defaults, and compared with NUTS on everybody's data.

{number} programs. {summary}.

- *agrees*: every mean of the unconstrained globals is within 0.1 of NUTS's, in its posterior sds, and every sd within
  10 percent, beside three Monte Carlo standard errors of NUTS.
- *refused*: a `ClientDataError` or `ModelError` before work starts. *gives up*: a `FederatedError` in a round. *RAW*:
  any other error, with the last line of the library that it came through.
- *says not converged*: the fit warns.
- *WRONG*: the fit says that it has converged, and is further off than that; *with a remark*: `repr(fit)` adds that it
  is not to be trusted.
- *no reference*: NUTS has not run, or not in time; the next call of the script runs it where it has not. *too slow*:
  the fit took more than 180 seconds, on cores that other work kept busy at the same time.
- *NUTS does not mix*: its four chains differ (R-hat above 1.05), so that there is nothing to compare with.

*mean* and *sd ratio* are the worst of all globals, which are named. *s* is a first fit with compilation, in a fresh
process. *NUTS*: the largest Monte Carlo errors of its means, in sds, and of its sds, relative; its seconds with
compilation.

{machine}
"""


def child(part: str, name: str, output: Path, seconds: float) -> None:
    """One fit, or one NUTS, in this process; the result as JSON."""
    import jax
    from examples import EXAMPLES

    example = EXAMPLES[name]
    if part == "fit":
        from examples.measure import fit

        result = fit(example)
    else:
        from examples.pooled import nuts

        jax.config.update("jax_enable_x64", True)
        result = nuts(example, 0.8 * seconds)
    output.write_text(json.dumps(result))


def row(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table, with what is shown in each column."""
    from examples import EXAMPLES
    from examples.measure import compared
    from examples.processes import of_nuts

    example, fit, nuts = EXAMPLES[name], result["fit"], result["nuts"]
    found = compared(fit, nuts)
    outcome, error = found["outcome"], fit.get("error")
    if error:
        outcome += f": {error['class']}: {error['message']}"
        outcome += f" ({error['where']})" if error["kind"] == "RAW" else ""
    elif not fit.get("converged", True):
        outcome += f": {fit['trouble']}"
    clients = example.clients()
    cells = {
        "program": name,
        "NumPyro's": example.source,
        "clients": str(len(clients)),
        "globals": str(len(fit["mean"])) if "mean" in fit else "",
        "outcome": outcome,
        "mean, sds": f"{found['mean_error']:.2f} ({found['mean_at']})" if "mean_error" in found else "",
        "sd ratio": f"{found['sd_ratio']:.2f} ({found['sd_at']})" if "sd_ratio" in found else "",
        "rounds": str(fit.get("rounds", "")),
        "s": f"{fit['seconds']:.0f}" if "seconds" in fit else "",
        "NUTS": of_nuts(nuts),
    }
    return {"verdict": found["outcome"], "numbers": found, "cells": cells, "note": example.note}


def page(rows: list[dict[str, Any]], machine: str) -> str:
    """``NUMPYRO_EXAMPLES.md``."""
    counts = Counter(each["verdict"] for each in rows)
    summary = ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
    head = _HEAD.format(number=len(rows), summary=summary, machine=machine)
    cells = [[each["cells"][column].replace("|", "\\|") for column in _COLUMNS] for each in rows]
    notes = [f"- {each['cells']['program']}: {each['note']}." for each in rows if each["note"]]
    return "\n".join(
        [
            head,
            *pages.table(_COLUMNS, cells),
            "What differs from NumPyro's programs beside the clients:",
            "",
            *notes,
            "",
        ]
    )


def shown(rows: list[dict[str, Any]]) -> Table:
    """The table for the terminal."""
    found = Table()
    for column in _COLUMNS:
        found.add_column(column, overflow="fold")
    for each in rows:
        found.add_row(*(each["cells"][column] for column in _COLUMNS))
    return found


def machine() -> str:
    """The machine, as far as it matters."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpyro", "funsor"))
    return f"{os.cpu_count()} cores shared with other work, Python {platform.python_version()}, {packages}, float64."


def main(
    only: Annotated[list[str], typer.Option(help="Programs to run anew.")] = [],  # noqa: B006
    again: Annotated[bool, typer.Option("--again", help="Run all fits anew.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Of the chosen ones only what has no result.")] = False,
    fits: Annotated[bool, typer.Option("--fits", help="Run no NUTS.")] = False,
    reference: Annotated[bool, typer.Option("--reference", help="Run NUTS anew, too.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(help="Limit of a fit, and of NUTS.")] = SECONDS,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the programs, store the results after each, print the table."""
    if part:
        child(part, only[0], output, seconds)
        return
    from examples import EXAMPLES
    from examples.processes import measured

    if unknown := [name for name in only if name not in EXAMPLES]:
        raise typer.BadParameter(f"{unknown}: the programs are {list(EXAMPLES)}")
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    console = Console()
    for name in () if table else only or EXAMPLES:
        before = results.get(name, {})
        anew = again or (bool(only) and not missing)
        results[name] = measured(EXAMPLES[name], before, Path(__file__), anew, fits, reference, seconds)
        if results[name] == before:
            continue
        results = {name: results[name] for name in EXAMPLES if name in results}
        STORED.write_text(json.dumps(results, indent=1) + "\n")
        console.print(" | ".join(cell for cell in row(name, results[name])["cells"].values() if cell))
    rows = [row(name, results[name]) for name in EXAMPLES if name in results]
    PAGE.write_text(page(rows, machine()))
    console.print(shown(rows))


if __name__ == "__main__":
    typer.run(main)
