"""Replicates of the clients' own outcomes, for a posterior predictive check: functions of a ``Fitted``."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

from fedbayes.problem.problem import Problem
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.program.program import Arrays, Program
from fedbayes.questions.clients import own_rows, posterior_for
from fedbayes.results import arviz
from fedbayes.results.conditional import Rows
from fedbayes.results.corrected import theta
from fedbayes.results.fitted import Fitted, attrs
from fedbayes.results.posterior import idata
from fedbayes.results.predictive import predictive_draws
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

_AT_MOST = 100  # replicates of a chain by default
_OBSERVED: Kept[Any] = Kept(64)


class Replicates(NamedTuple):
    """A client's outcomes by site, and replicates of them with axes of chain and draw in front."""

    name: str
    seen: dict[str, np.ndarray]
    drawn: dict[str, np.ndarray]


def check(fitted: Fitted, num_draws: int | None = None) -> Any:
    """Posterior predictive replicates of the clients' own outcomes, for ``az.plot_ppc(fit.check())``.

    Each client's outcomes are drawn anew with its own posterior, locals included, such as its function of a
    Gaussian process. The outcomes themselves are in the group ``observed_data``, so this is for a process that may
    hold the clients' data. They are in the object that is returned alone: ``fit.idata``, and what ``fit.save`` writes,
    stay as they are.

    Parameters
    ----------
    num_draws
        Replicates of each chain; ``None``: at most 100.

    Returns
    -------
    InferenceData or DataTree
        A copy of ``fit.idata`` with the groups ``posterior_predictive`` and ``observed_data`` beside its own: the
        clients' values one after the other, labelled ``client[i]``.

    Raises
    ------
    ClientDataError
        The clients' data are in other processes.
    ValueError
        ``num_draws`` is no number from 1 to that of the draws of a chain.
    """
    most = theta(fitted).shape[1]
    num_draws = min(_AT_MOST, most) if num_draws is None else num_draws
    if not isinstance(num_draws, int) or not 1 <= num_draws <= most:
        raise ValueError(f"`num_draws` is {num_draws}; write a number from 1 to {most}, a chain's draws.")
    found = list(replicates(fitted, num_draws))
    seen, drawn = {each.name: each.seen for each in found}, {each.name: each.drawn for each in found}
    labels = {f"{site}_row": rows for site, rows in row_labels(seen).items()}
    groups = {"posterior_predictive": side_by_side(drawn, 2), "observed_data": side_by_side(seen, 0)}
    dims = {site: [f"{site}_row"] for site in groups["observed_data"]}
    return arviz.extended(idata(fitted), arviz.to_arviz(groups, labels, dims, attrs(fitted)))


def replicates(fitted: Fitted, num_draws: int) -> Iterator[Replicates]:
    """Each client's outcomes, and replicates of them with draws of its own posterior."""
    for place, name in enumerate(fitted.roster.names):
        program, data = fitted.problem.program(name), fitted.problem.held(name).arrays
        posterior = posterior_for(fitted, name, program).posterior
        with computing():
            key = key_for(fitted.key, Purpose.REPLICATES, place)
            seen = observed_outcomes(program, data)
            found = replicated(program, data, posterior, key, num_draws, own_rows(fitted, name, program))
        yield Replicates(name, seen, {site: np.asarray(found[site]) for site in seen})


def prior_draws(problem: Problem, prior: Prior, key: Array, num: int, *, instead: str = "") -> dict[str, np.ndarray]:
    """Draws of the constrained globals, and of functions of them, from their prior, ``(1, draw, ...)``.

    ``instead`` is what whoever asked can write without another prior: ``"`prior=False`, or "``.

    Raises
    ------
    ValueError
        The prior can't be drawn from.
    """
    shapes = arviz.shapes_of(problem)
    if terms := shapes[0].program.prior_terms:
        raise ValueError(
            f"The prior has the terms {list(terms)} beside the laws of the globals, and can't be drawn from. Write "
            f"{instead}a prior by `numpyro.sample` alone."
        )
    with computing():
        try:
            theta = jax.vmap(prior.draw)(jax.random.split(key, num))
        except NotImplementedError as error:
            raise ValueError(
                f"A prior of the globals can't be drawn from. Write {instead}a proper prior. {error}"
            ) from error
        return arviz.global_values(shapes, np.asarray(theta)[None])


def prior_replicates(problem: Problem, values: Mapping[str, np.ndarray], key: Array) -> Iterator[Replicates]:
    """Each client's outcomes, and replicates of them given draws of the globals, with locals from the model.

    Parameters
    ----------
    problem
        The clients, whose data this process holds.
    values
        Of :func:`prior_draws`.
    key
        For locals and outcomes.
    """
    for place, name in enumerate(problem.names):
        program, data = problem.program(name), problem.held(name).arrays
        globals_ = {site: values[site] for site in program.globals.names}
        with computing():
            seen = observed_outcomes(program, data)
            drawn = predictive_draws(program, globals_, jax.random.fold_in(key, place), {**program.static, **data})
        yield Replicates(name, seen, {site: np.asarray(drawn[site]) for site in seen})


def observed_outcomes(program: Program, data: Arrays) -> dict[str, np.ndarray]:
    """The observed values of one client, by site."""
    return _observed(program, data)[0]


def observed_rows(program: Program, data: Arrays) -> dict[str, np.ndarray]:
    """For the sites of one client of which something is missing or masked: true where an outcome was observed."""
    return {name: mask for name, mask in _observed(program, data)[1].items() if not mask.all()}


def _observed(program: Program, data: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The observed values, and of those with a mask where it is true."""

    def run(data: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        sites = program.outcome_sites(jnp.zeros(program.globals.size), jnp.zeros(program.locals.size), data)
        values = {name: jnp.asarray(site["value"]) for name, site in sites.items()}
        masks = {name: _mask(site["fn"], values[name].shape) for name, site in sites.items()}
        return values, {name: mask for name, mask in masks.items() if mask is not None}

    found: tuple = jax.tree.map(np.asarray, _OBSERVED.get(program, lambda: jit_cheaply(run))(dict(data)))
    return found


def _mask(law: Any, shape: tuple[int, ...]) -> Array | None:
    """Where a distribution's mask lets its outcomes count; ``None`` if it has none."""
    while not isinstance(law, dist.MaskedDistribution) and hasattr(law, "base_dist"):
        law = law.base_dist
    if not isinstance(law, dist.MaskedDistribution):
        return None
    mask = jnp.asarray(law._mask)
    return jnp.broadcast_to(mask, shape[: mask.ndim])


def replicated(
    program: Program, data: Arrays, posterior: Any, key: Array, num_draws: int, own: Rows | None
) -> dict[str, np.ndarray]:
    """Replicates of one client's outcomes, ``num_draws`` of each chain of its own posterior; ``own`` as for draws."""
    named = {arviz.shown(name): name for name in (*program.globals.names, *program.locals.names)}
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
