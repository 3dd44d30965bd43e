"""Is every family of `fb.regression` calibrated, and does it end where pooled NUTS does?

    python benchmarks/families.py                     # what has no result yet
    python benchmarks/families.py --only gamma        # anew
    python benchmarks/families.py --table             # FAMILIES.md from what is stored

Calibration: truths from the program's own prior, data given each, every data set fitted (`fb.calibrate`). NUTS: one
data set of five clients of unequal sizes with an effect of the client, and NumPyro's NUTS on the product of the
clients' programs. Each part runs in a fresh process; results go to ``families.json`` after each.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from examples.example import Example
from examples.measure import fit
from examples.pooled import MCSE, nuts
from examples.processes import fresh, limit
from examples.verdicts import answered
from families_data import META_ANALYSIS, ROWS, STUDIES, calibrated_regression, hierarchy, simulator
from pages import head, machine, row, wrapped
from rich.console import Console

import fedbayes as fb
from fedbayes.formula.families import FAMILIES

SCRIPT = Path(__file__)
STORED, PAGE = SCRIPT.with_suffix(".json"), SCRIPT.with_name("FAMILIES.md")
CALIBRATED = [*FAMILIES, META_ANALYSIS]
NUM = 400  # data sets
SECONDS = 900.0
REFERENCE = 0.4  # of the seconds
MEAN, SD = 0.05, 0.05  # posterior sds, and the sds' ratio less one
OF_SDS = 0.015  # relative error of NUTS's sds, if there is time
AGAINST_NUTS = {"reference", "nuts", "fit"}


def calibration(name: str, num: int) -> dict[str, Any]:
    """Coverage of central intervals, and the test of the ranks."""
    reg = calibrated_regression(name)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fb.calibrate(reg.model, simulator(reg, name), key=jax.random.key(0), num=num, progress=False)
    tested = found.test()
    return {
        "num": num,
        "seconds": time.perf_counter() - began,
        "labels": [str(label) for label in tested["parameter"].values],
        "held": found.coverage((0.5, 0.9))["observed"].values.tolist(),
        "adjusted": tested["adjusted"].values.tolist(),
        "converged": int(found.converged.sum()),
        "unreliable": float(found.unreliable),
    }


def example(name: str) -> Example:
    """The hierarchy as the other benchmarks take programs."""
    reg = hierarchy(name)
    return Example(name, "", reg.model, lambda: reg.clients)


def compared(fitted: dict[str, Any], rival: dict[str, Any]) -> dict[str, Any]:
    """The worst mean and sd, and whether both are within the limits, beside three Monte Carlo errors of both."""
    mean, sd, mcse, mcse_sd = (np.asarray(rival[each]) for each in ("mean", "sd", "mcse", "mcse_sd"))
    of_mean = np.abs(np.asarray(fitted["drawn_mean"]) - mean) / sd
    ratio = np.asarray(fitted["drawn_sd"]) / sd
    own, own_sd = np.asarray(fitted["own_mcse"]), np.asarray(fitted["own_mcse_sd"])
    fine = of_mean <= MEAN + 3.0 * np.hypot(own, mcse)
    fine_sd = np.abs(ratio - 1.0) <= SD + 3.0 * np.hypot(own_sd, mcse_sd)
    at, at_sd = int(np.argmax(of_mean)), int(np.argmax(np.abs(ratio - 1.0)))
    labels = fitted["labels"]
    return {
        "right": bool(np.all(fine & fine_sd)),
        "mean": f"{of_mean[at]:.3f} ({labels[at]})".replace("|", r"\|"),
        "sd": f"{ratio[at_sd]:.3f} ({labels[at_sd]})".replace("|", r"\|"),
    }


def calibrated_row(name: str, found: dict[str, Any]) -> str:
    """A line of the first table."""
    fifty, ninety = (np.asarray(level) for level in found["held"])
    least = int(np.argmin(found["adjusted"]))
    return row(
        name,
        len(found["labels"]),
        f"{fifty.mean():.3f} ({fifty.min():.3f} - {fifty.max():.3f})",
        f"{ninety.mean():.3f} ({ninety.min():.3f} - {ninety.max():.3f})",
        f"{found['adjusted'][least]:.2g} (`{found['labels'][least]}`)",
        found["converged"],
        f"{found['unreliable']:.1%}",
        f"{1e3 * found['seconds'] / found['num']:.0f}",
    )


def rival_row(name: str, parts: dict[str, Any]) -> str:
    """A line of the second table."""
    fitted, rival, reference = parts["fit"], parts["nuts"], parts["reference"]
    if "drawn_mean" not in fitted or "mean" not in reference or "cpu" not in rival:
        failed = fitted.get("error", {}).get("message") or fitted.get("slow")
        failed = failed or rival.get("slow") or reference.get("slow") or "no reference"
        return row(name, f"no comparison: {failed}", *[""] * 6)
    found = compared(fitted, reference)
    usable = "" if fitted["conclusion"].startswith("fit.idata can be used") else ", flagged"
    words = ("right" if found["right"] else "further off") + usable
    errors = f"{max(reference['mcse']):.3f}, {max(reference['mcse_sd']):.3f}"
    ratio = f"{fitted['cpu'] / rival['cpu']:.2g}"
    return row(name, words, found["mean"], found["sd"], errors, f"{fitted['cpu']:.0f}", f"{rival['cpu']:.0f}", ratio)


def _against_nuts(known: dict[str, Any]) -> list[str]:
    """The families of the second table."""
    return [name for name, each in known.items() if each.keys() >= AGAINST_NUTS]


def _measured(known: dict[str, Any]) -> str:
    """Which families have been measured against NUTS, and which have not."""
    there = _against_nuts(known)
    missing = [name for name in FAMILIES if name not in there]
    if not missing:
        return "All families have been measured against NUTS."
    return (
        f"Of {len(FAMILIES)} families {len(there)} have been measured against NUTS so far: {_listed(there)}. "
        f"Not measured yet: {_listed(missing)}."
    )


def _without_groups(known: dict[str, Any]) -> str:
    """Which of the programs in the second table has no effect of the client, and why."""
    return (
        "The baselines of `cox` hold the client's effect: its formula is `y ~ x`. "
        if "cox" in _against_nuts(known)
        else ""
    )


def _machines(known: dict[str, Any], part: str) -> str:
    """With what a part was measured."""
    return " " + " ".join(sorted({each["machines"][part] for each in known.values() if part in each["machines"]}))


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def markdown(results: dict[str, Any]) -> str:
    """The page, from what is stored."""
    known = {name: results[name] for name in CALIBRATED if name in results}
    first = [
        calibrated_row(name, each["calibration"])
        for name, each in known.items()
        if "held" in each.get("calibration", {})
    ]
    second = [rival_row(name, known[name]) for name in _against_nuts(known)]
    num = next((each["calibration"]["num"] for each in known.values() if "calibration" in each), NUM)
    se = [np.sqrt(level * (1.0 - level) / num) for level in (0.5, 0.9)]
    held = np.concatenate(
        [np.asarray(each["calibration"]["held"][1]) for each in known.values() if "calibration" in each]
    )
    outside = int(np.sum(np.abs(held - 0.9) > 0.03 + 1e-9))
    opening = f"""`y ~ x` for three clients of {", ".join(map(str, ROWS))} rows, by each family. {num} truths from the
prior, data given each, every data set fitted by EP with its correction and one replicate, and the truth ranked among
255 draws (`fb.calibrate`). Trials, censoring times and predictors are the same in all data sets. Times of `cox` are
exponential, with a baseline hazard that is four times higher at each next client, and at half of the events another
row leaves: who has which event is then all that the times tell, and the partial likelihood its probability.
`{META_ANALYSIS}` is `y | se(s) ~ x + (1 | site)` for {len(STUDIES)} studies of {min(STUDIES)} to {max(STUDIES)} rows,
with known standard errors. Priors of coefficients are Normal(0, 0.7), so that counts stay finite; those of all other
parameters are the family's defaults. "Held" is the share of central intervals that hold the truth: the mean over the
parameters, and the smallest and largest; the standard error of one is {se[0]:.3f} and {se[1]:.3f} where it is right. p
is that of the simultaneous band of the ranks, the smallest over parameters, adjusted for their number (Holm). All fits
count, also those that have not converged and those whose weights are not to be trusted. Of {len(held)} parameters
{len(held) - outside} have a coverage of 90 percent intervals between 87 and 93 percent."""
    rival = f"""{_measured(known)}
`y ~ x + (1 | site)` on one data set of five clients of 15 to 120 rows. The rival is NumPyro's NUTS on the product of
the clients' programs: four chains, vectorised, of 1,000 warm-up steps. Its draws are doubled until its Monte
Carlo errors are at most {MCSE} posterior sds in the means and {OF_SDS:.1%} of the sds, or until doubling them once more
would take more than {REFERENCE * SECONDS:.0f} CPU seconds; the largest of both are given.
{_without_groups(known)}
*right*: of all unconstrained globals the means of `fit.idata`'s draws are within {MEAN} posterior sds and the sds
within {SD:.0%}, beside three Monte Carlo errors of both. The worst of each is named. Seconds are CPU seconds,
compilation included, in a fresh process: of the fit with its check, and of NUTS to its first 4,000 draws."""
    columns = "family", "parameters", "held by 50%", "by 90%", "smallest adjusted p", "converged", "not trusted", "ms"
    others = "family", "verdict", "mean, sds", "sd ratio", "NUTS's errors", "fit, s", "NUTS, s", "ratio"
    parts = ["# Families\n", "Written by `families.py`.\n", "## Calibration\n"]
    parts += [wrapped(opening + _machines(known, "calibration")), *head(columns, right_from=1), *first, ""]
    parts += ["## Against pooled NUTS\n", wrapped(rival + _machines(known, "fit"))]
    return "\n".join([*parts, *head(others, right_from=2), *second, ""])


def _child(part: str, name: str, output: Path, seconds: float) -> None:
    limit(seconds)
    if part == "calibration":
        found = calibration(name, NUM)
    elif part == "fit":
        found = fit(example(name), answered)
    elif part == "nuts":
        found = nuts(example(name), 0.0)
    else:
        found = nuts(example(name), REFERENCE * seconds, of_sds=OF_SDS)
    output.write_text(json.dumps(found))


def main(
    only: Annotated[list[str], typer.Option(help="Families to run anew.")] = [],  # noqa: B006
    parts: Annotated[str, typer.Option(help="Which parts, by commas.")] = "calibration,reference,nuts,fit",
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(hidden=True)] = SECONDS,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the families, store the results after each, write the page."""
    if part:
        _child(part, only[0], output, seconds)
        return
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    console = Console(soft_wrap=True, highlight=False)
    for name in [] if table else only or CALIBRATED:
        for each in parts.split(","):
            if name == META_ANALYSIS and each != "calibration":
                continue  # no family of its own
            if only or each not in results.get(name, {}):
                results.setdefault(name, {}).setdefault("machines", {})[each] = machine()
                results[name][each] = fresh(SCRIPT, each, name, seconds, cold=each != "calibration")
                STORED.write_text(json.dumps(results, indent=1) + "\n")
                console.print(name, each, str(results[name][each])[:300], markup=False)
    PAGE.write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
