"""Formulas of textbooks: right, or refused in fedbayes's own words.

    python benchmarks/formulas.py        # some seconds; writes FORMULAS.md

The formulas, and the columns that NumPy makes of them by hand, are those of tests/fedbayes/formula/test_textbooks.py.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
from pages import table, wrapped

import fedbayes as fb

SCRIPT = Path(__file__).resolve()
PAGE = SCRIPT.with_name("FORMULAS.md")
TESTS = SCRIPT.parents[1] / "tests" / "fedbayes" / "formula" / "test_textbooks.py"
RIGHT = 1e-9  # largest difference from the columns by hand, beside their size


def formulas() -> ModuleType:
    """The tests, as a module."""
    spec = importlib.util.spec_from_file_location("formulas_of_textbooks", TESTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quoted(text: str) -> str:
    """A formula in a table."""
    return f"`{text}`".replace("|", "\\|")


def difference(tests: ModuleType, reg: fb.Regression, formula: str) -> float:
    """The largest one between what the program is given and what was made by hand."""
    return max(
        float(np.max(np.abs(tests.stacked(reg, name) - values) / (1.0 + np.abs(values))))
        for name, values in tests.by_hand(reg, formula).items()
    )


def answered(tests: ModuleType) -> list[tuple[str, ...]]:
    """Formulas that have an answer: whether it is right, and its columns."""
    found = []
    for formula, family, _, _, textbook in tests.RIGHT:
        reg = fb.regression(formula, family=family, clients=tests.DATA)
        verdict = "right" if difference(tests, reg, formula) < RIGHT else "WRONG"
        names = ", ".join(quoted(name) for name in reg.parts.predictors[0].design.names)
        found.append((quoted(formula), family, textbook, verdict, names))
    return found


def refused(tests: ModuleType) -> list[tuple[str, ...]]:
    """Formulas that are refused, and in which words."""
    found = []
    for formula, family, _ in tests.NOT_THERE:
        try:
            fb.regression(formula, family=family, clients=tests.DATA)
            words = "NOT REFUSED"
        except fb.FormulaError as error:
            words = str(error)
        found.append((quoted(formula), family, tests.OF_THE_REFUSED[formula], words.replace("|", "\\|")))
    return found


def page() -> str:
    """The whole page."""
    tests = formulas()
    one, two = answered(tests), refused(tests)
    right, words = sum(row[3] == "right" for row in one), sum(row[3] != "NOT REFUSED" for row in two)
    opening = (
        f"{right} of {len(one)} formulas have the columns that NumPy makes of them by hand, treatment contrasts and "
        f"all, around everybody's means, to {RIGHT:g}; so have outcomes, offsets, trials and groups. A spline's "
        f"knots are those agreed on, quantiles to a twentieth of an sd. {words} of "
        f"{len(two)} others are refused in words of fedbayes's own. Eight clients of 30 rows each. Written by "
        "`python benchmarks/formulas.py`."
    )
    lines = ["# Formulas of textbooks", "", wrapped(opening), "## Answered", ""]
    lines += table(("formula", "family", "textbook", "verdict", "columns"), one)
    lines += ["## Refused", "", *table(("formula", "family", "of", "words"), two)]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.read_text())
