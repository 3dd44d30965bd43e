"""A latent for each row: clients of different sizes share one program, and padded rows' latents change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ModelError
from fedbayes.problem import checks
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.program import Program
from fedbayes.runtime.precision import computing

NOISE, SPREAD, WIDTH = 0.7, 1.3, 2.0
SIZES = {"a": 4, "b": 7, "c": 5}
CLIENTS = {name: {"y": np.random.default_rng(size).normal(0.5, 1.5, size)} for name, size in SIZES.items()}


def single(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, WIDTH))
    with fb.local(), numpyro.plate("persons", len(y)):
        z = numpyro.sample("z", dist.Normal(mu, SPREAD))
    numpyro.sample("y", dist.Normal(z, NOISE), obs=y)


def pairs(y) -> None:
    """Two latents a row, one of them positive, so that it has a Jacobian; and a latent of the client."""
    mu = numpyro.sample("mu", dist.Normal(0.0, WIDTH))
    with fb.local():
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("persons", len(y)):
            z = numpyro.sample("z", dist.Normal(mu, 1.0).expand([2]).to_event(1))
            scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
    numpyro.sample("y", dist.Normal(level + z[:, 0] * jnp.exp(z[:, 1]), scale), obs=y)


def walk(y) -> None:
    """One latent vector, whose density is a single number."""
    mu = numpyro.sample("mu", dist.Normal(0.0, WIDTH))
    with fb.local():
        z = numpyro.sample("z", dist.GaussianRandomWalk(SPREAD, num_steps=len(y)))
    numpyro.sample("y", dist.Normal(mu + z, NOISE), obs=y)


def centred(y) -> None:
    """Every row's outcome looks at all rows' latents."""
    mu = numpyro.sample("mu", dist.Normal(0.0, WIDTH))
    with fb.local(), numpyro.plate("persons", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, SPREAD))
    numpyro.sample("y", dist.Normal(mu + z - z.mean(), NOISE), obs=y)


def problem_of(model):
    with computing():
        return make_problem(model, CLIENTS)


def test_clients_of_different_sizes_share_one_program() -> None:
    problem = problem_of(single)
    [bucket] = problem.buckets
    assert bucket.clients.num_locals == max(SIZES.values())
    assert bucket.clients.independent
    with computing():
        roster = problem.roster
    assert roster.num_locals.tolist() == list(SIZES.values())
    assert [known.block.shapes for known in roster.locals] == [(("z", (size,)),) for size in SIZES.values()]
    assert problem.program("a").locals.shapes == (("z", (4,)),)
    with pytest.raises(KeyError, match="no client 'd'"):
        problem.program("d")


@pytest.mark.parametrize("model", [single, pairs])
def test_padded_latents_are_standard_normal_and_the_rest_is_as_it_was(model) -> None:
    problem = problem_of(model)
    assert len(problem.buckets) == 1
    with computing():
        padded, own = problem.client("a"), problem.program("a")
        position = jnp.asarray(np.random.default_rng(0).normal(size=1 + padded.num_locals))
        kept = problem.unpadded("a", position)
        assert kept.shape == (1 + own.locals.size,)
        others = np.setdiff1d(position, kept)
        assert len(others) == padded.num_locals - own.locals.size
        plain = own.log_factor(kept[:1], kept[1:], CLIENTS["a"])
        expected = plain + np.sum(-0.5 * others**2 - 0.5 * np.log(2 * np.pi))
        np.testing.assert_allclose(padded.log_factor(position), expected, rtol=1e-12)
        slope = jax.grad(padded.log_factor)(position)
    np.testing.assert_allclose(slope[np.isin(position, others)], -position[np.isin(position, others)], rtol=1e-12)


@pytest.mark.parametrize("model", [walk, centred])
def test_latents_that_padding_would_change_are_not_padded(model) -> None:
    problem = problem_of(model)
    assert [bucket.clients.num_locals for bucket in problem.buckets] == [4, 7, 5]
    position = np.zeros(5)
    assert problem.unpadded("a", position) is position


def test_the_check_finds_padded_latents_that_count(monkeypatch) -> None:
    """Planted fault: padded latents keep the law that they have in the model."""
    monkeypatch.setattr(Program, "_of_padding", lambda self, z, mask: jnp.zeros(()))
    monkeypatch.setattr("fedbayes.problem.problem._PADDED", type(checks._INDEPENDENT)(1))

    def other(y) -> None:
        single(y)

    assert len(problem_of(other).buckets) == len(SIZES)


def test_there_are_no_mini_batches() -> None:
    with computing(), pytest.raises(ModelError, match="not a product over its rows"):
        make_problem(single, CLIENTS, rows=True)


def test_the_fit_is_exact_and_each_client_has_its_own_latents() -> None:
    fit = fb.fit_federated(single, CLIENTS, method=fb.EP(solver="laplace"), key=jax.random.key(0), progress=False)
    y = np.concatenate([data["y"] for data in CLIENTS.values()])
    precision = WIDTH**-2 + len(y) / (NOISE**2 + SPREAD**2)
    mean = y.sum() / (NOISE**2 + SPREAD**2) / precision
    found = fit.posterior
    np.testing.assert_allclose(np.asarray(found.precision).ravel(), precision, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(found.shift).ravel() / precision, mean, rtol=1e-6)
    for name, size in SIZES.items():
        drawn = fit.client_posterior(name).posterior["z"]
        assert drawn.shape[2:] == (size,)
        share = SPREAD**2 / (NOISE**2 + SPREAD**2)
        expected = mean + share * (CLIENTS[name]["y"] - mean)
        sd = np.sqrt(share * NOISE**2 + (1 - share) ** 2 / precision)
        error = sd / np.sqrt(drawn.shape[0] * drawn.shape[1])
        np.testing.assert_allclose(drawn.values.mean(axis=(0, 1)), expected, atol=4 * error)  # 16 means: 1e-3
        np.testing.assert_allclose(drawn.values.std(axis=(0, 1)), sd, rtol=0.1)
