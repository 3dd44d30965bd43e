"""A hierarchy among the globals is known before the fit: the spread of a global's prior depends on another global."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import fedbayes as fb
from fedbayes.problem.problem import make_problem

CLIENTS = {name: {"y": np.random.default_rng(seed).normal(size=3)} for seed, name in enumerate("ab")}


def scale():
    return numpyro.sample("tau", dist.HalfNormal(1.0))


def centre():
    return numpyro.sample("mu", dist.Normal(0.0, 1.0))


def centred():
    mu, tau = centre(), scale()
    with numpyro.plate("groups", 3):
        return numpyro.sample("theta", dist.Normal(mu, tau))


def walk():
    return numpyro.sample("theta", dist.GaussianRandomWalk(scale(), 3))


def walk_by_steps():
    tau = scale()
    return scan(lambda x, _: 2 * (numpyro.sample("theta", dist.Normal(x, tau)),), 0.0, None, length=3)[1]


def correlated():
    mu, sds = centre(), numpyro.sample("tau", dist.HalfNormal(jnp.ones(3)).to_event(1))
    return numpyro.sample("theta", dist.MultivariateNormal(mu, scale_tril=sds[:, None] * jnp.eye(3)))


def with_heavy_tails():
    return numpyro.sample("theta", dist.Cauchy(centre(), scale()))


def by_hand():
    mu, tau = centre(), scale()
    return mu + tau * numpyro.sample("theta", dist.Normal(jnp.zeros(3), 1.0).to_event(1))


def moved():
    return numpyro.sample("theta", dist.StudentT(3.0, centre(), 1.0))


def scale_of_a_scale():
    return numpyro.sample("theta", dist.HalfNormal(scale()))


def rate():
    return numpyro.sample("theta", dist.Gamma(2.0, scale()))


def moved_limits():
    mu, tau = centre(), scale()
    return numpyro.sample("theta", dist.Uniform(mu, mu + tau))


def improper():
    scale()
    return numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))


def own_effect():
    mu, tau = centre(), scale()
    with fb.local():
        return numpyro.sample("theta", dist.Normal(mu, tau))


def program(theta):
    def model(y) -> None:
        numpyro.sample("y", dist.Normal(jnp.sum(theta()), 1.0), obs=y)

    return model


def hierarchy(model) -> dict:
    with jax.enable_x64(True):
        return dict(make_problem(model, CLIENTS).prior.hierarchy)


@pytest.mark.parametrize("theta", [centred, walk, walk_by_steps, correlated, with_heavy_tails])
def test_a_prior_whose_scale_is_a_global_is_found(theta) -> None:
    """Of location and scale, the scale alone is named."""
    assert hierarchy(program(theta)) == {"theta": ("tau",)}


@pytest.mark.parametrize("theta", [by_hand, moved, scale_of_a_scale, rate, moved_limits, improper, own_effect])
def test_a_prior_that_other_globals_only_move_is_no_hierarchy(theta) -> None:
    """A positive global is moved by its scale, as its logarithm is what the Gaussian is about."""
    assert hierarchy(program(theta)) == {}


def test_the_non_centred_form_of_numpyro_is_no_hierarchy() -> None:
    assert hierarchy(reparam(program(centred), config={"theta": LocScaleReparam(0)})) == {}
    assert hierarchy(reparam(program(centred), config={"theta": LocScaleReparam(0.5)})) != {}


def test_a_fit_by_ep_warns_of_it_before_the_first_round_and_says_what_to_write() -> None:
    model, method = program(centred), fb.EP(num_replicates=1, solver="laplace", init="prior")
    told = r"scale of a global's prior changes .*'theta' with 'tau'.*`with fedbayes.local\(\):`.*LocScaleReparam\(0\)"
    with pytest.warns(UserWarning, match=told) as caught, pytest.raises(RuntimeError, match="stop before"):
        fb.fit_federated(model, CLIENTS, method=method, key=jax.random.key(0), progress=False, executor=Stopped())
    assert len(caught) == 1


class Stopped(fb.executors.Batched):
    """Stops before any round."""

    def begin(self, *_: object) -> None:
        raise RuntimeError("stop before the first round")


def undefined(y) -> None:
    """Outcomes without a density, whatever the globals are: no rounding makes a message about them usable."""
    numpyro.sample("y", dist.Normal(jnp.nan * jnp.sum(centred()), 1.0, validate_args=False), obs=y)


def test_a_fit_whose_first_round_fails_is_told_of_it_too() -> None:
    method = fb.EP(num_replicates=1)
    with (
        pytest.warns(UserWarning, match="scale of a global's prior"),
        pytest.raises(fb.FederatedError, match=r"not proper without them.*}\. If each client .*LocScaleReparam"),
    ):
        fb.fit_federated(undefined, CLIENTS, method=method, key=jax.random.key(0), progress=False)
