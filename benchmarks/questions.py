"""What a fit's questions cost once the fit is done: the first time, with what they compile, and once more.

    python benchmarks/questions.py --label after    # three fresh processes, 2 min; writes QUESTIONS.md
    python benchmarks/questions.py --table          # QUESTIONS.md from what is stored

Ten clients of 100 rows each, and three programs: a logistic regression, the same with an intercept for each client, and
with an intercept and a slope. Each process compiles everything, has both cores, and asks the questions in their order.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pages
import typer
from first_fit import Clock

import fedbayes as fb
import fedbayes.fit

SCRIPT = Path(__file__)
STORED, PAGE = SCRIPT.with_suffix(".json"), SCRIPT.with_name("QUESTIONS.md")
LABELS = ("before", "after")

_OPENING = """\
# What questions cost once the fit is done

Written by `questions.py`: ten clients of 100 rows each, `fit_federated` with its defaults in a fresh process that
compiles everything, and then each question, twice, in the order of the lines. Seconds on the clock of the first time,
XLA programs that it compiled in brackets, and seconds of the second time. *flat* is a logistic regression, *intercept*
has an intercept for each client, *slope* an intercept and a slope. A dash: there is nothing to ask. *Before* is commit
322217c.

"""


def flat(x: Any, y: Any = None) -> None:
    """A logistic regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def intercept(x: Any, y: Any = None) -> None:
    """With an intercept for each client."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(0.0, tau))
    numpyro.sample("y", dist.Bernoulli(logits=own + x @ beta), obs=y)


def slope(x: Any, y: Any = None) -> None:
    """With an intercept and a slope for each client."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(0.0, tau).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=own[0] + own[1] * x[:, 0] + x @ beta), obs=y)


PROGRAMS = {"flat": flat, "intercept": intercept, "slope": slope}


def clients() -> dict[str, dict[str, np.ndarray]]:
    """Simulated, each with an intercept of its own."""
    rng, found = np.random.default_rng(0), {}
    for k in range(10):
        x, own = rng.normal(size=(100, 4)), rng.normal()
        chance = 1.0 / (1.0 + np.exp(-own - x @ [1.0, -1.0, 0.5, 0.0]))
        found[f"c{k}"] = {"x": x, "y": (rng.uniform(size=100) < chance).astype(float)}
    return found


def questions(fit: fb.FederatedFit, local: bool) -> dict[str, Callable[[], Any]]:
    """By name; the rows of predictions are others each time, of two numbers of rows."""
    rng = np.random.default_rng(1)
    new = {"x": rng.normal(size=(37, 4)), "y": rng.integers(0, 2, size=37).astype(float)}
    found: dict[str, Callable[[], Any]] = {"idata": lambda: fit.idata}
    if local:
        found |= {"client_posterior": lambda: fit.client_posterior("c0"), "client_posteriors": fit.client_posteriors}
    return found | {
        "predict, 37 rows": lambda: fit.predict("c1", x=rng.normal(size=(37, 4))),
        "predict, 41 rows": lambda: fit.predict("c1", x=rng.normal(size=(41, 4))),
        "log_predictive_density": lambda: fit.log_predictive_density("c1", **new),
        "check": fit.check,
        "predictive_check": fit.predictive_check,
        "loo": fit.loo,
        "adapt": lambda: fit.adapt(new),
        "conflict": fit.conflict,
    }


def measured(name: str) -> dict[str, Any]:
    """The steps of one program, in this process."""
    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = clock.time(
            "fit", lambda: fb.fit_federated(PROGRAMS[name], clients(), key=jax.random.key(0), progress=False)
        )
        for asked, question in questions(fit, local=name != "flat").items():
            clock.time(asked, question)
            clock.time(f"{asked}, again", question)
    return clock.steps


def markdown(results: dict[str, Any]) -> str:
    """The page, from what is stored."""
    text = _OPENING
    for label in (label for label in LABELS if label in results):
        found = results[label]
        steps = max(found["programs"].values(), key=len)
        rows = [
            [step, *(_cell(each, step) for each in found["programs"].values())]
            for step in steps
            if not step.endswith(", again")
        ]
        table = "\n".join(pages.table(("", *found["programs"]), rows, right_from=1))
        text += f"## {label.capitalize()}\n\n{found['machine']}\n\n{table}\n"
    return text.rstrip("\n") + "\n"


def _cell(steps: dict[str, Any], step: str) -> str:
    if step not in steps:
        return "-"
    first, again = steps[step], steps.get(f"{step}, again")
    return f"{first['seconds']:.2f} ({first['programs']:.0f})" + (f", {again['seconds']:.2f}" if again else "")


def main(
    label: Annotated[str, typer.Option(help=f"Of the results, one of {LABELS}.")] = LABELS[-1],
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    child: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Ask, store, write the page."""
    if child:
        print(json.dumps(measured(child)))
        return
    if label not in LABELS:
        raise typer.BadParameter(f"{label}: the labels are {LABELS}")
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    if not table:
        environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        found = {}
        for name in PROGRAMS:
            command = [sys.executable, str(SCRIPT), "--child", name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
            found[name] = json.loads(done.stdout.splitlines()[-1])
        results = {
            **results,
            label: {"machine": pages.machine(("jax", "numpyro", "numpy"), alone=True), "programs": found},
        }
        STORED.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
