"""What FA-LD predicts of its bias, of partial participation above all, and that a bias above the limit is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.linalg import solve_discrete_lyapunov

import fedbayes as fb
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.inference.fald.bias import predicted_too_large
from fedbayes.inference.fald.participation import Quadratics, participation_share, stationary
from fedbayes.theory import langevin as theory

KEY = jax.random.key(4)
SCHEMES = ("with_replacement", "without_replacement")


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def quadratic_clients(*, balanced: bool, num: int = 4, size: int = 2) -> theory.QuadraticClients:
    rng = np.random.default_rng(7)
    roots = rng.normal(size=(num, size, size))
    weights = np.full(num, 1.0 / num) if balanced else rng.dirichlet(np.full(num, 5.0))
    return theory.QuadraticClients(roots @ roots.mT + 0.2 * np.eye(size), rng.normal(size=(num, size)), weights, 0.8)


def predicted(clients: theory.QuadraticClients, steps: tuple[float, int], *, rho: float, share: float):
    told = Quadratics(*map(jnp.asarray, (clients.hessians, clients.gradients, clients.weights, clients.weights)))
    step, number = map(jnp.asarray, steps)
    return stationary(told, step, number, heat=clients.temperature, rho=rho, share=share)


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_prediction_is_the_exact_stationary_law_of_quadratic_clients(scheme, rho) -> None:
    """The theory's law, whose moments solve linear equations, for steps up to half the largest stable one."""
    clients = quadratic_clients(balanced=scheme == "without_replacement")
    share = participation_share(clients.weights, 2, scheme)
    largest = 2.0 / np.max(np.linalg.eigvalsh(clients.hessians))
    for step, number in ((0.01 * largest, 1), (0.1 * largest, 5), (0.5 * largest, 3)):
        law = theory.round_law(clients, np.full(number, step), rho=rho, share=share).stationary()
        found = predicted(clients, (step, number), rho=rho, share=share)
        np.testing.assert_allclose(clients.target.mean + found.mean, law.mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(found.covariance, law.covariance, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_if_all_take_part_it_solves_the_discrete_lyapunov_equation(rho) -> None:
    clients = quadratic_clients(balanced=False)
    law = theory.round_law(clients, np.full(4, 0.05), rho=rho)
    found = predicted(clients, (0.05, 4), rho=rho, share=0.0)
    expected = solve_discrete_lyapunov(law.maps[0], law.noises[0])
    np.testing.assert_allclose(found.everybody, expected, rtol=1e-9)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("scheme", "rho", "factor"),
    [("with_replacement", 0.0, 2.8), ("without_replacement", 0.5, 1.75), ("with_replacement", 1.0, 1.0)],
)
def test_clients_that_are_alike_have_the_known_inflation(scheme, rho, factor) -> None:
    alike = theory.QuadraticClients(np.ones((10, 1, 1)), np.zeros((10, 1)), np.full(10, 0.1))
    share = participation_share(alike.weights, 5, scheme)
    found = predicted(alike, (0.1, 3), rho=rho, share=share)
    assert float(found.covariance[0, 0] / found.everybody[0, 0]) == pytest.approx(factor)


def test_a_spread_that_grows_without_limit_is_infinite() -> None:
    """A client is drawn alone whose steps double the distance from the mode."""
    wild = theory.QuadraticClients(np.array([[[0.01]], [[30.0]]]), np.zeros((2, 1)), np.full(2, 0.5))
    found = predicted(wild, (0.1, 1), rho=1.0, share=1.0)
    assert not np.isfinite(found.covariance).any()
    assert np.isfinite(found.everybody).all()


PREDICTED = {"mean_bias": 0.0, "sd_bias": 0.02, "participation_bias": 0.0, "step_size": 0.04, "local_steps": 5.0}
PARTIAL = {"scheme": "with_replacement", "num_active": 2}


@pytest.mark.parametrize(
    ("options", "numbers", "words"),
    [
        ({"control_variate": False}, {"mean_bias": 1.1}, r"of the means is 1\.1 posterior sds \(the limit is 0\.1\)"),
        (
            {"control_variate": False},
            {"mean_bias": 1.1},
            r"`control_variate=True`, `local_steps=1`, `step_size=0\.0018`",
        ),
        ({}, {"sd_bias": 0.2}, r"of the sds is \+20% \(the limit is 10%\).*Write `step_size=0\.01`"),
        (PARTIAL, {"participation_bias": 1.8}, r"participation is \+180% \(the limit is 10%\).*`step_size=0\.0011`"),
        (
            PARTIAL | {"noise_correlation": 0.0},
            {"participation_bias": 0.4},
            r"`scheme='full'`, `noise_correlation=1\.0`",
        ),
        (PARTIAL, {"participation_bias": np.inf}, "by partial participation is infinite"),
        (PARTIAL, {"participation_bias": np.nan}, r"can't be predicted.*Write `scheme='full'`"),
    ],
)
def test_a_predicted_bias_above_the_limit_is_said_with_limit_and_remedy(options, numbers, words) -> None:
    (told,) = predicted_too_large(fb.FALD(**options), PREDICTED | numbers)
    assert re.search(words, told)


def test_a_bias_up_to_the_limit_is_none() -> None:
    up_to = {"mean_bias": ERROR_LIMIT, "sd_bias": ERROR_LIMIT, "participation_bias": ERROR_LIMIT}
    assert predicted_too_large(fb.FALD(), PREDICTED | up_to) == []
    assert predicted_too_large(fb.FALD(), PREDICTED | {"mean_bias": np.nan, "sd_bias": np.nan}) == []


def uneven(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


def uneven_clients() -> dict:
    """Clients that know mu unequally well, and are several of its posterior sds apart."""
    return {
        name: {"y": np.full(20, at), "scale": np.full(20, sd)}
        for name, at, sd in zip("abc", (0, 1, 3), (0.5, 1, 3), strict=True)
    }


def exact_clients() -> theory.QuadraticClients:
    """The same as quadratic energies with the prior in each."""
    pairs = [(each["y"], each["scale"]) for each in uneven_clients().values()]
    precisions = np.array([3.0 * np.sum(1.0 / scale**2) + 0.01 for _, scale in pairs])
    minima = np.array([3.0 * np.sum(y / scale**2) for y, scale in pairs]) / precisions
    return theory.QuadraticClients(precisions[:, None, None], minima[:, None], np.full(3, 1.0 / 3.0))


def fitted(words: str, **options) -> fb.FederatedFit:
    method = fb.FALD(num_warmup=20, thinning=20, num_chains=8, local_steps=5, **options)
    with pytest.warns(fb.NotConvergedWarning, match=words):
        return fb.fit_federated(
            uneven, uneven_clients(), method=method, key=KEY, num_draws=100, correct=False, progress=False
        )


@pytest.mark.statistical(key=4, numbers=1, errors=5.0)
def test_shared_noise_does_not_save_partial_participation_of_unequal_clients() -> None:
    """The prediction is the exact law's, and so are the chains; it was zero for rho = 1."""
    fit = fitted("by partial participation is", control_variate=False, step_size=0.1, **PARTIAL | {"num_active": 1})
    clients = exact_clients()
    variance = float(clients.target.covariance[0, 0])
    steps = np.full(5, 0.1 * variance)  # the shared coordinate is mu in posterior sds
    one, everybody = (theory.round_law(clients, steps, rho=1.0, share=share).stationary() for share in (1.0, 0.0))
    expected = float(np.sqrt(one.covariance[0, 0] / everybody.covariance[0, 0]) - 1.0)
    assert expected > 1.0
    assert fit.rounds.attrs["participation_bias"] == pytest.approx(expected, rel=1e-4)
    assert not fit.converged
    found = float(fit.idata.posterior["mu"].std())
    # 800 draws, nearly independent: 0.025 for a Gaussian law, twice that for tails as long as these; five such errors
    assert found == pytest.approx(float(np.sqrt(one.covariance[0, 0])), rel=0.25)


def test_own_steps_without_the_control_variate_have_not_converged() -> None:
    """R-hat sees nothing of a bias."""
    fit = fitted(r"predicted bias of the means is .* \(the limit is 0\.1\)", control_variate=False, step_size=0.2)
    assert fit.rounds.attrs["mean_bias"] > 1.0
    assert not fit.converged
    assert "NOT CONVERGED" in repr(fit)


def test_the_default_step_keeps_the_prediction_small_for_shared_noise() -> None:
    method = fb.FALD(num_warmup=20, num_chains=4, local_steps=5, scheme="with_replacement", num_active=2)
    fit = fb.fit_federated(
        uneven, uneven_clients(), method=method, key=KEY, num_draws=500, correct=False, progress=False
    )
    assert 0.0 < fit.rounds.attrs["participation_bias"] < 0.03
    assert fit.converged
