"""What a client's steps tell of its records: worked out at the client, from what a broadcast says and its own options.

Replacing one record moves a step by at most ``s_c``, and the client's own noise has standard deviation ``sigma_c``:

    s_c = eta n_c Delta / (B p_c),   sigma_c = sqrt(2 eta tau (1 - rho^2) / p_c),   Delta = 2 clip.

Position and coordinates of a broadcast do not enter: gradients are clipped in the coordinates in which the steps are.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.inference.fald.client import Shared, step_size_at
from fedbayes.inference.fald.mechanism import ratio
from fedbayes.inference.fald.options import LEAST_STEP, Options
from fedbayes.numerics.accounting import Release
from fedbayes.problem.client import Client

_MOST_STEPS = 1_000_000  # of a round: a server must not choose how long a client computes
_LEAST_WEIGHT = 1e-9  # below it the sum of clipped gradients over the weight could overflow, which a code would tell
_MOST_COUNTED = 2.0**53  # local steps, exactly
_LARGEST = 1e150  # of that sum, and of a step
_LEAST_RATIO = 1e-5  # of a row's part in a step to its noise, as it is charged


def released(config: Options, weights: np.ndarray, shared: Shared, client: Client) -> list[Release]:
    """What the replies to a broadcast tell of the client's records; one entry for each chain.

    Raises
    ------
    ValueError
        It can't be bounded: the broadcast has numbers that no server means.
    """
    rows, weight = int(np.sum(client.mask)), float(weights[int(client.index)])
    batch = config.batch_size or rows
    if client.num_locals:
        raise ValueError("The model has local latents: its gradient in the globals is no sum over rows.")
    if not (_LEAST_WEIGHT <= weight <= 1.0 and 1 <= batch <= rows):
        raise ValueError(f"The site has {rows} rows and the weight {weight}, for batches of {batch}.")
    if not rows * (config.clip or math.inf) / weight < _LARGEST:
        raise ValueError(f"`clip` is {config.clip}: so large a sum of gradients could overflow.")
    chains = [jax.tree.map(lambda leaf, r=r: np.asarray(leaf)[r], shared) for r in range(len(shared.local_steps))]
    return [_of_chain(config, chain, weight, rows, batch) for chain in chains]


def _of_chain(config: Options, shared: Shared, weight: float, rows: int, batch: int) -> Release:
    sizes, num = _step_sizes(config, shared)
    # NaN is neither; a schedule may begin at zero, and takes no step then
    if not np.all((sizes >= 0.0) & (sizes < _LARGEST)):
        raise ValueError(f"A step size of the broadcast is {sizes.min()}; Langevin steps are not negative, and finite.")
    if not np.all((sizes == 0.0) | (sizes * min(1.0, config.temperature) >= LEAST_STEP)):
        raise ValueError(f"A step size of the broadcast is {sizes.min()}: its noise would be rounded to zero.")
    # the divergence of a step on all records is linear in eta, and of one on a batch it grows with it
    eta = float(np.mean(sizes) if batch == rows else np.max(sizes))
    found = ratio(
        eta,
        sensitivity=2.0 * (config.clip or math.inf),
        private=config.temperature * (1.0 - config.noise_correlation**2),
        weight=weight,
        fraction=batch / rows,
    )
    # what is next to nothing adds up, too: an account that it did not move would have no end
    return Release(max(found, _LEAST_RATIO) if found > 0.0 else found, rows, batch, num)


def _step_sizes(config: Options, shared: Shared) -> tuple[np.ndarray, int]:
    """The different step sizes of a round, and the number of its steps."""
    steps = float(shared.local_steps)
    if not (1.0 <= steps <= _MOST_STEPS and steps % 1.0 == 0.0):
        raise ValueError(f"The broadcast asks for {steps} local steps: write a whole number up to {_MOST_STEPS:,}.")
    num = int(steps)
    if not (callable(config.step_size) or config.step_size == "decaying"):
        return np.asarray([float(shared.step_size)]), num
    done, smooth, convex = (float(each) for each in (shared.round, shared.smoothness, shared.convexity))
    if not (done >= 0.0 and done % 1.0 == 0.0 and done * num < _MOST_COUNTED):
        raise ValueError(f"The broadcast is that of round {done}: rounds are counted in whole numbers.")
    if config.step_size == "decaying" and not (0.0 < smooth < _LARGEST and 0.0 <= convex < _LARGEST):
        raise ValueError(f"The broadcast has the curvatures {smooth} and {convex}, which are none.")
    return np.asarray(jax.vmap(partial(step_size_at, config, shared))(jnp.arange(num))), num
