"""FA-LD against the exact law of quadratic clients, against unadjusted Langevin, FedAvg and NUTS; and planted bugs."""

from itertools import repeat
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from fedbayes.inference.fald import client as fald
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.fald.participation import participation_share
from fedbayes.inference.local.after import AFTER
from fedbayes.inference.local.steps.energy import Energy
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs, client_key, client_secrets
from fedbayes.rounds.progress import Silent
from fedbayes.theory import langevin as theory

KEY = jax.random.key(3)
CHAINS = 6250


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def gaussian(y, scale):
    """A client with the energy ``(theta - y)^2 / (2 scale^2)``, under a flat prior."""
    theta = numpyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(theta, scale), obs=y)


class Quadratic(NamedTuple):
    """One-dimensional quadratic clients, as data for ``gaussian`` and for the theory."""

    hessians: np.ndarray
    minima: np.ndarray
    weights: np.ndarray

    def data(self) -> dict:
        """Client c has the energy ``p_c f_c``."""
        scales = 1.0 / np.sqrt(self.weights * self.hessians)
        pairs = enumerate(zip(self.minima, scales, strict=True))
        return {f"c{c}": {"y": np.array([y]), "scale": np.array([s])} for c, (y, s) in pairs}

    def theory(self, tau: float = 1.0) -> theory.QuadraticClients:
        return theory.QuadraticClients(self.hessians[:, None, None], self.minima[:, None], self.weights, tau)

    def options(self) -> dict:
        return {"weights": {f"c{c}": float(p) for c, p in enumerate(self.weights)}}


NOTES = Quadratic(np.array([1.0, 9.0]), np.array([-1.0, 1.0]), np.array([0.5, 0.5]))
UNEVEN = Quadratic(np.array([1.0, 4.0, 9.0]), np.array([-1.0, 2.0, 0.5]), np.array([0.2, 0.3, 0.5]))
PLAIN = {"init": "zero", "preconditioner": "none", "num_warmup": 0, "num_chains": CHAINS}


def draws_of(model, clients, method, num_draws, num_rounds=None, key=KEY):
    """All draws of a run, shape ``(draw, chain, d)``, without the summaries of a fit."""
    problem = make_problem(model, clients, rows=method.needs_rows)
    programs, executor = Programs(method.phases(problem.roster), AFTER, method.num_replicates), Batched()
    executor.connect(programs, problem, key)
    current = Run(programs, problem.roster, executor, key).run(num_rounds, Silent(), num_draws=num_draws)
    return np.concatenate(current.draws)


def assert_law(draws, mean, variance, *, sds=5.0):
    """Mean and variance of independent draws ``(chain,)`` within so many Monte Carlo standard errors."""
    num = len(draws)
    assert abs(draws.mean() - mean) < sds * np.sqrt(variance / num)
    assert abs(draws.var() / variance - 1.0) < sds * np.sqrt(2.0 / num)


# --- the exact law of quadratic clients


# table 3.B of the method notes: step, K, rounds to stationarity from zero, mean, variance at rho = 0, 0.5 and 1
GOLDEN = {
    "K=5": (0.01, 5, 120, 0.769353, {0.0: 0.220019, 0.5: 0.219519, 1.0: 0.218018}),
    "K=10": (0.01, 10, 80, 0.729205, {0.0: 0.242219, 0.5: 0.240045, 1.0: 0.233522}),
}
MORE_GOLDEN = {
    "K=1": (0.01, 1, 400, 0.800000, {0.0: 0.205128, 0.5: 0.205128, 1.0: 0.205128}),
    "K=2": (0.01, 2, 200, 0.792492, {0.0: 0.208551, 0.5: 0.208507, 1.0: 0.208375}),
    "K=50": (0.01, 50, 40, 0.430039, {0.0: 0.415943, 0.5: 0.391651, 1.0: 0.318775}),
    "K=100": (0.01, 100, 20, 0.223976, {0.0: 0.510465, 0.5: 0.472758, 1.0: 0.359636}),
    "K=1000": (0.01, 1000, 4, 0.000022, {0.0: 0.560686, 0.5: 0.515827, 1.0: 0.381251}),
    "small step, K=10": (0.001, 10, 400, 0.793454, {0.0: 0.203475, 0.5: 0.203452, 1.0: 0.203384}),
    "small step, K=100": (0.001, 100, 60, 0.724152, {0.0: 0.240522, 0.5: 0.238216, 1.0: 0.231298}),
}


# All rows, and the correlations in turn: in closed form the whole table is in `test_langevin_theory.py`.
CASES = [(row, rho) for row in GOLDEN for rho in (0.0, 0.5, 1.0)]
CASES += [(row, (0.0, 0.5, 1.0)[place % 3]) for place, row in enumerate(MORE_GOLDEN)]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(("row", "rho"), CASES)
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_golden_stationary_law(row, rho):
    """Two clients in one dimension with curvatures 1 and 9."""
    step, steps, rounds, mean, variance = (GOLDEN | MORE_GOLDEN)[row]
    method = FALD(local_steps=steps, step_size=step, noise_correlation=rho, thinning=rounds, **PLAIN)
    draws = draws_of(gaussian, NOTES.data(), method, 1)
    assert_law(draws[-1, :, 0], mean, variance[rho])


@pytest.mark.parametrize("case", [NOTES, UNEVEN], ids=["notes", "uneven"])
@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.statistical(key=3, numbers=12, errors=5.0)
def test_law_of_each_round(case, rho):
    """From zero, after 1 to 6 rounds, unequal weights included."""
    method = FALD(local_steps=4, step_size=0.02, noise_correlation=rho, temperature=0.7, **PLAIN, **case.options())
    draws = draws_of(gaussian, case.data(), method, 6)
    law = theory.round_law(case.theory(tau=0.7), np.full(4, 0.02), rho=rho)
    expected = theory.trajectory(repeat(law, 6), np.zeros(1))
    for found, (mean, covariance) in zip(draws, list(expected)[1:], strict=True):
        assert_law(found[:, 0], mean[0], covariance[0, 0])


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_decaying_steps_follow_their_law():
    method = FALD(local_steps=10, step_size=lambda k: 1.0 / (18.0 + k / 12.0), noise_correlation=0.0, **PLAIN)
    draws = draws_of(gaussian, NOTES.data(), method, 10)
    clients = NOTES.theory()
    steps = theory.varying_steps(clients.constants(np.zeros(1)), 0, 100).reshape(10, 10)
    *_, (mean, covariance) = theory.trajectory((theory.round_law(clients, part) for part in steps), np.zeros(1))
    assert_law(draws[-1, :, 0], mean[0], covariance[0, 0])


def test_decaying_by_name_is_the_schedule_of_the_theorem():
    """``L`` and ``m`` come from the clients' curvatures at the mode, here 9 and 1 without a preconditioner."""
    options = {"local_steps": 5, "preconditioner": "none", "num_chains": 3, "num_warmup": 0}
    named = draws_of(gaussian, NOTES.data(), FALD(step_size="decaying", **options), 5)
    written = draws_of(gaussian, NOTES.data(), FALD(step_size=lambda k: 1.0 / (18.0 + k / 12.0), **options), 5)
    np.testing.assert_allclose(named, written, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(
    ("scheme", "rho"), [(s, r) for s in ("with_replacement", "without_replacement") for r in (0.0, 0.5, 1.0)]
)
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_partial_participation_inflates_as_derived(scheme, rho):
    """Ten equal clients, five a round: the factors of section 3.F, and an unbiased mean."""
    num, active, eta = 10, 5, 0.1
    same = Quadratic(np.ones(num), np.full(num, 2.0), np.full(num, 1.0 / num))
    method = FALD(
        local_steps=2, step_size=eta, noise_correlation=rho, scheme=scheme, num_active=active, thinning=60, **PLAIN
    )
    draws = draws_of(gaussian, same.data(), method, 1)[-1, :, 0]
    factor = {
        ("with_replacement", 0.0): 2.8, ("with_replacement", 0.5): 2.35, ("with_replacement", 1.0): 1.0,
        ("without_replacement", 0.0): 2.0, ("without_replacement", 0.5): 1.75, ("without_replacement", 1.0): 1.0,
    }[scheme, rho]  # fmt: skip
    variance = factor / (1.0 - eta / 2.0)
    assert abs(draws.mean() - 2.0) < 5.0 * np.sqrt(variance / CHAINS)
    assert abs(draws.var() / variance - 1.0) < 7.5 * np.sqrt(2.0 / CHAINS)  # a mixture: six of its own errors


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_unbalanced_clients_drawn_by_weight_follow_their_law():
    method = FALD(
        local_steps=3, step_size=0.02, noise_correlation=0.3, scheme="with_replacement", num_active=2,
        thinning=5, **PLAIN, **UNEVEN.options(),
    )  # fmt: skip
    draws = draws_of(gaussian, UNEVEN.data(), method, 1)[-1, :, 0]
    share = participation_share(UNEVEN.weights, 2, "with_replacement")
    law = theory.round_law(UNEVEN.theory(), np.full(3, 0.02), rho=0.3, share=share)
    *_, (mean, covariance) = theory.trajectory(repeat(law, 5), np.zeros(1))
    assert abs(draws.mean() - mean[0]) < 5.0 * np.sqrt(covariance[0, 0] / CHAINS)
    assert abs(draws.var() / covariance[0, 0] - 1.0) < 7.5 * np.sqrt(2.0 / CHAINS)  # a mixture, as above


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_control_variate_removes_the_bias_of_the_mean():
    """With the anchor at the mode every client's minimum is the global one; the covariance is that of such clients."""
    steps, eta = 20, 0.01
    centred = NOTES._replace(minima=np.full(2, 0.8))
    law, biased = (theory.round_law(case.theory(), np.full(steps, eta)).stationary() for case in (centred, NOTES))
    assert abs(biased[0][0] - 0.8) > 0.1
    options = PLAIN | {"init": "mode", "control_variate": True}
    method = FALD(local_steps=steps, step_size=eta, noise_correlation=0.0, thinning=60, **options)
    draws = draws_of(gaussian, NOTES.data(), method, 1)
    assert_law(draws[-1, :, 0], law[0][0], law[1][0, 0])
    assert law[0][0] == pytest.approx(0.8, abs=1e-12)


@pytest.mark.statistical(key=3, numbers=1, errors=5.0)
@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=1, errors=30.0)
def test_refreshed_anchor_keeps_the_mean():
    """The anchor moves to each chain's own position: noise, but no bias of the mean for quadratic clients."""
    options = PLAIN | {"init": "mode", "control_variate": True}
    method = FALD(local_steps=10, step_size=0.01, noise_correlation=1.0, refresh=3, thinning=61, **options)
    draws = draws_of(gaussian, NOTES.data(), method, 1)[-1, :, 0]
    assert abs(draws.mean() - 0.8) < 5.0 * draws.std() / np.sqrt(CHAINS)
    # negative control: without a control variate 50 local steps have a bias of 0.37, fifty standard errors (K=50 above)
    plain = FALD(local_steps=50, step_size=0.01, thinning=10, **PLAIN)
    biased = draws_of(gaussian, NOTES.data(), plain, 1)[-1, :, 0]
    assert abs(biased.mean() - 0.8) > 10.0 * biased.std() / np.sqrt(CHAINS)


# --- special cases, to rounding


def step_keys(round_, client, chain, step):
    """The keys of one step's shared and private noise: everybody's by identity, a client's by its secret."""
    phase = jax.random.fold_in(KEY, 0)
    noise = jax.random.split(jax.random.fold_in(phase, chain), 3)[1]
    for r in range(round_):
        key = jax.random.fold_in(jax.random.fold_in(phase, r), chain)
        noise = jax.random.split(key)[1]
    own = client_key(client_secrets(KEY, 3)[client], jax.random.fold_in(phase, round_))
    own = jax.random.fold_in(jax.random.fold_in(own, chain), step)
    return jax.random.fold_in(noise, step), jax.random.split(own)[1]


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
def test_one_local_step_is_unadjusted_langevin(rho):
    """K = 1, all clients: the chain is centralised Langevin with the aggregated noise, step by step."""
    rounds, eta = 4, 0.05
    method = FALD(
        local_steps=1, step_size=eta, noise_correlation=rho, **(PLAIN | {"num_chains": 2}), **UNEVEN.options()
    )
    draws = draws_of(gaussian, UNEVEN.data(), method, rounds)[:, :, 0]
    p, h, y = UNEVEN.weights, UNEVEN.hessians, UNEVEN.minima
    for chain in range(2):
        theta = 0.0
        for r in range(rounds):
            noise = 0.0
            for c in range(3):
                common, private = step_keys(r, c, chain, 0)
                drawn = 0.0 if rho == 1.0 else float(jax.random.normal(private, (1,))[0])
                shared = 0.0 if rho == 0.0 else float(jax.random.normal(common, (1,))[0])
                noise += p[c] * (rho * shared + np.sqrt((1 - rho**2) / p[c]) * drawn)
            theta += -eta * np.sum(p * h * (theta - y)) + np.sqrt(2 * eta) * noise
            assert draws[r, chain] == pytest.approx(theta, abs=1e-12)


def counts_model(x, y=None):
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


def counts_clients(sizes=(5, 12, 30), seed=0):
    rng = np.random.default_rng(seed)
    clients = {}
    for c, n in enumerate(sizes):
        x = rng.normal(size=(n, 2)) + 0.3 * c
        clients[f"c{c}"] = {"x": x, "y": rng.poisson(np.exp(x @ [0.5, -0.5]))}
    return clients


def test_cold_chains_are_federated_averaging():
    """Temperature 0: FedAvg with the step ``eta n`` on mean losses."""
    clients, eta, steps = counts_clients(), 1e-3, 7
    options = PLAIN | {"num_chains": 1}
    draws = draws_of(counts_model, clients, FALD(local_steps=steps, step_size=eta, temperature=0.0, **options), 5)
    rows = {name: len(data["y"]) for name, data in clients.items()}
    total = sum(rows.values())
    beta = np.zeros(2)
    for found in draws:
        ends = []
        for name, data in clients.items():
            local = beta
            for _ in range(steps):
                slope = data["x"].T @ (np.exp(data["x"] @ local) - data["y"])
                local = local - eta * total * slope / rows[name]
            ends.append(rows[name] / total * local)
        beta = np.sum(ends, axis=0)
        np.testing.assert_allclose(found[0], beta, rtol=1e-12)


def conjugate(y):
    mu = numpyro.sample("mu", dist.Normal(2.0, 0.5))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


CONJUGATE = {f"c{c}": {"y": np.random.default_rng(c).normal(size=n)} for c, n in enumerate((2, 5, 20))}


def conjugate_moments():
    y = np.concatenate([data["y"] for data in CONJUGATE.values()])
    precision = 1 / 0.25 + len(y)
    return (2.0 / 0.25 + y.sum()) / precision, 1.0 / precision


def conjugate_draws():
    """Small steps: in whitened coordinates the discretisation inflates the variance by eta / 2 = 0.5 percent."""
    method = FALD(local_steps=2, step_size=0.01, num_chains=CHAINS, num_warmup=0, thinning=40)
    return draws_of(conjugate, CONJUGATE, method, 1)[-1, :, 0]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_prior_is_counted_once_for_unbalanced_clients():
    mean, variance = conjugate_moments()
    assert_law(conjugate_draws(), mean, 1.005 * variance)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=3, numbers=2, errors=5.0)
def test_minibatches_follow_their_law():
    """One step of a mini-batch client: the gradient noise of sampling without replacement, in closed form."""
    y, batch, eta = np.random.default_rng(1).normal(size=12), 3, 0.02
    method = FALD(local_steps=1, step_size=eta, temperature=0.0, batch_size=batch, **PLAIN)

    def model(y):
        theta = numpyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    draws = draws_of(model, {"a": {"y": y}}, method, 1)[-1, :, 0]
    variance = (eta * 12) ** 2 * y.var(ddof=1) / batch * (1 - batch / 12)
    assert abs(draws.mean() - eta * y.sum()) < 5.0 * np.sqrt(variance / CHAINS)
    assert abs(draws.var() / variance - 1.0) < 0.1  # 5.6 standard errors, and more: the tails are lighter


def test_clipping_bounds_each_row():
    """Gradients at zero are minus the rows; those beyond the bound count as the bound."""
    y = np.array([0.5, -4.0, 3.0, 0.1])

    def model(y):
        theta = numpyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    method = FALD(local_steps=1, step_size=0.1, temperature=0.0, clip=1.0, **(PLAIN | {"num_chains": 1}))
    draws = draws_of(model, {"a": {"y": y}}, method, 1)
    np.testing.assert_allclose(draws[0, 0, 0], 0.1 * (0.5 - 1.0 + 1.0 + 0.1), rtol=1e-12)


def test_what_is_no_row_s_counts_once_and_is_not_clipped():
    """An outcome of the client itself, beside its rows: it is in no row's gradient."""

    def model(y, s):
        theta = numpyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)
        numpyro.sample("s", dist.Normal(theta, 0.5), obs=s)

    data = {
        "a": {"y": np.array([0.5, -4.0, 3.0, 0.1]), "s": np.array([2.0, 2.5])},
        "b": {"y": np.zeros(3), "s": np.zeros(2)},
    }
    method = FALD(local_steps=1, step_size=0.1, temperature=0.0, clip=1.0, **(PLAIN | {"num_chains": 1}))
    draws = draws_of(model, data, method, 1)
    np.testing.assert_allclose(draws[0, 0, 0], 0.1 * (0.5 - 1.0 + 1.0 + 0.1 + 4.0 * 4.5), rtol=1e-12)


# --- the noise


def noise_of(weights, rho, num=320_000):
    """Noise of the clients' steps, shape ``(num, N)``: one shared key, private keys by identity."""

    def one(key):
        common, private = jax.random.split(key)
        each = [
            fald._noise(rho, jnp.asarray(p), 1, 0, common, jax.random.fold_in(private, c), fine=False)[0][0]
            for c, p in enumerate(weights)
        ]
        return jnp.stack(each)

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, num)))


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.statistical(key=3, numbers=7, errors=5.0)
def test_noise_adds_up_to_a_standard_normal(rho):
    """Variances and correlations within five standard errors of 320,000 draws."""
    weights = np.array([0.1, 0.3, 0.6])
    noise = noise_of(weights, rho)
    assert abs((noise @ weights).var() - 1.0) < 5.0 * np.sqrt(2.0 / len(noise))
    np.testing.assert_allclose(noise.var(axis=0), rho**2 + (1 - rho**2) / weights, rtol=5.0 * np.sqrt(2.0 / len(noise)))
    found = np.corrcoef(noise.T)
    np.testing.assert_allclose(found, theory.noise_correlation(weights, rho), atol=5.0 / np.sqrt(len(noise)))
    if rho == 1.0:
        np.testing.assert_array_equal(noise[:, 0], noise[:, 1])


# --- planted bugs: what the tests above would say of them


def unscaled_noise(rho, weight, *arguments, fine):
    return CORRECT(rho, jnp.ones_like(weight), *arguments, fine=fine)


def squared_noise(rho, weight, *arguments, fine):
    return CORRECT(rho, weight**2, *arguments, fine=fine)


def private_common_noise(rho, weight, size, num_locals, common_key, own_key, fine):
    return CORRECT(rho, weight, size, num_locals, jax.random.fold_in(own_key, 1), own_key, fine=fine)


CORRECT = fald._noise


@pytest.mark.parametrize("bug", [unscaled_noise, squared_noise])
def test_wrongly_scaled_noise_is_seen(bug, monkeypatch):
    monkeypatch.setattr(fald, "_noise", bug)
    with pytest.raises(AssertionError):
        test_golden_stationary_law("K=5", 0.0)


def test_common_noise_drawn_per_client_is_seen(monkeypatch):
    monkeypatch.setattr(fald, "_noise", private_common_noise)
    with pytest.raises(AssertionError):
        test_golden_stationary_law("K=5", 1.0)


def test_prior_in_every_client_is_seen(monkeypatch):
    """Each client's energy divided by its weight, prior and all."""
    correct = Energy.slopes

    def wrong(energy, u, v, key):
        slope, slope_v = correct(energy, u, v, key)
        extra = jax.grad(lambda u: energy.prior.log_density(energy.shared.globals_at(u)))(u)
        return slope + extra - extra / energy.weight, slope_v

    monkeypatch.setattr(Energy, "slopes", wrong)
    mean, variance = conjugate_moments()
    with pytest.raises(AssertionError):
        assert_law(conjugate_draws(), mean, 1.005 * variance)
