"""A client's log factor at many draws of the globals, with the locals integrated out, and the locals there."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from fedbayes.contract.work import GIVEN, GRADIENT, Work
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import NEAR, Conditional, Line, find_conditional, of_globals
from fedbayes.inference.local.density.skewed import find_axes, whitened_draws
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.density.work import search_given
from fedbayes.numerics.gaussian import LOG_2PI
from fedbayes.numerics.importance import log_mean_exp, quasi_normal
from fedbayes.problem.client import AT_ONCE, Client

NUM_LOCAL, NUM_LOCAL_FINER = 16, 512  # draws that integrate out the locals at each draw of the globals
_NODES = 11  # of quadrature: the log integral of 250 single locals is off by some thousandths
_AT_ONCE, _AT_ONCE_SINGLE = 32, 16  # draws of the globals side by side, where no large groups are searched
_COLD_NEWTON = 30  # steps to the locals' mode given the median of the draws
_NEWTON = 4  # steps to the locals' mode given each draw of the globals
_NOWHERE = 1e4  # stated noise where no mode of the locals was found
_LARGE_GROUP = 64  # locals from which each draw's mode is sought for finer integrals alone
_LARGEST_GROUP = 128  # locals from which it never is
_FEW_LOCALS = 8  # of fewer only the finer exchange looks how skewed they are
_FINER_IN_LARGE = 64  # draws at most with such a search, which costs as much as the others and gains more


class LogFactors(NamedTuple):
    """Log factors at many draws of the globals, the locals integrated out.

    Attributes
    ----------
    values
        At each draw.
    noise
        Relative variance of each estimate ``exp(values)``; zero without locals, and by quadrature.
    halved
        The values less those of quadrature with half as many nodes. Zero without quadrature.
    """

    values: Float[Array, " draw"]
    noise: Float[Array, " draw"]
    halved: Float[Array, " draw"]


def log_factors(
    client: Client,
    theta: Float[Array, "draw {client.program.globals.size}"],
    shift: Float[Array, " {client.num_locals}"],
    num_local: int = NUM_LOCAL,
) -> LogFactors:
    """``log f(theta)`` with the locals integrated out at each row of ``theta``.

    Locals that are independent given the globals are integrated out by
    :mod:`~fedbayes.inference.local.density.quadrature`, with more nodes where more than the usual number of draws is
    asked for.

    All others are integrated out by importance sampling given each row, from their Laplace approximation and from one
    that is wider, half of the draws each, for tails that are longer than a Gaussian's. For eight locals and more, or
    where more than the usual number of draws is asked for, these draws are as skewed as the locals are at the median
    of all rows (:mod:`~fedbayes.inference.local.density.skewed`), in groups of fewer than 128. Where the locals are
    Gaussian given the globals the first half has equal weights: then it alone counts, and the result is exact. ``exp``
    of the values is unbiased, with other random numbers in each row, as importance weights and Metropolis steps of the
    globals need it (Andrieu and Roberts 2009).

    In groups of 64 locals and more, whose curvature at each row would cost too much, the Laplace approximation is the
    one at the median of all rows, moved along a line. Where more than the usual number of draws is asked for, groups of
    fewer than 128 have each row's own as well, with 64 draws at most.

    Parameters
    ----------
    client
        Whose factor it is.
    theta
        The globals.
    shift
        Of a quasi-random sequence; each row has its own, by a sequence of shifts.
    num_local
        Draws of the locals at each of the globals, a power of two.
    """
    if client.num_locals == 0:
        zero = jnp.zeros(len(theta))
        return LogFactors(client.at_many(client.log_factor, theta), zero, zero)
    if _one_by_one(client):
        return _by_quadrature(client, theta, _nodes_for(num_local))
    locals_of, shifts = _locals(client, theta, num_local), _shifts(shift, len(theta))

    def at(given: tuple[Array, Array]) -> tuple[Array, Array]:
        found = _integrated(locals_of(*given))
        return found.value, found.noise

    values, noise = client.at_many(at, (theta, shifts), num_local, _at_once(client, num_local))
    return LogFactors(values, noise, jnp.zeros(len(theta)))


def work_of_log_factors(client: Client, num: int, num_local: int = NUM_LOCAL) -> Work:
    """Of :func:`log_factors` at so many draws of the globals."""
    if client.num_locals == 0:
        return Work(float(num))
    centre = search_given(client, _COLD_NEWTON)
    if _one_by_one(client):
        each = search_given(client).and_then(Work(_nodes_for(num_local) * GIVEN * GRADIENT))
    else:
        if _skewed(client, num_local):
            centre = centre.and_then(Work(float(client.groups.shape[1]) * _NODES * GIVEN * GRADIENT))
        searched, drawn = _searched(client, num_local), Work(num_local * GIVEN)
        each = search_given(client, _NEWTON).and_then(drawn) if searched else drawn
    return centre.and_then(each.times(num, _at_once(client, num_local)))


def locals_given(
    client: Client,
    theta: Float[Array, "draw {client.program.globals.size}"],
    shift: Float[Array, " {client.num_locals}"],
    picks: Float[Array, " draw"],
    levels: Float[Array, "draw {client.num_locals}"],
    num_local: int = NUM_LOCAL,
) -> Float[Array, "draw {client.num_locals}"]:
    """One draw of the locals at each draw of the globals.

    By quadrature it is the quantiles at the levels. Else it is one of the draws behind :func:`log_factors` with the
    same ``shift``, taken by its weight: globals that were weighed or accepted by those values, and locals that were
    taken so, are draws of the joint posterior exactly. For that ``theta`` must have the same rows in the same
    order: the line along which modes are sought is that of their median, and shifts go by row.

    Parameters
    ----------
    client, theta, shift, num_local
        As there.
    picks, levels
        Uniform random numbers.
    """
    if _one_by_one(client):
        at_theta = _references(client, theta, _nodes_for(num_local))
        numbers = client.num_locals * quadrature.points_of_draws()
        found: Array = client.at_many(
            lambda row: quadrature.drawn(at_theta(row[0]), row[1]),
            (theta, levels),
            _nodes_for(num_local),
            max(1, min(_AT_ONCE_SINGLE, AT_ONCE // numbers)),
        )
        return found
    locals_of, shifts = _locals(client, theta, num_local), _shifts(shift, len(theta))

    def at(given: tuple[Array, Array, Array]) -> Array:
        one, own, pick = given
        drawn = locals_of(one, own)
        ends = jnp.cumsum(jax.nn.softmax(_integrated(drawn).log_weight))
        return drawn.z[jnp.minimum(jnp.searchsorted(ends, pick), len(ends) - 1)]

    found = client.at_many(at, (theta, shifts, picks), num_local, _at_once(client, num_local))
    return found


def _one_by_one(client: Client) -> bool:
    """Whether the locals are integrated out one by one."""
    return client.groups.shape[1] == 1


def _searched(client: Client, num_local: int) -> bool:
    """Whether the locals' mode and curvature are sought at each draw of the globals."""
    size = client.groups.shape[1]
    return size < _LARGE_GROUP or (num_local > NUM_LOCAL and size < _LARGEST_GROUP)


def _skewed(client: Client, num_local: int) -> bool:
    """Whether the proposal is as skewed as the locals, which takes gradients along each axis of a group, once."""
    many = client.num_locals >= _FEW_LOCALS or num_local > NUM_LOCAL
    return many and client.groups.shape[1] < _LARGEST_GROUP and not client.program.rows_by_rows


def _at_once(client: Client, num_local: int) -> int:
    """Draws of the globals side by side: a search takes as many derivatives at each as a group has locals."""
    if _one_by_one(client):
        return _AT_ONCE_SINGLE
    size = client.groups.shape[1] if _searched(client, num_local) else 0
    return _AT_ONCE * NUM_LOCAL // max(NUM_LOCAL, size)


def _nodes_for(num_local: int) -> int:
    """Nodes where another client would need so many draws."""
    return _NODES if num_local <= NUM_LOCAL else quadrature.NODES_FINER


def _by_quadrature(client: Client, theta: Array, nodes: int) -> LogFactors:
    at_theta = _references(client, theta, nodes)

    def at(one: Array) -> tuple[Array, Array, Array]:
        known = at_theta(one)
        value, halved = quadrature.log_integral(client.given(one), known, quadrature.WIDE_STEP)
        return value, jnp.where(known.found, 0.0, _NOWHERE), halved

    return LogFactors(*client.at_many(at, theta, nodes, _AT_ONCE_SINGLE))


class _Centre(NamedTuple):
    """The locals' Laplace approximation at one point of the globals, and how its mode moves with them."""

    there: Conditional
    line: Line


def _centre(client: Client, theta: Float[Array, "draw d"]) -> _Centre:
    """At the draws' median."""
    median, groups = jnp.median(theta, axis=0), jnp.asarray(client.groups)
    there = find_conditional(
        client.given(median),
        cold_start(client.num_locals),
        groups,
        max_steps=_COLD_NEWTON,
        jacobian=client.jacobian,
    )
    _, across = of_globals(client, median, there.mode)
    return _Centre(there, Line(median, there.mode, there.covariance_times(across, groups).T))


def _references(client: Client, theta: Array, nodes: int) -> Callable[[Array], quadrature.Reference]:
    """``theta -> reference``, each search from where the mode is expected."""
    line = _centre(client, theta).line

    def at(one: Array) -> quadrature.Reference:
        return quadrature.reference(client.given(one), line.at(one), jacobian=client.jacobian, nodes=nodes)

    return at


class _Weighted(NamedTuple):
    """Draws of the locals given the globals, and their log weights in the two mixtures."""

    z: Float[Array, "draw m"]
    alone: Float[Array, " draw"]
    mixed: Float[Array, " draw"]
    constant: Float[Array, ""]


class _Integral(NamedTuple):
    """Log integral over the locals, the relative variance of its estimate, and the draws' log weights."""

    value: Float[Array, ""]
    noise: Float[Array, ""]
    log_weight: Float[Array, " draw"]


def _shifts(shift: Float[Array, " m"], num: int) -> Float[Array, "{num} m"]:
    """A shift for each draw: steps of the generalised golden ratio, which fill the cube evenly."""
    size, ratio = shift.shape[0], 1.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (size + 1))  # solves x^(m + 1) = x + 1
    return jnp.mod(shift + jnp.arange(num)[:, None] * ratio ** -np.arange(1.0, size + 1), 1.0)


def _locals(client: Client, theta: Array, num: int) -> Callable[[Array, Array], _Weighted]:
    """``(theta, shift) -> draws`` of the locals given the globals."""
    groups, (there, line) = jnp.asarray(client.groups), _centre(client, theta)
    axes = None
    if _skewed(client, num):
        axes = find_axes(client.given(line.theta), there, groups, _NODES)
    wide = 1.0 + client.num_locals**-0.5
    searched = _searched(client, num)
    num = min(num, _FINER_IN_LARGE) if searched and groups.shape[1] >= _LARGE_GROUP else num

    def given(one: Array, at: Callable[[Array], Array]) -> Conditional:
        start = line.at(one)
        if not searched:
            return there._replace(mode=start)
        return find_conditional(at, start, groups, max_steps=_NEWTON, near=NEAR, jacobian=client.jacobian)

    def draw(one: Array, shift: Array) -> _Weighted:
        at = client.given(one)
        found = given(one, at)
        drawn = whitened_draws(quasi_normal(shift, num), wide, axes)
        z = jax.vmap(lambda each: found.draw(each, groups))(drawn.e)
        logs, constant = client.at_many(at, z), found.log_spread() + 0.5 * client.num_locals * LOG_2PI
        return _Weighted(z, logs - drawn.narrow, logs - drawn.mixture, constant)

    return draw


def _integrated(drawn: _Weighted) -> _Integral:
    """By the draws of the Laplace approximation alone where their weights are equal, else by all of them."""
    half = len(drawn.alone) // 2
    first = drawn.alone[:half]
    gaussian = jnp.max(first) - jnp.min(first) < 1e-9 * (1.0 + jnp.max(jnp.abs(first)))
    alone = jnp.where(jnp.arange(len(drawn.alone)) < half, drawn.alone + jnp.log(2.0), -jnp.inf)
    log_weight = jnp.where(gaussian, alone, drawn.mixed)
    share = jax.nn.softmax(log_weight)
    noise = jnp.where(gaussian, 0.0, jnp.sum(share**2) - 1.0 / len(share))
    return _Integral(log_mean_exp(log_weight) + drawn.constant, noise, log_weight)
