"""FedAvg and FedProx against closed forms: fixed points, single rounds, modes and Laplace posteriors."""

import warnings
from dataclasses import replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import fedbayes as fb
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.fedavg.server import _drawn, first_position
from fedbayes.inference.local.steps.descent import make_batches
from fedbayes.models import eight_schools, heart_disease, linear

KEY = jax.random.key(0)


def line(x, y) -> None:
    slope = numpyro.sample("slope", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def plane(x, y) -> None:
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real_vector, (), (x.shape[1],)))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


GOLDEN = {
    "a": {"x": np.array([1.0, 2.0]), "y": np.array([1.0, 3.0])},
    "b": {"x": np.array([3.0]), "y": np.array([2.0])},
}
ORIGIN = {"slope": 0.0}
# steps, after one round and two, at the end, and the gradient of the mean loss there (Su, Xu and Yang 2023, their 2.4)
FEDAVG = [
    (1, 0.2166666667, 0.3827777778, 0.9285714286, 0.0),
    (5, 0.6656564518, 0.9044376963, 1.0380047944, 0.5106890407),
    (10, 0.9094554730, 1.0697270236, 1.1040136242, 0.8187302464),
]
FEDPROX = (0.1726692209, 0.3146857960, 0.9726618705, 0.2057553957)


def fitted(model, clients, method, num_rounds=None, **options):
    """A fit that may end before its rounds have arrived."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)
        return fb.fit_federated(
            model, clients, method=method, key=KEY, num_rounds=num_rounds, progress=False, **options
        )


def ended(fit) -> np.ndarray:
    return fit.moments()[0][0]


def place(fit) -> np.ndarray:
    """Where the rounds of a fit ended that has no Laplace posterior: a program less where none is asked about."""
    return np.asarray(fit.fitted.run.state.position)[0]


def planes(rows=(4, 9, 6), dim=3, seed=3) -> dict:
    rng = np.random.default_rng(seed)
    return {
        f"c{k}": {"x": x, "y": x @ rng.normal(size=dim) + rng.normal(size=n)}
        for k, n in enumerate(rows)
        if (x := rng.normal(size=(n, dim))) is not None
    }


def quadratic(clients) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, and curvatures and slopes at zero of the clients' mean losses."""
    rows = np.array([len(c["y"]) for c in clients.values()])
    hessians = np.stack([c["x"].T @ c["x"] / len(c["y"]) for c in clients.values()])
    slopes = np.stack([c["x"].T @ c["y"] / len(c["y"]) for c in clients.values()])
    return rows / rows.sum(), hessians, slopes


@pytest.mark.filterwarnings("ignore:The rounds ended .* at rest:fedbayes.NotConvergedWarning")  # golden, and far
@pytest.mark.parametrize(("steps", "first", "second", "last", "gradient"), FEDAVG)
def test_golden_fedavg(steps, first, second, last, gradient) -> None:
    method = fb.FedAvg(step_size=0.05, local_steps=steps, init=ORIGIN, tolerance=1e-12, max_rounds=1000)
    np.testing.assert_allclose(ended(fitted(line, GOLDEN, method, 1)), first, atol=1e-10)
    np.testing.assert_allclose(ended(fitted(line, GOLDEN, method, 2)), second, atol=1e-10)
    fit = fb.fit_federated(line, GOLDEN, method=method, key=KEY, progress=False)
    np.testing.assert_allclose(ended(fit), last, atol=1e-10)
    norm = fit.rounds["gradient_norm"].dropna("round").values[-1, 0]
    np.testing.assert_allclose(norm, gradient, atol=1e-9)
    # the mean loss has the curvature 14/3, so a posterior sd is 1/sqrt(14): the Newton step there is known
    gap = gradient / (14.0 / 3.0) * np.sqrt(14.0)
    np.testing.assert_allclose(fit.rounds.attrs["distance_from_mode"], gap, atol=1e-8)
    assert ("the clients' drift keeps it" in repr(fit)) == (gap > 0.1)
    assert fit.converged == (gap <= ERROR_LIMIT)
    assert ("(the limit is 0.1), at rest" in fit.trouble()) == (gap > ERROR_LIMIT)


SMALL_STEPS = {
    "tiny": {"optimizer": optax.sgd(1e-14)},
    "below rounding": {"optimizer": optax.sgd(1e-30)},
    "that shrink": {"step_size": 1e-4, "schedule": lambda round: 0.5**round},
    "that shrink at the server": {"step_size": 1e-4, "server_optimizer": optax.sgd(lambda count: 0.5**count)},
}


@pytest.mark.parametrize("kind", SMALL_STEPS)
def test_small_steps_are_no_convergence(kind) -> None:
    """The moves shrink, or are all rounding, far from the mode: what is left does not."""
    method = fb.FedAvg(init={"slope": 3.0}, laplace=False, local_steps=2, max_rounds=12, **SMALL_STEPS[kind])
    with pytest.warns(fb.NotConvergedWarning, match="The rounds were spent before they had arrived"):
        fit = fb.fit_federated(line, GOLDEN, method=method, key=KEY, progress=False)
    assert not fit.converged
    assert int((fit.rounds["phase"] == "FedAvg").sum()) == 12
    assert fit.fitted.run.last("left") > 1.0


def logistic(x, y) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_start_at_zero_is_zero_and_has_the_gradient_of_its_neighbours(batch_size) -> None:
    """One step from zero is ``eta / n sum (y - 1/2) x``; NumPyro's gradient at a logit of zero is off by 1/2 a row."""
    rng = np.random.default_rng(0)
    clients = {name: {"x": rng.normal(size=n), "y": rng.integers(0, 2, n)} for name, n in (("a", 2), ("b", 2))}
    method = fb.FedAvg(step_size=0.1, local_steps=1, laplace=False, batch_size=batch_size)
    fit = fitted(logistic, clients, method, 1, correct=False)
    slope = np.mean([np.mean((client["y"] - 0.5) * client["x"]) for client in clients.values()])
    np.testing.assert_allclose(fit.idata.posterior["slope"].values, 0.1 * slope, rtol=1e-12)
    with jax.enable_x64(True):
        assert not np.any(first_position(method, fit.roster, KEY))


@pytest.mark.parametrize("solver", ["newton", "steps"])
def test_golden_fedprox(solver) -> None:
    """The proximal weight is the inverse of the notes' step; 400 gradient steps solve it as Newton's one does."""
    steps = {} if solver == "newton" else {"step_size": 0.05, "local_steps": 400}
    method = fb.FedProx(proximal=20.0, solver=solver, init=ORIGIN, tolerance=1e-12, max_rounds=1000, **steps)
    for rounds, expected in ((1, FEDPROX[0]), (2, FEDPROX[1]), (None, FEDPROX[2])):
        fit = fitted(line, GOLDEN, method, rounds)
        np.testing.assert_allclose(ended(fit), expected, atol=1e-10)
    np.testing.assert_allclose(fit.rounds["gradient_norm"].dropna("round").values[-1, 0], FEDPROX[3], atol=1e-9)


DRAWN = {"scheme": "with_replacement", "step_size": 0.05, "local_steps": 5, "init": ORIGIN, "laplace": False}


def test_of_drawn_clients_the_server_takes_the_plain_mean() -> None:
    """Each ends at ``(1 - (1 - eta h)^5) optimum``; with one draw that is the answer, with three a mean of three."""
    ends = {
        name: (1.0 - (1.0 - 0.05 * x @ x / len(x)) ** 5) * (x @ y) / (x @ x)
        for name, (x, y) in {name: (client["x"], client["y"]) for name, client in GOLDEN.items()}.items()
    }
    one = fitted(line, GOLDEN, fb.FedAvg(num_active=1, **DRAWN), 1)
    (drawn,) = np.array(list(GOLDEN))[one.rounds["active"].dropna("round").values[-1]]
    np.testing.assert_allclose(one.idata.posterior["slope"].values.item(), ends[drawn], rtol=1e-12)
    three = fitted(line, GOLDEN, fb.FedAvg(num_active=3, **DRAWN), 1).idata.posterior["slope"].values.item()
    times = 3.0 * (three - ends["b"]) / (ends["a"] - ends["b"])
    np.testing.assert_allclose(times, round(times), atol=1e-9)


@pytest.mark.statistical(key=0, numbers=2, errors=5.0)
@pytest.mark.parametrize("wrong", [False, True])
def test_clients_are_drawn_by_their_weights(wrong) -> None:
    """Mean numbers of 2,000 rounds of three draws; the planted mistake draws all clients alike."""
    method, weights = fb.FedAvg(num_active=3, **DRAWN), np.array([0.2, 0.8])
    used = np.full(2, 0.5) if wrong else weights
    with jax.enable_x64(True):
        found = np.asarray(jax.vmap(lambda key: _drawn(method, used, key))(jax.random.split(KEY, 2000)))
    assert np.all(found.sum(axis=1) == 3.0)
    error = np.sqrt(3.0 * weights * (1.0 - weights) / len(found))
    assert np.all(np.abs(found.mean(axis=0) - 3.0 * weights) < 5.0 * error) is not np.bool_(wrong)


def test_drawn_clients_end_in_noise_that_shrinks_with_their_steps() -> None:
    method = fb.FedAvg(**DRAWN | {"num_active": 1, "local_steps": 1, "step_size": 0.1, "laplace": None})
    constant = fitted(line, GOLDEN, method)
    assert not constant.converged
    assert "end in noise as wide as their steps" in constant.trouble()
    shrinking = fitted(line, GOLDEN, replace(method, schedule=lambda round: 1.0 / (1.0 + round / 20.0)))
    assert shrinking.rounds.attrs["distance_from_mode"] < constant.rounds.attrs["distance_from_mode"]


@pytest.mark.parametrize("steps", [1, 5])
def test_rounds_follow_the_linear_recursion(steps) -> None:
    """``theta <- theta - sum_c p_c (I - (I - eta H_c)^K) (theta - optimum_c)``."""
    clients, eta = planes(), 0.1
    weights, hessians, slopes = quadratic(clients)
    theta = np.zeros(3)
    for rounds in range(1, 4):
        moved = np.repeat(theta[None], 3, axis=0)
        for _ in range(steps):
            moved = moved - eta * (np.einsum("cij,cj->ci", hessians, moved) - slopes)
        theta = weights @ moved
        method = fb.FedAvg(step_size=eta, local_steps=steps, init={"theta": np.zeros(3)}, laplace=False)
        found = fitted(plane, clients, method, rounds).idata.posterior["theta"].values[0, 0]
        np.testing.assert_allclose(found, theta, atol=1e-12)


def test_one_step_is_gradient_descent_on_the_pooled_data() -> None:
    """With the prior counted once; the curvature is asked for, and the step is half its inverse."""
    clients = heart_disease.clients()
    fit = fitted(heart_disease.model, clients, fb.FedAvg(local_steps=1, laplace=False), 5)
    pooled = {"all": {name: np.concatenate([c[name] for c in clients.values()]) for name in ("x", "y")}}
    step = 0.5 / fit.rounds["curvature"].max().item()
    alone = fitted(heart_disease.model, pooled, fb.FedAvg(local_steps=1, step_size=step, laplace=False), 5)
    np.testing.assert_allclose(place(fit), place(alone), atol=1e-12)
    np.testing.assert_allclose(
        fit.rounds["objective"].dropna("round"), alone.rounds["objective"].dropna("round"), rtol=1e-12
    )


def test_no_proximal_term_is_fedavg_bit_for_bit() -> None:
    clients = planes()
    one = fitted(plane, clients, fb.FedProx(proximal=0.0, local_steps=4, laplace=False), 6)
    other = fitted(plane, clients, fb.FedAvg(local_steps=4, laplace=False), 6)
    np.testing.assert_array_equal(place(one), place(other))


@pytest.mark.parametrize("name", ["heart", "schools"])
def test_one_step_ends_at_the_mode_with_its_laplace_posterior(name) -> None:
    """With locals integrated out, too: the mode, the covariance and the evidence of the Newton rounds."""
    model, clients = {
        "heart": (heart_disease.model, heart_disease.clients()),
        "schools": (eight_schools.model_noncentered, eight_schools.clients()),
    }[name]
    server = {"heart": optax.sgd(1.0, momentum=0.9, nesterov=True), "schools": None}[name]
    method = fb.FedAvg(local_steps=1, server_optimizer=server, num_samples=256, tolerance=1e-7, max_rounds=2000)
    fit = fb.fit_federated(model, clients, method=method, key=KEY, progress=False)
    exact = fb.fit_federated(model, clients, method=fb.Laplace(tolerance=1e-9), key=KEY, progress=False)
    (mean, covariance), (right, spread) = ([part[0] for part in each.moments()] for each in (fit, exact))
    sd = np.sqrt(np.diagonal(spread))
    np.testing.assert_allclose((mean - right) / sd, 0.0, atol=1e-5)
    np.testing.assert_allclose(covariance / np.outer(sd, sd), spread / np.outer(sd, sd), atol=1e-5)
    np.testing.assert_allclose(fit.log_evidence, exact.log_evidence, atol=1e-6)
    assert fit.converged
    assert fit.rounds.attrs["distance_from_mode"] < 1e-5


def test_steps_shrink_where_the_curvature_grows() -> None:
    """The default step is right at the start; at the mode of the schools' log scale that would oscillate for ever."""
    fit = fitted(eight_schools.model_noncentered, eight_schools.clients(), fb.FedAvg(local_steps=1), 60)
    steps = fit.rounds["step_size"].dropna("round").values[:, 0]
    np.testing.assert_allclose(steps[0], 0.5 / fit.rounds["curvature"].max(), rtol=1e-12)
    assert steps[-1] < 0.75 * steps[0]
    assert fit.rounds.attrs["distance_from_mode"] < 0.1


def test_a_start_without_curvature_has_a_finite_step() -> None:
    """Absolute losses are flat but for their corners: nothing to measure a step by, so that half a unit is tried."""

    def median(y) -> None:
        centre = numpyro.sample("centre", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Laplace(centre, 1.0), obs=y)

    clients = {"a": {"y": np.array([4.0, 5.0])}, "b": {"y": np.array([6.0])}}
    fit = fitted(median, clients, fb.FedAvg(local_steps=1, init={"centre": 0.0}, laplace=False), 4)
    np.testing.assert_array_equal(fit.rounds["step_size"].dropna("round").values[:, 0], 0.5)
    np.testing.assert_allclose(fit.idata.posterior["centre"].values, 2.0, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=6, errors=5.0)
def test_a_start_can_be_drawn_from_the_prior() -> None:
    """Positive globals come back by their logs; 640 replicates within five Monte Carlo errors."""

    def scaled(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(3.0, 0.5).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.LogNormal(-1.0, 0.2))
        numpyro.sample("y", dist.Normal(mu[0] + mu[1], tau), obs=y)

    still = {"schedule": lambda round: 0.0 * round, "optimizer": optax.sgd(0.1), "laplace": False}
    method = fb.FedAvg(init="prior", num_replicates=640, **still)
    fit = fitted(scaled, {"a": {"y": np.ones(3)}}, method, 1)
    found = np.asarray(fit.fitted.run.state.position)
    np.testing.assert_allclose(found.mean(axis=0), [3.0, 3.0, -1.0], atol=0.1)
    np.testing.assert_allclose(found.std(axis=0), [0.5, 0.5, 0.2], rtol=0.15)  # 5.4 errors
    with pytest.raises(ValueError, match="`init` is 'prior', but a prior of the globals can't be drawn from"):
        fitted(line, GOLDEN, fb.FedAvg(init="prior"), 1)


def test_a_slope_without_end_is_no_arrival() -> None:
    """Thrown far below, the log of a scale has a constant slope: moves without curvature, and without an end."""

    def scale(y) -> None:
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(100.0 + tau**2)), obs=y)

    clients = {name: {"y": np.array([float(y)])} for name, y in (("a", 20), ("b", 30))}
    method = fb.FedAvg(local_steps=1, init={"tau": -20.0}, step_size=0.01, laplace=False)
    fit = fitted(scale, clients, method, 20)
    assert np.nanmin(fit.rounds["change"].values[2:]) < 1e-6
    assert int((fit.rounds["phase"] == "FedAvg").sum()) == 20
    assert not fit.converged


def test_the_posterior_is_centred_where_the_rounds_end() -> None:
    """And a client's cavity is the Gaussian without its site: the cavities' precisions add up to K - 1 times it."""
    clients = planes()
    fit = fitted(plane, clients, fb.FedAvg(local_steps=10), 3)
    point = fitted(plane, clients, fb.FedAvg(local_steps=10, laplace=False), 3)
    np.testing.assert_allclose(ended(fit), point.idata.posterior["theta"].values[0, 0], atol=1e-10)
    x = np.concatenate([c["x"] for c in clients.values()])
    np.testing.assert_allclose(fit.moments()[1][0], np.linalg.inv(x.T @ x), rtol=1e-9)
    cavities = fit.fitted.cavities()
    np.testing.assert_allclose(np.asarray(cavities.precision)[0].sum(axis=0), 2.0 * x.T @ x, rtol=1e-9)


def test_lengths_in_posterior_sds_come_from_gradients_alone() -> None:
    clients = planes(rows=(40, 90, 60))
    fit = fitted(plane, clients, fb.FedAvg(local_steps=2, step_size=0.05, init={"theta": np.zeros(3)}), 25)
    ends = [ended(fitted(plane, clients, fit.method, n)) for n in (23, 24, 25, 300)]
    x = np.concatenate([c["x"] for c in clients.values()])

    def length(move: np.ndarray) -> float:
        return float(np.sqrt(move @ (x.T @ x) @ move / 3.0))

    last = fit.rounds.isel(round=fit.rounds["phase"].values == "FedAvg").isel(round=-1, replicate=0)
    np.testing.assert_allclose(last["change"], length(ends[1] - ends[0]), rtol=1e-6)
    # the moves shrink by the slowest direction's ratio, which it takes for that of all
    np.testing.assert_allclose(last["left"], length(ends[3] - ends[1]), rtol=0.2)


def test_a_pass_takes_each_row_once() -> None:
    mask = np.array([True] * 7 + [False] * 3)
    batches = make_batches(jnp.asarray(mask), KEY, 3, 2)
    assert int(batches.per_pass) == 3
    seen = []
    for i in range(6):
        rows, real, scale = batches.at(jnp.asarray(i), 3)
        seen.append(np.asarray(rows)[np.asarray(real)])
        np.testing.assert_allclose(scale, 7 / len(seen[-1]), rtol=1e-6)
    for first in (0, 3):
        assert sorted(np.concatenate(seen[first : first + 3])) == list(range(7))
    assert not np.array_equal(np.concatenate(seen[:3]), np.concatenate(seen[3:]))


def test_a_batch_of_all_rows_is_a_whole_step() -> None:
    clients = planes()
    whole = fitted(plane, clients, fb.FedAvg(local_steps=4, step_size=0.1, laplace=False), 3)
    batch = fitted(plane, clients, fb.FedAvg(epochs=4, batch_size=9, step_size=0.1, laplace=False), 3)
    found, expected = (each.idata.posterior["theta"].values for each in (batch, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_batches_of_one_row_follow_the_gradients_of_rows() -> None:
    """One client, a pass of single rows, in the order that its key gives."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.normal(size=5)
    method = fb.FedAvg(epochs=1, batch_size=1, step_size=0.1, init=ORIGIN, laplace=False)
    fit = fitted(line, {"a": {"x": x, "y": y}}, method, 1)
    reached = []
    for order in permutations(range(5)):
        theta = 0.0
        for i in order:
            theta -= 0.1 * x[i] * (theta * x[i] - y[i])
        reached.append(theta)
    assert np.min(np.abs(np.array(reached) - place(fit))) < 1e-12


def test_joint_locals_end_at_the_joint_mode() -> None:
    """Gaussian groups: the joint mode of the shared mean is that of its marginal posterior."""

    def groups(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with fb.local(), numpyro.plate("group", y.shape[0]):
            theta = numpyro.sample("theta", dist.Normal(mu, 0.7))
        numpyro.sample("y", dist.Normal(theta[:, None], 1.3).to_event(1), obs=y)

    rng = np.random.default_rng(5)
    clients = {name: {"y": rng.normal(2.0, 1.5, size=(n, 4))} for name, n in (("a", 3), ("b", 5))}
    precision = 8 / (0.7**2 + 1.3**2 / 4) + 1 / 9
    mean = sum(c["y"].mean(axis=1).sum() for c in clients.values()) / (0.7**2 + 1.3**2 / 4) / precision
    for how in ("joint", "marginal"):
        method = fb.FedAvg(locals=how, local_steps=1, tolerance=1e-10, max_rounds=1000)
        fit = fb.fit_federated(groups, clients, method=method, key=KEY, progress=False)
        np.testing.assert_allclose(ended(fit), mean, rtol=1e-7)  # the search for locals ends at a gain of 1e-9
        np.testing.assert_allclose(fit.moments()[1].ravel(), 1 / precision, rtol=1e-8)
    own = fit.client_posterior("a").posterior["theta"]
    assert own.shape[2:] == (3,)


def test_other_optimisers_are_one_argument() -> None:
    """FedAdam at the server, Adam at the clients with a schedule by round: both end at the mode."""
    clients = planes()
    x, y = (np.concatenate([c[name] for c in clients.values()]) for name in "xy")
    mode = np.linalg.lstsq(x, y, rcond=None)[0]
    few = {"local_steps": 1, "max_rounds": 400, "laplace": False}
    adam = fb.FedAvg(server_optimizer=optax.adam(0.1), **few)
    np.testing.assert_allclose(place(fitted(plane, clients, adam)), mode, atol=2e-2)
    decaying = fb.FedAvg(optimizer=optax.adam(0.1), schedule=lambda r: 0.98**r, **few)
    found = place(fitted(plane, clients, decaying))
    assert np.all(np.isfinite(found))
    still = fb.FedAvg(
        optimizer=optax.adam(0.1), schedule=lambda r: 0.0 * r, **few | {"init": {"theta": np.ones(3)}, "max_rounds": 3}
    )
    np.testing.assert_array_equal(place(fitted(plane, clients, still)).round(12), np.ones(3))


def test_partial_participation_hears_everybody_in_turn() -> None:
    clients = planes(rows=(5, 6, 7, 8))
    fit = fitted(plane, clients, fb.FedAvg(local_steps=2, max_rounds=40, laplace=False), participation=0.5)
    active = fit.rounds["active"].values[fit.rounds["phase"].values == "FedAvg"]
    np.testing.assert_array_equal(active.sum(axis=1), 2)
    assert active.any(axis=0).all()
    assert len(active) == 40  # its gradients are those of some clients: they never tell that it has arrived
    assert np.all(np.isfinite(place(fit)))


def test_random_starts_are_replicates() -> None:
    fit = fitted(plane, planes(), fb.FedAvg(init="random", num_replicates=3, laplace=False), 1)
    theta = fit.idata.posterior["theta"].values
    assert theta.shape == (3, 1, 3)
    assert len(np.unique(theta[:, 0, 0])) == 3


def test_a_point_says_that_it_is_one() -> None:
    clients, _ = linear.simulate(jax.random.key(2))
    fit = fb.fit_federated(linear.model, clients, method=fb.FedAvg(laplace=False), key=KEY, progress=False)
    assert fit.converged
    assert "a point estimate" in repr(fit)
    assert fit.idata.posterior["beta"].shape[:2] == (1, 1)
    assert fit.idata.posterior.attrs["inference"] == "point-estimate"
    assert "no draw of the posterior" in fit.idata.posterior.attrs["draws"]
    lp = fit.idata["sample_stats"]["lp"].values[0, 0]
    np.testing.assert_allclose(-fit.rounds["objective"].values[-1, 0], lp, rtol=1e-4)  # before the last round
    with pytest.raises(ValueError, match="moments"):
        fit.moments()


def test_a_network_of_more_globals_than_matrices_allow(limit_dense, monkeypatch) -> None:
    limit_dense(monkeypatch, 2)
    fit = fb.fit_federated(plane, planes(), method=fb.FedAvg(max_rounds=60), key=KEY, progress=False)
    assert fit.posterior is None
    assert np.all(np.isnan(fit.rounds["gradient_norm"].values))
    assert fit.converged  # its objective has stopped falling


def spread_out(x, y) -> None:
    """Sites of several shapes, one of them with a transform, in no alphabetical order."""
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([3, 2]).to_event(2))
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(level + (x @ slopes).sum(axis=-1), sigma), obs=y)


@pytest.mark.parametrize(
    "options", [{"local_steps": 3}, {"epochs": 2, "batch_size": 4}, {"epochs": 2, "batch_size": 4, "proximal": 0.3}]
)
def test_steps_on_the_arrays_of_sites_are_those_on_a_vector(options, limit_dense, monkeypatch) -> None:
    """What many globals are for the sake of speed changes nothing: optimisers, batches, or the proximal term."""
    adam, seen = optax.adam(0.05), []

    def update(slope, state, params=None):
        seen.append(type(slope))
        return adam.update(slope, state, params)

    rng = np.random.default_rng(0)
    clients = {f"c{n}": {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in (9, 9, 6)}
    method = fb.FedAvg(optimizer=optax.GradientTransformation(adam.init, update), laplace=False, **options)
    vector = fitted(spread_out, clients, method, 3)
    assert dict not in seen
    limit_dense(monkeypatch, 7)
    seen.clear()
    named = fitted(spread_out, clients, method, 3)
    assert set(seen) == {dict}
    assert vector.roster.size == 8
    np.testing.assert_allclose(place(named), place(vector), rtol=1e-10)


def fragile() -> optax.GradientTransformation:
    """An optimiser that breaks where a slope is huge."""

    def update(slope, state, params=None):
        broken = (jnp.abs(slope) > 1e6).any()
        return jax.tree.map(lambda g: jnp.where(broken, jnp.nan, -0.05 * g), slope), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def test_an_optimiser_that_fails_is_named_with_its_client_and_round() -> None:
    clients = planes()
    clients["c1"]["y"] = 1e9 * clients["c1"]["y"]
    method = fb.FedAvg(optimizer=fragile(), local_steps=2, max_rounds=3, laplace=False)
    with pytest.warns(fb.NotConvergedWarning, match=r"Round 3. Client 'c1': .*finite"):
        fit = fb.fit_federated(plane, clients, method=method, key=KEY, progress=False)
    assert not fit.converged
    assert np.all(np.isfinite(place(fit)))


def test_a_server_that_fails_keeps_its_last_good_state() -> None:
    def update(slope, state, params=None):
        return jax.tree.map(lambda g: jnp.where(state >= 2, jnp.nan, -g), slope), state + 1

    broken = optax.GradientTransformation(lambda params: jnp.zeros(()), update)
    clients = planes()
    with pytest.warns(fb.NotConvergedWarning, match="The server could take no step"):
        fit = fb.fit_federated(
            plane, clients, method=fb.FedAvg(server_optimizer=broken, local_steps=3, laplace=False), key=KEY,
            progress=False,
        )  # fmt: skip
    before = fitted(plane, clients, fb.FedAvg(local_steps=3, laplace=False), 2)
    np.testing.assert_array_equal(place(fit), place(before))
    assert int((fit.rounds["phase"] == "FedAvg").sum()) == 3  # the third failed, and was the last


def test_steps_that_are_too_long_are_called_so() -> None:
    with pytest.warns(fb.NotConvergedWarning, match="The objective has risen: the steps are too long"):
        fb.fit_federated(
            line, GOLDEN, method=fb.FedAvg(optimizer=optax.sgd(0.5)), num_rounds=5, key=KEY, progress=False
        )


def test_rounds_in_noise_are_not_called_drift() -> None:
    clients = planes(rows=(30, 40, 50))
    method = fb.FedAvg(batch_size=2, epochs=1, step_size=0.05, max_rounds=30)
    with pytest.warns(fb.NotConvergedWarning, match="end in noise as wide as their steps"):
        fb.fit_federated(plane, clients, method=method, key=KEY, progress=False)


def test_a_mode_at_infinity_is_never_reached() -> None:
    """Its Newton step gets shorter and shorter, and the rounds do not arrive."""

    def always(y) -> None:
        level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Bernoulli(logits=level + jnp.zeros(y.shape)), obs=y)

    clients = {"a": {"y": np.ones(20, int)}, "b": {"y": np.ones(5, int)}}
    fit = fitted(always, clients, fb.FedAvg())
    assert not fit.converged


def test_a_point_can_be_asked() -> None:
    clients, _ = linear.simulate(jax.random.key(2))
    fit = fb.fit_federated(linear.model, clients, method=fb.FedAvg(laplace=False), key=KEY, progress=False)
    name = next(iter(clients))
    predicted = fit.predict(name, x=np.asarray(clients[name]["x"])[:4])
    assert predicted.posterior_predictive["y"].shape == (1, 1, 4)
    assert fit.check()["posterior_predictive"]["y"].shape[:2] == (1, 1)
    assert "client_posterior" not in repr(fit)


def test_steps_beyond_the_limit_of_stability() -> None:
    """The curvatures are 2.5 and 9: from 2/9 on client 'b' diverges, and from 1/9 on the theory is silent."""
    with pytest.raises(ValueError, match=r"`step_size` is 0.23, but the loss of client 'b' has the curvature 9 "):
        fb.fit_federated(line, GOLDEN, method=fb.FedAvg(step_size=0.23), key=KEY, progress=False)
    with pytest.warns(UserWarning, match="overshoot"):
        fitted(line, GOLDEN, fb.FedAvg(step_size=0.12), 2)
    fit = fitted(line, GOLDEN, fb.FedAvg(step_size=0.11), 2)
    np.testing.assert_allclose(fit.rounds["curvature"].values[0, :, 0], [2.5, 9.0], rtol=1e-6)


BAD = [
    ({"proximal": -1.0}, "`proximal` is -1.0"),
    ({"step_size": 0.0}, "`step_size` is 0.0"),
    ({"optimizer": optax.sgd(0.1), "step_size": 0.1}, "beside `optimizer`"),
    ({"scheme": "with_replacement"}, r"`scheme` is 'with_replacement' and `num_active` is None: clients are drawn by"),
    ({"num_active": 2}, "`scheme` is 'full' and `num_active` is 2: clients are drawn by"),
    ({"optimizer": 0.1}, "write an optax optimiser"),
    ({"server_optimizer": "adam"}, "write an optax optimiser"),
    ({"schedule": 0.99}, "write a function of the round"),
    ({"schedule": lambda r: 1.0 if r < 3 else 0.5}, "jnp.where"),
    ({"schedule": lambda r: jnp.ones(2)}, r"shape \(2,\)"),
    ({"optimizer": optax.polyak_sgd()}, "needs more than the gradient"),
    ({"epochs": 2, "local_steps": 5, "batch_size": 4}, "both say how long"),
    ({"epochs": 2}, "without `batch_size`"),
    ({"solver": "newton"}, "`proximal` is 0"),
    ({"solver": "newton", "proximal": 1.0, "batch_size": 3}, "takes no gradient steps"),
    ({"solver": "exact"}, "one of"),
    ({"init": "mode"}, "write 'zero', 'random', 'prior'"),
    ({"num_samples": 48}, "power of two"),
    ({"local_steps": 0}, "whole number"),
    ({"weights": "size"}, "`weights`"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_options_that_make_no_sense(options, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        fb.FedAvg(**options)


def test_options_that_do_not_fit_the_clients() -> None:
    schools = eight_schools.clients()
    for options, message in (
        ({"batch_size": 1}, "`batch_size` is 1, but the model has local latents"),
        ({"solver": "newton", "proximal": 1.0}, "`solver` is 'newton', but the model has local latents"),
        ({"init": {"nu": 0.0}}, "`init` has the sites"),
    ):
        with pytest.raises(ValueError, match=message):
            fb.fit_federated(eight_schools.model, schools, method=fb.FedAvg(**options), key=KEY, progress=False)


@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "laplace": False}])
def test_steps_that_can_get_nowhere_are_refused(options) -> None:
    """With mini-batches their objective has stopped falling from the first round on, which looks like convergence."""
    method = fb.FedAvg(init={"slope": 3.0}, step_size=1e-14, **options)
    with pytest.raises(
        ValueError, match=r"`step_size` is 1e-14, .* less than a hundredth of the way .* Write `step_size=0.056`"
    ):
        fb.fit_federated(line, GOLDEN, method=method, key=KEY, progress=False)


@pytest.mark.parametrize("server", [None, optax.sgd(1.0, momentum=0.9)], ids=["plain", "momentum"])
@pytest.mark.parametrize("step", [1e-12, 0.05])
def test_batches_with_an_optimiser_of_tiny_steps_have_not_converged(step, server) -> None:
    """The objective does not fall in either case: far from the mode each round leads the same way, at it none does."""
    start = {"slope": 3.0 if step < 1e-6 else 0.93}  # and from a start at the mode no fall is to be seen either
    method = fb.FedAvg(
        optimizer=optax.sgd(step), batch_size=1, epochs=1, init=start, laplace=False, max_rounds=60,
        server_optimizer=server,
    )  # fmt: skip
    fit = fitted(line, GOLDEN, method)
    assert fit.converged is (step > 1e-6)
    assert ("the steps are too small to arrive" in fit.trouble()) is (step < 1e-6)


@pytest.mark.filterwarnings("ignore:The rounds ended 0.1 .* at rest:fedbayes.NotConvergedWarning")
@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_both_names(method) -> None:
    clients, _ = linear.simulate(jax.random.key(2))
    fit = fb.fit_federated(linear.model, clients, method=method, key=KEY, progress=False)
    exact, covariance = linear.exact_posterior(clients)
    assert np.sqrt(np.mean((ended(fit) - exact) ** 2 / np.diagonal(covariance))) < 1.0
    assert type(fit.method).__name__.lower() == method


def test_a_network_of_two_hundred_thousand_weights() -> None:
    """No matrix of that size anywhere: checks, rounds in mini-batches, and the one draw for ArviZ."""
    hidden, rng = 2000, np.random.default_rng(0)

    def network(x, y) -> None:
        first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([90, hidden]).to_event(2))
        last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([hidden, 10]).to_event(2))
        logits = jnp.tanh(x @ first / np.sqrt(90.0)) @ last / np.sqrt(hidden)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    clients = {f"c{k}": {"x": rng.normal(size=(16, 90)), "y": rng.integers(0, 10, size=16)} for k in range(3)}
    method = fb.FedAvg(optimizer=optax.sgd(0.1), epochs=1, batch_size=8, init="random", max_rounds=3)
    fit = fitted(network, clients, method, dtype=np.float32)
    assert "gaussian" not in vars(fit.roster.prior)  # nobody has asked for the Hessian
    assert fit.idata.posterior["first"].shape == (1, 1, 90, hidden)
    objective = fit.rounds["objective"].values[:, 0]
    assert objective[-1] < objective[0]


# passes, batch size, the error at the end from a simulation of other data with batches drawn with replacement; how
# many replicates, and the tolerance of their mean: five standard errors at least
# (sds of 7, 1, 2.7 and 0.8 percent)
MINIBATCHES = [
    (1, 20, 0.064, 20, 0.1),
    (1, 100, 0.046, 10, 0.02),
    (5, 50, 0.052, 10, 0.05),
    (10, 100, 0.050, 10, 0.02),
]


@pytest.fixture(scope="module")
def pathak() -> tuple[dict, np.ndarray]:
    """25 clients of 500 rows, 100 coefficients, noise 0.5 (Pathak and Wainwright 2020)."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=100)
    clients = {}
    for k in range(25):
        x = rng.normal(size=(500, 100))
        clients[f"c{k}"] = {"x": x, "y": x @ truth + 0.5 * rng.normal(size=500)}
    return clients, truth


def simulated(clients: dict, truth: np.ndarray, epochs: int, batch: int, num_rounds: int) -> np.ndarray:
    """Estimation errors after each round of federated averaging, by NumPy: fresh orders of the rows for each pass."""
    x, y = (np.stack([client[name] for client in clients.values()]) for name in ("x", "y"))
    rng, (num, rows, _), errors = np.random.default_rng(1), x.shape, []
    each, theta = np.arange(num)[:, None], np.zeros(x.shape[-1])
    for _ in range(num_rounds):
        local = np.tile(theta[:, None], (num, 1, 1))
        for _ in range(epochs):
            order = np.argsort(rng.random((num, rows)), axis=1)
            for begin in range(0, rows, batch):
                picked = order[:, begin : begin + batch]
                some, rest = x[each, picked], y[each, picked]
                local -= 0.1 / batch * np.swapaxes(some, 1, 2) @ (some @ local - rest[..., None])
        theta = local.mean(axis=0)[:, 0]
        errors.append(np.linalg.norm(theta - truth))
    return np.array(errors)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(("epochs", "batch", "error", "num", "far"), MINIBATCHES)
@pytest.mark.statistical(key=0, numbers=2, errors=5.0)
def test_minibatches_end_in_noise_but_not_far(pathak, epochs, batch, error, num, far) -> None:
    """Estimation error below 1.6 times that of least squares and as in a NumPy copy; no stationary point.

    Relative to least squares on the same data it is a tenth from the simulation's, too: six errors of the copy.
    """
    clients, truth = pathak

    def flat(x, y) -> None:
        theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real_vector, (), (100,)))
        numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)

    method = fb.FedAvg(
        step_size=0.1, epochs=epochs, batch_size=batch, init={"theta": np.zeros(100)}, laplace=False,
        num_replicates=num,
    )  # fmt: skip
    ends = fitted(flat, clients, method, 100 // epochs).idata.posterior["theta"].values[:, 0]
    assert ends.shape == (num, 100)
    x, y = (np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y"))
    found = np.linalg.norm(ends - truth, axis=1)
    gradient = np.linalg.norm(2.0 * (ends @ x.T - y) @ x / len(y), axis=1)
    begin, least = (25 if epochs == 1 else 5), np.linalg.lstsq(x, y, rcond=None)[0]
    expected = simulated(clients, truth, epochs, batch, begin + min(100 // epochs, 60))[begin:].mean()
    assert found.mean() < 1.6 * 0.5 * np.sqrt(100 / len(y))
    assert gradient.mean() > 0.01
    np.testing.assert_allclose(found.mean(), expected, rtol=far)
    usual = 0.5 * np.sqrt(100 / (len(y) - 101))  # of least squares, over data sets
    np.testing.assert_allclose(expected / np.linalg.norm(least - truth), error / usual, rtol=0.1)


def test_batches_of_another_size_are_seen(pathak) -> None:
    """Negative control: where steps end in the batches' noise, batches of a quarter are beyond twice the tolerance."""
    clients, truth = pathak
    for epochs, batch, _, _, far in MINIBATCHES[2:]:
        quarter, whole = (simulated(clients, truth, epochs, size, 7)[2:] for size in (batch // 4, batch))
        assert quarter.mean() > (1.0 + 2.0 * far) * whole.mean()


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=4, errors=5.0)
def test_locals_at_a_point_have_their_conditional_posterior() -> None:
    """Eight schools at the mode of the globals: each effect is normal given them; and the fit can be used."""
    method = fb.FedAvg(local_steps=1, laplace=False)
    fit = fitted(eight_schools.model, eight_schools.clients(), method, 60, num_draws=1600)
    point = fit.idata.posterior
    mu, tau = (point[name].values.item() for name in ("mu", "tau"))
    effects, errors = eight_schools.EFFECTS, eight_schools.STANDARD_ERRORS
    for name, y, sigma in zip(fit.client_names[:2], effects, errors, strict=False):
        mine = fit.client_posterior(name).posterior
        precision = 1.0 / sigma**2 + 1.0 / tau**2
        mean, sd = (y / sigma**2 + mu / tau**2) / precision, precision**-0.5
        draws = mine["theta"].values.ravel()
        assert len(draws) == 1600
        np.testing.assert_allclose(draws.mean(), mean, atol=5.0 * sd / np.sqrt(1600.0))
        np.testing.assert_allclose(draws.std(), sd, rtol=0.1)  # 5.7 errors
        np.testing.assert_array_equal(mine["mu"].values, mu)
    expected = [dist.Normal(mu, np.hypot(tau, sigma)).log_prob(y) for y, sigma in zip(effects, errors, strict=True)]
    np.testing.assert_allclose(fit.idata.log_likelihood["client"].values[0, 0], expected, atol=1e-3)
