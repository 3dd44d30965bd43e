"""Whether a fit finds separate modes, on fifteen programs that have some.

    python benchmarks/separate_modes.py

writes SEPARATE_MODES.md. Ten programs have a symmetry of signs or labels, so that the true means are known: those of
the draws and all their images together. The modes of the last five have none. Of one of these the posterior is its own
mirror image, and of the others the truth is an integral over a grid.
"""

import warnings
from collections.abc import Callable, Mapping
from itertools import permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from pages import head, row, wrapped

import fedbayes as fb

SEEDS = range(5)
RIGHT = 0.1  # error of a mean, in posterior sds, up to which it is right: some six Monte Carlo errors
STARTS = 16
Draws = dict[str, np.ndarray]  # by name, leading axis of draws


def _normal(scale: float, *shape: int) -> Any:
    return dist.Normal(0.0, scale).expand(shape).to_event(len(shape))


def squares(x: Any, y: Any = None) -> None:
    """The squares of the coefficients are seen."""
    theta = numpyro.sample("theta", _normal(2.0, x.shape[1]))
    numpyro.sample("y", dist.Normal(x @ theta**2, 1.0), obs=y)


def a_product(x: Any, y: Any = None) -> None:
    """Two globals of which the product is seen."""
    a, b = numpyro.sample("a", _normal(1.0)), numpyro.sample("b", _normal(1.0))
    numpyro.sample("y", dist.Normal(a * b * x, 1.0), obs=y)


def single_index(x: Any, y: Any = None) -> None:
    """A link whose height and direction change sign together."""
    height = numpyro.sample("height", _normal(2.0))
    slopes = numpyro.sample("slopes", _normal(1.0, x.shape[1]))
    numpyro.sample("y", dist.Normal(height * jnp.tanh(x @ slopes), 0.5), obs=y)


def mixture(num: int) -> Callable:
    """A mixture of Normals, its components in no order."""

    def model(y: Any) -> None:
        weights = numpyro.sample("weights", dist.Dirichlet(2.0 * jnp.ones(num)))
        means = numpyro.sample("means", _normal(5.0, num))
        sds = numpyro.sample("sds", dist.LogNormal(0.0, 0.5).expand([num]).to_event(1))
        parts = dist.Normal(means, sds).log_prob(y[:, None]) + jnp.log(weights)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("outcome", jax.nn.logsumexp(parts, axis=1))

    return model


def factor_model(y: Any) -> None:
    """Outcomes of one common factor, which is integrated out."""
    loadings = numpyro.sample("loadings", _normal(1.0, y.shape[1]))
    sds = numpyro.sample("sds", dist.HalfNormal(1.0).expand([y.shape[1]]).to_event(1))
    law = dist.LowRankMultivariateNormal(jnp.zeros(y.shape[1]), loadings[:, None], sds**2)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", law, obs=y)


def network(x: Any, y: Any = None) -> None:
    """A neural network with two hidden units."""
    inner, offset = numpyro.sample("inner", _normal(2.0, 2)), numpyro.sample("offset", _normal(2.0, 2))
    outer = numpyro.sample("outer", _normal(2.0, 2))
    numpyro.sample("y", dist.Normal(jnp.tanh(x[:, None] * inner + offset) @ outer, 0.2), obs=y)


def exponentials(x: Any, y: Any = None) -> None:
    """The sum of two decays, in no order."""
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    height = numpyro.sample("height", _normal(5.0, 2))
    numpyro.sample("y", dist.Normal(jnp.exp(-x[:, None] * rate) @ height, 0.1), obs=y)


def far_places(y: Any = None) -> None:
    """Cauchy outcomes at two places far from each other: no symmetry leads from one mode to the other."""
    theta = numpyro.sample("theta", _normal(10.0))
    numpyro.sample("y", dist.Cauchy(theta, 0.5), obs=y)


def wave(x: Any, y: Any = None) -> None:
    """The frequency of a wave that is seen at few places: one of several."""
    rate = numpyro.sample("rate", dist.Normal(6.0, 3.0))
    numpyro.sample("y", dist.Normal(jnp.sin(rate * x), 0.3), obs=y)


def decays_by_name(x: Any, y: Any = None) -> None:
    """The same two decays with names and priors of their own: no array has them in no order."""
    fast, slow = numpyro.sample("fast", dist.LogNormal(0.5, 1.0)), numpyro.sample("slow", dist.LogNormal(0.0, 1.0))
    a, b = numpyro.sample("a", _normal(5.0)), numpyro.sample("b", _normal(5.0))
    numpyro.sample("y", dist.Normal(a * jnp.exp(-fast * x) + b * jnp.exp(-slow * x), 0.1), obs=y)


def seasons(x: Any, y: Any = None) -> None:
    """A wave of unknown frequency, seen once a unit, about a trend: a frequency and its alias look the same."""
    rate = numpyro.sample("rate", dist.Normal(3.3, 1.0))
    wave_, trend = numpyro.sample("wave", _normal(1.0, 2)), numpyro.sample("trend", _normal(1.0, 2))
    seen = wave_[0] * jnp.cos(rate * x) + wave_[1] * jnp.sin(rate * x) + trend[0] + trend[1] * x / 10.0
    numpyro.sample("y", dist.Normal(seen, 0.3), obs=y)


_MIDDLE = np.array([1.0, 0.5, -0.5, 1.5])  # of the two planes' coefficients


def two_planes(x: Any, y: Any = None) -> None:
    """Cauchy outcomes around two planes, one of which the coefficients are."""
    beta = numpyro.sample("beta", dist.Normal(_MIDDLE, 3.0).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Cauchy(x @ beta, scale), obs=y)


def signs(*groups: tuple[str, ...], each: bool = False) -> Callable[[Draws], list[Draws]]:
    """All images under sign changes of groups of globals; with ``each`` of every component of its own."""

    def images(draws: Draws) -> list[Draws]:
        ways = [range(draws[names[0]].shape[-1]) if each else [slice(None)] for names in groups]
        places = [(names, at) for names, some in zip(groups, ways, strict=True) for at in some]
        found = []
        for flips in product((1.0, -1.0), repeat=len(places)):
            moved = {name: values.copy() for name, values in draws.items()}
            for (names, at), flip in zip(places, flips, strict=True):
                for name in names:
                    moved[name][..., at] *= flip
            found.append(moved)
        return found

    return images


def labels(draws: Draws) -> list[Draws]:
    """All images under new labels of the components, which every array's last axis runs over."""
    num = next(iter(draws.values())).shape[-1]
    return [{name: values[..., list(order)] for name, values in draws.items()} for order in permutations(range(num))]


def hidden_units(draws: Draws) -> list[Draws]:
    """All images of a network's weights: signs and labels of its hidden units."""
    return [image for one in labels(draws) for image in signs(("inner", "offset", "outer"), each=True)(one)]


def mirrored(draws: Draws) -> list[Draws]:
    """The draws, and their mirror images about the middle of the two planes."""
    return [draws, draws | {"beta": 2.0 * _MIDDLE - draws["beta"]}]


Truth = dict[str, tuple[np.ndarray, np.ndarray]]  # mean and sd by name


class Case(NamedTuple):
    """A program, its data by a generator, how many modes it has, and its symmetry or its true means."""

    model: Callable
    data: Callable[[np.random.Generator], Mapping[str, np.ndarray]]
    modes: int
    images: Callable[[Draws], list[Draws]] | None = None
    truth: Callable[[Mapping[str, np.ndarray]], Truth] | None = None


def _of_squares(size: int) -> Callable:
    def data(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        x = rng.normal(size=(160, size))
        return {"x": x, "y": x @ rng.uniform(0.8, 2.0, size) ** 2 + rng.normal(size=160)}

    return data


def _of_product(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = rng.normal(size=80)
    return {"x": x, "y": 2.0 * x + rng.normal(size=80)}


def _of_index(size: int) -> Callable:
    def data(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        x = rng.normal(size=(160, size))
        return {"x": x, "y": 2.0 * np.tanh(x @ rng.normal(size=size)) + 0.5 * rng.normal(size=160)}

    return data


def _of_mixture(num: int) -> Callable:
    def data(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"y": rng.permutation(np.concatenate([rng.normal(5.0 * k, 1.0, 40 + 20 * k) for k in range(num)]))}

    return data


def _of_factors(size: int) -> Callable:
    def data(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"y": rng.normal(size=(200, 1)) * rng.uniform(0.6, 1.2, size) + 0.7 * rng.normal(size=(200, size))}

    return data


def _of_network(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = rng.uniform(-2.0, 2.0, 160)
    return {"x": x, "y": np.tanh(2.0 * x - 2.0) + 1.5 * np.tanh(1.5 * x + 2.0) + 0.2 * rng.normal(size=160)}


def _of_decays(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = np.tile(np.linspace(0.0, 4.0, 40), 4)
    return {"x": x, "y": 3.0 * np.exp(-0.4 * x) + 4.0 * np.exp(-3.0 * x) + 0.1 * rng.normal(size=160)}


def _of_places(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    return {"y": rng.permutation(np.concatenate([rng.normal(-6.0, 0.3, 6), rng.normal(6.0, 0.3, 6)]))}


def _of_wave(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = np.arange(12.0)  # seen once a unit: a frequency and its aliases look the same
    return {"x": x, "y": np.sin(5.0 * x) + 0.3 * rng.normal(size=12)}


def _of_seasons(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = rng.permutation(np.arange(40.0))
    return {"x": x, "y": np.cos(2.6 * x) + 0.5 + 0.3 * rng.normal(size=40)}


def _of_planes(rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = np.column_stack([np.ones(40), rng.normal(size=(40, 3))])
    off = x @ [2.0, 1.0, 0.5, -1.0] + 0.2 * rng.normal(size=40)
    rows, middle = rng.permutation(80), x @ _MIDDLE
    return {"x": np.concatenate([x, x])[rows], "y": np.concatenate([middle + off, middle - off])[rows]}


def _places_density(theta: np.ndarray, data: Mapping[str, np.ndarray]) -> np.ndarray:
    return -0.5 * (theta / 10.0) ** 2 - np.log1p(((data["y"] - theta[:, None]) / 0.5) ** 2).sum(axis=1)


def _wave_density(rate: np.ndarray, data: Mapping[str, np.ndarray]) -> np.ndarray:
    gaps = data["y"] - np.sin(rate[:, None] * data["x"])
    return -0.5 * ((rate - 6.0) / 3.0) ** 2 - 0.5 * (gaps**2).sum(axis=1) / 0.09


def on_grid(name: str, log_density: Callable[[np.ndarray, Mapping[str, np.ndarray]], np.ndarray]) -> Callable:
    """The truth of one global, by its density on a grid."""

    def truth(data: Mapping[str, np.ndarray]) -> Truth:
        grid = np.linspace(-40.0, 40.0, 400_001)
        logs = np.concatenate([log_density(part, data) for part in np.array_split(grid, 40)])
        weights = _normalised(logs)
        return {name: _moments(weights, grid[:, None], np.zeros((len(grid), 1)))}

    return truth


def _decays_truth(data: Mapping[str, np.ndarray]) -> Truth:
    """Heights are linear: integrated out at each pair of rates."""
    axis = np.linspace(-2.5, 2.5, 501)
    logs = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_prior = -0.5 * ((logs - np.array([0.5, 0.0])) ** 2).sum(axis=1)
    weights, mean, variance = _given(
        logs, lambda at: np.exp(-np.exp(at)[:, None] * data["x"][:, None]), data["y"], 0.1, 5.0, log_prior
    )
    rates, heights = _moments(weights, np.exp(logs), np.zeros(logs.shape)), _moments(weights, mean, variance)
    return {
        name: (found[0][k], found[1][k])
        for name, found, k in (("fast", rates, 0), ("slow", rates, 1), ("a", heights, 0), ("b", heights, 1))
    }


def _seasons_truth(data: Mapping[str, np.ndarray]) -> Truth:
    """All but the frequency is linear."""
    rate, x = np.linspace(-3.0, 10.0, 26_001), data["x"]

    def design(at: np.ndarray) -> np.ndarray:
        parts = np.broadcast_arrays(np.cos(at[:, None] * x), np.sin(at[:, None] * x), np.ones(len(x)), x / 10.0)
        return np.stack(parts, axis=-1)

    weights, mean, variance = _given(rate, design, data["y"], 0.3, 1.0, -0.5 * (rate - 3.3) ** 2)
    centre, sd = _moments(weights, mean, variance)
    rates = _moments(weights, rate[:, None], np.zeros((len(rate), 1)))
    return {"rate": (rates[0][0], rates[1][0]), "wave": (centre[:2], sd[:2]), "trend": (centre[2:], sd[2:])}


def _given(
    points: np.ndarray, design: Callable, y: np.ndarray, noise: float, prior_sd: float, log_prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of points at which the model is linear in the other globals, with these globals' means and variances."""
    logs, means, variances = [], [], []
    for part in np.array_split(points, max(1, len(points) // 2000)):
        matrix = design(part)
        precision = np.swapaxes(matrix, 1, 2) @ matrix / noise**2 + np.eye(matrix.shape[2]) / prior_sd**2
        slope = np.einsum("nij,i->nj", matrix, y) / noise**2
        mean = np.linalg.solve(precision, slope[..., None])[..., 0]
        logs.append(0.5 * (np.einsum("nj,nj->n", slope, mean) - np.linalg.slogdet(precision)[1]))
        means.append(mean)
        variances.append(np.diagonal(np.linalg.inv(precision), axis1=1, axis2=2))
    return _normalised(np.concatenate(logs) + log_prior), np.concatenate(means), np.concatenate(variances)


def _normalised(logs: np.ndarray) -> np.ndarray:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def _moments(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of a mixture, each of shape ``(n,)``, from those of its parts ``(part, n)``."""
    mean = weights @ means
    return mean, np.sqrt(weights @ (variances + (means - mean) ** 2))


CASES = {
    "product a b": Case(a_product, _of_product, 2, signs(("a", "b"))),
    "squares, 3": Case(squares, _of_squares(3), 8, signs(("theta",), each=True)),
    "squares, 5": Case(squares, _of_squares(5), 32, signs(("theta",), each=True)),
    "squares, 10": Case(squares, _of_squares(10), 1024, signs(("theta",), each=True)),
    "single index, 12": Case(single_index, _of_index(11), 2, signs(("height", "slopes"))),
    "mixture of 2": Case(mixture(2), _of_mixture(2), 2, labels),
    "mixture of 3": Case(mixture(3), _of_mixture(3), 6, labels),
    "factor model, 20": Case(factor_model, _of_factors(10), 2, signs(("loadings",))),
    "network": Case(network, _of_network, 8, hidden_units),
    "two decays": Case(exponentials, _of_decays, 2, labels),
    "two far places": Case(far_places, _of_places, 2, None, on_grid("theta", _places_density)),
    "wave": Case(wave, _of_wave, 3, None, on_grid("rate", _wave_density)),
    "decays by name, 4": Case(decays_by_name, _of_decays, 2, None, _decays_truth),
    "seasons, 5": Case(seasons, _of_seasons, 2, None, _seasons_truth),
    "two planes, 5": Case(two_planes, _of_planes, 2, mirrored),
}


class Found(NamedTuple):
    """What one fit says, and its largest error of a mean in posterior sds."""

    modes: int
    trusted: bool
    error: float
    exchanges: int


def measured(case: Case, seed: int, num_starts: int) -> Found:
    """One fit of four clients."""
    data = case.data(np.random.default_rng(seed))
    num = len(data["y"])
    clients = {
        f"client{k}": {name: each[k * num // 4 : (k + 1) * num // 4] for name, each in data.items()} for k in range(4)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        method = fb.EP(num_starts=num_starts)
        fit = fb.fit_federated(case.model, clients, method=method, key=jax.random.key(seed), progress=False)
        draws = {
            str(name): np.asarray(values).reshape(-1, *values.shape[2:]).copy()
            for name, values in fit.idata.posterior.data_vars.items()
        }
        told = fit.error.attrs
    error = _by_truth(draws, case.truth(data)) if case.truth else _by_images(draws, case)
    exchanges = int(fit.communication.exchanges)
    return Found(told["modes"], bool(told["reliable"]) and not fit.trouble(), error, exchanges)


def _by_images(draws: Draws, case: Case) -> float:
    assert case.images is not None
    images = case.images(draws)
    worst = 0.0
    for name, values in draws.items():
        every = np.concatenate([image[name] for image in images])
        worst = max(worst, float(np.max(np.abs(values.mean(axis=0) - every.mean(axis=0)) / every.std(axis=0))))
    return worst


def _by_truth(draws: Draws, truth: Truth) -> float:
    gaps = [np.max(np.abs(draws[name].mean(axis=0) - mean) / sd) for name, (mean, sd) in truth.items()]
    return float(max(gaps))


def cells(found: list[Found]) -> list[object]:
    """What the fits of one program have come to."""
    right = sum(each.trusted and each.error <= RIGHT for each in found)
    refused = sum(not each.trusted for each in found)
    modes = ", ".join(str(each) for each in sorted({each.modes for each in found}))
    error, exchanges = np.median([each.error for each in found]), np.median([each.exchanges for each in found])
    return [modes, f"{error:.2f}", right, refused, len(found) - right - refused, f"{exchanges:.0f}"]


def main() -> None:
    """Measure, and write the page."""
    columns = ["found", "error", "right", "refused", "silent", "exchanges"]
    lines = [
        "# Separate modes\n",
        wrapped(
            f"""Written by `separate_modes.py`: four clients, {len(SEEDS)} data sets and keys a program, the default
            method, and the same with {STARTS} starts. *modes* is how many the posterior has, *found* how many the fit
            says it has. *error* is the largest error of a mean of `fit.idata`, in posterior sds, median of the fits. A
            fit is *right* where it trusts itself and this is at most {RIGHT}, *refused* where it does not trust itself,
            and *silent* else. *exchanges* is the median of all that a fit takes, check included. By default modes are
            looked for where sign changes and swaps of labels would put them, and by draws as wide as the prior where
            these can meet one; with `EP(num_starts={STARTS})` by Newton searches from the prior's draws, too. The modes
            of the first ten programs are images of one another, beside which a data set may have lesser ones, and no
            symmetry leads to those of the last five."""
        ),
        *head(["program", "modes", *columns, *(f"{each}, {STARTS} starts" for each in columns)], 1),
    ]
    for name, case in CASES.items():
        parts = [[measured(case, seed, num_starts) for seed in SEEDS] for num_starts in (1, STARTS)]
        lines.append(row(name, case.modes, *(cell for found in parts for cell in cells(found))))
        print(lines[-1], [f"{each.error:.2f}" for found in parts for each in found], flush=True)
    (Path(__file__).parent / "SEPARATE_MODES.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
