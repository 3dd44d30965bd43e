"""A NumPyro program, split: global prior on one side, the client's factor on the other.

Global latents give the prior ``p(theta)`` with its Jacobian, counted once for the whole federation. Everything else
(local latents and observations) is the client's factor ``f(theta, z)``. Both live on flat vectors in unconstrained
space.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import IdentityTransform
from numpyro.distributions.util import sum_rightmost
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import compute_log_probs

from fedbayes.problem.program.handlers import Drawn, Replaced
from fedbayes.problem.program.row_process import OfRows

Model = Callable[..., Any]
Arrays = Mapping[str, Array] | Mapping[str, np.ndarray]
Globals = Array | Mapping[str, Array]
"""Unconstrained globals as one vector, or an array for each site.

Of networks the arrays are millions of numbers long, and to take a vector apart and put it together in each step is half
of the step's time.
"""
_LOG_DET = "_{}_log_det"


@dataclass(frozen=True)
class Block:
    """Named latents laid out one after the other in a flat unconstrained vector."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Site names, in the program's order."""
        return tuple(name for name, _ in self.shapes)

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(prod(shape) for _, shape in self.shapes)

    def unravel(self, flat: Any) -> dict[str, Any]:
        """The named arrays in ``flat``, shape ``(size,)``, or of what is named already."""
        if isinstance(flat, Mapping):
            return dict(flat)
        lengths = [prod(shape) for _, shape in self.shapes]
        if isinstance(flat, np.ndarray) or not lengths:
            parts: Any = np.split(flat, np.cumsum(lengths)[:-1])
        else:  # one primitive, whose derivative is one concatenation; of slices it would be a sum of padded vectors
            parts = jax.lax.split(flat, lengths)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, parts, strict=False)}

    def ravel(self, named: Mapping[str, Array]) -> Array:
        """The flat vector of the named arrays, shape ``(size,)``."""
        return jnp.concatenate([jnp.ravel(named[name]) for name in self.names])

    def groups(self) -> np.ndarray:
        """Places in the flat vector by the latents' first axis, shape ``(groups, size)``.

        One group where the latents have first axes of different lengths.
        """
        lengths = {shape[0] if shape else 1 for _, shape in self.shapes}
        if len(lengths) != 1:
            return np.arange(self.size)[None]
        places = self.unravel(np.arange(self.size))
        return np.concatenate([place.reshape(*lengths, -1) for place in places.values()], axis=1)

    def labels(self, entries: Mapping[str, Sequence[Sequence]] | None = None) -> list[str]:
        """One label per coordinate of the flat vector, ``beta[0]`` style.

        Parameters
        ----------
        entries
            By latent, the labels along each of its axes: ``beta[age]``, ``beta[age, north]``.
        """
        labels = []
        for name, shape in self.shapes:
            axes = (entries or {}).get(name, [range(prod(shape))])
            labels += entry_labels(name, axes if shape else [])
        return labels


def entry_labels(name: str, axes: Sequence[Sequence]) -> list[str]:
    """One label per entry of an array, by the labels along each of its axes: ``beta[age, north]``, or ``mu``."""
    return [f"{name}[{', '.join(map(str, entry))}]" if entry else name for entry in product(*axes)]


def unconstrained_substitute(params: Mapping[str, Array]) -> Callable[[dict], Array | None]:
    """A substitution of unconstrained values, which adds the log Jacobian as a factor site of its own."""

    def substitute_fn(site: dict) -> Array | None:
        name = str(site.get("name"))
        if name not in params or site["type"] != "sample":
            return None
        transform = biject_to(site["fn"].support)
        value = params[name]
        step = site["infer"].get("_scan_current_index")
        domain_shift = transform.codomain.event_dim - transform.domain.event_dim
        if step is not None and jnp.ndim(value) > len(site["fn"].shape()) - domain_shift:
            value = value[step]
        if isinstance(getattr(transform, "base_transform", transform), IdentityTransform):
            return value  # no Jacobian, whose factor enumeration inside `scan` could not take
        constrained = transform(value)
        log_det = transform.log_abs_det_jacobian(value, constrained)
        event = jnp.ndim(log_det) - jnp.ndim(constrained) + len(site["fn"].event_shape)
        numpyro.factor(_LOG_DET.format(name), sum_rightmost(log_det, event))
        return constrained

    return substitute_fn


def with_log_dets(block: Block) -> tuple[str, ...]:
    """The sites of a block's log density: its latents, each with its log Jacobian."""
    return tuple(name for site in block.names for name in (site, _LOG_DET.format(site)))


def completed(missing: str) -> str:
    """The site that NumPyro's ``obs_mask`` completes with the latent ``missing``."""
    return missing.removesuffix("_unobserved")


class Outcome(NamedTuple):
    """An observed site, for the check that its values can occur.

    Attributes
    ----------
    site, law
        Names of the site and of its distribution.
    argument
        The model's argument that is the observed value itself, if one is.
    support
        Of the distribution; ``None`` where it depends on data or latents.
    """

    site: str
    law: str
    argument: str | None
    support: Constraint | None


@dataclass(frozen=True, eq=False)
class Program:
    """One client's program for one shape of data.

    Attributes
    ----------
    model
        The user's NumPyro function.
    static
        Arguments that are not arrays, the same for every client of this shape.
    globals, locals
        Layout of the global and of the client-local latents.
    row_axes
        Axis of each site's log-probability that runs over the client's rows, for masking padded rows.
    row_arguments
        The arguments whose leading axis runs over rows; empty where rows can't be padded, or all clients have the same
        number of them.
    row_locals
        The locals whose leading axis runs over rows, so that padded rows have some: these are standard normal, and
        independent of everything.
    enumerated
        Local discrete latents are summed out by funsor.
    dtype
        Precision in which the user's program runs; everything around it is float64.
    outcomes
        The observed sites that not every finite number can be a value of.
    prior_terms
        Observed sites that look at the globals alone, such as a soft constraint by ``numpyro.factor``: they belong to
        the prior, and so count once for all clients.
    missing
        Latents that stand for missing outcomes (``obs_mask``) and that nothing else looks at: they integrate to one.
    processes
        Observed sites whose rows depend on each other, each a
        :class:`~fedbayes.problem.program.row_process.RowProcess`.
    rows_by_rows
        Whether the density of a process takes a matrix of rows by rows.
    batches
        Whether the density of a mini-batch's rows stands for that of all rows; there is a process where it does not.
    integrated
        Names of the client's own latents that the processes have integrated out, and give back after the fit.
    jacobian
        Derivative of the gradient: ``jax.jacfwd``; ``jax.jacrev`` for code that forward differentiation refuses;
        :func:`~fedbayes.numerics.columns.by_differences` where the gradient is finite and its derivative is not.
    """

    model: Model
    static: Mapping[str, Any]
    globals: Block
    locals: Block
    row_axes: Mapping[str, int]
    enumerated: bool
    dtype: jnp.dtype
    row_arguments: tuple[str, ...] = ()
    row_locals: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    prior_terms: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    rows_by_rows: bool = False
    batches: bool = True
    integrated: tuple[str, ...] = ()
    jacobian: Callable = jax.jacfwd

    def with_global(self, name: str) -> "Program":
        """The program with the local latent ``name`` as the last of its globals.

        Its prior then is no part of the factor, but of the prior: for a method that gives it another one.
        """
        return _with_global(self, name)

    def with_rows(self, number: int) -> "Program":
        """The program for clients with so many rows: ``row_locals`` have as many entries."""
        known = {dict(self.locals.shapes)[name][0] for name in self.row_locals}
        return self if known <= {number} else _with_rows(self, number)

    def places(self, rows: int) -> np.ndarray:
        """Where the locals of the first ``rows`` rows are among all, shape ``(m,)``."""
        places = self.locals.unravel(np.arange(self.locals.size))
        cut = [place[:rows] if name in self.row_locals else place for name, place in places.items()]
        return np.concatenate([place.ravel() for place in cut]) if cut else np.arange(0)

    def _params(self, theta: Globals, z: Array) -> dict[str, Array]:
        theta, z = jax.tree.map(lambda leaf: leaf.astype(self.dtype), (theta, z))
        return self.globals.unravel(theta) | self.locals.unravel(z)

    def _substituted(self, theta: Globals, z: Array) -> Model:
        return substitute(seed(self.model, 0), substitute_fn=unconstrained_substitute(self._params(theta, z)))

    def site_log_probs(self, theta: Globals, z: Array, data: Arrays, mask: Array | None = None) -> dict[str, Array]:
        """Log-probability of every site, element by element, with the log Jacobians as sites of their own.

        ``mask`` leaves rows out of the processes, whose log-probability is one number.
        """
        arguments, model = {**self.static, **data}, self._substituted(theta, z)
        if self.processes and mask is not None:
            model = OfRows(model, mask)
        # data that only fix shapes (the server's) need not lie in any support
        with numpyro.validation_enabled(False):
            return compute_log_probs(model, (), arguments, {}, sum_log_prob=False)[0]

    def log_prior(self, theta: Globals, data: Arrays) -> Array:
        """Log prior of the unconstrained globals, shape ``(d,)`` or by name, with the Jacobian.

        ``data`` only fixes the shapes: the checks before a fit refuse a prior that depends on it.
        """
        terms = self.site_log_probs(theta, jnp.zeros(self.locals.size), data)
        return self._prior_terms(terms)

    def draw_prior(self, key: Array, data: Arrays) -> Array:
        """A draw of the unconstrained globals from their prior, shape ``(d,)``; ``data`` only fixes the shapes.

        Raises
        ------
        NotDrawableError
            A prior is improper, or NumPyro lacks a package to draw from it.
        """
        with numpyro.validation_enabled(False):
            sites = trace(seed(Drawn(self.model), key)).get_trace(**self.static, **data)
        drawn = (biject_to(sites[name]["fn"].support).inv(sites[name]["value"]) for name in self.globals.names)
        return jnp.concatenate([jnp.ravel(value).astype(jnp.float64) for value in drawn])

    def _prior_terms(self, terms: Mapping[str, Array]) -> Array:
        return _total(terms[name] for name in self.prior_sites if name in terms)

    @property
    def prior_sites(self) -> tuple[str, ...]:
        """The sites whose log-probabilities make the log prior: the globals, their log Jacobians, ``prior_terms``."""
        return (*with_log_dets(self.globals), *self.prior_terms)

    def log_factor(
        self, theta: Globals, z: Array, data: Arrays, mask: Array | None = None, row_scale: Array | float | None = None
    ) -> Array:
        """Log of the client's factor: local latents with their Jacobian, and observations; padded rows are masked out.

        Parameters
        ----------
        theta, z
            Unconstrained globals, ``(d,)`` or arrays by name, and locals ``(m,)``.
        data
            The client's arrays.
        mask
            True for the client's real rows; ``None`` keeps all.
        row_scale
            Factor of the rows' terms: rows over batch size, where ``data`` are a mini-batch. A process has the log
            density of the batch, multiplied by it: its expectation is not that of all rows.
        """
        return self._traced_once(theta, z, dict(data), mask, row_scale)

    @cached_property
    def _traced_once(self) -> Callable:
        """The log factor under ``jit``: the user's function runs once per shape, however many programs contain it."""
        return jax.jit(self._log_factor)

    def _log_factor(self, theta: Globals, z: Array, data: Arrays, mask: Array | None, row_scale: Array | None) -> Array:
        terms = self.site_log_probs(theta, z, data, mask)
        if self.enumerated:
            return self._log_joint_enumerated(theta, z, data) - self._prior_terms(terms)
        factor = {name: term for name, term in terms.items() if name not in (*self.prior_sites, *self.missing)}
        found = _total(self._masked(name, term, mask, row_scale) for name, term in factor.items())
        return found if mask is None else found + self._of_padding(z, mask)

    def _of_padding(self, z: Array, mask: Array) -> Array:
        """Log density of the padded rows' locals."""
        locals_ = self.locals.unravel(z)
        laws = {name: dist.Normal(0.0, 1.0).log_prob(locals_[name]) for name in self.row_locals}
        return _total(jnp.where(_along(mask, law, 0), 0.0, law) for law in laws.values())

    def _masked(self, name: str, term: Array, mask: Array | None, row_scale: Array | None) -> Array:
        if name in self.processes and row_scale is not None:
            return row_scale * term
        axis = self.row_axes.get(name)
        if mask is None or axis is None:
            return term
        # where, not a product: 0 x NaN is NaN
        masked = jnp.where(_along(mask, term, axis), term, 0.0)
        return masked if row_scale is None else row_scale * masked

    def _log_joint_enumerated(self, theta: Globals, z: Array, data: Arrays) -> Array:
        from numpyro.contrib.funsor import config_enumerate, enum, log_density

        substituted = self._substituted(theta, z)
        plates = _plate_depth(substituted, {**self.static, **data})
        model = enum(config_enumerate(substituted), -plates - 1)
        return log_density(model, (), {**self.static, **data}, {})[0].astype(jnp.float64)

    def supports(self, theta: Array, z: Array, data: Arrays) -> dict[str, tuple[Array, Array, list[Array]]]:
        """For each of ``outcomes``: which values lie in the support, the values, and the support's bounds."""
        sites = self.sites(theta, z, data)
        laws = {
            outcome.site: (sites[outcome.site]["fn"].support, sites[outcome.site]["value"]) for outcome in self.outcomes
        }
        return {
            name: (support(value), jnp.asarray(value), [jnp.asarray(leaf) for leaf in jax.tree.leaves(support)])
            for name, (support, value) in laws.items()
        }

    def defects(self, theta: Array, z: Array, data: Arrays) -> dict[str, dict[str, Array]]:
        """For each of ``processes`` what makes its density meaningless: a flag for each complaint in words."""
        sites = self.sites(theta, z, data)
        return {name: dict(sites[name]["fn"].defects(sites[name]["value"])) for name in self.processes}

    def doubts(self, data: Arrays, mask: Array | None) -> dict[str, dict[str, Array]]:
        """For each of ``processes`` what is worth a warning: a flag for each doubt in words."""
        sites = self.sites(jnp.zeros(self.globals.size), jnp.zeros(self.locals.size), data, mask)
        return {name: dict(sites[name]["fn"].doubts(sites[name]["value"])) for name in self.processes}

    def observed(self, theta: Array, z: Array, data: Arrays) -> dict[str, Array]:
        """The values of the observed sites that are outcomes: those with a distribution of their own."""
        return {name: jnp.asarray(site["value"]) for name, site in self.outcome_sites(theta, z, data).items()}

    def sites(self, theta: Array, z: Array, data: Arrays, mask: Array | None = None) -> dict[str, dict]:
        """The program's trace at one position of globals and locals, whatever the supports; ``mask`` as above."""
        model = self._substituted(theta, z)
        with numpyro.validation_enabled(False):
            return trace(model if mask is None else OfRows(model, mask)).get_trace(**self.static, **data)

    def outcome_sites(self, theta: Array, z: Array, data: Arrays) -> dict[str, dict]:
        """The observed sites with a distribution of their own, as in NumPyro's trace."""
        return {
            name: site
            for name, site in self.sites(theta, z, data).items()
            if site["type"] == "sample"
            and site["is_observed"]
            and name not in self.prior_terms
            and not isinstance(site["fn"], dist.Unit)
        }

    def simulated_score(self, theta: Array, data: Arrays, mask: Array | None, key: Array) -> Array:
        """Slope of the log factor in the globals, ``(d,)``, with outcomes drawn anew at ``theta``; without locals.

        Its mean is zero, and its covariance the Fisher information of the client's outcomes, if there are no sites that
        are :meth:`not_simulable`.
        """
        z = jnp.zeros(0)
        drawn = {
            name: site["fn"].sample(jax.random.fold_in(key, place)).astype(jnp.asarray(site["value"]).dtype)
            for place, (name, site) in enumerate(self.outcome_sites(theta, z, data).items())
        }
        anew = replace(self, model=Replaced(self.model, drawn))
        return jax.grad(lambda at: anew._log_factor(at, z, data, mask, None))(theta)

    def not_simulable(self, theta: Array, data: Arrays) -> list[str]:
        """The factor's sites whose outcomes can't be drawn anew, or count by other weights; without locals.

        Those are ``numpyro.factor``, and distributions that are masked or scaled.
        """
        return [
            name
            for name, site in self.sites(theta, jnp.zeros(0), data).items()
            if site["type"] == "sample"
            and name not in (*self.prior_sites, *self.missing)
            and (isinstance(site["fn"], dist.Unit | dist.MaskedDistribution) or site.get("scale") is not None)
        ]

    def values(self, theta: Array, z: Array, data: Arrays) -> dict[str, Array]:
        """Constrained latents and deterministic sites at one position of globals and locals."""
        sites = trace(self._substituted(theta, z)).get_trace(**self.static, **data)
        latents = {*self.globals.names, *self.locals.names}
        imputed = {completed(name) for name in self.missing}
        return {
            name: site["value"]
            for name, site in sites.items()
            if name in latents or (site["type"] == "deterministic" and name not in imputed)
        }


@lru_cache(maxsize=64)
def _with_global(program: Program, name: str) -> Program:
    moved = tuple(each for each in program.locals.shapes if each[0] == name)
    rest = tuple(each for each in program.locals.shapes if each[0] != name)
    return replace(program, globals=Block(program.globals.shapes + moved), locals=Block(rest))


@lru_cache(maxsize=1024)
def _with_rows(program: Program, number: int) -> Program:
    shapes = {
        name: (number, *shape[1:]) if name in program.row_locals else shape for name, shape in program.locals.shapes
    }
    return replace(program, locals=Block(tuple(shapes.items())))


def _along(mask: Array, term: Array, axis: int) -> Array:
    """The rows' mask in the shape of a term of which they are this axis."""
    return mask.reshape((-1,) + (1,) * (term.ndim - axis - 1))


def _total(terms: Any) -> Array:
    return sum((jnp.sum(term).astype(jnp.float64) for term in terms), start=jnp.zeros((), jnp.float64))


def _plate_depth(model: Model, arguments: Arrays) -> int:
    sites = trace(model).get_trace(**arguments).values()
    frames = [frame.dim for site in sites if site["type"] == "sample" for frame in site["cond_indep_stack"]]
    return max((-dim for dim in frames if dim is not None), default=0)
