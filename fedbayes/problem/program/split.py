"""Which sites of a program are global, which are local, and which programs can't be split at all."""

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.handlers import infer_config, seed, substitute
from numpyro.infer import init_to_uniform
from numpyro.infer.util import compute_log_probs

from fedbayes.errors import ModelError
from fedbayes.problem.program.program import Arrays, Block, Model, Program, completed
from fedbayes.problem.program.sites import LOCAL, TracedSite, trace_sites
from fedbayes.problem.program.tracing import leading_to


def local() -> infer_config:
    """Mark the latents sampled inside the ``with`` block as local to one client.

    A local latent is integrated out on its own client: it never enters a message, and it is returned only by
    ``fit.client_posterior(name)``.

    See Also
    --------
    FederatedFit.client_posterior : Their posterior.
    fit_federated : Fits a model by a method.

    Examples
    --------
    >>> import fedbayes as fb, numpyro, numpyro.distributions as dist
    >>> def model(y=None):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with fb.local():
    ...         theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    ...     numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)
    """
    return infer_config(config_fn=lambda site: {LOCAL: True})


def split(
    model: Model, static: Mapping[str, Any], data: Arrays, local_names: Sequence[str], dtype: jnp.dtype
) -> Program:
    """Split a program into global prior and client factor, for one shape of data.

    Raises
    ------
    ModelError
        No observed site; ``numpyro.param`` sites; a subsampling plate; discrete latents that can't be summed out; an
        unknown name in ``local_names``.
    """
    sites = trace_sites(model, static, data)
    _check_splittable(sites)
    missing = _missing_outcomes(model, static, data, sites)
    latents = {name: site for name, site in sites.items() if site.kind == "latent" and name not in missing}
    marked = _local_latents(sites, latents, local_names)
    discrete = {name for name, site in latents.items() if site.discrete}
    _check_discrete(discrete, marked)
    layout = {name: site.unconstrained for name, site in latents.items() if not site.discrete}
    globals_ = Block(tuple((name, shape) for name, shape in layout.items() if name not in marked))
    locals_ = Block(tuple((name, shape) for name, shape in layout.items() if name in marked))
    _warn(sites, globals_)
    integrated = _integrated(sites)
    outcomes = tuple(site.outcome for site in sites.values() if site.outcome is not None)
    program = Program(
        model,
        dict(static),
        globals_,
        locals_,
        {},
        bool(discrete),
        dtype,
        outcomes=outcomes,
        missing=missing,
        processes=tuple(name for name, site in sites.items() if site.process),
        rows_by_rows=any(site.rows_by_rows for site in sites.values()),
        batches=all(site.batches for site in sites.values()),
        integrated=integrated,
    )
    if discrete:
        _check_enumerates(program, data, discrete)
    return program


def _integrated(sites: Mapping[str, TracedSite]) -> tuple[str, ...]:
    """Names of what the densities of the program have integrated out."""
    found = [name for site in sites.values() for name in site.integrated]
    twice = [name for name in found if name in sites or found.count(name) > 1]
    if twice:
        raise ModelError(
            f"The latents that a distribution has integrated out are called '{twice[0]}', and so is something else in "
            "the model. Give them another `name`."
        )
    return tuple(found)


def _missing_outcomes(
    model: Model, static: Mapping[str, Any], data: Arrays, sites: Mapping[str, TracedSite]
) -> tuple[str, ...]:
    """The latents of NumPyro's ``obs_mask``: with nothing else that looks at them, they integrate to one."""
    found = tuple(name for name in sites if name.endswith("_unobserved") and f"{completed(name)}_observed" in sites)
    for name in found:
        readers = sorted(_readers(model, static, data, name, sites[name]) - {name})
        if readers:
            raise ModelError(
                f"The values that `obs_mask` leaves out of the site '{completed(name)}' are read by the sites "
                f"{readers}, and those it keeps have a latent without a density. Give the missing values alone a "
                "latent each, inside `fedbayes.local()`, and put them in place: `x.at[missing].set(latent)`."
            )
    return found


def _readers(model: Model, static: Mapping[str, Any], data: Arrays, name: str, site: TracedSite) -> set[str]:
    """The sites whose log-probability depends on the value of the latent ``name``."""

    def terms(value: Array) -> dict[str, Array]:
        started = substitute(seed(model, 0), substitute_fn=init_to_uniform(radius=0.1))
        with numpyro.validation_enabled(False):
            return compute_log_probs(started, (), {**static, **data}, {name: value}, sum_log_prob=False)[0]

    jaxpr, out = jax.make_jaxpr(terms, return_shape=True)(jnp.zeros(site.shape))
    value = jaxpr.jaxpr.invars[0]
    variables = zip(sorted(out), jaxpr.jaxpr.outvars, strict=True)
    return {term for term, var in variables if id(value) in leading_to(jaxpr.jaxpr, [var])[1]}


def _warn(sites: Mapping[str, TracedSite], globals_: Block) -> None:
    """Programs that run, but seldom mean what they say."""
    for name, site in sites.items():
        own = site.shape[: len(site.shape) - site.event_dim]
        terms = _terms(site)
        if np.prod(terms) > np.prod(site.shape):
            warnings.warn(
                f"The outcome of the site '{name}' has shape {site.shape}, but its distribution has shape {site.law}: "
                f"every value counts {int(np.prod(terms) // np.prod(site.shape))} times. Give both the same shape.",
                stacklevel=2,
            )
        covered = {axis for _, axis in site.plates} | ({0} if site.scanned else set())
        bare = [axis for axis, length in enumerate(own) if length > 1 and axis not in covered]
        if site.kind in ("observed", "latent") and site.plates and bare:
            warnings.warn(
                f"The site '{name}' has batch shape {own}, but no `numpyro.plate` stands for its axis {bare[0]}. Put "
                "it inside a plate, or make the axis part of the event with `.to_event(1)`.",
                stacklevel=2,
            )
    rows = {plate for site in sites.values() if site.kind == "observed" for plate, axis in site.plates if axis == 0}
    for name in globals_.names:
        shared = [plate for plate, _ in sites[name].plates if plate in rows]
        if shared:
            warnings.warn(
                f"The global latent '{name}' is in the plate '{shared[0]}' of the outcomes: the first row of every "
                "client shares its first entry, and so on. If each row has a latent of its own, mark it by "
                f"`with fedbayes.local():` or `local=({name!r},)`.",
                stacklevel=2,
            )


def _terms(site: TracedSite) -> tuple[int, ...]:
    """The shape to which an observed value and its distribution broadcast."""
    return tuple(np.broadcast_shapes(site.shape, site.law)) if site.kind == "observed" else site.shape


def _check_outcome(name: str, site: TracedSite) -> None:
    """Refuse an observed value and a distribution that broadcast to more than either has: all pairs of rows."""
    terms = _terms(site)
    if terms in (site.shape, site.law):
        return
    outcome = f"`{site.argument}`" if site.argument else "the outcome"
    longer = outcome if len(site.shape) > len(site.law) else "the distribution's parameters"
    if len(site.shape) != len(site.law) and (site.shape[-1:] == (1,) or site.law[-1:] == (1,)):
        repair = f"Drop the last axis of {longer}, by `[:, 0]` or `.squeeze(-1)`"
    else:
        repair = "Give both the same shape"
    raise ModelError(
        f"The outcome of the site '{name}' has shape {site.shape}, but its distribution has shape {site.law}: they "
        f"broadcast to {terms}, so that every value would be compared with every row's distribution. {repair}."
    )


def _check_enumerates(program: Program, data: Arrays, discrete: set[str]) -> None:
    theta, z = np.zeros(program.globals.size), np.zeros(program.locals.size)
    try:
        jax.eval_shape(program.log_factor, theta, z, data)
    except Exception as error:
        raise ModelError(
            f"NumPyro can't sum out the discrete latents {sorted(discrete)} ({type(error).__name__}: {error}). "
            "Enumeration needs a `numpyro.plate` around every batch dimension, the observations' rows included."
        ) from error


def _check_splittable(sites: Mapping[str, TracedSite]) -> None:
    if not any(site.kind == "observed" for site in sites.values()):
        raise ModelError(
            "The program has no observed site, so the clients' data say nothing about it. Pass the data to a site: "
            '`numpyro.sample("y", ..., obs=y)`, or to `numpyro.factor`.'
        )
    for name, site in sites.items():
        _check_outcome(name, site)
        if site.kind == "param":
            raise ModelError(
                f"Site '{name}' is a `numpyro.param`: it has no prior, so it has no posterior. "
                "Write `numpyro.sample` with a prior instead (for networks: `random_flax_module` and its relatives)."
            )
        if site.kind == "plate" and site.plates[0][0] != site.plates[0][1]:
            size, subsample = site.plates[0]
            raise ModelError(
                f"Plate '{name}' subsamples {subsample} of {size} rows, but a client's factor is the likelihood of "
                "all its rows. Leave `subsample_size` out."
            )


def _local_latents(
    sites: Mapping[str, TracedSite], latents: Mapping[str, TracedSite], local_names: Sequence[str]
) -> set[str]:
    marked = {name for name, site in latents.items() if site.local}
    for name in local_names:
        # a reparameterised site is deterministic, and its auxiliary latents carry its name: theta -> theta_decentered
        auxiliary = {latent for latent in latents if latent.startswith(f"{name}_")} if name in sites else set()
        found = {name} if name in latents else auxiliary
        if not found:
            raise ModelError(
                f"`local` names the site '{name}', which is not a latent of the program. Its latents are "
                f"{sorted(latents)}."
            )
        marked |= found
    return marked


def _check_discrete(discrete: set[str], marked: set[str]) -> None:
    if shared := sorted(discrete - marked):
        raise ModelError(
            f"Discrete latents {shared}: a Gaussian site can't hold a discrete global. If each client has its own, "
            "sample them inside `fedbayes.local()` and they are summed out; otherwise marginalise them by hand."
        )
    if discrete and importlib.util.find_spec("funsor") is None:
        raise ModelError(
            f"Discrete latents {sorted(discrete)} can be summed out only with funsor: `pip install "
            f"fedbayes[enumerate]`."
        )
