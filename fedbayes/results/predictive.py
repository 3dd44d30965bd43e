"""Posterior predictive draws by NumPyro, compiled once for a model and the shapes of its arguments."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.handlers import seed, substitute, trace
from scipy.special import logsumexp

from fedbayes.errors import ClientDataError
from fedbayes.problem.data.reading import prepare_like
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.called import misfit
from fedbayes.problem.program.handlers import Unobserved
from fedbayes.problem.program.program import Model, Program
from fedbayes.problem.program.sites import trace_sites
from fedbayes.problem.program.tracing import digest_of
from fedbayes.results.conditional import Rows, conditional_draws, conditional_log_densities
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.lru import Kept

_PROGRAMS: Kept[Any] = Kept(32)
_LITTLE = 1 << 19  # draws times rows, up to which optimisation takes longer than what it saves
_AT_ONCE = 64  # draws whose probabilities are computed side by side


def predictive_draws(
    program: Program,
    draws: Mapping[str, np.ndarray],
    key: Array,
    arguments: Mapping[str, Any],
    own: Rows | None = None,
) -> Any:
    """NumPyro's ``Predictive``, compiled once for a model and the shapes of its arguments.

    It is traced each time: without the outcome a model may read variables that the traces before the fit did not see.
    ``own`` are the client's own rows, on which outcomes are conditioned whose rows depend on each other.
    """
    if own is not None:
        return conditional_draws(program, own, draws, key, arguments)
    arrays, fixed = _parted(arguments)

    def run(draws: Mapping[str, Array], arrays: Mapping[str, Array], key: Array) -> Any:
        from numpyro.infer import Predictive

        return Predictive(Unobserved(program.model), dict(draws), batch_ndims=2)(key, **fixed, **arrays)

    return _by_kept_program(run, draws, arrays, key)


def _parted(arguments: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arguments that are data, and all others."""
    arrays = {name: np.asarray(value) for name, value in arguments.items() if _is_array(value)}
    return arrays, {name: value for name, value in arguments.items() if name not in arrays}


def _by_kept_program(
    run: Callable[..., Any], draws: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], *more: Any
) -> Any:
    """``run(draws, arrays, *more)``, compiled once for what its trace says; it is optimised where it has much to do."""
    rows = max((len(array) for array in arrays.values() if array.ndim), default=1)
    num = max((int(np.prod(value.shape[:2])) for value in draws.values()), default=1)
    jit: Any = jit_cheaply if num * rows <= _LITTLE else jax.jit
    arguments = dict(draws), arrays, *more
    traced = jit(run).trace(*arguments)
    names = jax.tree.structure((arguments, traced.out_info))  # of which the operations know nothing
    kept = _PROGRAMS.get((digest_of(traced.jaxpr), names), lambda: traced.lower().compile())
    return kept(*arguments)


def log_densities(
    program: Program, draws: Mapping[str, np.ndarray], arguments: Mapping[str, Any], own: Rows | None = None
) -> dict[str, np.ndarray]:
    """Log predictive density of each outcome: the log of its mean density over the draws, by observed site.

    Arguments and errors are those of :func:`log_densities_of_draws`.
    """
    given = log_densities_of_draws(program, draws, arguments, own)
    num = next(iter(draws.values())).shape[:2]
    return {name: logsumexp(value, axis=(0, 1)) - np.log(np.prod(num)) for name, value in given.items()}


def log_densities_of_draws(
    program: Program, draws: Mapping[str, np.ndarray], arguments: Mapping[str, Any], own: Rows | None = None
) -> Mapping[str, Any]:
    """Log density of each outcome at each draw, by observed site, leading axes chain and draw.

    ``own`` are the client's own rows, on which outcomes are conditioned whose rows depend on each other.

    Raises
    ------
    ClientDataError
        No outcome is given, or some are missing.
    """
    from numpyro.infer import log_likelihood

    missing = [name for name, value in arguments.items() if _with_missing(value) is not None]
    if missing:
        raise ClientDataError(
            f"The outcomes in {missing} have missing values (NaN), which have no predictive density. Leave those rows "
            "out of all arguments."
        )
    if own is None:
        arrays, fixed = _parted(arguments)

        def run(draws: Mapping[str, Array], arrays: Mapping[str, Array]) -> Any:
            return log_likelihood(seed(program.model, 0), dict(draws), batch_ndims=2, **fixed, **arrays)

        given = {name: np.asarray(value) for name, value in _by_kept_program(run, draws, arrays).items()}
    else:
        given = conditional_log_densities(program, own, draws, arguments)
    if not given:
        raise ClientDataError(
            f"The arguments {sorted(arguments)} hold no outcome of the model, so that there is nothing to take the "
            "predictive density of. Give the held-out rows with their outcomes, such as `y=...`."
        )
    return given


def flat_densities(densities: Mapping[str, np.ndarray]) -> np.ndarray:
    """All outcomes' log densities, one after the other, whatever their sites."""
    return np.concatenate([np.ravel(value) for value in densities.values()])


def check_held_out(held_out: Any) -> None:
    """Whether somebody's held-out rows are given by client.

    Raises
    ------
    ValueError
        They are not a mapping, or nobody's.
    """
    if not isinstance(held_out, Mapping):
        raise ValueError(
            f"`held_out` is a {type(held_out).__name__}; write a mapping from each client to the model's keyword "
            'arguments, `{"north": dict(x=..., y=...)}`.'
        )
    if not held_out:
        raise ValueError("`held_out` is empty: give some client's rows that were not in the fit, with their outcomes.")


def class_probabilities(
    program: Program, draws: Mapping[str, np.ndarray], arguments: Mapping[str, Any], outcomes: Collection[str]
) -> dict[str, np.ndarray]:
    """Mean over the draws of the probability of each value that an outcome can take, by observed site.

    ``outcomes`` are the sites that the clients have observed.

    Raises
    ------
    ValueError
        No observed site of the model has finitely many values, or these depend on what else is drawn.
    """
    given = {name: np.asarray(value) if _is_array(value) else value for name, value in arguments.items()}

    def one(values: Mapping[str, Array], rng: int) -> dict[str, Array]:
        model = substitute(seed(Unobserved(program.model), rng), data=dict(values))
        with numpyro.validation_enabled(False):
            sites = trace(model).get_trace(**given).values()
        asked = [site for site in sites if site["name"] in outcomes]
        laws = {site["name"]: _unmasked(site["fn"]) for site in asked}
        return {name: _probabilities(law) for name, law in laws.items() if law.has_enumerate_support}

    def mean(draws: Mapping[str, Array]) -> dict[str, Array]:
        each = jax.lax.map(lambda values: one(values, 0), draws, batch_size=_AT_ONCE)
        return {name: jnp.mean(value, axis=0) for name, value in each.items()}

    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    first = {name: value[0] for name, value in flat.items()}
    for name, value in one(first, 0).items():
        if not np.array_equal(value, one(first, 1)[name]):
            raise ValueError(
                f"The probabilities of '{name}' depend on what else the model draws, such as another outcome or a "
                "discrete latent, which would have to be averaged over. Write `fit.predict(...)`, and count its draws."
            )
    found = jax.jit(mean)(flat)
    if not found:
        raise ValueError(
            "No outcome of the model has a distribution over finitely many values, such as Bernoulli or Categorical: "
            "there are no classes to give probabilities of. Write `fit.predict(...)`."
        )
    return {name: np.asarray(value) for name, value in found.items()}


def _unmasked(law: Any) -> Any:
    """The distribution of an outcome, whether it counts in the likelihood or not."""
    while isinstance(law, dist.MaskedDistribution):
        law = law.base_dist
    return law


def _probabilities(law: Any) -> Array:
    """Of each value in the support, along the last axis.

    Raises
    ------
    ValueError
        The values can't be listed, as those of counts with different totals, or of vectors.
    """
    try:
        values = law.enumerate_support(expand=False)
    except NotImplementedError as error:
        raise ValueError(
            f"The values of an outcome with the distribution {type(law).__name__} can't be listed: its rows have "
            "different supports, or it is a vector. Write `fit.predict(...)`."
        ) from error
    return jnp.moveaxis(jnp.exp(law.log_prob(values)), 0, -1)


def _is_array(value: Any) -> bool:
    """Whether an argument is data, rather than a size, a flag or a name."""
    return hasattr(value, "__array__") or isinstance(value, list | tuple | float)


def read_arguments(problem: Problem, like: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a prediction, read as those of the client ``like`` were; outcomes may be missing."""
    program, known = problem.program(like), problem.arrays[problem.place(like)]
    unknown = {key: array for key, value in arguments.items() if (array := _with_missing(value)) is not None}
    if unknown:
        with jax.enable_x64(True):
            sites = trace_sites(program.model, program.static, known.arrays).values()
        outcomes = {site.argument for site in sites if site.kind == "observed"}
        unknown = {key: array for key, array in unknown.items() if key in outcomes}
    given = {key: value for key, value in arguments.items() if key not in unknown}
    read = prepare_like("new rows", given, like, known, np.dtype(program.dtype), partly=True)
    return {**program.static, **read.static, **read.arrays, **unknown}


def check_call(model: Model, arguments: Mapping[str, Any]) -> None:
    """Whether the model takes these arguments, and no more are needed."""
    if words := misfit(model, arguments):
        raise TypeError(
            f"`fit.predict` can't call the model with the arguments {sorted(arguments)}. It {words} What a prediction "
            "leaves out, such as an outcome, needs a default there, `y=None`."
        )


def _with_missing(outcome: Any) -> np.ndarray | None:
    """An outcome as numbers if some of them are missing: a prediction does not read them."""
    try:
        array = np.asarray(outcome, float)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if outcome is not None and np.isnan(array).any() else None
