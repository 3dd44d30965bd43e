"""The six steps of the Bayesian analysis reporting guidelines, each from what is known of a fit."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from fedbayes.errors import K_HAT_LIMIT
from fedbayes.owner.rules import DisclosureRules
from fedbayes.pictures.drawing import counted
from fedbayes.report import figures, regression
from fedbayes.report.facts import Facts
from fedbayes.report.markup import (
    UNKNOWN,
    Markup,
    code,
    element,
    figure,
    joined,
    marked,
    pairs,
    paragraph,
    table,
    words,
)
from fedbayes.report.quantities import Quantity
from fedbayes.report.tables import has_check

MOST_ROWS, MOST_DRAWN = 200, 60
_SEEN = 1e-6  # smallest error, of means in posterior sds and of sds relative, that is told from round-off
_CHECK = (
    "Not part of this report: whether the model describes the data. `fit.predictive_check()` tells it from model and "
    'data, and `fit.report(path, tables={"Predictive check": fit.predictive_check()})` puts it here.'
)
_PACKAGES = ("fedbayes", "jax", "jaxlib", "numpyro", "arviz", "numpy", "scipy")


def todo(text: str) -> Markup:
    """What the author has to write, or to call."""
    return element("p", marked(text), class_="todo")


def number(value: float, digits: int = 3) -> str:
    """With so many significant digits; a dash where it is not known."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}") if np.isfinite(value) else UNKNOWN


def counted_rows(rows: float) -> str:
    """A client's number of rows, unless they are so few that the usual disclosure rules hide them."""
    fewest = DisclosureRules().smallest_cell
    if not np.isfinite(rows):
        return "not known"
    return f"{int(rows):,}" if rows >= fewest or rows == 0 else f"fewer than {fewest}"


def preamble(facts: Facts, question: str) -> Markup:
    """Step 1: the question, and the data as far as the server knows them."""
    asked = (
        paragraph(question)
        if question.strip()
        else todo(
            "To be written by the author: what was asked, and why a Bayesian analysis answers it. "
            '`fit.report(path, question="...")` and `fedbayes report FIT --question "..."` put it here.'
        )
    )
    where = (
        "in other processes, and the server has seen no row of them"
        if facts.elsewhere
        else "in the process that made the fit"
    )
    rows = [(name, counted_rows(rows)) for name, rows in facts.clients]
    clients = table("Clients and their rows", ["client", "rows"], rows) if rows else None
    told = f"The data are those of {counted(len(rows), 'client')}, which were {where}."
    left_out = [paragraph(f"Put out: {text}.") for label, text in facts.lines if label == "without"]
    return joined(asked, paragraph(told), clients, *left_out)


def _whole(facts: Facts, call: str) -> str:
    """How a fit that was read from its folder is asked what needs model and data."""
    if facts.elsewhere:  # it can't be loaded with data that are at the clients
        return f"`fit.{call}` in the process that made the fit"
    return f"`fedbayes.load_fit(folder, model, clients).{call}`"


def model(facts: Facts) -> Markup:
    """Step 2: the program, the globals, and their priors."""
    text = (
        code(facts.source, "The program of one client")
        if facts.source
        else todo(
            "The program's text is not known: it is saved of a regression by a formula alone, and Python keeps no text "
            'of what was typed into a terminal. `fit.report(path, source="...")` puts it here.'
        )
    )
    local = f"Local latents, each client's own: {', '.join(facts.locals)}." if facts.locals else ""
    lacking = (
        ""
        if facts.priors
        else "The priors are read from the model, so a report with them needs model and data: "
        f"{_whole(facts, 'report(path)')}. They are also in the program."
    )
    return joined(
        regression.formulas(facts),
        text,
        _latents(facts),
        element("p", words(local)) if local else None,
        todo(lacking) if lacking else None,
        todo(
            "To be written by the author: why these priors were chosen. `fit.predictive_check(prior=True)` shows where "
            "the clients' outcomes lie among those that the priors expect; it needs model and data."
        ),
    )


def _latents(facts: Facts) -> Markup:
    """The globals, with their priors where these are known."""
    head = ["latent", "unconstrained shape", *(["prior"] if facts.priors else [])]
    rows = []
    for name, shape in facts.globals.items():
        size = " \N{MULTIPLICATION SIGN} ".join(map(str, shape)) or "scalar"
        rows.append([name, size, facts.priors.get(name, UNKNOWN)][: len(head)])
    return table("Global latents, shared by all clients", head, rows, len(head))


def computation(facts: Facts, rows: Sequence[Quantity]) -> Markup:
    """Step 3: how the posterior was found, and how far it can be trusted."""
    drawn = figures.rounds(facts)
    name = facts.progress.replace("_", " ")
    meaning = str(facts.tables["rounds"][facts.progress].attrs.get("long_name", "")) if drawn else ""
    return joined(
        element("p", words(f"{facts.summary.splitlines()[0]}.")),
        pairs(facts.lines, "What the printed fit says"),
        _chains(rows),
        _check(facts),
        figure(drawn, f"The diagnostic {name} by round: {meaning}; the largest of the replicates.") if drawn else None,
        paragraph(f"What is wrong: {facts.trouble}") if facts.trouble else None,
    )


def _chains(rows: Sequence[Quantity]) -> Markup:
    r_hat, effective = ([value for value in map(of, rows) if np.isfinite(value)] for of in (_r_hat, _effective))
    if not r_hat:
        return paragraph("There is one chain, so R-hat has nothing to compare.")
    return paragraph(
        f"Over the quantities below, R-hat is at most {max(r_hat):.3f} and the bulk effective sample size at least "
        f"{min(effective):,.0f}. Where the chains are replicates of the whole fit, R-hat compares these."
    )


def _r_hat(row: Quantity) -> float:
    return row.r_hat


def _effective(row: Quantity) -> float:
    return row.effective


def _check(facts: Facts) -> Markup | None:
    """What the clients' answers have shown of a Gaussian's error."""
    error = facts.tables.get("error")
    if error is None:
        return None
    told = error.attrs
    rows = [
        ("means of the Gaussian", _off_by(told["mean_error"], 1.0, "posterior sds")),
        ("its sds", _off_by(told["sd_error"], 100.0, "percent")),
        ("correction", str(told["correction"])),
        ("k-hat", f"{number(float(told['k_hat']))}, good below {K_HAT_LIMIT}"),
        ("effective draws", f"{float(told['effective_draws']):,.0f}"),
    ]
    return pairs(rows, "The check of the Gaussian approximation")


def _off_by(error: float, of_one: float, unit: str) -> str:
    """In a unit of which there are so many in one; below what any check can see it is said to be that."""
    if np.isnan(error):
        return "off by an unknown amount: the tails are too long to tell"
    size = number(of_one * float(error), 2) if float(error) > _SEEN else f"less than {_SEEN * of_one:.0e}"
    return f"off by {size} {unit}, root mean square"


def posterior(facts: Facts, rows: Sequence[Quantity], total: int) -> Markup:
    """Step 4: the posterior in numbers and as a picture."""
    head = ["quantity", "mean", "error of mean", "sd", "5%", "50%", "95%", "R-hat", "effective"]
    of_link = facts.regression is not None and facts.regression.is_log
    units = "on the scale of the link" if of_link else "each quantity in its own units"
    listed = table(f"The posterior, {units}", head, [_row(each) for each in rows], less=(1, 2, 3, 7, 8))
    more = f"{total - len(rows):,} more of {total:,} quantities are in `fit.idata`." if total > len(rows) else ""
    measured = "error" in facts.tables and "quantity_mean_mcse" in facts.tables["error"]
    how = "measured by the check after the rounds" if measured else "computed by ArviZ from the chains"
    verdict = f"Before these numbers are used: {facts.conclusion}."
    warned = None if facts.usable else element("p", words(verdict), class_="verdict bad")
    tails = dict(facts.lines).get("tails", "")
    some = rows[:MOST_DRAWN]
    which = "" if len(some) == total else f" The first {len(some)} of {total:,} quantities."
    picture = figures.forest(some) if any(np.isfinite(row.median) for row in some) else None
    return joined(
        warned,
        regression.results(facts),
        listed,
        paragraph(
            f"Between 5% and 95% lies the central 90 percent interval. The Monte Carlo error of the mean is {how}."
        ),
        element("p", words(f"Tails are {tails}.")) if tails else None,
        paragraph(more) if more else None,
        figure(picture, f"Median and 90 percent interval.{which}") if picture else None,
        None if has_check(facts.given) else todo(_CHECK),
    )


def _row(row: Quantity) -> list[str]:
    """With digits down to a hundredth of the sd or so."""
    digits = int(np.clip(2 - np.floor(np.log10(row.sd)), 0, 8)) if np.isfinite(row.sd) and row.sd > 0.0 else 3

    def decimal(value: float) -> str:
        if not np.isfinite(value):
            return UNKNOWN
        return (f"{value:,.{digits}f}" if abs(value) < 1e7 else f"{value:.6g}").replace("-", "\N{MINUS SIGN}")

    shown = (row.mean, row.sd, row.low, row.median, row.high)
    mean, *others = map(decimal, shown)
    diagnosed = f"{row.r_hat:.3f}" if np.isfinite(row.r_hat) else UNKNOWN
    effective = f"{row.effective:,.0f}" if np.isfinite(row.effective) else UNKNOWN
    return [row.name, mean, number(row.mean_error, 2), *others, diagnosed, effective]


def sensitivity(facts: Facts) -> Markup:
    """Step 5: how much the posterior would change with the prior."""
    found = facts.sensitivity
    if found is None:
        return todo(f"Not part of this report: {_why_no_sensitivity(facts)}")
    prior, likelihood = found["sensitivity"].values
    names, diagnoses = found["parameter"].values.tolist(), found["diagnosis"].values.tolist()
    rows = [
        (str(name), number(a), number(b), UNKNOWN if said == "-" else str(said))
        for name, a, b, said in zip(names, prior.tolist(), likelihood.tolist(), diagnoses, strict=True)
    ]
    return joined(
        paragraph(
            "Prior and likelihood were each raised to powers near 1, and the draws weighted accordingly (Kallioinen, "
            f"Paananen, Bürkner and Vehtari 2024). Above {found.attrs['threshold']} a quantity counts as sensitive: to "
            "both, prior and data pull in different directions; to the prior alone, the data say little against it."
        ),
        table("Sensitivity of each quantity", ["quantity", "to the prior", "to the likelihood", "diagnosis"], rows),
    )


def _why_no_sensitivity(facts: Facts) -> str:
    """How to have it."""
    measures = "measures how much a slightly stronger or weaker prior, or likelihood, would change each quantity"
    if facts.whole:
        return f"`fit.sensitivity()` {measures}, and needs model and data."
    found = f"it needs model and data. {_whole(facts, 'sensitivity()')} {measures}"
    if facts.elsewhere:
        return f"{found}."
    found = f"{found}, and {_whole(facts, 'report(path)')} has it in the report."
    if facts.regression is None:
        return found
    return f"{found} So has `fedbayes report FOLDER DATA...`, with the files that `fedbayes fit` has read."


def reproducibility(facts: Facts) -> Markup:
    """Step 6: versions, settings, the key, and digests by which files are known again."""
    attrs = facts.idata["posterior"].attrs
    sizes = facts.idata["posterior"].sizes
    rows = [
        ("method", facts.method),
        ("key", facts.key),
        ("draws", f"{counted(sizes['chain'], 'chain')} of {sizes['draw']:,}"),
        ("fitted with", f"fedbayes {attrs.get('inference_library_version', 'of an unknown version')}"),
        ("written with", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("written on", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("draws' digest", f"SHA-256 {digest(facts.idata)}"),
    ]
    if facts.source:
        rows.append(("program's digest", f"SHA-256 {sha256(facts.source.encode()).hexdigest()}"))
    return joined(
        pairs(rows, "What it takes to make the fit again"),
        paragraph(
            "Versions are those of the process that wrote this report; it need not be the one that made the fit. No "
            "digest of the data is given: of few rows it could be found by trying."
        ),
        todo("To be written by the author: where readers can get the program and the data."),
    )


def digest(idata: object) -> str:
    """SHA-256 of all draws of the posterior, as little-endian float64 by variable, in the order of their names."""
    found, hashed = idata["posterior"], sha256()  # type: ignore[index]  # in both generations of ArviZ
    for name in sorted(map(str, found.data_vars)):
        hashed.update(name.encode() + np.ascontiguousarray(found[name].values, dtype="<f8").tobytes())
    return hashed.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
