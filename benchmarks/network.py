"""What a network costs: ``python benchmarks/network.py``.

EP on the heart data over real processes on loopback (Flower, without TLS), with 3 and with 10 clients, against the same
fit in one process. Writes ``NETWORK.md``: seconds of a round, split into computing, messages and the engine, and bytes
of each client and round against the numbers that EP can't do without.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
import xarray as xr
from pages import machine, table
from rich.console import Console

import fedbayes as fb
from fedbayes.models import heart_disease
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study

HERE = Path(__file__).parent
HARNESS = HERE.parent / "tests" / "fedbayes" / "flower"
METHOD = "fb.EP(num_replicates=1)"
KEY = jax.random.key(0)
TIMED = 200  # messages that are packed and unpacked
# the patients are public
POLICY = """[disclosure]
smallest_cell = 1
globals_per_row = 1e9
separation = false
[studies]
any = true
"""


class Cost(NamedTuple):
    """Of an EP round, the first left out.

    Attributes
    ----------
    clients
        How many.
    here
        Seconds in one process, all clients together.
    computing
        Seconds of one client by itself, compiled.
    messages
        Seconds to write and read one client's request and answer.
    network
        Seconds over real processes.
    first, whole
        Seconds of the first EP round there, and of the whole run.
    down, up
        Bytes of one client's request and answer.
    least
        Bytes of a site: shift and triangle of the precision.
    """

    clients: int
    here: float
    computing: float
    messages: float
    network: float
    first: float
    whole: float
    down: int
    up: int
    least: int


def split(num: int) -> dict[str, dict[str, np.ndarray]]:
    """The hospitals' patients as so many clients of about the same size."""
    hospitals = heart_disease.clients().values()
    x, y = (np.concatenate([data[name] for data in hospitals]) for name in ("x", "y"))
    order = np.random.default_rng(0).permutation(len(y))
    return {f"site{i:02d}": {"x": x[rows], "y": y[rows]} for i, rows in enumerate(np.array_split(order, num))}


def round_seconds(rounds: xr.Dataset) -> np.ndarray:
    """Of EP's own rounds."""
    return np.asarray(rounds["seconds"])[np.asarray(rounds["phase"]) == "EP"]


def rehearsed(folder: Path, clients: dict[str, Any]) -> tuple[float, float, int, int]:
    """One client's computing, the time of its messages, and their sizes, in a network of one process."""
    study = Study(heart_disease.model, fb.EP(num_replicates=1))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.toml").write_text(POLICY)
    own = {"policy": str(folder / "policy.toml")}
    sites = [
        Site(
            study, lambda config: clients[config["site-id"]], {"site-id": name, "state-dir": str(folder / name), **own}
        )
        for name in clients
    ]
    network = Rehearsal(*sites)
    fit = fit_over(network, study, key=KEY, num_clients=len(clients), progress=False, correct=False)
    rounds = [content for content in network.answered if unpack(content).header["kind"] == "round"]
    orders = [content for content in network.sent if unpack(content).header["kind"] == "round"]
    started = time.perf_counter()
    for _ in range(TIMED):
        for content in (orders[-1], rounds[-1]):
            message = unpack(content)
            header = {name: value for name, value in message.header.items() if name != "format"}
            pack(header, message.body)
    messages = (time.perf_counter() - started) / TIMED
    computing = float(np.median(round_seconds(fit.rounds)[1:])) / len(clients) - messages
    return computing, messages, len(orders[-1]), len(rounds[-1])


def over_processes(folder: Path, clients: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of a round over Flower's processes, of the first one, and of the whole run."""
    from federation import Federation, copy_app

    data = folder / "data"
    data.mkdir()
    for name, each in clients.items():
        np.savez(data / f"{name}.npz", **each)
    app = copy_app(HARNESS / "hospitals", folder / "app")
    study = app / "hospitals" / "study.py"
    study.write_text(study.read_text().replace('fb.EP(solver="laplace", num_replicates=1)', METHOD))
    (data / "policy.toml").write_text(POLICY)
    own = {"policy": str(data / "policy.toml")}
    sites = {name: {"data-path": str(data / f"{name}.npz"), **own} for name in clients}
    # Flower as a project of `fedbayes new` sets it, without what tests leave out to be quick
    usual = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    with Federation(folder / "federation", sites, environment=usual) as federation:
        federation.start()
        settings = {"num-clients": len(clients), "output": str(folder / "fit"), "num-draws": 500, "node-keys": "no"}
        started = time.perf_counter()
        run = federation.run(app, settings)
        if run.wait(3000) != "finished:completed":
            raise RuntimeError(run.log())
        whole = time.perf_counter() - started
    seconds = round_seconds(xr.open_dataset(folder / "fit" / "rounds.nc", engine="h5netcdf"))
    return float(np.median(seconds[1:])), float(seconds[0]), whole


def measured(num: int) -> Cost:
    """All of it, for so many clients."""
    clients = split(num)
    fit = fb.fit_federated(heart_disease.model, clients, method=fb.EP(num_replicates=1), key=KEY, progress=False)
    size = fit.roster.size
    with tempfile.TemporaryDirectory() as folder:
        computing, messages, down, up = rehearsed(Path(folder) / "rehearsal", clients)
        network, first, whole = over_processes(Path(folder), clients)
    here = float(np.median(round_seconds(fit.rounds)[1:]))
    least = 8 * (size + size * (size + 1) // 2)
    return Cost(num, here, computing, messages, network, first, whole, down, up, least)


SECONDS = ("clients", "one process", "over processes", "of it computing", "messages", "engine")
SECONDS += ("first round", "whole run")
BYTES = ("clients", "down", "up", "least up", "up over least")


def seconds_of(cost: Cost) -> list[str]:
    """A line of the first table."""
    engine = cost.network - cost.computing - cost.messages
    begun = [str(cost.clients), f"{cost.here:.3f} s", f"{cost.network:.1f} s", f"{cost.computing:.3f} s"]
    return [*begun, f"{1e3 * cost.messages:.1f} ms", f"{engine:.1f} s", f"{cost.first:.0f} s", f"{cost.whole:.0f} s"]


def bytes_of(cost: Cost) -> list[str]:
    """A line of the second table."""
    sizes = (f"{size:,}" for size in (cost.down, cost.up, cost.least))
    return [str(cost.clients), *sizes, f"{cost.up / cost.least:.2f}"]


def written(costs: list[Cost]) -> str:
    """The page."""
    lines = [
        "# What a network costs",
        "",
        "EP (one replicate) on the heart data, 740 patients and 14 globals, by `python benchmarks/network.py`;",
        machine(),
        "All processes share one machine on loopback. Seconds of an EP round are medians without the first one, in",
        "which programs are compiled. Computing is one client's by itself; messages are its request and its answer,",
        "written and read. The rest is the engine, Flower: storing and fetching messages by HTTP, and looking for",
        "them. Nodes are those of `fedbayes start-node`.",
        "",
        *table(SECONDS, [seconds_of(cost) for cost in costs]),
        "Bytes of one client in one round. EP needs `d + d (d + 1) / 2` numbers, the shift and the triangle of the",
        "precision. An answer also holds the site's scale, the noise of all three, a result code, diagnostics, and the",
        "names of all arrays.",
        "",
        *table(BYTES, [bytes_of(cost) for cost in costs]),
    ]
    return "\n".join(lines)


def main(
    clients: Annotated[list[int], typer.Option(help="Numbers of clients.")] = [3, 10],  # noqa: B006
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "NETWORK.md",
) -> None:
    """Measure, print, and write the page."""
    sys.path += [str(HARNESS), str(HARNESS.parent)]
    page = written([measured(num) for num in clients])
    Console().print(page, markup=False)
    output.write_text(page)


if __name__ == "__main__":
    typer.run(main)
