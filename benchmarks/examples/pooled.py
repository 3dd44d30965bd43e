"""NUTS on everybody's data: the clients' own programs, the globals shared and their prior counted once.

NumPyro makes the potential of each client's program: latents in unconstrained space, discrete ones summed out. The sum
of these counts the prior of the globals once for every client, so it is taken off all but once. Nothing of fedbayes is
used but the mark of a local latent, so that the library's split is compared with NumPyro's own densities.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model

from examples.example import Example

CHAINS, WARMUP, BLOCK = 4, 1000, 1000
JITTER = 0.2  # how far chains begin from where NumPyro would begin
MCSE = 0.02  # of the means, in posterior sds; draws are doubled until then, or until the time does not allow it
_LOCAL = "fedbayes_local"

Latents = dict[str, Any]


def arrays_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """A client's arguments as the library hands them to the program: numbers as arrays, sizes and flags as they are."""
    return {name: value if _is_size(value) else jnp.asarray(value) for name, value in data.items()}


def _is_size(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int)


def global_names(model: Callable[..., Any], data: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the continuous latents that are not marked local, in the program's order."""
    sites = trace(seed(model, 0)).get_trace(**data)
    return tuple(
        name
        for name, site in sites.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not site["infer"].get(_LOCAL)
        and not site["fn"].support.is_discrete
    )


def log_prior(model: Callable[..., Any], data: Mapping[str, Any], unconstrained: Latents) -> jax.Array:
    """Log density of the unconstrained globals under the program's prior."""
    sites = trace(seed(model, 0)).get_trace(**data)
    transforms = {name: biject_to(sites[name]["fn"].support) for name in unconstrained}
    values = {name: transforms[name](value) for name, value in unconstrained.items()}
    sites = trace(substitute(seed(model, 0), data=values)).get_trace(**data)
    total = jnp.zeros(())
    for name, value in values.items():
        factor = 1.0 if sites[name]["scale"] is None else sites[name]["scale"]
        total += jnp.sum(factor * sites[name]["fn"].log_prob(value))
        total += jnp.sum(transforms[name].log_abs_det_jacobian(unconstrained[name], value))
    return total


class Pooled:
    """The potential of everybody's program, and where chains may start."""

    def __init__(self, example: Example) -> None:
        clients = example.clients()
        self.model, data = example.model, list(clients.values())
        if example.pooled is not None:
            self.model, everybody = example.pooled(clients)
            data = [everybody]
        self.data = [arrays_of(one) for one in data]
        self.globals = global_names(self.model, self.data[0])
        found = [self._client(number, data, example.init) for number, data in enumerate(self.data)]
        self.potentials = [info.potential_fn for info in found]
        values = [info.param_info.z for info in found]
        shared = {name: values[0][name] for name in self.globals}
        self.start = {
            "globals": shared,
            "locals": [{name: each[name] for name in each if name not in shared} for each in values],
        }

    def _client(self, number: int, data: Mapping[str, Any], init: Callable[..., Any]) -> Any:
        return initialize_model(
            jax.random.key(number),
            self.model,
            init_strategy=init,
            model_kwargs=data,
            validate_grad=False,
        )

    def potential(self, position: Mapping[str, Any]) -> jax.Array:
        """Minus the log density of globals and all clients' locals."""
        shared = position["globals"]
        pairs = zip(self.potentials, position["locals"], strict=True)
        everybody = sum(potential({**shared, **own}) for potential, own in pairs)
        return everybody + (len(self.data) - 1) * log_prior(self.model, self.data[0], shared)


def nuts(example: Example, seconds: float, twice: bool = False, of_sds: float = np.inf) -> dict[str, Any]:
    """Moments of the unconstrained globals, with their Monte Carlo errors in posterior sds.

    ``cpu`` is what a user pays: compilation, warm-up and the first block; ``wall`` are the seconds of that on the
    clock. ``second`` has the times of the same without compilation, where it is asked for ``twice``. ``of_sds`` is the
    relative error of the sds at which draws are many enough.
    """
    began, begun = time.perf_counter(), time.process_time()
    pooled = Pooled(example)
    flat, unravel = ravel_pytree(pooled.start)
    places = unravel(jnp.arange(flat.size, dtype=flat.dtype))["globals"]
    order = np.concatenate([np.ravel(places[name]) for name in pooled.globals]).astype(int)
    start = flat + np.random.default_rng(0).uniform(-JITTER, JITTER, size=(CHAINS, flat.size))
    potential = lambda position: pooled.potential(unravel(position))  # noqa: E731
    mcmc = _chains(potential)
    blocks: list[np.ndarray] = []
    diverging = 0
    while True:
        mcmc.run(jax.random.key(len(blocks)), init_params=start, extra_fields=("diverging",))
        blocks.append(np.asarray(mcmc.get_samples(group_by_chain=True))[..., order])
        diverging += int(np.sum(mcmc.get_extra_fields()["diverging"]))
        if len(blocks) == 1:
            cpu, wall = time.process_time() - begun, time.perf_counter() - began
        summary = summarised(np.concatenate(blocks, axis=1))
        spent, used = time.perf_counter() - began, time.process_time() - begun
        precise = max(summary["mcse"]) <= MCSE and max(summary["mcse_sd"]) <= of_sds
        if precise or 2.0 * used > seconds:
            break
        state = mcmc.last_state
        mcmc = _chains(potential, summary["draws"] // CHAINS)  # as many as there are
        mcmc.post_warmup_state = state
    found = {"labels": labels(pooled), **summary, "seconds": spent, "cpu": cpu, "wall": wall, "latents": flat.size}
    found["diverging"] = diverging
    if twice:
        found["second"] = _without_compilation(_chains(potential), start)
    return found


def _chains(potential: Callable[[jax.Array], jax.Array], draws: int = BLOCK) -> MCMC:
    return MCMC(
        NUTS(potential_fn=potential, target_accept_prob=0.9),
        num_warmup=WARMUP,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )


def _without_compilation(mcmc: MCMC, start: np.ndarray) -> dict[str, float]:
    """Times of warm-up and a block as one program, already compiled: ``MCMC.run`` compiles its loop at each call."""

    def whole(keys: jax.Array, start: jax.Array) -> jax.Array:
        mcmc.run(keys, init_params=start)
        return mcmc.get_samples(group_by_chain=True)

    keys = jax.random.split(jax.random.key(1), CHAINS)
    compiled = jax.jit(whole).lower(keys, start).compile()
    began, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(compiled(keys, start))
    return {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def labels(pooled: Pooled) -> list[str]:
    """Names of the coordinates, as the library writes them."""
    found = []
    for name in pooled.globals:
        shape = np.shape(pooled.start["globals"][name])
        found += [name] if not shape else [f"{name}[{i}]" for i in range(int(np.prod(shape)))]
    return found


def summarised(draws: np.ndarray) -> dict[str, Any]:
    """Means, sds, and the relative Monte Carlo errors of both; draws have the shape (chains, draws, d)."""
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    standard = (draws - mean) / sd
    # the sd's own error is that of the mean square, halved
    of_mean, of_square = (_ess(values) for values in (standard, standard**2))
    return {
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "mcse": (1.0 / np.sqrt(of_mean)).tolist(),
        "mcse_sd": (0.5 * (standard**2).std((0, 1)) / np.sqrt(of_square)).tolist(),
        "skewness": (standard**3).mean((0, 1)).tolist(),
        "r_hat": float(np.max(split_gelman_rubin(draws))),
        "draws": draws.shape[0] * draws.shape[1],
    }


def _ess(values: np.ndarray) -> np.ndarray:
    return np.maximum(effective_sample_size(values), 1.0)
