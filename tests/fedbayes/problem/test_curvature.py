"""Programs whose second derivatives overflow in JAX, though their densities are smooth."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.util import clamp_probs

import fedbayes as fb
from fedbayes.numerics.columns import by_differences
from fedbayes.problem.problem import make_problem
from fedbayes.runtime.precision import computing

ALIVE = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
CLIENTS = {"one": {"alive": ALIVE, "y": np.array([0.9, 0.2, -0.3, 1.4, 0.1, 0.6])}}
POINT = np.array([0.3])


def survivors(alive, y) -> None:
    """Whoever is not alive can't be seen: a probability of zero, which `clamp_probs` keeps at 2e-308."""
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    with numpyro.plate("animals", len(y)):
        with fb.local():
            seen = numpyro.sample("seen", dist.Bernoulli(clamp_probs(alive * share)), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(seen, 1.0), obs=y)


def by_hand(alive, y) -> None:
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    one, none = dist.Normal(1.0, 1.0).log_prob(y), dist.Normal(0.0, 1.0).log_prob(y)
    numpyro.factor("y", jnp.sum(jnp.log(alive * share * jnp.exp(one) + (1.0 - alive * share) * jnp.exp(none))))


def curvature(model, clients=CLIENTS):
    with computing():
        client = make_problem(model, clients).client("one")
        slope = jax.grad(client.log_factor)
        return (
            client.program.jacobian,
            client.jacobian(slope)(jnp.asarray(POINT)),
            jax.jacfwd(slope)(jnp.asarray(POINT)),
        )


def test_where_the_second_derivative_overflows_it_is_a_difference() -> None:
    jacobian, found, overflown = curvature(survivors)
    assert jacobian is by_differences
    assert np.isnan(overflown).all()
    usual, expected, _ = curvature(by_hand)
    assert usual is jax.jacfwd
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_every_client_is_looked_at_and_every_fit() -> None:
    """The programs of equal shapes are one, whatever the data are."""
    all_alive = {**CLIENTS["one"], "alive": np.ones(6)}
    assert curvature(survivors, {"one": all_alive})[0] is jax.jacfwd
    assert curvature(survivors, {"one": all_alive, "two": CLIENTS["one"]})[0] is by_differences
    assert curvature(survivors, CLIENTS)[0] is by_differences


def test_an_enumerated_program_with_second_derivatives_keeps_them() -> None:
    def mixture(alive, y):
        share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
        with numpyro.plate("animals", len(y)):
            with fb.local():
                seen = numpyro.sample("seen", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(seen, 1.0), obs=y)

    jacobian, found, forwards = curvature(mixture)
    assert jacobian is jax.jacfwd
    np.testing.assert_allclose(found, forwards)
