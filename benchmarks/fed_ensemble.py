"""Fed-ensemble (Shi et al. 2021): the toy regression of their table 1, and scikit-learn's digits in place of MNIST.

    python benchmarks/fed_ensemble.py        # twenty minutes; writes FED_ENSEMBLE.md

The toy: 50 clients with two points each of ``a sin(2 pi x)`` plus noise, 100 radial basis functions, one training set.
Each algorithm runs from several random starts, and its predictor is the mean of its modes. Bias is the root mean square
over a grid of what lies between the mean predictor and the truth, variance that of the predictors. Digits: a network
64-64-10 on 1,257 images, sorted by label and dealt out two shards a client, 540 images held out.

The programs have flat priors: what modes differ by is their starts. NumPyro's uniform starts in (-2, 2) are scaled to
the variance that the weights shall have, and the clients' steps likewise.
"""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from pages import head, row
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fedbayes as fb

HERE = Path(__file__).resolve().parent
UNIT = np.sqrt(0.75)  # of a uniform number in (-2, 2), to variance one
REPETITIONS, SEEDS = 25, 3
MODES = (1, 2, 10, 20, 40)
ASSIGNMENTS: dict[str, dict[str, Any]] = {
    "20 of 50 clients, 20 strata": {"assignment": "random", "num_strata": 20, "clients_per_stratum": 1},
    "all 50 clients, a stratum each": {"assignment": "random"},
    "all clients train all modes": {"assignment": "all"},
}
SOURCE = {"bias": (0.109, 0.117, 0.112, 0.113, 0.112), "variance": (0.0496, 0.0115, 0.0063, 0.0045, 0.0042)}
CENTRES = np.random.default_rng(0).uniform(-1.0, 1.0, 100)


def flat(name: str, shape: tuple[int, ...]) -> jax.Array:
    """Weights without a prior."""
    return numpyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), shape).to_event(0))


def basis(x: np.ndarray) -> np.ndarray:
    """The features."""
    return np.exp(-((x[:, None] - CENTRES) ** 2) / (2.0 * 0.08**2))


def toy(phi, y) -> None:
    """One client's program."""
    w = UNIT * flat("w", (phi.shape[1],))
    numpyro.sample("y", dist.Normal(phi @ w, 1.0), obs=y)


def toy_clients() -> dict[str, dict[str, np.ndarray]]:
    """50 clients with two points each."""
    rng = np.random.default_rng(1)
    clients = {}
    for k in range(50):
        x, size = rng.uniform(-1.0, 1.0, 2), rng.normal(1.0, 0.2)
        clients[f"c{k}"] = {"phi": basis(x), "y": size * np.sin(2.0 * np.pi * x) + 0.2 * rng.normal(size=2)}
    return clients


def fitted(model: Any, clients: Any, method: Any, key: jax.Array, **options: Any) -> fb.FederatedFit:
    """A fit of a fixed number of rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fb.fit_federated(model, clients, method=method, key=key, progress=False, **options)


def toy_row(num_modes: int, assignment: dict[str, Any]) -> tuple[float, float]:
    """Bias and variance of one algorithm."""
    grid = np.linspace(-1.0, 1.0, 401)
    method = fb.FedEnsemble(
        num_modes=num_modes, local_steps=20, step_size=0.1 / UNIT**2, max_rounds=400, tolerance=1e-12, **assignment
    )
    predictors = []
    for repetition in range(REPETITIONS):
        fit = fitted(toy, toy_clients(), method, jax.random.key(repetition))
        predictors.append(basis(grid) @ (UNIT * fit.idata.posterior["w"].values[0].mean(axis=0)))
    found = np.stack(predictors)
    bias = np.sqrt(np.mean((found.mean(axis=0) - np.sin(2.0 * np.pi * grid)) ** 2))
    return float(bias), float(found.var(axis=0, ddof=1).mean())


def toy_table() -> list[str]:
    """Bias and variance by modes and assignment."""
    lines = head(["bias / variance", *(f"K = {k}" for k in MODES)])
    source = (f"{b} / {v}" for b, v in zip(SOURCE["bias"], SOURCE["variance"], strict=True))
    lines.append(row("the source's table 1", *source))
    for name, assignment in ASSIGNMENTS.items():
        cells = [toy_row(k, assignment) for k in MODES]
        lines.append(row(name, *(f"{b:.3f} / {v:.4f}" for b, v in cells)))
        print(lines[-1], flush=True)
    return lines


SCALE = np.sqrt(2.0 / 64.0)  # He's standard deviation: both layers have 64 inputs


def network(x, y=None) -> None:
    """One client's program: a network 64-64-10 without priors."""
    weights = SCALE * UNIT * flat("weights", (64, 64 + 10))
    biases = SCALE * UNIT * flat("biases", (64 + 10,))
    hidden = jax.nn.relu(x @ weights[:, :64] + biases[:64])
    numpyro.sample("y", dist.Categorical(logits=hidden @ weights[:, 64:] + biases[64:]), obs=y)


def digits(num_clients: int, seed: int) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Sorted by label and dealt out in two shards a client; and the held-out images."""
    images = load_digits()
    x, new, y, labels = train_test_split(
        images.data / 16.0, images.target, test_size=0.3, stratify=images.target, random_state=seed
    )
    shards = np.array_split(np.argsort(y, kind="stable"), 2 * num_clients)
    dealt = np.random.default_rng(seed).permutation(2 * num_clients).reshape(num_clients, 2)
    rows = [np.concatenate([shards[i] for i in pair]) for pair in dealt]
    clients = {f"c{k}": {"x": x[at], "y": y[at]} for k, at in enumerate(rows)}
    return clients, {"x": new, "y": labels}


def scores(fit: fb.FederatedFit, test: dict[str, np.ndarray]) -> dict[str, float]:
    """Accuracy in percent and mean negative log likelihood of the ensemble, and of its modes."""
    values = {name: fit.idata.posterior[name].values[0] for name in ("weights", "biases")}
    weights, biases = (jnp.asarray(SCALE * UNIT * value) for value in values.values())
    hidden = jax.nn.relu(jnp.einsum("nd,kdh->knh", test["x"], weights[:, :, :64]) + biases[:, None, :64])
    logits = jnp.einsum("knh,khc->knc", hidden, weights[:, :, 64:]) + biases[:, None, 64:]
    each = jax.nn.softmax(logits, axis=-1)
    ensemble = fit.predict_probabilities(x=test["x"])["y"]
    np.testing.assert_allclose(ensemble, each.mean(axis=0), atol=1e-6)
    at = np.arange(len(test["y"]))
    right = 100.0 * np.mean(np.argmax(each, axis=-1) == test["y"], axis=1)
    return {
        "accuracy": 100.0 * float(np.mean(np.argmax(ensemble, axis=-1) == test["y"])),
        "loss": float(-np.mean(np.log(ensemble[at, test["y"]]))),
        "modes": float(-np.mean(np.log(np.asarray(each)[:, at, test["y"]]))),
        "worst": float(right.min()),
        "best": float(right.max()),
    }


def of_digits(epochs: int, rounds: int) -> dict[str, Any]:
    """The options of a member."""
    return {
        "optimizer": optax.sgd(0.1 / (SCALE * UNIT) ** 2),
        "schedule": lambda round: 0.99 ** (round // 10),
        "epochs": epochs,
        "batch_size": 8,
        "init": "random",
        "max_rounds": rounds,
    }


def assignment_table() -> list[str]:
    """Held-out scores of five modes by who trains what, with 30 clients of whom all or ten take part in a round."""
    lines = head(["clients a round", "assignment", "accuracy", "loss", "modes: loss, accuracy"])
    ten = {"num_strata": 10, "clients_per_stratum": 1}
    for part, strata in (("30", {}), ("10", ten)):
        for assignment in ("random", "latin", "all"):
            if strata and assignment == "all":
                continue
            method = fb.FedEnsemble(**of_digits(2, 100), num_modes=5, assignment=assignment, **strata)
            found = []
            for seed in range(4):
                clients, test = digits(30, seed)
                found.append(scores(fitted(network, clients, method, jax.random.key(seed), dtype=np.float32), test))
            mean = {key: np.mean([each[key] for each in found]) for key in found[0]}
            of_modes = f"{mean['modes']:.3f}, {mean['worst']:.1f} to {mean['best']:.1f}"
            lines.append(row(part, f"`{assignment}`", f"{mean['accuracy']:.1f}", f"{mean['loss']:.3f}", of_modes))
            print(lines[-1], flush=True)
    return lines


def digits_table() -> list[str]:
    """Held-out scores of each algorithm, over seeds of the data and of the fit."""
    lines = head(["clients, rounds", "method", "accuracy", "loss", "modes: loss, accuracy"])
    for num_clients, epochs, rounds in ((40, 2, 100), (100, 5, 150)):
        member = of_digits(epochs, rounds)
        strata = {"assignment": "random", "num_strata": 20, "clients_per_stratum": 1}
        # steps are scaled, and the weight of a squared distance with them
        methods = {
            "FedAvg": fb.FedAvg(**member, laplace=False),
            "FedProx, 0.1": fb.FedProx(**member, laplace=False, proximal=0.1 * (SCALE * UNIT) ** 2),
            "Fed-ensemble, K = 3": fb.FedEnsemble(**member, **strata, num_modes=3),
            "Fed-ensemble, K = 5": fb.FedEnsemble(**member, **strata, num_modes=5),
        }
        for name, method in methods.items():
            part = 1.0 if isinstance(method, fb.FedEnsemble) else 20.0 / num_clients
            found = []
            for seed in range(SEEDS):
                clients, test = digits(num_clients, seed)
                fit = fitted(network, clients, method, jax.random.key(seed), participation=part, dtype=np.float32)
                found.append(scores(fit, test))
            mean = {key: np.mean([each[key] for each in found]) for key in found[0]}
            spread = np.std([each["accuracy"] for each in found], ddof=1)
            of_modes = f"{mean['modes']:.3f}, {mean['worst']:.1f} to {mean['best']:.1f}" if "K =" in name else ""
            accuracy = f"{mean['accuracy']:.1f} ({spread:.1f})"
            lines.append(row(f"{num_clients}, {rounds}", name, accuracy, f"{mean['loss']:.3f}", of_modes))
            print(lines[-1], flush=True)
    return lines


TOY = f"""## Toy regression, {REPETITIONS} repetitions, 400 rounds of 20 local steps
"""
OF_TOY = """
The bias does not depend on K, as in the source, which does not say its starts, steps, rounds, or clients per round. The
variance of K independent federated averagings (last row) falls as 1 / K. Under teams it stops falling: a mode sees
`1 / K` of the clients in a round, and ends in noise that grows with K.
"""
DIGITS = f"""## Digits, two shards of sorted images a client, 20 clients a round

Means of {SEEDS} seeds, with the standard deviation of the accuracy in percent.
"""
OF_DIGITS = """
The source has MNIST with two labels a client: FedAvg 90.2, FedProx 90.8, Fed-ensemble 95.4 percent. Digits is far
easier: here the accuracies differ by less than their spread over seeds. By Jensen's inequality the loss of an ensemble
is below that of its modes; it is above FedAvg's, as each mode gets 1 / K of the clients' work in the same rounds."""

ASSIGNED = """
## Who trains what: five modes, 30 clients, 100 rounds

The same data, means of 4 seeds. With `all` a client works and sends five times as much.
"""
OF_ASSIGNED = """
`latin` shares each round's clients out evenly over the modes, and is the default: with ten clients a round a mode has
two in each, where `random` may leave it none."""


def main() -> None:
    """Measure, print, and write FED_ENSEMBLE.md."""
    title = "# Fed-ensemble: bias and variance on a toy, accuracy on digits\n"
    made = "Made by `python benchmarks/fed_ensemble.py`, whose first lines say what is measured.\n"
    text = [title, made, TOY, *toy_table(), OF_TOY, DIGITS, *digits_table(), OF_DIGITS]
    text += [ASSIGNED, *assignment_table(), OF_ASSIGNED]
    (HERE / "FED_ENSEMBLE.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
