"""Programs of animals that are caught again or not; whether one is alive is summed out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit, logit
from numpyro.contrib.control_flow import scan
from numpyro.distributions.util import clamp_probs
from numpyro.handlers import mask, reparam
from numpyro.infer.reparam import LocScaleReparam

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def _captures(history: Any, survival: Any, recapture: Any, whole: Any = int) -> None:
    """Capture and recapture of marked animals; whether one is still alive is summed out."""
    animals = history.shape[0]

    def step(carry: Any, seen: Any) -> Any:
        captured, alive = carry
        phi = survival()
        with numpyro.plate("animals", animals, dim=-1), mask(mask=captured):
            lives = captured * phi * alive + (1 - captured)
            with fb.local():
                alive = numpyro.sample("z", dist.Bernoulli(clamp_probs(lives)), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Bernoulli(clamp_probs(recapture * alive)), obs=seen)
        return (captured | seen.astype(bool), alive), None

    start = (history[:, 0].astype(bool), jnp.ones(animals, whole))
    scan(step, start, jnp.swapaxes(history[:, 1:], 0, 1))


def _unit(name: str) -> Any:
    return numpyro.sample(name, dist.Uniform(0.0, 1.0))


def capture_1(history: Any, male: Any) -> None:
    phi = _unit("phi")
    _captures(history, lambda: phi, _unit("rho"))


def capture_int32(history: Any, male: Any) -> None:
    phi = _unit("phi")
    _captures(history, lambda: phi, _unit("rho"), jnp.int32)


def capture_2(history: Any, male: Any) -> None:
    _captures(history, lambda: _unit("phi"), _unit("rho"))


def capture_3(history: Any, male: Any) -> None:
    mean, sigma = logit(_unit("phi_mean")), numpyro.sample("phi_sigma", dist.Uniform(0.0, 10.0))

    def survival() -> Any:
        with reparam(config={"phi_logit": LocScaleReparam(0)}):
            return expit(numpyro.sample("phi_logit", dist.Normal(mean, sigma)))

    _captures(history, survival, _unit("rho"))


def capture_4(history: Any, male: Any) -> None:
    phi = male * _unit("phi_male") + (1.0 - male) * _unit("phi_female")
    _captures(history, lambda: phi, _unit("rho"))


def capture_5(history: Any, male: Any) -> None:
    beta = male * numpyro.sample("phi_beta", dist.Normal(0.0, 10.0))

    def survival() -> Any:
        return expit(beta + numpyro.sample("phi_gamma", dist.Normal(0.0, 10.0)))

    _captures(history, survival, _unit("rho"))


def capture_clients() -> Clients:
    random, clients = rng("capture"), []
    for _ in range(3):
        male = random.integers(0, 2, 40).astype(float)
        first, alive = random.integers(0, 3, 40), np.ones(40, int)
        history = np.zeros((40, 6), int)
        for t in range(6):
            alive = np.where(t > first, alive * (random.uniform(size=40) < 0.65 + 0.15 * male), alive)
            seen = (random.uniform(size=40) < 0.7) * alive
            history[:, t] = np.where(t == first, 1, np.where(t > first, seen, 0))
        clients.append(dict(history=history, male=male))
    return named(*clients)


EXAMPLES = (
    Example("capture 1", "capture_recapture.py, model 1", capture_1, capture_clients),
    Example(
        "capture 1, int32",
        "capture_recapture.py, model 1",
        capture_int32,
        capture_clients,
        "the carry of `scan` begins as `jnp.int32`, as NumPyro writes it",
    ),
    Example("capture 2", "capture_recapture.py, model 2", capture_2, capture_clients, "globals inside `scan`"),
    Example("capture 3", "capture_recapture.py, model 3", capture_3, capture_clients, "globals inside `scan`"),
    Example("capture 4", "capture_recapture.py, model 4", capture_4, capture_clients),
    Example("capture 5", "capture_recapture.py, model 5", capture_5, capture_clients, "globals inside `scan`"),
)
