"""Handwritten digits by FA-LD (Deng et al. 2024, section 7.2, on scikit-learn's digits): what local steps K are worth.

``python benchmarks/digits.py`` writes ``docs/digits_fald.png`` and prints the table; some eight minutes on two cores.

Softmax regression, 1430 rows at 10 clients and 367 held out, temperature 0.05, batches of 50, one draw every 10 rounds.
Predictions average the class probabilities over all draws so far, from zero and without warm-up: R-hat says of each of
these short runs that it has not mixed, and that is not what is compared. What is: how good the predictions are by which
round, and how far from those of the posterior itself, which pooled NUTS samples at the same temperature.

Sorted clients get the smaller step only: their curvature at the mode is 2400 (of random clients 830), so that 0.001 is
beyond stability. Two more runs start at the federated mode: with and without the control variate anchored there.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.ticker import NullLocator
from numpyro.handlers import scale
from numpyro.infer import MCMC, NUTS
from sklearn.datasets import load_digits

import fedbayes as fb
from fedbayes.pictures.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE

TEMPERATURE, CHAINS, DRAWS, EVERY = 0.05, 4, 20, 10
INK = "#222222"
COLORS = {1: GREY, 10: ORANGE, 20: GREEN, 50: BLUE, 100: PURPLE}
# with the ticks of their axes
METRICS = {
    "accuracy": (0.8, 0.85, 0.9, 0.95),
    "Brier score": (0.05, 0.1, 0.2, 0.4, 0.8),
    "expected calibration error": (0.05, 0.1, 0.2, 0.4, 0.8),
}
SETTINGS = {
    ("random", 1e-3): "Clients hold random digits; step size 0.001",
    ("random", 1e-4): "Clients hold random digits; step size 0.0001",
    ("sorted", 1e-4): "Clients hold one or two digits each; step size 0.0001",
}
SUBTITLE = (
    "FA-LD with K local steps per round: softmax regression on scikit-learn's digits, ten clients, temperature 0.05, "
    "predictions averaged over all draws so far.\nLines: mean of four chains; bands: their range; dotted: NUTS on the "
    "pooled data, that is, the posterior itself. Dashed: K = 100 from the federated mode\n(six Newton rounds) instead "
    "of from zero; anchored: with the control variate too."
)
# by step size and K at rounds 50 and 200: one run of the method notes, section 4.2, on random clients
NOTES = {
    (1e-3, 1): ((0.935, 0.206, 0.286), (0.956, 0.107, 0.167)),
    (1e-3, 10): ((0.970, 0.067, 0.099), (0.978, 0.055, 0.080)),
    (1e-3, 20): ((0.981, 0.058, 0.086), (0.981, 0.051, 0.076)),
    (1e-3, 50): ((0.978, 0.052, 0.075), (0.984, 0.050, 0.076)),
    (1e-4, 1): ((0.888, 0.716, 0.684), (0.916, 0.423, 0.502)),
    (1e-4, 10): ((0.943, 0.209, 0.302), None),
    (1e-4, 20): ((0.948, 0.137, 0.197), None),
    (1e-4, 50): ((0.962, 0.087, 0.123), (0.976, 0.061, 0.092)),
}


class Line(NamedTuple):
    """One run: rounds ``(draw,)`` and scores ``(chain, draw, metric)``, and how it is drawn."""

    rounds: np.ndarray
    scores: np.ndarray
    name: str
    color: str
    style: str = "-"


def model(x: np.ndarray, y: np.ndarray | None = None) -> None:
    """Softmax regression; every coefficient is N(0, 1)."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[-1], 10]).to_event(2))
    numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def digits(split: str) -> tuple[dict[str, dict[str, np.ndarray]], np.ndarray, np.ndarray]:
    """Clients, and the held-out images and labels: the same rows whatever the split."""
    images, labels = load_digits(return_X_y=True)
    x = np.column_stack([images / 16.0, np.ones(len(images))])
    train, test = np.split(np.random.default_rng(0).permutation(len(x)), [1430])
    if split == "sorted":
        train = train[np.argsort(labels[train], kind="stable")]
    clients = {f"client {i}": {"x": x[rows], "y": labels[rows]} for i, rows in enumerate(np.split(train, 10))}
    return clients, x[test], labels[test]


def probabilities(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Class probabilities of each draw, shape ``(..., rows, 10)``."""
    logits = x @ w
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def scores(p: np.ndarray, y: np.ndarray, bins: int = 15) -> tuple[float, float, float]:
    """Accuracy, Brier score summed over classes, and expected calibration error, of ``p`` with shape ``(rows, 10)``."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    place = np.clip(np.ceil(bins * confidence).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, right - confidence, bins)
    return right.mean(), ((p - np.eye(10)[y]) ** 2).sum(axis=1).mean(), np.abs(gaps).sum() / len(y)


def federated(split: str, step_size: float, local_steps: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of the draws, and the scores of all draws up to each, shape ``(chain, draw, metric)``."""
    clients, x, y = digits(split)
    method = fb.FALD(
        local_steps=local_steps,
        step_size=step_size,
        temperature=TEMPERATURE,
        batch_size=50,
        noise_correlation=0.0,
        preconditioner="none",
        num_chains=CHAINS,
        num_warmup=0,
        thinning=EVERY,
        **{"init": "zero", "control_variate": False} | options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)  # see the top
        fit = fb.fit_federated(model, clients, method=method, num_draws=DRAWS, key=jax.random.key(1), progress=False)
    p = probabilities(x, fit.idata.posterior["w"].values)
    p = np.cumsum(p, axis=1) / np.arange(1, DRAWS + 1)[:, None, None]
    before = int(fit.rounds["rounds"].sum()) - DRAWS * EVERY
    return before + EVERY * np.arange(1, DRAWS + 1), np.array([[scores(q, y) for q in chain] for chain in p])


def pooled() -> tuple[float, float, float]:
    """Scores of the posterior to the power ``1 / temperature``."""
    clients, x, y = digits("random")
    data = {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}
    with jax.enable_x64(True):
        mcmc = MCMC(NUTS(scale(model, 1.0 / TEMPERATURE)), num_warmup=300, num_samples=300, progress_bar=False)
        mcmc.run(jax.random.key(2), **data)
        return scores(probabilities(x, np.asarray(mcmc.get_samples()["w"])).mean(axis=0), y)


def show(line: Line, notes: tuple | None) -> None:
    """Rows of the table."""
    known = dict(zip((50, 200), notes or (None, None), strict=True))
    for number in (50, 100, 200):
        here = line.scores[:, number // EVERY - 1]
        row = "  ".join(f"{m:.3f} ({s:.3f})" for m, s in zip(here.mean(axis=0), here.std(axis=0, ddof=1), strict=True))
        there = "  ".join(f"{value:.3f}" for value in known.get(number) or ())
        place = line.rounds[number // EVERY - 1]
        print(f"{line.name:13s} round {place:<3d}  {row}   {there}".rstrip(), flush=True)


def draw(rows: list[list[Line]], reference: tuple[float, ...]) -> plt.Figure:
    """One row of panels per setting."""
    figure, axes = plt.subplots(len(rows), 3, figsize=(11.5, 10.0), sharex=True, sharey="col")
    figure.subplots_adjust(left=0.045, right=0.9, top=0.835, bottom=0.055, wspace=0.62, hspace=0.42)
    figure.text(0.045, 0.967, "Local steps save rounds, until clients differ", fontsize=14, fontweight="bold")
    figure.text(0.045, 0.952, SUBTITLE, fontsize=9, color=GREY, va="top", linespacing=1.4)
    for title, lines, panels in zip(SETTINGS.values(), rows, axes, strict=True):
        panels[0].text(0, 1.14, title, transform=panels[0].transAxes, fontweight="bold")
        for m, (ax, (metric, ticks)) in enumerate(zip(panels, METRICS.items(), strict=True)):
            ax.axhline(reference[m], color=INK, linestyle=":", linewidth=1.2)
            for line in lines:
                values = line.scores[..., m]
                low, high = values.min(axis=0), values.max(axis=0)
                ax.fill_between(line.rounds, low, high, color=line.color, alpha=0.2, linewidth=0)
                ax.plot(line.rounds, values.mean(axis=0), line.style, color=line.color, linewidth=1.8)
            ax.set_yscale("linear" if metric == "accuracy" else "log")
            ax.set_yticks(ticks, [f"{tick:.2f}" for tick in ticks])
            ax.yaxis.set_minor_locator(NullLocator())
            ax.set_title(metric, loc="left", fontsize=10, color=GREY)
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
            ax.set_axisbelow(True)
            ax.set_xlim(0, DRAWS * EVERY)
    for ax in axes[-1]:
        ax.set_xlabel("communication rounds")
    figure.draw_without_rendering()  # the labels' places need the limits, and must not move them
    for lines, panels in zip(rows, axes, strict=True):
        for m, ax in enumerate(panels):
            ax.autoscale(False)
            ends = [(line.name, line.scores[:, -1, m].mean(), line.color) for line in lines]
            label(ax, [*ends, ("pooled NUTS", reference[m], INK)])
    return figure


def label(ax: plt.Axes, ends: list[tuple[str, float, str]]) -> None:
    """Names beside the ends of the lines, moved apart."""
    ends = sorted(ends, key=lambda end: end[1])
    heights = [(ax.transData + ax.transAxes.inverted()).transform((0, value))[1] for _, value, _ in ends]
    for (name, _, color), height, place in zip(ends, heights, spread(heights, 0.095), strict=True):
        ax.plot([1, 1.05], [height, place], color=color, linewidth=0.7, transform=ax.transAxes, clip_on=False)
        ax.text(1.06, place, name, color=color, fontsize=8.5, va="center", transform=ax.transAxes)


def spread(heights: list[float], gap: float) -> np.ndarray:
    """Increasing heights in [0, 1] moved to at least ``gap`` apart, as little as it takes."""
    # isotonic regression of the heights less their gaps
    blocks: list[list[float]] = []
    for i, height in enumerate(heights):
        blocks.append([height - i * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    return np.clip(level, 0.0, 1.0 - gap * (len(heights) - 1)) + gap * np.arange(len(heights))


def main() -> None:
    """Run, print and draw."""
    reference = pooled()
    print("accuracy, Brier score and calibration error: mean of four chains (their sd), and the method notes' one run")
    print("pooled NUTS at the same temperature: " + "  ".join(f"{value:.3f}" for value in reference))
    rows = []
    for split, step_size in SETTINGS:
        print(f"\n{split} split, step size {step_size:g}")
        lines = []
        for steps, color in COLORS.items():
            lines.append(Line(*federated(split, step_size, steps), f"K = {steps}", color))
            show(lines[-1], NOTES.get((step_size, steps)) if split == "random" else None)
        rows.append(lines)
    for name, variate in (("100, mode", False), ("100, anchored", True)):
        run = federated("sorted", 1e-4, 100, init="mode", control_variate=variate)
        rows[-1].append(Line(*run, name, COLORS[100], "--"))
        show(rows[-1][-1], None)
    figure = draw(rows, reference)
    path = Path(__file__).parents[1] / "docs" / "digits_fald.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path.name)


if __name__ == "__main__":
    main()
