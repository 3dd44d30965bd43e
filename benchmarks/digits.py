"""Handwritten digits by FA-LD (Deng et al. 2024, section 7.2, on scikit-learn's digits): what local steps K are worth.

``python benchmarks/digits.py`` writes ``docs/digits_fald.png`` and prints the table; some ten minutes on two cores.

Softmax regression, 1430 rows at 10 clients and 367 held out, temperature 0.05, one draw every 10 rounds. Predictions
average the class probabilities over all draws so far, from zero and without warm-up: R-hat says of every one of these
short runs that it has not mixed, and that is not what is compared. What is: how good the predictions are by which
round, and how far from those of the posterior itself, which pooled NUTS samples at the same temperature.
"""

import warnings
from pathlib import Path

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
from fedbayes.plots import BLUE, GREEN, GREY, ORANGE, PURPLE

TEMPERATURE, CHAINS, DRAWS, EVERY = 0.05, 4, 20, 10
INK, TICKS = "#222222", (0.05, 0.1, 0.2, 0.4, 0.8)
COLORS = {1: GREY, 10: ORANGE, 20: GREEN, 50: BLUE, 100: PURPLE}
METRICS = ("accuracy", "Brier score", "expected calibration error")
# split, step size and control variate of each run, and its title in the picture
SETTINGS = {
    ("random", 1e-3, False): "Random digits at each client (step size 0.001)",
    ("random", 1e-4, False): None,
    ("sorted", 1e-4, False): "One or two digits at each client (step size 0.0001)",
    ("sorted", 1e-4, True): "One or two digits at each client, with control variate (step size 0.0001)",
}
SUBTITLE = """FA-LD with K local steps per round, softmax regression on scikit-learn's digits. Ten clients, temperature \
0.05, predictions averaged over all draws so far.
Lines: mean of four chains; bands: their range; dotted: NUTS on the pooled data, which all lines are heading for."""
# by step size and K at rounds 50 and 200: one run of the method notes, section 4.2, with another random split or keys
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


def federated(split: str, step_size: float, local_steps: int, control_variate: bool = False) -> np.ndarray:
    """Scores by round, shape ``(chain, draw, metric)``."""
    clients, x, y = digits(split)
    method = fb.FALD(
        local_steps=local_steps,
        step_size=step_size,
        temperature=TEMPERATURE,
        batch_size=50,
        noise_correlation=0.0,
        start="zero",
        preconditioner="none",
        control_variate=control_variate,
        num_chains=CHAINS,
        num_warmup=0,
        thinning=EVERY,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)  # see the top
        fit = fb.fit_federated(model, clients, method=method, num_draws=DRAWS, key=jax.random.key(1), progress=False)
    p = probabilities(x, fit.idata.posterior["w"].values)
    p = np.cumsum(p, axis=1) / np.arange(1, DRAWS + 1)[:, None, None]
    return np.array([[scores(so_far, y) for so_far in chain] for chain in p])


def pooled() -> tuple[float, float, float]:
    """Scores of the posterior to the power ``1 / temperature``."""
    clients, x, y = digits("random")
    data = {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}
    with jax.enable_x64(True):
        mcmc = MCMC(NUTS(scale(model, 1.0 / TEMPERATURE)), num_warmup=300, num_samples=300, progress_bar=False)
        mcmc.run(jax.random.key(2), **data)
        return scores(probabilities(x, np.asarray(mcmc.get_samples()["w"])).mean(axis=0), y)


def show(found: np.ndarray, local_steps: int, notes: tuple | None) -> None:
    """Rows of the table."""
    known = dict(zip((50, 200), notes or (None, None), strict=True))
    for number in (50, 100, 200):
        here = found[:, number // EVERY - 1]
        row = "  ".join(f"{m:.3f} ({s:.3f})" for m, s in zip(here.mean(axis=0), here.std(axis=0, ddof=1), strict=True))
        there = "  ".join(f"{value:.3f}" for value in known.get(number) or ())
        print(f"K = {local_steps:<3d}  round {number:<3d}  {row}   {there}".rstrip(), flush=True)


def draw(rows: dict[str, dict[int, np.ndarray]], reference: tuple[float, ...]) -> plt.Figure:
    """One row of panels per setting, one line per K."""
    figure, axes = plt.subplots(len(rows), 3, figsize=(11.5, 1.4 + 2.75 * len(rows)), sharex=True, sharey="col")
    figure.subplots_adjust(left=0.05, right=0.92, top=0.845, bottom=0.055, wspace=0.5, hspace=0.5)
    figure.text(0.05, 0.965, "Local steps save rounds, until clients differ", fontsize=14, fontweight="bold")
    figure.text(0.05, 0.94, SUBTITLE, fontsize=9.5, color=GREY, va="top", linespacing=1.4)
    number = EVERY * np.arange(1, DRAWS + 1)
    for (name, lines), panels in zip(rows.items(), axes, strict=True):
        panels[0].annotate(
            name, (0, 1), (0, 26), xycoords="axes fraction", textcoords="offset points", fontweight="bold"
        )
        for m, (ax, metric) in enumerate(zip(panels, METRICS, strict=True)):
            ax.axhline(reference[m], color=INK, linestyle=":", linewidth=1.2)
            for steps, found in lines.items():
                values, color = found[..., m], COLORS[steps]
                ax.fill_between(number, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, linewidth=0)
                ax.plot(number, values.mean(axis=0), color=color, linewidth=1.8)
            if m:
                ax.set_yscale("log")
            ax.set_title(metric, loc="left", fontsize=10, color=GREY)
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
            ax.set_axisbelow(True)
            ax.set_xlim(0, 200)
    for m, ax in enumerate(axes[-1]):
        ax.set_xlabel("communication rounds")
        if m:
            ax.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
            ax.yaxis.set_minor_locator(NullLocator())
    for lines, panels in zip(rows.values(), axes, strict=True):
        for m, ax in enumerate(panels):
            label(ax, {steps: found[:, -1, m].mean() for steps, found in lines.items()}, reference[m])
    return figure


def label(ax: plt.Axes, ends: dict[int, float], reference: float) -> None:
    """Names beside the ends of the lines, moved apart."""
    lines = [(f"K = {steps}", value, COLORS[steps]) for steps, value in ends.items()]
    lines = sorted([*lines, ("pooled NUTS", reference, INK)], key=lambda line: line[1])
    heights = [(ax.transData + ax.transAxes.inverted()).transform((200, value))[1] for _, value, _ in lines]
    for (name, _, color), height, place in zip(lines, heights, spread(heights, 0.1), strict=True):
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
    rows = {}
    for (split, step_size, control_variate), name in SETTINGS.items():
        print(f"\n{split} split, step size {step_size:g}{', control variate' if control_variate else ''}")
        found = {}
        for steps in COLORS:
            found[steps] = federated(split, step_size, steps, control_variate)
            show(found[steps], steps, NOTES.get((step_size, steps)) if split == "random" else None)
        if name:
            rows[name] = found
    figure = draw(rows, reference)
    path = Path(__file__).parents[1] / "docs" / "digits_fald.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path.name)


if __name__ == "__main__":
    main()
