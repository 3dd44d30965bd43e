"""What a fit by FA-LD returns: chains for ArviZ, diagnostics, clients' own posteriors, saving and loading."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.local.after import AFTER
from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import Batched
from fedbayes.rounds.loop import Run
from fedbayes.rounds.programs import Programs

KEY = jax.random.key(4)
CHAINS = 6
METHOD = fb.FALD(local_steps=4, num_chains=CHAINS, num_warmup=20, thinning=12, weights={"a": 0.2, "b": 0.3, "c": 0.5})


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(theta * x, 0.5), obs=y)


def plain(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


FEW = {name: {"y": np.array([0.1, -0.4, 0.9])} for name in "ab"}
# nothing is searched for before the chains start, where they are what is asked about
RAW = {"init": "zero", "step_size": 0.05, "local_steps": 2}


@pytest.fixture(scope="module")
def clients() -> dict:
    rng = np.random.default_rng(2)
    made = {}
    for name, rows in (("a", 3), ("b", 6), ("c", 12)):
        x = rng.normal(size=rows)
        made[name] = {"x": x, "y": 1.5 * x + 0.5 * rng.normal(size=rows)}
    return made


@pytest.fixture(scope="module")
def fit(clients) -> fb.FederatedFit:
    return fb.fit_federated(model, clients, method=METHOD, key=KEY, num_draws=400, progress=False)


def exact(clients) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (mu, theta_a, theta_b, theta_c): all Gaussian."""
    precision, shift = np.zeros((4, 4)), np.zeros(4)
    precision[0, 0] = 1 / 4
    for k, data in enumerate(clients.values(), start=1):
        precision[[0, k, 0, k], [0, k, k, 0]] += [1.0, 1.0, -1.0, -1.0]
        precision[k, k] += np.sum(data["x"] ** 2) / 0.25
        shift[k] = data["x"] @ data["y"] / 0.25
    covariance = np.linalg.inv(precision)
    return covariance @ shift, covariance


@pytest.mark.statistical(key=4, numbers=8, errors=5.0)
@pytest.mark.statistical(key=4, numbers=1, errors=5.3)
def test_globals_and_locals_follow_the_exact_posterior(fit, clients) -> None:
    """Within five Monte Carlo errors of 1,100 effective draws, and the two percent of bias that are allowed."""
    mean, covariance = exact(clients)
    sd = np.sqrt(np.diagonal(covariance))
    draws = [fit.idata.posterior["mu"].values]
    draws += [fit.client_posterior(name).posterior["theta"].values for name in clients]
    for k, found in enumerate(draws):
        effective = float(chain_diagnostics(found[..., None])["ess"].min())
        assert abs(found.mean() - mean[k]) / sd[k] < 5.0 / np.sqrt(effective)
        assert abs(found.std() / sd[k] - 1.0) < 0.02 + 5.0 / np.sqrt(2.0 * effective)
    joint = fit.client_posterior("a").posterior
    correlation = np.corrcoef(joint["mu"].values.ravel(), joint["theta"].values.ravel())[0, 1]
    # 5.3 errors of 1,000 effective draws
    assert correlation == pytest.approx(covariance[0, 1] / (sd[0] * sd[1]), abs=0.15)


def test_what_arviz_gets(fit) -> None:
    assert fit.idata.posterior["mu"].shape == (CHAINS, 400)
    assert "theta" not in fit.idata.posterior
    stats = fit.idata.sample_stats
    np.testing.assert_allclose(stats["energy"], -stats["lp"])
    log_likelihood = fit.idata.log_likelihood["client"]
    assert log_likelihood.dims == ("chain", "draw", "client_name")
    prior = dist.Normal(0.0, 2.0).log_prob(fit.idata.posterior["mu"].values)
    np.testing.assert_allclose(stats["lp"] - log_likelihood.sum("client_name"), prior, rtol=1e-5)
    assert "Markov chains" in fit.idata.posterior.attrs["draws"]


def test_rounds_and_what_the_sampler_chose(fit) -> None:
    chains = fit.rounds.sel(round=fit.rounds["phase"] == "FALD")
    assert int(chains["rounds"].sum()) == 420 * 12
    assert fit.rounds["round"][-1] == int(fit.rounds["rounds"].sum())
    assert np.all(chains["code"] == ResultCode.OK)
    np.testing.assert_array_equal(chains["participation"], 1.0)
    assert {"gradient_norm", "drift", "slope", "slope_position"} <= set(chains.data_vars)
    known = fit.rounds.attrs
    assert known["local_steps"] == 4
    assert 0.0 < known["step_size"] <= 0.5 / known["smoothness"]
    assert known["sd_bias"] <= 0.02 + 1e-12
    assert known["mean_bias"] == known["participation_bias"] == 0.0


def test_repr_says_rounds_mixing_and_bias(fit) -> None:
    assert repr(fit).startswith("FederatedFit by FALD: ")
    for text in (
        "mode + 1 curvature + 5,040 FALD rounds",
        "6 of 400 draws: R-hat at most",
        "bias      predicted sds +",
        "4 local ones a round, 12 rounds a draw",
    ):
        assert text in repr(fit)


def test_chains_that_have_not_mixed_say_so() -> None:
    with pytest.warns(fb.NotConvergedWarning, match=r"have not mixed: R-hat is .*Raise `thinning`"):
        fit = fb.fit_federated(
            plain, FEW, method=fb.FALD(**RAW | {"step_size": 1e-4}, thinning=1, num_warmup=0), key=KEY, num_draws=20,
            progress=False,
        )  # fmt: skip
    assert not fit.converged
    assert "NOT CONVERGED" in repr(fit)


def test_a_budget_of_rounds_is_kept() -> None:
    method = fb.FALD(**RAW, num_warmup=0)
    with pytest.warns(fb.NotConvergedWarning):
        fit = fb.fit_federated(plain, FEW, method=method, key=KEY, num_draws=30, num_rounds=20, progress=False)
    chains = fit.rounds.sel(round=fit.rounds["phase"] == "FALD")
    assert int(chains["rounds"].sum()) == 20
    assert fit.idata.posterior["mu"].shape == (4, 20)


def test_saved_and_loaded_chains_are_the_same(fit, clients, tmp_path) -> None:
    fit.save(tmp_path / "fit")
    loaded = fb.load_fit(tmp_path / "fit", model, clients)
    np.testing.assert_array_equal(loaded.idata.posterior["mu"], fit.idata.posterior["mu"])
    np.testing.assert_array_equal(
        loaded.client_posterior("b").posterior["theta"], fit.client_posterior("b").posterior["theta"]
    )
    assert repr(loaded) == repr(fit)


@pytest.mark.statistical(key=4, numbers=4, errors=7.5)
def test_adapt_and_predict(fit, clients) -> None:
    joined = fit.adapt({"x": np.ones(50), "y": np.full(50, 3.0)})
    assert float(joined.posterior["theta"].mean()) == pytest.approx(3.0, abs=0.1)
    assert float(joined.posterior["mu"].mean()) > float(fit.idata.posterior["mu"].mean())
    predicted = fit.predict("c", x=np.array([0.0, 2.0])).posterior_predictive["y"]
    slope = float(fit.client_posterior("c").posterior["theta"].mean())
    np.testing.assert_allclose(predicted.mean(["chain", "draw"]), [0.0, 2.0 * slope], atol=0.15)  # 8 errors


def test_a_client_that_sits_out_keeps_its_state_and_sends_nothing(clients) -> None:
    with jax.enable_x64(True):
        problem = make_problem(model, clients)
        method = fb.FALD(
            local_steps=3, num_chains=1, init="zero", step_size=0.01, scheme="with_replacement", num_active=1
        )
        programs, executor = Programs(method.phases(problem.roster), AFTER, 1), Batched()
        executor.connect(programs, problem, KEY)
        current = Run(programs, problem.roster, executor, KEY).begin(0, None)
        algorithm = programs.phases[0].algorithm
        state = current.state._replace(counts=np.array([[0.0, 2.0, 0.0]]))
        shared, counts = algorithm.broadcast(state)
        (update,) = algorithm.updates.values()
        np.testing.assert_array_equal(algorithm.participants(state), [False, True, False])
        for place, name in enumerate(problem.names):
            bucket, at = problem.locate(place)
            before = jax.tree.map(lambda leaf, at=at: leaf[at], executor._states[bucket])
            client = problem.client(name)
            inputs = update.inputs(KEY, shared, client.num_locals)
            reply, after = update.run(shared, counts[place], before, client, inputs)
            moved = bool(jnp.any(after.v != before.v))
            assert moved == (name == "b")
            assert int(reply.code[0]) == (ResultCode.OK if name == "b" else ResultCode.INACTIVE)
            np.testing.assert_array_equal(reply.total.weight, counts[place])
            if name != "b":
                assert not np.any(reply.total.position)


def test_another_generator_of_random_numbers() -> None:
    """The shared noise's key travels as data: its kind must survive."""
    method = fb.FALD(**RAW, num_chains=2, num_warmup=0, thinning=1)
    key = jax.random.key(0, impl="rbg")
    runs = {}
    for executor in ("batched", "loopback"):
        with pytest.warns(fb.NotConvergedWarning):
            fit = fb.fit_federated(plain, FEW, method=method, key=key, num_draws=4, executor=executor, progress=False)
        runs[executor] = fit.idata.posterior["mu"].values
    assert np.all(np.isfinite(runs["batched"]))
    assert runs["loopback"].shape == runs["batched"].shape


def test_a_budget_without_draws_is_refused(clients) -> None:
    with pytest.raises(ValueError, match=r"20 rounds leave no draws after the 20 of the warm-up\. Raise `num_rounds`"):
        fb.fit_federated(model, clients, method=METHOD, key=KEY, num_rounds=20, progress=False)


def test_one_chain_has_no_r_hat() -> None:
    with pytest.warns(fb.NotConvergedWarning, match=r"R-hat needs two chains at least: write `FALD\(num_chains=4\)`"):
        fb.fit_federated(
            plain, FEW, method=fb.FALD(**RAW, num_chains=1, num_warmup=5), key=KEY, num_draws=20, progress=False
        )


@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # of so few draws
def test_a_schedule_is_not_saved_by_halves(tmp_path) -> None:
    method = fb.FALD(**RAW | {"step_size": lambda k: 0.05 + 0.0 * k}, num_warmup=5, thinning=2)
    fit = fb.fit_federated(plain, FEW, method=method, key=KEY, num_draws=20, progress=False)
    assert fit.rounds.attrs["step_size"] == pytest.approx(0.05)
    with pytest.raises(ValueError, match="`step_size` of the method is or holds a function, which can't be saved"):
        fit.save(tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


@pytest.mark.filterwarnings("ignore::fedbayes.NotConvergedWarning")  # of so few draws
def test_a_checkpoint_knows_a_schedule_again(tmp_path) -> None:
    def run():
        method = fb.FALD(**RAW | {"step_size": lambda k: 0.05 + 0.0 * k}, num_warmup=5, thinning=2)
        path = tmp_path / "fit.npz"
        return fb.fit_federated(
            plain, FEW, method=method, key=KEY, num_draws=20, checkpoint=path, progress=False
        ).idata.posterior["mu"]

    np.testing.assert_array_equal(run(), run())


def kinked(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Laplace(mu, 1.0), obs=y)


def test_a_curvature_that_says_nothing_is_found_out() -> None:
    """The log density of a Laplace likelihood has no curvature: all that the plan sees is the prior's."""
    rng = np.random.default_rng(0)
    clients = {name: {"y": 1.0 + rng.laplace(size=200)} for name in "abc"}
    with pytest.warns(
        fb.NotConvergedWarning, match=r"too wide: by Stein's identity the sds are off by .*`FALD\(step_size="
    ):
        fit = fb.fit_federated(kinked, clients, method="fald", key=KEY, num_draws=200, progress=False)
    assert not fit.converged


@pytest.mark.parametrize(
    "options", [{"batch_size": 10}, {"scheme": "with_replacement", "num_active": 1, "noise_correlation": 0.0}]
)
@pytest.mark.statistical(key=4, numbers=1, errors=4.0)
def test_noise_that_widens_the_posterior_is_found_out(options) -> None:
    """By mini-batches or by partial participation: measured by Stein's identity, close to the truth."""
    rng = np.random.default_rng(0)
    clients = {name: {"y": 1.0 + rng.normal(size=200)} for name in "abc"}
    method = fb.FALD(local_steps=5, num_chains=8, **options)
    with pytest.warns(fb.NotConvergedWarning, match="too wide"):
        fit = fb.fit_federated(plain, clients, method=method, key=KEY, num_draws=500, progress=False)
    inflation = float(fit.idata.posterior["mu"].std()) * np.sqrt(600.01) - 1.0
    measured, sure = fit.fitted.answer.measured_sd_bias
    # four errors of the difference, 0.02 of the mini-batches: the variance of the draws is in both
    assert measured == pytest.approx(inflation, rel=0.25)
    assert 0.1 < sure < measured


def test_a_client_that_drops_out_is_named() -> None:
    """Its log density is not defined where the others' draws go."""

    def edged(y, edge):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("edge", 0.0 * jnp.sum(jnp.sqrt(edge - mu)))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    clients = {
        "a": {"y": np.array([0.1, -0.2, 0.3]), "edge": np.array([1e9])},
        "b": {"y": np.array([0.0, 0.1, 0.2]), "edge": np.array([0.5])},
    }
    with pytest.warns(fb.NotConvergedWarning, match="The steps of clients b were not finite in some rounds"):
        fit = fb.fit_federated(edged, clients, method=fb.FALD(num_warmup=10), key=KEY, num_draws=200, progress=False)
    assert not fit.converged
