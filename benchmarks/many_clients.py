"""100,000 clients, each with an intercept of its own: time, memory, and how far off the answer is.

    python benchmarks/many_clients.py               # what has no result yet; an hour on two cores
    python benchmarks/many_clients.py --only all    # one part anew: some (1,000), many (20,000), all, or nuts

The fit of all clients has no reference. Its draws are compared with the truth of the simulation, and the same fit of
1,000 of the clients with NumPyro's NUTS on their pooled rows. Each runs in a fresh process, one after the other.
"""

import json
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pages
import typer
from examples.example import Clients, Example, named, rng
from examples.pooled import nuts
from examples.processes import fresh, limit
from examples.verdicts import answered, verdict
from hierarchies_programs.intercepts import logistic, logistic_together
from hierarchies_programs.together import gathered

import fedbayes as fb
from fedbayes.questions.conflict.words import disagreeing

SCRIPT = Path(__file__)
STORED, PAGE = SCRIPT.with_suffix(".json"), SCRIPT.with_name("MANY_CLIENTS.md")
SIZES = {"some": 1_000, "many": 20_000, "all": 100_000}  # clients
ROWS, SLOPES = 10, 20
LEVEL, BETWEEN = -0.5, 0.7
LIMIT = 7200.0  # CPU seconds
PARTS = (*SIZES, "nuts")
COLUMNS = (
    *("clients", "rows", "rounds", "seconds", "of the check", "CPU s", "peak, GiB", "data, GiB", "k-hat"),
    *("effective draws", "own error, sds", "against NUTS: mean, sds", "sd ratio", "verdict"),
)


def slopes() -> np.ndarray:
    """Of the simulation."""
    return 0.3 * rng("slopes of many clients").normal(size=SLOPES)


def clients(number: int) -> Clients:
    """So many of the model; up to 20,000 they are the first of the same clients."""
    random, found = rng("many clients"), []
    own, beta = LEVEL + BETWEEN * random.normal(size=max(number, SIZES["many"])), slopes()
    for k in range(number):
        x = random.normal(size=(ROWS, SLOPES))
        y = (random.logistic(size=ROWS) < own[k] + x @ beta).astype(np.int32)
        found.append({"x": x, "y": y})
    return named(*found)


EXAMPLE = Example("some", "", logistic, lambda: clients(SIZES["some"]), pooled=gathered(logistic_together))


def measure(number: int) -> dict[str, Any]:
    """The first fit of this process, with its ``idata``."""
    data = clients(number)
    before, began, used = _peak(), time.perf_counter(), time.process_time()
    fit = fb.fit_federated(logistic, data, method="laplace", num_draws=250, key=jax.random.key(0), progress=False)
    beta = fit.idata.posterior["beta"].values.reshape(-1, SLOPES)
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
    z = (beta.mean(axis=0) - slopes()) / beta.std(axis=0)
    return {
        **spent,
        "of_rounds": float(fit.rounds["seconds"].sum()),
        "rounds": int(fit.rounds.sizes["round"]),
        "before": before,
        "peak": _peak(),
        "rows": number * ROWS,
        "z": float(np.sqrt(np.mean(z**2))),
        "named": len(disagreeing(fit.conflict())),
        "labels": list(fit.global_labels),
        "machine": pages.machine(),
        **answered(fit),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # counts KiB


def markdown(results: Mapping[str, Any]) -> str:
    """The page, from what is stored."""
    words = f"""Written by `many_clients.py`. A logistic regression with {SLOPES} slopes and an intercept for each
client, whose mean and sd are globals as well; {ROWS} rows a client. `fedbayes.fit_federated(..., method="laplace",
num_draws=250)` and `fit.idata`, compilation included: Newton's rounds to the federated mode, then one exchange for the
clients' log-likelihoods at draws of the Gaussian there, by which `fit.idata` is corrected. Nothing but sums leaves a
client. *Of the check*: all that is not of the rounds, the reading of the data among it. Both are left out where other
work kept the fit waiting, so that it took longer than its CPU seconds. *Peak* is the largest resident memory of the
process, *data* what it was before the fit. *Own error*: the largest Monte Carlo error of the means that the weights
give, by `fit.error`; draws that are taken by the weights add that of so many draws.
Verdicts are those of [HIERARCHIES.md](HIERARCHIES.md).
{" ".join(dict.fromkeys(each["machine"] for each in results.values() if "machine" in each))}"""
    there = [name for name in SIZES if name in results]
    lines = [_line(name, results[name], results.get("nuts", {})) for name in there]
    text = [pages.wrapped(words), *pages.table(COLUMNS, lines)]
    for name in there[1:]:
        if "z" not in results[name]:
            continue
        text += [
            pages.wrapped(
                f"The root mean square of the {SLOPES} slopes' distances from the truth, in posterior sds, is "
                f"{results[name]['z']:.2f} for {SIZES[name]:,} clients; 0.69 to 1.31 would hold 95 percent of such "
                f"data sets. All clients come from the model; `fit.conflict()` names {results[name]['named'] or 'none'}"
                " of them."
            )
        ]
    if "cpu" in results.get("nuts", {}):
        reference = results["nuts"]
        text += [
            pages.wrapped(
                f"NUTS takes {reference['wall']:.0f} s, {reference['cpu']:.0f} CPU seconds, for "
                f"{SIZES['some']:,} clients."
            )
        ]
    return "\n".join([f"# {SIZES[there[-1]]:,} clients\n", *text])


def _line(name: str, found: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    number = f"{SIZES[name]:,}"
    if "own_mcse" not in found:
        return [
            number,
            *[""] * (len(COLUMNS) - 2),
            "too slow" if "slow" in found else "no check" if "seconds" in found else "RAW",
        ]
    alone = found["seconds"] < found["cpu"]  # on two cores and more; else it waited for other work
    clock = [f"{found['seconds']:.0f}", f"{found['seconds'] - found['of_rounds']:.0f}"] if alone else ["", ""]
    said = verdict(found, reference) if name == "some" else {"verdict": "no reference"}
    compared = ["", ""]
    if "mean_error" in said:
        compared = [f"{said['mean_error']:.2f} ({said['mean_at']})", f"{said['sd_ratio']:.2f} ({said['sd_at']})"]
    return [
        number,
        f"{found['rows']:,}",
        str(found["rounds"]),
        *clock,
        f"{found['cpu']:.0f}",
        f"{found['peak']:.1f}",
        f"{found['before']:.1f}",
        f"{found['weights_k_hat']:.2f}",
        f"{found['effective_draws']:,.0f}",
        f"{max(found['own_mcse']):.3f}",
        *compared,
        said["verdict"],
    ]


def main(
    only: Annotated[list[str], typer.Option(help="Parts to run anew.")] = [],  # noqa: B006
    table: Annotated[bool, typer.Option("--table", help="Run nothing; write the page.")] = False,
    seconds: Annotated[float, typer.Option(hidden=True)] = LIMIT,
    part: Annotated[str, typer.Option("--child", hidden=True)] = "",
    output: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Run the parts, store the results after each, write the page."""
    if part:
        limit(seconds)
        jax.config.update("jax_enable_x64", True)
        found = nuts(EXAMPLE, 1.0) if part == "nuts" else measure(SIZES[part])
        output.write_text(json.dumps(found))
        return
    results = json.loads(STORED.read_text()) if STORED.exists() else {}
    for each in [] if table else only or [part for part in PARTS if part not in results]:
        results[each] = fresh(SCRIPT, each, each, LIMIT, cold=True)
        STORED.write_text(json.dumps(results, indent=1) + "\n")
        print(each, str(results[each])[:200], flush=True)
    PAGE.write_text(markdown(results))


if __name__ == "__main__":
    typer.run(main)
