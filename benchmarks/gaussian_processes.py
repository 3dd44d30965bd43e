"""Federated Gaussian processes: multi-fidelity functions, engines, a robot arm, small clients and very large ones.

    python benchmarks/gaussian_processes.py                         # every part; an hour; writes GAUSSIAN_PROCESSES.md
    python benchmarks/gaussian_processes.py --part small --repeats 20
    python benchmarks/gaussian_processes.py --part engines --data PATH

PATH is a folder with ``cmapss_train_FD001.txt`` (``train_FD001.txt`` of NASA's C-MAPSS turbofan data) and
``sarcos_inv_test.mat`` (the test part of the SARCOS robot arm's data), which are not part of fedbayes: parts without
their file are skipped, and say so. A part that runs replaces its section of the page; the others stay.

OpenBLAS gets one thread, here and in scikit-learn: matrices of a client are small, and threads cost more than they
give. Set ``OPENBLAS_NUM_THREADS`` to have it otherwise.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import resource
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pages
import typer
from pages import MARK, wrapped
from scipy.special import logsumexp
from scipy.stats import norm

import fedbayes as fb
from fedbayes.models import gp

Array = np.ndarray
Clients = dict[str, dict[str, Array]]

HERE = Path(__file__).resolve().parent
FLOORS = np.array([1e-6, 1e-6, 1e-4])
NAMES = ("currin", "park", "branin", "hartmann3", "borehole")
FORCED = ("currin", "park", "hartmann3", "borehole")  # where the same schedule must favour sharing
SOURCE = {
    "currin": ("0.148 ± 0.056", "0.301 ± 0.080", "0.295 ± 0.052"),
    "park": ("0.012 ± 0.002", "0.052 ± 0.006", "0.035 ± 0.001"),
    "branin": ("0.260 ± 0.065", "0.374 ± 0.089", "0.335 ± 0.070"),
    "hartmann3": ("0.365 ± 0.074", "0.456 ± 0.087", "0.412 ± 0.067"),
    "borehole": ("0.604 ± 0.006", "0.633 ± 0.006", "0.615 ± 0.005"),
}
ADAM = {rate: optax.adam(rate) for rate in (0.01, 0.05, 0.1)}


def flat_model(x: Array, y: Array | None = None, kernel: Callable = gp.RBF) -> None:
    """The source's: no priors, and parameters that are softplus of what is optimised, from log 2 on."""
    free = numpyro.sample("free", dist.ImproperUniform(dist.constraints.real, (), (3,)).to_event(0))
    length_scale, variance, noise = FLOORS + jax.nn.softplus(free)
    numpyro.sample("y", gp.GaussianProcess(kernel(length_scale, variance), x, noise), obs=y)


def fitted(model: Callable, clients: Clients, method: Any, seed: int = 0, **options: Any) -> fb.FederatedFit:
    """A fit; the warnings are that rounds end at their limit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fb.fit_federated(model, clients, method=method, key=jax.random.key(seed), progress=False, **options)


def averaging(rate: float, rounds: int, **options: Any) -> fb.FedAvg:
    """Federated averaging with Adam, which begins anew in each round, to a point."""
    return fb.FedAvg(optimizer=ADAM[rate], max_rounds=rounds, laplace=False, tolerance=1e-12, **options)


def mode(fit: fb.FederatedFit) -> dict[str, float]:
    """The mode of a Laplace fit of `gp.model`, in the parameters' own units."""
    assert fit.posterior is not None
    theta = np.linalg.solve(np.asarray(fit.posterior.precision[0]), np.asarray(fit.posterior.shift[0]))
    return dict(zip(("length_scale", "variance", "noise"), np.exp(theta).tolist(), strict=True))


def plug_in(theta: Mapping[str, float], data: Mapping[str, Array], x: Array) -> tuple[Array, Array]:
    """Means and sds of outcomes at ``x`` given a client's own rows, at one point of the parameters."""
    with jax.enable_x64(True):
        kernel, noise = gp.RBF(theta["length_scale"], theta["variance"]), theta["noise"] + 1e-4
        seen = gp.GaussianProcess(kernel, data["x"], noise)
        law = gp.GaussianProcess(kernel, x, noise).given(seen, jnp.asarray(data["y"])).marginals
        return np.asarray(law.mean), np.asarray(law.scale)


def predicted(fit: fb.FederatedFit, client: Any, x: Array) -> tuple[Array, Array]:
    """Means and sds of outcomes at ``x``, shape ``(draws, n)`` each.

    Rows are filled up to a multiple of 64, so that clients of other sizes share compiled programs.
    """
    filled = np.concatenate([x, np.repeat(x[:1], -len(x) % 64, axis=0)])
    found = fit.predict(client, x=filled).posterior_predictive
    mean, sd = (found[f"y_{name}"].values.reshape(-1, len(filled))[:, : len(x)] for name in ("mean", "sd"))
    return mean, sd


def moments(fit: fb.FederatedFit, client: Any, x: Array) -> tuple[Array, Array]:
    """Mean and sd of outcomes at ``x`` by a fit that ends at a point."""
    mean, sd = predicted(fit, client, x)
    return mean[0], sd[0]


def rmse(a: Array, b: Array) -> float:
    """Root mean square of the difference."""
    return float(np.sqrt(np.mean((a - b) ** 2)))


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and sd over repeats."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.{digits}f}"


table = partial(pages.table, right_from=1)


def told(*cells: Any) -> None:
    """Progress on the terminal."""
    print(*cells, flush=True)


# Multi-fidelity -------------------------------------------------------------------------------------------------------


def fidelity_errors(name: str, seed: int, *, corners: bool = False) -> dict[str, float]:
    """Root mean square errors of the high fidelity at test points, in sds of its outcomes, by algorithm."""
    clients, truth = gp.fidelity.simulate(jax.random.key(seed), name, corners=corners)
    high = {"high": clients["high"]}
    size = len(clients["high"]["y"])
    errors = {}
    for rate in (0.01, 0.1):
        for words, group in (("FGPR", clients), ("separate", high)):
            fit = fitted(flat_model, group, averaging(rate, 200, batch_size=size, epochs=1), seed)
            errors[f"{words} {rate}"] = rmse(moments(fit, "high", truth["x"])[0], truth["f"])
    for words, group in (("mode", clients), ("separate mode", high)):
        theta = mode(fitted(gp.model, group, "laplace", seed, num_draws=2))
        errors[words] = rmse(plug_in(theta, clients["high"], truth["x"])[0], truth["f"])
    return errors


COLUMNS = ("FGPR 0.01", "separate 0.01", "FGPR 0.1", "separate 0.1", "mode", "separate mode")
FIDELITY_TEXT = """\
Each level of fidelity is one client; inputs are uniform in the unit cube, outcomes have no noise and are standardised
for each client. RMSE of the high fidelity's noise-free function at 1,000 uniform points, in sds of the client's
outcomes, mean ± sd over {repeats} repeats. The kernel is an isotropic RBF.

- **FGPR 0.01, 0.1**: the source's program: flat priors, softplus parameters from log 2, 200 rounds of one epoch (larger
  clients take more steps), batches of the smallest client's size, Adam with that rate, which begins anew in each round.
- **separate**: the high fidelity's client alone, by the same schedule.
- **mode**: the mode of `gp.model`'s posterior, with its priors, by `method="laplace"`: of all levels, or the high one.
- The source's columns are those of its table 1 (FGPR, separate, AR1: a centralised co-kriging of all rows).
"""


def multi_fidelity(repeats: int, data: Path) -> list[str]:
    """The table of five functions, and which of them must favour sharing."""
    repeats = repeats or 30
    rows, wins, verdicts = [], [], []
    for name in NAMES:
        found = [fidelity_errors(name, seed) for seed in range(repeats)]
        by = {column: [each[column] for each in found] for column in COLUMNS}
        rows.append([name, *(spread(by[column]) for column in COLUMNS), *SOURCE[name]])
        shares = [np.mean(np.less(by[f"FGPR {rate}"], by[f"separate {rate}"])) for rate in (0.01, 0.1)]
        share = np.mean(np.less(by["mode"], by["separate mode"]))
        wins.append([name, *(f"{100 * each:.0f}" for each in (*shares, share))])
        if name in FORCED:
            verdicts.append((name, np.mean(by["FGPR 0.01"]) < np.mean(by["separate 0.01"])))
        told(rows[-1], wins[-1])
    lines = [FIDELITY_TEXT.format(repeats=repeats)]
    lines += table(["", *COLUMNS, "source: FGPR", "separate", "AR1"], rows)
    lines += ["Repeats, in percent, in which sharing has the smaller error:", ""]
    lines += table(["", "Adam 0.01", "Adam 0.1", "modes"], wins)
    failed = [name for name, fine in verdicts if not fine]
    verdict = "PASS" if not failed else f"FAIL on {', '.join(failed)}"
    return [*lines, f"FGPR below separate in mean at rate 0.01 on {', '.join(FORCED)}: **{verdict}**.", ""]


def ablation(repeats: int, data: Path) -> list[str]:
    """CURRIN's error by the weight of the high fidelity."""
    repeats = repeats or 10
    weights, found = (40 / 240, 0.3, 0.5, 0.7, 0.9, 0.95, 0.999), {}
    for weight in weights:
        found[weight] = [_weighted(weight, seed) for seed in range(repeats)]
        told(weight, spread(found[weight]))
    separate = [_weighted(1.0, seed) for seed in range(repeats)]
    text = (
        "CURRIN with the corners of the square added to each client's inputs, as the source's program has them, by the "
        f"schedule with rate 0.01. Weights are p for the high and 1 - p for the low fidelity. {repeats} repeats. Rows "
        "alone give p = 0.17."
    )
    rows = [["RMSE", *(spread(found[weight]) for weight in weights), spread(separate)]]
    return [wrapped(text), *table(["p", *(f"{weight:.3g}" for weight in weights), "separate"], rows)]


def _weighted(weight: float, seed: int) -> float:
    clients, truth = gp.fidelity.simulate(jax.random.key(seed), "currin", corners=True)
    group = clients if weight < 1.0 else {"high": clients["high"]}
    weights = {"high": weight, "low": 1.0 - weight} if weight < 1.0 else "rows"
    schedule = averaging(0.01, 200, batch_size=len(clients["high"]["y"]), epochs=1, weights=weights)
    fit = fitted(flat_model, group, schedule, seed)
    return rmse(moments(fit, "high", truth["x"])[0], truth["f"])


# Engines --------------------------------------------------------------------------------------------------------------


class Halves(NamedTuple):
    """A random half of each engine's rows, and the others."""

    train: Clients
    test: Clients


def engines(path: Path, sensor: int, seed: int) -> Halves:
    """One client an engine: time in hundreds of cycles, and the sensor scaled to mean 0 and variance 1."""
    rows = np.loadtxt([line for line in path.read_text().splitlines() if line.strip()[:1].isdigit()])
    halves = Halves({}, {})
    rng = np.random.default_rng(seed)
    for unit in np.unique(rows[:, 0]):
        own = rows[rows[:, 0] == unit]
        x, y = own[:, 1:2] / 100.0, own[:, 4 + sensor]
        y, order = (y - y.mean()) / y.std(), rng.permutation(len(y))
        for part, at in zip(halves, (order[: len(y) // 2], order[len(y) // 2 :]), strict=True):
            part[f"engine{int(unit)}"] = {"x": x[at], "y": y[at]}
    return halves


class Scores(NamedTuple):
    """Held-out scores over engines: mean log density of an outcome, mean RMSE of an engine, and its sd."""

    density: float
    error: float
    sd: float

    @property
    def cells(self) -> list[str]:
        """For a table."""
        return [f"{self.density:.4f}", f"{self.error:.4f}", f"{self.sd:.3f}"]


def scored(predict: Callable[[str, Array], tuple[Array, Array]], test: Clients) -> Scores:
    """Of predictions by engine, ``(name, x) -> (mean, sd)``."""
    densities, errors = [], []
    for name, rows in test.items():
        mean, sd = predict(name, rows["x"])
        densities.append(norm.logpdf(rows["y"], mean, sd))
        errors.append(rmse(mean, rows["y"]))
    return Scores(float(np.concatenate(densities).mean()), float(np.mean(errors)), float(np.std(errors)))


def library_scores(fit: fb.FederatedFit, test: Clients) -> Scores:
    """Of a federated fit, averaged over its draws."""
    densities, errors = [], []
    for name, rows in test.items():
        mean, sd = predicted(fit, name, rows["x"])
        densities.append(logsumexp(norm.logpdf(rows["y"], mean, sd), axis=0) - np.log(len(mean)))
        errors.append(rmse(mean.mean(axis=0), rows["y"]))
    return Scores(float(np.concatenate(densities).mean()), float(np.mean(errors)), float(np.std(errors)))


def by_scikit_learn(halves: Halves) -> tuple[float, Scores]:
    """Seconds and scores of one scikit-learn regressor an engine, with its defaults: one search from one start."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    begin, machines = time.perf_counter(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, rows in halves.train.items():
            kernel = ConstantKernel(1.0) * RBF(0.5) + WhiteKernel(0.5)
            machines[name] = GaussianProcessRegressor(kernel).fit(rows["x"], rows["y"])
    seconds = time.perf_counter() - begin
    return seconds, scored(lambda name, x: machines[name].predict(x, return_std=True), halves.test)


FEDERATED: Mapping[str, tuple[Any, Any]] = {
    "FGPR: FedAvg, 40 rounds": (flat_model, averaging(0.05, 40, local_steps=3, batch_size=32)),
    '`method="laplace"`, not checked': (gp.model, "laplace"),
    '`method="laplace"`': (gp.model, "laplace"),
}


def timed(
    model: Callable, clients: Clients, method: Any, *, correct: bool = True
) -> tuple[fb.FederatedFit, float, float]:
    """A fit, with the seconds of the first call, compilation included, and of a second one."""
    seconds = []
    for seed in (0, 1):
        begin = time.perf_counter()
        fit = fitted(model, clients, method, seed, num_draws=50, correct=correct)
        seconds.append(time.perf_counter() - begin)
    return fit, seconds[0], seconds[1]


ENGINE_TEXT = """\
100 engines of FD001, each a client: time in hundreds of cycles, the sensor scaled for each engine; a random half of its
rows is held out. One split. Log density per held-out row in nats; RMSE is the mean over engines, sd that between them.
Seconds are those of the fit alone: the first call with compilation, and a second. "Times faster" is scikit-learn's
seconds over the second call's, in parentheses over the first's. scikit-learn fits one `GaussianProcessRegressor` an
engine, by one search from one start: a point. So do averaging, and `correct=False` (not checked), which takes the
Gaussian at the mode without a look at its error. The check after the rounds evaluates each engine's density at 1,500
draws of the parameters. EP is not in the table.
"""


def engine_rows(path: Path, sensor: int) -> list[list[str]]:
    """The table's lines of one sensor."""
    halves = engines(path, sensor, 0)
    seconds, scores = by_scikit_learn(halves)
    lines = [[f"sensor {sensor}", "scikit-learn, each engine", *scores.cells, f"{seconds:.1f}", "", ""]]
    told(lines[-1])
    for name, (model, method) in FEDERATED.items():
        fit, first, second = timed(model, halves.train, method, correct="not checked" not in name)
        found = library_scores(fit, halves.test)
        ratio = f"{seconds / second:.1f} ({seconds / first:.2f})"
        lines.append([f"sensor {sensor}", name, *found.cells, f"{first:.1f}", f"{second:.2f}", ratio])
        told(lines[-1])
    return lines


def unseen(path: Path, sensor: int, seed: int) -> tuple[float, float]:
    """The source's protocol: 60 engines say the parameters, 40 others are conditioned on half of their rows."""
    halves = engines(path, sensor, seed)
    names = np.random.default_rng([seed, 1]).permutation(list(halves.train))
    whole = {name: {key: np.concatenate([part[name][key] for part in halves]) for key in "xy"} for name in names[:60]}
    fit = fitted(flat_model, whole, averaging(0.05, 40, local_steps=3, batch_size=32), seed)
    errors = []
    for name in names[60:]:
        mean, _ = moments(fit, halves.train[name], halves.test[name]["x"])
        errors.append(rmse(mean, halves.test[name]["y"]))
    return float(np.mean(errors)), float(np.std(errors))


def engine_part(repeats: int, data: Path) -> list[str]:
    """100 engines against scikit-learn, and the source's protocol."""
    path, repeats = data / "cmapss_train_FD001.txt", repeats or 5
    if not path.is_file():
        return [f"Skipped: there is no `{path.name}`.", ""]
    head = ["", "", "log density", "RMSE", "sd", "s, first call", "s, second", "times faster"]
    lines = [ENGINE_TEXT, *table(head, [each for sensor in (2, 7) for each in engine_rows(path, sensor)])]
    rows = []
    for sensor, source in ((2, ("5.45 (0.01)", "0.87 (0.02)")), (7, ("5.76 (0.03)", "0.76 (0.01)"))):
        found = 10.0 * np.array([unseen(path, sensor, seed) for seed in range(repeats)])
        mine = [f"{np.mean(column):.2f} ({np.std(column, ddof=1):.2f})" for column in found.T]
        rows.append([f"sensor {sensor}", *mine, *source])
        told(rows[-1])
    text = (
        "The source's protocol: parameters of 60 random engines by FGPR, 40 others conditioned on a random half of "
        f"their rows and tested on the other; values times 10, mean (sd) over {repeats} repeats (the source: 30). It "
        "does not say which of NASA's files it uses, nor the kernel or the scaling of time."
    )
    return [*lines, wrapped(text), *table(["", "RMSE", "its sd over engines", "source: RMSE", "its sd"], rows)]


# Robot arm ------------------------------------------------------------------------------------------------------------

ROBOT_TEXT = """\
Inverse dynamics of the SARCOS arm: 21 inputs, one torque at a time, 25 clients of a random partition. Only the {kept}
distinct rows of the data set's test part are used, so that each client has about {train} rows and {test} held out,
where the source has 1,779 and 178. Inputs and outcomes are scaled to variance 1 over all rows. Matern-3/2, isotropic,
flat priors; rounds of 2 steps on 64 rows, Adam 0.05. Values times 10, mean over clients of the RMSE and its sd
between clients; mean (sd) over {repeats} repeats.
"""


def arm(path: Path, output: int, seed: int) -> Halves:
    """25 clients of distinct rows, a tenth of each held out."""
    from scipy.io import loadmat

    rows = np.unique(loadmat(path)["sarcos_inv_test"], axis=0)
    rng = np.random.default_rng(seed)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    halves = Halves({}, {})
    for k, at in enumerate(np.array_split(rng.permutation(len(rows)), 25)):
        x, y, cut = rows[at, :21], rows[at, 20 + output], len(at) // 10
        halves.train[f"c{k}"], halves.test[f"c{k}"] = {"x": x[cut:], "y": y[cut:]}, {"x": x[:cut], "y": y[:cut]}
    return halves


def _arms(path: Path, output: int, repeats: int) -> list[tuple[int, Halves]]:
    return [(seed, arm(path, output, seed)) for seed in range(repeats)]


def _arm_errors(model: Callable, halves: Halves, rounds: int, seed: int) -> tuple[float, float]:
    """Mean and sd over clients of ten times the RMSE."""
    fit = fitted(model, halves.train, averaging(0.05, rounds, local_steps=2, batch_size=64), seed)
    errors = [rmse(moments(fit, name, new["x"])[0], new["y"]) for name, new in halves.test.items()]
    return 10.0 * float(np.mean(errors)), 10.0 * float(np.std(errors))


def robot(repeats: int, data: Path) -> list[str]:
    """The source's table 3 on the small file."""
    path, repeats = data / "sarcos_inv_test.mat", repeats or 5
    if not path.is_file():
        return [f"Skipped: there is no `{path.name}`.", ""]
    source = {1: ("2.75 (0.00)", "1.84 (0.01)"), 3: ("2.42 (0.03)", "1.57 (0.01)")}
    source |= {5: ("2.20 (0.05)", "1.29 (0.02)"), 7: ("2.38 (0.01)", "1.44 (0.02)")}
    model, rows = partial(flat_model, kernel=gp.Matern32), []
    for output, theirs in source.items():
        for rounds in (40, 150):
            found = [_arm_errors(model, halves, rounds, seed) for seed, halves in _arms(path, output, repeats)]
            mine = [f"{np.mean(column):.2f} ({np.std(column, ddof=1):.2f})" for column in np.transpose(found)]
            rows.append([f"output {output}, {rounds} rounds", *mine, *theirs])
            told(rows[-1])
    halves = arm(path, 1, 0)
    sizes = [np.mean([len(client["y"]) for client in part.values()]) for part in halves]
    kept = sum(len(client["y"]) for part in halves for client in part.values())
    text = ROBOT_TEXT.format(kept=f"{kept:,}", train=round(sizes[0]), test=round(sizes[1]), repeats=repeats)
    return [wrapped(text), *table(["", "RMSE", "its sd over clients", "source: RMSE", "its sd"], rows)]


# Small clients --------------------------------------------------------------------------------------------------------

SMALL_TEXT = """\
Three clients of {rows} rows with functions of their own (RBF, length scale 0.2, variance 1, noise 0.05, inputs uniform
in the unit interval). Held out: 20 rows of each. Coverage of central intervals of the outcomes, in percent, and mean
log density per held-out outcome in nats, with standard errors over {repeats} repeats. "Plug-in" has one point of the
parameters: FGPR's end (flat priors, 100 rounds of 5 steps on all rows, Adam 0.1), or the mode with `gp.model`'s priors.
The others average over the parameters' posterior.
"""
LEVELS = (90, 95)


def small_scores(kind: str, clients: Clients, test: Clients, seed: int) -> list[float]:
    """Coverages and mean log density of one federation."""
    inside: dict[int, list[float]] = {level: [] for level in LEVELS}
    densities = []
    fit, theta = _small_fit(kind, clients, seed)
    for name, new in test.items():
        if kind.startswith("plug-in"):
            mean, sd = moments(fit, name, new["x"]) if theta is None else plug_in(theta, clients[name], new["x"])
            uniform = norm.cdf(new["y"], mean, sd)
            densities.append(norm.logpdf(new["y"], mean, sd))
        else:
            mean, sd = predicted(fit, name, new["x"])
            uniform = norm.cdf(new["y"], mean, sd).mean(axis=0)
            densities.append(logsumexp(norm.logpdf(new["y"], mean, sd), axis=0) - np.log(len(mean)))
        for level in LEVELS:
            inside[level].append(float(np.mean(np.abs(uniform - 0.5) < level / 200.0)))
    return [*(100.0 * float(np.mean(inside[level])) for level in LEVELS), float(np.mean(densities))]


def _small_fit(kind: str, clients: Clients, seed: int) -> tuple[fb.FederatedFit, dict[str, float] | None]:
    """The fit, and its mode where that is plugged in."""
    if kind == "plug-in, FGPR":
        return fitted(flat_model, clients, averaging(0.1, 100, local_steps=5), seed), None
    if kind == "plug-in, mode":
        fit = fitted(gp.model, clients, "laplace", seed, num_draws=2)
        return fit, mode(fit)
    methods = {"averaged, Laplace": "laplace", "averaged, EP": "ep", "averaged, FA-LD": "fald"}
    return fitted(gp.model, clients, methods[kind], seed, num_draws=500), None


def small(repeats: int, data: Path) -> list[str]:
    """Coverage where clients are few and small."""
    repeats = repeats or 60
    lines = []
    for rows in (8, 10):
        kinds = ["plug-in, FGPR", "plug-in, mode", "averaged, Laplace", "averaged, EP"]
        found: dict[str, list[list[float]]] = {kind: [] for kind in [*kinds, "averaged, FA-LD"]}
        for seed in range(repeats):
            whole, _ = gp.simulate(jax.random.key(seed), 3, rows + 20)
            parts = [{n: {k: v[at] for k, v in c.items()} for n, c in whole.items()} for at in _cut(rows)]
            for kind in [*kinds, *(["averaged, FA-LD"] if rows == 8 and seed < repeats // 6 else [])]:
                found[kind].append(small_scores(kind, parts[0], parts[1], seed))
        shown = [[kind, len(each), *_with_errors(np.array(each))] for kind, each in found.items() if each]
        told(shown)
        lines += [wrapped(SMALL_TEXT.format(rows=rows, repeats=repeats)) if not lines else f"With {rows} rows:\n"]
        lines += table(["", "repeats", "90%", "95%", "log density"], shown)
        gain = np.array(found["averaged, EP"]) - np.array(found["plug-in, FGPR"])
        other = np.array(found["averaged, EP"]) - np.array(found["plug-in, mode"])
        lines += [
            f"EP less FGPR's point, repeat by repeat: {_with_errors(gain)[1]} percent of coverage at 95%, "
            f"{_with_errors(gain)[2]} nats; less the mode: {_with_errors(other)[1]} percent, "
            f"{_with_errors(other)[2]} nats.\n"
        ]
    return lines


def _cut(rows: int) -> tuple[slice, slice]:
    return slice(0, rows), slice(rows, None)


def _with_errors(values: Array) -> list[str]:
    means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    digits = (1, 1, 3)
    return [f"{m:.{d}f} ± {e:.{d}f}" for m, e, d in zip(means, errors, digits, strict=True)]


# Large clients --------------------------------------------------------------------------------------------------------

NUM_INDUCING = 30
TRUTH = {"length_scale": 0.1, "noise": 0.1, "variance": 1.0}


def sparse_model(x: Array, y: Array | None = None) -> None:
    """`gp.model` through 30 inducing inputs on an even grid, a third of the true length scale apart."""
    length_scale = numpyro.sample("length_scale", dist.LogNormal(np.log(0.3), 1.0))
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(np.log(0.1), 1.5))
    grid = np.linspace(0.0, 1.0, NUM_INDUCING)
    numpyro.sample("y", gp.SparseGaussianProcess(gp.RBF(length_scale, variance), x, noise, inducing=grid), obs=y)


def large_clients(num_clients: int, rows: int) -> Clients:
    """Functions drawn by 2,000 random Fourier features, whose law is the RBF kernel's to a few percent."""
    clients = {}
    for k in range(num_clients):
        rng = np.random.default_rng([2, k])
        x, weights = rng.uniform(size=rows), rng.normal(size=2000)
        turns, shifts = rng.normal(size=2000) / TRUTH["length_scale"], rng.uniform(0, 2 * np.pi, 2000)
        f = np.sqrt(2.0 / 2000) * np.cos(np.outer(x, turns) + shifts) @ weights
        clients[f"c{k}"] = {"x": x[:, None], "y": f + np.sqrt(TRUTH["noise"]) * rng.normal(size=rows)}
    return clients


def large(repeats: int, data: Path, num_clients: int = 100, rows: int = 5000) -> list[str]:
    """Time and memory of a sparse fit, and how far its parameters are from the truth."""
    clients = large_clients(num_clients, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    fit, first, second = timed(sparse_model, clients, "laplace")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    draws = {name: np.log(fit.idata.posterior[name].values) for name in TRUTH}
    shown = []
    for name, value in TRUTH.items():
        mean, sd = draws[name].mean(), draws[name].std()
        shown.append([name, value, f"{np.exp(mean):.4f}", f"{sd:.4f}", f"{(mean - np.log(value)) / sd:+.1f}"])
    begin = time.perf_counter()
    grid = np.linspace(0.0, 1.0, 200)
    fit.predict("c0", x=grid[:, None])
    predicted = time.perf_counter() - begin
    told(shown, first, second, memory)
    text = (
        f"{num_clients} clients of {rows:,} rows, one input, RBF, `SparseGaussianProcess` with {NUM_INDUCING} inducing "
        f'inputs on a grid, `method="laplace"`: {first:.0f} s the first call, {second:.0f} s a second one; the process '
        f"took {memory:.1f} GiB at most, {before:.1f} before the fit. A prediction of 200 rows of one client, with 50 "
        f"draws of the parameters: {predicted:.1f} s, with compilation. One data set."
    )
    return [wrapped(text), *table(["", "truth", "posterior median", "sd of its log", "z"], shown)]


PARTS: Mapping[str, tuple[str, Callable[[int, Path], list[str]]]] = {
    "fidelity": ("Multi-fidelity regression", multi_fidelity),
    "ablation": ("The weight of the high fidelity", ablation),
    "engines": ("Engines", engine_part),
    "robot": ("A robot arm", robot),
    "small": ("Small clients: averaging over the parameters", small),
    "large": ("Large clients", large),
}
HEAD = """\
# Federated Gaussian processes

Written by `gaussian_processes.py`, section by section. FGPR is Yue and Al Kontar (2024), "the source": federated
averaging of a kernel's parameters, and predictions conditioned on the client's own rows. Times are those of two busy
cores with one BLAS thread; ratios come from one process.
"""

NOTES = {
    "fidelity": """\
by the source's schedule, sharing the kernel wins clearly. Most of that is the rate: at 0.01 the
high fidelity's own fit has not arrived after its 200 steps. At 0.1, and at the modes, the gain is small except on
CURRIN and Borehole, and on BRANIN the shared mode is worse than the separate one.
""",
    "engines": """\
with about a hundred rows an engine has enough of its own, and sharing changes predictions little. The
aim of a fit ten times as fast as scikit-learn's was not reached.
""",
    "small": """\
averages over EP's posterior cover more than a point does, and against FGPR's point they predict better
too. Against the mode with the program's priors they gain coverage, and no density that these repeats can tell.
""",
}


def merged(page: str, sections: Mapping[str, str]) -> str:
    """The page with some sections written anew, in the parts' order."""
    notes = {PARTS[name][0]: MARK + note for name, note in NOTES.items()}
    return pages.merged(page, sections, HEAD, [title for title, _ in PARTS.values()], notes)


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; all, if left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Repeats of each table; 0: the part's own number.")] = 0,
    data: Annotated[Path, typer.Option(help="The folder with the files of engines and robot.")] = Path("data"),
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "GAUSSIAN_PROCESSES.md",
) -> None:
    """Measure, print, write."""
    for name in part or PARTS:
        if name not in PARTS:
            raise typer.BadParameter(f"There is no part {name!r}; it is one of {', '.join(PARTS)}.")
        title, measure = PARTS[name]
        section = "\n".join(measure(repeats, data))
        output.write_text(merged(output.read_text() if output.exists() else "", {title: section}))


if __name__ == "__main__":
    typer.run(main)
