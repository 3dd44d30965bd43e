"""Hierarchies with thousands of locals, clients, or rows of one client: time, memory, and is the answer right?

    python benchmarks/scale.py                        # what has no result yet
    python benchmarks/scale.py --only "2pl 1,000"     # anew
    python benchmarks/scale.py --table                # SCALE.md from what is stored

Each fit and each NUTS runs in a fresh process, which compiles everything, one after the other. Results go to
``scale.json`` after each.
"""

import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pages
import typer
from examples.example import Example
from examples.pooled import nuts
from examples.processes import fresh, limit
from examples.verdicts import answered, verdict
from first_fit import Clock
from hierarchies_programs.large import LARGE
from rich.console import Console

import fedbayes as fb

SCRIPT = Path(__file__)
STORED, PAGE = SCRIPT.with_suffix(".json"), SCRIPT.with_name("SCALE.md")
EXAMPLES = {example.name: example for example in LARGE}
OF_FIT, OF_NUTS = 3600.0, 600.0  # CPU seconds
COLUMNS = (
    *("program", "what", "locals", "outcomes", "verdict", "mean, sds", "sd ratio", "k-hat", "effective draws"),
    *("rounds", "first fit, CPU s", "peak, GiB", "NUTS, CPU s", "NUTS, peak, GiB"),
)


def measure(example: Example) -> dict[str, Any]:
    """The first fit of this process, with its ``idata``, and the process's largest memory."""
    data, clock = example.clients(), Clock()
    before = _peak()
    fitted = clock.time("fit", lambda: fb.fit_federated(example.model, data, key=jax.random.key(0), progress=False))
    clock.time("idata", lambda: fitted.idata)
    spent = {name: clock.steps["fit"][name] + clock.steps["idata"][name] for name in ("seconds", "cpu")}
    outcomes = sum(np.size(one["y"]) for one in data.values())
    return {
        **spent,
        "before": before,
        "peak": _peak(),
        "labels": list(fitted.global_labels),
        "locals": int(np.sum(fitted.fitted.roster.num_locals)),
        "outcomes": outcomes,
        "rounds": int(fitted.rounds.sizes["round"]),
        "of_rounds": round(float(fitted.rounds["seconds"].sum()), 1),
        **answered(fitted),
    }


def rival(example: Example) -> dict[str, Any]:
    """NUTS on everybody's data, four chains of 1,000 and 1,000 draws."""
    jax.config.update("jax_enable_x64", True)
    return {**nuts(example, 1.0), "peak": _peak()}


def markdown(results: Mapping[str, Any]) -> str:
    """The page, from what is stored."""
    known = {name: results[name] for name in EXAMPLES if name in results}
    machines = " ".join(sorted({each["machine"] for each in known.values()}))
    words = f"""Written by `scale.py`: `fedbayes.fit_federated` with its defaults and `fit.idata`, compilation included,
in a fresh process. *peak* is the largest resident memory of that process, of which Python, the packages and the data
take some 0.3 GiB. The rival is NumPyro's NUTS on everybody's data in one program: four chains, vectorised, of 1,000
warm-up steps and 1,000 draws; what takes more than {OF_NUTS:,.0f} CPU seconds is stopped, and is no reference.
What is compared, and verdicts, are those of [HIERARCHIES.md](HIERARCHIES.md). {machines}"""
    lines = [_line(EXAMPLES[name], each) for name, each in known.items()]
    return "\n".join(["# Scale\n", pages.wrapped(words), *pages.table(COLUMNS, lines)])


def _line(example: Example, found: Mapping[str, Any]) -> list[str]:
    fit, of_nuts = found["fit"], found.get("nuts", {})
    if "seconds" not in fit:
        return [example.name, example.source, *[""] * 2, "too slow" if "slow" in fit else "RAW", *[""] * 9]
    said = verdict(fit, of_nuts)
    compared = ["", ""]
    if "mean_error" in said:
        compared = [f"{said['mean_error']:.2f} ({said['mean_at']})", f"{said['sd_ratio']:.2f} ({said['sd_at']})"]
    reference = ["too slow" if "slow" in of_nuts else of_nuts.get("last", "not run"), ""]
    if "cpu" in of_nuts:
        reference = [f"{of_nuts['cpu']:.0f}", f"{of_nuts['peak']:.1f}"]
    return [
        example.name,
        example.source,
        f"{fit['locals']:,}",
        f"{fit['outcomes']:,}",
        said["verdict"],
        *compared,
        f"{fit['weights_k_hat']:.2f}" if "weights_k_hat" in fit else "",
        f"{fit['effective_draws']:,.0f}" if "effective_draws" in fit else "",
        str(fit["rounds"]),
        f"{fit['cpu']:.0f}",
        f"{fit['peak']:.1f}",
        *reference,
    ]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # counts KiB


def main(
    only: Annotated[list[str], typer.Option(help="Programs to run anew.")] = [],  # noqa: B006
    parts: Annotated[str, typer.Option(help="Which parts, by commas.")] = "fit,nuts",
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(hidden=True)] = OF_FIT,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the programs, store the results after each, write the page."""
    if part:
        limit(seconds)
        output.write_text(json.dumps((measure if part == "fit" else rival)(EXAMPLES[only[0]])))
        return
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    console = Console(soft_wrap=True, highlight=False)
    for name in [] if table else only or list(EXAMPLES):
        for each in parts.split(","):
            if only or each not in results.get(name, {}):
                results.setdefault(name, {})["machine"] = pages.machine()
                results[name][each] = fresh(SCRIPT, each, name, OF_FIT if each == "fit" else OF_NUTS, cold=True)
                STORED.write_text(json.dumps(results, indent=1) + "\n")
                console.print(name, each, str(results[name][each])[:200], markup=False)
    PAGE.write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
