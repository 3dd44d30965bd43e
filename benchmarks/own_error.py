"""A fit's own error against the true one, on programs of which a Gaussian gets many wrong.

    python benchmarks/own_error.py

writes OWN_ERROR.md. The truth is an integral over a grid where there are at most two globals, and NumPyro's NUTS on the
pooled data elsewhere.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from pages import head, row

import fedbayes as fb
from fedbayes.models import eight_schools, heart_disease
from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.problem.problem import Problem, make_problem

NUM_NUTS = 20_000
Clients = Mapping[str, Mapping[str, np.ndarray]]


class Truth(NamedTuple):
    """Means and sds ``(d,)`` of the unconstrained globals, and their Monte Carlo error in posterior sds."""

    mean: np.ndarray
    sd: np.ndarray
    error: float


class Case(NamedTuple):
    """One program with its clients, the truth, and the options of the fit."""

    model: Callable
    clients: Clients
    truth: Callable[[fb.FederatedFit], Truth]
    options: Mapping[str, Any] = {}


def by_grid(fit: fb.FederatedFit, pooled: Problem | None = None, reach: float = 12.0) -> Truth:
    """Moments over a grid of one or two globals, from the clients' own log factors.

    Where clients have locals, ``pooled`` is the same posterior of a program in which they are integrated out.
    """
    problem = fit.problem if pooled is None else pooled
    size = problem.globals.size
    centre, scale = fit.error["posterior_mean"].values, fit.error["posterior_sd"].values
    with jax.enable_x64(True):

        def log_joint(theta: jax.Array) -> jax.Array:
            factors = [problem.client(name).log_factor(theta) for name in problem.names]
            return problem.prior.log_density(theta) + sum(factors)

        num = 4001 if size == 1 else 801
        axes = [np.linspace(m - reach * s, m + reach * s, num) for m, s in zip(centre, scale, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, size)
        logs = np.asarray(jax.jit(lambda x: jax.lax.map(log_joint, x, batch_size=4096))(jnp.asarray(points)))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    return Truth(mean, np.sqrt(weights @ (points - mean) ** 2), 0.0)


def of_schools(fit: fb.FederatedFit) -> Truth:
    """Eight schools by a grid over mu and log tau, the schools' effects integrated out."""
    clients = eight_schools.clients().values()
    data = {name: np.concatenate([client[name] for client in clients]) for name in ("y", "sigma")}
    with jax.enable_x64(True):
        pooled = make_problem(pooled_schools, {"all": data})
    return by_grid(fit, pooled)


def of_funnel(clients: Clients, fit: fb.FederatedFit) -> Truth:
    """The deep funnel: Normal given the scale, which is integrated over a grid."""
    y = np.stack([client["y"] for client in clients.values()])
    v = np.linspace(-25.0, 15.0, 40_001)[:, None]
    precision = len(y) / 25.0
    spread = np.exp(v) + 1.0 / precision  # of the mean outcome
    logs = -0.5 * (v[:, 0] / 3.0) ** 2 - 0.5 * (np.log(spread) + y.mean(axis=0) ** 2 / spread).sum(axis=1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    own = 1.0 / (precision + np.exp(-v))
    mean_x = own * precision * y.mean(axis=0)
    mean = np.append(weights @ v, weights @ mean_x)
    second = np.append(weights @ v**2, weights @ (own + mean_x**2))
    return Truth(mean, np.sqrt(second - mean**2), 0.0)


def by_nuts(pooled: Callable, names: Mapping[str, Callable]) -> Callable[[fb.FederatedFit], Truth]:
    """Moments of the pooled model's draws by NUTS; ``names`` are the globals with the maps to unconstrained space."""

    def truth(fit: fb.FederatedFit) -> Truth:
        with jax.enable_x64(True):
            kernel = NUTS(pooled, target_accept_prob=0.95)
            mcmc = MCMC(kernel, num_warmup=2000, num_samples=NUM_NUTS, progress_bar=False)
            mcmc.run(jax.random.key(3))
            draws = mcmc.get_samples(group_by_chain=True)
        theta = np.concatenate(
            [np.asarray(to(draws[name])).reshape(1, NUM_NUTS, -1) for name, to in names.items()], axis=-1
        )
        ess = float(chain_diagnostics(np.concatenate(np.split(theta, 4, axis=1)))["ess"].min())
        flat = theta.reshape(-1, theta.shape[-1])
        return Truth(flat.mean(axis=0), flat.std(axis=0), 1.0 / np.sqrt(ess))

    return truth


def _same(value: Any) -> Any:
    return value


def _split(values: np.ndarray, num: int) -> dict[str, dict[str, np.ndarray]]:
    return {f"client{k}": {"y": part} for k, part in enumerate(np.array_split(values, num))}


def normal_mean(y: Any = None) -> None:
    """The mean of Normal outcomes: exactly Gaussian."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def rare_counts(y: Any = None) -> None:
    """The rate of a few counts: skewed."""
    rate = numpyro.sample("rate", dist.Gamma(0.5, 0.1))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def rare_events(y: Any = None) -> None:
    """The probability of an event that was hardly seen: very skewed."""
    share = numpyro.sample("share", dist.Beta(0.3, 1.0))
    numpyro.sample("y", dist.Bernoulli(probs=share), obs=y)


def separated(x: Any, y: Any = None) -> None:
    """A logistic regression whose outcomes are separated, under a wide prior: skewed and curved."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=beta[0] + x * beta[1]), obs=y)


def square(y: Any = None) -> None:
    """The square of the global is seen: two modes."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(theta**2, 1.0), obs=y)


def outliers(y: Any = None) -> None:
    """Cauchy outcomes at two places: two modes, or one with shoulders."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Cauchy(theta, 0.5), obs=y)


def funnel(y: Any = None) -> None:
    """Neal's funnel as globals, with one noisy look at the second."""
    v = numpyro.sample("v", dist.Normal(0.0, 2.0))
    x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def banana(y: Any = None) -> None:
    """A sum of one global and the square of another."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b**2, 0.5), obs=y)


def scale(y: Any = None) -> None:
    """Mean and sd of three outcomes a client."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def deep_funnel(y: Any = None) -> None:
    """Many means whose scale is a global, too, and data that say little."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)).expand([y.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 5.0).to_event(1), obs=y)


def _funnel(num: int) -> Case:
    """The deep funnel with so many means."""
    outcomes = np.random.default_rng(0).normal(0.0, 5.0, (3, num))
    clients = {f"client{k}": {"y": y} for k, y in enumerate(outcomes)}
    return Case(deep_funnel, clients, partial(of_funnel, clients), {"method": fb.EP(num_replicates=2)})


def pooled_schools(sigma: Any, y: Any = None) -> None:
    """All eight schools in one program, their effects integrated out."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(tau**2 + sigma**2)), obs=y)


def pooled_hearts() -> None:
    """Heart disease, all hospitals in one program."""
    clients = heart_disease.clients()
    heart_disease.model(**{k: np.concatenate([c[k] for c in clients.values()]) for k in next(iter(clients.values()))})


def cases() -> dict[str, Case]:
    """The zoo."""
    rng = np.random.default_rng(0)
    x = np.array([-1.5, -1.0, -0.5, 0.4, 0.9, 1.6])
    halves = {"low": {"x": x[::2], "y": (x[::2] > 0) * 1.0}, "high": {"x": x[1::2], "y": (x[1::2] > 0) * 1.0}}
    return {
        "normal mean": Case(normal_mean, _split(rng.normal(1.0, 1.0, 9), 3), by_grid),
        "rare counts": Case(rare_counts, _split(np.array([0.0, 0.0, 1.0, 0.0]), 2), by_grid),
        "rare events": Case(rare_events, _split(np.zeros(6), 2), by_grid),
        "separated logistic": Case(separated, halves, by_grid),
        "square, two modes": Case(square, _split(np.array([2.0, 1.5, 2.5, 1.0]), 2), by_grid),
        "square, one flat mode": Case(square, _split(np.array([0.3, -0.2, 0.6, 0.1]), 2), by_grid),
        "two places": Case(
            outliers, {"one": {"y": np.array([-3.0, -2.5])}, "two": {"y": np.array([2.5, 3.2])}}, by_grid
        ),
        "two far places": Case(
            outliers,
            {"one": {"y": np.array([-10.25, -9.75])}, "two": {"y": np.array([9.75, 10.25])}},
            partial(by_grid, reach=3.0),
            {"method": fb.Laplace(), "num_rounds": 200},
        ),
        "funnel": Case(funnel, _split(np.array([0.5, 1.0]), 2), by_grid),
        "banana": Case(banana, _split(np.array([1.2, 0.8, 1.5]), 3), by_grid),
        "mean and sd": Case(scale, _split(rng.normal(2.0, 3.0, 6), 3), by_grid),
        "eight schools": Case(eight_schools.model, eight_schools.clients(), of_schools),
        "funnel of 8 means": _funnel(8),
        "funnel of 24 means": _funnel(24),
        "heart disease": Case(
            heart_disease.model, heart_disease.clients(), by_nuts(pooled_hearts, {"intercept": _same, "beta": _same})
        ),
    }


class Found(NamedTuple):
    """What a fit says of its error, and what it is: root mean squares over the globals.

    Attributes
    ----------
    reliable
        Whether the fit says that its numbers can be trusted.
    mean, sd
        Errors of the Gaussian's means (posterior sds) and sds (relative), by the fit.
    true_mean, true_sd
        The same by the truth.
    noise
        Monte Carlo error of both, root mean square.
    corrected_mean, corrected_sd
        True errors of the corrected moments.
    exchanges
        After the rounds.
    """

    reliable: bool
    mean: float
    true_mean: float
    sd: float
    true_sd: float
    noise: float
    corrected_mean: float
    corrected_sd: float
    exchanges: int

    @property
    def honest(self) -> bool:
        """Within a factor of two of the truth, beyond three Monte Carlo errors, or called unreliable."""
        pairs = (self.mean, self.true_mean), (self.sd, self.true_sd)
        slack = 3.0 * self.noise + 1e-9
        return not self.reliable or all(a <= 2.0 * b + slack and b <= 2.0 * a + slack for a, b in pairs)


def measure(case: Case) -> Found:
    """Fit, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit's own, which the table shows
        fit = fb.fit_federated(case.model, case.clients, key=jax.random.key(1), progress=False, **case.options)
    own, truth = fit.error, case.truth(fit)
    means, covariances = fit.moments()
    mean = means.mean(axis=0)
    sd = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2).mean(axis=0) + means.var(axis=0))
    for_mean, for_sd = own["mean_reliable"].values, own["sd_reliable"].values
    return Found(
        bool(own.attrs["reliable"]),
        own.attrs["mean_error"],
        _rms(((mean - truth.mean) / truth.sd)[for_mean]),
        own.attrs["sd_error"],
        _rms((sd / truth.sd - 1.0)[for_sd]),
        _rms(np.append(own["mean_mcse"], own["sd_mcse"])) + truth.error,
        _rms((own["posterior_mean"] - truth.mean) / truth.sd),
        _rms(own["posterior_sd"] / truth.sd - 1.0),
        own.attrs["exchanges"],
    )


def _rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.asarray(values) ** 2))) if np.size(values) else float("nan")


HEADER = """# A fit's own error against the true one

Written by `own_error.py`. Errors of the Gaussian's means are in posterior standard deviations, those of its standard
deviations relative, both root mean squares over the unconstrained globals; over those alone whose tails are short
enough for the fit to tell, and nan where that is none. *fit* is `fit.error`; *true* comes from a
grid over the globals, for heart disease from NumPyro's NUTS on the pooled data. *corrected* are the true errors of the
corrected moments, `posterior_mean` and `posterior_sd` of `fit.error`. *noise* is the Monte Carlo error.
"""
COLUMNS = (
    *("program", "trusted", "means: fit", "true", "corrected", "sds: fit", "true", "corrected", "noise"),
    "exchanges",
)


def line(name: str, found: Found) -> str:
    """A line of the table."""
    numbers = (
        found.mean,
        found.true_mean,
        found.corrected_mean,
        found.sd,
        found.true_sd,
        found.corrected_sd,
        found.noise,
    )
    shown = [f"{number:.4f}" if number < 100.0 else f"{number:.1e}" for number in numbers]
    return row(name, "yes" if found.reliable else "no", *shown, found.exchanges)


if __name__ == "__main__":
    rows = []
    for name, case in cases().items():
        rows.append(line(name, measure(case)))
        print(rows[-1], flush=True)
    Path(__file__).with_name("OWN_ERROR.md").write_text("\n".join([HEADER, *head(COLUMNS), *rows, ""]))
