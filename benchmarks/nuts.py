"""NumPyro's NUTS kernel in one compiled loop: no progress bar, no Python between draws, data as arguments."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpyro.infer import init_to_median
from numpyro.infer.hmc import hmc
from numpyro.infer.util import initialize_model


class Chain:
    """One chain; the two programs, warm-up and a block of draws, are compiled at their first call.

    Parameters
    ----------
    potential_gen
        ``(data) -> potential``; the data are arguments of the compiled programs.
    num_warmup, block
        Steps of adaptation, and draws of one call.
    """

    def __init__(self, potential_gen: Callable[..., Callable], num_warmup: int, block: int) -> None:
        init, sample = hmc(potential_fn_gen=lambda data: potential_gen(data), algo="NUTS")

        def step(state: Any, data: Any) -> Any:
            return sample(state, model_args=(data,))

        def warmup(start: Any, data: Any, key: jax.Array) -> Any:
            state = init(start, num_warmup, target_accept_prob=0.8, model_args=(data,), rng_key=key)
            return jax.lax.fori_loop(0, num_warmup, lambda _, state: step(state, data), state)

        def draws(state: Any, data: Any) -> tuple[Any, Any]:
            def body(state: Any, _: None) -> tuple[Any, tuple[Any, jax.Array]]:
                state = step(state, data)
                return state, (state.z, state.num_steps)

            return jax.lax.scan(body, state, None, block)

        self.warmup, self.draws = jax.jit(warmup), jax.jit(draws)


class PooledChain:
    """A NumPyro program with all its data in one place.

    Parameters
    ----------
    model, data
        The program and its keyword arguments; integers are sizes.
    num_warmup, block
        See `Chain`.
    """

    def __init__(self, model: Callable, data: Mapping[str, Any], num_warmup: int, block: int) -> None:
        sizes = {name: value for name, value in data.items() if isinstance(value, int)}
        self.data = {name: jax.numpy.asarray(value) for name, value in data.items() if name not in sizes}
        info = initialize_model(
            jax.random.key(0),
            model,
            dynamic_args=True,
            init_strategy=init_to_median(num_samples=5),
            model_kwargs=sizes | self.data,
        )
        self.start = info.param_info.z
        self.potential_gen = lambda arrays: info.potential_fn(**sizes, **arrays)
        self.chain = Chain(self.potential_gen, num_warmup, block)

    def begin(self, key: jax.Array) -> Any:
        """Adapted state."""
        return jax.block_until_ready(self.chain.warmup(self.start, self.data, key))

    def more(self, state: Any) -> tuple[Any, dict[str, np.ndarray], float]:
        """Another block: new state, draws, mean number of gradients per draw."""
        state, (draws, steps) = self.chain.draws(state, self.data)
        return state, jax.tree.map(np.asarray, draws), float(np.mean(steps))
