"""Does `fb.regression` answer as brms and Bambi do, on three data sets of textbooks with published posteriors?

    python benchmarks/textbooks.py                                # what has no result yet
    python benchmarks/textbooks.py --only "epilepsy, brms"        # anew
    python benchmarks/textbooks.py --table                        # TEXTBOOKS.md from what is stored

The groups of each regression are the clients. The priors are those of the publication; as a control, each data set is
also fitted with the defaults of `fb.regression`. Each fit runs in a fresh process; results go to ``textbooks.json``
after each.
"""

import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from examples.processes import fresh, limit
from pages import head, machine, row, wrapped
from rich.console import Console
from textbooks_data import TEXTBOOKS, Published, Textbook

import fedbayes as fb

SCRIPT = Path(__file__)
STORED, PAGE = SCRIPT.with_suffix(".json"), SCRIPT.with_name("TEXTBOOKS.md")
SECONDS = 900.0
ERRORS = 3.0  # Monte Carlo errors of both
QUARTER = 0.25  # of the draws, taken for the effective number where none is printed


def fitted(name: str, defaults: bool) -> dict[str, Any]:
    """Moments of the draws of a fit, their Monte Carlo errors, and what the fit says of itself."""
    book = TEXTBOOKS[name]
    reg, began, cpu = book.regression(defaults), time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fb.fit_federated(
            reg.model, reg.clients, coords=reg.coords, dims=reg.dims, key=jax.random.key(0), progress=False
        )
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return {
        **spent,
        "clients": len(reg.clients),
        "rows": sum(len(each["y"]) for each in reg.clients.values()),
        "converged": bool(fit.converged),
        "conclusion": repr(fit).rsplit("  verdict   ", 1)[-1].strip(),
        "long_tails": fit.error["quantity"].values[~fit.error["quantity_sd_reliable"].values].tolist(),
        "moments": {each.ours: moments(fit, each.ours) for each in book.published},
    }


def moments(fit: fb.FederatedFit, label: str) -> dict[str, float]:
    """Mean, sd and kurtosis of a parameter's draws, and the Monte Carlo errors of mean and sd."""
    if ": " in label:  # a client's own coefficient: the common one, and the client's effect
        client, name = label.split(": ")
        posterior = fit.client_posterior(client).posterior
        draws = (posterior[name] + posterior["1|site"]).values
    else:
        name, _, entry = label.removesuffix("]").partition("[")
        found = fit.idata.posterior[name]
        if entry:
            (axis,) = set(found.dims) - {"chain", "draw"}
            found = found.sel({axis: entry})
        draws = found.values
    mean, sd = draws.mean(), draws.std()
    kurtosis = float(np.mean(((draws - mean) / sd) ** 4))
    errors = errors_of(sd, kurtosis, draws.size)
    if label in fit.error["quantity"].values:
        own = fit.error.sel(quantity=label)
        errors = float(own["quantity_mean_mcse"]), float(own["quantity_sd_mcse"])
    return {
        "mean": float(mean),
        "sd": float(sd),
        "kurtosis": kurtosis,
        "mcse": errors[0],
        "mcse_sd": errors[1],
    }


def errors_of(sd: float, kurtosis: float, draws: float) -> tuple[float, float]:
    """Monte Carlo errors of mean and sd by so many independent draws."""
    return float(sd / np.sqrt(draws)), float(sd * np.sqrt((kurtosis - 1.0) / (4.0 * draws)))


def rounding(printed: str) -> float:
    """How far a printed number may be from the one that was rounded."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def compared(published: Published, own: Mapping[str, float], draws: int) -> dict[str, Any]:
    """The difference of means in posterior sds, the ratio of sds, and what rounding and Monte Carlo errors allow."""
    mean, sd = float(published.mean), float(published.sd)
    theirs, theirs_sd = errors_of(own["sd"], own["kurtosis"], published.effective or QUARTER * draws)
    of_mean, ratio = (own["mean"] - mean) / own["sd"], own["sd"] / sd
    allowed = (rounding(published.mean) + ERRORS * np.hypot(own["mcse"], theirs)) / own["sd"]
    allowed_sd = (rounding(published.sd) + ERRORS * np.hypot(own["mcse_sd"], theirs_sd)) / sd
    return {
        "mean": float(of_mean),
        "ratio": float(ratio),
        "allowed": float(allowed),
        "allowed_sd": float(allowed_sd),
        "same": bool(abs(of_mean) <= allowed and abs(ratio - 1.0) <= allowed_sd),
    }


def line(published: Published, own: Mapping[str, float], draws: int) -> str:
    """A parameter's line of its table."""
    found = compared(published, own, draws)
    digits = min(len(published.mean.partition(".")[2]), 4)
    return row(
        published.theirs,
        published.mean,
        published.sd,
        published.effective or "-",
        f"{own['mean']:.{digits}f}",
        f"{own['sd']:.{digits}f}",
        f"{found['mean']:.3f} (± {found['allowed']:.3f})",
        f"{found['ratio']:.3f} (± {found['allowed_sd']:.3f})",
        "yes" if found["same"] else "no",
    )


def section(book: Textbook, found: Mapping[str, Any]) -> list[str]:
    """A data set's words and table."""
    words = f"""`{book.theirs}`, here `{book.formula}`, family `{book.family}`, for {found["clients"]} clients with
{found["rows"]} rows together. Priors: {book.prior_words} Source: {book.source} There are {book.draws:,} draws. The fit
takes {found["cpu"]:.0f} CPU seconds with compilation and says: "{found["conclusion"]}"{_tails(found)}."""
    columns = "parameter", "published mean", "sd", "its effective draws", "mean here", "sd", "difference, sds", "ratio"
    lines = [line(each, found["moments"][each.ours], book.draws) for each in book.published]
    return [f"## {book.title}\n", wrapped(words), *head((*columns, "the same"), right_from=1), *lines, ""]


def _tails(found: Mapping[str, Any]) -> str:
    """The quantities whose sds the fit does not vouch for."""
    named = ", ".join(f"`{name}`" for name in found["long_tails"])
    return f" (of {named})" if named else ""


def verdicts(results: Mapping[str, Any], part: str = "fit") -> dict[str, dict[str, Any]]:
    """Of every parameter that has been measured."""
    return {
        f"`{each.theirs}` ({book.title[0].lower()}{book.title[1:]})": compared(
            each, results[name][part]["moments"][each.ours], book.draws
        )
        for name, book in TEXTBOOKS.items()
        if "moments" in results.get(name, {}).get(part, {})
        for each in book.published
    }


def control(results: Mapping[str, Any]) -> str:
    """What comes out with other priors, so that one sees what the comparison can see."""
    found = verdicts(results, "defaults")
    told = [
        f"{name} {each['mean']:+.2f} posterior sds, ratio of sds {each['ratio']:.2f}"
        for name, each in found.items()
        if not each["same"]
    ]
    return f"""Priors matter little to most of these posteriors, so agreement says little about most of the priors. With
the defaults of `fb.regression` in place of the publications' priors {len(found) - len(told)} of {len(found)} parameters
are the same, and {len(told)} are not{": " if told else ""}{"; ".join(told)}."""


def markdown(results: Mapping[str, Any]) -> str:
    """The page, from what is stored."""
    found = list(verdicts(results).values())
    far, wide = max(abs(each["mean"]) for each in found), max(abs(each["ratio"] - 1.0) for each in found)
    opening = f"""Posteriors that others have published, by brms (Stan's NUTS) and Bambi (PyMC's NUTS), on data sets of
textbooks, beside those of `fb.regression` and EP with its defaults. Every group, which is a subject, a patient or a
department there, is a client here, and keeps its rows. The priors are the publication's, given by `priors=`. Of
{len(found)} parameters {sum(each["same"] for each in found)} are *the same*: the means differ, in posterior sds, and
the ratio of the sds differs from 1, by no more than stands in brackets. That is the rounding of the printed numbers and
{ERRORS:.0f} Monte Carlo errors of both sides: here those that the fit states, there those by the printed effective
number of draws, or by a quarter of the draws where none is printed (-). All means are within {far:.3f} posterior sds,
and all sds within {wide:.1%}. Small differences say nothing: an answer with 1,000 effective draws is 0.03 posterior sds
from the exact one by chance alone."""
    machines = " ".join(sorted({each["machine"] for each in results.values()}))
    parts = [
        "# Textbooks\n",
        f"Written by `textbooks.py`. {machines}\n",
        wrapped(opening),
        wrapped("The tables, and where they are from, are in [textbook_tables](textbook_tables/LICENSE.md)."),
    ]
    for name, book in TEXTBOOKS.items():
        own = results.get(name, {}).get("fit", {})
        parts += section(book, own) if "moments" in own else [f"## {book.title}\n", wrapped(f"No result: {own}.")]
    return "\n".join([*parts, "## With other priors\n", wrapped(control(results))])


def main(
    only: Annotated[list[str], typer.Option(help="Data sets to fit anew.")] = [],  # noqa: B006
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(hidden=True)] = SECONDS,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Fit the regressions, store the results after each, write the page."""
    if part:
        limit(seconds)
        output.write_text(json.dumps(fitted(only[0], part == "defaults")))
        return
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    console = Console(soft_wrap=True, highlight=False)
    for name in [] if table else only or list(TEXTBOOKS):
        for each in ("fit", "defaults"):
            if only or each not in results.get(name, {}):
                results.setdefault(name, {})["machine"] = machine()
                results[name][each] = fresh(SCRIPT, each, name, seconds, cold=True)
                STORED.write_text(json.dumps(results, indent=1) + "\n")
                console.print(name, each, str(results[name][each])[:300], markup=False)
    PAGE.write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
