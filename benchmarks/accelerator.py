"""EP, FA-LD and a merge with many clients: an accelerator against the CPU of the same machine.

    python benchmarks/accelerator.py --output benchmarks/ACCELERATOR.md     # about 8 minutes
    python benchmarks/accelerator.py --clients 64 --methods ep --limit 60

Every cell (method, number of clients, platform) is a fresh process, so that its peak memory is its own. It fits the
same data twice: the first call compiles, the second is what a user pays from then on. This process never imports JAX:
it would hold the accelerator, and a child's peak memory begins at its parent's.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import table

METHODS = ("ep", "fald", "merge")
SEED, ROWS, SIZE = 20261120, 50, 20
LEAST_SECONDS = 20.0  # a cell is not begun with less than this left of the budget
COLUMNS = (
    "method",
    "clients",
    "on",
    "rounds",
    "s a round",
    "CPU / device: round, call",
    "first call, s",
    "second call, s",
    "compiled in them",
    "host peak (before), MiB",
    "device peak, MiB",
    "means apart, sds",
)
NOTES = """\
Logistic regression, {size} coefficients, {rows} rows a client, no locals, everything in float64. Both platforms get the
same data, key and number of rounds:

- `ep`: EP from the prior, importance sampling with 256 draws, one replicate, 3 rounds.
- `fald`: FA-LD, 2 chains, 10 local steps a round, 50 rounds; the Newton rounds to the mode before them don't count.
- `merge`: the one-shot Gaussian product, 256 draws, one replicate, 1 round.

None of them is run to an accurate posterior: this page is about time and memory.

*s a round* is the median over the second call's rounds, of FA-LD's over its blocks of rounds; the *second call* also
has the checks of the data, what brings them to the device, the answer and, but for the merge, the estimate of its
error. *Compiled in them*: programs that XLA compiled in the first and in the second call; where the second is not zero,
the second call is not warm, and *(cold)* marks a single round that may have compiled. No compilation cache on disk.
*Host peak* is the largest resident memory of the process, in brackets what it was with JAX started and the data made;
*device peak* is JAX's `peak_bytes_in_use`.
*Means apart*: the largest difference between the posterior means of the two platforms, in posterior sds. Both draw the
same random numbers, so only rounding should differ. Ratios are of one run on one machine; a cell's limit counts from
the start of its process. *Over* so many seconds, or *not run*: the seconds that the run was given were spent.
"""


class Cell(NamedTuple):
    """One row: a method with so many clients, on the CPU or on whatever JAX chooses."""

    method: str
    clients: int
    cpu: bool


# ---- in a fresh process: one cell -----------------------------------------------------------------------------------


def logistic(x: Any, y: Any = None) -> None:
    """Logistic regression, ``beta_j ~ N(0, 1)``."""
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def simulate(num_clients: int) -> dict[str, dict[str, Any]]:
    """The clients' data."""
    import numpy as np

    rng = np.random.default_rng([SEED, num_clients])
    beta = 1.5 * rng.normal(size=SIZE) / np.sqrt(SIZE)
    x = rng.normal(size=(num_clients, ROWS, SIZE))
    y = (rng.logistic(size=(num_clients, ROWS)) < x @ beta).astype(np.int32)
    return {f"client{k}": {"x": x[k], "y": y[k]} for k in range(num_clients)}


def configured(method: str) -> dict[str, Any]:
    """What `fedbayes.fit_federated` is told, so that every platform does the same rounds."""
    import fedbayes as fb

    if method == "ep":
        ep = fb.EP(init="prior", solver="importance", num_samples=256, num_replicates=1, tolerance=1e-9)
        return {"method": ep, "num_rounds": 3}
    if method == "fald":
        fald = fb.FALD(local_steps=10, step_size=0.05, thinning=1, num_chains=2, num_warmup=10)
        return {"method": fald, "num_draws": 40}
    # each client has the whole prior: under its K-th root 50 rows hardly say more than a separating plane
    merge = fb.OneShot(
        combine="gaussian_product", prior="whole", solver="importance", num_samples=256, num_replicates=1, check=False
    )
    return {"method": merge}


class Compilations:
    """How many programs XLA has compiled since this was asked last."""

    def __init__(self) -> None:
        import jax

        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **kwargs: object) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def taken(self) -> int:
        """The number, which starts at zero again."""
        count, self.count = self.count, 0
        return count


def host_peak() -> int:
    """MiB that this process has had resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)


def say(**found: Any) -> None:
    """One line for the process that waits, at once: what is said before the limit counts."""
    print(json.dumps(found), flush=True)


def device() -> None:
    """What JAX sees."""
    from importlib.metadata import version

    import jax

    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpyro", "numpy", "fedbayes"))
    say(platform=jax.default_backend(), kind=jax.devices()[0].device_kind, packages=packages)


def measure(method: str, num_clients: int) -> None:
    """Fit twice, in this process, which should have done nothing else."""
    import jax

    import fedbayes as fb

    warnings.simplefilter("ignore")  # that three rounds don't converge is known
    compilations, options, clients = Compilations(), configured(method), simulate(num_clients)
    key = jax.block_until_ready(jax.random.key(0))
    say(before=host_peak())
    for call in ("first", "second"):
        compilations.taken()
        started = time.perf_counter()
        fit = fb.fit_federated(logistic, clients, key=key, progress=False, **options)
        say(**{call: time.perf_counter() - started, f"{call}_compiled": compilations.taken()})
    say(host=host_peak(), device=device_peak())
    say(**rounds_of(fit), **moments_of(fit))


def device_peak() -> float | None:
    """MiB in use at most on the first device, where JAX counts them."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / (1 << 20) if "peak_bytes_in_use" in stats else None


def rounds_of(fit: Any) -> dict[str, Any]:
    """Rounds of the last phase, and the median of their seconds; a sampler's records are blocks of rounds."""
    phases = fit.rounds["phase"].values
    last = phases == phases[-1]
    seconds, rounds = (fit.rounds[name].values[last].astype(float) for name in ("seconds", "rounds"))
    median = statistics.median((seconds / rounds).tolist())
    return {"rounds": int(rounds.sum()), "round": median, "single": len(rounds) == 1}


def moments_of(fit: Any) -> dict[str, list[float]]:
    """Means and sds of all replicates, one after the other."""
    import numpy as np

    mean, covariance = fit.moments()
    sds = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return {"means": mean.ravel().tolist(), "sds": sds.ravel().tolist()}


# ---- in the process that was started --------------------------------------------------------------------------------


def fresh(arguments: Sequence[str], *, cpu: bool, limit: float) -> dict[str, Any]:
    """What a fresh process says; ``trouble`` where it did not come to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    environment |= {"JAX_ENABLE_COMPILATION_CACHE": "false"} | ({"JAX_PLATFORMS": "cpu"} if cpu else {})
    command, trouble = [sys.executable, str(Path(__file__).resolve()), "--cell", *arguments], {}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=limit, check=False)  # noqa: S603
        said = ended.stdout
        if ended.returncode:
            errors = ended.stderr.decode(errors="replace")
            print(errors[-4000:], file=sys.stderr, flush=True)
            trouble = {"trouble": f"failed: {reason(errors) or f'exit code {ended.returncode}'}"}
    except subprocess.TimeoutExpired as ended:
        said, trouble = ended.stdout or b"", {"trouble": f"over {limit:.0f} s"}
    found: dict[str, Any] = {}
    for line in said.decode().splitlines():
        if line.startswith("{") and line.endswith("}"):
            found |= json.loads(line)
    return found | trouble


def reason(errors: str) -> str:
    """The line of a traceback that says what was raised; JAX and fedbayes add notes below it."""
    raised = [line for line in errors.splitlines() if "Error: " in line and not line.startswith(" ")]
    return raised[-1].strip()[:160] if raised else ""


def shown(value: float | None, form: str = ",.2f") -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value, form)


def apart(here: dict[str, Any], there: dict[str, Any]) -> float | None:
    """Largest difference between posterior means, in the sds of the second."""
    if "means" not in here or "means" not in there:
        return None
    pairs = zip(here["means"], there["means"], there["sds"], strict=True)
    distances = [abs(mine - other) / sd for mine, other, sd in pairs]
    return math.nan if any(map(math.isnan, distances)) else max(distances)


def against(cpu: dict[str, Any], found: dict[str, Any]) -> str:
    """How many times faster than the CPU: a round, and the whole second call."""
    ratios = [cpu[name] / found[name] if name in cpu and name in found else None for name in ("round", "second")]
    return ", ".join(shown(ratio, ".2g" if ratio and ratio < 10 else ",.0f") for ratio in ratios)


def warm(found: dict[str, Any]) -> str:
    """Seconds of a round, or what went wrong."""
    if "trouble" in found:
        return found["trouble"].replace("|", "/")
    cold = found["single"] and found["second_compiled"]
    return f"{found['round']:,.3g}{' (cold)' if cold else ''}"


def cells_of(cell: Cell, found: dict[str, Any], cpu: dict[str, Any] | None, name: str) -> list[str]:
    """One line of the table; ``cpu`` is what the CPU said of the same fit, ``None`` where this is the CPU."""
    compiled = [shown(found.get(f"{call}_compiled"), "d") for call in ("first", "second")]
    return [
        cell.method,
        f"{cell.clients:,}",
        name,
        shown(found.get("rounds"), "d"),
        warm(found),
        "" if cpu is None else against(cpu, found),
        shown(found.get("first"), ",.1f"),
        shown(found.get("second")),
        ", ".join(compiled),
        f"{shown(found.get('host'), ',d')} ({shown(found.get('before'), ',d')})",
        shown(found.get("device"), ",.0f"),
        "" if cpu is None else shown(apart(found, cpu), ".1e"),
    ]


def markdown(seen: dict[str, Any], results: dict[Cell, dict[str, Any]]) -> str:
    """The page, with the cells measured so far."""
    accelerated = seen.get("platform", "cpu") != "cpu"
    where = f"**{seen['kind']}** ({seen['platform']})" if accelerated else "**JAX sees no accelerator: CPU only**"
    rows = [
        cells_of(
            cell, found, None if cell.cpu else results[cell._replace(cpu=True)], "CPU" if cell.cpu else seen["kind"]
        )
        for cell, found in results.items()
    ]
    machine = f"{where}, beside {os.cpu_count()} CPU cores. {seen.get('packages', 'JAX did not start')}."
    title = ["# Many clients on an accelerator", "", f"Written by `accelerator.py`. {machine}", ""]
    return "\n".join([*title, *table(COLUMNS, rows, right_from=1), NOTES.format(size=SIZE, rows=ROWS)])


def cells(methods: Sequence[str], clients: Sequence[int], accelerated: bool) -> Iterator[Cell]:
    """The small ones first, the CPU just before the accelerator."""
    for num in sorted(clients):
        for method in methods:
            yield Cell(method, num, cpu=True)
            if accelerated:
                yield Cell(method, num, cpu=False)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[64, 1024, 10_000], help="numbers of clients")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a cell, its start included (240)")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of all; cells beyond are not run (480)")
    parser.add_argument("--output", type=Path, help="write the page here too, after every cell")
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(options: argparse.Namespace) -> None:
    """Measure every cell, and print the page."""
    deadline = time.monotonic() + options.budget
    seen, results = fresh(["device"], cpu=False, limit=options.limit), {}
    if "trouble" in seen:
        seen = fresh(["device"], cpu=True, limit=options.limit)
    accelerated = seen.get("platform", "cpu") != "cpu"
    if not accelerated:
        print("JAX sees no accelerator: CPU rows only.", file=sys.stderr, flush=True)
    write: Callable[[str], Any] = options.output.write_text if options.output else lambda text: None
    for cell in cells(options.methods, options.clients, accelerated):
        started, left = time.monotonic(), deadline - time.monotonic()
        results[cell] = {"trouble": "not run"}
        if left > LEAST_SECONDS:
            results[cell] = fresh([cell.method, str(cell.clients)], cpu=cell.cpu, limit=min(options.limit, left))
        told = results[cell].get("trouble", "done")
        print(f"{cell}: {told}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        write(markdown(seen, results))
    print(markdown(seen, results))


def main() -> None:
    """One cell, where this process was started for it; else all of them."""
    options = arguments()
    if options.cell is None:
        compare(options)
    elif options.cell[0] == "device":
        device()
    else:
        measure(options.cell[0], int(options.cell[1]))


if __name__ == "__main__":
    main()
