"""FedAvg and FedProx on the four hospitals: how far from the mode, by local steps and heterogeneity, beside EP.

    python benchmarks/federated_averaging.py        # a minute; writes FEDAVG.md

Every fit runs until it has arrived, by its own estimate. Distances are those of the globals from the mode of the pooled
data's posterior, in posterior standard deviations (root mean square over the coefficients), measured against a Newton
iteration to 1e-9; beside them what the fit says of itself. EP has no point to compare with the mode: its distance is
that of its mean from that of EP with 32 times the draws.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from pages import row

import fedbayes as fb
from fedbayes.models import heart_disease

HERE = Path(__file__).resolve().parent
KEY = jax.random.key(0)
Data = Mapping[str, Mapping[str, np.ndarray]]
MOST = 3000  # rounds
MOMENTUM = optax.sgd(1.0, momentum=0.9)


class Row(NamedTuple):
    """One fit."""

    name: str
    distance: float
    said: float
    rounds: int
    exchanges: int
    arrived: bool


def shuffled(clients: Data) -> dict[str, dict[str, np.ndarray]]:
    """The same patients, dealt out at random to clients of the same sizes."""
    pooled = {name: np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y")}
    order = np.random.default_rng(0).permutation(len(pooled["y"]))
    cuts = np.cumsum([len(client["y"]) for client in clients.values()])[:-1]
    places = np.split(order, cuts)
    return {name: {k: v[at] for k, v in pooled.items()} for name, at in zip(clients, places, strict=True)}


def measured(name: str, method: fb.FedAvg, clients: Data, mode: np.ndarray, sd: np.ndarray) -> Row:
    """A fit to its fixed point, and how far that is from the mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)
        fit = fb.fit_federated(heart_disease.model, clients, method=method, key=KEY, progress=False)
    distance = float(np.sqrt(np.mean(((fit.moments()[0][0] - mode) / sd) ** 2)))
    rounds = int(fit.rounds["objective"].notnull().sum())
    said = float(fit.rounds.attrs["distance_from_mode"])
    return Row(name, distance, said, rounds, fit.communication.exchanges, rounds < MOST)


def methods() -> dict[str, fb.FedAvg]:
    """What is compared."""
    common = {"max_rounds": MOST, "tolerance": 0.002}
    found = {f"FedAvg, K = {k}": fb.FedAvg(local_steps=k, **common) for k in (1, 2, 5, 10, 50)}
    found |= {
        f"FedAvg, K = {k}, momentum 0.9": fb.FedAvg(local_steps=k, server_optimizer=MOMENTUM, **common) for k in (1, 10)
    }
    found |= {
        f"FedProx, {weight:g}, exact": fb.FedProx(proximal=weight, solver="newton", **common)
        for weight in (0.1, 1.0, 10.0)
    }
    return found


def ep_row(clients: Data) -> str:
    """How far EP's mean is from its fixed point's, and its exchanges."""
    fit = fb.fit_federated(heart_disease.model, clients, key=KEY, progress=False)
    mean, covariance = (part.mean(axis=0) for part in fit.moments())
    reference = fb.fit_federated(
        heart_disease.model,
        clients,
        method=fb.EP(num_samples=8192, tolerance=1e-3),
        key=jax.random.key(1),
        progress=False,
    )
    gap = (mean - reference.moments()[0].mean(axis=0)) / np.sqrt(np.diagonal(covariance))
    return f"| EP, to its own fixed point | {np.sqrt(np.mean(gap**2)):.2g} | | | {fit.communication.exchanges} |"


def table(clients: Data) -> list[str]:
    """The rows of one split of the patients."""
    exact = fb.fit_federated(heart_disease.model, clients, method=fb.Laplace(tolerance=1e-9), key=KEY, progress=False)
    mode, sd = exact.moments()[0][0], np.sqrt(np.diagonal(exact.moments()[1][0]))
    lines = ["| | from the mode | the fit says | rounds | exchanges |", "|---|---|---|---|---|"]
    for name, method in methods().items():
        found = measured(name, method, clients, mode, sd)
        print(found, flush=True)
        rounds = str(found.rounds) + ("" if found.arrived else ", not arrived")
        lines.append(row(name, f"{found.distance:.2g}", f"{found.said:.2g}", rounds, found.exchanges))
    lines.append(f"| `method='laplace'`: Newton | 0 | | | {exact.communication.exchanges} |")
    return [*lines, ep_row(clients)]


HEAD = """\
# FedAvg and FedProx on four hospitals

Written by `federated_averaging.py`. Heart disease, 740 patients, 14 coefficients. Distances in posterior standard
deviations (root mean square over the coefficients): of the point where the rounds end from the mode of the posterior
given all patients, and as the fit measures it itself, by the Newton step in its last round. Steps are the default's,
half of the inverse of the clients' largest curvature. EP has no point to compare with the mode: its row is the distance
of its mean from that of EP with 32 times the draws.

With one step a round FedAvg goes to the mode, slowly. With more steps it ends elsewhere, the farther away the more the
hospitals differ: in the second table the same patients are dealt out at random. More rounds do not mend that.
"""


def main() -> None:
    """Measure, print, write."""
    clients = heart_disease.clients()
    parts = [HEAD, "## Four hospitals\n", *table(clients), "\n## The same patients, dealt out at random\n"]
    (HERE / "FEDAVG.md").write_text("\n".join([*parts, *table(shuffled(clients)), ""]))


if __name__ == "__main__":
    main()
