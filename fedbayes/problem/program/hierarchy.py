"""Hierarchies among the globals: whose prior becomes wider or narrower with the values of other globals.

Written as ``theta ~ Normal(mu, tau)`` with ``tau`` a global too, the posterior has the shape of a funnel wherever the
data say little of each ``theta``, and no Gaussian has that. Location alone does no harm: it tilts a Gaussian.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import biject_to

from fedbayes.problem.program.prior import Hierarchy
from fedbayes.problem.program.program import Arrays, Program
from fedbayes.problem.program.tracing import leading_to
from fedbayes.runtime.compiling import jit_cheaply

_ROUND_OFF = 1e-3  # relative, also of programs in float32


def hierarchy_of(program: Program, data: Arrays) -> Hierarchy:
    """For each global whose prior's spread depends on other globals, their names; ``data`` only fixes the shapes.

    The spread is that of two draws by the same random numbers, in unconstrained space: their difference stays as it is
    where other globals only move the prior (or scale it, where it is positive). An improper prior has no draws, and
    none that depend on anything.
    """
    if not _reads_globals(program, data):
        return {}
    blocks = program.globals.unravel(np.arange(program.globals.size))
    here, there = np.random.default_rng(6).normal(size=(2, program.globals.size)) * 0.3
    spreads = jit_cheaply(lambda theta: _spreads(program, theta, data))
    before = spreads(here)
    found: dict[str, tuple[str, ...]] = {}
    for parent, places in blocks.items():
        moved = here.copy()
        moved[places] = there[places]
        after = spreads(moved)
        for name in before.keys() - {parent}:
            change, size = (np.max(np.abs(each), initial=0.0) for each in (after[name] - before[name], before[name]))
            if change > _ROUND_OFF * size:
                found[name] = (*found.get(name, ()), parent)
    return {name: found[name] for name in program.globals.names if name in found}


def _reads_globals(program: Program, data: Arrays) -> bool:
    """Whether any operation leads from the globals to the parameters of a global's prior: few programs have one."""

    def parameters(theta: Array) -> list:
        sites = program.sites(theta, jnp.zeros(program.locals.size), data)
        return [jnp.asarray(leaf) for name in program.globals.names for leaf in jax.tree.leaves(sites[name]["fn"])]

    jaxpr = jax.make_jaxpr(parameters)(jnp.zeros(program.globals.size)).jaxpr
    return id(jaxpr.invars[0]) in leading_to(jaxpr, jaxpr.outvars)[1]


def _spreads(program: Program, theta: Array, data: Arrays) -> dict[str, Array]:
    """Difference of two draws of each global from its prior given the other globals, in unconstrained space."""
    sites = program.sites(theta, jnp.zeros(program.locals.size), data)
    found = {}
    for name in program.globals.names:
        prior = sites[name]["fn"]
        free = biject_to(prior.support).inv
        try:
            one, other = (free(prior.sample(jax.random.key(seed))) for seed in (0, 1))
        except NotImplementedError:
            continue
        found[name] = one - other
    return found


def of_funnel(hierarchy: Hierarchy) -> str:
    """What to warn of before the first round of a method whose answer is a Gaussian."""
    wide = "; ".join(f"that of '{name}' with {_quoted(parents)}" for name, parents in hierarchy.items())
    return (
        f"The scale of a global's prior changes with other globals: {wide}. Where the data say little of each entry, "
        f"the posterior is a funnel: far from any Gaussian, so that the rounds may fail or not converge. "
        f"{without_funnel(hierarchy)}"
    )


def without_funnel(hierarchy: Hierarchy) -> str:
    """How to write a program whose globals have a hierarchy."""
    name, names = next(iter(hierarchy)), _quoted(hierarchy)
    return (
        f"If each client has its own {names}, sample it inside `with fedbayes.local():`. If all clients share it, "
        f"write the non-centred form, `{name} = location + scale * z` with `z` from a standard normal, or "
        f"`numpyro.handlers.reparam(model, config={{'{name}': LocScaleReparam(0)}})`."
    )


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
