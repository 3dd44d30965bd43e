"""The constants of EP's rules about noise: for each a problem that shows why it has its value, and what others do.

    python benchmarks/ep_constants.py                     # all of them, a few minutes; writes EP_CONSTANTS.md
    python benchmarks/ep_constants.py --only noise        # those whose name contains this; writes nothing

The problems are noisy: few draws, and for the first two constants the classical estimate of the covariance. *Error* is
the distance of the means from EP's own fixed point (a fit with 4,096 draws and tolerance 1e-3), root mean square over
globals and replicates, in posterior sds: what the noise, and the rounds left out, have cost.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pages
import typer
from ep_start import CASES, Case, fit
from pages import machine

import fedbayes as fb
from fedbayes.inference.ep import answer, server, step
from fedbayes.rounds.programs import forget_programs

PAGE = Path(__file__).parent / "EP_CONSTANTS.md"


class Trial(NamedTuple):
    """A constant, and where it matters.

    Attributes
    ----------
    name
        As in ``inference/ep/step.py``.
    meaning
        What it is.
    others
        Values to compare with.
    problem
        Of :data:`PROBLEMS`.
    options
        Of EP.
    """

    name: str
    meaning: str
    others: tuple[float, ...]
    problem: str
    options: Mapping[str, Any]


def mean_and_scale() -> Case:
    """Thirty clients of one row: a mean and a log variance."""

    def model(estimate: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ell = numpyro.sample("ell", dist.Normal(0.0, 1.0))
        numpyro.sample("estimate", dist.Normal(mu, jnp.exp(0.5 * ell)), obs=estimate)

    rows = 1.0 + 1.08 * np.random.default_rng(0).standard_normal(30)
    return Case(model, {f"client{k}": {"estimate": row} for k, row in enumerate(rows)}, lambda: None)


PROBLEMS: Mapping[str, Callable[[], Case]] = {**CASES, "mean and scale": mean_and_scale}
_NOISY = {"num_samples": 256, "solver": "importance", "estimator": "sample"}
_NEVER_CONTENT = {"num_samples": 32, "solver": "importance", "tolerance": 1e-6}

TRIALS = (
    Trial(
        "NOISE_TARGET",
        "noise of the global, in posterior sds, that needs no damping",
        (0.02, 1.0),
        "few rows 60",
        _NOISY,
    ),
    Trial(
        "ABOVE_NOISE",
        "change, in noises, above which the iteration is still on its way: no damping, no change of solver",
        (0.5, 100.0),
        "few rows 60",
        {**_NOISY, "init": "prior"},
    ),
    Trial("_AT_NOISE", "change, in noises, that is noise alone", (0.5, 20.0), "few rows 60", _NEVER_CONTENT),
    Trial(
        "_NEAR_NOISE",
        "change, in noises, that is noise alone if it no longer shrinks",
        (0.5, 40.0),
        "mean and scale",
        _NEVER_CONTENT,
    ),
)


def with_value(name: str, value: float, case: Case, options: Mapping[str, Any]) -> fb.FederatedFit:
    """A fit with another value of a constant."""
    places = [module for module in (step, server, answer) if hasattr(module, name)]
    usual = getattr(step, name)
    forget_programs()
    for module in places:
        setattr(module, name, value)
    try:
        return fit(case.model, case.clients, fb.EP(num_replicates=16, **options), 0)
    finally:
        forget_programs()
        for module in places:
            setattr(module, name, usual)


def cells(value: str, found: fb.FederatedFit, mean: np.ndarray, sd: np.ndarray) -> list[str]:
    """One line of a table."""
    gaps = (found.moments()[0] - mean) / sd
    last = found.rounds.isel(round=-1)
    return [
        value,
        str(found.communication.exchanges),
        "yes" if found.converged else "no",
        f"{np.sqrt(np.mean(gaps**2)):.2g}",
        f"{float(last['monte_carlo_noise'].mean()):.2g}",
        f"{float(last['step'].mean()):.2g}",
    ]


def table(trial: Trial) -> str:
    """A constant's heading, what it is, and its fits."""
    case = PROBLEMS[trial.problem]()
    reference = fit(case.model, case.clients, fb.EP(init="mode", num_samples=4096, tolerance=1e-3), 1000)
    mean, covariance = (found.mean(axis=0) for found in reference.moments())
    sd, usual = np.sqrt(np.diagonal(covariance)), getattr(step, trial.name)
    options = ", ".join(f"{name}={value!r}" for name, value in trial.options.items())
    lines = [
        f"## `{trial.name}`: {trial.meaning}",
        "",
        f"Set *{trial.problem}*, `fedbayes.EP({options})`, 16 replicates.",
        "",
    ]
    rows = []
    for value in sorted((usual, *trial.others)):
        shown = f"**{value:g}**" if value == usual else f"{value:g}"
        found = with_value(trial.name, value, case, trial.options)
        rows.append(cells(shown, found, mean, sd))
    columns = ("value", "exchanges", "converged", "error, sds", "noise, sds", "last step")
    return "\n".join([*lines, *pages.table(columns, rows)])


_HEAD = """\
# EP's constants about noise

Written by `ep_constants.py`, which says what the columns are; the library's own values are in bold. *noise* is the
Monte Carlo error of one undamped round that the fit reports for its last round.
"""


def main(only: Annotated[str, typer.Option(help="A part of the names of the constants.")] = "") -> None:
    """Measure, print, and write."""
    jax.config.update("jax_enable_x64", True)
    parts = []
    for trial in TRIALS:
        if only.lower() in trial.name.lower():
            parts.append(table(trial))
            print(parts[-1], flush=True)
    if not only:
        PAGE.write_text("\n".join([_HEAD, machine(), "", *parts]))


if __name__ == "__main__":
    typer.run(main)
