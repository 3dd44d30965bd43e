"""A client's half of federated averaging: its loss, and how it goes down from the server's position."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import ResultCode
from fedbayes.inference.fedavg.fairness import Fairness
from fedbayes.inference.fedavg.options import Options
from fedbayes.inference.local.density.laplace import find_mode
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.marginal import integrate_locals, profile_locals
from fedbayes.inference.local.steps.descent import Descended, descend, make_batches
from fedbayes.inference.options import DENSE_LIMIT
from fedbayes.numerics.gaussian import whitener_for
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

_ITERATIONS = 20  # of the power method
_NUDGE = 1e-3  # length of its finite differences
_BESIDE = 1e-28  # times 0.01 to 0.02: also in float32 a number, and one that no other number notices


class Shared(NamedTuple):
    """The broadcast: the server's position ``(d,)``, and the factor of the clients' steps in this round."""

    position: Array
    scale: Array


class Told(NamedTuple):
    """What a client is told for itself in this round; empty where there is nothing to tell.

    Attributes
    ----------
    factor
        Of its loss, by :class:`~fedbayes.inference.fedavg.fairness.GIFAIR`.
    drawn
        How often it was drawn.
    """

    factor: Any = ()
    drawn: Any = ()


class Message(NamedTuple):
    """What a client adds to the server's sums.

    Attributes
    ----------
    delta
        From where its steps ended to the server, times its weight, shape ``(d,)``.
    weight
        Its weight p, or how often it was drawn.
    value
        Its energy at the server's position, over p and times the weight; with mini-batches the mean over its steps.
    slope
        The energy's gradient there likewise, shape ``(d,)``; empty where it isn't sent.
    losses
        Its mean loss in its group's place, and one there, shape ``(2, groups)``; empty without fairness.
    """

    delta: Array
    weight: Array
    value: Array
    slope: Array
    losses: Array


class Own(NamedTuple):
    """A client's private state.

    Attributes
    ----------
    z
        Where the search for its locals' mode begins, shape ``(m,)``.
    tilt
        Of its energy, shape ``(d,)``, or empty.
    position
        Where its steps have ended, shape ``(d,)``; empty without ``GIFAIR(personalised=True)``.
    """

    z: Array
    tilt: Array
    position: Array


def local_update(
    config: Options,
    roster: Roster,
    weights: np.ndarray,
    fairness: Fairness | None,
    shared: Shared,
    told: Told,
    own: Own,
    client: Client,
    key: Any,
) -> tuple[Reply, Own]:
    """The steps of one round; the reply is the weighted delta, and what is known of the energy where they began."""
    num_rows = float(roster.rows.sum())
    energy = make_energy(config, roster, weights, client, own.tilt)
    energy = energy if fairness is None else energy._replace(factor=told.factor)
    done = make_descent(config, roster)(energy, shared.position, own.z, shared.scale, key)
    delta, weight = shared.position - done.position, energy.weight
    counts: Any = weight if config.scheme == "full" else told.drawn
    fine = jnp.all(jnp.isfinite(delta)) & jnp.isfinite(done.value)
    code = jnp.where(fine, ResultCode.OK, ResultCode.NOT_FINITE)
    info, loss = {"drift": jnp.sqrt(jnp.mean(delta**2))}, done.value / (weight * num_rows)
    if config.fairness is not None and config.fairness.ranks_ends:
        loss = energy.at(done.position, done.carry)[0] / (weight * num_rows)
        info["own_loss"] = loss
    if is_personalised(config):
        own = own._replace(position=jnp.where(fine, done.position, own.position))
    losses = jnp.zeros(0) if fairness is None else fairness.reported(client.index, loss) * (counts > 0.0)
    slope = done.slope if sends_slope(config, roster) else jnp.zeros(0)
    part = counts / weight
    total = Message(counts * delta, counts, part * done.value, part * slope, losses)
    reply = Reply(total=total, code=code, info=info)
    return reply, own._replace(z=jnp.where(fine, done.carry, own.z))


def sends_slope(config: Options, roster: Roster) -> bool:
    """Whether clients send the gradient at the server's position, which makes a message twice as long."""
    return roster.size <= DENSE_LIMIT and config.batch_size is None


def is_personalised(config: Options) -> bool:
    """Whether clients keep points of their own, see :class:`~fedbayes.inference.fedavg.fairness.GIFAIR`."""
    return config.fairness is not None and config.fairness.personalised


class Energy(NamedTuple):
    """``U(theta) = -log f(theta) - p log p(theta)`` of a client with weight p: summed, the negative log joint density.

    The loss that clients go down is ``U / (p n)`` with ``n`` the rows of all clients: the mean loss of a row where
    weights are those of the rows.

    Attributes
    ----------
    client, prior
        Give the factor and the prior.
    weight
        p.
    locals
        Whether the client's locals are integrated out (``"marginal"``) or put at their mode (``"joint"``).
    num_samples
        Draws of the locals.
    tilt
        A slope that is taken off the energy's, shape ``(d,)``; empty where there is none.
    factor
        Of the loss that the client goes down, by :class:`~fedbayes.inference.fedavg.fairness.GIFAIR`.
    """

    client: Client
    prior: Prior
    weight: Array
    locals: str
    num_samples: int
    tilt: Array
    factor: Array | float = 1.0

    def at(self, theta: Any, z: Array) -> tuple[Array, Any, Array]:
        """``U``, its gradient, and the locals' mode, whose search starts at ``z``.

        The globals are a vector; without locals and tilt they may be arrays by name, as the gradient then is.
        """
        beside = beside_zero(theta)
        if self.client.num_locals == 0:
            value, slope = jax.value_and_grad(self.client.log_factor)(beside)
        elif self.locals == "marginal":
            found = integrate_locals(self.client, beside, z, self.num_samples)
            value, slope, z = found.value, found.slope, found.z
        else:
            value, slope, z = profile_locals(self.client, beside, z)
        return *self._with_prior(theta, value, slope), z

    def at_rows(self, theta: Any, rows: Array, scale: Array, real: Array) -> tuple[Array, Any]:
        """Unbiased estimates of ``U`` and its gradient from a batch of rows."""
        factor = partial(self.client.log_factor_of_rows, rows=rows, scale=scale, real=real)
        return self._with_prior(theta, *jax.value_and_grad(factor)(beside_zero(theta)))

    def _with_prior(self, theta: Any, value: Array, slope: Any) -> tuple[Array, Any]:
        prior, its_slope = jax.value_and_grad(self.beside_the_data)(theta)
        return -value - prior, jax.tree.map(lambda a, b: -a - b, slope, its_slope)

    def beside_the_data(self, theta: Any) -> Array:
        """The client's share of the log prior, and its tilt."""
        share = self.weight * self.prior.log_density(theta)
        return share + self.tilt @ theta if self.tilt.size else share


def beside_zero(theta: Any) -> Any:
    """The same point to rounding, where no entry is exactly zero: there some log likelihoods have a kink.

    The gradient of NumPyro's Bernoulli at a logit of zero is off by 1/2 a row. Named globals are so at the start alone.
    """
    if isinstance(theta, Mapping):
        return theta
    return jnp.where(theta == 0.0, _BESIDE * cold_start(theta.shape[0]), theta)


Descent = Callable[[Energy, Array, Array, Array, Array], Descended]


def make_energy(
    config: Options, roster: Roster, weights: np.ndarray, client: Client, tilt: Array | None = None
) -> Energy:
    """A client's energy."""
    weight, tilt = jnp.asarray(weights)[client.index], jnp.zeros(0) if tilt is None else tilt
    return Energy(client, roster.prior, weight, config.locals, config.num_samples, tilt)


def make_descent(config: Options, roster: Roster) -> Descent:
    """``(energy, position, z, scale, key) -> Descended`` of the configured method, with values and slopes of ``U``."""
    if config.solver == "newton":
        return partial(_exactly, config, roster)
    return partial(_by_steps if config.batch_size is None else _by_batches, config, roster)


def local_optimizer(config: Options) -> optax.GradientTransformation:
    """The clients' optimiser; plain steps get their size from the server."""
    return optax.sgd(1.0) if config.optimizer is None else config.optimizer


def _by_steps(
    config: Options, roster: Roster, energy: Energy, start: Array, z: Array, scale: Array, key: Any
) -> Descended:
    """Steps with the gradient of all rows."""
    unit = energy.weight * roster.rows.sum()

    def evaluate(i: Array, theta: Any, z: Array) -> tuple[Array, Any, Array]:
        value, slope, z = energy.at(theta, z)
        return value, _of_loss(config, energy, unit, slope, theta, start), z

    start, flat = _arranged(energy, start)
    done = descend(evaluate, start, z, optimizer=local_optimizer(config), num_steps=config.steps, scale=scale)
    return done._replace(position=flat(done.position), slope=unit * flat(done.slope))


def _arranged(energy: Energy, start: Array) -> tuple[Any, Callable[[Any], Array]]:
    """What the steps move from ``start``, and how it becomes a vector again: of very many globals the sites' arrays."""
    layout = energy.client.program.globals
    if start.size <= DENSE_LIMIT or energy.client.num_locals or energy.tilt.size:
        return start, lambda theta: theta
    return layout.unravel(beside_zero(start)), layout.ravel


def _of_loss(config: Options, energy: Energy, unit: Array, slope: Any, theta: Any, start: Any) -> Any:
    """The proximal loss's gradient from the energy's."""
    if config.proximal == 0.0:
        return jax.tree.map(lambda slope: energy.factor * slope / unit, slope)
    one = lambda slope, theta, start: energy.factor * slope / unit + config.proximal * (theta - start)  # noqa: E731
    return jax.tree.map(one, slope, theta, start)


def _by_batches(
    config: Options, roster: Roster, energy: Energy, start: Array, z: Array, scale: Array, key: Array
) -> Descended:
    """Steps with gradients of mini-batches; the value is a mean over the steps, and the slope is not known."""
    assert config.batch_size is not None  # noqa: S101
    unit, size = energy.weight * roster.rows.sum(), config.batch_size
    fewest = -(-int(roster.rows.min()) // size)
    passes = config.epochs or -(-config.steps // fewest)
    batches = make_batches(energy.client.mask, key, size, passes)

    def evaluate(i: Array, theta: Any, carry: tuple[()]) -> tuple[Array, Any, tuple[()]]:
        rows, real, scale = batches.at(i, size)
        value, slope = energy.at_rows(theta, rows, scale, real)
        return value, _of_loss(config, energy, unit, slope, theta, start), ()

    start, flat = _arranged(energy, start)
    steps = config.steps if config.epochs is None else config.epochs * batches.per_pass
    done = descend(evaluate, start, (), optimizer=local_optimizer(config), num_steps=steps, scale=scale)
    position = flat(done.position)
    return Descended(position, z, jnp.full_like(position, jnp.nan), done.mean_value, done.mean_value)


def _exactly(
    config: Options, roster: Roster, energy: Energy, start: Array, z: Array, scale: Array, key: Any
) -> Descended:
    """The minimum of the proximal loss, by Newton's method: one step where the factor is quadratic."""
    unit, client = energy.weight * roster.rows.sum(), energy.client
    value, slope, _ = energy.at(start, z)

    def log_density(theta: Array) -> Array:
        distance = 0.5 * unit * config.proximal * jnp.sum((theta - start) ** 2)
        return energy.factor * (client.log_factor(theta) + energy.beside_the_data(theta)) - distance

    found = find_mode(log_density, beside_zero(start), tolerance=1e-20, jacobian=client.jacobian)
    # the search ends where values no longer tell steps apart, 1e-9 away or so; slopes still do
    white = whitener_for(len(start))(found.curvature)
    last = white.T @ (white @ jax.grad(log_density)(found.position))
    position = found.position + jnp.where(jnp.all(jnp.isfinite(last)), last, 0.0)
    return Descended(position, z, energy.factor * slope, value, value)


def start_own(client: Client, shared: Any, key: Any) -> Own:
    """A client's private state before the rounds."""
    return Own(start_locals(client, shared, key), jnp.zeros(0), jnp.zeros(0))


def start_personal(client: Client, shared: Any, key: Any) -> Own:
    """The same, for a client with a point of its own: the server's, until it has taken steps."""
    return start_own(client, shared, key)._replace(position=shared.position)


def start_locals(client: Client, shared: Any, key: Any) -> Array:
    """Where the search for the locals' mode begins, shape ``(m,)``."""
    return cold_start(client.num_locals)


def largest_curvature(energy: Energy, theta: Array, z: Array, rows: float) -> Array:
    """The largest curvature of the client's loss at ``theta``, by the power method, from below."""

    def slope(theta: Array) -> Array:
        return energy.at(theta, z)[1] / (energy.weight * rows)

    def multiply(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        direction, _largest = carry
        image = (slope(theta + _NUDGE * direction) - slope(theta - _NUDGE * direction)) / (2.0 * _NUDGE)
        norm = jnp.sqrt(jnp.sum(image**2))
        return image / jnp.maximum(norm, 1e-300), norm

    begin = jnp.cos(jnp.arange(theta.shape[0]) ** 2 + 1.0)
    begin = begin / jnp.sqrt(jnp.sum(begin**2))
    return jax.lax.fori_loop(0, _ITERATIONS, multiply, (begin, jnp.zeros(())))[1]
