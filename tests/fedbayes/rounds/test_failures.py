"""What goes wrong in a round costs that client's update of that round, and nothing else; the fit says whose."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.method import EP
from fedbayes.rounds.executors import Batched, Sequential

KEY = jax.random.key(3)
QUICK = EP(num_samples=64, num_replicates=1, init="prior", solver="importance", tolerance=1e-9)


def model(y, spread):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mu, tau * jnp.sqrt(spread)), obs=y)


def flat_model(y, spread):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(spread)), obs=y)


def make_clients(broken: bool) -> dict:
    rng = np.random.default_rng(0)
    clients = {name: {"y": rng.normal(size=4), "spread": np.ones(4)} for name in ("north", "south")}
    if broken:  # the root of a negative number: the factor is NaN everywhere
        clients["west"] = {"y": rng.normal(size=4), "spread": -np.ones(4)}
    return clients


def fit(clients, **keywords):
    return fb.fit_federated(
        model, clients, progress=False, **({"key": KEY, "method": QUICK, "num_rounds": 2, "num_draws": 16} | keywords)
    )


@pytest.fixture(scope="module")
def with_broken():
    with pytest.warns(
        fb.NotConvergedWarning, match=r"Client 'west': message not finite: dropped, its last message stays"
    ):
        return fit(make_clients(broken=True))


@pytest.fixture(scope="module")
def without_broken():
    with pytest.warns(fb.NotConvergedWarning, match=r"did not converge in 2 rounds.*raise `num_rounds`"):
        return fit(make_clients(broken=False))


def test_broken_client_is_reported(with_broken):
    codes = with_broken.rounds["code"].isel(replicate=0)
    assert (codes.sel(client="west") == ResultCode.NOT_FINITE).all()
    assert codes.sel(client=["north", "south"]).isin([ResultCode.OK, ResultCode.UNRELIABLE, ResultCode.NOISY]).all()
    assert not with_broken.converged
    assert "Client 'west': message not finite" in with_broken.trouble()
    assert "NOT CONVERGED" in repr(with_broken)


def test_broken_clients_site_stays_one(with_broken):
    with jax.enable_x64(True):
        cavities = with_broken.fitted.cavities()
    for name in ("shift", "precision"):
        whole, others = getattr(with_broken.posterior, name), getattr(cavities, name)
        np.testing.assert_array_equal(others[:, 2], whole)
        assert np.all(np.any(others[:, :2] != whole[:, None], axis=tuple(range(2, others.ndim))))


def test_broken_client_costs_nothing_else(with_broken, without_broken):
    for ours, theirs in zip(with_broken.moments(), without_broken.moments(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_broken_client_in_the_mode():
    good = fit(make_clients(broken=False), method="laplace", num_rounds=None)
    assert good.converged
    with pytest.warns(fb.NotConvergedWarning, match=r"Client 'west': message not finite"):
        bad = fit(make_clients(broken=True), method="laplace", num_rounds=None)
    (mean, covariance), (expected, variance) = bad.moments(), good.moments()
    sd = np.sqrt(np.diagonal(variance[0]))
    np.testing.assert_allclose((mean - expected) / sd, 0.0, atol=1e-3)  # the tolerance of Newton's method
    np.testing.assert_allclose((covariance - variance) / np.outer(sd, sd), 0.0, atol=1e-3)


class Garbling(Batched):
    """In one round one client's reply arrives as NaN, so that the sum is that of the others."""

    def __init__(self, in_round, place):
        super().__init__()
        self.in_round, self.place, self.round = in_round, place, 0

    def run(self, order):
        broken = np.isin(order.active, self.place) if self.round == self.in_round else np.zeros(len(order.active), bool)
        self.round += 1
        heard = super().run(order._replace(active=order.active[~broken]))
        if broken.any():
            super().run(order._replace(active=order.active[broken]))
            heard.codes[self.place] = ResultCode.NOT_FINITE
        return heard


def test_a_failed_update_is_an_update_not_made():
    """A client that fails in round 2 leaves the server's state exactly as if it had been absent from it."""
    clients = make_clients(broken=False)
    with pytest.warns(fb.NotConvergedWarning, match="did not converge"):
        failed = fit(clients, num_rounds=2, executor=Garbling(1, 0))
    with pytest.warns(fb.NotConvergedWarning, match="did not converge"):
        absent = fit(clients, num_rounds=2, participation=lambda r, key: np.array([r != 1, True]))
    for ours, theirs in zip(
        jax.tree.leaves(failed.fitted.run.state), jax.tree.leaves(absent.fitted.run.state), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert failed.rounds["code"].values[:, 0, 0].tolist() == [ResultCode.NOISY, ResultCode.NOT_FINITE]
    assert absent.rounds["code"].values[:, 0, 0].tolist() == [ResultCode.NOISY, ResultCode.INACTIVE]


@pytest.mark.parametrize(
    ("method", "phase"), [("laplace", "mode"), (EP(init="mode"), "mode"), (EP(init="newton"), "mode"), ("ep", "EP")]
)
def test_nobody_usable_and_no_prior(method, phase):
    broken = {"west": make_clients(broken=True)["west"]}
    tried = {"mode": 2, "EP": 1}[phase]  # where nothing came of the first round, clients are asked for their own modes
    message = (
        rf"Round {tried} of phase '{phase}': no client's message could be used.*'west': 'message not .*proper priors"
    )
    with pytest.raises(fb.FederatedError, match=message):
        fb.fit_federated(flat_model, broken, key=KEY, method=method, progress=False)


def test_a_mask_of_the_wrong_shape():
    for wrong, seen in (
        (np.ones(3, bool), r"shape \(3,\) and dtype bool"),
        (np.ones(2), r"shape \(2,\) and dtype float64"),
    ):
        with pytest.raises(
            ValueError, match=rf"`participation` returned {seen}; return one boolean per client, shape \(2,\)"
        ):
            fit(make_clients(broken=False), participation=lambda r, key, wrong=wrong: wrong)


def test_sequential_names_the_client_in_what_is_raised(monkeypatch):
    def broken(*arguments, **keywords):
        raise ArithmeticError("planted")

    monkeypatch.setattr("fedbayes.inference.ep.client._scaled", broken)
    with pytest.raises(ArithmeticError, match=r"planted(.|\n)*raised for client 'north' in the update 'importance'"):
        fit(make_clients(broken=False), executor=Sequential())


def test_too_many_dims(without_broken):
    shown = without_broken.fitted.shown._replace(dims={"mu": ["city", "year"]})
    other = fb.FederatedFit(replace(without_broken.fitted, shown=shown))
    with pytest.raises(
        ValueError, match=r"`dims` names 2 dimensions of 'mu', \['city', 'year'\], but the site has shape \(\)"
    ):
        other.client_posterior("north")


def test_unknown_client_of_a_fit(without_broken):
    with pytest.raises(KeyError, match=r"There is no client 'west'; the clients are \['north', 'south'\]"):
        without_broken.client_posterior("west")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 51162747272 bytes.", "asks for 47.6 GiB of memory at once"),
        ("RESOURCE_EXHAUSTED: Failed to allocate.", "asks for more memory at once"),
    ],
)
def test_too_little_memory_is_said_with_what_takes_less(monkeypatch, message, expected):
    def run(executor, order):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(Batched, "run", run)
    with pytest.raises(fb.FederatedError, match=rf"updates \['importance'\] {expected}.*Batched\(chunk=1\)"):
        fit(make_clients(broken=False))


def test_other_errors_of_a_device_stay_as_they_are(monkeypatch):
    def run(executor, order):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(Batched, "run", run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        fit(make_clients(broken=False))
