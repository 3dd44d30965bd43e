"""The report as a file: of a fit, or of a saved one without its model and data."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbayes.errors import ReportError
from fedbayes.pictures.drawing import counted, require_matplotlib
from fedbayes.report import federation, steps
from fedbayes.report.facts import Facts, facts_in, facts_of
from fedbayes.report.markup import Markup, element, paragraph, words
from fedbayes.report.page import page
from fedbayes.report.quantities import quantities_of
from fedbayes.report.tables import given_tables, shown
from fedbayes.results.fitted import Fitted
from fedbayes.results.saved.folder import Saved
from fedbayes.runtime.files import replace_file


def report(
    fitted: Fitted,
    path: str | os.PathLike,
    *,
    question: str = "",
    source: str = "",
    tables: Mapping[str, Any] | None = None,
) -> Path:
    """Write a report of the fit: one HTML file with its pictures and without scripts, to be read, printed and sent.

    It follows the six steps of the Bayesian analysis reporting guidelines (Kruschke 2021), and adds what left each
    client and who disagrees. What only the author can say is left open, and named. It holds no row of the clients' data
    and no count of few rows, and asks no client elsewhere for more than :attr:`idata` does. Of a regression by a
    formula it has the formula, the coefficients as odds, rate or hazard ratios, and how much sites differ. The
    sensitivity to the prior is in it where the clients are in this process and there are few globals. What takes
    longer, such as :meth:`predictive_check` and :meth:`leave_one_out`, is passed as ``tables``.

    Parameters
    ----------
    path
        The file; one that is there is replaced by a whole one, or stays as it is.
    question
        What was asked, for the preamble.
    source
        The program's text, where Python can't find it.
    tables
        Further tables by title: datasets that the fit has returned, estimates such as ``fit.random_effects()``,
        or tables of pandas.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ReportError
        The path is a folder, or lies in one that does not exist, or ``tables`` holds something else; nothing was
        computed.
    ImportError
        matplotlib, which draws the pictures, is not installed.

    Examples
    --------
    >>> fit.report("report.html", question="Does age matter?")  # doctest: +SKIP
    >>> fit.report("report.html", tables={"Predictive check": fit.predictive_check()})  # doctest: +SKIP
    """
    return report_fitted(fitted, path, question=question, source=source, tables=tables)[0]


def report_fitted(
    fitted: Fitted,
    path: str | os.PathLike,
    *,
    question: str = "",
    source: str = "",
    tables: Mapping[str, Any] | None = None,
) -> tuple[Path, Facts]:
    """The same; also what was found."""
    file, given = checked_path(path), given_tables(tables)
    facts = facts_of(fitted)
    facts = facts._replace(source=source or facts.source, given=given)
    return _written(file, facts, question), facts


def report_saved(
    folder: Path,
    saved: Saved,
    path: str | os.PathLike,
    *,
    question: str = "",
    source: str = "",
    tables: Mapping[str, Any] | None = None,
) -> tuple[Path, Facts]:
    """The same of a saved fit, from its folder alone; also what was found there."""
    file, given = checked_path(path), given_tables(tables)
    facts = facts_in(folder, saved)
    facts = facts._replace(source=source or facts.source, given=given)
    return _written(file, facts, question), facts


def checked_path(path: str | os.PathLike) -> Path:
    """Where a report can be written.

    Raises
    ------
    ReportError
        It can't.
    ImportError
        matplotlib is not installed.
    """
    file = Path(path)
    if file.is_dir():
        raise ReportError(f"'{file}' is a folder; name a file in it, such as '{file / 'report.html'}'.")
    if not file.parent.is_dir():
        raise ReportError(f"There is no folder '{file.parent}' to write '{file.name}' to. Make it, or name another.")
    require_matplotlib()
    return file


def _written(file: Path, facts: Facts, question: str) -> Path:
    replace_file(file, html(facts, question).encode("utf-8"))
    return file


def html(facts: Facts, question: str = "") -> str:
    """The report of what is known of a fit."""
    rows, total = quantities_of(facts.idata, facts.tables.get("error"), steps.MOST_ROWS)
    parts = {
        "preamble": ("1. Preamble", steps.preamble(facts, question)),
        "model": ("2. Model and priors", steps.model(facts)),
        "computation": ("3. Computation", steps.computation(facts, rows)),
        "posterior": ("4. Posterior", steps.posterior(facts, rows, total)),
        "sensitivity": ("5. Sensitivity", steps.sensitivity(facts)),
        "reproducibility": ("6. Reproducibility", steps.reproducibility(facts)),
        "left": ("What left each client", federation.left_clients(facts)),
        "disagreement": ("Who disagrees", federation.who_disagrees(facts)),
    }
    if facts.given:
        parts["given"] = ("Further tables", shown(facts.given))
    title = "Report of a federated fit"
    return page(title, _head(title, facts), parts)


def judged(facts: Facts) -> str:
    """Whether the posterior can be used, for readers who have no Python at hand."""
    if facts.usable and not facts.converged:
        return "The rounds did not converge, but the posterior below was checked after them and can be used."
    if facts.usable:
        return "The posterior below can be used."
    return "The posterior below should not be relied on as it is."


def _head(title: str, facts: Facts) -> Markup:
    about = f"{facts.method.partition('(')[0]}, {counted(len(facts.clients), 'client')}"
    verdict = f"{judged(facts)} The last line of `print(fit)` says: {facts.conclusion}."
    without = "" if facts.whole else ", read from its folder without model and data"
    return Markup(
        element("h1", words(title))
        + element("p", words(f"{about}{without}"), class_="about")
        + element("div", paragraph(verdict), class_="verdict" if facts.usable else "verdict bad")
    )
