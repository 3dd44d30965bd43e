"""The sites of a program, by tracing it on shapes: nothing is computed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.contrib.module import ParamShape
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from fedbayes.problem.program.program import Arrays, Model, Outcome
from fedbayes.problem.program.row_process import RowProcess

LOCAL = "fedbayes_local"


class TracedSite(NamedTuple):
    """What the library needs to know of one site, without its values.

    Attributes
    ----------
    kind
        ``"latent"``, ``"observed"``, ``"deterministic"``, ``"param"`` or ``"plate"``.
    shape, event_dim
        Of its value.
    unconstrained
        Shape in unconstrained space, for continuous latents.
    local, discrete
        Marked by :func:`local`; discrete support.
    plates
        ``(name, axis)`` of the value's axes that are plates; for a plate its ``(size, subsample size)``.
    argument
        The model's argument that is the observed value itself, if one is.
    outcome
        Of an observed site whose values have to be checked.
    law
        Shape of an observed site's distribution, batch and event.
    scanned
        Whether the site is inside ``numpyro.contrib.control_flow.scan``, whose steps are its first axis.
    process
        Whether the rows of an observed site depend on each other, see :mod:`~fedbayes.problem.program.row_process`.
    rows_by_rows
        Whether such a site's density takes a matrix of rows by rows.
    batches
        Whether the density of a mini-batch's rows stands for that of all rows.
    integrated
        What it has integrated out, by name.
    """

    kind: str
    shape: tuple[int, ...] = ()
    event_dim: int = 0
    unconstrained: tuple[int, ...] = ()
    local: bool = False
    discrete: bool = False
    plates: tuple[tuple, ...] = ()
    argument: str | None = None
    outcome: Outcome | None = None
    law: tuple[int, ...] = ()
    scanned: bool = False
    process: bool = False
    rows_by_rows: bool = False
    batches: bool = True
    integrated: tuple[str, ...] = ()


def trace_sites(model: Model, static: Mapping[str, Any], data: Arrays) -> dict[str, TracedSite]:
    """The program's sites, by tracing it on shapes: nothing is computed."""
    found: dict[str, TracedSite] = {}

    def run(data: Arrays) -> None:
        for name, site in run_trace(model, static, data).items():
            found[name] = _site(site, data)

    jax.eval_shape(run, dict(data))
    return found


def run_trace(model: Model, static: Mapping[str, Any], data: Arrays) -> dict[str, dict]:
    """NumPyro's trace of the program, for use within a trace of JAX."""
    # init_to_uniform gives values to priors that can't be sampled
    seeded = substitute(seed(model, 0), substitute_fn=init_to_uniform(radius=0.1))
    found: dict[str, dict] = trace(seeded).get_trace(**static, **data)
    return found


def base_law(law: dist.Distribution) -> dist.Distribution:
    """The distribution of single values, without the shapes and masks around it."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        law = law.base_dist
    return law


def _site(site: dict, data: Arrays) -> TracedSite:
    if site["type"] == "plate":
        size, subsample = site["args"]
        return TracedSite("plate", plates=((size, size if subsample is None else subsample),))
    if site["type"] == "param":
        weights = jax.tree.leaves(site["value"], is_leaf=lambda weight: isinstance(weight, ParamShape))
        # NumPyro replaces the weights of a network that have a prior by placeholders
        network = weights and all(isinstance(weight, ParamShape) for weight in weights)
        return TracedSite("module" if network else "param")
    shape = tuple(jnp.shape(site["value"])) if site["type"] in ("sample", "deterministic") else ()
    if site["type"] != "sample":
        return TracedSite(site["type"], shape)
    event_dim = len(site["fn"].event_shape)
    frames = ((frame.name, len(shape) - event_dim + frame.dim) for frame in site["cond_indep_stack"])
    plates = tuple((plate, axis) for plate, axis in frames if 0 <= axis < len(shape))
    scanned = bool(site.get("_control_flow_done"))
    if site["is_observed"]:
        argument = next((key for key, value in data.items() if value is site["value"]), None)
        known, process = _outcome(site, argument), isinstance(site["fn"], RowProcess)
        return TracedSite(
            "observed",
            shape,
            event_dim,
            (),
            plates=plates,
            argument=argument,
            outcome=known,
            law=tuple(site["fn"].shape()),
            scanned=scanned,
            process=process,
            rows_by_rows=process and site["fn"].rows_by_rows,
            batches=not process or site["fn"].batches,
            integrated=site["fn"].integrated_names if process else (),
        )
    discrete = site["fn"].support.is_discrete
    unconstrained = () if discrete else _unconstrained_shape(site)
    mine = bool(site["infer"].get(LOCAL))
    return TracedSite("latent", shape, event_dim, unconstrained, mine, discrete, plates, scanned=scanned)


def _outcome(site: dict, argument: str | None) -> Outcome | None:
    """What an observed site's values must be; ``None`` where any finite number will do, or some values are masked."""
    law = site["fn"]
    if isinstance(law, dist.MaskedDistribution | dist.Unit):
        return None
    support, base = law.support, law.support
    while isinstance(base, type(constraints.real_vector)) or hasattr(base, "base_constraint"):
        base = base.base_constraint
    if isinstance(base, type(constraints.real)):
        return None
    law = base_law(law)
    depends = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(support))
    return Outcome(site["name"], type(law).__name__, argument, None if depends else support)


def _unconstrained_shape(site: dict) -> tuple[int, ...]:
    return tuple(biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"])))
