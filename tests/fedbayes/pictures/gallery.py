"""Each picture of made-up results, of any size: for tests, for looking at, and for the gallery of the documentation.

python tests/fedbayes/pictures/gallery.py docs/gallery        # the pictures of the page, one file each
python tests/fedbayes/pictures/gallery.py FOLDER --every      # each picture in each case, light and dark
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedbayes as fb
from fedbayes import plots
from fedbayes.formula.reading.survival import SurvivalCurves
from fedbayes.questions.regression.estimates import Estimates


class Size(NamedTuple):
    """How much there is to draw."""

    clients: int
    parameters: int
    client: Callable[[int], str]
    parameter: Callable[[int], str]

    @property
    def client_names(self) -> list[str]:
        return [self.client(k) for k in range(self.clients)]

    @property
    def parameter_names(self) -> list[str]:
        return [self.parameter(j) for j in range(self.parameters)]


def _long(what: str) -> Callable[[int], str]:
    return lambda place: f"{place} {what} that somebody has measured in_the_year & at a cost of $ or $$"


HOSPITALS = ("Cleveland", "Budapest", "Zurich", "Long Beach", "Basel")
SIGNS = ("age", "male", "pressure", "cholesterol", "sugar", "heart rate", "angina")
CASES = {
    "small": Size(2, 1, lambda k: "ab"[k], lambda j: "beta"),
    "large": Size(60, 40, lambda k: f"hospital {k}", lambda j: f"beta[{j}]"),
    "long names": Size(5, 6, _long("hospital"), _long("covariate")),
    "dollars": Size(5, 6, lambda k: rf"cost $\foo$ {k}", lambda j: f"a$b$ {j}"),
    "many dollars": Size(12, 6, lambda k: f"a$b$ {k}", lambda j: rf"cost $\foo$ {j}"),
    "shown": Size(5, 7, lambda k: HOSPITALS[k], lambda j: SIGNS[j]),
}


def _posterior(size: Size, shift: float) -> Any:
    """Draws of one vector, as ArviZ has them."""
    rng = np.random.default_rng(1)
    center = rng.normal(size=size.parameters) + shift * rng.normal(size=size.parameters)
    draws = center + rng.gamma(2.0, 0.2, size.parameters) * rng.normal(size=(2, 200, size.parameters))
    data = xr.Dataset({"b": (("chain", "draw", "sign"), draws)}, coords={"sign": size.parameter_names})
    return {"posterior": data}


def _rounds(size: Size) -> Any:
    """What the rounds of EP tell, with a phase before them."""
    rng, num = np.random.default_rng(2), 6
    falling = 0.8 * 0.25 ** np.arange(num)[:, None] * np.array([1.0, 1.3])
    influence = rng.gamma(2.0, 0.5, (num, size.clients, 2))
    per_client, per_round = ("round", "client", "replicate"), ("round", "replicate")
    rounds = xr.Dataset(
        {
            "influence": (per_client, influence),
            "smallest_cavity_eigenvalue": (per_client, np.full(influence.shape, 0.7)),
            "change": (per_round, falling),
            "monte_carlo_noise": (per_round, np.where(np.arange(num)[:, None] < 2, 0.0, 0.004) + 0.0 * falling),
            "phase": ("round", ["mode"] * 2 + ["EP"] * 4),
            "rounds": ("round", np.ones(num, int)),
        },
        coords={"round": np.arange(1, num + 1)},
    )
    return SimpleNamespace(rounds=rounds, client_names=tuple(size.client_names), method=fb.EP(), converged=True)


def _conflict(size: Size) -> xr.Dataset:
    z = np.random.default_rng(3).normal(0.0, 1.2, (size.clients, size.parameters))
    z[-1, -1] = 5.5
    return xr.Dataset(
        {"z": (("client", "coordinate"), z), "p_adjusted": (("client", "coordinate"), np.where(z > 5.0, 0.001, 0.5))},
        coords={"client": size.client_names, "coordinate": size.parameter_names},
    )


def _merged(size: Size) -> Any:
    """A fit that has merged the clients' own posteriors."""
    rng, shape = np.random.default_rng(4), (1, size.clients, 1, size.parameters)
    dims = ("round", "client", "replicate", "coordinate")
    rounds = xr.Dataset(
        {
            "client_mean": (dims, rng.normal(0.0, 1.5, shape)),
            "client_sd": (dims, rng.gamma(8.0, 0.2, shape)),
            "shift": (("round", "replicate", "client", "coordinate"), rng.normal(size=shape).swapaxes(1, 2)),
            "effective_clients": (("round", "replicate", "coordinate"), rng.uniform(1.5, 2.0, (1, 1, size.parameters))),
        },
        coords={"client": size.client_names},
    )
    moments = np.zeros((1, size.parameters)), np.eye(size.parameters)[None]
    return SimpleNamespace(
        rounds=rounds, client_names=tuple(size.client_names), global_labels=tuple(size.parameter_names),
        moments=lambda: moments, method=fb.OneShot(),
    )  # fmt: skip


def _selection(size: Size) -> xr.Dataset:
    rng, dims = np.random.default_rng(5), ("client_name", "predictor")
    mean, sd = rng.normal(size=(size.clients, size.parameters)), np.full((size.clients, size.parameters), 0.4)
    return xr.Dataset(
        {
            "mean": (dims, mean),
            "sd": (dims, sd),
            "lower": (dims, mean - 1.645 * sd),
            "upper": (dims, mean + 1.645 * sd),
            "included": (dims, np.abs(mean) > 1.645 * sd),
        },
        coords={"client_name": size.client_names, "predictor": size.parameter_names},
        attrs={"level": 0.9, "rule": "the 90% interval excludes 0"},
    )


def _served(size: Size, middle: float) -> xr.Dataset:
    """Scores of clients in two groups."""
    score = middle + np.random.default_rng(6).normal(0.0, 0.15, size.clients)
    second = np.arange(size.clients) >= size.clients // 2
    groups = {"group_score": [score[~second].mean(), score[second].mean()], "group_error": [0.1, 0.08]}
    return xr.Dataset(
        {"score": ("client", score), "group_of": ("client", np.where(second, "rural", "urban"))}
        | {name: ("group", values) for name, values in groups.items()},
        coords={"client": size.client_names, "group": ["urban", "rural"]},
    )


def _coupled(size: Size) -> Any:
    """A fit of correlated clients."""
    rng = np.random.default_rng(7)
    own = rng.normal(size=size.clients)
    kind = np.where(np.arange(size.clients) % 2, 1.0, -1.0)
    omega = np.broadcast_to(0.4 * np.outer(kind, kind) + 0.6 * np.eye(size.clients), (1, 3, *(size.clients,) * 2))
    posterior = {
        "theta_by_client": (("chain", "draw", "client_name"), own + 0.4 * rng.normal(size=(1, 200, size.clients))),
        "omega": (("chain", "few", "client_name", "other"), omega),
    }
    return SimpleNamespace(
        idata=SimpleNamespace(posterior=xr.Dataset(posterior)),
        client_names=tuple(size.client_names),
        method=fb.CorrelatedClients(),
        separate={name: 1.6 * own[k] for k, name in enumerate(size.client_names)},
    )


def _estimates(size: Size) -> Estimates:
    rng = np.random.default_rng(8)
    draws = np.exp(0.5 * rng.normal(size=size.parameters) + 0.2 * rng.normal(size=(2, 200, size.parameters)))
    found = xr.DataArray(draws, dims=("chain", "draw", "of"), coords={"of": size.parameter_names})
    return Estimates(found, "Odds ratios", 0.9, 1.0)


def _curves(size: Size) -> SurvivalCurves:
    rows, times = min(size.clients, 8), np.linspace(0.0, 36.0, 60)
    rate = np.exp(
        -3.5 + 0.5 * np.arange(rows)[:, None] + 0.15 * np.random.default_rng(9).normal(size=(2, 100, rows, 1))
    )
    draws = xr.DataArray(
        np.exp(-rate * times), dims=("chain", "draw", "row", "time"), coords={"row": np.arange(rows), "time": times}
    )
    return SurvivalCurves(draws, "Survival at the average site", 0.9, _integral=lambda horizon: horizon)


def _calibrated(size: Size) -> fb.Calibration:
    """Uniform ranks, but for the first parameter's."""
    ranks = np.random.default_rng(10).integers(0, 100, (200, size.parameters)).astype(float)
    ranks[:, 0] = np.floor(ranks[:, 0] ** 1.3 / 99.0**0.3)
    found = xr.DataArray(ranks, dims=("simulation", "parameter"), coords={"parameter": size.parameter_names})
    return fb.Calibration(xr.Dataset({"rank": found}), num_draws=99, method="EP")


def _regressed(size: Size) -> fb.Regression:
    """By a formula with a column for each parameter."""
    rng, rows = np.random.default_rng(11), 60
    columns = {name: rng.gamma(2.0, 1.0 + 3.0 * j, rows) for j, name in enumerate(size.parameter_names)}
    formula = " + ".join(f"`{name}`" for name in columns)
    return fb.regression(f"outcome ~ {formula}", clients={"a": {"outcome": rng.normal(size=rows), **columns}})


def _shrunk(size: Size, ax: Axes | None) -> Axes:
    fit = _coupled(size)
    return plots.plot_shrinkage(fit, fit.separate, ax=ax)


PICTURES: Mapping[str, Callable[[Size, Axes | None], Axes]] = {
    "plot_client_correlation": lambda size, ax: plots.plot_client_correlation(_coupled(size), ax=ax),
    "plot_comparison": lambda size, ax: plots.plot_comparison(_posterior(size, 0.1), _posterior(size, 0.0), ax=ax),
    "plot_conflict": lambda size, ax: plots.plot_conflict(_conflict(size), ax=ax),
    "plot_estimates": lambda size, ax: plots.plot_estimates(_estimates(size), ax=ax),
    "plot_fairness": lambda size, ax: plots.plot_fairness(
        {"FedAvg": _served(size, -1.0), "GIFAIR": _served(size, -0.9)}, ax=ax
    ),
    "plot_influence": lambda size, ax: plots.plot_influence(_rounds(size), ax=ax),
    "plot_merge": lambda size, ax: plots.plot_merge(_merged(size), ax=ax),
    "plot_rounds": lambda size, ax: plots.plot_rounds(_rounds(size), ax=ax),
    "plot_selection": lambda size, ax: plots.plot_selection(_selection(size), ax=ax),
    "plot_shrinkage": _shrunk,
    "plot_survival": lambda size, ax: plots.plot_survival(_curves(size), ax=ax),
}

# those of several axes, which make their own figure
FIGURES: Mapping[str, Callable[[Size], Figure]] = {
    "Calibration.plot": lambda size: _calibrated(size).plot(),
    "plot_priors": lambda size: plots.plot_priors(_regressed(size))[0].figure,
}


def drawn(name: str, case: str) -> Figure:
    """A picture in a figure of its own."""
    if name in FIGURES:
        return FIGURES[name](CASES[case])
    figure = PICTURES[name](CASES[case], None).figure
    assert isinstance(figure, Figure)
    return figure


def file_of(name: str) -> str:
    """The picture on the page."""
    return f"{name.removeprefix('plot_').removesuffix('.plot').lower()}.png"


def write(folder: Path, *, every: bool) -> None:
    """The page's pictures; or each picture in each case, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*PICTURES, *FIGURES):
        for case in CASES if every else ["shown"]:
            for style in ("default", "dark_background") if every else ("default",):
                with plt.style.context(style):
                    figure = drawn(name, case)
                    file = f"{name} {case} {style}.png" if every else file_of(name)
                    figure.savefig(folder / file, dpi=60 if every else 80)
                    plt.close(figure)


if __name__ == "__main__":
    write(Path(sys.argv[1]), every="--every" in sys.argv)
