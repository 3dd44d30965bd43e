"""Measure fedbayes against its rivals: ``python benchmarks/run.py --set heart --rival pooled-nuts``.

Writes ``results.json``, into which later runs of other sets or rivals are merged, and ``RESULTS.md`` from it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import pages
import rivals
import typer
from federated import Federation, first_fit
from pages import machine
from problems import SETS, BenchmarkSet
from references import Reference, read
from rich.console import Console
from rich.table import Table
from scores import kl, score

import fedbayes

FOLDER = Path(__file__).parent
_FURTHEST = 10.0  # factor in KL beyond what was measured up to which a sampler's time is extrapolated
RIVALS = ("pooled-nuts", "consensus", "naive-ep")
_COLUMNS = {
    "method": "method",
    "rms": "rms error, sds",
    "sd_ratios": "sd ratios",
    "kl": "KL",
    "seconds": "s",
    "first_seconds": "s, first call",
    "seconds_at_kl": "s to EP's KL",
    "bytes": "bytes down / up",
    "note": "",
}


def federated_row(
    problem: BenchmarkSet, reference: Reference, name: str, method: Any
) -> tuple[dict[str, Any], Federation]:
    """A fit by fedbayes: as a user calls it, then with the compiled programs kept: the quickest of up to three."""
    key = jax.random.key(0)
    first, _ = first_fit(problem, key, method)
    federation = Federation(problem, method)
    federation.run(key)
    runs = [federation.run(key)]
    while len(runs) < 3 and runs[-1][-1].seconds < 5.0:
        runs.append(federation.run(key))
    steps = min(runs, key=lambda run: run[-1].seconds)
    path = [{"seconds": step.seconds, "kl": kl(step.moments, reference.moments)} for step in steps]
    row = {
        "method": name,
        **score(steps[-1].moments, reference.moments)._asdict(),
        "seconds": steps[-1].seconds,
        "first_seconds": first,
        "bytes": list(federation.executor.num_bytes()),
        "note": f"{federation.rounds()}; {federation.solvers()}",
        "path": path,
    }
    return row, federation


def rival_row(name: str, trial: rivals.Trial, reference: Reference) -> dict[str, Any]:
    """A rival's numbers, its path thinned to what a table can show."""
    row: dict[str, Any] = {
        "method": name,
        "seconds": trial.seconds,
        "first_seconds": trial.seconds + trial.compile_seconds,
        "note": trial.note,
        "path": [{"seconds": step.seconds, "kl": kl(step.moments, reference.moments)} for step in trial.steps],
    }
    if trial.steps:
        row |= score(trial.steps[-1].moments, reference.moments)._asdict()
    return row


def seconds_to(path: Sequence[Mapping[str, float]], target: float) -> float:
    """Seconds after which the KL is below the target for good; infinite if it never is."""
    reached = math.inf
    for step in reversed(path):
        if step["kl"] > target:
            break
        reached = step["seconds"]
    return reached


def extrapolated_seconds(path: Sequence[Mapping[str, float]], target: float) -> float:
    """Seconds a sampler needs to get there if its KL goes on falling as one over the number of draws."""
    measured = seconds_to(path, target)
    if math.isfinite(measured):
        return measured
    return path[-1]["seconds"] * path[-1]["kl"] / target


def measure(name: str, chosen: Sequence[str], seconds: float, quick: bool) -> dict[str, Any]:
    """All numbers of one set."""
    problem, reference = SETS[name](), read(name)
    row, federation = federated_row(problem, reference, "EP", fedbayes.EP())
    lean = fedbayes.EP(num_samples=64, num_replicates=1, solver="importance")
    others = {"EP, 64 draws, 1 replicate": lean, "Laplace": fedbayes.Laplace()}
    rows = [row, *(federated_row(problem, reference, name, method)[0] for name, method in others.items())]
    if "pooled-nuts" in chosen:
        rows.append(rival_row("pooled NUTS", rivals.pooled_nuts(problem, seconds), reference))
    if "consensus" in chosen:
        trial = rivals.consensus_draws(federation.problem, 4 if quick else 64)
        rows.append(rival_row("consensus", trial, reference))
    if "naive-ep" in chosen:
        trial = rivals.naive_ep(federation.problem, federation.cavities(), 4 if quick else 64)
        rows.append(rival_row("naive EP", trial, reference))
    return {
        "clients": len(problem.clients),
        "rows": len(problem.pooled_data["y"]),
        "globals": len(reference.moments.mean),
        "reference": reference.method,
        "reference_own_kl": reference.own_kl,
        "methods": {row["method"]: row for row in rows},
    }


def ratios(methods: Mapping[str, Any]) -> list[str]:
    """What the issue asks for, in words."""
    ep, lines = methods["EP"], []
    if "pooled NUTS" in methods:
        nuts = methods["pooled NUTS"]
        target = max(ep["kl"], nuts["path"][-1]["kl"] / _FURTHEST)
        at_ep, mine = extrapolated_seconds(nuts["path"], target), seconds_to(ep["path"], target)
        compiled = nuts["first_seconds"] - nuts["seconds"]
        lines.append(
            f"pooled NUTS needs {at_ep / mine:,.0f} times as long as EP for a KL of {target:.2g}, "
            f"{(at_ep + compiled) / ep['first_seconds']:,.1f} times with compilation (all of EP, to {ep['kl']:.2g}); "
            f"{'measured' if math.isfinite(seconds_to(nuts['path'], target)) else 'extrapolated as 1 / draws'}"
        )
        best = min(nuts["path"], key=lambda step: step["kl"])
        start = nuts["path"][0]
        for what, step in (("after its first draws", start), ("at its best", best)):
            mine = seconds_to(ep["path"], step["kl"])
            if math.isfinite(mine):
                lines.append(
                    f"{what}, KL {step['kl']:.2g} in {step['seconds']:.2f} s, pooled NUTS has taken "
                    f"{step['seconds'] / mine:,.0f} times as long as EP to the same KL ({mine:.3f} s)"
                )
    if "naive EP" in methods:
        naive = methods["naive EP"]
        lines.append(
            f"naive EP takes {naive['seconds'] / ep['seconds']:,.0f} times as long after compilation, "
            f"{naive['first_seconds'] / ep['first_seconds']:,.0f} times with it"
        )
        if naive["path"]:
            best = min(naive["path"], key=lambda step: step["kl"])
            mine = seconds_to(ep["path"], best["kl"])
            lines.append(
                f"to naive EP's best KL of {best['kl']:.2g}, naive EP has taken {best['seconds'] / mine:,.0f} times as "
                f"long as EP ({mine:.3f} s); the noise of its draws keeps it there, above EP's {ep['kl']:.2g}"
            )
    return lines


def _cells(row: Mapping[str, Any], ep: Mapping[str, Any]) -> dict[str, str]:
    cells = {"method": row["method"], "note": row["note"]}
    if "kl" in row:
        cells |= {
            "rms": f"{row['rms']:.2g}",
            "sd_ratios": f"{row['least_sd_ratio']:.3f} - {row['largest_sd_ratio']:.3f}",
            "kl": f"{row['kl']:.2g}",
        }
        measured = seconds_to(row["path"], ep["kl"])
        if math.isfinite(measured):
            cells["seconds_at_kl"] = f"{measured:.2f}"
        elif row["method"] == "pooled NUTS":
            seconds = extrapolated_seconds(row["path"], max(ep["kl"], row["path"][-1]["kl"] / _FURTHEST))
            cells["seconds_at_kl"] = f"{'~' if _FURTHEST * ep['kl'] > row['path'][-1]['kl'] else '>'} {seconds:,.0f}"
    cells |= {name: f"{row[name]:,.2f}" for name in ("seconds", "first_seconds")}
    if "bytes" in row:
        cells["bytes"] = " / ".join(f"{number:,}" for number in row["bytes"])
    return cells


def table(name: str, result: Mapping[str, Any]) -> Table:
    """One set for the terminal."""
    shown = Table(title=f"{name}: {result['clients']} clients, {result['rows']:,} rows, {result['globals']} globals")
    for column in _COLUMNS.values():
        shown.add_column(column, justify="left" if column in ("method", "") else "right")
    for row in result["methods"].values():
        cells = _cells(row, result["methods"]["EP"])
        shown.add_row(*(cells.get(column, "-") for column in _COLUMNS))
    return shown


def markdown(results: Mapping[str, Any]) -> str:
    """``RESULTS.md``."""
    lines = ["# Results", "", "Written by `run.py`; `README.md` says what is compared and how.", ""]
    for name, result in results.items():
        lines += [
            f"## {name}",
            "",
            f"{result['clients']} clients, {result['rows']:,} rows, {result['globals']} globals. "
            f"Reference: {result['reference']}; its own KL about {result['reference_own_kl']:.1g}. {result['machine']}",
            "",
        ]
        cells = [_cells(row, result["methods"]["EP"]) for row in result["methods"].values()]
        lines += pages.table(tuple(_COLUMNS.values()), [[row.get(name, "-") for name in _COLUMNS] for row in cells])
        lines += [*(f"- {line}" for line in ratios(result["methods"])), ""]
    return "\n".join(lines)


def main(
    sets: Annotated[list[str], typer.Option("--set", help="Sets to measure; all if left out.")] = list(SETS),  # noqa: B006
    rival: Annotated[list[str], typer.Option(help="Rivals to measure; all if left out.")] = list(RIVALS),  # noqa: B006
    seconds: Annotated[float, typer.Option(help="Draws of pooled NUTS are added until then.")] = 60.0,
    quick: Annotated[bool, typer.Option(help="Small budgets, nothing written: does everything run?")] = False,
) -> None:
    """Measure, print, and write the results."""
    unknown = [name for name in (*sets, *rival) if name not in SETS and name not in RIVALS]
    if unknown:
        raise typer.BadParameter(f"{unknown}: the sets are {list(SETS)}, the rivals {list(RIVALS)}")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)  # a first call compiles
    stored = FOLDER / "results.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    console = Console()
    for name in sets:
        result = measure(name, rival, 5.0 if quick else seconds, quick) | {"machine": machine()}
        console.print(table(name, result))
        for line in ratios(result["methods"]):
            console.print(f"  {line}")
        if not quick:
            results = {key: (results | {name: result})[key] for key in SETS if key in {*results, name}}
            stored.write_text(json.dumps(results, indent=1) + "\n")
            (FOLDER / "RESULTS.md").write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
