"""Tables for every family of `fb.regression`, and simulators that draw outcomes from the program's own prior."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

import fedbayes as fb

ROWS = (30, 40, 50)  # of the clients of a calibration
META_ANALYSIS = "meta_analysis"  # gaussian outcomes with known standard errors, and an effect of the client
STUDIES = (1, 2, 3) * 4  # rows of its clients
UNEQUAL = (15, 30, 45, 70, 120)  # of those compared with NUTS
TIMES = ("weibull", "loglogistic", "piecewise_exponential", "cox")
TRIALS = ("binomial", "beta_binomial")
ENDS = [0.5, 1.5]  # of the pieces of a hazard
LEVELS = 4
CENSORED = 0.5  # how likely another row leaves at an event, in the calibration of `cox`
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
        case "meta_analysis":
            errors = rng.uniform(0.2, 1.0, size)
            return {"y": eta + errors * rng.normal(size=size), "s": errors}
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
    if name == META_ANALYSIS:
        return "y | se(s)"
    return "y | cens(c)" if name in TIMES else "y | trials(n)" if name in TRIALS else "y"


def options_of(name: str) -> dict[str, Any]:
    """What the family has to be told: its name, or the ends of its pieces as well."""
    if name == META_ANALYSIS:
        return {"family": "gaussian"}
    return {"family": name, "ends": ENDS} if name == "piecewise_exponential" else {"family": name}


def priors_of(name: str) -> dict[str, Any]:
    """Of the coefficients in a calibration; all other parameters have their defaults."""
    intercept = {} if name in ("cumulative", "piecewise_exponential", "cox") else {"Intercept": NARROW}
    return {"x": NARROW, **intercept}


def calibrated_regression(name: str) -> Any:
    """The regression whose prior gives truths and data."""
    own, rows = (" + (1 | site)", STUDIES) if name == META_ANALYSIS else ("", ROWS)
    return fb.regression(
        f"{left_of(name)} ~ x{own}", clients=tables(name, rows, 0.0), priors=priors_of(name), **options_of(name)
    )


def hierarchy(name: str) -> Any:
    """The regression with an effect of the client, with default priors."""
    own, spread = ("", 0.0) if name == "cox" else (" + (1 | site)", 0.5)  # whose baselines hold it
    return fb.regression(f"{left_of(name)} ~ x{own}", clients=tables(name, UNEQUAL, spread), **options_of(name))


def simulator(reg: Any, name: str) -> Callable[[Any], tuple[Any, Mapping[str, Any]]]:
    """Truths and data from the program's own prior; a time after the time at which a row is censored is not seen."""
    if name == "cox":
        return _proportional_hazards(reg)
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


def _proportional_hazards(reg: Any) -> Callable[[Any], tuple[Any, Mapping[str, Any]]]:
    """Times with proportional hazards, and at each client with a constant baseline hazard of its own.

    Rows leave only at events. Who has which event is then all that the times tell of the coefficient, and the partial
    likelihood is its probability; censoring at given times would add how many events there were by then.
    """

    def simulate(key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
        beta = np.asarray(reg.priors["x"].sample(key), float)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        found = {}
        for number, (client, data) in enumerate(reg.clients.items()):
            times, observed = _times(4.0**number * np.exp(beta * data["x"][:, 0]), rng)
            found[client] = {**data, "y": times, "observed": observed}
        return found, {"x": beta}

    return simulate


def _times(hazards: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Times of rows with constant hazards, and whether they are of events: at each event another row may leave."""
    times, observed, now = np.zeros(len(hazards)), np.zeros(len(hazards)), 0.0
    at_risk = list(range(len(hazards)))
    while at_risk:
        of_all = hazards[at_risk]
        now += rng.exponential(1.0 / of_all.sum())
        event = at_risk.pop(rng.choice(len(at_risk), p=of_all / of_all.sum()))
        times[event], observed[event] = now, 1.0
        if at_risk and rng.random() < CENSORED:
            times[at_risk.pop(rng.integers(len(at_risk)))] = now
    return times, observed
