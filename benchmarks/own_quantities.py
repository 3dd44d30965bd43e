"""Stated Monte Carlo errors of constrained quantities against the true ones, over fits with different keys.

    python benchmarks/own_quantities.py

writes OWN_QUANTITIES.md. The truth is an integral over a wide grid of one or two globals, or a closed form.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from own_error import banana, cases, pooled_schools
from pages import head, row, wrapped

import fedbayes as fb
from fedbayes.correction.quantities import PROBABILITIES
from fedbayes.models import eight_schools
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.results.arviz import constrained, shapes_of

NUM_KEYS = 20
FAR, WIDE = 9.0, 2.0  # the grid reaches WIDE * sinh(FAR) posterior sds
Clients = Mapping[str, Mapping[str, np.ndarray]]


class Case(NamedTuple):
    """A model with its clients, and a pooled program of the same globals where the clients have locals."""

    model: Callable
    clients: Clients
    pooled: Callable[[], Problem] | None = None


class Truth(NamedTuple):
    """Means, sds and quantiles by quantity; an infinite sd where there is none."""

    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray


def by_grid(fit: fb.FederatedFit, pooled: Problem | None) -> Truth:
    """Moments of constrained quantities over a grid whose steps grow with the distance from the posterior."""
    problem = fit.problem if pooled is None else pooled
    size = problem.globals.size
    centre, scale = fit.error["posterior_mean"].values, fit.error["posterior_sd"].values
    num = 20_001 if size == 1 else 1201
    steps = np.linspace(-FAR, FAR, num)
    axis, log_width = WIDE * np.sinh(steps), np.log(np.cosh(steps))
    with jax.enable_x64(True):

        def log_joint(theta: jax.Array) -> jax.Array:
            factors = [problem.client(name).log_factor(theta) for name in problem.names]
            return problem.prior.log_density(theta) + sum(factors)

        axes = [m + s * axis for m, s in zip(centre, scale, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, size)
        widths = np.sum(np.stack(np.meshgrid(*[log_width] * size, indexing="ij"), axis=-1).reshape(-1, size), axis=-1)
        logs = np.asarray(jax.jit(lambda x: jax.lax.map(log_joint, x, batch_size=4096))(jnp.asarray(points))) + widths
        logs = np.where(np.isfinite(logs), logs, -np.inf)
        weights = np.exp(logs - logs.max())
        kept = weights > 1e-18
        points, weights = points[kept], weights[kept] / weights[kept].sum()
        shapes = shapes_of(problem)[0]
        found = constrained(shapes.program, shapes.ones(), points[None])
    values = np.concatenate([found[name][0].reshape(len(points), -1) for name in names_of(fit)], axis=1)
    mean = weights @ values
    quantiles = np.stack([_quantiles(each, weights) for each in values.T])
    with np.errstate(all="ignore"):  # where a quantity has no mean
        sd = np.sqrt(weights @ (values - mean) ** 2)
    return Truth(mean, sd, quantiles)


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of weighted points, between whose different values mass is spread evenly."""
    different, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place, weights)
    return np.interp(PROBABILITIES, np.cumsum(mass) - 0.5 * mass, different)


def names_of(fit: fb.FederatedFit) -> list[str]:
    """The variables of the posterior, in the order of ``fit.error``'s quantities."""
    return list(dict.fromkeys(label.split("[")[0] for label in fit.error["quantity"].values.tolist()))


def separated(x: Any, y: Any = None) -> None:
    """A logistic regression whose outcomes are separated, under a prior with long tails."""
    beta = numpyro.sample("beta", dist.StudentT(2.5, 0.0, 2.5).expand([2]).to_event(1))
    numpyro.deterministic("odds", jnp.exp(beta[1]))
    numpyro.sample("y", dist.Bernoulli(logits=beta[0] + x * beta[1]), obs=y)


def odds(x: Any, y: Any = None) -> None:
    """A logistic regression with few outcomes, its odds ratio and its risk ratio."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.5).expand([2]).to_event(1))
    numpyro.deterministic("odds", jnp.exp(beta[1]))
    risk = jax.nn.sigmoid(beta[0] + jnp.arange(2) * beta[1])
    numpyro.deterministic("ratio", risk[1] / risk[0])
    numpyro.sample("y", dist.Bernoulli(logits=beta[0] + x * beta[1]), obs=y)


def rates(kind: Any, y: Any = None) -> None:
    """Two rates, and their ratio, which has no variance."""
    rate = numpyro.sample("rate", dist.Gamma(0.5, 0.1).expand([2]).to_event(1))
    numpyro.deterministic("ratio", rate[0] / rate[1])
    numpyro.sample("y", dist.Poisson(rate[kind]), obs=y)


def duration(y: Any = None) -> None:
    """Weibull durations, with the median and the share that lasts ten."""
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(1.0, 2.0))
    numpyro.deterministic("median", scale * jnp.log(2.0) ** (1.0 / shape))
    numpyro.deterministic("lasts", jnp.exp(-((10.0 / scale) ** shape)))
    numpyro.sample("y", dist.Weibull(scale, shape), obs=y)


def dose(x: Any, y: Any = None) -> None:
    """Where half of the animals die: a ratio of two coefficients."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.LogNormal(1.0, 1.0))
    numpyro.deterministic("half", -alpha / slope)
    numpyro.sample("y", dist.Binomial(5, logits=alpha + slope * x), obs=y)


def spread(y: Any = None) -> None:
    """An effect of each client, and the sd between clients, of which there are three."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu + tau * z, 1.0), obs=y)


def pooled_spread(n: Any, y: Any = None) -> None:
    """The same with the effects integrated out, ``y`` the clients' means."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(tau**2 + 1.0 / n)), obs=y)


def quantity_cases() -> dict[str, Case]:
    """Two of the other table's programs, and what a user would ask for."""
    known = cases()
    rng = np.random.default_rng(2)
    x = np.array([-1.5, -1.0, -0.5, 0.4, 0.9, 1.6])
    halves = {"low": {"x": x[::2], "y": (x[::2] > 0) * 1.0}, "high": {"x": x[1::2], "y": (x[1::2] > 0) * 1.0}}
    kind = np.array([0, 1, 0, 1])
    few = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    groups = {f"group{k}": {"y": rng.normal(mean, 1.0, 4)} for k, mean in enumerate((-1.0, 0.2, 1.5))}
    dead = {
        f"lab{k}": {"x": np.array([-0.9, -0.3, 0.0, 0.7]), "y": y} for k, y in enumerate(((0, 1, 3, 5), (0, 2, 2, 4)))
    }
    schools = eight_schools.clients().values()

    def pooled_of_schools() -> Problem:
        data = {name: np.concatenate([client[name] for client in schools]) for name in ("y", "sigma")}
        return make_problem(pooled_schools, {"all": data})

    def pooled_of_groups() -> Problem:
        means = np.array([client["y"].mean() for client in groups.values()])
        return make_problem(pooled_spread, {"all": {"y": means, "n": np.full(3, 4.0)}})

    return {
        "rare counts": Case(known["rare counts"].model, known["rare counts"].clients),
        "rare events": Case(known["rare events"].model, known["rare events"].clients),
        "mean and sd of 6 outcomes": Case(known["mean and sd"].model, known["mean and sd"].clients),
        "separated, Normal prior": Case(known["separated logistic"].model, known["separated logistic"].clients),
        "separated, t prior": Case(separated, halves),
        "odds and risk ratio": Case(
            odds,
            {
                "a": {"x": few, "y": np.array([0, 0, 1, 0, 1, 0, 1, 1.0])},
                "b": {"x": few, "y": np.array([0, 0, 0, 1, 1, 1, 0, 0.0])},
            },
        ),
        "ratio of two rates": Case(
            rates, {"a": {"kind": kind, "y": np.array([3, 0, 2, 1])}, "b": {"kind": kind, "y": np.array([1, 0, 4, 0])}}
        ),
        "durations": Case(duration, {f"c{k}": {"y": 6.0 * rng.weibull(1.4, 4)} for k in range(3)}),
        "lethal dose": Case(dose, {name: {"x": d["x"], "y": np.array(d["y"])} for name, d in dead.items()}),
        "sd between 3 clients": Case(spread, groups, pooled_of_groups),
        "eight schools": Case(eight_schools.model, eight_schools.clients(), pooled_of_schools),
        "two modes": Case(known["square, two modes"].model, known["square, two modes"].clients),
        "banana": Case(banana, known["banana"].clients),
    }


class Found(NamedTuple):
    """Over the keys, arrays ``(n,)`` of the quantities, or ``(n, probability)``.

    Attributes
    ----------
    labels
        Of the quantities.
    ratio_mean, ratio_sd, ratio_quantiles
        True errors of ``fit.idata``'s numbers over the stated ones, root mean square.
    trusted
        Share of the keys with which the sd is vouched for.
    off
        The largest relative error of a sd that the fit vouches for.
    unreliable
        Number of keys with which the fit itself is called unreliable.
    """

    labels: list[str]
    ratio_mean: np.ndarray
    ratio_sd: np.ndarray
    ratio_quantiles: np.ndarray
    trusted: np.ndarray
    off: np.ndarray
    unreliable: int


def measure(case: Case) -> Found:
    """Fit with each key, and compare with the truth what `fit.idata` says."""
    gaps: dict[str, list] = {name: [] for name in ("mean", "sd", "quantiles")}
    stated: dict[str, list] = {name: [] for name in gaps}
    trusted, truth, labels, unreliable = [], None, [], 0
    for key in range(NUM_KEYS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = fb.fit_federated(case.model, case.clients, key=jax.random.key(key), progress=False)
        own = fit.error
        unreliable += not own.attrs["reliable"]
        if truth is None:
            with jax.enable_x64(True):
                pooled = case.pooled() if case.pooled else None
            truth, labels = by_grid(fit, pooled), own["quantity"].values.tolist()
        draws = np.concatenate(
            [v.reshape(v.shape[0] * v.shape[1], -1) for v in (fit.idata.posterior[n].values for n in names_of(fit))], 1
        )
        gaps["mean"].append(draws.mean(axis=0) - truth.mean)
        gaps["sd"].append(draws.std(axis=0) - truth.sd)
        gaps["quantiles"].append(np.quantile(draws, PROBABILITIES, axis=0).T - truth.quantiles)
        for name in stated:
            stated[name].append(own[f"quantity_{name}_mcse"].values)
        trusted.append(own["quantity_sd_reliable"].values)
    kept = np.array(trusted)
    ratios = {
        "mean": _ratio(gaps["mean"], stated["mean"], kept),
        "sd": _ratio(gaps["sd"], stated["sd"], kept),
        "quantiles": _ratio(gaps["quantiles"], stated["quantiles"], np.ones((*kept.shape, len(PROBABILITIES)), bool)),
    }
    assert truth is not None
    off = np.max(np.abs(np.array(gaps["sd"])) / truth.sd, axis=0, where=kept, initial=0.0)
    return Found(labels, *ratios.values(), kept.mean(axis=0), off, unreliable)


def _ratio(gaps: Any, stated: Any, kept: np.ndarray) -> np.ndarray:
    """True over stated errors, root mean square over the keys that are kept; NaN where that are fewer than half."""
    with np.errstate(invalid="ignore"):
        ratios = np.where(kept, np.array(gaps) / np.array(stated), 0.0)
    return np.where(
        kept.mean(axis=0) >= 0.5, np.sqrt(np.sum(ratios**2, axis=0) / np.maximum(kept.sum(axis=0), 1)), np.nan
    )


HEADER = "# Monte Carlo errors of constrained quantities, stated and true\n\n" + wrapped(
    f"""Written by `own_quantities.py`: {NUM_KEYS} default fits a program, with different keys. *mean*, *sd* and
    *quantiles* are the true errors of `fit.idata`'s means, sds and quantiles (at 5, 25, 50, 75 and 95 percent: the
    furthest from one) over those stated by `fit.error`, root mean squares over the fits: one is exact, and 20 fits know
    it to a sixth. True values are integrals over a grid. *vouched for* is the share of the fits that vouch for the sd;
    where it is under a half, of mean and sd nothing is shown. *furthest* is the largest relative error of a sd that a
    fit has vouched for."""
)
COLUMNS = ("program", "quantity", "mean", "sd", "quantiles", "vouched for", "furthest")


def lines(name: str, found: Found) -> list[str]:
    """The table's lines of one program."""
    quantiles = np.array([each[np.argmax(np.abs(np.log(each)))] for each in found.ratio_quantiles])
    columns = (found.labels, found.ratio_mean, found.ratio_sd, quantiles, found.trusted, found.off)
    return [
        row(
            name, f"`{label}`", *("-" if np.isnan(r) else f"{r:.2f}" for r in (mean, sd, quantile)),
            f"{100.0 * share:.0f} %", f"{100.0 * off:.1f} %" if share else "-",
        )
        for label, mean, sd, quantile, share, off in zip(*columns, strict=True)
    ]  # fmt: skip


def summed(found: list[Found]) -> str:
    """How many of the stated errors are within a factor of two of the true ones."""

    def share(ratios: list[np.ndarray]) -> str:
        flat = np.concatenate([each.reshape(-1) for each in ratios])
        flat = flat[~np.isnan(flat)]
        return f"{np.sum((flat > 0.5) & (flat < 2.0))} of {flat.size}"

    whole = (share([getattr(each, f"ratio_{name}") for each in found]) for name in ("mean", "sd", "quantiles"))
    programs = [np.concatenate([each.ratio_mean, each.ratio_sd, each.ratio_quantiles.reshape(-1)]) for each in found]
    good = sum(bool(np.all((r[~np.isnan(r)] > 0.5) & (r[~np.isnan(r)] < 2.0))) for r in programs)
    mean, sd, quantiles = whole
    return wrapped(
        f"""Within a factor of two: the errors of {mean} means, of {sd} sds, of {quantiles} quantiles; all of them in
        {good} of {len(found)} programs. Fits that call themselves unreliable: {sum(each.unreliable for each in found)}
        of {NUM_KEYS * len(found)}."""
    )


if __name__ == "__main__":
    rows, all_found = [], []
    for name, case in quantity_cases().items():
        all_found.append(measure(case))
        rows += lines(name, all_found[-1])
        print("\n".join(rows[-len(all_found[-1].labels) :]), flush=True)
    print(summed(all_found))
    page = [HEADER, *head(COLUMNS, 2), *rows, "", summed(all_found)]
    Path(__file__).with_name("OWN_QUANTITIES.md").write_text("\n".join(page))
