"""Tables for every family of `fb.regression`, and simulators that draw outcomes from the program's own prior."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

import fedbayes as fb

ROWS = (30, 40, 50)  # of the clients of a calibration
UNEQUAL = (15, 30, 45, 70, 120)  # of those compared with NUTS
TIMES = ("weibull", "loglogistic", "piecewise_exponential", "cox")
TRIALS = ("binomial", "beta_binomial")
ENDS = [0.5, 1.5]  # of the pieces of a hazard
LEVELS = 4
NARROW = dist.Normal(0.0, 0.7)

Table = dict[str, np.ndarray]


def outcome_of(name: str, eta: np.ndarray, rng: np.random.Generator) -> Table:
    """Outcomes of a family with this linear predictor, and the columns that belong to them."""
    size, mean, share = len(eta), np.exp(eta), 1.0 / (1.0 + np.exp(-eta))
    trials = rng.integers(1, 9, size)
    wide = rng.gamma(2.0, mean / 2.0)  # of a negative binomial
    seen = rng.random(size) > 0.3
    match name:
        case "gaussian":
            return {"y": eta + rng.normal(size=size)}
        case "student":
            return {"y": eta + rng.standard_t(5.0, size=size)}
        case "bernoulli":
            return {"y": rng.binomial(1, share)}
        case "binomial":
            return {"y": rng.binomial(trials, share), "n": trials}
        case "beta_binomial":
            return {"y": rng.binomial(trials, rng.beta(5.0 * share, 5.0 * (1.0 - share))), "n": trials}
        case "poisson":
            return {"y": rng.poisson(mean)}
        case "negative_binomial":
            return {"y": rng.poisson(wide)}
        case "zero_inflated_poisson":
            return {"y": seen * rng.poisson(mean)}
        case "zero_inflated_negative_binomial":
            return {"y": seen * rng.poisson(wide)}
        case "hurdle_poisson":
            return {"y": seen * _above_zero(lambda: rng.poisson(mean))}
        case "hurdle_negative_binomial":
            return {"y": seen * _above_zero(lambda: rng.poisson(rng.gamma(2.0, mean / 2.0)))}
        case "gamma":
            return {"y": rng.gamma(3.0, mean / 3.0)}
        case "lognormal":
            return {"y": np.exp(eta + 0.7 * rng.normal(size=size))}
        case "beta":
            return {"y": np.clip(rng.beta(6.0 * share, 6.0 * (1.0 - share)), 1e-3, 1.0 - 1e-3)}
        case "cumulative" | "categorical":
            return {"y": np.digitize(eta + rng.logistic(size=size), [-1.0, 0.2, 1.4][: LEVELS - 1])}
        case _:
            time = rng.exponential(np.exp(-eta)) + 1e-3
            until = rng.exponential(2.0, size) + 1e-3
            return {"y": np.minimum(time, until), "c": (time > until).astype(float)}


def _above_zero(draw: Callable[[], np.ndarray]) -> np.ndarray:
    """Drawn again where it is zero."""
    found = draw()
    while np.any(found == 0):
        found = np.where(found == 0, draw(), found)
    return found


def tables(name: str, rows: tuple[int, ...], spread: float) -> dict[str, Table]:
    """Clients with a predictor, an effect of this sd, and outcomes."""
    rng = np.random.default_rng([20261127, *name.encode()])
    found = {}
    for number, size in enumerate(rows):
        x = rng.normal(size=size)
        found[f"client{number}"] = {"x": x, **outcome_of(name, 0.2 + 0.5 * x + spread * rng.normal(), rng)}
    return found


def left_of(name: str) -> str:
    """The left side of the formula."""
    return "y | cens(c)" if name in TIMES else "y | trials(n)" if name in TRIALS else "y"


def options_of(name: str) -> dict[str, Any]:
    """What the family has to be told: its name, or the ends of its pieces as well."""
    return {"family": name, "ends": ENDS} if name == "piecewise_exponential" else {"family": name}


def priors_of(name: str) -> dict[str, Any]:
    """Of the coefficients in a calibration; all other parameters have their defaults."""
    intercept = {} if name in ("cumulative", "piecewise_exponential") else {"Intercept": NARROW}
    return {"x": NARROW, **intercept}


def calibrated_regression(name: str) -> Any:
    """The regression whose prior gives truths and data."""
    return fb.regression(
        f"{left_of(name)} ~ x", clients=tables(name, ROWS, 0.0), priors=priors_of(name), **options_of(name)
    )


def hierarchy(name: str) -> Any:
    """The regression with an effect of the client, with default priors."""
    own, spread = ("", 0.0) if name == "cox" else (" + (1 | site)", 0.5)  # whose baselines hold it
    return fb.regression(f"{left_of(name)} ~ x{own}", clients=tables(name, UNEQUAL, spread), **options_of(name))


def simulator(reg: Any, name: str) -> Callable[[Any], tuple[Any, Mapping[str, Any]]]:
    """Truths and data from the program's own prior; a time after the time at which a row is censored is not seen."""
    if name not in TIMES:
        return fb.prior_simulator(reg.model, reg.clients)
    whole = {each: {**data, "observed": np.ones_like(data["observed"])} for each, data in reg.clients.items()}
    until = {each: np.random.default_rng(7).exponential(3.0, len(data["y"])) for each, data in whole.items()}
    draw = fb.prior_simulator(reg.model, whole)

    def simulate(key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
        clients, truth = draw(key)
        seen = {each: data["y"] <= until[each] for each, data in clients.items()}
        censored = {
            each: {**data, "y": np.minimum(data["y"], until[each]), "observed": seen[each].astype(float)}
            for each, data in clients.items()
        }
        return censored, truth

    return simulate
