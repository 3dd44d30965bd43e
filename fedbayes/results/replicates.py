"""All clients side by side: their locals, their outcomes, and replicates of these for a posterior predictive check."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

from fedbayes.problem.program import Arrays, Program
from fedbayes.results.arviz import shown
from fedbayes.results.conditional import Rows
from fedbayes.results.predictive import predictive_draws

CLIENTS = "client_name"  # the dimension of the clients


class Replicates(NamedTuple):
    """A client's outcomes by site, and replicates of them with axes of chain and draw in front."""

    name: str
    seen: dict[str, np.ndarray]
    drawn: dict[str, np.ndarray]


def stacked(clients: Mapping[str, Any], shared: set[str]) -> tuple[dict[str, np.ndarray], dict, dict]:
    """Variables of the clients' posteriors, with a dimension of the clients, their dims and coords.

    Parameters
    ----------
    clients
        From name to the group ``posterior``.
    shared
        Variables that are left out, because they are the same on all clients.
    """
    values, dims, coords = {}, {}, {CLIENTS: list(clients)}
    names = {str(name): None for group in clients.values() for name in group.data_vars if name not in shared}
    for name in names:
        mine = {client: group[name] for client, group in clients.items() if name in group.data_vars}
        largest = max(mine.values(), key=lambda array: array.size)
        shape = np.max([array.shape for array in mine.values()], axis=0)
        together = np.full((*shape[:2], len(clients), *shape[2:]), np.nan)
        for place, client in enumerate(clients):
            if client in mine:
                filled = tuple(slice(length) for length in mine[client].shape[2:])
                index: Any = (slice(None), slice(None), place, *filled)
                together[index] = mine[client].values
        values[name] = together
        own = [str(dim) for dim in largest.dims[2:]]
        dims[name] = [CLIENTS, *own]
        coords |= {dim: largest[dim].values for dim in own if len(largest[dim]) >= len(coords.get(dim, ()))}
    return values, dims, coords


def observed_outcomes(program: Program, data: Arrays) -> dict[str, np.ndarray]:
    """The observed values of one client, by site."""

    def run(data: Arrays) -> dict[str, Array]:
        return program.observed(jnp.zeros(program.globals.size), jnp.zeros(program.locals.size), data)

    return {name: np.asarray(value) for name, value in jax.jit(run)(dict(data)).items()}


def observed_rows(program: Program, data: Arrays) -> dict[str, np.ndarray]:
    """For the sites of one client of which something is missing or masked: true where an outcome was observed."""
    masks = {}
    for name, site in program.outcome_sites(
        jnp.zeros(program.globals.size), jnp.zeros(program.locals.size), data
    ).items():
        law, shape = site["fn"], np.shape(site["value"])
        while not isinstance(law, dist.MaskedDistribution) and hasattr(law, "base_dist"):
            law = law.base_dist
        if isinstance(law, dist.MaskedDistribution):
            mask = np.asarray(law._mask)
            masks[name] = np.broadcast_to(mask, shape[: mask.ndim])
    return {name: mask for name, mask in masks.items() if not mask.all()}


def replicated(
    program: Program, data: Arrays, posterior: Any, key: Array, num_draws: int, own: Rows | None
) -> dict[str, np.ndarray]:
    """Replicates of one client's outcomes, ``num_draws`` of each chain of its own posterior; ``own`` as for draws."""
    named = {shown(name): name for name in (*program.globals.names, *program.locals.names)}
    chosen = np.linspace(0, posterior.sizes["draw"] - 1, num_draws).astype(int)
    draws = {named[str(name)]: posterior[name].values[:, chosen] for name in posterior.data_vars if name in named}
    return predictive_draws(program, draws, key, {**program.static, **data}, own)


def side_by_side(parts: Mapping[str, Mapping[str, np.ndarray]], lead: int) -> dict[str, np.ndarray]:
    """Each site's values of all clients, one after the other, behind ``lead`` axes."""
    found: dict[str, list[np.ndarray]] = {}
    for sites in parts.values():
        for name, value in sites.items():
            found.setdefault(name, []).append(value.reshape(*value.shape[:lead], -1))
    return {name: np.concatenate(values, axis=lead) for name, values in found.items()}


def row_labels(parts: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, list[str]]:
    """For each site the labels ``client[i]`` of :func:`side_by_side`'s values."""
    labels: dict[str, list[str]] = {}
    for client, sites in parts.items():
        for name, value in sites.items():
            labels.setdefault(name, []).extend(f"{client}[{i}]" for i in range(value.size))
    return labels
