"""The client's half: its site over the globals and its own coefficients, and what it is asked after the rounds."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Reply, Update
from fedbayes.errors import K_HAT_LIMIT, ResultCode
from fedbayes.inference.correlated.options import Layout
from fedbayes.inference.ep.client import matched
from fedbayes.inference.local.after import Personal
from fedbayes.inference.local.density.conditional import find_conditional
from fedbayes.inference.local.density.tilted import Tilted, Warm, cold_chains, cold_start
from fedbayes.inference.local.solvers import Solver
from fedbayes.numerics.batches import in_batches
from fedbayes.numerics.gaussian import LOG_2PI, STRUCTURE, Gaussian, packed, unpacked
from fedbayes.numerics.importance import log_mean_exp, pareto_smooth, quasi_normal, random_shift
from fedbayes.problem.client import Client

_LOCAL_DRAWS = 32  # that integrate out the other locals at each draw
_NEWTON = 12  # steps to their mode


class Shared(NamedTuple):
    """The broadcast: whether Laplace approximations are asked for, as in the first round."""

    opening: Array


class Own(NamedTuple):
    """What is addressed to one client.

    Attributes
    ----------
    mean
        Of its ``(phi, theta_k)`` given everybody's data, shape ``(d + m,)``.
    cavity
        What the others know of them, its precision as a triangle.
    precision
        Of what everybody knows of them, as a triangle; where some client has other locals.
    """

    mean: Array
    cavity: Gaussian
    precision: Array | tuple[()] = ()


class SiteMessage(NamedTuple):
    """What a client sends: its site, the precision as a triangle, and the expected squared error of that.

    The error is the Monte Carlo error that it causes in the client's posterior, in posterior sds, summed over
    coordinates.
    """

    site: Gaussian
    noise: Array


class Private(NamedTuple):
    """What a client keeps: where its searches start, and the shift of its draws, the same in all rounds."""

    warm: Warm
    shift: Array


def begin(layout: Layout, client: Client, shared: Shared, key: Array) -> Private:
    """A client before its first round."""
    size = layout.num_globals + client.num_locals
    return Private(cold_chains(cold_start(size)), random_shift(key, size))


def update(layout: Layout, solver: Solver, *, draws: bool) -> Update:
    """One round by a local solver.

    EP's own half of a round, on the program whose coupled latent counts among the globals. The same draws serve in all
    rounds: the rounds then go to a fixed point, and not about one in noise.
    """

    def run(shared: Shared, own: Own, private: Private, client: Client, inputs: tuple[()]) -> tuple[Reply, Private]:
        spread = None
        if not isinstance(own.precision, tuple):
            spread = unpacked(replace(own.cavity, precision=own.precision)).precision
        cavity = unpacked(own.cavity)
        tilted = Tilted(client.with_global(layout.latent), cavity, own.mean, spread)
        shift = private.shift if draws else ()
        found = matched(solver, tilted, shared.opening, private.warm, shift)
        reply = Reply(each=SiteMessage(packed(found.site), found.noise), code=found.code, info=found.info)
        return reply, private._replace(warm=found.warm)

    return Update(run, lambda key, shared, num_locals: ())


class Told(NamedTuple):
    """What a client is told after the rounds, for each chain.

    Attributes
    ----------
    theta
        Draws of its coefficients, shape ``(draw, m)``.
    site
        Its site, the precision as a triangle.
    """

    theta: Array
    site: Gaussian


def after(layout: Layout) -> Mapping[str, Update]:
    """Log-likelihoods at the server's draws, and the client's own posterior from them."""
    told = Told(0.0, STRUCTURE)  # type: ignore[arg-type]  # its structure alone is meant
    return {
        "log_likelihood": Update(partial(_log_likelihood, layout), _shift_of(layout), told),
        "given_coupled": Update(partial(_posterior, layout), _posterior_inputs(layout), told, stays=True),
    }


def _shift_of(layout: Layout) -> Any:
    return lambda key, shared, num_locals: random_shift(key, num_locals - layout.size)


def _posterior_inputs(layout: Layout) -> Any:
    def inputs(key: Array, theta: Array, num_locals: int) -> tuple[Array, Array]:
        noise_key, level_key = jax.random.split(key)
        rest = num_locals - layout.size
        noise = jax.random.normal(noise_key, (theta.shape[0], rest), jnp.float64)
        return noise, jax.random.uniform(level_key, dtype=jnp.float64)

    return inputs


def _log_likelihood(
    layout: Layout, phi: Array, told: Told, private: tuple[()], client: Client, shift: Array
) -> tuple[Reply, tuple[()]]:
    """Log factor at each draw ``(n, d)`` of the globals and the coefficients, the other locals integrated out."""
    moved, joint = client.with_global(layout.latent), jnp.concatenate([phi, told.theta], axis=1)
    if moved.num_locals == 0:
        return Reply(each=in_batches(moved.log_factor, joint, 32), code=_ok()), private
    noise = quasi_normal(shift, _LOCAL_DRAWS)
    log_noise = -0.5 * jnp.sum(noise**2, axis=1) - 0.5 * moved.num_locals * LOG_2PI

    def at(one: Array) -> Array:
        found = _others_given(moved, one)
        z = jax.vmap(lambda each: found.draw(each, moved.groups))(noise)
        logs = jax.vmap(moved.given(one))(z)
        return log_mean_exp(logs - log_noise) + found.log_spread()

    return Reply(each=in_batches(at, joint, 32), code=_ok()), private


def _others_given(client: Client, joint: Array) -> Any:
    """Mode and curvature of the other locals given globals and coefficients."""
    start = cold_start(client.num_locals)
    return find_conditional(
        client.given(joint), start, jnp.asarray(client.groups), max_steps=_NEWTON, jacobian=client.jacobian
    )


def _posterior(
    layout: Layout,
    phi: Array,
    told: Told,
    private: tuple[()],
    client: Client,
    inputs: tuple[Array, Array],
) -> tuple[Reply, tuple[()]]:
    """The server's draws, which know the client by its Gaussian site, weighted by its factor over the site.

    Draws with weights that hardly vary, and draws whose weights can't be trusted, stay as they are.
    """
    noise, level = inputs
    moved, joint = client.with_global(layout.latent), jnp.concatenate([phi, told.theta], axis=1)
    site = unpacked(told.site)
    log_site = joint @ site.shift - 0.5 * jnp.sum((joint @ site.precision) * joint, axis=1)

    def at(draw: tuple[Array, Array]) -> tuple[Array, Array]:
        one, own = draw
        found = _others_given(moved, one)
        z = found.draw(own, moved.groups)
        return z, moved.given(one)(z) + 0.5 * jnp.sum(own**2) + found.log_spread()

    if moved.num_locals == 0:
        z, log_factor = noise, in_batches(moved.log_factor, joint, 32)
    else:
        z, log_factor = in_batches(at, (joint, noise), 32)
    log_weight = log_factor - log_site
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    num = joint.shape[0]
    position = _in_program_order(layout, client, joint, z)
    if num < 100:  # a point, or too few to weigh
        return Reply(each=Personal(position, jnp.zeros(())), code=_ok()), private
    weight, k_hat = pareto_smooth(log_weight)
    even = 1.0 / jnp.sum(weight**2) > 0.99 * num
    picked = jnp.searchsorted(jnp.cumsum(weight), (level + jnp.arange(num)) / num)
    keep = even | ~(k_hat <= K_HAT_LIMIT)
    picked = jnp.where(keep, jnp.arange(num), jnp.clip(picked, 0, num - 1))
    return Reply(each=Personal(position[picked], jnp.where(even, 0.0, k_hat)), code=_ok()), private


def _in_program_order(layout: Layout, client: Client, joint: Array, others: Array) -> Array:
    """Globals and locals as the program has them, with the coefficients in their place among the locals."""
    parts, place = [joint[:, : layout.num_globals]], 0
    for name, length in _lengths(client):
        if name == layout.latent:
            parts.append(joint[:, layout.num_globals :])
        else:
            parts.append(others[:, place : place + length])
            place += length
    return jnp.concatenate(parts, axis=1)


def _lengths(client: Client) -> list[tuple[str, int]]:
    block = client.program.locals
    return [(name, prod(shape)) for name, shape in block.shapes]


def _ok() -> Array:
    return jnp.asarray(int(ResultCode.OK))
