"""HM2's uncertainty example (Yue 2023, figure 3.4, right): 100 clients, 8 globals, intervals against the truth.

``python benchmarks/hm2_uncertainty.py [K]`` writes ``docs/hm2_uncertainty.png`` and prints the table.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import fedbayes as fb
from fedbayes.models import hierarchical_linear as hm2


def main(num_clients: int = 100) -> None:
    """Fit, print and draw."""
    clients, truth = hm2.simulate(
        jax.random.key(0),
        num_clients=num_clients,
        rows=100,
        dim=4,
        mu=np.array(hm2.YUE_MU),
        tau=np.array(hm2.YUE_TAU),
        noise_sd=0.05,
    )
    fit = fb.fit_federated(partial(hm2.model, noise_sd=0.05), clients, key=jax.random.key(1))
    print(fit)
    posterior = fit.idata.posterior
    names = [f"mu[{i}]" for i in range(4)] + [f"log tau[{i}]" for i in range(4)]
    draws = np.concatenate([posterior["mu"].values, np.log(posterior["tau"].values)], axis=-1).reshape(-1, 8)
    target = np.concatenate([truth["mu"], np.log(truth["tau"])])
    low, mean, high = np.quantile(draws, 0.05, axis=0), draws.mean(axis=0), np.quantile(draws, 0.95, axis=0)
    for name, *row in zip(names, target, mean, draws.std(axis=0), low, high, strict=True):
        print(f"{name:12s} truth {row[0]:7.3f}  mean {row[1]:7.3f}  sd {row[2]:.3f}  90% [{row[3]:.3f}, {row[4]:.3f}]")
    figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    place = np.arange(8)
    ax.errorbar(place, mean, [mean - low, high - mean], fmt="o", color="#0072B2", capsize=3, label="90% interval")
    ax.scatter(place, target, marker="x", s=60, color="#D55E00", zorder=3, label="truth")
    ax.set_xticks(place, names, rotation=20)
    ax.set_title(f"Common distribution of {num_clients} clients, seen through Gaussian sites alone", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    path = Path(__file__).parents[1] / "docs" / "hm2_uncertainty.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path.name)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
