"""Logistic regression over the four hospitals of UCI Heart Disease.

740 complete patients of Cleveland (303), Budapest (``hungarian``, 261), Zurich and Basel (``switzerland``, 46) and
Long Beach VA (130); 14 parameters: an intercept and 13 standardised coefficients.

Source: Janosi, Steinbrunn, Pfisterer, Detrano (1988), UCI Heart Disease, DOI 10.24432/C52P4X, CC BY 4.0
(``data/heart/LICENSE.md``).
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from fedbayes.models._random import generator

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MISSING = -9.0
LEVELS = {"cp": (2, 3, 4), "restecg": (1, 2)}  # the first level (cp 1, restecg 0) is the reference
COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
COORDS = {
    "coefficient": [name for c in COLUMNS for name in ([f"{c}_{level}" for level in LEVELS[c]] if c in LEVELS else [c])]
}
DIMS = {"beta": ["coefficient"]}
COARSE = ("age", "sex", "asymptomatic", "trestbps", "chol", "fbs", "ecg", "thalach", "exang", "depression")


def model(x: ArrayLike, y: ArrayLike | None = None) -> None:
    """Bayesian logistic regression of one hospital.

    ``y_i ~ Bernoulli(logit^-1(intercept + x_i . beta))``, ``intercept ~ N(0, 5)`` and ``beta_j ~ N(0, 1)`` (sd). By a
    formula it is ``sick ~ age + sex + ...``, of the family bernoulli and with these priors.

    Parameters
    ----------
    x
        Covariates without the intercept column, shape (n, 13), in pooled standard deviations.
    y
        1 where the patient has heart disease, else 0, shape (n,). None predicts.
    """
    x = jax.numpy.asarray(x)
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


class Moments(NamedTuple):
    """What a hospital reveals for the standardisation: rows, and sum and sum of squares of each column, shape (d,)."""

    rows: int
    total: np.ndarray
    squares: np.ndarray


def moments(x: np.ndarray) -> Moments:
    """Sufficient statistics for pooled means and standard deviations of the columns of ``x``, shape (n, d)."""
    return Moments(len(x), x.sum(axis=0), np.square(x).sum(axis=0))


def pooled_scale(parts: Iterable[Moments]) -> tuple[np.ndarray, np.ndarray]:
    """Pooled mean and standard deviation (divisor n) of every column, from the hospitals' moments alone.

    ``mean = sum s_k / sum n_k`` and ``sd^2 = sum q_k / sum n_k - mean^2``; no patient leaves a hospital.
    A column that is constant over all hospitals gets sd 1, so that standardising only centres it.
    """
    rows, totals, squares = zip(*parts, strict=True)
    mean = np.sum(totals, axis=0) / sum(rows)
    mean_square = np.sum(squares, axis=0) / sum(rows)
    variance = mean_square - mean**2
    return mean, np.sqrt(np.where(variance > 1e-12 * mean_square, variance, 1.0))


def clients() -> dict[str, dict[str, np.ndarray]]:
    """Return the four hospitals, ``{hospital: {"x": (n, 13) float64, "y": (n,) int32}}``.

    ``slope``, ``ca`` and ``thal`` are dropped (mostly missing outside Cleveland), then every patient with a missing
    value (-9), which leaves n = 303, 261, 46 and 130. ``cp`` (chest pain) and ``restecg`` are one-hot without their
    first level. All 13 columns (in the order of `COORDS`) are standardised with `pooled_scale`. ``y`` is ``num > 0``.

    Units before that: years (age), mm Hg (trestbps), mg/dl (chol; 0 in all of Switzerland, as in the source), beats
    per minute (thalach), mm (oldpeak).
    """
    return _standardised({hospital: _complete_rows(hospital) for hospital in HOSPITALS})


def coarse_clients() -> dict[str, dict[str, np.ndarray]]:
    """The same hospitals as a careful analyst codes them, so that no column has a value with few patients.

    Of all kinds of chest pain one says ``asymptomatic``, of all findings at rest ``ecg`` says whether there is one, and
    ``depression`` whether that of the ST segment is 1 mm or more; Long Beach sends its 125 men alone, as it has five
    women. With these ten columns (in the order of `COARSE`, standardised as those of `clients`) three hospitals pass
    the default rules of :func:`fedbayes.disclosure`. Switzerland does not: of its 46 patients one has no disease.
    """
    raw = {hospital: _coarse(*_complete_rows(hospital)) for hospital in HOSPITALS}
    x, y = raw["va"]
    men = x[:, COARSE.index("sex")] == 1.0
    return _standardised({**raw, "va": (x[men], y[men])})


def _coarse(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Covariates (n, 10) in the order of `COARSE`, from those of `_complete_rows`."""
    fine = dict(zip(COORDS["coefficient"], x.T, strict=True))
    merged = {
        "asymptomatic": fine["cp_4"],
        "ecg": fine["restecg_1"] + fine["restecg_2"],
        "depression": fine["oldpeak"] >= 1.0,
    }
    return np.column_stack([(fine | merged)[name] for name in COARSE]).astype(float), y


def _standardised(raw: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    mean, sd = pooled_scale(moments(x) for x, _ in raw.values())
    return {hospital: {"x": (x - mean) / sd, "y": y} for hospital, (x, y) in raw.items()}


def simulate(
    key: jax.Array,
    rows: Sequence[int] = (303, 261, 46, 130),
    *,
    intercept: float | None = None,
    beta: np.ndarray | None = None,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Hospitals with standard normal covariates and outcomes drawn from `model`.

    Parameters
    ----------
    key
        JAX random key.
    rows
        Patients of each hospital.
    intercept, beta
        Truth, scalar and shape (13,) (any length works); drawn from the prior where None.

    Returns
    -------
    clients
        ``{"hospital0": {"x": (n, 13) float64, "y": (n,) int32}, ...}``.
    truth
        ``{"intercept": (), "beta": (13,)}``.
    """
    prior = generator(key, 0)
    drawn_intercept, drawn_beta = 5.0 * prior.standard_normal(), prior.standard_normal(len(COORDS["coefficient"]))
    truth = {
        "intercept": np.asarray(drawn_intercept if intercept is None else intercept, float),
        "beta": np.asarray(drawn_beta if beta is None else beta, float),
    }
    simulated = {}
    for k, n in enumerate(rows):
        rng = generator(key, 1, k)
        x = rng.standard_normal((n, len(truth["beta"])))
        logit = truth["intercept"] + x @ truth["beta"]
        simulated[f"hospital{k}"] = {"x": x, "y": (rng.logistic(size=n) < logit).astype(np.int32)}
    return simulated, truth


def _complete_rows(hospital: str) -> tuple[np.ndarray, np.ndarray]:
    """Covariates (n, 13) in original units, one-hot, and outcome (n,) of the patients without a missing value."""
    with (files("fedbayes.models") / "data" / "heart" / f"{hospital}.csv").open() as file:
        table = np.genfromtxt(file, delimiter=",", names=True)
    used = np.column_stack([table[name] for name in (*COLUMNS, "num")])
    table = table[(used != MISSING).all(axis=1)]
    columns = [
        column
        for name in COLUMNS
        for column in ([table[name] == level for level in LEVELS[name]] if name in LEVELS else [table[name]])
    ]
    return np.column_stack(columns).astype(float), (table["num"] > 0).astype(np.int32)
