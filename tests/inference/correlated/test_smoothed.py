"""Algorithm 3.1 of the source against its own NumPy loop, and its known defects."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.inference.correlated.smoothed import State, objective
from fedbayes.inference.local.after import AFTER
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.progress import Silent

KEY = jax.random.key(2)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def model(x, y=None):
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


def make_clients(num=4, size=3, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(num):
        x = rng.normal(size=(9 + k, size))
        found[f"c{k}"] = {"x": x, "y": x @ rng.normal(size=size) + 0.1 * rng.normal(size=9 + k)}
    return found


def by_the_source(clients, theta, rounds, step_size, local_steps, smoothing, masks=None, omega=None):
    """Algorithm 3.1 with all rows, in the source's own layout: ``Theta`` is d x K."""
    theta, num = theta.T.copy(), len(clients)
    omega = np.eye(num)
    for c in range(rounds):
        pull = theta @ np.linalg.inv(omega)
        new = theta.copy()
        for k, data in enumerate(clients.values()):
            if masks is not None and not masks[c][k]:
                continue
            own = theta[:, k].copy()
            for _ in range(local_steps):
                own += 2 * step_size * data["x"].T @ (data["y"] - data["x"] @ own)
            new[:, k] = own - 2 * step_size * pull[:, k]
        theta = new
        omega = (1 - smoothing) * omega + smoothing / len(theta) * theta.T @ theta
    return theta.T, omega


def run(clients, rounds, participation=1.0, **options):
    method = fb.CorrelatedClients(update="smoothed", **options)
    problem = make_problem(model, clients, rows=method.needs_rows, only_locals=True)
    programs, executor = Programs(method.phases(problem.roster), AFTER, 1), Batched()
    executor.connect(programs, problem, KEY)
    running = Run(programs, problem.roster, executor, KEY, participation)
    start = running.begin(0, None).state.theta[0]
    return start, running.run(rounds, Silent())


def test_full_batches_equal_the_sources_loop():
    clients = make_clients()
    start, ended = run(clients, 12, batch_size=None, step_size=0.004)
    theta, omega = by_the_source(clients, start, 12, 0.004, 20, 0.1)
    np.testing.assert_allclose(ended.state.theta[0], theta, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ended.state.omega[0], omega, rtol=1e-10, atol=1e-10)
    # negative control: half the step of the prior
    other, _ = by_the_source(clients, start, 12, 0.004, 20, 0.2)
    assert np.max(np.abs(ended.state.theta[0] - other)) > 1e-5


def test_absent_clients_keep_their_coefficients():
    clients, masks = make_clients(), np.random.default_rng(1).random((6, 4)) < 0.6
    start, ended = run(clients, 6, lambda round_, key: masks[round_], batch_size=None, step_size=0.004)
    theta, omega = by_the_source(clients, start, 6, 0.004, 20, 0.1, masks)
    np.testing.assert_allclose(ended.state.theta[0], theta, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ended.state.omega[0], omega, rtol=1e-10, atol=1e-10)


def test_the_objective_is_unbounded_below():
    """Notes on 1.7: ``Theta v = 0`` and Omega's eigenvalue along v to zero; the slope is m in its logarithm."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    theta = rng.normal(size=(4, 3))
    theta -= np.outer(axes[:, 0], axes[:, 0] @ theta)
    levels = []
    for size in (1.0, 1e-3, 1e-6, 1e-12):
        omega = axes @ np.diag([size, 1.0, 1.0, 1.0]) @ axes.T
        levels.append(float(objective(State(jnp.asarray(theta), jnp.asarray(0.5 * (omega + omega.T))), jnp.zeros(4))))
    # the notes' golden numbers 287.5, 266.8, 246.0, 204.6 fall by the same amounts
    np.testing.assert_allclose(np.diff(levels), np.diff([287.5, 266.8, 246.0, 204.6]), atol=0.15)
    np.testing.assert_allclose(np.diff(levels), 3.0 * np.log([1e-3, 1e-3, 1e-6]), rtol=2e-4)


def test_all_rows_can_diverge_and_the_fit_says_so():
    with pytest.warns(fb.NotConvergedWarning, match=r"batch_size|no number|not finite"):
        fit = fb.fit_federated(
            model,
            make_clients(),
            method=fb.CorrelatedClients(update="smoothed", batch_size=None, step_size=3.0, local_steps=400),
            key=KEY,
            progress=False,
        )
    assert not fit.converged


def test_too_many_rounds_are_said_to_be_unstable():
    method = fb.CorrelatedClients(update="smoothed", smoothing=0.9)
    with pytest.warns(fb.NotConvergedWarning, match="unstable with more clients than coefficients"):
        fit = fb.fit_federated(model, make_clients(), method=method, key=KEY, num_rounds=6, progress=False)
    assert fit.rounds.attrs["unstable_after"] == pytest.approx(2.0)


def test_a_point_is_an_answer(tmp_path):
    clients = make_clients()
    fit = fb.fit_federated(
        model, clients, method=fb.CorrelatedClients(update="smoothed"), key=KEY, progress=False, num_rounds=20
    )
    assert fit.converged
    assert "no mode and no posterior" in repr(fit)
    assert fit.idata.posterior["omega"].sizes == {"chain": 1, "draw": 1, "client_name": 4, "other_client_name": 4}
    own = fit.client_posterior("c2").posterior["theta"]
    np.testing.assert_array_equal(own, fit.idata.posterior["theta_by_client"].sel(client_name="c2"))
    assert fit.client_posteriors().posterior["theta"].shape == (1, 1, 4, 3)
    predicted = fit.predict("c2", x=clients["c2"]["x"]).posterior_predictive["y"]
    assert predicted.shape == (1, 1, 11)
    assert fit.log_predictive_density("c2", **clients["c2"])["y"].shape == (11,)
    fit.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", model, clients)
    np.testing.assert_array_equal(again.client_posterior("c2").posterior["theta"], own)
