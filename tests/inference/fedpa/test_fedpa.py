"""FedPA: exact for Gaussian clients, FedAvg with one sample, and a posterior at the end."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import fedbayes as fb
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.fedpa import method as fedpa
from fedbayes.inference.local.steps.sgd import covariance_factor
from fedbayes.models import hierarchical_linear as hm2
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.low_rank import LowRankGaussian

KEY = jax.random.key(4)
NOISE, PRIOR = 0.5, 3.0
ONE = {"num_replicates": 1}
PLAIN = {"init": "zero", "preconditioner": "none", **ONE}


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, PRIOR).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, NOISE), obs=y)


def two_clients(rows=(12, 30)) -> dict:
    """Two clients whose covariances point in different directions, and whose data disagree."""
    rng = np.random.default_rng(6)
    clients = {}
    for k, (num, scale, beta) in enumerate(zip(rows, ([3.0, 0.3], [0.3, 2.0]), ([1.0, 3.0], [-2.0, 0.0]), strict=True)):
        x = rng.normal(size=(num, 2)) * scale + 0.2
        clients[f"c{k}"] = {"x": x, "y": x @ np.asarray(beta) + NOISE * rng.normal(size=num)}
    return clients


def exact(clients: dict) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.concatenate([client[name] for client in clients.values()]) for name in "xy")
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(x.shape[1]) / PRIOR**2)
    return covariance @ x.T @ y / NOISE**2, covariance


def fit(method, clients=None, model=regression, **arguments):
    clients = two_clients() if clients is None else clients
    return fb.fit_federated(model, clients, method=method, progress=False, **{"key": KEY} | arguments)


def gaps(found, clients=None) -> tuple[np.ndarray, np.ndarray]:
    """Differences of the means in exact sds, and ratios of the covariances' entries to the largest exact one."""
    mean, covariance = exact(two_clients() if clients is None else clients)
    off = (found.moments()[0] - mean) / np.sqrt(np.diagonal(covariance))
    return off, (found.moments()[1] - covariance) / covariance.max()


def server(found) -> np.ndarray:
    """Where the rounds ended, replicate by coordinate."""
    return path(found)[-1]


def path(found) -> np.ndarray:
    """Where the server was after each of FedPA's rounds, round by replicate by coordinate."""
    here = found.rounds["phase"].values == "FedPA"
    return found.rounds["server"].transpose("round", "replicate", "coordinate").values[here]


@pytest.fixture
def paths():
    return {
        "mode": fb.FedPA(solver="laplace", tolerance=1e-12, **ONE),
        "equal weights": fb.FedPA(solver="laplace", tolerance=1e-12, weights="equal", preconditioner="diagonal", **ONE),
        "from zero": fb.FedPA(
            solver="laplace", server_optimizer=optax.sgd(0.02), tolerance=1e-13, max_rounds=3000, **PLAIN
        ),
        "draws": fb.FedPA(solver="importance", num_samples=64, tolerance=1e-12, **ONE),
    }


@pytest.mark.parametrize("name", ["mode", "from zero", "equal weights", "draws"])
def test_fixed_point_and_posterior_are_exact(name, paths) -> None:
    """Heterogeneous covariances: the rounds end at the exact mean, and the merge is the exact posterior, to 1e-8."""
    found = fit(paths[name])
    mean, covariance = exact(two_clients())
    np.testing.assert_allclose((server(found)[0] - mean) / np.sqrt(np.diagonal(covariance)), 0.0, atol=1e-8)
    for gap in gaps(found):
        np.testing.assert_allclose(gap, 0.0, atol=1e-8)
    assert found.converged
    assert float(found.rounds["gap"].max()) < 1e-7


def fedavg(local_steps: int, **options) -> fb.FedPA:
    return fb.FedPA(num_samples=1, solver="iasg", local_steps=local_steps, burn_in=0, **PLAIN, **options)


def test_fedavg_is_visibly_wrong_where_fedpa_is_exact() -> None:
    """FedAvg with many local steps goes to the average of the clients' own optima, sds away."""
    clients = two_clients()
    with pytest.warns(fb.NotConvergedWarning):
        found = fit(fedavg(2000, step_size=0.05, tolerance=1e-10, max_rounds=100))
    optima = []
    for data in clients.values():
        precision = data["x"].T @ data["x"] / NOISE**2 + 0.5 * np.eye(2) / PRIOR**2
        optima.append(np.linalg.solve(precision, data["x"].T @ data["y"] / NOISE**2))
    rows = np.array([len(data["y"]) for data in clients.values()])
    np.testing.assert_allclose(server(found)[0], rows @ optima / rows.sum(), atol=1e-6)
    mean, covariance = exact(clients)
    assert np.max(np.abs(server(found)[0] - mean) / np.sqrt(np.diagonal(covariance))) > 3.0


def test_one_sample_is_fedavg() -> None:
    """Round by round equal to a NumPy loop over clients and gradient steps of their mean losses."""
    clients, step, rounds = two_clients(), 0.03, 5
    with pytest.warns(fb.NotConvergedWarning):
        found = fit(fedavg(7, step_size=step), num_rounds=rounds)
    num = {name: len(data["y"]) for name, data in clients.items()}
    total, position, expected = sum(num.values()), np.zeros(2), []
    for _ in range(rounds):
        ends = []
        for name, data in clients.items():
            local, weight = position.copy(), num[name] / total
            for _ in range(7):
                slope = data["x"].T @ (data["x"] @ local - data["y"]) / NOISE**2 + local / PRIOR**2 / len(clients)
                local = local - step * slope / weight / total
            ends.append(weight * local)
        position = np.sum(ends, axis=0)
        expected.append(position)
    np.testing.assert_allclose(path(found)[:, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", [optax.adam(0.3), optax.sgd(0.3, momentum=0.5)])
def test_the_server_takes_any_optimiser(optimizer) -> None:
    """Its path is optax's own along the exact gradient."""
    mean, covariance = exact(two_clients())
    with pytest.warns(fb.NotConvergedWarning, match="raise `num_rounds`"):
        found = fit(fb.FedPA(solver="laplace", server_optimizer=optimizer, **PLAIN), num_rounds=4)
    precision, position, rows = np.linalg.inv(covariance), np.zeros(2), sum((12, 30))
    with jax.enable_x64(True):
        state = optimizer.init(jnp.asarray(position))
        for _ in range(4):
            slope = precision @ (position / np.sqrt(rows) - mean) / np.sqrt(rows)
            moves, state = optimizer.update(jnp.asarray(slope), state, jnp.asarray(position))
            position = position + np.asarray(moves)
    np.testing.assert_allclose(server(found)[0], position / np.sqrt(rows), rtol=1e-10)


def test_a_tiny_step_of_the_server_is_no_convergence() -> None:
    """It changes next to nothing, from the first round on, and the clients still pull."""
    method = fb.FedPA(solver="laplace", server_optimizer=optax.sgd(1e-14), max_rounds=3, **PLAIN)
    with pytest.warns(fb.NotConvergedWarning, match="The rounds ended .* posterior sds from the merged mean"):
        found = fit(method)
    assert int((found.rounds["phase"] == "FedPA").sum()) == 3
    assert float(found.rounds["change"].max()) < 1e-10
    assert float(found.rounds["pull"].max()) > ERROR_LIMIT


def test_partial_participation_ends_in_the_exact_posterior() -> None:
    """The rounds wander between the clients that were drawn; the merge hears them all."""
    with pytest.warns(fb.NotConvergedWarning, match="posterior sds from the merged mean"):
        found = fit(fb.FedPA(solver="laplace", **ONE), participation=0.5, num_rounds=6)
    assert found.rounds["active"].sum("client").values.tolist()[-8:] == [1] * 6 + [2, 2]
    for gap in gaps(found):
        np.testing.assert_allclose(gap, 0.0, atol=1e-8)


@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # the Monte Carlo error shows in the check
@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("estimator", ["sample", "shrinkage"])
@pytest.mark.statistical(key=4, numbers=5, alarm=2.2e-5)
def test_sampled_covariances_are_exact_up_to_monte_carlo(estimator) -> None:
    """Sixteen replicates of 2,048 draws: within seven standard errors of their mean, which are small themselves."""
    method = fb.FedPA(
        solver="importance", num_samples=2048, estimator=estimator, shrinkage=100.0, tolerance=1e-6, num_replicates=16
    )
    for gap in gaps(fit(method)):
        error = gap.std(axis=0, ddof=1) / np.sqrt(16)  # of 16: Student's t of 15, of which 4.3e-6 lies beyond seven
        assert np.all(np.abs(gap.mean(axis=0)) < 7.0 * error + 1e-3)
        assert np.all(error < 0.15)
        assert np.any(error > 1e-6)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("solver", ["iasg", "sgld"])
@pytest.mark.statistical(key="4, 6", numbers=4, errors=6.0)
@pytest.mark.statistical(key="4, 6", alarm=1e-5)  # the fit's own warning: see below
def test_gradient_solvers_find_the_posterior(solver) -> None:
    """Well-specified clients: sds within 15 percent, means within half an sd of eight replicates of 400 samples.

    Iterate averages have the posterior's covariance where windows are longer than the chain's memory, and the model's
    residuals are as large as it says; Langevin steps where they are small.
    """
    rng = np.random.default_rng(0)
    clients = {}
    for k, num in enumerate((60, 100)):
        x = rng.normal(size=(num, 2)) * ([1.0, 0.5] if k else [0.5, 1.0])
        clients[f"c{k}"] = {"x": x, "y": x @ np.array([1.0, -1.0]) + NOISE * rng.normal(size=num)}
    options = {"iasg": {"batch_size": 10}, "sgld": {"step_size": 0.05}}[solver]
    method = fb.FedPA(
        solver=solver,
        num_samples=400,
        local_steps=41_000,
        burn_in=1_000,
        estimator="sample",
        max_rounds=3,
        num_replicates=8,
        **options,
    )
    # The fit warns of an error of the means above 0.1 sds. It is 0.042, as eight replicates estimate it: seven times
    # (0.1 / 0.042)^2 is beyond a chi-squared of seven with a probability of 1.4e-6, for each of two globals and fits.
    found = fit(method, clients, key=jax.random.key({"iasg": 4, "sgld": 6}[solver]))
    mean, covariance = exact(clients)
    sd = np.sqrt(np.diagonal(covariance))
    found_mean, found_covariance = (value.mean(axis=0) for value in found.moments())
    assert np.all(np.abs(np.sqrt(np.diagonal(found_covariance)) / sd - 1.0) < 0.15)
    assert np.all(np.abs(found_mean - mean) / sd < 0.5)


def test_iterate_averages_need_their_factor() -> None:
    """A closed form: averages over T steps of batches b out of n have (n - b) / (b T) of the posterior's covariance."""
    np.testing.assert_allclose(covariance_factor(jnp.asarray(100.0), 10, 9), 1.0)  # an epoch less what is left out
    np.testing.assert_allclose(covariance_factor(jnp.asarray(50.0), 10, 100), 25.0)


@pytest.mark.statistical(key=4, numbers=12, errors=5.0)
def test_low_rank_posterior_is_the_dense_one(monkeypatch, limit_dense) -> None:
    """Above so many globals the same samples are merged as factors: the same posterior to rounding."""
    rng = np.random.default_rng(3)
    clients = {}
    for k in range(3):
        x = rng.normal(size=(20, 6))
        clients[f"c{k}"] = {"x": x, "y": x @ np.ones(6) + NOISE * rng.normal(size=20)}
    method = fb.FedPA(
        solver="sgld", num_samples=4, local_steps=22, burn_in=2, step_size=0.05, shrinkage=0.5, check=False,
        max_rounds=2, init={"beta": np.full(6, 0.5)}, preconditioner="none", num_replicates=2,
    )  # fmt: skip
    with pytest.warns(fb.NotConvergedWarning):
        dense = fit(method, clients)
    limit_dense(monkeypatch, 3)
    with pytest.warns(fb.NotConvergedWarning, match="The last round still moved the server by"):
        found = fit(method, clients)
    assert isinstance(dense.posterior, Gaussian)
    assert isinstance(found.posterior, LowRankGaussian)
    assert found.posterior.basis.shape == (2, 12, 6)
    for one, other in zip(found.moments(), dense.moments(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    draws = np.asarray(found.idata.posterior["beta"])
    assert draws.shape == (2, 1000, 6)
    sd = np.sqrt(np.diagonal(dense.moments()[1], axis1=1, axis2=2))
    assert np.all(np.abs(draws.mean(axis=1) - dense.moments()[0]) / sd < 5.0 / np.sqrt(1000))
    assert found.monte_carlo_error > 0.0
    assert "precision of rank 12 in 6 dimensions" in repr(found)
    assert np.all(np.isnan(found.log_evidence))


def test_rounds_of_fedavg_come_first() -> None:
    method = fb.FedPA(
        solver="sgld", num_samples=3, local_steps=30, burn_in=6, step_size=0.02, fedavg_rounds=2, check=False, **PLAIN
    )
    with pytest.warns(fb.NotConvergedWarning):
        found = fit(method, num_rounds=3)
    assert found.rounds["phase"].values.tolist() == ["FedAvg"] * 2 + ["FedPA"] * 3 + ["merge"]
    with pytest.warns(fb.NotConvergedWarning):
        alone = fit(fedavg(30, step_size=0.02), num_rounds=2)
    np.testing.assert_allclose(found.rounds["server"][1], path(alone)[1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # the Monte Carlo error shows in the check
@pytest.mark.statistical(key=4, numbers=6, errors=5.0)
def test_local_latents_are_integrated_out() -> None:
    """Exact moments are exact; Langevin samples of globals and locals agree within their Monte Carlo error."""
    tau = np.array([0.5, 1.5, 0.8])
    clients = hm2.simulate(jax.random.key(3), num_clients=5, rows=12, tau=tau, noise_sd=0.7)[0]
    model = partial(hm2.model, tau=tau, noise_sd=0.7)
    mean, covariance = hm2.exact_posterior_mu(clients, tau, 0.7)
    sd = np.sqrt(np.diagonal(covariance))
    found = fit(fb.FedPA(solver="laplace", **ONE), clients, model)
    np.testing.assert_allclose((found.moments()[0][0] - mean) / sd, 0.0, atol=1e-7)
    np.testing.assert_allclose(found.moments()[1][0], covariance, atol=1e-7)
    method = fb.FedPA(
        solver="sgld", num_samples=200, local_steps=21_000, burn_in=1_000, step_size=0.05, estimator="sample",
        num_replicates=4, max_rounds=2,
    )  # fmt: skip
    found = fit(method, clients, model)
    assert np.all(np.abs(found.moments()[0].mean(axis=0) - mean) / sd < 0.4)
    ratios = np.sqrt(np.diagonal(found.moments()[1].mean(axis=0)) / np.diagonal(covariance))
    assert np.all(np.abs(ratios - 1.0) < 0.15)  # of 800 samples: five errors, and a bias of 2 percent


@pytest.mark.parametrize("bug", ["identity", "weight twice"])
def test_planted_bugs_are_seen(bug, monkeypatch, paths) -> None:
    """Negative controls: deltas without the covariance (FedAvg's), and weighted a second time."""
    correct = fedpa.drawing_clients

    def wrong(config, roster, weights):
        clients = correct(config, roster, weights)

        def spoil(run, shared, private, client, inputs):
            found, after = run(shared, private, client, inputs)
            weight = weights[client.index]
            delta = shared.position - found.mean if bug == "identity" else weight * found.delta
            return found._replace(delta=delta), after

        deltas = {name: delta._replace(run=partial(spoil, delta.run)) for name, delta in clients.deltas.items()}
        return clients._replace(deltas=deltas)

    monkeypatch.setattr(fedpa, "drawing_clients", wrong)
    with pytest.raises((AssertionError, fb.NotConvergedWarning)):
        test_fixed_point_and_posterior_are_exact("mode", paths)


def test_the_method_has_one_name() -> None:
    from fedbayes.inference import METHODS

    assert [name for name, method in METHODS.items() if method is fb.FedPA] == ["fedpa"]
    with pytest.raises(ValueError, match="'fedpa', 'fedprox', 'laplace', 'one_shot'\\]"):
        fit("fedpaa")
