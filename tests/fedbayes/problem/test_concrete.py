"""Programs that need a value before they run: integers become sizes, the rest is refused with the line it stands in."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

import fedbayes as fb
from fedbayes.problem.problem import make_problem

Y = np.random.default_rng(0).normal(size=12)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def grouped(y, group, num_groups) -> None:
    center = numpyro.sample("center", dist.Normal(0.0, 1.0))
    with fb.local(), numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(center, 1.0))
    numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def in_groups(*sizes) -> dict:
    return {f"c{k}": {"y": Y, "group": np.arange(12) % n, "num_groups": n} for k, n in enumerate(sizes)}


def test_integers_that_differ_and_fix_shapes_are_sizes() -> None:
    problem = make_problem(grouped, in_groups(2, 3, 2))
    assert [problem.client(name).program.static["num_groups"] for name in problem.names] == [2, 3, 2]
    assert [problem.client(name).num_locals for name in problem.names] == [2, 3, 2]
    assert len(problem.programs) == 2


def test_so_are_numpys_integers() -> None:
    clients = {name: data | {"num_groups": data["group"].max() + 1} for name, data in in_groups(2, 3).items()}
    assert [program.static["num_groups"] for program in make_problem(grouped, clients).programs] == [2, 3]


def test_integers_that_differ_and_fix_nothing_are_data() -> None:
    def model(n, successes) -> None:
        numpyro.sample("y", dist.Binomial(n, numpyro.sample("p", dist.Beta(1.0, 1.0))), obs=successes)

    clients = {f"c{k}": {"n": 10 + k, "successes": k} for k in range(12)}
    assert len(make_problem(model, clients).programs) == 1


def test_many_sizes_warn() -> None:
    with pytest.warns(UserWarning, match="`num_groups` .* 9 clients have 9 different ones"):
        make_problem(grouped, in_groups(*range(1, 10)))


def test_a_branch_on_an_integer_argument() -> None:
    def model(y, grade) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu if grade > 1 else 2.0 * mu, 1.0), obs=y)

    problem = make_problem(model, {"a": {"y": Y, "grade": 1}, "b": {"y": Y, "grade": 2}})
    gradients = [jax.grad(problem.client(name).log_factor)(jnp.zeros(1)) for name in "ab"]
    np.testing.assert_allclose(gradients[0], 2.0 * gradients[1])


def unique(y, group) -> None:
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([len(np.unique(group))]).to_event(1))
    numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def largest(y, group) -> None:
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([int(group.max()) + 1]).to_event(1))
    numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def branching(y, group) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    if y.mean() > 0:
        mu = 2.0 * mu
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def filtered(y, group) -> None:
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y[group > 0])


def of_latent(y, group) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu if mu > 0 else -mu, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (unique, r"values of `group` of client 'c0' .* \(`effect = .*np\.unique\(group\).*`\)"),
        (largest, r"values of `group` of client 'c0' .* \(`effect = .*int\(group\.max\(\)\).*`\)"),
        (branching, r"values of `y` of client 'c0' .* \(`if y\.mean\(\) > 0:`\), .* `jnp\.where\(condition, a, b\)`"),
        (filtered, r"values of data or latents .* obs=y\[group > 0\]\)`\), .* select rows before the fit"),
        (of_latent, r"values of data or latents .* if mu > 0 else .* `jnp\.where\(condition, a, b\)`"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_values_of_arrays_and_latents_are_refused(model, words) -> None:
    clients = {name: {"y": Y, "group": data["group"]} for name, data in in_groups(2, 3).items()}
    with pytest.raises(fb.ModelError, match=words):
        make_problem(model, clients)


def test_a_loop_without_a_gradient_is_refused() -> None:
    def model(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        grown = jax.lax.while_loop(lambda value: value < 3.0, lambda value: value + 1.0, mu)
        numpyro.sample("y", dist.Normal(grown, 1.0), obs=y)

    with pytest.raises(fb.ModelError, match=r"no second derivatives in JAX: Reverse-mode .* Write loops of a fixed"):
        make_problem(model, {"a": {"y": Y}})


def test_a_carry_of_32_bits_is_refused() -> None:
    """NumPyro's own idiom for chains of discrete states, which runs where JAX has 32 bits alone."""

    def model(y) -> None:
        rate = numpyro.sample("rate", dist.HalfNormal(1.0))

        def step(state, value):
            numpyro.sample("y", dist.Normal(rate * state, 1.0), obs=value)
            return state * jnp.arange(1, 2)[0], None

        scan(step, jnp.ones((), dtype=jnp.int32), y)

    with pytest.raises(fb.ModelError, match=r"mixes 32-bit and 64-bit numbers for client 'a' .* Write `dtype=int`"):
        make_problem(model, {"a": {"y": Y}})
