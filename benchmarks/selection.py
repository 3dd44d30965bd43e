"""Variable selection by penalised regressions: simulated cases, two schools, and coefficients against NUTS.

    python benchmarks/selection.py cases                       # writes SELECTION.md, section by section
    python benchmarks/selection.py portuguese --data PATH      # PATH: the folder with UCI's files, as for student.py
    python benchmarks/selection.py mathematics --data PATH
    python benchmarks/selection.py nuts --data PATH

Without a name every part runs. A part that runs replaces its section of the page; the others stay. `--repeats` is the
number of simulated data sets, or of splits of the pupils; 0 takes the part's own number. What was found of a data set
or a split is stored in `selection.json` at once, so that a part goes on where it was stopped. Delete that file to begin
anew.
"""

import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pages
import student
import typer
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS
from pages import MARK, wrapped
from scipy.special import logsumexp
from scipy.stats import norm
from scipy.stats import t as student_t

import fedbayes as fb
from fedbayes.models import penalised
from fedbayes.models.penalised import elastic_net, horseshoe, lasso, ridge

Array = np.ndarray
Clients = dict[str, dict[str, Array]]

HERE = Path(__file__).resolve().parent
STORED = HERE / "selection.json"
TOGETHER = 5  # data sets that are fitted in one process: it keeps the programs of all that it has fitted
FEWER = {"method": fb.EP(num_replicates=1), "num_draws": 1000}
"""One replicate: others serve the error estimate of a fit, which the pupils' table does not need."""
WIDE = {"method": fb.EP(num_replicates=1, num_samples=1024, solver="importance"), "num_draws": 2000}
"""Where the default sends some clients to slower solvers."""


def fitted(model: Callable, clients: Clients, seed: int = 0, **options: Any) -> fb.FederatedFit:
    """A fit without a bar; the tables say how many have not converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fb.fit_federated(model, clients, key=jax.random.key(seed), progress=False, **options)


def coefficients(fit: fb.FederatedFit) -> Array:
    """Draws of all clients' coefficients, shape ``(draws, K, d)``."""
    draws = [fit.client_posterior(name).posterior["theta"].values for name in fit.client_names]
    return np.stack([each.reshape(-1, each.shape[-1]) for each in draws], axis=1)


def spread(values: Sequence[float] | Array, digits: int = 3) -> str:
    """Mean and sd over repeats."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.{digits}f}"


table = partial(pages.table, right_from=1)


def told(*cells: Any) -> None:
    """Progress on the terminal."""
    print(*cells, flush=True)


# Simulated cases ------------------------------------------------------------------------------------------------------

SOURCE = {"I": ("0.055", "0.880", "0.095"), "II": ("0.062", "0.875", "0.101"), "III": ("0.088", "0.891", "0.115")}
"""Table 3.2 of Yue (2023), lasso: A-RMSE, correct and false inclusion rate."""
EXACT = {
    ("lasso", "I"): (".0520", "", "1.000", ".092", ".907"),
    ("lasso", "II"): (".0531", ".0620", "1.000", ".090", ".914"),
    ("lasso", "III"): (".0999", "", "1.000", ".075", ".917"),
    ("ridge", "I"): (".0520", "", "1.000", ".092", ".905"),
    ("ridge", "II"): (".0534", ".0625", "1.000", ".090", ".914"),
    ("ridge", "III"): (".1003", "", "1.000", ".073", ".920"),
}
"""The same models by Gibbs sampling of all clients' rows in one place, 10 data sets of another generator."""
PENALTIES = {"lasso": lasso, "ridge": ridge, "elastic net": elastic_net, "horseshoe": horseshoe}


class Score(NamedTuple):
    """One data set's; means over clients."""

    error: float  # A-RMSE on noisy test rows
    small: float  # the same over the two small clients of case II
    noiseless: float  # root mean square error of x'theta for standard normal x
    correct: float
    false: float
    covered: float
    covered_zero: float
    converged: float
    rough: float = 0.0  # whether `repr(fit)` says not to rely on `fit.idata`


def scored(mean: Array, lower: Array, upper: Array, test: Clients, theta: Array, converged: bool) -> Score:
    """Of point estimates and 90 percent intervals, shape ``(K, d)`` each."""
    errors = [np.sqrt(np.mean((t["y"] - t["x"] @ m) ** 2)) for m, t in zip(mean, test.values(), strict=True)]
    included, inside, real = (lower > 0.0) | (upper < 0.0), (lower < theta) & (theta < upper), theta != 0.0
    distance = np.sqrt(np.sum((mean - theta) ** 2, axis=1))
    rates = (included[:, real].mean(), included[:, ~real].mean(), inside[:, real].mean(), inside[:, ~real].mean())
    correct, false, covered, covered_zero = map(float, rates)
    return Score(
        float(np.mean(errors)),
        float(np.mean(errors[:2])),
        float(distance.mean()),
        correct,
        false,
        (covered * real.sum() + covered_zero * (~real).sum()) / len(theta),
        covered,
        float(converged),
    )


def by_penalty(penalty: str, case: str, noise_sd: float, seed: int) -> Score:
    """One data set by `fit.select`."""
    train, test, theta = penalised.simulate_case(jax.random.key(seed), case, noise_sd)
    fit = fitted(PENALTIES[penalty], train, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit.select(level=0.9)
    score = scored(*(found[name].values for name in ("mean", "lower", "upper")), test, theta, fit.converged)
    return score._replace(rough=float("don't rely" in repr(fit)))


def all_by_penalty(penalty: str, case: str, noise_sd: float, repeats: int) -> list[Score]:
    """So many data sets, one after the other; what is stored is kept."""
    scores, context = [], multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=TOGETHER) as fresh:
        for seed in range(repeats):
            found = kept(
                f"{penalty} {case} {noise_sd:g} {seed}",
                lambda seed=seed: fresh.submit(by_penalty, penalty, case, noise_sd, seed).result(),
            )
            scores.append(Score(**found))
    return scores


def kept(name: str, find: Callable[[], Any]) -> dict[str, Any]:
    """What is stored under a name, as `find` gave it the first time."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if name not in stored:
        begin = time.perf_counter()
        stored[name] = find()._asdict()
        written = STORED.with_suffix(".new")  # whole, or not at all
        written.write_text(json.dumps(stored, indent=1) + "\n")
        written.replace(STORED)
        told(name, f"{time.perf_counter() - begin:.0f} s")
    return dict(stored[name])


def by_least_squares(case: str, noise_sd: float, seed: int) -> Score:
    """Each client by itself, with 90 percent t-intervals."""
    train, test, theta = penalised.simulate_case(jax.random.key(seed), case, noise_sd)
    means, halves = [], []
    for client in train.values():
        x, y = client["x"], client["y"]
        free, inverse = len(y) - x.shape[1], np.linalg.inv(x.T @ x)
        means.append(inverse @ x.T @ y)
        variance = np.sum((y - x @ means[-1]) ** 2) / free
        halves.append(student_t.ppf(0.95, free) * np.sqrt(variance * np.diag(inverse)))
    mean, half = np.stack(means), np.stack(halves)
    return scored(mean, mean - half, mean + half, test, theta, converged=True)


CASES_TEXT = """\
Cases I to III are those of the source's section 3.5.2. The clients' predictors are standard normal, and all clients
have the same coefficients: case I has 10 clients of 100 rows and three relevant predictors of eight (3, 1.5, 2), case
II two clients of 20 rows and eight of 200, case III 20 clients of 40 rows and 20 relevant predictors of 30 (all 3). A
predictor is included at a client where its 90 percent interval excludes zero (`fit.select()`). A-RMSE is the root mean
square error on a client's test rows, which have noise, averaged over clients; "small" is that of the two small clients.
CIR and FIR are the shares of relevant and of irrelevant predictors that are included, averaged over clients. "Held" is
the share of 90 percent intervals that hold the true coefficient. "Exact" is Gibbs sampling of the same model with all
rows in one place, on 10 data sets of another generator. Least squares, with t-intervals, has the same data sets as the
federated fits. "Relied on" counts fits of which `repr(fit)` doesn't say not to rely on `fit.idata`.
"""
WHY = """\
The source's CIR of 0.88 cannot come from this model on these data. The smallest relevant coefficient, 1.5, is as large
as 300 posterior sds (about 0.005 in case I), so that its interval excludes zero in every data set, by any correct
computation: the CIR is 1. The FIR near 0.09 tells as little. At this noise the penalty does next to nothing, and of
intervals of 90 percent one in ten misses a zero. Its A-RMSE of 0.062 in case II is that of the two small clients here,
and its 0.088 in case III is near the error against noiseless targets, 0.086 by Gibbs sampling.
"""
NOISY_TEXT = """\
Case I with noise of sd 3, as in van Erp, Oberski and Mulder (2019), where selection has something to decide. Error is
the root mean square error of x'theta for a new standard normal x, averaged over clients, without noise. "Held:
relevant" is the coverage of the three relevant coefficients alone. Least squares fits each client by itself,
with t-intervals.
"""


def mean_of(scores: Sequence[Score], name: str) -> float:
    """Over data sets."""
    return float(np.mean([getattr(score, name) for score in scores]))


def told_of_convergence(scores: Sequence[Score]) -> str:
    """How many of the fits have converged."""
    return f"{sum(score.converged for score in scores):.0f} of {len(scores)}"


def told_of_trust(scores: Sequence[Score]) -> str:
    """Of how many fits `repr(fit)` doesn't say not to rely on them."""
    return f"{len(scores) - sum(score.rough for score in scores):.0f} of {len(scores)}"


def cells_of(scores: Sequence[Score], case: str) -> list[str]:
    """The first table's numbers."""
    small = f"{mean_of(scores, 'small'):.4f}" if case == "II" else ""
    rates = [f"{mean_of(scores, name):.3f}" for name in ("correct", "false", "covered", "noiseless")]
    return [f"{mean_of(scores, 'error'):.4f}", small, *rates]


def least_squares_row(case: str, repeats: int) -> list[str]:
    """The rival's line of the first table, on the same data sets."""
    scores = [by_least_squares(case, 0.05, seed) for seed in range(repeats)]
    return [case, "least squares, each client", *cells_of(scores, case), "", ""]


def case_rows(penalty: str, case: str, repeats: int) -> list[list[str]]:
    """Our line of the first table, and what it is compared with."""
    scores = all_by_penalty(penalty, case, 0.05, repeats)
    exact = [cell.replace(".", "0.", 1) if cell.startswith(".") else cell for cell in EXACT[penalty, case]]
    rows = [[case, f"{penalty}, federated", *cells_of(scores, case)]]
    rows[0] += [told_of_convergence(scores), told_of_trust(scores)]
    rows.append([case, f"{penalty}, exact", *exact, "", "", ""])
    if penalty == "lasso":
        error, correct, false = SOURCE[case]
        rows.append([case, "lasso, the source", error, "", correct, false, "", "", "", ""])
    told(*rows[0])
    return rows


def cases(repeats: int, data: Path) -> list[str]:
    """The source's three cases, and one that can tell methods apart."""
    repeats = repeats or 10
    rows = []
    for case in ("I", "II", "III"):
        rows += [each for name in ("lasso", "ridge") for each in case_rows(name, case, repeats)]
        rows.append(least_squares_row(case, repeats))
    head = ["case", "", "A-RMSE", "small", "CIR", "FIR", "held", "noiseless error", "converged", "relied on"]
    noisy, fewer = [], max(2, repeats // 2)
    for name in (*PENALTIES, None):
        scores = [by_least_squares("I", 3.0, seed) for seed in range(fewer)] if name is None else []
        scores = scores or all_by_penalty(name, "I", 3.0, fewer)
        named = ("noiseless", "correct", "false", "covered", "covered_zero")
        noisy.append([name or "least squares", *(f"{mean_of(scores, each):.3f}" for each in named)])
        noisy[-1] += ["", ""] if name is None else [told_of_convergence(scores), told_of_trust(scores)]
        told(*noisy[-1])
    return [
        wrapped(CASES_TEXT),
        f"Means over {repeats} data sets, noise sd 0.05:\n",
        *table(head, rows),
        wrapped(WHY),
        "### More noise\n",
        wrapped(NOISY_TEXT),
        f"Means over {fewer} data sets:\n",
        *table(["", "error", "CIR", "FIR", "held", "held: relevant", "converged", "relied on"], noisy),
    ]


# Two schools ----------------------------------------------------------------------------------------------------------


def names(pupils: list[dict[str, str]]) -> list[str]:
    """Of the predictors, in the order of `student.columns` without its first column, the intercept."""
    found = []
    for name in (name for name in pupils[0] if name not in student.LEFT_OUT):
        levels = sorted({pupil[name] for pupil in pupils})
        if name in student.NOMINAL or len(levels) == 2:
            found += [f"{name} {level}" for level in levels[1:]]
        else:
            found.append(name)
    return found


def schools(pupils: list[dict[str, str]], seed: int | None, share: float = 0.6) -> student.Split:
    """Split 60 / 40 within each school; all columns centred, numeric ones and grades scaled, by the training rows.

    Without a seed all rows are training rows.
    """
    x, numeric = student.columns(pupils)
    x, numeric = x[:, 1:], numeric[1:]
    y, school = np.array([float(pupil["G3"]) for pupil in pupils]), np.array([pupil["school"] for pupil in pupils])
    rng = np.random.default_rng(seed)
    orders = {name: rng.permutation(np.flatnonzero(school == name)) for name in student.SCHOOLS}
    cuts = {name: len(order) if seed is None else int(share * len(order)) for name, order in orders.items()}
    parts = [{name: order[: cuts[name]] for name, order in orders.items()}]
    parts.append({name: order[cuts[name] :] for name, order in orders.items()})
    known = np.concatenate(list(parts[0].values()))
    x = x - x[known].mean(axis=0)
    x[:, numeric] /= x[known][:, numeric].std(axis=0)
    y = (y - y[known].mean()) / y[known].std()
    return student.Split(*({name: {"x": x[rows], "y": y[rows]} for name, rows in part.items()} for part in parts))


class Schools(NamedTuple):
    """What a way of fitting predicts and includes, by school."""

    errors: list[float]
    densities: list[float]
    included: list[int]
    converged: float


def predicted(fit: fb.FederatedFit, client: str, test: dict[str, Array]) -> tuple[float, float]:
    """Held-out RMSE, and log predictive density per pupil."""
    found = fit.predict(client, x=test["x"]).posterior_predictive
    mean, sd = (found[name].values.reshape(-1, len(test["y"])) for name in ("y_mean", "y_sd"))
    density = logsumexp(norm.logpdf(test["y"], mean, sd), axis=0) - np.log(len(mean))
    return float(np.sqrt(np.mean((mean.mean(axis=0) - test["y"]) ** 2))), float(density.mean())


def included(fit: fb.FederatedFit) -> list[int]:
    """How many predictors each client includes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit.select(level=0.9)["included"].values.sum(axis=1).tolist()


def together(model: Callable, data: student.Split, options: Mapping[str, Any] = FEWER) -> Schools:
    """Both schools, federated."""
    fit = fitted(model, data.train, **options)
    errors, densities = zip(*(predicted(fit, name, data.test[name]) for name in student.SCHOOLS), strict=True)
    return Schools(list(errors), list(densities), included(fit), float(fit.converged))


def apart(model: Callable, data: student.Split) -> Schools:
    """Each school alone."""
    fits = {name: fitted(model, {name: data.train[name]}, **FEWER) for name in student.SCHOOLS}
    errors, densities = zip(*(predicted(fit, name, data.test[name]) for name, fit in fits.items()), strict=True)
    counts = [count for fit in fits.values() for count in included(fit)]
    return Schools(list(errors), list(densities), counts, float(np.mean([fit.converged for fit in fits.values()])))


def pooled(model: Callable, data: student.Split) -> Schools:
    """All rows as those of one client."""
    every = {name: np.concatenate([part[name] for part in data.train.values()]) for name in ("x", "y")}
    fit = fitted(model, {"all": every}, **FEWER)
    errors, densities = zip(*(predicted(fit, "all", data.test[name]) for name in student.SCHOOLS), strict=True)
    return Schools(list(errors), list(densities), included(fit) * 2, float(fit.converged))


WAYS: Mapping[str, tuple[Callable, Callable]] = {
    "lasso": (together, lasso),
    "lasso, own error": (together, partial(lasso, error="own")),
    "ridge": (together, ridge),
    "ridge, common mean": (together, partial(ridge, mean_sd=1.0)),
    "elastic net": (partial(together, options=WIDE), elastic_net),
    "horseshoe": (partial(together, options=WIDE), horseshoe),
    "lasso, each school alone": (apart, lasso),
    "ridge, each school alone": (apart, ridge),
    "lasso, pooled": (pooled, lasso),
    "ridge, pooled": (pooled, ridge),
}
BRIEF = ("lasso", "lasso, own error", "ridge", "lasso, each school alone", "lasso, pooled", "ridge, pooled")
"""Ways for mathematics."""
STUDENT_TEXT = """\
Final grades G3 of two schools, Gabriel Pereira (GP) and Mousinho da Silveira (MS), by 38 predictors: all attributes but
the school and the grades G1 and G2, with indicators that leave the first level out; fewer where this copy of the data
has missing cells. 60 percent of each school's pupils are training rows. Columns are centred, and numeric ones and
grades scaled, by the means and sds of both schools' training rows, numbers that the schools would have to share first.
RMSE is that of the posterior mean on held-out pupils, in sds of the grade; A-RMSE is its mean over the two schools.
Density is the log predictive density per held-out pupil, in nats. Included is the number of predictors whose 90 percent
interval excludes zero. A common mean is `mean_sd=1`. Pooled means that all rows are those of one client, with one
vector of coefficients.
"""
STUDENT_SOURCE = """\
The source's Table 3.3, without saying for which of the two subjects: lasso, A-RMSE 0.825, 21 and 23 predictors
included; ridge 0.817, 21 and 22; with all rows in one place 0.820 (lasso) and 0.815 (ridge), 21 predictors. Such counts
do not come from intervals of 90 percent on these data: Gibbs sampling of the same models with all rows in one place
includes 3 to 5 predictors a school in Portuguese. They look like the number of coefficients
that a lasso's mode does not set to zero. The error's level, and that schools together and pooled rows differ little,
can be compared.
"""


CHOSEN_TEXT = """\
Predictors that the lasso includes at one school at least, all rows known: posterior mean and 90 percent interval, bold
where included.
"""


def way_row(name: str, found: Sequence[Schools]) -> list[str]:
    """A line of a subject's table."""
    errors, densities, included = (np.array([getattr(each, of) for each in found]) for of in Schools._fields[:3])
    cells = [name, spread(errors.mean(axis=1)), *(f"{value:.3f}" for value in errors.mean(axis=0))]
    cells += [f"{value:.3f}" for value in densities.mean(axis=0)] + [f"{value:.1f}" for value in included.mean(axis=0)]
    return [*cells, f"{len(found)}", f"{100 * np.mean([each.converged for each in found]):.0f} %"]


def chosen(pupils: list[dict[str, str]]) -> list[str]:
    """The predictors that the lasso includes at either school, given all its rows."""
    labels = names(pupils)
    fit = fitted(
        lasso,
        schools(pupils, None).train,
        **{**FEWER, "num_draws": 2000},
        coords={"predictor": labels},
        dims={"theta": ["predictor"]},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit.select(level=0.9)
    rows = []
    for label in labels:
        mine = found.sel(predictor=label)
        if bool(mine["included"].any()):
            cells = []
            for name in student.SCHOOLS:
                one = mine.sel(client_name=name)
                low, mean, high = (float(one[key]) for key in ("lower", "mean", "upper"))
                shown = f"{mean:.2f} ({low:.2f}, {high:.2f})"
                cells.append(f"**{shown}**" if bool(one["included"]) else shown)
            rows.append([label, *cells])
    return table(["predictor", *student.SCHOOLS], rows)


def complete(pupils: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """The pupils without the attributes that some of them lack, and the names of these."""
    gaps = student.gaps(pupils)
    return [{name: value for name, value in pupil.items() if name not in gaps} for pupil in pupils], gaps


def subject(title: str, before: str, after: str, repeats: int, data: Path) -> list[str]:
    """The pupils of one subject."""
    file = next(name for name, of in student.SUBJECTS.items() if of == title)
    pupils, gaps = complete(student.pupils_of(data, file))
    splits, rows = [schools(pupils, seed) for seed in range(repeats or 8)], []
    for name, (fit_by, model) in WAYS.items():
        if title == "Portuguese" or name in BRIEF:
            without = f" without {', '.join(gaps)}" if gaps else ""
            named = [f"{title}{without} {name} {seed}" for seed in range(len(splits))]
            found = [kept(one, partial(fit_by, model, each)) for one, each in zip(named, splits, strict=True)]
            rows.append(way_row(name, [Schools(**each) for each in found]))
            told(*rows[-1])
    by_school = [f"{what} {name}" for what in ("RMSE", "density", "included") for name in student.SCHOOLS]
    lines = [wrapped(before)] if before else []
    if gaps:
        lines.append(wrapped(f"Left out, since cells are missing: {', '.join(f'`{gap}`' for gap in gaps)}."))
    lines += ["Means over splits, A-RMSE with its sd over them:\n"]
    lines += table(["", "A-RMSE", *by_school, "splits", "converged"], rows)
    lines += [wrapped(CHOSEN_TEXT), *chosen(pupils)]
    return [*lines, wrapped(after)] if after else lines


# NUTS -----------------------------------------------------------------------------------------------------------------


def joint(x: Array, y: Array, real: Array, penalty: str) -> None:
    """All clients' lasso or ridge in one program: ``x`` has shape ``(K, n, d)``, ``real`` tells its rows."""
    lam = numpyro.sample("lam", dist.LogNormal(0.0, 1.0))
    sigma2 = numpyro.sample("sigma2", dist.LogNormal(0.0, 1.0))
    shape = (x.shape[0], x.shape[2])
    if penalty == "lasso":
        law: dist.Distribution = dist.Laplace(0.0, jnp.sqrt(sigma2) / lam)
    else:
        law = dist.Normal(0.0, jnp.sqrt(sigma2 / lam))
    theta = numpyro.sample("theta", law.expand(shape).to_event(2))
    with numpyro.handlers.mask(mask=real):
        numpyro.sample("y", dist.Normal(jnp.einsum("knd,kd->kn", x, theta), jnp.sqrt(sigma2)), obs=y)


def stacked(clients: Clients) -> dict[str, Array]:
    """Rows of all clients, filled up with zeros."""
    most = max(len(client["y"]) for client in clients.values())

    def filled(array: Array) -> Array:
        return np.concatenate([array, np.zeros((most - len(array), *array.shape[1:]))])

    found = {name: np.stack([filled(client[name]) for client in clients.values()]) for name in ("x", "y")}
    real = np.stack([np.arange(most) < len(client["y"]) for client in clients.values()])
    return {**found, "real": real}


class Sampled(NamedTuple):
    """NUTS's draws by site, shape ``(chains, draws, ...)``, and its time after compilation."""

    draws: dict[str, Array]
    seconds: float
    r_hat: float
    effective: float


def by_nuts(clients: Clients, penalty: str, draws: int, chains: int = 4) -> Sampled:
    """Pooled NUTS."""
    with jax.enable_x64(True):
        mcmc = MCMC(
            NUTS(partial(joint, penalty=penalty), target_accept_prob=0.8),
            num_warmup=500,
            num_samples=draws,
            num_chains=chains,
            chain_method="sequential",
            progress_bar=False,
            jit_model_args=True,
        )
        rows = {name: jnp.asarray(value) for name, value in stacked(clients).items()}
        for seed in (0, 1):  # the first run compiles
            begin = time.perf_counter()
            mcmc.run(jax.random.key(seed), **rows)
            found = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
            seconds = time.perf_counter() - begin
    every = np.concatenate([value.reshape(*value.shape[:2], -1) for value in found.values()], axis=2)
    return Sampled(found, seconds, float(split_gelman_rubin(every).max()), float(effective_sample_size(every).min()))


class Timed(NamedTuple):
    """A fit, draws of its coefficients, and seconds."""

    fit: fb.FederatedFit
    theta: Array
    first: float  # compilation and clients' posteriors included
    rounds: float  # of the second call
    both: float  # clients' posteriors included


def timed_fit(model: Callable, clients: Clients, options: Mapping[str, Any]) -> Timed:
    """Twice; the first call begins with nothing compiled, in memory or on disk."""
    jax.clear_caches()
    jax.config.update("jax_enable_compilation_cache", False)
    times = []
    for seed in (0, 1):
        begin = time.perf_counter()
        fit = fitted(model, clients, seed, **options)
        after = time.perf_counter()
        theta = coefficients(fit)
        times.append((after - begin, time.perf_counter() - begin))
    return Timed(fit, theta, times[0][1], *times[1])


def compared(
    name: str, penalty: str, clients: Clients, draws: int, options: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Lines of the two tables: errors, times."""
    mine = timed_fit({"lasso": lasso, "ridge": ridge}[penalty], clients, options)
    told(name, "fit", *(f"{value:.2f}" for value in mine[2:]), mine.fit.converged)
    other = by_nuts(clients, penalty, draws)
    told(name, "NUTS", f"{other.seconds:.1f}", other.r_hat, other.effective)
    reference = other.draws["theta"].reshape(-1, *other.draws["theta"].shape[2:])
    error = np.abs(mine.theta.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0)
    ratio = mine.theta.std(axis=0) / reference.std(axis=0)
    cells = [name, f"{np.sqrt(np.mean(error**2)):.3f}", f"{error.max():.3f}"]
    cells += [f"{ratio.mean():.3f}", f"{ratio.min():.3f} to {ratio.max():.3f}"]
    known = mine.fit.client_posterior(mine.fit.client_names[0]).posterior  # `fit.idata` takes its log-likelihoods too
    for site in ("lam", "sigma2"):
        ours, theirs = (np.log(each) for each in (known[site].values, other.draws[site]))
        cells += [f"{(ours.mean() - theirs.mean()) / theirs.std():+.3f}", f"{ours.std() / theirs.std():.3f}"]
    cells += [f"{other.r_hat:.3f}", f"{other.effective:,.0f}", "yes" if mine.fit.converged else "no"]
    seconds = [name, f"{other.seconds:.1f}", f"{mine.first:.1f}", f"{mine.both:.2f}", f"{mine.rounds:.2f}"]
    seconds += [f"{other.seconds / value:.1f}" for value in (mine.first, mine.both, mine.rounds)]
    told(*cells)
    told(*seconds)
    return cells, seconds


DEFAULT: Mapping[str, Any] = {"method": "ep", "num_draws": 1000}
MANY = {**WIDE, "num_draws": 4000}
NUTS_TEXT = """\
Coefficients of all clients against NumPyro's NUTS on one program with all clients' rows, of the same model, in float64.
Errors of means are in posterior sds of NUTS, over all clients' coefficients; sds are ratios to NUTS's. The two penalty
parameters are compared on the log scale, error of the mean and ratio of sds. NUTS runs 500 steps of warm-up and then
its draws, chain by chain. R-hat and the least number of effective draws are over everything it samples. Both sides have
Monte Carlo error: with 4,000 draws of the fit a mean has one of 0.016 sds, and an sd one of 1.1 percent. Fits are the
default's, with four replicates, but for the 30 clients: these are fitted by one replicate of `EP(num_samples=1024,
solver="importance")`.
"""
TIMES_TEXT = """\
Seconds on two cores that other work may have loaded; ratios come from one process. NUTS's are those of a second run,
compiled before, warm-up included. "First" is the first call of a fit, compilation, checks and all clients' posteriors
included; "second" is the second call, and "rounds" that without the clients' posteriors. The
last three columns are NUTS's seconds over these.
"""


def nuts(repeats: int, data: Path) -> list[str]:
    """Three data sets in one run."""
    first, _ = penalised.simulate(jax.random.key(3), 10, 100, noise_sd=1.0)
    wide = (2.0, 1.0, 0.5, 0.25, -0.25, -0.5, -1.0, -2.0) + (0.0,) * 30
    many, _ = penalised.simulate(jax.random.key(4), 30, 60, theta=wide, noise_sd=1.0)
    problems = [("10 clients, 8 predictors, lasso", "lasso", first, 2000, DEFAULT)]
    file = next(name for name, subject in student.SUBJECTS.items() if subject == "Mathematics")
    pupils = schools(student.read(data, file), None).train
    named = "2 schools, mathematics, 38 predictors"
    problems += [(f"{named}, {name}", name, pupils, 2000, DEFAULT) for name in ("lasso", "ridge")]
    problems += [("30 clients, 38 predictors, lasso", "lasso", many, 1000, MANY)]
    found = [compared(*problem) for problem in problems]
    head = ["", "means: rms", "worst", "sds: mean ratio", "range", "log lam", "sd", "log sigma2", "sd"]
    names_of_times = ["", "NUTS", "first", "second", "rounds", "NUTS / first", "NUTS / second", "NUTS / rounds"]
    return [
        wrapped(NUTS_TEXT),
        *table([*head, "R-hat", "effective draws", "fit converged"], [cells for cells, _ in found]),
        wrapped(TIMES_TEXT),
        *table(names_of_times, [seconds for _, seconds in found]),
    ]


# The page -------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, tuple[str, Callable[[int, Path], list[str]]]] = {
    "cases": ("Simulated cases", cases),
    "portuguese": ("Two schools: Portuguese", partial(subject, "Portuguese", STUDENT_TEXT, "")),
    "mathematics": ("Two schools: mathematics", partial(subject, "Mathematics", "", STUDENT_SOURCE)),
    "nuts": ("Coefficients against NUTS", nuts),
}
HEAD = """\
# Variable selection

Written by `selection.py`, section by section. Each client has coefficients of its own under a penalty that all share
(`fedbayes.models.penalised`); the source is Yue (2023), section 3.4.3. All fits are by expectation propagation with its
defaults where nothing else is said, but with one replicate in the sections of the two schools.
"""
NOTES: Mapping[str, str] = {
    "cases": """\
at the source's noise every method is least squares, whatever the penalty, and the federated fits agree with it and with
Gibbs sampling. In case III all errors are larger than those of the Gibbs runs by 0.004, which is the data sets: least
squares on the same ones has the larger error too. With more noise penalties differ: the lasso includes fewer irrelevant
predictors than least squares at no loss of relevant ones, and the horseshoe fewest, with the smallest error. The price
is coverage of the relevant coefficients, which shrinkage pulls towards zero.
""",
    "mathematics": """\
schools together, schools alone and pooled rows differ by about 0.02 in A-RMSE, as in the source; splits differ by more.
The penalties hardly differ in what they predict, but in what they include: the horseshoe fewest, ridges most. In
Portuguese pooled rows predict MS better and GP worse, and an error of its own raises both schools' densities. With two
splits none of these differences is certain.
""",
    "nuts": """\
coefficients and penalties agree with NUTS as far as Monte Carlo error lets one see: means within 0.1 sd, sds within 10
percent. Once compiled, the rounds take seconds, and a fraction of NUTS's time. With all clients' posteriors, which one
process draws here one client after the other, the fit is no faster than NUTS on pooled rows, where these may be pooled;
clients of a federation would draw theirs side by side. A first call is slower than NUTS throughout, but it has
compilation, which NUTS's time leaves out.
""",
}


def merged(page: str, sections: Mapping[str, str]) -> str:
    """The page with some sections written anew, in the parts' order."""
    notes = {PARTS[name][0]: wrapped(MARK + note) for name, note in NOTES.items()}
    return pages.merged(page, sections, HEAD, [title for title, _ in PARTS.values()], notes)


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; all, if left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Data sets or splits; 0: the part's own number.")] = 0,
    data: Annotated[Path, typer.Option(help="The folder with student-mat.csv and student-por.csv.")] = Path("data"),
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "SELECTION.md",
) -> None:
    """Measure, print, write."""
    for name in parts or PARTS:
        if name not in PARTS:
            raise typer.BadParameter(f"There is no part {name!r}; it is one of {', '.join(PARTS)}.")
        title, measure = PARTS[name]
        section = "\n".join(measure(repeats, data))
        output.write_text(merged(output.read_text() if output.exists() else "", {title: section}))


if __name__ == "__main__":
    typer.run(main)
