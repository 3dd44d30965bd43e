"""The server's step: how long it may be, when it counts as noise, and when rounds no longer help."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.errors import ResultCode
from fedbayes.inference.ep import server
from fedbayes.inference.ep.answer import EPAnswer, fixed_point_error
from fedbayes.inference.ep.step import HOPELESS, EPState, damping, largest_proper_step, makes_progress
from fedbayes.inference.local import solvers
from fedbayes.inference.local.density.moments import score_regression
from fedbayes.models import eight_schools, linear
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.prior import make_prior


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("noise", [0.15, 0.5, 3.0])
@pytest.mark.statistical(key=0, numbers=1, errors=9.0)
def test_damping_leaves_the_target_of_stationary_noise(noise) -> None:
    """An iteration ``x <- x + eta (noise - x)`` has the stationary variance ``eta / (2 - eta)`` of its noise."""
    eta = float(damping(jnp.asarray(noise), jnp.asarray(0.0)))
    np.testing.assert_allclose(eta / (2.0 - eta) * noise**2, 0.1**2, rtol=1e-12)
    rng, num = np.random.default_rng(0), 200_000
    path = np.zeros(num)
    for i, drawn in enumerate(noise * rng.normal(size=num - 1)):
        path[i + 1] = path[i] + eta * (drawn - path[i])
    independent = num * eta / (2.0 - eta)  # of an autoregression with coefficient 1 - eta
    # the sd of so many has the error 1 / sqrt(2 independent), and of this path less: nine errors
    np.testing.assert_allclose(path.std(), 0.1, rtol=5.0 / np.sqrt(independent))


def test_damping_needs_no_step_below_one_where_there_is_little_noise_or_far_to_go() -> None:
    assert float(damping(jnp.asarray(0.1), jnp.asarray(0.0))) == 1.0
    assert float(damping(jnp.asarray(0.5), jnp.asarray(10.0))) == 1.0


def state_of(base: float, direction: float) -> EPState:
    """One global, and what all together have proposed for it."""
    own, white = Gaussian(jnp.zeros(1), jnp.full((1, 1), base), jnp.zeros(())), jnp.full((1, 1), base**-0.5)
    state = EPState.start(own, white, 2, opening=False)
    return state._replace(direction=Gaussian(jnp.zeros(1), jnp.full((1, 1), direction), jnp.zeros(())))


def test_no_step_makes_the_global_improper() -> None:
    """The global's precision, 1 - 1.5 step, is to keep a tenth: the step is 0.8^3."""
    moved, taken = largest_proper_step(state_of(1.0, -1.5), jnp.ones(()))
    assert float(taken) == pytest.approx(0.8**3)
    assert float(moved.global_().precision[0, 0]) == pytest.approx(1.0 - 1.5 * 0.8**3)


def test_no_step_loses_nine_tenths_of_a_precision() -> None:
    moved, taken = largest_proper_step(state_of(100.0, -99.0), jnp.ones(()))
    assert 0.0 < float(taken) < 1.0
    assert float(moved.global_().precision[0, 0]) > 10.0


@pytest.mark.parametrize(
    ("noise", "change", "before", "taken", "expected"),
    [
        (0.0, 30.0, 50.0, 1.0, True),
        (0.0, 30.0, 31.0, 1.0, False),
        (0.0, 0.98, 1.0, 0.2, True),  # small steps shrink it slowly
        (0.0, 0.995, 1.0, 0.2, False),
        (0.2, 0.6, 0.5, 1.0, True),  # noise
        (0.2, 0.6, 0.5, 0.0, False),  # no step at all
        (0.0, np.inf, np.inf, 1.0, False),
    ],
)
def test_progress(noise, change, before, taken, expected) -> None:
    values = (jnp.asarray(value) for value in (noise, change, before, taken))
    assert bool(makes_progress(*values)) == expected


@pytest.mark.parametrize("eta", [1.0, 0.2])
@pytest.mark.parametrize("contraction", [0.1, 0.6, 0.9])
def test_the_fixed_point_error_of_a_linear_iteration_is_exact(eta, contraction) -> None:
    error, history = 3.0, []
    for _ in range(4):
        change = (1.0 - contraction) * error
        error = (1.0 - eta * (1.0 - contraction)) * error
        history.append({"change": np.array([change]), "monte_carlo_noise": np.zeros(1), "step": np.array([eta])})
    if 1.0 - eta * (1.0 - contraction) < 0.95:
        np.testing.assert_allclose(fixed_point_error(history), error, rtol=1e-10)
    else:  # so slow that two rounds tell no more than a bound
        assert fixed_point_error(history) < error
    assert np.isnan(fixed_point_error(history[:1]))


def test_changes_of_noise_alone_leave_no_fixed_point_error() -> None:
    record = {"change": np.array([0.07]), "monte_carlo_noise": np.array([0.05]), "step": np.ones(1)}
    assert fixed_point_error([record, record]) == 0.0


def test_a_small_change_far_from_the_fixed_point_is_no_convergence() -> None:
    """Linear clients with a long tolerance: damped rounds that would move the global by more than the limit go on."""
    clients, _ = linear.simulate(jax.random.key(1))
    method = fb.EP(num_replicates=1, init="prior", solver="laplace", damping=0.5, tolerance=1e3)
    fit = fb.fit_federated(linear.model, clients, method=method, key=jax.random.key(0), progress=False, correct=False)
    assert fit.converged
    assert 0.0 < fit.rounds.attrs["fixed_point_error"] <= ERROR_LIMIT
    assert fit.rounds["change"][-1].max() < 1.0


def test_the_verdict_and_the_line_on_more_rounds_agree() -> None:
    """Where two rounds tell of 0.3 sds that are left, the fit has not converged."""
    record = {"monte_carlo_noise": np.zeros(1), "step": np.ones(1)}
    history = [record | {"change": np.array([change])} for change in (0.2, 0.12)]
    run = SimpleNamespace(
        state=jax.tree.map(lambda leaf: leaf[None], state_of(1.0, 0.0)), history=history, converged=True
    )
    told = {
        "change": (("round", "replicate"), [[0.2], [0.12]]),
        "monte_carlo_noise": (("round", "replicate"), [[0.0]] * 2),
    }
    rounds = xr.Dataset(told | {"code": (("round", "client", "replicate"), [[[0]]] * 2)}, {"client": ["a"]})
    answer = EPAnswer(run, 0.5, has_locals=False, prior=None)
    found = answer.verdict(rounds)
    assert not found.converged
    assert "ended about 0.2 posterior sds from their fixed point (the limit is 0.1)" in found.trouble
    assert any("more of them would move it by about 0.2" in line for line in found.headline)


def separable(x, y) -> None:
    import numpyro
    import numpyro.distributions as dist

    slope = numpyro.sample("slope", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


@pytest.fixture
def separated() -> dict:
    rng = np.random.default_rng(0)
    return {name: {"x": x, "y": (x > 0).astype(int)} for name in "abc" if (x := rng.normal(size=40)) is not None}


def test_a_hopeless_fit_stops_early_and_says_why(separated) -> None:
    """Separable data under a flat prior: the slope goes to infinity, by steps that do not shrink."""
    method = fb.EP(num_replicates=1, init="newton", solver="laplace", damping=1.0)
    with pytest.warns(fb.NotConvergedWarning, match="no nearer to a fixed point.* proper priors"):
        fit = fb.fit_federated(separable, separated, method=method, key=jax.random.key(0), progress=False)
    assert not fit.converged
    assert int((fit.rounds["phase"] == "EP").sum()) < 30  # the budget
    assert np.all(fit.rounds["stuck"].values[-1] == HOPELESS)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_improper_posterior_is_never_called_converged(separated, seed) -> None:
    """Whether the messages or the steps give out first is a matter of the draws."""
    method, key = fb.EP(num_replicates=1, init="newton"), jax.random.key(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.NotConvergedWarning)
        with pytest.raises(
            (fb.NotConvergedWarning, fb.FederatedError), match=r"posterior is not proper|did not converge"
        ):
            fb.fit_federated(separable, separated, method=method, key=key, num_rounds=10, progress=False)


def test_a_round_with_progress_forgets_those_without(rounds) -> None:
    """Linear clients, from the prior: the first round brings the global to its fixed point."""
    clients, _ = linear.simulate(jax.random.key(1))
    run = rounds(linear.model, clients, fb.EP(init="prior", num_replicates=1, damping=0.5))
    state = run.current.state
    run.current.state = state._replace(stuck=np.full_like(state.stuck, HOPELESS - 1.0))
    run.run()
    assert np.all(np.asarray(run.current.state.stuck) == 0.0)
    assert not np.any(run.current.history[-1]["stuck"])


def test_the_change_of_a_damped_round_is_that_of_a_whole_one() -> None:
    """Linear clients: a whole round leads to the fixed point, and one of step 1/4 leaves 3/4 of the way."""
    clients, _ = linear.simulate(jax.random.key(1))
    damped = fb.EP(init="prior", num_replicates=1, damping=0.25, tolerance=1e-9)
    with pytest.warns(fb.NotConvergedWarning):
        fit = fb.fit_federated(
            linear.model, clients, method=damped, key=jax.random.key(0), num_rounds=20, progress=False
        )
    (mean, covariance), (right, spread) = [part[0] for part in fit.moments()], linear.exact_posterior(clients)
    ratio, gap = np.linalg.solve(covariance, spread), mean - right
    divergence = np.trace(ratio) - len(gap) - np.linalg.slogdet(ratio)[1] + gap @ np.linalg.solve(covariance, gap)
    left = np.sqrt(divergence / len(gap))
    np.testing.assert_allclose(left, 0.75 * fit.rounds["change"].values[-1, 0], rtol=0.01)
    assert left > 1e-4


@pytest.mark.parametrize(("nested", "heavy", "expected"), [(0, 1, 1), (1, 1, 2), (2, 1, 3), (2, 2, 32), (0, 4, 32)])
def test_clients_with_locals_do_not_change_their_draws_one_by_one(nested, heavy, expected) -> None:
    """Each change takes a round: once a tenth of them draw the locals given the globals, all others do, too."""
    codes = np.full((32, 2), ResultCode.OK)
    codes[nested : nested + heavy, 0] = ResultCode.UNRELIABLE
    infos = {"code": codes, "change": np.ones(2), "monte_carlo_noise": np.zeros(2)}
    variants = ["nested"] * nested + ["importance"] * (32 - nested)
    chosen = server._choose(fb.EP(), np.ones(32, int), variants, infos)
    assert chosen.count("nested") == expected


@pytest.mark.parametrize(("solver", "then"), [("nested", "nested_more"), ("nested_more", "nuts")])
def test_nuts_comes_last_where_locals_are_drawn_given_the_globals(solver, then) -> None:
    """A k-hat near its limit is noise in a few draws; the program of NUTS takes longer to compile than all others."""
    codes = np.full((2, 4), ResultCode.OK)
    codes[0] = ResultCode.UNRELIABLE
    infos = {"code": codes, "change": np.full(4, 0.1), "monte_carlo_noise": np.zeros(4)}
    assert server._choose(fb.EP(), np.ones(2, int), [solver, "nested"], infos) == [then, "nested"]
    far = infos | {"change": np.ones(4)}
    assert server._choose(fb.EP(), np.ones(2, int), [solver, "nested"], far) == [solver, "nested"]


@pytest.mark.parametrize(
    ("coupling", "together", "first"),
    [(0.0, 1, "nested"), (0.0, 2, "nested"), (0.0, 16, "importance"), (0.1, 1, "importance")],
)
def test_small_groups_are_drawn_given_the_globals_from_the_first_round_on_however_many_they_are(
    coupling, together, first
) -> None:
    def model(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with fb.local(), numpyro.plate("persons", len(y)):
            z = numpyro.sample("z", dist.Normal(mu, 1.0).expand([together]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.sum(z, axis=1) ** 2 + coupling * z.sum(), 1.0), obs=y)

    roster = make_problem(model, {"a": {"y": np.ones(20)}, "b": {"y": np.zeros(20)}}).roster
    assert [known.group_size for known in roster.locals] == [20 * together if coupling else together] * 2
    assert next(iter(server._used_solvers(fb.EP(), roster, 256))) == first


def test_rounds_start_from_the_spread_of_a_prior_that_is_no_gaussian() -> None:
    """It is the same whatever the key; of a prior that can't be drawn from it is found by importance draws."""
    refine = solvers.importance(num_samples=256, estimator=score_regression)
    prior = make_problem(eight_schools.model, eight_schools.clients()).roster.prior
    assert prior.gaussian is None
    start = server._start(prior, refine, jax.random.key(0))
    centre, scale = prior.spread
    np.testing.assert_allclose(start.moments()[0], centre)
    np.testing.assert_allclose(start.moments()[1], np.diag(scale**2))
    undrawn = make_prior(prior.log_density, prior.size)
    drawn = jax.jit(lambda key: server._start(undrawn, refine, key).moments()[0])
    found = [drawn(jax.random.key(seed)) for seed in range(2)]
    assert np.all(np.isfinite(found))
    assert np.all(found[0] != found[1])
    assert np.all(np.abs(found - centre) < scale)
