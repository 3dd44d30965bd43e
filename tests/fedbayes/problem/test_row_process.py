"""Outcomes whose rows depend on each other: clients of different sizes, mini-batches, predictions, refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ModelError
from fedbayes.models import gp, penalised
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.row_process import RowProcess

SIZES = [12, 20, 7, 15]
CLIENTS, _ = gp.simulate(jax.random.key(3), len(SIZES), SIZES)
GRID = {"x": np.linspace(0.0, 1.0, 5)[:, None]}


def plain(x, y=None, variance=1.0, noise=0.1) -> None:  # type: ignore[no-untyped-def]
    """A process of which the length scale alone is unknown."""
    length_scale = numpyro.sample("length_scale", dist.LogNormal(-1.0, 1.0))
    numpyro.sample("y", gp.GaussianProcess(gp.RBF(length_scale, variance), x, noise), obs=y)


def test_clients_of_different_sizes_share_one_program() -> None:
    with jax.enable_x64(True):
        problem = make_problem(gp.model, CLIENTS)
    assert len(problem.buckets) == 1
    assert problem.roster.dependent
    np.testing.assert_array_equal(problem.roster.rows, SIZES)
    theta = np.array([-1.2, 0.3, -2.0])
    with jax.enable_x64(True):
        for name, data in CLIENTS.items():
            scale, variance, noise = np.exp(theta)
            law = gp.GaussianProcess(gp.RBF(scale, variance), data["x"], noise + 1e-4)
            np.testing.assert_allclose(problem.client(name).log_factor(theta), law.log_prob(data["y"]), rtol=1e-10)


def test_a_batch_has_the_density_of_its_rows_scaled_up() -> None:
    with jax.enable_x64(True):
        client = make_problem(gp.model, CLIENTS, rows=True).client("client1")
        theta, rows, real = np.array([-1.2, 0.3, -2.0]), np.array([4, 17, 2, 0]), np.array([True, True, True, False])
        scale, variance, noise = np.exp(theta)
        x, y = CLIENTS["client1"]["x"][rows[:3]], CLIENTS["client1"]["y"][rows[:3]]
        law = gp.GaussianProcess(gp.RBF(scale, variance), x, noise + 1e-4)
        found = client.log_factor_of_rows(theta, rows, 20 / 3, real)
        np.testing.assert_allclose(found, 20 / 3 * law.log_prob(y), rtol=1e-10)


@pytest.mark.parametrize(
    "method", [fb.FALD(batch_size=5), fb.FALD(clip=1.0, control_variate=False), fb.FedPA(batch_size=5, solver="iasg")]
)
def test_samplers_refuse_batches_of_dependent_rows(method: object) -> None:
    with pytest.raises(ModelError, match="rows of a client depend on each other"):
        fb.fit_federated(gp.model, CLIENTS, method=method, key=jax.random.key(0), progress=False)


@pytest.fixture(scope="module")
def fitted() -> fb.FederatedFit:
    return fb.fit_federated(
        gp.model, CLIENTS, method="laplace", key=jax.random.key(0), progress=False, num_draws=50, dims={"y": ["time"]}
    )


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=8, errors=9.0)  # measured: rows are nearly independent given the mean
def test_predictions_are_conditioned_on_the_clients_own_rows(fitted: fb.FederatedFit) -> None:
    for name, data in CLIENTS.items():
        found = fitted.predict(name, **GRID).posterior_predictive
        draws = fitted.client_posterior(name).posterior
        assert found["y_mean"].dims == found["y_sd"].dims == found["y"].dims == ("chain", "draw", "time")
        with jax.enable_x64(True):
            for at in (0, 7, 49):
                scale, variance, noise = (float(draws[site][0, at]) for site in ("length_scale", "variance", "noise"))
                law = partial(gp.GaussianProcess, gp.RBF(scale, variance), noise=noise + 1e-4)
                new = law(GRID["x"]).given(law(data["x"]), data["y"])
                np.testing.assert_allclose(found["y_mean"][0, at], new.mean, rtol=1e-7, atol=1e-9)
                np.testing.assert_allclose(found["y_sd"][0, at] ** 2, new.variance, rtol=1e-7)
        gap = (found["y"] - found["y_mean"]) / found["y_sd"]
        assert abs(float(gap.mean())) < 5.0 / np.sqrt(50)  # five standard errors, were the five rows but one
        assert 0.6 < float(gap.std()) < 1.4


@pytest.mark.statistical(key=0, numbers=1, errors=4.7)  # measured: 1.03 with an sd of 0.07
def test_own_outcomes_do_not_leak_into_a_client_without_data(fitted: fb.FederatedFit) -> None:
    new = fitted.predict(**GRID).posterior_predictive
    assert "y_mean" not in new
    assert float(new["y"].std()) > 0.7  # the prior of the function, whose variance is about one


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=5, errors=20.0)  # measured
def test_a_new_clients_rows_are_conditioned_on(fitted: fb.FederatedFit) -> None:
    known = fitted.predict("client1", **GRID).posterior_predictive["y_mean"].mean(("chain", "draw"))
    again = fitted.predict(CLIENTS["client1"], **GRID).posterior_predictive["y_mean"].mean(("chain", "draw"))
    np.testing.assert_allclose(known, again, atol=0.1)


def test_held_out_densities_are_conditioned_and_averaged(fitted: fb.FederatedFit) -> None:
    data, new = CLIENTS["client1"], {"x": GRID["x"], "y": np.array([0.1, -0.3, 0.5, 0.0, 1.0])}
    predicted = fitted.predict("client1", **GRID).posterior_predictive
    with jax.enable_x64(True):
        each = dist.Normal(predicted["y_mean"].values, predicted["y_sd"].values).log_prob(new["y"])
        expected = np.log(np.mean(np.exp(each), axis=(0, 1)))
    np.testing.assert_allclose(fitted.log_predictive_density("client1", **new)["y"], expected, rtol=1e-8)
    assert fitted.log_predictive_density(data, **new)["y"].shape == (5,)


def test_equal_inputs_with_different_outcomes_need_noise() -> None:
    clients = {name: {key: value.copy() for key, value in data.items()} for name, data in CLIENTS.items()}
    fine = partial(plain, noise=0.0)
    with jax.enable_x64(True):
        make_problem(fine, clients)
    clients["client2"]["x"][3] = clients["client2"]["x"][0]
    with pytest.raises(ModelError, match=r"Client 'client2'.*no noise, but equal inputs with different outcomes"):
        fb.fit_federated(fine, clients, method="laplace", key=jax.random.key(0), progress=False)
    with jax.enable_x64(True):
        make_problem(plain, clients)


def test_a_variance_that_may_be_negative_is_refused() -> None:
    def model(x, y=None) -> None:  # type: ignore[no-untyped-def]
        variance = numpyro.sample("variance", dist.Normal(0.0, 1.0))
        numpyro.sample("y", gp.GaussianProcess(gp.RBF(0.3, variance), x, 0.1), obs=y)

    with pytest.raises(ModelError, match="variance is not positive"):
        fb.fit_federated(model, CLIENTS, method="laplace", key=jax.random.key(0), progress=False)


@pytest.mark.slow
@pytest.mark.statistical(key=0, numbers=1, errors=10.0)  # measured: 0.194 with an sd of 0.0005
def test_one_row_is_enough() -> None:
    clients = {**CLIENTS, "small": {"x": np.array([[0.5]]), "y": np.array([0.2])}}
    fit = fb.fit_federated(gp.model, clients, method="laplace", key=jax.random.key(0), progress=False, num_draws=20)
    found = fit.predict("small", x=np.array([[0.5]])).posterior_predictive
    assert 0.0 < float(found["y_mean"].mean()) < 0.2


def sparse(x, y=None) -> None:  # type: ignore[no-untyped-def]
    length_scale = numpyro.sample("length_scale", dist.LogNormal(-1.0, 1.0))
    law = gp.SparseGaussianProcess(gp.RBF(length_scale), x, 0.1, inducing=np.linspace(0.0, 1.0, 4))
    numpyro.sample("y", law, obs=y)


@pytest.mark.parametrize("sizes", [[9, 9], [9, 6]])
def test_constants_count_each_row_once(sizes: list[int]) -> None:
    """With equally many rows at all clients the mask has one entry, which stands for all rows."""
    clients, _ = gp.simulate(jax.random.key(5), 2, sizes)
    with jax.enable_x64(True):
        problem = make_problem(sparse, clients)
        for name, data in clients.items():
            law = gp.SparseGaussianProcess(gp.RBF(0.4), data["x"], 0.1, inducing=np.linspace(0.0, 1.0, 4))
            found = problem.client(name).log_factor(np.log([0.4]))
            np.testing.assert_allclose(found, law.log_prob(data["y"]), rtol=1e-10)


def named(name: str):  # type: ignore[no-untyped-def]
    def model(x, y=None) -> None:  # type: ignore[no-untyped-def]
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", penalised.NormalRegression(x, 1.0, noise, name=name), obs=y)

    return model


def test_what_was_integrated_out_has_a_name_of_its_own() -> None:
    clients, _ = penalised.simulate(jax.random.key(6), 2, 10)
    with jax.enable_x64(True):
        assert make_problem(named("theta"), clients).integrated == ("theta",)
        with pytest.raises(ModelError, match="are called 'noise', and so is something else in the model"):
            make_problem(named("noise"), clients)


NOTEBOOK = {"shift": 1.0}


class Shifted(RowProcess):
    """Rows around a mean; what is given back reads a variable of the notebook, of which the density knows nothing."""

    integrated_names = ("shift",)

    def __init__(self, mean, num, *, validate_args=None) -> None:  # type: ignore[no-untyped-def]
        self.mean_, self.num = mean, num
        super().__init__((), (num,), validate_args=validate_args)

    def of_rows(self, mask):  # type: ignore[no-untyped-def]
        return self

    def log_prob(self, value):  # type: ignore[no-untyped-def]
        return dist.Normal(self.mean_, 1.0).log_prob(value).sum()

    def integrated(self, value, key):  # type: ignore[no-untyped-def]
        return {"shift": jnp.asarray(NOTEBOOK["shift"])}


def shifted(y=None) -> None:  # type: ignore[no-untyped-def]
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", Shifted(mean, 3), obs=y)


def test_what_was_integrated_out_is_traced_anew_for_another_fit(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A variable that changes between fits leaves the density's trace, and so the program, as they were."""
    clients = {name: {"y": np.arange(3.0)} for name in "ab"}
    options = {"method": "laplace", "key": jax.random.key(0), "progress": False, "num_draws": 10, "correct": False}
    for shift in (1.0, 10.0):
        monkeypatch.setitem(NOTEBOOK, "shift", shift)
        fit = fb.fit_federated(shifted, clients, **options)
        assert (fit.client_posterior("a").posterior["shift"] == shift).all()
