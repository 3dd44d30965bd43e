"""Devices of two processes as one mesh: the time of a fit against one process, on one core and on both.

    python benchmarks/processes.py --output benchmarks/PROCESSES.md     # about 4 minutes, on at least two cores

Each process is held to its cores, as if it were a machine of its own. It fits the same data twice: the first call
compiles, the second is what counts. Clients, methods and rounds are those of ``accelerator.py``.
"""

import json
import os
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from accelerator import ROWS, SIZE, configured, logistic, simulate
from pages import machine, table, wrapped


class Layout(NamedTuple):
    """Cores of each process."""

    name: str
    cores: tuple[tuple[int, ...], ...]


LAYOUTS = (
    Layout("one process, one core", ((0,),)),
    Layout("two processes, one core each", ((0,), (1,))),
    Layout("one process, both cores", ((0, 1),)),
)
CASES = (("ep", 256), ("ep", 1024), ("fald", 256), ("fald", 1024))
COLUMNS = ("method", "clients", "processes", "first call, s", "second call, s", "of one core's", "means apart, sds")
NOTES = f"""Logistic regression, {SIZE} coefficients, {ROWS} rows a client, everything in float64: three rounds of EP
from the prior by importance sampling, and fifty of FA-LD with two chains, as on [ACCELERATOR](ACCELERATOR.md). A *call*
is all of `fit_federated`, with the checks of the data and, of EP, the estimate of its error, and `fit.idata`. *Of one
core's*: the second call's time as a share of that of one process on one core, in the same run. *Means apart*: the
largest difference between the posterior means of this row and of that process, in posterior sds; between the two
processes there is none. The processes speak to each other within one machine (Gloo); over a network each round of FA-LD
waits for it once."""


def fitted(method: str, clients: int, mesh: Any) -> dict[str, Any]:
    """Two calls of a fit: their seconds, and the posterior."""
    import jax

    import fedbayes as fb

    warnings.simplefilter("ignore")
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        fit = fb.fit_federated(
            logistic, simulate(clients), key=jax.random.key(1), mesh=mesh, progress=False, **configured(method)
        )
        beta = fit.idata.posterior["beta"].values.reshape(-1, SIZE)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "mean": beta.mean(axis=0).tolist(), "sd": beta.std(axis=0).tolist()}


def child(asked: dict[str, Any]) -> None:
    """One of the processes."""
    os.sched_setaffinity(0, asked["cores"])
    import jax

    mesh = None
    if asked["processes"] > 1:
        jax.distributed.initialize(f"localhost:{asked['port']}", asked["processes"], asked["rank"])
        mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    print(json.dumps(fitted(asked["method"], asked["clients"], mesh)), flush=True)


def measured(method: str, clients: int, layout: Layout) -> dict[str, Any]:
    """What the processes of a layout have found, which is the same."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = []
    for rank, cores in enumerate(layout.cores):
        asked = {"method": method, "clients": clients, "cores": cores, "rank": rank, "port": port}
        asked["processes"] = len(layout.cores)
        command = [sys.executable, __file__, "--child", json.dumps(asked)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    assert all(each["mean"] == found[0]["mean"] for each in found)
    return found[0]


def main(
    output: Annotated[Path | None, typer.Option(help="The page to write.")] = None,
    asked: Annotated[str | None, typer.Option("--child", hidden=True)] = None,
) -> None:
    """Measure all cases, or be one process of them."""
    if asked is not None:
        child(json.loads(asked))
        return
    rows = []
    for method, clients in CASES:
        found = [measured(method, clients, layout) for layout in LAYOUTS]
        alone = found[0]
        for layout, each in zip(LAYOUTS, found, strict=True):
            first, second = each["seconds"]
            apart = max(abs(m - a) / s for m, a, s in zip(each["mean"], alone["mean"], alone["sd"], strict=True))
            share = f"{second / alone['seconds'][1]:.2f}"
            line = [method, f"{clients:,}", layout.name, f"{first:.1f}", f"{second:.2f}", share, f"{apart:.1g}"]
            rows.append(line)
            print(*line, sep=" | ", flush=True)
    page = ["# Devices of several processes\n", wrapped(f"Written by `processes.py`. {machine()}")]
    page += [*table(COLUMNS, rows, right_from=3), wrapped(NOTES)]
    if output is not None:
        output.write_text("\n".join(page))


if __name__ == "__main__":
    typer.run(main)
