"""The page: what fits say against NUTS, and what both take, before and after a change."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pages
from examples.example import Example
from examples.verdicts import RULES, of_nuts, told, verdict

_OPENING = """\
# Programs with latents of each client

Written by `hierarchies.py`: programs whose locals are marked by `fb.local()` (`hierarchies_programs/`), with clients of
unequal sizes, fitted by `fedbayes.fit_federated` with its defaults. The rival is NumPyro's NUTS on one program of
everybody's data, written as one writes it with the data in one place. The question is what a hierarchy costs.

{number} programs{labels}.
"""
_NUMBERS = """\
*mean* and *sd ratio* are the worst of all globals, which are named. *k-hat* and *effective draws* are those of the
importance weights after the rounds. *programs* counts XLA compilations of the first fit with `fit.idata`.

Times are seconds on the clock, and CPU seconds in brackets. *Before* and *after*, ratios are of CPU seconds: each fit
and each NUTS had one of two cores, and other work used the second. Where the seconds on the clock are far more than the
CPU seconds, other work used the same core, and the CPU seconds are too high as well.

*first* is the first fit of a fresh process with `fit.idata`, all compilation included and no programs on disk; *rounds*
and *check* are the part of its seconds on the clock that the rounds took, and the exchanges after them. *second* is a
fit of the same clients with another key, in the same process. NUTS: four chains, vectorised, of 1,000 warm-up steps and
1,000 draws, `target_accept_prob` 0.9; *first* as a user runs it, compilation included, *second* the same as one
compiled program.
"""
_ON_BOTH = """\
Under *both cores* NUTS and then the fit had the machine for themselves, and ratios are of seconds on the clock.
"""
_FOUND = (
    *("program", "what", "clients", "locals", "rows", "verdict", "mean, sds", "sd ratio", "k-hat", "effective draws"),
    *("rounds", "NUTS"),
)
_TIMES = (
    *("program", "programs", "first", "rounds", "check", "second", "rounds", "check"),
    *("NUTS, first", "NUTS, second", "first ratio", "second ratio"),
)
BOTH = "both cores"
LABELS = ("before", "after", BOTH)


def page(results: Mapping[str, Any], programs: Mapping[str, Example], seconds: float) -> str:
    """The page, from what is stored."""
    known = [label for label in LABELS if any(label in each for each in results.values())]
    counted = "; ".join(f"{label}: {_counts(results, label)}" for label in known)
    lines = [
        _OPENING.format(number=len(results), labels=f". {counted}" if counted else ""),
        RULES.format(limit=f"{seconds:.0f} seconds, on cores that other work kept busy at the same time"),
        _NUMBERS,
        *([_ON_BOTH] if BOTH in known else []),
    ]
    for label in known:
        mine = {name: _under(label, each) for name, each in results.items() if label in each}
        lines += [f"## {label.capitalize()}", "", *sorted({each["fit"]["machine"] for each in mine.values()}), ""]
        lines += pages.table(_FOUND, [_found(name, programs[name], each) for name, each in mine.items()])
        lines += pages.table(_TIMES, [_times(name, each, label) for name, each in mine.items()])
        if words := [f"- {name}: {words}" for name, each in mine.items() if (words := told(each["fit"]))]:
            lines += ["What the fits say for themselves where something is not as it should be:", "", *words, ""]
    notes = [f"- {name}: {programs[name].note}." for name in results if programs[name].note]
    return "\n".join(lines + (["Notes:", "", *notes, ""] if notes else []))


def of_nuts_under(label: str) -> str:
    """The name under which NUTS is stored that was measured as the fits of a label were."""
    return f"nuts, {BOTH}" if label == BOTH else "nuts"


def _under(label: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fit of a label, and its NUTS."""
    return {**result, "fit": result[label], "nuts": result[of_nuts_under(label)]}


def ratios(
    fit: Mapping[str, Any], nuts: Mapping[str, Any], label: str = LABELS[0]
) -> tuple[float | None, float | None]:
    """Seconds of a fit over those of NUTS: of the first ones, and of the second ones; on the CPU, or on the clock."""
    of_nuts, of_second = ("wall", "seconds") if label == BOTH else ("cpu", "cpu")
    pairs = (
        (first(fit).get(of_nuts), nuts.get(of_nuts)),
        (fit.get("second", {}).get(of_second), nuts.get("second", {}).get(of_nuts)),
    )
    one, two = (mine / theirs if mine and theirs else None for mine, theirs in pairs)
    return one, two


def first(fit: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the first fit with its ``idata``, on the clock and on the CPU; empty if it was not done in time."""
    if "idata" not in fit:
        return {}
    return {"wall": fit["seconds"] + fit["idata"]["seconds"], "cpu": fit["cpu"] + fit["idata"]["cpu"]}


def _counts(results: Mapping[str, Any], label: str) -> str:
    found = [each for each in results.values() if label in each]
    counts = Counter(verdict(each[label], each[of_nuts_under(label)])["verdict"] for each in found)
    return ", ".join(f"{word} {count}" for word, count in counts.most_common())


def _found(name: str, example: Example, result: Mapping[str, Any]) -> list[str]:
    """A line of the first table."""
    fit, nuts, found = result["fit"], result["nuts"], verdict(result["fit"], result["nuts"])
    rows = result["rows"]
    return [
        name,
        example.source,
        str(len(rows)),
        f"{result['locals']:,}" if result.get("locals") else "",
        f"{sum(rows):,} ({min(rows)} to {max(rows):,})",
        found["verdict"],
        f"{found['mean_error']:.2f} ({found['mean_at']})" if "mean_error" in found else "",
        f"{found['sd_ratio']:.2f} ({found['sd_at']})" if "sd_ratio" in found else "",
        f"{fit['weights_k_hat']:.2f}" if "weights_k_hat" in fit else "",
        f"{fit['effective_draws']:,.0f}" if "effective_draws" in fit else "",
        str(fit.get("rounds", "")),
        of_nuts(nuts),
    ]


def _times(name: str, result: Mapping[str, Any], label: str) -> list[str]:
    """A line of the second table."""
    fit, nuts = result["fit"], result["nuts"]
    second = fit.get("second", {})
    return [
        name,
        str(fit.get("programs", "")),
        _spent(first(fit) or fit, "wall"),
        _seconds(fit.get("of_rounds")),
        _seconds(fit.get("of_check")),
        _spent(second, "seconds"),
        _seconds(second.get("of_rounds")),
        _seconds(second.get("of_check")),
        _spent(nuts, "wall"),
        _spent(nuts.get("second", {}), "wall"),
        *("" if ratio is None else f"{ratio:.1f}" for ratio in ratios(fit, nuts, label)),
    ]


def _spent(found: Mapping[str, Any], wall: str) -> str:
    if "slow" in found:
        return f"over {found['slow']:.0f}"
    return f"{found[wall]:.1f} ({found['cpu']:.1f})" if "cpu" in found and wall in found else ""


def _seconds(found: float | None) -> str:
    return "" if found is None else f"{found:.1f}"
