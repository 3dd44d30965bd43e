"""What a program says of the globals alone belongs to the prior, and counts once for all clients."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.problem.problem import make_problem

RNG = np.random.default_rng(0)
EQUAL = {name: {"y": RNG.normal(1.0, 1.0, 10)} for name in "abc"}
RAGGED = {name: {"y": RNG.normal(1.0, 1.0, n)} for name, n in zip("abc", (4, 9, 17), strict=True)}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def constrained(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("soft", -1.5 * mu**2)
    numpyro.sample("anchor", dist.Normal(mu, 0.5), obs=0.3)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.parametrize("clients", [EQUAL, RAGGED], ids=["equal", "ragged"])
def test_the_posterior_has_them_once(clients) -> None:
    """Gaussian, so exact: precision 1 from the prior, 3 from the factor, 4 from the anchor, 1 from each row."""
    fit = fb.fit_federated(constrained, clients, key=jax.random.key(0), progress=False)
    rows = np.concatenate([client["y"] for client in clients.values()])
    precision = 8.0 + len(rows)
    mean, covariance = fit.moments()
    np.testing.assert_allclose(mean[:, 0], (4.0 * 0.3 + rows.sum()) / precision, rtol=1e-8)
    np.testing.assert_allclose(covariance[:, 0, 0], 1.0 / precision, rtol=1e-8)


def test_they_are_part_of_the_prior() -> None:
    problem = make_problem(constrained, RAGGED)
    assert {program.prior_terms for program in problem.programs} == {("anchor", "soft")}
    np.testing.assert_allclose(problem.prior.gaussian.precision, [[8.0]], rtol=1e-12)


def by_hand(y) -> None:
    mu, scale = numpyro.sample("mu", dist.Normal(0.0, 1.0)), numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.factor("squares", -0.5 * jnp.sum((y - mu) ** 2) / scale**2)
    numpyro.factor("normaliser", -len(y) * jnp.log(scale))


def normal(y) -> None:
    mu, scale = numpyro.sample("mu", dist.Normal(0.0, 1.0)), numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


@pytest.mark.parametrize("clients", [EQUAL, RAGGED], ids=["equal", "ragged"])
def test_a_term_of_the_number_of_rows_stays_the_clients(clients) -> None:
    written, known = make_problem(by_hand, clients), make_problem(normal, clients)
    theta = jnp.asarray([0.3, -0.2])
    for name in clients:
        one, other = written.client(name), known.client(name)
        constant = -0.5 * np.log(2.0 * np.pi) * len(clients[name]["y"])
        np.testing.assert_allclose(one.log_factor(theta) + constant, other.log_factor(theta), rtol=1e-12)


def weighted(y, n) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("pull", -n * mu**2)
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_a_term_of_an_integer_argument_is_refused() -> None:
    clients = {name: data | {"n": 10} for name, data in EQUAL.items()}
    with pytest.raises(fb.ModelError, match=r"The term 'pull' .* integer argument `n` = 10, .* `n=np.asarray\(10\)`"):
        make_problem(weighted, clients)
    as_data = {name: data | {"n": np.asarray(10)} for name, data in EQUAL.items()}
    assert make_problem(weighted, as_data).programs[0].prior_terms == ()


def test_a_program_that_looks_at_no_data_is_refused() -> None:
    def model(y) -> None:
        numpyro.factor("soft", -(numpyro.sample("mu", dist.Normal(0.0, 1.0)) ** 2))

    with pytest.raises(fb.ModelError, match=r"\['soft'\] look at the globals alone, and no site looks at the clients'"):
        make_problem(model, EQUAL)


def test_a_term_of_locals_stays_the_clients() -> None:
    def model(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with fb.local():
            z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.factor("soft", -((z - mu) ** 2))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    assert make_problem(model, EQUAL).programs[0].prior_terms == ()
