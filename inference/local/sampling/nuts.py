"""NumPyro's NUTS on a whitened density, as a pure function."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key
from numpyro.infer.hmc import HMCState, hmc

from fedbayes.inference.local.density.laplace import Mode
from fedbayes.inference.local.density.moments import TiltedDraws
from fedbayes.inference.local.density.tilted import NUM_CHAINS, Warm


def nuts_chains(
    log_density: Callable[[Array], Array],
    mode: Mode,
    warm: Warm,
    proposed: TiltedDraws,
    key: Key[Array, ""],
    *,
    num_samples: int,
    num_warmup: int,
) -> tuple[Float[Array, "{num_samples} p"], Float[Array, ""], Float[Array, "chain p"], Float[Array, ""]]:
    """Draws, step size, last positions and the effective number of draws.

    The coordinates are ``x = mode + white' u``, in which the Laplace approximation is standard normal: the mass matrix
    is the identity.
    """
    start_key, run_key = jax.random.split(key)
    fresh = proposed.position[jax.random.categorical(start_key, jnp.log(proposed.weight), shape=(NUM_CHAINS,))]
    start = jnp.where(jnp.all(jnp.isfinite(warm.chains)), warm.chains, fresh)
    # u = L' (x - mode) with L = white^-1, solved through the curvature: white' white curvature = I
    whitened = (start - mode.position) @ mode.curvature @ mode.white.T

    def run(position: Array, chain_key: Array) -> tuple[Array, Array]:
        init, sample = hmc(lambda u: -log_density(mode.position + u @ mode.white), algo="NUTS")
        state = init(
            position,
            num_warmup,
            step_size=warm.step_size,
            adapt_mass_matrix=False,
            max_tree_depth=5,
            rng_key=chain_key,
        )

        def step(state: HMCState, _: None) -> tuple[HMCState, Array]:
            state = sample(state)
            return state, state.z

        state, path = jax.lax.scan(step, state, None, num_warmup + num_samples // NUM_CHAINS)
        return path[num_warmup:], state.adapt_state.step_size

    path, step_size = jax.vmap(run)(whitened, jax.random.split(run_key, NUM_CHAINS))
    position = mode.position + path @ mode.white
    return position.reshape(num_samples, -1), jnp.mean(step_size), position[:, -1], _effective(path)


def _effective(path: Array) -> Array:
    """Effective number of draws of the slowest coordinate, from the lag-one autocorrelation of an AR(1) process."""
    gap = path - jnp.mean(path, axis=(0, 1))
    lag = jnp.sum(gap[:, 1:] * gap[:, :-1], axis=(0, 1)) / jnp.sum(gap**2, axis=(0, 1))
    slowest = jnp.clip(jnp.max(lag), 0.0, 0.99)
    return path.shape[0] * path.shape[1] * (1.0 - slowest) / (1.0 + slowest)
