"""Analyses as an analyst would write them: is what a fit with defaults says right, and if not, does it say so?

    python benchmarks/analyses.py                          # what has no stored result yet; about an hour for all
    python benchmarks/analyses.py --only weibull --only spline          # these anew
    python benchmarks/analyses.py --again                               # all fits anew, against the stored NUTS
    python benchmarks/analyses.py --only spline --reference             # NUTS anew as well
    python benchmarks/analyses.py --table                               # ANALYSES.md from what is stored

Each fit and each NUTS runs in a fresh process with a time limit; results go to ``analyses.json`` after each.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pages
import typer
from analyses_programs import ANALYSES
from examples.measure import MEAN_LIMIT, SD_LIMIT, first_sentence, fit
from examples.pooled import nuts
from examples.processes import measured
from rich.console import Console

import fedbayes as fb

FOLDER = Path(__file__).parent
STORED, PAGE = FOLDER / "analyses.json", FOLDER / "ANALYSES.md"
SECONDS = 240.0  # a fit, or NUTS, that takes longer is too slow
MIXED = 1.05  # R-hat of a reference
USABLE = "fit.idata can be used"
WRONG = "SILENTLY WRONG"

_COLUMNS = (
    *("analysis", "what", "clients", "globals", "verdict", "mean, sds", "sd ratio", "Gaussian's means, sds"),
    *("effective draws", "rounds", "CPU s", "NUTS, CPU s", "ratio", "NUTS"),
)

_HEAD = """\
# Analyses as an analyst would write them

Written by `analyses.py`: usual models of applied statistics, each a program for one client (`analyses_programs/`) with
simulated data of 3 to 6 clients, fitted by `fedbayes.fit_federated` with its defaults, and compared with NumPyro's NUTS
on everybody's data.

{number} analyses. {summary}.

What is compared are the means and sds of the unconstrained globals, by the draws of `fit.idata`.

- *right*: `repr(fit)` ends with "fit.idata can be used", every mean is within 0.1 of NUTS's, in its posterior sds, and
  every sd within 10 percent, beside three Monte Carlo standard errors of NUTS (as in NUMPYRO_EXAMPLES.md).
- *flagged*: `repr(fit)` ends with "don't rely on fit.idata"; the numbers show what the draws would have said.
- *within its error*: it can be used by its own words, it is further off than that, but within three standard errors of
  what `fit.error` states as its Monte Carlo error and NUTS's together, beside the same 0.1 and 10 percent.
- *SILENTLY WRONG*: it can be used by its own words, and it is further off than that.
- *NUTS diverges*: the same, but NUTS has divergent transitions, so that its moments may be the wrong ones.
- *refused*: a `ClientDataError` or `ModelError` before work starts. *gives up*: a `FederatedError` in a round. *RAW*:
  any other error.
- *no reference*: NUTS has not run, or not in time, or its four chains differ (R-hat above 1.05). *too slow*: the fit
  took more than 240 seconds, on cores that other work kept busy at the same time.

*mean* and *sd ratio* are the worst of all globals, which are named. *Gaussian's means, sds* is what `fit.error` says of
the Gaussian before correction: root mean square errors in posterior sds, and relative. *CPU s* are those of the first
fit of a fresh process with all its compilation, and of NUTS with its compilation, four chains of 1,000 warm-up steps
and 1,000 draws; *ratio* is the first over the second. *NUTS*: the largest Monte Carlo errors of its means, in sds, and
of its sds, relative, from as many draws as that takes.

{machine}
"""


def answered(fitted: fb.FederatedFit) -> dict[str, Any]:
    """What the user gets: moments of the draws, what the fit says of their error, and whether they can be used."""
    theta, found = fitted.theta, {}
    draws = theta.reshape(-1, theta.shape[-1])
    if fitted.correction is not None:
        own = fitted.error
        found = {
            "own_mcse": np.asarray(own["mean_mcse"]).tolist(),
            "own_mcse_sd": np.asarray(own["sd_mcse"]).tolist(),
            **{name: own.attrs[name] for name in ("correction", "mean_error", "sd_error", "effective_draws", "modes")},
            "weights_k_hat": own.attrs["k_hat"],
        }
    return {
        **found,
        "drawn_mean": draws.mean(axis=0).tolist(),
        "drawn_sd": draws.std(axis=0).tolist(),
        "conclusion": repr(fitted).rsplit("  so        ", 1)[-1],
        "why": first_sentence(fitted.trouble()),
    }


def verdict(fit: Mapping[str, Any], nuts: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in a word, and the worst errors with the globals that have them, where there is a reference."""
    if fit.get("slow"):
        return {"verdict": "too slow"}
    if "died" in fit:
        return {"verdict": "RAW"}
    if "error" in fit:
        return {"verdict": fit["error"]["kind"]}
    flagged = not fit["conclusion"].startswith(USABLE)
    if "mean" not in nuts:
        return {"verdict": "flagged" if flagged else "no reference"}
    found = errors(fit, nuts)
    if flagged:
        return {"verdict": "flagged", **found}
    if nuts["r_hat"] > MIXED:
        return {"verdict": "no reference", **found}
    off = "NUTS diverges" if nuts["diverging"] else WRONG
    return {"verdict": "right" if found["within"] else "within its error" if found["covered"] else off, **found}


def errors(fit: Mapping[str, Any], nuts: Mapping[str, Any]) -> dict[str, Any]:
    """How far the draws' moments are from NUTS's, and whether that is within the limits, or within the stated error."""
    assert fit["labels"] == nuts["labels"], (fit["labels"], nuts["labels"])
    mean, sd, mcse, mcse_sd = (np.asarray(nuts[name]) for name in ("mean", "sd", "mcse", "mcse_sd"))
    of_mean, ratio = np.abs(np.asarray(fit["drawn_mean"]) - mean) / sd, np.asarray(fit["drawn_sd"]) / sd
    of_sd = np.abs(ratio - 1.0)
    at, at_sd = int(np.argmax(of_mean)), int(np.argmax(of_sd))

    def within(slack: np.ndarray, slack_sd: np.ndarray) -> bool:
        return bool(np.all(of_mean <= MEAN_LIMIT + 3.0 * slack) and np.all(of_sd <= SD_LIMIT + 3.0 * slack_sd))

    own, own_sd = (np.asarray(fit.get(name, 0.0)) for name in ("own_mcse", "own_mcse_sd"))
    return {
        "mean_error": float(of_mean[at]),
        "mean_at": fit["labels"][at],
        "sd_ratio": float(ratio[at_sd]),
        "sd_at": fit["labels"][at_sd],
        "within": within(mcse, mcse_sd),
        "covered": within(np.hypot(mcse, own), np.hypot(mcse_sd, own_sd)),
    }


def cells(name: str, result: Mapping[str, Any]) -> dict[str, str]:
    """What the table shows of an analysis."""
    fit, nuts, found = result["fit"], result["nuts"], verdict(result["fit"], result["nuts"])
    gaussian = f"{fit['mean_error']:.2g}, {fit['sd_error']:.2g}" if "mean_error" in fit else ""
    return {
        "analysis": name,
        "what": ANALYSES[name].source,
        "clients": str(result["clients"]),
        "globals": str(len(fit["mean"])) if "mean" in fit else "",
        "verdict": found["verdict"],
        "mean, sds": f"{found['mean_error']:.2f} ({found['mean_at']})" if "mean_error" in found else "",
        "sd ratio": f"{found['sd_ratio']:.2f} ({found['sd_at']})" if "sd_ratio" in found else "",
        "Gaussian's means, sds": gaussian,
        "effective draws": f"{fit['effective_draws']:,.0f}" if "effective_draws" in fit else "",
        "rounds": str(fit.get("rounds", "")),
        "CPU s": f"{fit['cpu']:.0f}" if "cpu" in fit else "",
        "NUTS, CPU s": f"{nuts['cpu']:.0f}" if "cpu" in nuts else "",
        "ratio": f"{fit['cpu'] / nuts['cpu']:.1f}" if "cpu" in fit and "cpu" in nuts else "",
        "NUTS": of_nuts(nuts),
    }


def of_nuts(nuts: Mapping[str, Any]) -> str:
    """The reference in a few words: its Monte Carlo errors, and what is wrong with it."""
    if "mean" not in nuts:
        return "too slow" if nuts.get("slow") else nuts.get("last", "")
    words = f"{max(nuts['mcse']):.3f}, {max(nuts['mcse_sd']):.3f}"
    words += f"; R-hat {nuts['r_hat']:.2f}" if nuts["r_hat"] > 1.01 else ""
    return words + (f"; {nuts['diverging']} diverging" if nuts["diverging"] else "")


def told(fit: Mapping[str, Any]) -> str:
    """What the fit says where it is not to be used, or there is none."""
    if "error" in fit:
        where = f" ({fit['error']['where']})" if fit["error"]["kind"] == "RAW" else ""
        return f"{fit['error']['class']}: {fit['error']['message']}{where}"
    return fit.get("why", fit.get("last", ""))


def page(results: Mapping[str, Any]) -> str:
    """``ANALYSES.md``."""
    rows = [cells(name, result) for name, result in results.items()]
    counts = Counter(each["verdict"] for each in rows)
    summary = ", ".join(f"{word}: {count}" for word, count in counts.most_common())
    machine = " ".join(sorted({result["machine"] for result in results.values()}))
    words = [f"- {name}: {words}" for name, result in results.items() if (words := told(result["fit"]))]
    notes = [f"- {name}: {ANALYSES[name].note}." for name in results if ANALYSES[name].note]
    lines = [_HEAD.format(number=len(rows), summary=summary, machine=machine)]
    lines += pages.table(_COLUMNS, [[each[column].replace("|", "\\|") for column in _COLUMNS] for each in rows])
    lines += (
        ["What the fits say for themselves where something is not as it should be:", "", *words, ""] if words else []
    )
    return "\n".join(lines + (["Notes:", "", *notes, ""] if notes else []))


def child(part: str, name: str, output: Path, seconds: float) -> None:
    """One fit, or one NUTS, in this process; the result as JSON."""
    if part == "nuts":
        jax.config.update("jax_enable_x64", True)
    result = fit(ANALYSES[name], answered) if part == "fit" else nuts(ANALYSES[name], 0.8 * seconds)
    output.write_text(json.dumps(result))


def main(
    only: Annotated[list[str], typer.Option(help="Analyses to run anew.")] = [],  # noqa: B006
    again: Annotated[bool, typer.Option("--again", help="Run all fits anew.")] = False,
    reference: Annotated[bool, typer.Option("--reference", help="Run NUTS anew, too.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(help="Limit of a fit, and of NUTS.")] = SECONDS,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the analyses, store the results after each, write the page."""
    if part:
        child(part, only[0], output, seconds)
        return
    if unknown := [name for name in only if name not in ANALYSES]:
        raise typer.BadParameter(f"{unknown}: the analyses are {list(ANALYSES)}")
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    console = Console(soft_wrap=True, highlight=False)
    for name in () if table else only or ANALYSES:
        before, example = results.get(name, {}), ANALYSES[name]
        found = measured(example, before, Path(__file__), again or bool(only), False, reference, seconds)
        if found == before:
            continue
        results[name] = {**found, "clients": len(example.clients()), "machine": pages.machine()}
        results = {each: results[each] for each in ANALYSES if each in results}
        STORED.write_text(json.dumps(results, indent=1) + "\n")
        console.print(" | ".join(cells(name, results[name]).values()), told(results[name]["fit"]), markup=False)
    PAGE.write_text(page(results))


if __name__ == "__main__":
    typer.run(main)
