"""A set of programs, each fitted with defaults and compared with NUTS: what has to run, what is stored, the page."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pages
from rich.console import Console

from examples.example import Example
from examples.measure import fit
from examples.pooled import nuts
from examples.processes import limit, measured
from examples.verdicts import RULES, answered, of_nuts, told, verdict

_COLUMNS = (
    *("clients", "globals", "verdict", "mean, sds", "sd ratio", "Gaussian's means, sds"),
    *("effective draws", "rounds", "CPU s", "NUTS, CPU s", "ratio", "NUTS"),
)
_NUMBERS = """\
*mean* and *sd ratio* are the worst of all globals, which are named. *Gaussian's means, sds* is what `fit.error` says of
the Gaussian before correction: root mean square errors in posterior sds, and relative. *CPU s* are those of the first
fit of a fresh process with all its compilation, and of NUTS with its compilation, four chains of 1,000 warm-up steps
and 1,000 draws; *ratio* is the first over the second. *NUTS*: the largest Monte Carlo errors of its means, in sds, and
of its sds, relative, from as many draws as that takes.
"""


@dataclass(frozen=True)
class Comparison:
    """Programs, where their results are stored, and the first words of their page.

    Parameters
    ----------
    script
        The script that runs them: ``<script>.json`` beside it holds the results, ``<SCRIPT>.md`` is the page.
    programs
        By name.
    seconds
        Limit of a fit, and of NUTS, in CPU seconds.
    opening
        Title and first words of the page; ``{number}`` and ``{summary}`` are filled in.
    named
        Heads of the two columns that name a program and where it is from.
    """

    script: Path
    programs: Mapping[str, Example]
    seconds: float
    opening: str
    named: tuple[str, str]

    @property
    def stored(self) -> Path:
        """Where the results are."""
        return self.script.with_suffix(".json")

    def results(self) -> dict[str, Any]:
        """What is stored."""
        return json.loads(self.stored.read_text()) if self.stored.exists() else {}

    def run(self, names: Sequence[str], again: bool, reference: bool, seconds: float) -> None:
        """Run what has no result yet, or all of it again; store the results after each, and write the page."""
        results, console = self.results(), Console(soft_wrap=True, highlight=False)
        for name in names:
            before, example = results.get(name, {}), self.programs[name]
            found = measured(example, before, self.script, again, reference, seconds)
            if found == before:
                continue
            results[name] = {**found, "clients": len(example.clients()), "machine": pages.machine()}
            results = {each: results[each] for each in self.programs if each in results}
            self.stored.write_text(json.dumps(results, indent=1) + "\n")
            console.print(" | ".join(self._cells(name, results[name])), told(results[name]["fit"]), markup=False)
        self.script.with_name(f"{self.script.stem.upper()}.md").write_text(self.page(results))

    def child(self, part: str, name: str, output: Path, seconds: float) -> None:
        """One fit, or one NUTS, in this process; the result as JSON."""
        limit(seconds)
        if part == "nuts":
            jax.config.update("jax_enable_x64", True)
        example = self.programs[name]
        result = fit(example, answered) if part == "fit" else nuts(example, 0.8 * seconds)
        output.write_text(json.dumps(result))

    def page(self, results: Mapping[str, Any]) -> str:
        """The page, from what is stored; a reference alone is no row yet."""
        waiting = [name for name in self.programs if "fit" not in results.get(name, {})]
        results = {name: found for name, found in results.items() if "fit" in found}
        counts = Counter(verdict(each["fit"], each["nuts"])["verdict"] for each in results.values())
        summary = ", ".join(f"{word}: {count}" for word, count in counts.most_common())
        rows = [[cell.replace("|", "\\|") for cell in self._cells(name, found)] for name, found in results.items()]
        words = [f"- {name}: {words}" for name, result in results.items() if (words := told(result["fit"]))]
        notes = [f"- {name}: {self.programs[name].note}." for name in results if self.programs[name].note]
        lines = [
            self.opening.format(number=len(rows), summary=summary),
            RULES.format(limit=f"{self.seconds:.0f} CPU seconds"),
            _NUMBERS,
            " ".join(sorted({result["machine"] for result in results.values()})) + "\n",
            *pages.table((*self.named, *_COLUMNS), rows),
        ]
        if waiting:
            lines += [f"Not measured yet: {', '.join(waiting)}.", ""]
        if words:
            lines += ["What the fits say for themselves where something is not as it should be:", "", *words, ""]
        return "\n".join(lines + (["Notes:", "", *notes, ""] if notes else []))

    def _cells(self, name: str, result: Mapping[str, Any]) -> list[str]:
        """A line of the table."""
        fit, nuts, found = result["fit"], result["nuts"], verdict(result["fit"], result["nuts"])
        return [
            name,
            self.programs[name].source,
            str(result["clients"]),
            str(len(fit["mean"])) if "mean" in fit else "",
            found["verdict"],
            f"{found['mean_error']:.2f} ({found['mean_at']})" if "mean_error" in found else "",
            f"{found['sd_ratio']:.2f} ({found['sd_at']})" if "sd_ratio" in found else "",
            f"{fit['mean_error']:.2g}, {fit['sd_error']:.2g}" if "mean_error" in fit else "",
            f"{fit['effective_draws']:,.0f}" if "effective_draws" in fit else "",
            str(fit.get("rounds", "")),
            f"{fit['cpu']:.0f}" if "cpu" in fit else "",
            f"{nuts['cpu']:.0f}" if "cpu" in nuts else "",
            f"{fit['cpu'] / nuts['cpu']:.1f}" if "cpu" in fit and "cpu" in nuts else "",
            of_nuts(nuts),
        ]
