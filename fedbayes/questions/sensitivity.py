"""Sensitivity of the posterior to its prior and its likelihood, by power-scaling.

References
----------
Kallioinen, Paananen, Bürkner and Vehtari (2024), Detecting and diagnosing prior and likelihood sensitivity with
power-scaling, Statistics and Computing 34(57); the R package priorsense. Nguyen and Vreeken (2015), Non-parametric
Jensen-Shannon divergence, ECML PKDD, has the distance.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.locals_from import Question, check
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.problem.program.program import Arrays, Program
from fedbayes.questions.hypothesis import SAMPLES
from fedbayes.results import arviz
from fedbayes.results.arviz import CLIENTS
from fedbayes.results.corrected import log_likelihood, single_log_likelihood, theta
from fedbayes.results.fitted import Fitted, attrs
from fedbayes.results.posterior import idata
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

THRESHOLD = 0.05  # of the paper, above which a parameter counts as sensitive
CONFLICT, STRONG_PRIOR, FINE = "prior-data conflict", "strong prior / weak likelihood", "-"
_TERMS: Kept[Any] = Kept(64)


def sensitivity(fitted: Fitted, alphas: tuple[float, float] = (0.99, 1.01), *, by_client: bool = False) -> "xr.Dataset":
    """How much the posterior would change with a slightly stronger or weaker prior, or likelihood.

    The prior is raised to the power ``alpha``, or the likelihood is, and the draws are weighted accordingly, by
    ``p(theta)^(alpha - 1)``, Pareto-smoothed. The sensitivity is the cumulative Jensen-Shannon distance between the
    weighted and the plain draws of a parameter, per unit of ``log2(alpha)``, the mean of both sides (Kallioinen,
    Paananen, Bürkner and Vehtari 2024; R package priorsense). Above 0.05 it is taken for sensitive: to both, the
    prior and the data pull in different directions ("prior-data conflict"); to the prior alone, the data say
    little against it ("strong prior / weak likelihood").

    The likelihood is that of all clients, with their locals integrated out, so that the priors of the locals belong
    to it. The log prior is the density of the constrained globals. The draws are those of ``fit.idata``, which is not
    changed: where they are of a Gaussian form of the posterior, it is the sensitivity of that form. ArviZ's own
    ``psens`` (0.x) and ``psense_summary`` (1.x) take ``fit.with_log_prior()``.

    Parameters
    ----------
    alphas
        The powers, one below and one above 1.
    by_client
        Also raise each client's likelihood by itself, which is to count its rows ``alpha`` times.

    Returns
    -------
    xarray.Dataset
        Over ``component`` (``"prior"``, ``"likelihood"``) and ``parameter`` (every number in ``idata.posterior``):
        ``sensitivity``; over ``parameter``: ``diagnosis``, ``"-"`` or one of the above; over ``component`` and
        ``alpha``: ``k_hat`` of the weights, to be trusted below 0.7. With ``by_client`` also
        ``client_sensitivity``, over ``client_name`` and ``parameter``, and ``client_k_hat``.

    Raises
    ------
    ValueError
        The fit is a point, couples the clients by a prior of its own, or ``alphas`` are no such powers.

    Examples
    --------
    >>> fit.sensitivity()["sensitivity"].to_pandas().T  # doctest: +SKIP
    """
    import xarray as xr

    _check_alphas(alphas)
    log_prior = np.sum(list(log_priors(fitted).values()), axis=0)
    whole = idata(fitted)
    parameters, likelihood = scalars(whole.posterior), _log_likelihood(fitted, whole, single=by_client)
    logs = np.stack([log_prior, likelihood.sum(axis=-1), *(np.moveaxis(likelihood, -1, 0) if by_client else ())])
    with computing():
        found, k_hat = power_scaled(np.stack(list(parameters.values())), logs, alphas)
    variables: dict[str, Any] = {
        "sensitivity": (("component", "parameter"), found[:2]),
        "diagnosis": ("parameter", [diagnosis(*each) for each in found[:2].T]),
        "k_hat": (("component", "alpha"), k_hat[:2]),
    }
    coords: dict[str, Any] = {
        "component": ["prior", "likelihood"],
        "parameter": list(parameters),
        "alpha": list(alphas),
    }
    if by_client:
        variables["client_sensitivity"] = ((CLIENTS, "parameter"), found[2:])
        variables["client_k_hat"] = ((CLIENTS, "alpha"), k_hat[2:])
        coords[CLIENTS] = list(fitted.roster.names)
    return xr.Dataset(variables, coords=coords, attrs={"threshold": THRESHOLD})


def _log_likelihood(fitted: Fitted, whole: Any, *, single: bool) -> np.ndarray:
    """At the posterior's draws, of each client; of all together where clients over a network need not be asked."""
    if (known := getattr(whole, "log_likelihood", None)) is not None:
        return np.asarray(known["client"])
    return single_log_likelihood(fitted) if single else log_likelihood(fitted)


def _check_alphas(alphas: Any) -> None:
    """Whether they are a power below and one above 1."""
    pair = isinstance(alphas, tuple | list) and len(alphas) == 2 and all(isinstance(alpha, Real) for alpha in alphas)
    if not pair or not 0.0 < alphas[0] < 1.0 < alphas[1] < np.inf:
        raise ValueError(f"`alphas` is {alphas!r}; write a power below 1 and one above it, such as (0.99, 1.01).")


def log_priors(fitted: Fitted) -> dict[str, np.ndarray]:
    """Log density of each constrained global at the draws of the posterior, ``(chain, draw)`` each.

    Terms of the model that look at the globals alone, such as a soft constraint by ``numpyro.factor``, belong to the
    prior and have names of their own.

    Raises
    ------
    ValueError
        The fit is a point, or its method couples the clients by a prior of its own.
    """
    if fitted.posterior is None:
        raise ValueError(
            "This fit is a point, which no weights on prior or likelihood change: fit by a method that ends with a "
            "posterior."
        )
    check(fitted.answer.locals_from, Question.SENSITIVITY)
    shapes, draws = arviz.shapes_of(fitted.problem)[0], theta(fitted)
    with computing():
        return log_prior_terms(shapes.program, shapes.ones(), draws)


def with_log_prior(fitted: Fitted) -> Any:
    """``fit.idata`` with the group ``log_prior``, as ArviZ's ``psens`` (0.x) and ``psense_summary`` (1.x) want it.

    Returns
    -------
    InferenceData or DataTree
        A copy of ``fit.idata``. In its group ``log_prior``: the log density of each constrained global at the draws;
        terms of the model that look at the globals alone are variables of their own.

    Raises
    ------
    ValueError
        The fit is a point, or couples the clients by a prior of its own.
    """
    group = arviz.group_of_its_own("log_prior", log_priors(fitted), attrs(fitted))
    return arviz.extended(idata(fitted), group)


def log_prior_terms(program: Program, data: Arrays, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Log density of each constrained global, without Jacobian, at draws ``(chain, draw, d)``: ``(chain, draw)`` each.

    Parameters
    ----------
    program
        Of any client.
    data
        Arrays of its shapes, which fix nothing else.
    theta
        Unconstrained draws.
    """
    names = (*program.globals.names, *program.prior_terms)

    def build() -> Callable[[np.ndarray, Arrays], dict[str, Array]]:
        def at(position: Array, data: Arrays) -> dict[str, Array]:
            terms = program.site_log_probs(position, jnp.zeros(program.locals.size), data)
            return {name: jnp.sum(terms[name]).astype(jnp.float64) for name in names if name in terms}

        return jit_cheaply(lambda points, data: jax.lax.map(lambda one: at(one, data), points, batch_size=256))

    found = _TERMS.get(program, build)(theta.reshape(-1, theta.shape[-1]), dict(data))
    return {name: np.asarray(value).reshape(theta.shape[:2]) for name, value in found.items()}


def power_scaled(
    parameters: np.ndarray, logs: np.ndarray, alphas: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity of each parameter to each component, and k-hat of the components' weights.

    Parameters
    ----------
    parameters
        Draws, shape ``(parameter, chain, draw)``.
    logs
        Log densities of the components at the draws, shape ``(component, chain, draw)``.
    alphas
        Below and above 1.

    Returns
    -------
    sensitivity
        ``sum_a CJS(a) / |log2 a| / 2``, shape ``(component, parameter)``; NaN of a parameter that is constant.
    k_hat
        Shape ``(component, 2)``.
    """
    flat = logs.reshape(len(logs), -1)
    scaled = (np.asarray(alphas)[:, None] - 1.0) * flat[:, None]
    weights, k_hat = (np.asarray(value) for value in _smoothed()(scaled.reshape(-1, flat.shape[1])))
    draws = parameters.reshape(len(parameters), -1)
    orders = np.argsort(draws, axis=1, kind="stable")
    found = np.zeros((len(flat), len(draws)))
    for (c, a), p in product(np.ndindex(len(flat), 2), range(len(draws))):
        apart = distance(draws[p, orders[p]], weights[2 * c + a, orders[p]])
        found[c, p] += 0.5 * apart / abs(np.log2(alphas[a]))
    return found, k_hat.reshape(len(flat), 2)


@cache
def _smoothed() -> Callable[[np.ndarray], tuple[Array, Array]]:
    """Pareto smoothing of several sets of weights, compiled once for their number."""
    return jit_cheaply(lambda logs: jax.lax.map(pareto_smooth, logs))


def distance(draws: np.ndarray, weights: np.ndarray) -> float:
    """Cumulative Jensen-Shannon distance between the plain and the weighted draws, the larger of ``x`` and ``-x``.

    Parameters
    ----------
    draws
        In ascending order, shape ``(n,)``.
    weights
        In the same order, summing to one.
    """
    upper = np.cumsum(weights[::-1])[:-1]
    return max(_one_sided(np.diff(draws), np.cumsum(weights)[:-1]), _one_sided(np.diff(draws)[::-1], upper))


def _one_sided(width: np.ndarray, weighted: np.ndarray) -> float:
    """The distance of the distribution functions between neighbouring draws, normalised to lie between 0 and 1."""
    num = len(width) + 1
    plain = np.arange(1, num) / num
    total = np.dot(plain + weighted, width)
    if not total > 0.0:
        return float("nan")
    middle = 0.5 * (plain + weighted)

    def divergence(one: np.ndarray, other: np.ndarray) -> float:
        ratio = np.log2(np.where(one > 0.0, one, 1.0) / np.where(one > 0.0, middle, 1.0))
        return max(0.0, float(np.dot(width, one * ratio) + 0.5 / np.log(2.0) * np.dot(width, other - one)))

    return float(np.sqrt((divergence(plain, weighted) + divergence(weighted, plain)) / total))


def diagnosis(prior: float, likelihood: float) -> str:
    """What the sensitivities to prior and likelihood mean together, as the paper and priorsense have it."""
    if not prior >= THRESHOLD:
        return FINE
    return CONFLICT if likelihood >= THRESHOLD else STRONG_PRIOR


def scalars(posterior: "xr.Dataset") -> Mapping[str, np.ndarray]:
    """Each number of a posterior by name, ``beta[age]``, with its draws ``(chain, draw)``."""
    found = {}
    for name, variable in posterior.data_vars.items():
        dims = [dim for dim in variable.dims if dim not in SAMPLES]
        ordered = variable.transpose(*SAMPLES, *dims)
        for place in np.ndindex(*(ordered.sizes[dim] for dim in dims)):
            labels = [str(ordered[dim].values[i]) for dim, i in zip(dims, place, strict=True)]
            index: Any = (slice(None), slice(None), *place)
            found[f"{name}[{', '.join(labels)}]" if labels else str(name)] = ordered.values[index]
    return found
