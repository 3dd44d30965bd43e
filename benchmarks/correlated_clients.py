"""Correlated clients: the source's simulation E3.1, two schools and turbofan engines; Algorithm 3.1, ours, the oracle.

    python benchmarks/correlated_clients.py --data PATH                       # writes CORRELATED_CLIENTS.md
    python benchmarks/correlated_clients.py --part simulation --case III      # resumes; two hours for all four cases
    python benchmarks/correlated_clients.py --part table                      # the simulation's table, of what is there
    python benchmarks/correlated_clients.py --part sweeps                     # two minutes; against a NumPy loop

PATH is the folder with ``student-mat.csv`` (Cortez and Silva 2008) and ``cmapss_train_FD001.txt`` (Saxena and Goebel
2008), which are not part of fedbayes; what is not there is left out, and the page says so. A part that runs replaces
its section of the page; the others stay. What the simulation finds of each data set goes to
``correlated_clients.json`` at once. The source is Yue (2023), tables 3.1, 3.3 and 3.4. Noise sd 0.1 and noiseless test
targets are the conventions under which its table 3.1 comes out.
"""

import csv
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pages
import typer
from correlated_sweeps import compared as sweeps_compared
from correlated_sweeps import simulated_sites
from pages import wrapped

import fedbayes as fb
from fedbayes.theory.correlated import source_algorithm

HERE = Path(__file__).resolve().parent
STORED = HERE / "correlated_clients.json"
KEY = jax.random.key(0)
SD, SIZE, NUM = 0.1, 8, 100
NOMINAL = ("Mjob", "Fjob", "reason", "guardian")
OURS = {"num_chains": 2, "solver": "laplace"}
CASES = {"II": [40] * 30 + [275] * 70, "III": [20] * NUM, "IV": [200] * NUM}
SWEEPS = [
    (4, 5, 2, False),
    (10, 8, 3, False),
    (30, 20, 5, False),
    (100, 8, 3, False),
    (100, 8, 8, False),
    (100, 8, 8, True),
]
OF_SWEEPS = 300, 2000  # warm-up, and those that count
SOURCE = {"I": ("0.081", "0.094"), "II": ("0.050", "0.056"), "III": ("0.044", "0.072"), "IV": ("0.035", "0.035")}
SOURCE_ENGINES = {2: (0.299, 0.270), 3: (0.223, 0.218), 7: (0.405, 0.369), 8: (0.307, 0.267)}


def _regression(sd: float):
    def model(x: np.ndarray, y: np.ndarray | None = None) -> None:
        with fb.local():
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ theta, sd), obs=y)

    return model


KNOWN, HALF = _regression(SD), _regression(0.05)


def shared_noise(x: np.ndarray, y: np.ndarray | None = None) -> None:
    """A common mean of the coefficients and a common noise sd."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (mu + z), sd), obs=y)


class Simulated(NamedTuple):
    """One data set of E3.1."""

    clients: dict[str, dict[str, np.ndarray]]
    theta: np.ndarray
    omega: np.ndarray
    sd: float


def simulate(rows: list[int], omega: np.ndarray, size: int, sd: float, seed: int) -> Simulated:
    rng = np.random.default_rng(seed)
    theta = np.linalg.cholesky(omega) @ rng.normal(size=(len(rows), size))
    clients = {}
    for k, num in enumerate(rows):
        x = rng.normal(size=(num, size))
        clients[f"c{k}"] = {"x": x, "y": x @ theta[k] + sd * rng.normal(size=num)}
    return Simulated(clients, theta, omega, sd)


def strong(rank: int, seed: int) -> np.ndarray:
    """``A A' / q + 1e-4 I``."""
    loadings = np.random.default_rng([seed, rank]).normal(size=(NUM, rank))
    return loadings @ loadings.T / rank + 1e-4 * np.eye(NUM)


def weak(seed: int) -> np.ndarray:
    """Eigenvalues between 1 and 10, as clusterGeneration's defaults draw them."""
    rng = np.random.default_rng([seed, 99])
    axes = np.linalg.qr(rng.normal(size=(NUM, NUM)))[0]
    return (axes * rng.uniform(1.0, 10.0, NUM)) @ axes.T


def posterior_given(data: Simulated, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of all coefficients given Omega and the noise: the oracle where Omega is the truth."""
    num, size = data.theta.shape
    precision, shift = np.kron(np.linalg.inv(omega), np.eye(size)), np.zeros(num * size)
    for k, each in enumerate(data.clients.values()):
        own = slice(k * size, (k + 1) * size)
        precision[own, own] += each["x"].T @ each["x"] / data.sd**2
        shift[own] = each["x"].T @ each["y"] / data.sd**2
    covariance = np.linalg.inv(precision)
    return (covariance @ shift).reshape(num, size), np.sqrt(np.diag(covariance)).reshape(num, size)


def alone(data: Simulated) -> np.ndarray:
    """Ordinary least squares."""
    return np.stack([np.linalg.lstsq(each["x"], each["y"], rcond=None)[0] for each in data.clients.values()])


def by_steps(data: Simulated, steps: int = 600, batch: int = 8, rate: float = 0.01) -> np.ndarray:
    """Separate stochastic gradient descent."""
    rng, found = np.random.default_rng(1), []
    for each in data.clients.values():
        theta = rng.normal(size=each["x"].shape[1])
        for _ in range(steps):
            rows = rng.choice(len(each["y"]), batch, replace=False)
            theta += 2 * rate * each["x"][rows].T @ (each["y"][rows] - each["x"][rows] @ theta)
        found.append(theta)
    return np.stack(found)


def algorithm_3_1(clients: dict, rate: float = 0.01) -> np.ndarray:
    """The coefficients at which the source's algorithm stops."""
    return source_algorithm(((each["x"], each["y"]) for each in clients.values()), step_size=rate, seed=1)[0]


def fitted(model, clients, *, rounds: int | None = None, **options) -> fb.FederatedFit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)
        return fb.fit_federated(
            model, clients, method=fb.CorrelatedClients(**options), key=KEY, progress=False, num_rounds=rounds
        )


def by_client(fit: fb.FederatedFit) -> np.ndarray:
    """Draws of all clients' coefficients, one after the other."""
    posterior = fit.idata.posterior
    name = next(name for name in posterior.data_vars if str(name).endswith("_by_client"))
    values = posterior[name].values
    return values.reshape(-1, *values.shape[2:])


def error(estimate: np.ndarray, theta: np.ndarray, members: slice) -> float:
    """A-RMSE on noiseless targets with standard normal inputs."""
    return float(np.sqrt(((estimate - theta)[members] ** 2).sum(axis=1)).mean())


class Row(NamedTuple):
    """One data set's results."""

    ols: float
    steps: float
    smoothed: float
    ours: float
    oracle: float
    covered: float
    covered_point: float
    seconds: float


def one(data: Simulated, members: slice, model) -> Row:
    started = time.perf_counter()
    fit = fitted(model, data.clients, **OURS)
    draws = by_client(fit)
    seconds = time.perf_counter() - started
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    omega = fit.idata.posterior["omega"].mean(("chain", "draw")).values
    mean, sd = posterior_given(data, omega)
    inside = (low < data.theta) & (data.theta < high)
    inside_point = np.abs(mean - data.theta) < 1.645 * sd
    smoothed = algorithm_3_1(data.clients)
    return Row(
        error(alone(data), data.theta, members),
        error(by_steps(data), data.theta, members),
        error(smoothed, data.theta, members),
        error(draws.mean(axis=0), data.theta, members),
        error(posterior_given(data, data.omega)[0], data.theta, members),
        float(inside[members].mean()),
        float(inside_point[members].mean()),
        seconds,
    )


def mean_row(rows: list[Row]) -> list[str]:
    """Means over data sets, of errors with their standard errors."""
    values = np.array(rows)
    means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return (
        [f"{mean:.3f} ± {error:.3f}" for mean, error in zip(means[:5], errors[:5], strict=True)]
        + [f"{100 * value:.0f} %" for value in means[5:7]]
        + [f"{means[7]:.0f} s", f"{len(rows)}"]
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(pages.table(header, rows)).strip()


class Setting(NamedTuple):
    """A line of the simulation's table.

    Attributes
    ----------
    case, omega
        Its name.
    times
        Data sets for each repeat.
    one
        ``(seed) -> row``.
    """

    case: str
    omega: str
    times: int
    one: Callable[[int], Row]


def settings() -> Iterator[Setting]:
    """All lines, in their order."""
    pair = np.array([[1.0, 0.7], [0.7, 1.0]])
    yield Setting("I", "2 x 2, 0.7", 4, lambda seed: one(simulate([20, 200], pair, 5, 0.05, seed), slice(1), HALF))
    for case, counts in CASES.items():
        members = slice(30) if case == "II" else slice(None)
        for name, make in [(f"q = {q}", lambda s, q=q: strong(q, s)) for q in (1, 3, 5)] + [("weak", weak)]:

            def of_seed(seed: int, counts=counts, make=make, members=members) -> Row:
                return one(simulate(counts, make(seed), SIZE, SD, seed), members, KNOWN)

            yield Setting(case, name, 1, of_seed)


def stored() -> dict[str, list[list[float]]]:
    """What is known of each setting, data set by data set."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def measure(repeats: int, cases: list[str]) -> None:
    """The data sets that are missing."""
    for each in (each for each in settings() if each.case in cases):
        name = f"{each.case}, {each.omega}"
        for seed in range(len(stored().get(name, [])), each.times * repeats):
            found = each.one(seed)
            known = stored()
            known.setdefault(name, []).append([float(f"{value:.6g}") for value in found])
            beside = STORED.with_suffix(".new")
            beside.write_text(json.dumps(known, indent=1) + "\n")
            beside.replace(STORED)
            print(name, seed, *(f"{value:.4g}" for value in found), flush=True)


def simulation() -> str:
    """The table of what is stored."""
    header = ["case", "Omega", "OLS", "separate SGD", "Algorithm 3.1", "ours", "oracle"]
    header += ["ours: 90 % hold", "point Omega: 90 % hold", "time", "data sets", "source: Alg. 3.1 / separate"]
    known = stored()
    rows = [
        [each.case, each.omega, *mean_row(found), " / ".join(SOURCE[each.case])]
        for each in settings()
        if len(found := [Row(*values) for values in known.get(f"{each.case}, {each.omega}", [])]) > 1
    ]
    return table(header, rows)


def held_out(estimates: np.ndarray, test: dict[str, dict[str, np.ndarray]]) -> float:
    """Mean over the clients of the RMSE on their held-out rows."""
    errors = [
        np.sqrt(np.mean((each["x"] @ theta - each["y"]) ** 2))
        for theta, each in zip(estimates, test.values(), strict=True)
    ]
    return float(np.mean(errors))


def compared(train: dict, test: dict, rate: float) -> list[str]:
    """Held-out errors of separate fits, Algorithm 3.1 and ours."""
    ols = np.stack([np.linalg.lstsq(each["x"], each["y"], rcond=None)[0] for each in train.values()])
    smoothed = algorithm_3_1(train, rate=rate)
    started = time.perf_counter()
    fit = fitted(shared_noise, train, num_chains=2)
    seconds = time.perf_counter() - started
    ours = by_client(fit).mean(axis=0) + fit.idata.posterior["mu"].mean(("chain", "draw")).values
    state = "" if fit.converged else f" (not converged: R-hat {fit.rounds.attrs['r_hat']:.2f})"
    return [f"{held_out(each, test):.3f}" for each in (ols, smoothed)] + [
        f"{held_out(ours, test):.3f}{state}",
        f"{seconds:.0f} s",
    ]


def schools(folder: Path) -> str:
    """Mathematics, 60 / 40 within each school, as the source has it."""
    if not (folder / "student-mat.csv").is_file():
        return f"Left out: '{folder}' holds no `student-mat.csv`."
    with (folder / "student-mat.csv").open(newline="") as file:
        pupils = list(csv.DictReader(file, delimiter=";"))
    gaps = sorted({column for pupil in pupils for column, value in pupil.items() if value in ("", "?", None)})
    if gaps:
        return f"Left out: `student-mat.csv` in '{folder}' has missing values in {gaps}, and the original has none."
    columns = [np.ones(len(pupils))]
    for name in (name for name in pupils[0] if name not in ("G1", "G2", "G3", "school")):
        values = [pupil[name].strip('"') for pupil in pupils]
        levels = sorted(set(values))
        if name not in NOMINAL and len(levels) > 2:
            numbers = np.array(values, float)
            columns.append((numbers - numbers.mean()) / numbers.std())
        else:
            columns += [np.array([value == level for value in values], float) for level in levels[1:]]
    x, y = np.column_stack(columns), np.array([float(pupil["G3"].strip('"')) for pupil in pupils])
    y = (y - y.mean()) / y.std()
    rng, train, test = np.random.default_rng(0), {}, {}
    for school in ("GP", "MS"):
        rows = rng.permutation([i for i, pupil in enumerate(pupils) if pupil["school"].strip('"') == school])
        cut = int(0.6 * len(rows))
        train[school], test[school] = ({"x": x[part], "y": y[part]} for part in (rows[:cut], rows[cut:]))
    cells = compared(train, test, 0.001)
    note = "The source's table 3.3 is of its other model (lasso 0.825, ridge 0.817, centralised 0.820 and 0.815)."
    header = ["pupils", "separate (OLS)", "Algorithm 3.1", "ours", "time"]
    return table(header, [[f"{x.shape[1]} coefficients, two schools", *cells]]) + "\n\n" + wrapped(note)


def engines(folder: Path) -> str:
    """First 60 percent of each engine's cycles against the rest; Legendre polynomials in time over the longest life."""
    path = folder / "cmapss_train_FD001.txt"
    if not path.is_file():
        return f"Left out: '{folder}' holds no `cmapss_train_FD001.txt`."
    every, rows = np.loadtxt(path), []
    for sensor in (2, 3, 7, 8):
        train, test = {}, {}
        value = every[:, 4 + sensor]
        value = (value - value.mean()) / value.std()
        for engine in np.unique(every[:, 0]):
            mine = every[:, 0] == engine
            at = 2.0 * every[mine, 1] / every[:, 1].max() - 1.0
            x, y = np.polynomial.legendre.legvander(at, 6), value[mine]
            cut = int(0.6 * len(y))
            train[f"e{engine:.0f}"], test[f"e{engine:.0f}"] = {"x": x[:cut], "y": y[:cut]}, {"x": x[cut:], "y": y[cut:]}
        separate, first = SOURCE_ENGINES[sensor]
        rows.append([f"sensor {sensor}", *compared(train, test, 0.01), f"{first} / {separate}"])
        print(rows[-1], flush=True)
    header = ["signal", "separate (OLS)", "Algorithm 3.1", "ours", "time", "source: Alg. 3.1 / separate"]
    return table(header, rows)


def sweeps() -> str:
    """The chain of the server against the same in NumPy."""
    rows = []
    for num, size, rank, common in SWEEPS:
        found = sweeps_compared(simulated_sites(num, size, 60, common=common), rank, *OF_SWEEPS)
        per_sweep = [f"{1e3 * seconds / sum(OF_SWEEPS):.2f}" for seconds in (found.by_numpy, found.ours)]
        what = f"{num} clients, {size} coefficients, rank {rank}" + ", common mean" * common
        rows.append([what, *per_sweep, f"{found.by_numpy / found.ours:.1f}", f"{found.apart:.3f}"])
        print(rows[-1], flush=True)
    note = (
        f"One chain of {sum(OF_SWEEPS):,} sweeps by the server, compiled, and by NumPy with all clients at once "
        "(`correlated_sweeps.py`), from the same sites and the same start; of three runs the quickest counts. *Apart* "
        f"is how far the means over the last {OF_SWEEPS[1]:,} sweeps differ, root mean square over all coefficients. A "
        "common mean is added to them, since the data tell the sum alone."
    )
    header = ["problem", "NumPy, ms a sweep", "ours, ms a sweep", "NumPy / ours", "apart, posterior sds"]
    return table(header, rows) + f"\n\n{wrapped(note)}\n{pages.machine()}"


TITLES = {
    "schools": "Two schools",
    "engines": "Turbofan engines",
    "simulation": "Simulation E3.1",
    "sweeps": "Sweeps of the chain",
}
HEAD = "# Correlated clients\n\n" + wrapped(
    "Made by `python benchmarks/correlated_clients.py`. Errors are A-RMSE: the root mean square error of a client's "
    "predictions, averaged over clients. In the simulation they are means over data sets with their standard errors; "
    "the source has 30 data sets. Targets are noiseless, the noise sd is 0.1 (case I: 0.05), Algorithm 3.1 has batches "
    "of 8. The oracle knows Omega. 'Point Omega' is the Gaussian posterior of the coefficients given the posterior "
    "mean of Omega, as if that were known."
)


def main(
    data: Annotated[Path, typer.Option(help="Folder with the two data sets.")] = Path("data"),
    part: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(TITLES)}, table; all, if left out.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Of the simulation: I, II, III, IV; all, if left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Data sets of a setting; of case I four times as many.")] = 30,
    out: Annotated[Path, typer.Option(help="What to write.")] = HERE / "CORRELATED_CLIENTS.md",
) -> None:
    """Measure, and write."""

    def simulated() -> str:
        measure(repeats, case or ["I", *CASES])
        return simulation()

    makers: Mapping[str, Callable[[], str]] = {
        "schools": lambda: schools(data),
        "engines": lambda: engines(data),
        "simulation": simulated,
        "sweeps": sweeps,
        "table": simulation,
    }
    for name in part or TITLES:
        body = makers[name]()
        section = {TITLES.get(name, TITLES["simulation"]): body if body.startswith("|") else wrapped(body)}
        page = out.read_text() if out.exists() else ""
        out.write_text(pages.merged(page, section, HEAD, list(TITLES.values()), {}))


if __name__ == "__main__":
    typer.run(main)
