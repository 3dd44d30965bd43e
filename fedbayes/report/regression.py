"""What a report says of a regression by a formula: its formula, its coefficients as people read them, and its sites."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbayes.owner.text import DIRECTION, estimate_cells
from fedbayes.report.facts import Facts
from fedbayes.report.markup import UNKNOWN, Markup, joined, pairs, paragraph, signed, table
from fedbayes.report.quantities import PROBABILITIES
from fedbayes.results.saved.regression import Entry, Regressed

_NAMED = {"median": "median", "lower": "5%", "upper": "95%", DIRECTION: "direction"}
_LEVEL = f"{PROBABILITIES[2] - PROBABILITIES[0]:.0%}"


def formulas(facts: Facts) -> Markup | None:
    """The formulas, the family and its link."""
    reg = facts.regression
    if reg is None:
        return None
    rows = [(f"formula of {name}" if name else "formula", text) for name, text in reg.formulas.items()]
    return pairs([*rows, ("family", f"{reg.family}, link {reg.link}")], "The regression")


def results(facts: Facts) -> Markup | None:
    """The coefficients on the scale on which they are read, and how much sites differ."""
    reg = facts.regression
    if reg is None:
        return None
    posterior = facts.idata["posterior"]
    entries = reg.entries(posterior)
    return joined(
        _table(f"Coefficients, with {_LEVEL} intervals", entries),
        paragraph(_reading(reg, entries)),
        _spread(reg, posterior),
        paragraph(_scale(reg)),
    )


def _reading(reg: Regressed, entries: Sequence[Entry]) -> str:
    first = reg.coefficients[0]  # of the outcome's formula
    there = any(entry.name.partition("[")[0] == first.site for entry in entries)
    at = f"{first.site} is the {first.what} where all numeric covariates are 0 and all factors have their first level. "
    return f"{at if there else ''}The direction is the posterior probability of the likelier side of no effect."


def _scale(reg: Regressed) -> str:
    """On which scale the draws are that the next table shows."""
    if not reg.is_log:
        return "The next table has the draws as they are, with their Monte Carlo errors."
    what = next((each.what for each in reg.coefficients if each.is_log and each.reference == 0.0), "")
    told = f": a coefficient is there the logarithm of its {what}" if what else ""
    return (
        f"The draws themselves, in the next table and in `fit.idata`, are on the scale of the link, {reg.scale}{told}."
    )


def _spread(reg: Regressed, posterior: Any) -> Markup | None:
    """How much sites and groups differ."""
    found = reg.heterogeneity(posterior)
    if not found:
        return None
    notes = [paragraph(note) for note in reg.notes]
    told = "tau is the standard deviation of the effects of a group, on the scale of the link"
    shares = "; the ICC is their share of the variance on that scale" if reg.shares else ""
    return joined(
        _table(f"How much sites and groups differ, with {_LEVEL} intervals", found),
        paragraph(f"{told}{shares}."),
        *notes,
    )


def _table(caption: str, entries: Sequence[Entry]) -> Markup:
    """A line for each; what each is, and the direction, where there is something to compare with."""
    compared = any(not np.isnan(entry.reference) for entry in entries)
    left_out = set() if compared else {"what it is", DIRECTION}
    lines = [{name: value for name, value in _line(entry).items() if name not in left_out} for entry in entries]
    cells = [estimate_cells(line, is_ratio=entry.reference == 1.0) for line, entry in zip(lines, entries, strict=True)]
    head = [_NAMED.get(name, name) for name in lines[0]]
    num_words = len(head) - len(_NAMED) + (not compared)
    rows = [[*row[:num_words], *(signed(cell) or UNKNOWN for cell in row[num_words:])] for row in cells]
    return table(caption, head, rows, num_words, less=(5,) if compared else ())


def _line(entry: Entry) -> dict[str, Any]:
    low, median, high = np.quantile(entry.draws, PROBABILITIES).tolist()
    numbers = {"median": median, "lower": low, "upper": high, DIRECTION: _direction(entry)}
    return {"quantity": entry.name, "what it is": entry.what, **numbers}


def _direction(entry: Entry) -> float:
    """The probability of the likelier side of the reference; draws at it count half."""
    if np.isnan(entry.reference):
        return float("nan")
    above = float((entry.draws > entry.reference).mean() + (entry.draws == entry.reference).mean() / 2.0)
    return max(above, 1.0 - above)
