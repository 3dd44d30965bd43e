"""One-shot combinations, FedPA and EP on the hospitals, and NumPyro's consensus: ``python benchmarks/merging.py``.

Writes ``MERGING.md``: how far each is from the posterior, what each says of itself, and what it costs.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import typer
from federated import Federation, first_fit, mixture, rounds_of
from numpyro.infer import MCMC, NUTS
from numpyro.infer.hmc_util import consensus
from pages import head, machine, row, table
from problems import BenchmarkSet, heart_set, stacked
from references import read
from rich.console import Console
from scores import Moments, of_draws, score

import fedbayes as fb
from fedbayes.models import heart_disease

KEY = jax.random.key(0)
METHODS: Mapping[str, Any] = {
    "Laplace of the whole (5 rounds)": fb.Laplace(),
    "one-shot laplace (as BFI)": fb.OneShot(combine="laplace", num_replicates=1),
    "one-shot laplace, prior split": fb.OneShot(combine="laplace", prior="split", num_replicates=1),
    "one-shot gaussian_product": fb.OneShot(combine="gaussian_product"),
    "one-shot gaussian_product, prior whole": fb.OneShot(combine="gaussian_product", prior="whole"),
    "one-shot consensus": fb.OneShot(combine="consensus"),
    "one-shot density_product": fb.OneShot(combine="density_product"),
    "one-shot wasserstein": fb.OneShot(combine="wasserstein"),
    "FedPA, draws of the whole subposterior": fb.FedPA(),
    "FedPA, 200 Langevin samples": fb.FedPA(solver="sgld", num_samples=200, local_steps=2020, estimator="sample"),
    "FedAvg (FedPA with one sample)": fb.FedPA(solver="iasg", num_samples=1, local_steps=50, num_replicates=1),
}
STARTS = ("prior", "laplace", "newton", "mode")
NUM_ROWS, NUM_SHARDS, SIZE = 10_000, 20, 5


class Line(NamedTuple):
    """One row of the table of errors."""

    method: str
    rounds: str
    rms: float
    sds: str
    kl: float
    measured: str


def weak_heart(x: Any, y: Any = None) -> None:
    """The hospitals' logistic regression under priors so wide that small hospitals know next to nothing alone."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 20.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


def shard_regression(x: Any, y: Any = None, share: float = 1.0) -> None:
    """Linear regression with unknown noise; the prior to the power ``share``."""
    with numpyro.handlers.scale(scale=share):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ beta, jax.numpy.exp(log_sd)), obs=y)


def shard_heart(x: Any, y: Any = None, share: float = 1.0) -> None:
    """The hospitals' model, the prior to the power ``share``."""
    with numpyro.handlers.scale(scale=share):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


def shards() -> BenchmarkSet:
    """10,000 rows in 20 shards, dealt out at random."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(NUM_ROWS, SIZE))
    y = x @ np.linspace(-1.0, 1.0, SIZE) + 0.7 * rng.normal(size=NUM_ROWS)
    clients = {
        f"shard{k}": {"x": a, "y": b}
        for k, (a, b) in enumerate(zip(np.split(x, NUM_SHARDS), np.split(y, NUM_SHARDS), strict=True))
    }
    pooled = stacked(clients)
    return BenchmarkSet("shards-20", shard_regression, clients, shard_regression, pooled, ("beta", "log_sd"), False)


def fitted(model: Callable, clients: Any, method: Any, **options: Any) -> fb.FederatedFit:
    """A fit without its warnings: that merges are off is what is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fb.fit_federated(model, clients, method=method, key=KEY, progress=False, **options)


def moments(fit: fb.FederatedFit) -> Moments:
    """Of the replicates' mixture, as in ``fit.idata``."""
    return mixture(*fit.moments())


def by_phase(fit: fb.FederatedFit) -> str:
    """Rounds by phase, in words."""
    return " + ".join(f"{count} {name}" for name, count in rounds_of(fit).items())


def line(name: str, fit: fb.FederatedFit, reference: Moments) -> Line:
    """Errors against the reference, and what the fit says of its own."""
    found, measured = score(moments(fit), reference), "-"
    if "merge_error" in fit.rounds:
        error, k_hat = (float(fit.rounds[what][-1].max()) for what in ("merge_error", "merge_k_hat"))
        measured = f"{error:.2g} (k-hat {k_hat:.2f})" if k_hat <= 1.0 else f"too large (k-hat {k_hat:.1f})"
    sds = f"{found.least_sd_ratio:.3f} - {found.largest_sd_ratio:.3f}"
    return Line(name, by_phase(fit), found.rms, sds, found.kl, measured)


def hospitals(quick: bool) -> list[Line]:
    """Every method, and EP and FedPA by round."""
    reference, clients, model = read("heart").moments, heart_disease.clients(), heart_disease.model
    chosen = dict(list(METHODS.items())[:2]) if quick else METHODS
    lines = [line(name, fitted(model, clients, method), reference) for name, method in chosen.items()]
    for num in (1,) if quick else (1, 2, 3, 6):
        fit = fitted(model, clients, fb.EP(init="prior", tolerance=1e-9), num_rounds=num)
        lines.append(line(f"EP from the prior, round {num}", fit, reference))
    for num in (1,) if quick else (1, 3):
        # its opening round is one of EP's
        fit = fitted(model, clients, fb.EP(init="laplace", tolerance=1e-9), num_rounds=num + 1)
        lines.append(line(f"EP from the clients' Laplace approximations, round {num}", fit, reference))
    return lines


def starts(quick: bool) -> list[str]:
    """Rounds to EP's tolerance from each start, under the usual priors and under next to none."""
    rows = []
    clients = heart_disease.clients()
    for words, model in (("N(0, 1), intercept N(0, 5)", heart_disease.model), ("N(0, 20), N(0, 100)", weak_heart)):
        cells = []
        for init in STARTS[:2] if quick else STARTS:
            fit = fitted(model, clients, fb.EP(init=init))
            cells.append(f"{by_phase(fit)}{'' if fit.converged else ', not converged'}")
        rows.append(row(words, *cells))
    return rows


def tutorial(problem: BenchmarkSet, model: Callable, num_draws: int) -> tuple[float, Moments]:
    """NumPyro's consensus as its tutorial has it: shard after shard, each compiled by itself."""
    jax.clear_caches()
    started, draws = time.perf_counter(), []
    num = len(problem.clients)
    with jax.enable_x64(True):
        for k, data in enumerate(problem.clients.values()):
            chain = MCMC(NUTS(partial(model, share=1.0 / num)), num_warmup=500, num_samples=num_draws,
                         progress_bar=False)  # fmt: skip
            chain.run(jax.random.key(k), **data)
            draws.append(problem.flat(chain.get_samples()))
        merged = np.asarray(consensus(draws, num_draws, diagonal=False, rng_key=KEY))
    return time.perf_counter() - started, of_draws(merged)


def pooled_reference(problem: BenchmarkSet, num_draws: int) -> Moments:
    """Pooled NUTS."""
    with jax.enable_x64(True):
        chain = MCMC(NUTS(problem.pooled_model), num_warmup=500, num_samples=num_draws, progress_bar=False)
        chain.run(KEY, **problem.pooled_data)
        return of_draws(problem.flat(chain.get_samples()))


def speed(quick: bool) -> list[str]:
    """Consensus: seconds of a whole first call, compilation included, and of our compiled rounds alone."""
    num_draws, rows = 100 if quick else 1000, []
    both = [(heart_set(), shard_heart, read("heart").moments)]
    if not quick:
        twenty = shards()
        both.append((twenty, shard_regression, pooled_reference(twenty, 20_000)))
    for problem, model, reference in both:
        theirs, found = tutorial(problem, model, num_draws)
        rows.append(
            _speed_row(problem.name, f"NumPyro, {num_draws} draws a shard", theirs, None, found, reference, None)
        )
        for name, method in (
            ("fedbayes, 4 x 1,024 draws", fb.OneShot(combine="consensus")),
            ("fedbayes, 1,024 draws", fb.OneShot(combine="consensus", num_replicates=1, check=False)),
        ):
            cold, fit = first_fit(problem, KEY, method)
            federation = Federation(problem, method)
            federation.run(KEY)
            warm = federation.run(KEY)[-1].seconds
            rows.append(_speed_row(problem.name, name, cold, warm, moments(fit), reference, theirs))
    return rows


def _speed_row(
    set_: str, name: str, cold: float, warm: float | None, found: Moments, reference: Moments, theirs: float | None
) -> str:
    seen = score(found, reference)
    ratios = "-" if theirs is None or warm is None else f"{theirs / cold:.1f} / {theirs / warm:,.0f}"
    warm_text = "-" if warm is None else f"{warm:.2f}"
    return row(set_, name, f"{cold:.1f}", warm_text, ratios, f"{seen.rms:.2g}", f"{seen.kl:.2g}")


def markdown(lines: list[Line], starting: list[str], speeds: list[str]) -> str:
    """``MERGING.md``."""
    rows = [(a, b, f"{c:.2g}", d, f"{e:.2g}", f) for a, b, c, d, e, f in lines]
    columns = ("set", "program", "s", "s, compiled", "times faster, first call / compiled", "rms error, sds", "KL")
    return "\n".join(
        [
            "# Merging the hospitals' posteriors",
            "",
            f"Written by `merging.py`. {machine()}",
            "",
            "## Error by method",
            "",
            "Four hospitals, 740 patients, 14 coefficients; errors of the means in sds of the posterior of the pooled",
            "data (root mean square), sds as ratios, KL in nats. *Measured* is what the fit itself finds in its extra",
            "round, without the pooled data: it can be trusted up to k-hat 0.7 and is rough up to 1. Of others on the",
            "same data: NumPyro's consensus 0.79 and KL 3.3, the R package BFI 0.66 and KL 3.5.",
            "",
            *table(("method", "rounds", "rms error, sds", "sd ratios", "KL", "measured by itself"), rows),
            "## Rounds to EP's tolerance, by its start",
            "",
            *head(["priors", *(f"`init={start!r}`" for start in STARTS)]),
            *starting,
            "",
            "## Consensus against NumPyro's own",
            "",
            "NumPyro as in its tutorial: one `MCMC` a shard, one after the other, each compiled by itself, 500 steps",
            "of warm-up. *s* is a whole first call with compilation; *s, compiled* the rounds of a further run; ratios",
            "are NumPyro's whole call over these.",
            "",
            *head(columns),
            *speeds,
            "",
        ]
    )


def main(
    quick: Annotated[bool, typer.Option(help="Small budgets, nothing written: does everything run?")] = False,
) -> None:
    """Measure, print, and write."""
    jax.config.update("jax_enable_x64", True)
    text = markdown(hospitals(quick), starts(quick), speed(quick))
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if not quick:
        (Path(__file__).parent / "MERGING.md").write_text(text)


if __name__ == "__main__":
    typer.run(main)
