"""FedAvg's speed and memory: fedbayes beside loops over clients in NumPy and PyTorch, on scikit-learn's digits.

    python benchmarks/averaging_speed.py        # ten minutes; writes AVERAGING_SPEED.md; PyTorch where it is installed

Everybody does the same work: each client takes the server's weights, makes two passes over its 16 images in batches of
8, in fresh random orders, by plain gradient steps on its mean loss with its share of the prior, and the server takes
the mean. The script stops if the losses after the last round differ. Every run has a process of its own, so that
peaks of memory are apart (the first process stays small, as others count from its size), and no compiled program is
read from a disk. Where the time of a round goes is read from JAX's profile of a second fit.
"""

import gzip
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pages import row, wrapped
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
ROWS, BATCH, EPOCHS, STEP = 16, 8, 2, 2.0
COLD = 2  # rounds that do not count for the median
AGREE = 0.03  # relative difference of the mean losses at the end, at most
FALL = 0.95  # and they are this part of the first loss at most

Weights = list[tuple[np.ndarray, np.ndarray]]  # of each layer: the matrix, and the offsets


class Case(NamedTuple):
    """A network by its widths, clients, how many take part in a round, and rounds."""

    widths: tuple[int, ...]
    clients: int
    active: int
    rounds: int = 8

    @property
    def network(self) -> str:
        """In words."""
        return "softmax" if len(self.widths) == 2 else "-".join(map(str, self.widths))

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum((first + 1) * second for first, second in pairwise(self.widths))


class Run(NamedTuple):
    """What one process has measured: seconds of the rounds and before them, peaks in MB, and the mean loss
    of a row at both ends."""

    seconds: np.ndarray
    before: float
    peak: float
    start_peak: float
    first_loss: float
    loss: float

    @property
    def warm(self) -> float:
        """Seconds of a round."""
        return float(np.median(self.seconds[COLD:]))


SMALL = [
    Case(widths, clients, active)
    for widths in ((64, 10), (64, 64, 10))
    for clients, active in ((100, 100), (1_000, 100), (1_000, 1_000), (10_000, 100), (10_000, 10_000))
]
LARGE = Case((64, 960, 960, 10), 10, 10)


def deal(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(clients, rows, 64)`` and labels; with replacement where there are not enough."""
    images, labels = load_digits(return_X_y=True)
    rng, need = np.random.default_rng(0), case.clients * ROWS
    rows = rng.permutation(len(images))[:need] if need <= len(images) else rng.integers(len(images), size=need)
    return (images[rows] / 16.0).reshape(case.clients, ROWS, -1), labels[rows].reshape(case.clients, ROWS)


def first_weights(case: Case) -> Weights:
    """Draws of the prior for the matrices, zeros for the offsets."""
    rng = np.random.default_rng(1)
    pairs = pairwise(case.widths)
    return [(rng.normal(size=pair), np.zeros(pair[1])) for pair in pairs]


def layers(weights: Weights, x: np.ndarray) -> list[np.ndarray]:
    """Input of each layer, and the logits; weights may have a leading axis of clients, as ``x`` then has."""
    found = [x]
    for at, (matrix, offset) in enumerate(weights):
        z = found[-1] @ matrix / np.sqrt(matrix.shape[-2]) + offset[..., None, :]
        found.append(z if at + 1 == len(weights) else np.tanh(z))
    return found


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Of the classes."""
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def gradients(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Of the mean loss of a batch's rows, without the prior, by hand."""
    inputs, found = layers(weights, x), []
    error = probabilities(inputs[-1])
    np.put_along_axis(error, y[..., None], np.take_along_axis(error, y[..., None], -1) - 1.0, -1)
    error /= x.shape[-2]
    for (matrix, _), below in zip(reversed(weights), reversed(inputs[:-1]), strict=True):
        root = np.sqrt(matrix.shape[-2])
        found.append((np.swapaxes(below, -1, -2) @ error / root, error.sum(axis=-2)))
        if len(found) < len(weights):
            error = error @ np.swapaxes(matrix, -1, -2) / root * (1.0 - below**2)
    return found[::-1]


def mean_loss(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Minus the mean log-likelihood of all clients' rows; the prior would hide it where weights are many."""
    x, y = x.reshape(-1, x.shape[-1]), y.ravel()
    return float(-np.log(probabilities(layers(weights, x)[-1])[np.arange(len(y)), y]).mean())


def drawn(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Who takes part in a round."""
    return rng.permutation(case.clients)[: case.active]


def loop(case: Case, x: np.ndarray, y: np.ndarray, weights: Weights) -> tuple[Weights, list[float]]:
    """NumPy, client after client."""
    rng, keep, seconds = np.random.default_rng(2), 1.0 - STEP / y.size, []
    for _ in range(case.rounds):
        started = time.perf_counter()
        totals = [(np.zeros_like(matrix), np.zeros_like(offset)) for matrix, offset in weights]
        chosen = drawn(case, rng)
        for client in chosen:
            mine = [(matrix.copy(), offset.copy()) for matrix, offset in weights]
            for _ in range(EPOCHS):
                order = rng.permutation(ROWS)
                for begin in range(0, ROWS, BATCH):
                    rows = order[begin : begin + BATCH]
                    for layer, slopes in zip(mine, gradients(mine, x[client, rows], y[client, rows]), strict=True):
                        for part, slope in zip(layer, slopes, strict=True):
                            part *= keep
                            part -= STEP * slope
            for total, layer in zip(totals, mine, strict=True):
                for whole, part in zip(total, layer, strict=True):
                    whole += part / len(chosen)  # clients have equally many rows
        weights = totals
        seconds.append(time.perf_counter() - started)
    return weights, seconds


def at_once(case: Case, x: np.ndarray, y: np.ndarray, weights: Weights) -> tuple[Weights, list[float]]:
    """NumPy, 128 clients at a time along a leading axis of every array."""
    rng, keep, seconds = np.random.default_rng(2), 1.0 - STEP / y.size, []
    for _ in range(case.rounds):
        started = time.perf_counter()
        totals = [(np.zeros_like(matrix), np.zeros_like(offset)) for matrix, offset in weights]
        chosen = drawn(case, rng)
        for first in range(0, len(chosen), 128):
            some = chosen[first : first + 128, None]
            mine = [tuple(np.repeat(part[None], len(some), axis=0) for part in layer) for layer in weights]
            for _ in range(EPOCHS):
                order = rng.permuted(np.tile(np.arange(ROWS), (len(some), 1)), axis=1)
                for begin in range(0, ROWS, BATCH):
                    rows = order[:, begin : begin + BATCH]
                    for layer, slopes in zip(mine, gradients(mine, x[some, rows], y[some, rows]), strict=True):
                        for part, slope in zip(layer, slopes, strict=True):
                            part *= keep
                            part -= STEP * slope
            for total, layer in zip(totals, mine, strict=True):
                for whole, part in zip(total, layer, strict=True):
                    whole += part.sum(axis=0) / len(chosen)
        weights = totals
        seconds.append(time.perf_counter() - started)
    return weights, seconds


def torch_loop(case: Case, x: np.ndarray, y: np.ndarray, weights: Weights) -> tuple[Weights, list[float]]:
    """PyTorch, client after client, gradients by autograd; on one thread where steps are too small for more."""
    import torch
    from torch.nn.functional import cross_entropy

    if case.size < 100_000:
        torch.set_num_threads(1)
    rng, keep, seconds = np.random.default_rng(2), 1.0 - STEP / y.size, []
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    roots = [np.sqrt(width) for width in case.widths[:-1]]
    server = [torch.from_numpy(part) for layer in weights for part in layer]

    def loss(mine: list, rows: tuple) -> torch.Tensor:
        found = images[rows]
        for at, root in enumerate(roots):
            found = torch.addmm(mine[2 * at + 1], found, mine[2 * at], alpha=1.0 / root)
            found = found if at + 1 == len(roots) else torch.tanh(found)
        return cross_entropy(found, labels[rows])

    for _ in range(case.rounds):
        started = time.perf_counter()
        totals, chosen = [torch.zeros_like(part) for part in server], drawn(case, rng)
        for client in chosen.tolist():
            mine = [part.clone().requires_grad_() for part in server]
            for _ in range(EPOCHS):
                for rows in torch.randperm(ROWS).split(BATCH):
                    slopes = torch.autograd.grad(loss(mine, (client, rows)), mine)
                    with torch.no_grad():
                        for part, slope in zip(mine, slopes, strict=True):
                            part.mul_(keep).sub_(slope, alpha=STEP)
            for total, part in zip(totals, mine, strict=True):
                total.add_(part.detach(), alpha=1.0 / len(chosen))
        server = totals
        seconds.append(time.perf_counter() - started)
    arrays = [part.numpy() for part in server]
    return list(zip(arrays[::2], arrays[1::2], strict=True)), seconds


def network(widths: tuple[int, ...]) -> Callable[..., None]:
    """The NumPyro program; every weight is N(0, 1), and layers divide by the root of their width."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x: np.ndarray, y: np.ndarray) -> None:
        last = len(widths) - 2
        for at, pair in enumerate(pairwise(widths)):
            matrix = numpyro.sample(f"w{at}", dist.Normal(0.0, 1.0).expand(pair).to_event(2))
            offset = numpyro.sample(f"b{at}", dist.Normal(0.0, 1.0).expand(pair[1:]).to_event(1))
            x = x @ matrix / np.sqrt(pair[0]) + offset
            x = x if at == last else jnp.tanh(x)
        numpyro.sample("y", dist.Categorical(logits=x), obs=y)

    return model


def peak() -> float:
    """MB that this process has had resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def prepared(case: Case) -> Callable[[], Any]:
    """``fit_federated``, as a user calls it."""
    import jax
    import optax

    import fedbayes as fb

    jax.config.update("jax_enable_compilation_cache", False)
    (x, y), start = deal(case), first_weights(case)
    clients = {f"client {c}": {"x": x[c], "y": y[c]} for c in range(case.clients)}
    init = {f"{kind}{at}": part for at, layer in enumerate(start) for kind, part in zip("wb", layer, strict=True)}
    method = fb.FedAvg(
        optimizer=optax.sgd(STEP), epochs=EPOCHS, batch_size=BATCH, init=init, laplace=False, max_rounds=case.rounds
    )
    key, share, model = jax.random.key(0), case.active / case.clients, network(case.widths)

    def fit() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fb.NotConvergedWarning)  # the rounds are few on purpose
            return fb.fit_federated(model, clients, method=method, key=key, participation=share, progress=False)

    return fit


def by_fedbayes(case: Case) -> Run:
    """Its loss is computed after everything is measured."""
    fitted, (x, y), start = prepared(case), deal(case), first_weights(case)
    begin, started = peak(), time.perf_counter()
    fit = fitted()
    wall, most, seconds = time.perf_counter() - started, peak(), fit.rounds["seconds"].values
    assert fit.rounds["active"].sum("client").values.tolist() == [case.active] * case.rounds
    point = {name: np.asarray(value)[0, 0] for name, value in fit.idata.posterior.data_vars.items()}
    weights = [(point[f"w{at}"], point[f"b{at}"]) for at in range(len(start))]
    return Run(
        seconds, wall - seconds.sum(), most, begin, mean_loss(first_weights(case), x, y), mean_loss(weights, x, y)
    )


KINDS = {
    "products of matrices": r"(ynn_fusion|dot|convolution)[.\d]*$",
    "random orders": r"sort|while|call",
    "copies": r"((copy|bitcast|concatenate|slice|split|transpose|broadcast|gather|pad)_?)+(fusion)?[.\d]*$",
    "other numbers": r"[a-z_\-]+(fusion)?[.\d]*$",
}
"""What the parts of a compiled program do, by XLA's names for them; the first pattern that fits decides."""


def profiled(case: Case) -> dict[str, float]:
    """Milliseconds of a round by kind of work, summed over threads, of a second fit of the same clients."""
    import jax

    fit = prepared(case)
    fit()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            fit()
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spent: Counter = Counter()
    for name, micros in alone(event for event in events if "hlo_op" in event.get("args", {})):
        kind = next((kind for kind, pattern in KINDS.items() if re.match(pattern, name)), "other numbers")
        spent[kind] += micros
    return {kind: spent[kind] / 1e3 / case.rounds for kind in KINDS}


def alone(events: Iterable[dict]) -> list[tuple[str, float]]:
    """Each event's name, and its microseconds without those of the events inside it."""
    found: list[list] = []
    open_: dict[int, list[tuple[float, int]]] = {}  # of each thread: ends, and places in `found`
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        stack = open_.setdefault(event["tid"], [])
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        if stack:
            found[stack[-1][1]][1] -= event["dur"]
        stack.append((event["ts"] + event["dur"], len(found)))
        found.append([event["name"], event["dur"]])
    return [(name, micros) for name, micros in found]


LOOPS = {"NumPy loop": loop, "PyTorch loop": torch_loop, "NumPy, 128 clients at once": at_once}


def by_hand(case: Case, name: str) -> Run:
    """One of the rivals."""
    if name.startswith("PyTorch"):
        import torch  # noqa: F401  # counts for the start
    (x, y), weights = deal(case), first_weights(case)
    begin = peak()
    weights, seconds = LOOPS[name](case, x, y, weights)
    return Run(np.array(seconds), 0.0, peak(), begin, mean_loss(first_weights(case), x, y), mean_loss(weights, x, y))


def measured(case: Case, name: str) -> Run:
    """In a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        run = pool.apply(by_fedbayes, (case,)) if name == "fedbayes" else pool.apply(by_hand, (case, name))
    told = f"{1e3 * run.warm:.4g} ms, {run.peak:.0f} MB, loss {run.loss:.4f}"
    print(f"{case.network}, {case.active:,} of {case.clients:,}: {name}, {told}", flush=True)
    return run


def names() -> list[str]:
    """Who runs here."""
    return ["fedbayes", *(name for name in LOOPS if find_spec("torch") or not name.startswith("PyTorch"))]


def compared(case: Case) -> dict[str, Run]:
    """All of them on one case; stops where they have not done the same work."""
    runs = {name: measured(case, name) for name in names()}
    first, ends = runs["fedbayes"].first_loss, [run.loss for run in runs.values()]
    if max(ends) > (1.0 + AGREE) * min(ends) or max(ends) > FALL * first:
        raise RuntimeError(f"The losses are {ends} after {case.rounds} rounds, from {first}: not the same work.")
    return runs


def headed(columns: list[str]) -> list[str]:
    """A table's first lines; the network and the number of clients stand to the left."""
    return [row(*columns), row("---", "---", *["---:"] * (len(columns) - 2))]


def speed_table(found: dict[Case, dict[str, Run]]) -> list[str]:
    """Time of a warm round, and ratios."""
    rivals = names()[1:]
    head = ["network", "clients", "in a round", "ms per round", "µs per client", *rivals]
    lines = headed(head)
    for case, runs in found.items():
        warm = runs["fedbayes"].warm
        cells = [case.network, f"{case.clients:,}", f"{case.active:,}", f"{1e3 * warm:.3g}"]
        lines.append(
            row(*cells, f"{1e6 * warm / case.active:.3g}", *(f"{runs[name].warm / warm:.2g}" for name in rivals))
        )
    return lines


def cost_table(found: dict[Case, dict[str, Run]]) -> list[str]:
    """What comes before the rounds, and memory."""
    rivals = names()
    head = ["network", "clients", "in a round", "before, s", "first round, s", *(f"MB, {name}" for name in rivals)]
    lines = headed(head)
    for case, runs in found.items():
        mine = runs["fedbayes"]
        cells = [case.network, f"{case.clients:,}", f"{case.active:,}", f"{mine.before:.2g}", f"{mine.seconds[0]:.2g}"]
        peaks = (f"{runs[name].peak:.0f} ({runs[name].start_peak:.0f})" for name in rivals)
        lines.append(row(*cells, *peaks))
    return lines


def span(found: dict[Case, dict[str, Run]], name: str) -> str:
    """A rival's time over fedbayes', from the least to the most, in words."""
    ratios = [runs[name].warm / runs["fedbayes"].warm for runs in found.values()]
    return f"{min(ratios):.2g} to {max(ratios):.2g}"


def worst(runs: dict[str, Run]) -> float:
    """The largest loss at the end."""
    return max(run.loss for run in runs.values())


def large_text(runs: dict[str, Run]) -> str:
    """On the network with many weights."""
    mine, unit = runs["fedbayes"], 8e-6 * LARGE.size
    more = {name: run.peak - run.start_peak for name, run in runs.items()}
    others = "; ".join(f"{name} {runs[name].warm:.2g} s and {more[name]:.0f} MB" for name in names()[1:])
    return f"""\
        The network {LARGE.network}, all clients in each round: {mine.warm:.2g} s per round with fedbayes,
        {mine.before:.2g} s before and {mine.seconds[0]:.2g} s for the first round. The fit raises the peak of memory by
        {more["fedbayes"]:.0f} MB, to {mine.peak:.0f} MB; one set of weights in float64 is {unit:.1f} MB, so that this
        is {more["fedbayes"] / unit:.0f} of them, or {more["fedbayes"] / unit / LARGE.clients:.1f} a client. The others,
        per round and in growth of the peak: {others}."""


def bounds(small: dict[Case, dict[str, Run]]) -> str:
    """How much of a round is arithmetic that no arrangement of loops saves."""
    batched = names()[-1]
    saved = [runs["NumPy loop"].warm / runs[batched].warm for runs in small.values()]
    flops = {case: 2 * 3 * case.size * ROWS * EPOCHS for case in small}
    rates = {case: flops[case] * case.active / runs["fedbayes"].warm / 1e9 for case, runs in small.items()}
    return f"""\
        The arithmetic itself. A client's two passes cost {min(flops.values()) / 1e6:.2g} to
        {max(flops.values()) / 1e6:.2g} million operations, mostly products of matrices with {BATCH} rows, which
        fedbayes does at {min(rates.values()):.1f} to {max(rates.values()):.1f} billion operations a second. Without any
        loop over clients NumPy needs {min(saved):.2g} to {max(saved):.2g} times less than with it: that is how much a
        loop over clients can be bettered on these cores, and no arrangement makes it 20 times."""


def profile_table(found: dict[Case, dict[str, Run]]) -> list[str]:
    """Where the time of a round goes, of the cases in which every client takes part."""
    batched = names()[-1]
    lines = headed(["network", "clients", *KINDS, "together", "a warm round", batched])
    for case, runs in found.items():
        if case.active < case.clients or case.clients > 1_000:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            spent = pool.apply(profiled, (case,))
        times = [*spent.values(), sum(spent.values()), *(1e3 * runs[name].warm for name in ("fedbayes", batched))]
        lines.append(row(case.network, f"{case.clients:,}", *(f"{each:.3g}" for each in times)))
        print(lines[-1], flush=True)
    return lines


def page(small: dict[Case, dict[str, Run]], large: dict[str, Run]) -> str:
    """The stored result."""
    every = {**small, LARGE: large}
    gap = max(worst(runs) / min(run.loss for run in runs.values()) - 1.0 for runs in every.values())
    fall = max(worst(runs) / runs["fedbayes"].first_loss for runs in every.values())
    ratios = "; ".join(f"{name} {span(small, name)}" for name in names()[1:])
    missing = "" if find_spec("torch") else "PyTorch was not installed where this ran: its loop is left out."
    cold = [runs["fedbayes"].before + runs["fedbayes"].seconds[0] for runs in small.values()]
    paragraphs = HEAD.format(
        rows=ROWS, batch=BATCH, epochs=EPOCHS, rounds=LARGE.rounds, cold=COLD, gap=100 * gap, fall=100 * fall
    ).split("\n\n")
    first = f"""\
        Before the rounds clients are read and checked; the first round compiles. Together that costs {min(cold):.2g} to
        {max(cold):.2g} s here. Memory is the peak of the process in MB, and in brackets what it was with libraries
        loaded and the clients' arrays made."""
    parts = [
        "# How fast FedAvg's rounds are\n",
        *map(wrapped, filter(None, [*paragraphs, missing])),
        "## A warm round\n",
        wrapped(f"Times of the others over that of fedbayes, the least and the most of the table: {ratios}."),
        *speed_table(small),
        "\n## What bounds it\n",
        wrapped(bounds(small)),
        wrapped(PROFILE),
        *profile_table(every),
        "\n## What comes before, and memory\n",
        wrapped(first),
        *cost_table(small),
        f"\n## {LARGE.size:,} weights, {LARGE.clients} clients\n",
        wrapped(large_text(large)),
    ]
    return "\n".join(parts)


HEAD = """\
Written by `averaging_speed.py`. Scikit-learn's digits, {rows} images a client, dealt out with replacement from 1,000
clients on; batches of {batch}, {epochs} passes a round, plain gradient steps, N(0, 1) priors on all weights. "softmax"
is softmax regression, 64-64-10 a network with one hidden layer. Everything is in float64, on CPUs.

The NumPy loop takes one client after the other, with a gradient written by hand for these networks. So does the PyTorch
loop, with autograd, without optimiser or module around it, and on one thread for the small networks. "128 clients at
once" is NumPy as one would write it for speed, which needs clients of equal sizes; fedbayes is given no such promise.
The columns under their names are their times over that of fedbayes: above one, fedbayes is faster.

Times are medians over {rounds} rounds without the first {cold}. Each run is a process of its own, one after the other,
on two cores that other work loaded too: between two runs of the script single ratios changed by up to a factor of
three. fedbayes' programs may use both cores. After the last round the mean losses
of a row, over all clients, were within {gap:.2g} percent of each other in each case, and at {fall:.0f} percent or less
of where they began. Random orders differ, and so do the clients of a round where not all take part.
"""

PROFILE = """\
Milliseconds of a round within fedbayes' compiled programs, by JAX's profile of a second fit and summed over threads,
beside a warm round of fedbayes and of NumPy with 128 clients at once. "Copies" move weights and rows without computing;
what a round takes beyond its programs is Python's.
"""


def main() -> None:
    """Measure, print, write."""
    small = {case: compared(case) for case in SMALL}
    (HERE / "AVERAGING_SPEED.md").write_text(page(small, compared(LARGE)))


if __name__ == "__main__":
    main()
