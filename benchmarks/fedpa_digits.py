"""FedPA on handwritten digits: a network of 1135 weights over ten clients who each hold few of the digits.

``python benchmarks/fedpa_digits.py`` prints the tables, writes ``FEDPA_DIGITS.md`` and ``docs/digits_fedpa.png``; some
seven minutes on two cores.

Compared are l = 1, 10 and 100 samples per client and round (l = 1 is FedAvg) at the same gradient steps per round. The
clients' step size and the server's are chosen for each l on the same grid by a run of its own, then three more runs
with other start values and batches are measured. Starts and steps are written into the server's state, so that
all runs of an l share one compiled program.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import typer
from digits import INK, label
from federated import Federation
from numpyro.infer import MCMC, NUTS, init_to_value
from numpyro.infer.util import log_density
from pages import table
from problems import BenchmarkSet
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import fedbayes as fb
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.pictures.drawing import BLUE, GREEN, GREY, ORANGE

FOLDER = Path(__file__).parent
HIDDEN, CLIENTS, SHARDS = 15, 10, 20
ROUNDS, FEDAVG_ROUNDS, LOCAL_STEPS, BURN_IN, BATCH = 50, 10, 220, 20, 10
SAMPLES, RHO, MOMENTUM = (1, 10, 100), 0.1, 0.9
STEPS, RATES = (0.001, 0.003, 0.01, 0.03, 0.1), (0.1, 0.3, 1.0)
TUNING_SEED, SEEDS, DRAWS = 0, (1, 2, 3), 200
LEVELS = (-0.7, -0.5, -0.35, -0.2)
COLORS = {1: ORANGE, 10: GREEN, 100: BLUE}
HEADING = "FedPA bears large client steps, FedAvg has to take small ones; at their best they are close"
SUBTITLE = (
    "FedPA with l samples per client and round (l = 1: FedAvg): a network of 1135 weights on scikit-learn's digits, "
    "ten clients with two to four digits each,\nthe same 220 local steps in every round. Left and right: step sizes "
    "chosen for each l; lines: mean of three runs, bands: their range. Dotted: the mode of the pooled data."
)
METRICS = ("log predictive density", "accuracy", "ECE", "Brier")
SETUP = f"""\
Written by `python benchmarks/fedpa_digits.py`; the picture is `docs/digits_fedpa.png`.

- Data: scikit-learn's digits, 1198 images for training, 599 held out; the training images sorted by label, cut into
  {SHARDS} shards, two random shards to each of {CLIENTS} clients: two to four digits each, about 120 images.
- Model: 64 - {HIDDEN} - 10 network, tanh, 1135 weights with normal priors of sd 2 / sqrt(fan-in), biases of sd 2.
- FedPA: `solver="iasg"`, `shrinkage={RHO}`, batches of {BATCH}, {LOCAL_STEPS} local steps in every round for every l;
  of those l > 1 throws away {BURN_IN} and averages the rest in l windows. {ROUNDS} rounds, for l > 1 the first
  {FEDAVG_ROUNDS} of FedAvg, as in the paper. Server: SGD with momentum {MOMENTUM}. No preconditioner, random starts.
- Chosen for each l on the same grid: client step in {STEPS}, server's learning rate in
  {RATES}; by the held-out log predictive density, mean of the last ten rounds of one run. The first two tables
  show three other runs, start values and batches drawn afresh.
- Plug-in: predictions at the server's position. Posterior: averaged over {DRAWS} draws of the merged Gaussian, identity
  minus low rank; for l = 1 it is the identity and knows nothing. ECE: expected calibration error, ten bins.
- Pooled: the same network on all rows, by Adam (the mode), and by one short chain of NUTS (300 + {DRAWS})."""
# below the tables' titles
NOTES = (
    "Rounds after which the plug-in is at the level for good, least to most of three runs; in brackets the fewest of "
    "any setting of the grid (one run).",
    "Mean (sd) of three runs; the sd of a weight in the posterior is the mean over all weights.",
    "Mean of the last ten rounds of one run, at the server's best rate for that step (in brackets).",
)
READING = """\
- Same client step for all: from 0.01 on FedPA is far ahead. At 0.1 FedAvg stops at -0.76 with any of the server's
  rates, l = 10 reaches -0.16: averaging over windows and shrinking undo most of what long local runs to the client's
  own digits do to the mean.
- Each at its best: FedAvg takes the smallest step, 0.001, and comes within 0.05 of the rest. l = 10 then saves a tenth
  to a quarter of the rounds and ends higher (-0.146 against -0.190), by many times the sd of the runs; its accuracy
  does not differ. FedAvg's best is at the edge of the grid; four settings beyond it, tried by hand (steps 0.0003 and
  0.001, server's rate up to 6), ended at -0.19 at best, at -0.2 after 35 rounds.
- To the lower levels large steps are quickest (in brackets), and there FedPA's rounds win nothing: below ten rounds
  l > 1 still does FedAvg. FedAvg alone, with the same steps, is there as soon, but falls back where FedPA goes on.
- l = 100 is not better than l = 10 but worse: windows are two steps long, the same rho gives the samples ten times
  the weight of the identity (l = 10: 0.9 times), and the server has to be slowed: at rates 0.3 and 1 it wanders off or
  diverges at steps where l = 10 does not. It needs as many rounds as FedAvg, and its runs differ most. With rho = 0.01
  on the same grid (an earlier run, not in the tables) l = 10 and l = 100 ended at -0.197 and -0.191 at best, like
  FedAvg, at client step 0.001; at step 0.1 at -0.31 and -0.37.
- Calibration: ECE 0.014 and 0.021 against FedAvg's 0.079. That is where the server ends, not the posterior: the pooled
  mode itself (0.066) and NUTS (0.094) are as underconfident as FedAvg under this prior, and FedPA ends away from that
  mode, at sharper predictions. l = 10 lies above the pooled mode in density for that reason; don't read it as a better
  approximation of the posterior.
- The merged posterior adds nothing to its own mean: all differences are below 0.002 for l > 1, and for l = 1 the
  identity's noise costs 0.013. A weight's sd is 0.009 to 0.029, of NUTS 0.36 (one mode, one short chain): in
  directions that no sample has moved, shrinkage asserts the curvature of a mean loss of one (for l = 100 of eleven),
  where these data and the prior have next to none. More samples make it narrower still. For prediction it
  is a plug-in; for uncertainty of weights don't use it."""


class Setting(NamedTuple):
    """What is chosen for an l: the client's step size and the server's."""

    step: float
    rate: float

    def __str__(self) -> str:
        return f"client step {self.step:g}, server {self.rate:g}"


class Run(NamedTuple):
    """One fit: plug-in scores ``(round, metric)``, and class probabilities ``(rows, 10)`` at the end.

    These are at the server's position, at the mean of the merged posterior, and averaged over its draws.
    """

    scores: np.ndarray
    plug_in: np.ndarray
    merged: np.ndarray
    posterior: np.ndarray
    spread: float  # mean posterior sd of the weights

    @property
    def level(self) -> float:
        """Log predictive density, mean of the last ten rounds."""
        return float(self.scores[-10:, 0].mean())

    def rounds_to(self, level: float) -> float:
        """Rounds after which the log predictive density is at the level for good; infinite if it never is."""
        below = np.flatnonzero(self.scores[:, 0] < level)
        needed = 1 if not below.size else below[-1] + 2
        return float(needed) if needed <= len(self.scores) else np.inf


def model(x: Any, y: Any = None) -> None:
    """A network with one hidden layer."""
    sd = {"w1": 2.0 / np.sqrt(x.shape[-1]), "b1": 2.0, "w2": 2.0 / np.sqrt(HIDDEN), "b2": 2.0}
    shapes = {"w1": (x.shape[-1], HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    w = {
        name: numpyro.sample(name, dist.Normal(0.0, sd[name]).expand(shape).to_event(len(shape)))
        for name, shape in shapes.items()
    }
    numpyro.sample("y", dist.Categorical(logits=jnp.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]), obs=y)


def start(seed: int) -> dict[str, np.ndarray]:
    """Random weights of sd 1 / sqrt(fan-in)."""
    draw = np.random.default_rng(seed).normal
    return {
        "w1": draw(size=(64, HIDDEN)) / 8.0,
        "b1": np.zeros(HIDDEN),
        "w2": draw(size=(HIDDEN, 10)) / np.sqrt(HIDDEN),
        "b2": np.zeros(10),
    }


def flat(weights: Mapping[str, Any]) -> np.ndarray:
    """Weights in the order of the globals, along the last axis; leading axes of ``w1`` beyond two are kept."""
    lead = np.shape(weights["w1"])[:-2]
    return np.concatenate([np.reshape(weights[name], (*lead, -1)) for name in start(0)], axis=-1)


def digits() -> tuple[BenchmarkSet, np.ndarray, np.ndarray]:
    """The clients, and the held-out images and labels."""
    images, labels = load_digits(return_X_y=True)
    x, generator = images / 8.0 - 1.0, np.random.default_rng(0)
    test, train = np.split(generator.permutation(len(x)), [len(x) // 3])
    train = train[np.argsort(labels[train], kind="stable")]
    shards = np.array_split(train, SHARDS)
    pairs = generator.permutation(SHARDS).reshape(CLIENTS, -1)
    rows = [np.concatenate([shards[shard] for shard in pair]) for pair in pairs]
    clients = {f"client {i}": {"x": x[mine], "y": labels[mine]} for i, mine in enumerate(rows)}
    pooled = {"x": x[train], "y": labels[train]}
    return BenchmarkSet("digits", model, clients, model, pooled, tuple(start(0)), False), x[test], labels[test]


def probabilities(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Class probabilities ``(..., rows, 10)`` at flat weights ``(..., d)``."""
    ends = np.cumsum([value.size for value in start(0).values()])[:-1]
    parts = zip(start(0).values(), np.split(theta, ends, axis=-1), strict=True)
    w1, b1, w2, b2 = (part.reshape(*theta.shape[:-1], *value.shape) for value, part in parts)
    logits = np.tanh(x @ w1 + b1[..., None, :]) @ w2 + b2[..., None, :]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def bins(p: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of ten bins of confidence: the number of rows, and the sums of confidence and of right answers."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    place = np.clip(np.ceil(10 * confidence).astype(int) - 1, 0, 9)
    return tuple(np.bincount(place, weight, 10) for weight in (np.ones(len(y)), confidence, right))


def scores(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The metrics of ``p`` with shape ``(rows, 10)``."""
    if not np.all(np.isfinite(p)):
        return np.array([-np.inf, np.nan, np.nan, np.nan])
    density = np.log(np.maximum(p[np.arange(len(y)), y], 1e-300)).mean()
    _, confidence, right = bins(p, y)
    brier = ((p - np.eye(10)[y]) ** 2).sum(axis=1).mean()
    return np.array([density, (p.argmax(axis=1) == y).mean(), np.abs(right - confidence).sum() / len(y), brier])


class Training(Federation):
    """FedPA with l samples, compiled once and run from many starts with many step sizes."""

    def __init__(self, num_samples: int, rounds: int, fedavg_rounds: int) -> None:
        problem, self.x, self.y = digits()
        fedavg_rounds = fedavg_rounds if num_samples > 1 else 0
        method = fb.FedPA(
            num_samples=num_samples,
            solver="iasg",
            shrinkage=RHO,
            server_optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=1.0, momentum=MOMENTUM),
            fedavg_rounds=fedavg_rounds,
            local_steps=LOCAL_STEPS,
            burn_in=BURN_IN,
            step_size=STEPS[0],
            batch_size=BATCH,
            preconditioner="none",
            init=start(0),
            max_rounds=rounds - fedavg_rounds,
            num_replicates=1,
        )
        super().__init__(problem, method)

    def train(self, setting: Setting, seed: int) -> Run:
        """One fit, evaluated after every round."""
        key, steps = jax.random.key(seed), []
        current = self.start(key)
        current.state = _begun(current.state, setting, seed)
        for index, phase in enumerate(self.programs.phases):
            if index:
                current = self.next_phase()
            last = index == len(self.programs.phases) - 1
            for _ in range(phase.max_rounds):
                self.round()
                if not last:
                    shared = current.state.shared
                    plug_in = probabilities(self.x, shared.coordinates.globals_at(shared.position)[0])
                    steps.append(scores(plug_in, self.y))
        answer = self.method.answer(self.roster, current)
        draws = answer.draws(jax.random.fold_in(key, len(self.programs.phases)), DRAWS)[0]
        mean = jax.vmap(LowRankGaussian.mean_of_globals)(answer.posterior)[0]
        merged = probabilities(self.x, np.asarray(mean))
        posterior = probabilities(self.x, draws).mean(axis=0)
        return Run(np.array(steps), plug_in, merged, posterior, float(draws.std(axis=0).mean()))


def _begun(state: Any, setting: Setting, seed: int) -> Any:
    """The first state, with other start values and step sizes."""
    shared, optimizer = state.shared, state.optimizer
    shared = shared._replace(
        coordinates=shared.coordinates._replace(center=flat(start(seed))[None]),
        step_size=np.full_like(shared.step_size, setting.step),
    )
    rate = np.full_like(optimizer.hyperparams["learning_rate"], setting.rate)
    optimizer = optimizer._replace(hyperparams=optimizer.hyperparams | {"learning_rate": rate})
    return state._replace(shared=shared, optimizer=optimizer)


def pooled_mode(data: Mapping[str, np.ndarray], seed: int, num_steps: int) -> np.ndarray:
    """Weights found by Adam on all rows at once, prior included."""
    optimizer = optax.adam(3e-3)

    def energy(weights: Any) -> jax.Array:
        return -log_density(model, (), dict(data), weights)[0] / len(data["y"])

    def step(carry: tuple, _: None) -> tuple:
        moves, after = optimizer.update(jax.grad(energy)(carry[0]), carry[1])
        return (optax.apply_updates(carry[0], moves), after), None

    weights = jax.tree.map(jnp.asarray, start(seed))
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=num_steps)[0][0])
    return flat(run((weights, optimizer.init(weights))))


def pooled_draws(data: Mapping[str, np.ndarray], num_warmup: int, num_draws: int) -> np.ndarray:
    """Weights drawn by NUTS on all rows at once."""
    kernel = NUTS(model, max_tree_depth=7, init_strategy=init_to_value(values=start(TUNING_SEED)))
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_draws, progress_bar=False)
    mcmc.run(jax.random.key(TUNING_SEED), **data)
    return flat(mcmc.get_samples())


def mean_sd(values: Any, digits: int = 3) -> str:
    """Mean and, of more than one, sd."""
    values = np.asarray(values, float)
    spread = f" ({values.std(ddof=1):.{digits}f})" if values.size > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def whole(values: Any, most: int) -> str:
    """Rounds, least to most."""
    shown = [f"{value:.0f}" if np.isfinite(value) else f"> {most}" for value in sorted(values)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def title(num: int) -> str:
    """Of an l."""
    return "l = 1, FedAvg" if num == 1 else f"l = {num}"


Rows = list[list[str]]
Grid = dict[int, dict[Setting, Run]]


def rounds_table(chosen: Mapping[int, Setting], runs: Mapping[int, list[Run]], grid: Grid) -> Rows:
    """Rounds to each level, as tuned; in brackets the fewest of any setting."""
    rows = [["", "chosen", *(f"to {level:g}" for level in LEVELS)]]
    for num, mine in runs.items():
        cells = []
        for level in LEVELS:
            best = whole([min(run.rounds_to(level) for run in grid[num].values())], len(mine[0].scores))
            cells.append(f"{whole([run.rounds_to(level) for run in mine], len(mine[0].scores))} [{best}]")
        rows.append([title(num), str(chosen[num]), *cells])
    return rows


def scores_table(ends: Mapping[str, list[tuple[np.ndarray, float | None]]], y: np.ndarray) -> Rows:
    """Predictions at the end."""
    rows = [["", *METRICS, "sd of a weight"]]
    for name, found in ends.items():
        values = np.array([scores(p, y) for p, _ in found])
        spread = "-" if found[0][1] is None else mean_sd([spread for _, spread in found])
        rows.append([name, *(mean_sd(column) for column in values.T), spread])
    return rows


def tuning_table(grid: Grid) -> Rows:
    """Log predictive density of the last ten rounds by the client's step, at the server's best rate for it."""
    steps = sorted({setting.step for runs in grid.values() for setting in runs})
    rows = [["", *(f"client step {step:g}" for step in steps)]]
    for num, runs in grid.items():
        best = [best_of(runs, step) for step in steps]
        rows.append([title(num), *(f"{runs[setting].level:.3f} (server {setting.rate:g})" for setting in best)])
    return rows


def best_of(runs: Mapping[Setting, Run], step: float | None = None) -> Setting:
    """The best setting, of those with this client step where given."""
    left = [setting for setting in runs if step in (None, setting.step)]
    return max(left, key=lambda setting: np.nan_to_num(runs[setting].level, nan=-np.inf))


def document(tables: Mapping[str, Rows]) -> str:
    """``FEDPA_DIGITS.md``."""
    lines = ["# FedPA on digits", "", SETUP, "", "## Reading", "", READING, ""]
    for (name, rows), note in zip(tables.items(), NOTES, strict=True):
        lines += [f"## {name}", "", note, "", *table(rows[0], rows[1:])]
    return "\n".join(lines)


def show(console: Console, name: str, rows: Rows) -> None:
    """A table on the terminal."""
    shown = Table(title=name, title_justify="left")
    for column in rows[0]:
        shown.add_column(column)
    for row in rows[1:]:
        shown.add_row(*(cell.replace("[", r"\[") for cell in row))
    console.print(shown)


def draw(
    chosen: Mapping[int, Setting], runs: Mapping[int, list[Run]], grid: Grid, mode: list[np.ndarray], y: np.ndarray
) -> plt.Figure:
    """Log predictive density by round and by client step, and reliability."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12.5, 5.2), width_ratios=(1.2, 1.0, 1.0))
    figure.subplots_adjust(left=0.045, right=0.985, top=0.74, bottom=0.1, wspace=0.52)
    figure.text(0.045, 0.93, HEADING, fontsize=14, fontweight="bold")
    figure.text(0.045, 0.91, SUBTITLE, fontsize=9, color=GREY, va="top", linespacing=1.4)
    reference = np.mean([scores(p, y)[0] for p in mode])
    number = np.arange(1, len(runs[1][0].scores) + 1)
    for num, mine in runs.items():
        values = np.array([run.scores[:, 0] for run in mine])
        left.fill_between(number, values.min(axis=0), values.max(axis=0), color=COLORS[num], alpha=0.2, linewidth=0)
        left.plot(number, values.mean(axis=0), color=COLORS[num], linewidth=1.8)
    left.axhline(reference, color=INK, linestyle=":", linewidth=1.2)
    left.set_xlim(0, len(number))
    left.set_xlabel("communication rounds")
    by_step = {}
    for num, found in grid.items():
        steps = sorted({setting.step for setting in found})
        by_step[num] = [found[best_of(found, step)].level for step in steps]
        middle.plot(steps, by_step[num], "o-", color=COLORS[num], linewidth=1.8, markersize=4, clip_on=False)
    middle.axhline(reference, color=INK, linestyle=":", linewidth=1.2)
    middle.set_xscale("log")
    middle.set_xticks(STEPS, [f"{step:g}" for step in STEPS])
    middle.minorticks_off()
    middle.set_xlim(STEPS[0], STEPS[-1])
    middle.set_xlabel("client's step size")
    right.plot([0.45, 1.0], [0.45, 1.0], color="#BBBBBB", linewidth=1.0)
    groups = {num: [run.plug_in for run in mine] for num, mine in runs.items()}
    for name, found in {**groups, "pooled": mode}.items():
        count, confidence, correct = (np.sum(part, axis=0) for part in zip(*(bins(p, y) for p in found), strict=True))
        enough = count >= 10 * len(found)
        style = {"color": INK, "linestyle": ":", "linewidth": 1.2} if name == "pooled" else {"color": COLORS[name]}
        share = confidence[enough] / count[enough], correct[enough] / count[enough]
        right.plot(*share, **{"linewidth": 1.8} | style)
    right.set_xlabel("confidence")
    titles = (
        "log predictive density, by round",
        "and in the last ten rounds, by client's step",
        "accuracy by confidence, last round",
    )
    for ax, text in zip((left, middle, right), titles, strict=True):
        ax.set_title(text, loc="left", fontsize=10, color=GREY, pad=14)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
        ax.set_axisbelow(True)
    for ax in (left, middle):
        ax.set_ylim(-1.5 if ax is left else -0.85, -0.05)
    figure.draw_without_rendering()
    pooled = ("pooled mode", reference, INK)
    left_ends = [(title(num), np.mean([run.scores[-1, 0] for run in mine]), COLORS[num]) for num, mine in runs.items()]
    middle_ends = [(title(num), max(values[-1], -0.85), COLORS[num]) for num, values in by_step.items()]
    for ax, ends in ((left, left_ends), (middle, middle_ends)):
        ax.autoscale(False)
        label(ax, [*ends, pooled])
    names = [*((title(num), COLORS[num]) for num in runs), ("pooled mode", INK), ("calibrated", "#999999")]
    for i, (name, color) in enumerate(names):
        right.text(0.62, 0.34 - 0.07 * i, name, color=color, fontsize=8.5, transform=right.transAxes)
    return figure


def main(quick: Annotated[bool, typer.Option(help="Small budgets, nothing written: does all run?")] = False) -> None:
    """Tune, measure, print, and write."""
    jax.config.update("jax_enable_x64", True)
    console = Console(width=150)
    rounds, fedavg_rounds = (4, 1) if quick else (ROUNDS, FEDAVG_ROUNDS)
    rates, steps, seeds = (RATES[1:2], STEPS[-2:], SEEDS[:2]) if quick else (RATES, STEPS, SEEDS)
    grid: Grid = {}
    chosen: dict[int, Setting] = {}
    runs: dict[int, list[Run]] = {}
    for num in SAMPLES:
        training = Training(num, rounds, fedavg_rounds)
        settings = [Setting(step, rate) for step in steps for rate in rates]
        grid[num] = {setting: training.train(setting, TUNING_SEED) for setting in settings}
        chosen[num] = best_of(grid[num])
        runs[num] = [training.train(chosen[num], seed) for seed in seeds]
        console.print(f"{title(num)}: {chosen[num]}")
    problem, x, y = digits()
    data = dict(problem.pooled_data)
    modes = [probabilities(x, pooled_mode(data, seed, 20 if quick else 3000)) for seed in seeds]
    draws = pooled_draws(data, *((5, 5) if quick else (300, DRAWS)))
    ends: dict[str, list[tuple[np.ndarray, float | None]]] = {}
    for num, mine in runs.items():
        ends[f"{title(num)}: plug-in"] = [(run.plug_in, None) for run in mine]
        ends[f"{title(num)}: mean of the merged posterior"] = [(run.merged, None) for run in mine]
        ends[f"{title(num)}: merged posterior"] = [(run.posterior, run.spread) for run in mine]
    ends["pooled, Adam: plug-in"] = [(p, None) for p in modes]
    ends["pooled, NUTS: posterior"] = [(probabilities(x, draws).mean(axis=0), float(draws.std(axis=0).mean()))]
    tables = {
        "Rounds to a log predictive density": rounds_table(chosen, runs, grid),
        f"Held-out predictions after {rounds} rounds": scores_table(ends, y),
        "Log predictive density by the client's step": tuning_table(grid),
    }
    for name, rows in tables.items():
        show(console, name, rows)
    figure = draw(chosen, runs, grid, modes, y)
    if quick:
        return
    (FOLDER / "FEDPA_DIGITS.md").write_text(document(tables))
    figure.savefig(FOLDER.parent / "docs" / "digits_fedpa.png", dpi=120)


if __name__ == "__main__":
    typer.run(main)
