"""A thousand clients: no deadlock in batched linear algebra (DESIGN.md, "Traps"), and the pooled answer."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode


def model(x, y=None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


@pytest.mark.slow
@pytest.mark.optimised
def test_thirty_rounds_over_a_thousand_clients(rounds) -> None:
    """The mean stays within 0.1 posterior sds (rms) of the pooled mode: with 10,000 rows the two differ by less."""
    rng = np.random.default_rng(0)
    beta = rng.normal(size=20) / 4
    clients = {}
    for k in range(1024):
        x = rng.normal(size=(rng.integers(5, 16), 20))
        clients[f"client{k}"] = {"x": x, "y": (rng.logistic(size=len(x)) < x @ beta).astype(float)}
    method = fb.EP(num_samples=64, num_replicates=1, init="prior", solver="importance")
    run = rounds(model, clients, method).run(30)
    x = np.concatenate([data["x"] for data in clients.values()])
    y = np.concatenate([data["y"] for data in clients.values()])
    mode = np.zeros(20)
    for _ in range(20):
        chance = 1 / (1 + np.exp(-x @ mode))
        curvature = (x.T * (chance * (1 - chance))) @ x + np.eye(20)
        mode += np.linalg.solve(curvature, x.T @ (y - chance) - mode)
    mean, covariance = run.moments()
    gap = (mean - mode) / np.sqrt(np.diagonal(covariance))
    assert np.sqrt(np.mean(gap**2)) < 0.1
    np.testing.assert_allclose(covariance, np.linalg.inv(curvature), rtol=0.1, atol=0.05 * np.max(covariance))
    used = (ResultCode.OK, ResultCode.UNRELIABLE, ResultCode.NOISY)
    assert all(np.all(np.isin(record["code"], used)) for record in run.current.history)
    assert len(run.current.history) == 30
