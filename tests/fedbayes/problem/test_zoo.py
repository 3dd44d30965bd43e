"""NumPyro programs of many kinds, split into prior and factor: nothing is lost, nothing counted twice."""

from collections.abc import Callable, Iterator
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm
from numpyro.handlers import scope, seed
from numpyro.infer.util import potential_energy

import fedbayes as fb
from fedbayes.problem.problem import Problem, make_problem

from . import zoo
from .zoo import PROGRAMS

NUM_POINTS = 3
RTOL = 1e-10


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@cache
def problem_of(name: str) -> Problem:
    program = PROGRAMS[name]
    return make_problem(program.model, program.clients(), **(program.keywords or {}))


def points(size: int) -> np.ndarray:
    return 0.7 * np.random.default_rng(11).normal(size=(NUM_POINTS, size))


def reference(program: zoo.Program) -> Callable:
    """The model as NumPyro's own inference would run it."""
    if not program.enumerated:
        return seed(program.model, 0)
    from numpyro.contrib.funsor import config_enumerate, enum

    return enum(config_enumerate(seed(program.model, 0)), -2)


def evaluated(name: str) -> Iterator[tuple[np.ndarray, ...]]:
    """Per client, at the same points: prior + factor with its gradient, plain and padded, and NumPyro's own joint.

    Padded rows' locals, whose law is standard normal, are taken out of the padded density.
    """
    program, problem = PROGRAMS[name], problem_of(name)
    for place, client_name in enumerate(problem.names):
        client, arrays, own = problem.client(client_name), problem.arrays[place], problem.program(client_name)
        size = client.program.globals.size
        kept = problem.unpadded(client_name, np.arange(size + client.num_locals))
        others = np.setdiff1d(np.arange(size + client.num_locals), kept)

        def both(whole, client=client, arrays=arrays, own=own, size=size, kept=kept, others=others):
            x = whole[kept]
            theta, z = x[:size], x[size:]
            data = {key: jnp.asarray(value) for key, value in arrays.arrays.items()}
            params = own.globals.unravel(theta) | own.locals.unravel(z)
            prior = lambda x: problem.prior.log_density(x[:size])  # noqa: E731
            plain = lambda x: prior(x) + own.log_factor(x[:size], x[size:], data)  # noqa: E731
            padding = lambda x: jnp.sum(norm.logpdf(x[others]))  # noqa: E731
            padded = lambda x: prior(x) + client.log_factor(x) - padding(x)  # noqa: E731
            arguments = {**arrays.static, **data}
            joint = -potential_energy(reference(program), (), arguments, params, enum=program.enumerated)
            value, gradient = jax.value_and_grad(padded)(whole)
            return *jax.value_and_grad(plain)(x), value, gradient[kept], joint

        values = jax.jit(jax.vmap(both))(points(size + client.num_locals))
        yield tuple(np.asarray(value) for value in values)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    """One test per program, because its compilation is what costs."""
    program, problem = PROGRAMS[name], problem_of(name)
    assert sorted(problem.globals.names) == sorted(program.globals)
    for client in problem.names:
        assert sorted(problem.client(client).program.locals.names) == sorted(program.locals)
        assert problem.client(client).program.enumerated == program.enumerated
    assert len(problem.buckets) == (1 if program.paddable else len(program.rows))
    for value, gradient, padded, padded_gradient, joint in evaluated(name):
        assert value.dtype == np.float64
        np.testing.assert_allclose(value, joint, rtol=RTOL, atol=1e-10)
        assert np.all(np.isfinite(gradient))
        assert np.any(gradient != 0.0)
        np.testing.assert_allclose(padded, value, rtol=RTOL, atol=1e-10)
        np.testing.assert_allclose(padded_gradient, gradient, rtol=1e-8, atol=1e-9)


def test_planted_bugs_are_seen(monkeypatch):
    """Negative control: a prior without its Jacobian, or padded rows that count, differ by more than the tolerance."""
    problem = problem_of("centred")
    client = problem.client("client 0")
    x = points(problem.globals.size + client.num_locals)[0]
    theta, z = jnp.asarray(x[:2]), jnp.asarray(x[2:])
    masked, prior = client.log_factor(jnp.asarray(x)), problem.prior.log_density(theta)
    assert abs(client.program.log_factor(theta, z, client.data, None) - masked) > 1e-2
    monkeypatch.setattr(
        "fedbayes.problem.program.program.Program._prior_terms", lambda self, terms: terms["mu"] + terms["tau"]
    )
    assert abs(client.program.log_prior(theta, client.data) - prior) > 1e-2


def shared_part() -> dict:
    return {
        "mu": numpyro.sample("mu", dist.Normal(0.0, 3.0)),
        "tau": numpyro.sample("tau", dist.HalfCauchy(1.0)),
        "p": numpyro.sample("p", dist.Dirichlet(jnp.ones(3))),
        "top": numpyro.sample("top", dist.Uniform(0.0, 2.0)),
    }


def client_part(shared, y, kind) -> None:
    with fb.local():
        theta = numpyro.sample("theta", dist.LogNormal(shared["mu"], shared["tau"]))
    numpyro.sample("y", dist.Normal(theta, 0.1 + shared["top"]), obs=y)
    numpyro.sample("kind", dist.Categorical(shared["p"]), obs=kind)


def test_prior_counts_once_for_several_clients():
    """Prior plus the factors of three unbalanced clients is the joint of one program with the globals sampled once."""
    rng = np.random.default_rng(3)
    clients = {f"c{k}": {"y": rng.normal(size=n), "kind": rng.integers(0, 3, n)} for k, n in enumerate((1, 2, 9))}

    def everybody():
        shared = shared_part()
        for name, data in clients.items():
            with scope(prefix=name):
                client_part(shared, **data)

    problem = make_problem(lambda y, kind: client_part(shared_part(), y, kind), clients)
    members = [problem.client(name) for name in problem.names]
    size = problem.globals.size

    def ours(x):
        factors = [client.log_factor(jnp.append(x[:size], x[size + k])) for k, client in enumerate(members)]
        return problem.prior.log_density(x[:size]) + sum(factors)

    def theirs(x):
        params = problem.globals.unravel(x[:size]) | {f"c{k}/theta": x[size + k] for k in range(3)}
        return -potential_energy(everybody, (), {}, params)

    at = points(size + 3)
    np.testing.assert_allclose(jax.jit(jax.vmap(ours))(at), jax.jit(jax.vmap(theirs))(at), rtol=RTOL)
    tripled = jax.vmap(problem.prior.log_density)(at[:, :size])
    assert np.all(np.abs(tripled) > 1e-2)  # counting the prior again would show
