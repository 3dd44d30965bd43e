"""What EP's start costs: exchanges to convergence, and the error it ends with.

    python benchmarks/ep_start.py                                   # every set, init auto and mode, about 15 minutes
    python benchmarks/ep_start.py heart "few rows 60" --seeds 1     # two sets, one fit each
    python benchmarks/ep_start.py heart --init laplace --init newton --init prior

Prints a Markdown table, a line for each set and start as it is measured. An exchange is a round of any phase: a message
to every client and one back. With ``init="laplace"`` the opening round is one of EP's; ``"newton"`` and ``"mode"`` have
a phase before EP. "auto" becomes "laplace" or "newton" from what the server knows of the clients
(:meth:`fedbayes.EP.start`); the column says which.

References: the files of ``references/``; importance sampling of the pooled posterior for other models without local
latents; and for the hierarchical linear regressions a long EP fit (4,096 draws, tolerance 1e-3), so that their error is
the distance from EP's own fixed point, not from the posterior. Errors of the means are in posterior sds, root mean
square over the globals, the worst of the seeds.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import typer
from federated import mixture, rounds_of
from pages import head, row
from problems import SEED, BenchmarkSet, heart_set, logistic_set, stacked
from references import by_importance, read
from scores import Moments, Score, score

import fedbayes as fb
from fedbayes.models import hierarchical_linear
from fedbayes.problem.problem import make_problem

DEFAULT_STARTS = ("auto", "mode")
COLUMNS = ("set", "init", "start", "exchanges", "by phase", "converged", "rms error, sds", "sd ratios")

Prior = Callable[[int], dist.Distribution]


class Case(NamedTuple):
    """A model, its clients, and the moments that a fit should have.

    Attributes
    ----------
    model, clients
        What `fedbayes.fit_federated` takes.
    reference
        Finds the moments of the unconstrained globals; slow.
    """

    model: Callable[..., None]
    clients: Mapping[str, Mapping[str, Any]]
    reference: Callable[[], Moments]


class Outcome(NamedTuple):
    """One fit: its rounds by phase, whether it converged, its error, or what it raised."""

    rounds: Mapping[str, int]
    converged: bool
    error: Score | None
    raised: str = ""

    @property
    def exchanges(self) -> int:
        """Rounds of all phases."""
        return sum(self.rounds.values())


# ---- sets -----------------------------------------------------------------------------------------------------------


def regression(prior: Prior, outcome: Callable[[jax.Array], dist.Distribution]) -> Callable[..., None]:
    """A generalised linear model with this prior of the coefficients and distribution of the outcomes."""

    def model(x: Any, y: Any = None) -> None:
        beta = numpyro.sample("beta", prior(x.shape[1]))
        numpyro.sample("y", outcome(x @ beta), obs=y)

    return model


def normal(sd: float) -> Prior:
    """Independent ``N(0, sd)``."""
    return lambda size: dist.Normal(0.0, sd).expand([size]).to_event(1)


def flat(size: int) -> dist.Distribution:
    """The improper uniform."""
    return dist.ImproperUniform(dist.constraints.real_vector, (), (size,))


def bernoulli(logits: jax.Array) -> dist.Distribution:
    """Outcomes of a logistic regression."""
    return dist.Bernoulli(logits=logits)


def poisson(logs: jax.Array) -> dist.Distribution:
    """Outcomes of a log-linear regression."""
    return dist.Poisson(jnp.exp(logs))


def pooled(model: Callable[..., None], clients: Mapping[str, Any]) -> Case:
    """A set without locals: the pooled posterior is that of the same model on all rows."""
    everything = BenchmarkSet("pooled", model, clients, model, stacked(clients), ("beta",), False)
    return Case(model, clients, lambda: by_importance(everything).moments)


def stored(problem: BenchmarkSet) -> Case:
    """A set of the comparison, with its stored reference."""
    return Case(problem.model, problem.clients, lambda: read(problem.name).moments)


def hospitals(prior: Prior) -> Case:
    """The four hospitals with another prior; the intercept is a column of ones."""
    clients = {
        name: {"x": np.column_stack([np.ones(len(data["y"])), data["x"]]), "y": data["y"]}
        for name, data in heart_set().clients.items()
    }
    return pooled(regression(prior, bernoulli), clients)


def hierarchy(num_clients: int) -> Case:
    """Linear regressions of 50 rows with three coefficients each: six globals."""
    model = hierarchical_linear.model
    clients, _ = hierarchical_linear.simulate(jax.random.key(SEED), num_clients=num_clients)
    method = fb.EP(init="mode", num_samples=4096, tolerance=1e-3)
    return Case(model, clients, lambda: mixture(*fit(model, clients, method, 1000).moments()))


def simulated(
    sizes: Sequence[int], outcome: Callable[[np.random.Generator, np.ndarray], np.ndarray], dim: int, scale: float = 1.0
) -> dict[str, dict[str, np.ndarray]]:
    """Clients of these rows with standard normal covariates, the first of them an intercept's ones."""
    rng = np.random.default_rng([SEED, 7, dim, len(sizes)])
    beta = scale * rng.normal(size=dim) / np.sqrt(dim)
    clients = {}
    for k, rows in enumerate(sizes):
        x = np.column_stack([np.ones(rows), rng.normal(size=(rows, dim - 1))])
        clients[f"client{k}"] = {"x": x, "y": outcome(rng, x @ beta)}
    return clients


def coins(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    """Outcomes of a logistic regression."""
    return (rng.logistic(size=len(logits)) < logits).astype(np.int32)


def counts(rng: np.random.Generator, logs: np.ndarray) -> np.ndarray:
    """Outcomes of a log-linear regression."""
    return rng.poisson(np.exp(logs)).astype(np.int32)


def few_rows(num_clients: int) -> Case:
    """Logistic regression with five coefficients, one to five rows a client."""
    sizes = [1 + k % 5 for k in range(num_clients)]
    return pooled(regression(normal(10.0), bernoulli), simulated(sizes, coins, 5, 1.5))


def one_sided() -> Case:
    """Four clients of 40 rows; one has seen no failure, and the maximum of its likelihood is at infinity."""
    clients = simulated([40] * 4, coins, 4)
    clients["client2"]["y"] = np.ones(40, np.int32)
    return pooled(regression(normal(10.0), bernoulli), clients)


def unequal() -> Case:
    """Counts at clients of 5 to 3,000 rows."""
    return pooled(regression(normal(2.0), poisson), simulated([5, 10, 30, 100, 1000, 3000], counts, 4))


CASES: Mapping[str, Callable[[], Case]] = {
    "heart": lambda: stored(heart_set()),
    "heart, N(0, 100)": lambda: hospitals(normal(100.0)),
    "heart, flat": lambda: hospitals(flat),
    "one-sided": one_sided,
    "poisson, unequal": unequal,
    "few rows 60": lambda: few_rows(60),
    "few rows 1024": lambda: few_rows(1024),
    "hierarchical linear 10": lambda: hierarchy(10),
    "hierarchical linear 32": lambda: hierarchy(32),
    "logistic-64": lambda: stored(logistic_set(64)),
}


# ---- fits -----------------------------------------------------------------------------------------------------------


def fit(model: Callable[..., None], clients: Mapping[str, Any], method: fb.EP, seed: int) -> fb.FederatedFit:
    """A fit without its warnings: whether it converged is what is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fb.fit_federated(model, clients, method=method, key=jax.random.key(seed), progress=False)


def outcome_of(case: Case, init: str, seed: int, reference: Moments) -> Outcome:
    """Fit once."""
    try:
        found = fit(case.model, case.clients, fb.EP(init=init), seed)
    except (fb.FederatedError, fb.ClientDataError, fb.ModelError) as error:
        return Outcome({}, False, None, f"{type(error).__name__}: {error}".split(". ")[0])
    return Outcome(rounds_of(found), found.converged, score(mixture(*found.moments()), reference))


def line(name: str, init: str, start: str, outcomes: Sequence[Outcome]) -> str:
    """One line of the table: fits with different keys."""
    if raised := next((outcome.raised for outcome in outcomes if outcome.raised), ""):
        cells = ["-", "-", f"raised {raised}", "-", "-"]
    else:
        errors = [outcome.error for outcome in outcomes]
        exchanges = sorted({outcome.exchanges for outcome in outcomes})
        phases = Counter(" + ".join(f"{num} {name}" for name, num in one.rounds.items()) for one in outcomes)
        cells = [
            " - ".join(map(str, dict.fromkeys([exchanges[0], exchanges[-1]]))),
            ", ".join(words for words, _ in phases.most_common()),
            f"{sum(outcome.converged for outcome in outcomes)} of {len(outcomes)}",
            f"{max(error.rms for error in errors):.2g}",
            f"{min(e.least_sd_ratio for e in errors):.3f} - {max(e.largest_sd_ratio for e in errors):.3f}",
        ]
    return row(name, f"`{init}`", start, *cells)


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CASES)}; all where none is given.")] = None,
    init: Annotated[list[str], typer.Option(help="Starts to compare.")] = list(DEFAULT_STARTS),  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Fits of a set and start, with different keys.")] = 3,
) -> None:
    """Measure and print."""
    if unknown := [name for name in names or () if name not in CASES]:
        raise typer.BadParameter(f"{unknown}: the sets are {list(CASES)}")
    jax.config.update("jax_enable_x64", True)
    print(*head(COLUMNS), sep="\n", flush=True)
    for name in names or CASES:
        began, case = time.perf_counter(), CASES[name]()
        reference, roster = case.reference(), make_problem(case.model, case.clients).roster
        for chosen in init:
            outcomes = [outcome_of(case, chosen, seed, reference) for seed in range(seeds)]
            print(line(name, chosen, fb.EP(init=chosen).start(roster), outcomes), flush=True)
        typer.echo(f"{name}: {time.perf_counter() - began:.0f} s", err=True)


if __name__ == "__main__":
    typer.run(main)
