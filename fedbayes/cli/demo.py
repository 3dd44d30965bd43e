"""The demonstration: heart disease in four hospitals, federated, and then against NUTS on the pooled data.

The second half is possible only in a demonstration: in a real federation no one holds the pooled data.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedbayes.fit import fit_federated
from fedbayes.inference.ep.method import EP
from fedbayes.models import heart_disease
from fedbayes.owner.disclosure import Disclosure, disclosure
from fedbayes.results import arviz as output
from fedbayes.results.fit import FederatedFit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {
    "intercept": "Intercept",
    "beta[age]": "Age",
    "beta[sex]": "Male sex",
    "beta[cp_2]": "Chest pain: atypical angina",
    "beta[cp_3]": "Chest pain: not anginal",
    "beta[cp_4]": "Chest pain: asymptomatic",
    "beta[trestbps]": "Blood pressure at rest",
    "beta[chol]": "Cholesterol",
    "beta[fbs]": "High fasting blood sugar",
    "beta[restecg_1]": "ECG: ST-T abnormality",
    "beta[restecg_2]": "ECG: hypertrophy",
    "beta[thalach]": "Maximum heart rate",
    "beta[exang]": "Angina on exercise",
    "beta[oldpeak]": "ST depression on exercise",
}
METHOD = "Expectation propagation"
HOSPITALS = {"cleveland": "Cleveland", "hungarian": "Budapest", "switzerland": "Zurich, Basel", "va": "Long Beach"}


class Size(NamedTuple):
    """How much work a demonstration is.

    Attributes
    ----------
    replicates, draws
        Independent federated fits, and posterior draws of each.
    chains, warmup, samples
        Of NUTS on the pooled data.
    """

    replicates: int
    draws: int
    chains: int
    warmup: int
    samples: int


FULL = Size(replicates=4, draws=2500, chains=4, warmup=500, samples=2500)
QUICK = Size(replicates=2, draws=500, chains=2, warmup=200, samples=300)


def fit(seed: int = 0, *, size: Size = FULL, progress: bool = False) -> FederatedFit:
    """Fit the four hospitals by federated EP.

    Parameters
    ----------
    seed
        Of all randomness.
    size
        Replicates and draws.
    progress
        Show a bar per phase.

    Returns
    -------
    FederatedFit
        With ``intercept`` and ``beta[coefficient]``.
    """
    return fit_federated(
        heart_disease.model,
        heart_disease.clients(),
        method=EP(num_replicates=size.replicates),
        key=jax.random.key(seed),
        coords=heart_disease.COORDS,
        dims=heart_disease.DIMS,
        num_draws=size.draws,
        progress=progress,
    )


def disclosed(clients: Mapping[str, Mapping[str, np.ndarray]], columns: Sequence[str]) -> Disclosure:
    """What the hospitals would refuse to send, by the usual disclosure rules."""
    return disclosure(heart_disease.model, clients, columns={"x": columns})


def careful_fit(seed: int = 0, *, size: Size = FULL, progress: bool = False) -> FederatedFit:
    """The same fit of what the hospitals would send by the usual disclosure rules.

    Parameters
    ----------
    seed, size, progress
        As for :func:`fit`.

    Returns
    -------
    FederatedFit
        Of three hospitals, with ``intercept`` and ``beta[coefficient]`` of the merged columns.
    """
    return fit_federated(
        heart_disease.model,
        careful_clients(),
        method=EP(num_replicates=size.replicates),
        key=jax.random.key(seed),
        coords={"coefficient": list(heart_disease.COARSE)},
        dims=heart_disease.DIMS,
        num_draws=size.draws,
        progress=progress,
    )


def careful_clients() -> dict[str, dict[str, np.ndarray]]:
    """The hospitals that pass the disclosure rules once values that few patients have are merged."""
    return {name: data for name, data in heart_disease.coarse_clients().items() if name != "switzerland"}


def pooled(clients: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """All clients' rows in one place.

    Parameters
    ----------
    clients
        From client name to the model's keyword arguments.

    Returns
    -------
    dict
        The model's keyword arguments for everybody.
    """
    first = next(iter(clients.values()))
    return {name: np.concatenate([data[name] for data in clients.values()]) for name in first}


def pooled_nuts(seed: int = 0, *, size: Size = FULL, progress: bool = False) -> Any:
    """Sample the same model on the pooled data by NumPyro's NUTS.

    Parameters
    ----------
    seed
        Of all randomness.
    size
        Chains, warm-up and samples.
    progress
        Show NumPyro's bar.

    Returns
    -------
    InferenceData or DataTree
        Group ``posterior``, with the coordinates of :func:`fit`.
    """
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        mcmc = MCMC(
            NUTS(heart_disease.model),
            num_warmup=size.warmup,
            num_samples=size.samples,
            num_chains=size.chains,
            chain_method="vectorized",
            progress_bar=progress,
        )
        mcmc.run(jax.random.fold_in(jax.random.key(seed), 1), **pooled(heart_disease.clients()))
        draws = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    attrs = {"inference_library": "numpyro", "inference": "NUTS on the pooled data"}
    return output.to_arviz({"posterior": draws}, heart_disease.COORDS, heart_disease.DIMS, attrs)


def save(fit: FederatedFit, folder: str | os.PathLike, reference: Any = None) -> dict[str, Path]:
    """Write the fit and its pictures.

    Parameters
    ----------
    fit
        From :func:`fit`.
    folder
        Made if it isn't there; files of the same names are replaced.
    reference
        From :func:`pooled_nuts`; ``None`` leaves the picture of the comparison out.

    Returns
    -------
    dict
        The files written, each under a description of it.
    """
    from fedbayes.inference.ep.plots import plot_influence
    from fedbayes.pictures.rounds import plot_rounds

    folder = Path(folder)
    fit.save(folder)
    files = {"posterior, for ArviZ": folder / "posterior.nc", "diagnostics per round": folder / "rounds.nc"}
    if reference is not None:
        files["federated against pooled NUTS"] = _picture(
            folder / "comparison.png", (9.0, 6.2), lambda ax: _draw_comparison(fit.idata, reference, ax)
        )
    files["convergence by round"] = _picture(folder / "rounds.png", (7.5, 4.5), lambda ax: plot_rounds(fit, ax=ax))
    files["influence of each hospital"] = _picture(
        folder / "influence.png", (7.5, 3.6), lambda ax: plot_influence(fit, labels=HOSPITALS, ax=ax)
    )
    return files


def _draw_comparison(idata: Any, reference: Any, ax: "Axes") -> None:
    from fedbayes.pictures.comparison import plot_comparison

    plot_comparison(idata, reference, names=("Federated", "NUTS on the pooled data"), labels=LABELS, ax=ax)
    ax.set_xlabel("log-odds of heart disease per standard deviation of the covariate")


def _picture(path: Path, size: tuple[float, float], draw: Callable[["Axes"], object]) -> Path:
    """Draw without pyplot, so that no backend opens a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    figure.savefig(path, dpi=120)
    return path
