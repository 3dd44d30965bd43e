"""FA-LD against NUTS on the pooled data: a hierarchical model, label-skewed clients.

The four hospitals are the notebook's (`langevin_hospitals`), which compares them with NUTS in its own last cell.
``python tests/inference/fald/test_fald_posteriors.py`` runs NUTS anew (minutes) and stores its means and sds.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import fedbayes as fb
from fedbayes.inference.local.steps.energy import Energy

KEY = jax.random.key(11)
BY_NUTS = Path(__file__).parents[2] / "data" / "fald_by_nuts.json"


def nuts(model, **data) -> dict[str, np.ndarray]:
    """40,000 draws."""
    with jax.enable_x64(True):
        mcmc = MCMC(
            NUTS(model), num_warmup=1000, num_samples=10_000, num_chains=4, chain_method="vectorized",
            progress_bar=False,
        )  # fmt: skip
        mcmc.run(jax.random.key(0), **data)
        return {name: np.asarray(value) for name, value in mcmc.get_samples().items()}


def by_nuts() -> dict[str, np.ndarray]:
    """Draws ``(draw, number)`` of the numbers that the tests compare."""
    together = nuts(joint)
    clients = (together[f"b_{name}"] for name in ASKED)
    return {
        "hierarchical": np.column_stack([together["mu"], np.log(together["tau"]), *clients]),
        "skewed": nuts(skewed, **pooled(skewed_clients()))["beta"],
    }


def stored(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each number."""
    found = json.loads(BY_NUTS.read_text())[name]
    return np.array(found["mean"]), np.array(found["sd"])


def pooled(clients: dict) -> dict:
    return {name: jnp.concatenate([data[name] for data in clients.values()]) for name in next(iter(clients.values()))}


def hierarchical(x, y=None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.LogNormal(-1.0, 0.5))
    with fb.local():
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=x @ mu + tau * b), obs=y)


def hierarchical_clients() -> dict:
    rng, clients = np.random.default_rng(0), {}
    for k in range(8):
        n = rng.integers(20, 60)
        x, b = rng.normal(size=(n, 2)), 0.6 * rng.normal()
        y = (rng.random(n) < 1 / (1 + np.exp(-(x @ [1.0, -0.5] + b)))).astype(int)
        clients[f"c{k}"] = {"x": x, "y": y}
    return clients


ASKED = ("c0", "c3", "c5")  # clients, for their own latents


def joint() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.LogNormal(-1.0, 0.5))
    for name, data in hierarchical_clients().items():
        b = numpyro.sample(f"b_{name}", dist.Normal(0.0, 1.0))
        numpyro.sample(f"y_{name}", dist.Bernoulli(logits=data["x"] @ mu + tau * b), obs=data["y"])


def gaps(fit: fb.FederatedFit) -> tuple[np.ndarray, np.ndarray]:
    """Differences of means in sds, and ratios of sds: mu, log tau, and three clients' own latents."""
    posterior = fit.idata.posterior
    clients = [np.ravel(fit.client_posterior(name).posterior["b"]) for name in ASKED]
    mu = np.asarray(posterior["mu"]).reshape(-1, 2)
    found = np.column_stack([mu, np.ravel(np.log(posterior["tau"].values)), *clients])
    mean, sd = stored("hierarchical")
    return (found.mean(axis=0) - mean) / sd, found.std(axis=0) / sd


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=11, numbers=12, errors=5.0)
def test_hierarchical_clients_match_pooled_nuts() -> None:
    """Local latents step by the joint target, and come back on their client's own posterior alone."""
    method = fb.FALD(local_steps=10)
    fit = fb.fit_federated(hierarchical, hierarchical_clients(), method=method, key=KEY, num_draws=2000, progress=False)
    means, sds = gaps(fit)
    print(np.round(means, 3), np.round(sds, 3))
    assert fit.converged
    assert np.all(np.abs(means) < 0.15)
    np.testing.assert_allclose(sds, 1.0, atol=0.1)
    assert "b" not in fit.idata.posterior


@pytest.mark.slow
@pytest.mark.optimised
def test_locals_scaled_like_globals_are_seen(monkeypatch) -> None:
    """Negative control: the locals' gradient divided by the client's weight, as a global's is."""
    correct = Energy.slopes

    def wrong(energy, u, v, key):
        slope, slope_v = correct(energy, u, v, key)
        return slope, slope_v / energy.weight

    monkeypatch.setattr(Energy, "slopes", wrong)
    method = fb.FALD(local_steps=10)
    fit = fb.fit_federated(hierarchical, hierarchical_clients(), method=method, key=KEY, progress=False)
    _, sds = gaps(fit)
    assert np.all(sds[3:] < 0.7)


def skewed(x, y=None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def skewed_clients() -> dict:
    """Two clients, nearly all cases at one and hardly any at the other."""
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(400), rng.normal(size=400)])
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ [0.3, 1.0]))).astype(int)
    first = rng.random(400) < np.where(y == 1, 0.85, 0.15)
    return {"cases": {"x": x[first], "y": y[first]}, "controls": {"x": x[~first], "y": y[~first]}}


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # the bias is what is asked for
def test_drift_of_label_skewed_clients_is_as_predicted_and_goes_with_the_control_variate() -> None:
    """The bias of the means is linear in ``eta (K - 1)``, of the predicted size, and gone with the anchor."""
    clients = skewed_clients()
    exact, sd = stored("skewed")

    def bias(steps: int, control_variate: bool) -> tuple[float, float]:
        method = fb.FALD(
            local_steps=steps, step_size=0.01, control_variate=control_variate, num_chains=100, num_warmup=20,
            thinning=max(1, 200 // steps),
        )  # fmt: skip
        fit = fb.fit_federated(skewed, clients, method=method, key=KEY, num_draws=100, progress=False)
        mean = np.asarray(fit.idata.posterior["beta"]).mean(axis=(0, 1))
        rms = np.sqrt(np.mean(((mean - exact) / sd) ** 2))
        return float(rms), fit.rounds.attrs["mean_bias"]

    (small, small_predicted), (large, large_predicted) = bias(6, False), bias(16, False)
    print(small, small_predicted, large, large_predicted)
    assert large_predicted == pytest.approx(3.0 * small_predicted, rel=1e-6)
    assert small == pytest.approx(small_predicted, rel=0.25)
    assert large == pytest.approx(large_predicted, rel=0.35)  # second order begins to show
    anchored, predicted = bias(16, True)
    print(anchored)
    assert predicted == 0.0
    assert anchored < 0.15 * large


if __name__ == "__main__":
    summaries = {
        name: {"mean": np.round(draws.mean(axis=0), 6).tolist(), "sd": np.round(draws.std(axis=0), 6).tolist()}
        for name, draws in by_nuts().items()
    }
    BY_NUTS.write_text(json.dumps(summaries, indent=1) + "\n")
