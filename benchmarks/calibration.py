"""Simulation-based calibration of the ready models: ``python benchmarks/calibration.py``.

Writes ``CALIBRATION.md``: whether the ranks of the truth are uniform, how often central intervals hold it, and what a
fit costs side by side with others and by itself.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from pages import head, machine, row
from rich.console import Console

import fedbayes as fb
from fedbayes.models import eight_schools, heart_disease, hierarchical_linear, linear, penalised

KEY = jax.random.key(0)
HERE = Path(__file__).parent
LOOPED = 8  # fits that are timed one after the other, warm


class Problem(NamedTuple):
    """A model, its simulator, and what it is in words."""

    model: Callable
    simulate: Callable
    words: str


def ridge_simulator() -> Callable:
    """Ridge's prior predictive law, with fixed predictors."""
    clients, _ = penalised.simulate(jax.random.key(1), num_clients=6, rows=30)
    return fb.prior_simulator(penalised.ridge, clients)


def small_hospitals() -> Callable:
    """The first 40 patients of each hospital, with outcomes from the prior."""
    clients = {name: {key: leaf[:40] for key, leaf in data.items()} for name, data in heart_disease.clients().items()}
    return fb.prior_simulator(heart_disease.model, clients)


def problems() -> Mapping[str, Problem]:
    """The ready models, small."""
    return {
        "linear": Problem(linear.model, partial(linear.simulate, rows=(20, 20, 20)), "3 clients of 20 rows, 3 globals"),
        "ridge": Problem(penalised.ridge, ridge_simulator(), "6 clients of 30 rows, 2 globals"),
        "hierarchical_linear": Problem(
            hierarchical_linear.model,
            partial(hierarchical_linear.simulate, num_clients=10, rows=20, dim=1),
            "10 clients of 20 rows, 2 globals, 1 local each",
        ),
        "heart_disease": Problem(
            heart_disease.model, small_hospitals(), "4 hospitals of 40 patients, 14 globals, separable data included"
        ),
        "eight_schools": Problem(
            eight_schools.model_noncentered, eight_schools.simulate, "8 schools of one row, 2 globals, 1 local each"
        ),
    }


METHODS: Mapping[str, tuple[Any, bool]] = {
    "EP, corrected": ("ep", True),
    "EP": ("ep", False),
    "Laplace": ("laplace", False),
    "consensus": (fb.OneShot(combine="consensus", solver="importance", check=False), False),
    "product of Gaussians": (fb.OneShot(combine="gaussian_product", solver="importance", check=False), False),
}


def timed(problem: Problem, method: Any, correction: bool, num: int) -> tuple[fb.Calibration, float, float]:
    """A calibration, its first batch's seconds with compilation, and seconds per fit once compiled."""
    run = partial(fb.calibrate, problem.model, problem.simulate, method, correction=correction, progress=False)
    size = min(50, num)
    started = time.perf_counter()
    run(key=jax.random.key(1), num=size)
    first = time.perf_counter() - started
    started = time.perf_counter()
    found = run(key=KEY, num=num)
    return found, first, (time.perf_counter() - started) / num


def looped(problem: Problem, method: Any) -> float:
    """Median seconds of one ``fit_federated`` of one replicate, once compiled."""
    from fedbayes.calibration.fits import with_one_replicate
    from fedbayes.fit import method_of

    seconds = []
    for number in range(LOOPED + 1):
        clients, _ = problem.simulate(jax.random.key(number))
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = fb.fit_federated(
                problem.model,
                clients,
                method=with_one_replicate(method_of(method)),
                key=KEY,
                correct=False,
                progress=False,
            )
            fit.moments()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))


def line(name: str, label: str, found: fb.Calibration, first: float, each: float, alone: float | None) -> str:
    """One line of the table."""
    tested, held = found.test(), found.coverage((0.5, 0.9))["observed"]
    worst = int(np.argmin(tested["adjusted"].values))
    spans = [f"{float(level.min()):.3f} - {float(level.max()):.3f}" for level in held]
    k_hat = f"{found.unreliable:.1%}" if found.corrected else ""
    by_loop = "" if alone is None else f"{1e3 * alone:.0f} ({alone / each:.2g})"
    least = f"{float(tested['adjusted'][worst]):.2g} (`{tested['parameter'].values[worst]}`)"
    times = f"{first:.0f}", f"{1e3 * each:.1f}", by_loop
    return row(name, label, least, *spans, int(found.converged.sum()), k_hat, *times)


COLUMNS = (
    *("model", "method", "smallest adjusted p", "held by 50%", "by 90%", "converged", "not trusted", "first, s"),
    *("ms a fit", "ms a fit alone (ratio)"),
)


def report(known: Mapping[str, Problem], num: int, rows: list[str]) -> str:
    """The page."""
    se = [np.sqrt(level * (1.0 - level) / num) for level in (0.5, 0.9)]
    described = "\n".join(f"- `{name}`: {problem.words}." for name, problem in known.items())
    return f"""# Calibration

Written by `calibration.py`. {num} truths from the prior, data simulated given each, every data set fitted by one
replicate, and the truth ranked among 255 draws of its posterior (`fb.calibrate`; Talts et al. 2018). {machine()}

{described}

The p-value is that of the simultaneous band of the ranks' distribution function (Säilynoja et al. 2022), the smallest
over parameters, adjusted for their number (Holm). "Held" is the share of central intervals that hold the truth,
smallest and largest over parameters; its standard error where it is right is {se[0]:.3f} and {se[1]:.3f}. All fits
count, also those that have not converged and those whose weights are not to be trusted. "First" is a first batch of
{min(50, num)} fits with what it has to compile (EP's rounds are compiled by the row of its correction); "ms a fit" is
once compiled, with simulation, ranks and, where corrected, the exchange of log-likelihoods; "alone" is the median of
{LOOPED} calls of `fit_federated` with one replicate, once compiled, without a correction.

{chr(10).join([*head(COLUMNS, right_from=3), *rows])}
"""


def main(
    num: Annotated[int, typer.Option(help="Simulated data sets of a row.")] = 300,
    only: Annotated[str, typer.Option(help="A part of the models' names.")] = "",
    out: Annotated[Path, typer.Option(help="What to write.")] = HERE / "CALIBRATION.md",
    quick: Annotated[bool, typer.Option(help="Few data sets, nothing written: does everything run?")] = False,
) -> None:
    """Measure, print, and write the results."""
    console, rows = Console(width=200), []
    known = {name: problem for name, problem in problems().items() if only in name}
    for name, problem in known.items():
        alone: dict[str, float] = {}
        for label, (method, correction) in METHODS.items():
            found, first, each = timed(problem, method, correction, 10 if quick else num)
            if not correction:
                alone[label] = looped(problem, method)
            rows.append(line(name, label, found, first, each, alone.get(label)))
            console.print(rows[-1], soft_wrap=True)
    if not quick:
        out.write_text(report(known, num, rows))


if __name__ == "__main__":
    typer.run(main)
