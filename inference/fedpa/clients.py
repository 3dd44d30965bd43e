"""The clients' half of federated posterior averaging: from samples to a delta, a Gaussian, or a factor of one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedbayes.algorithm import its_key, no_inputs
from fedbayes.inference.fedpa.options import STEPPING, Options
from fedbayes.inference.fedpa.shrinkage import shrunk_delta, shrunk_factor, shrunk_precision
from fedbayes.inference.local.coordinates import Coordinates, LocalCoordinates, local_coordinates
from fedbayes.inference.local.descent import descend
from fedbayes.inference.local.energy import Energy
from fedbayes.inference.local.moments import TiltedDraws, covariance_inversion
from fedbayes.inference.local.sgd import Steps, covariance_factor, gradient_samples, step_keys
from fedbayes.inference.local.subposterior import Sampler, Subposterior, Summary, samplers
from fedbayes.inference.local.tilted import cold_start
from fedbayes.inference.merging.estimators import ESTIMATORS, affordable
from fedbayes.inference.merging.merge import LocalSummary
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.clients import Client
from fedbayes.problem.roster import Roster

Private = Any


class Shared(NamedTuple):
    """The broadcast.

    Attributes
    ----------
    position
        Where the server is, in the shared coordinates, shape ``(d,)``.
    coordinates
        What maps it to the globals.
    step_size
        Of gradient steps.
    """

    position: Array
    coordinates: Coordinates
    step_size: Array


class Delta(NamedTuple):
    """A client's delta and the mean it points away from, both ``(d,)`` in shared coordinates."""

    delta: Array
    mean: Array
    k_hat: Array
    reliable: Array


class Samples(NamedTuple):
    """Samples of the globals in shared coordinates, ``(l, d)``, and what their covariance has to be multiplied by."""

    u: Array
    scale: Array


class Factor(NamedTuple):
    """A client's Gaussian in shared coordinates, its precision ``weight / rho (I - basis' basis)``.

    Attributes
    ----------
    mean, basis
        Shapes ``(d,)`` and ``(l, d)``.
    rho
        Weight of the identity in the shrinkage covariance.
    """

    mean: Array
    basis: Array
    rho: Array


class LocalDelta(NamedTuple):
    """A client's way to its delta: ``run`` is ``(shared, private, client, inputs) -> (delta, private)``."""

    run: Callable[[Shared, Private, Client, Any], tuple[Delta, Private]]
    inputs: Callable[[Array, Any, int], Any] = its_key


LocalFactor = Callable[[Shared, Private, Client, Array], tuple[Factor, Private]]


class Clients(NamedTuple):
    """What clients do.

    Attributes
    ----------
    init
        ``(client, shared, key) -> private``.
    deltas, averages
        Named updates of FedPA's rounds, and of FedAvg's.
    summaries
        Named updates of the last round.
    factor
        The gradient samplers' last round where there are too many globals for a matrix.
    retry
        Name of the update for clients whose draws are unreliable.
    """

    init: Callable[[Client, Shared, Array], Private]
    deltas: Mapping[str, LocalDelta]
    averages: Mapping[str, LocalDelta]
    summaries: Mapping[str, LocalSummary]
    factor: LocalFactor | None
    retry: str | None


def make_clients(config: Options, roster: Roster, weights: np.ndarray) -> Clients:
    """The clients of a configured FedPA."""
    if config.solver in STEPPING:
        return _stepping(config, roster, jnp.asarray(weights))
    return _sampling(config, roster, jnp.asarray(weights))


def _sampling(config: Options, roster: Roster, weights: Array) -> Clients:
    """Clients that draw from their whole subposterior. It does not depend on the server: they draw once in a phase."""
    size, share = roster.size, jnp.asarray(1.0 / roster.num_clients)
    covariance = "score"  # of the curvature at the mode, nothing is drawn
    if config.solver != "laplace":
        covariance = affordable(config.covariance or "score", config.samples_for(size), size)
    shrinks, num = covariance == "shrinkage", config.samples_for(size)
    ways = samplers(config.solver, num, num if shrinks else 0, ESTIMATORS[covariance])

    def inputs(sampler: Sampler) -> Callable[[Array, Shared, int], Any]:
        return lambda key, shared, num_locals: sampler.inputs(key, size + num_locals)

    def delta_of(known: Summary, shared: Shared, client: Client) -> Delta:
        weight, at = weights[client.index], shared.coordinates.globals_at(shared.position)
        if shrinks:
            samples = shared.coordinates.whitened(known.draws)
            delta, mean = shrunk_delta(shared.position, samples, config.shrinkage, weight)
        else:
            gaussian = known.gaussian
            delta = shared.coordinates.pulled_back(gaussian.precision @ at - gaussian.shift) / weight
            mean = shared.coordinates.whitened(gaussian.moments()[0][None])[0]
        return Delta(delta, mean, known.k_hat, known.reliable)

    def draw(sampler: Sampler, shared: Shared, private: Summary, client: Client, inputs: Any) -> tuple[Delta, Summary]:
        known = sampler.run(Subposterior(client, roster.prior, share), private.mode, inputs)
        return delta_of(known, shared, client), known

    def keep(shared: Shared, private: Summary, client: Client, inputs: tuple[()]) -> tuple[Delta, Summary]:
        return delta_of(private, shared, client), private

    def summary(
        sampler: Sampler, shared: Shared, private: Summary, client: Client, inputs: Any
    ) -> tuple[Summary, Summary]:
        known = sampler.run(Subposterior(client, roster.prior, share), private.mode, inputs)
        if not shrinks:
            return known, known
        samples = Samples(shared.coordinates.whitened(known.draws), weights[client.index])
        gaussian = _shrunk_gaussian(config.shrinkage, shared, weights[client.index], samples)
        return known._replace(gaussian=gaussian, draws=known.draws[:0]), known

    def init(client: Client, shared: Shared, key: Array) -> Summary:
        start = cold_start(size + client.num_locals)
        draws = jnp.zeros((num if shrinks else 0, size))
        return Summary(Gaussian.neutral(size), draws, jnp.zeros(()), jnp.zeros(()), jnp.array(True), start)

    deltas = {name: LocalDelta(partial(draw, sampler), inputs(sampler)) for name, sampler in ways.items()}
    return Clients(
        init=init,
        deltas=deltas | {"kept": LocalDelta(keep, no_inputs)},
        averages={},
        summaries={name: LocalSummary(partial(summary, sampler), inputs(sampler)) for name, sampler in ways.items()},
        factor=None,
        retry="nuts" if config.solver == "auto" else None,
    )


def _stepping(config: Options, roster: Roster, weights: Array) -> Clients:
    """Clients that take gradient steps from the server's position."""
    prior, rows = roster.prior, jnp.asarray(roster.rows)
    num = config.samples_for(roster.size)
    averages = config.solver == "iasg"
    inverts = config.covariance == "sample" and affordable("sample", num, prior.size) == "sample"
    window = (config.local_steps - config.burn_in) // num
    # a single sample is where the steps end
    single = Steps(config.local_steps - 1, 1, 1, average=False, noisy=False)
    several = Steps(config.local_steps - num * window, window, num, averages, noisy=not averages)
    steps = several if num > 1 else single

    def energy_of(shared: Shared, own: LocalCoordinates, client: Client) -> Energy:
        share = jnp.asarray(1.0 / roster.num_clients)
        return Energy(prior, weights[client.index], share, client, shared.coordinates, own, config.batch_size)

    def average(shared: Shared, private: Private, client: Client, key: Array) -> tuple[Delta, Private]:
        """FedAvg's delta, to where the steps end."""
        own, v = private
        energy = energy_of(shared, own, client)

        def evaluate(i: Array, at: tuple[Array, Array], carry: tuple[()]) -> tuple[Array, Any, tuple[()]]:
            return jnp.zeros(()), energy.slopes(*at, step_keys(key, i)[0]), ()

        done = descend(
            evaluate,
            (shared.position, v),
            (),
            optimizer=optax.sgd(1.0),
            num_steps=config.local_steps,
            scale=shared.step_size,
        )
        mean, v = done.position
        return Delta(shared.position - mean, mean, jnp.zeros(()), jnp.array(True)), (own, v)

    def sample(shared: Shared, private: Private, client: Client, key: Array) -> tuple[Samples, Private]:
        own, v = private
        scale, energy = weights[client.index], energy_of(shared, own, client)
        u, v = gradient_samples(energy, shared.position, v, key, step_size=shared.step_size, steps=steps)
        if averages and config.batch_size is not None:
            scale = scale * covariance_factor(rows[client.index], config.batch_size, window)
        return Samples(u, scale), (own, v)

    def delta(shared: Shared, private: Private, client: Client, key: Array) -> tuple[Delta, Private]:
        samples, after = sample(shared, private, client, key)
        if inverts:
            gaussian = _sample_gaussian(weights[client.index], samples)
            delta = (gaussian.precision @ shared.position - gaussian.shift) / weights[client.index]
            mean, _ = gaussian.moments()
        else:
            delta, mean = shrunk_delta(shared.position, samples.u, config.shrinkage, samples.scale)
        return Delta(delta, mean, jnp.zeros(()), jnp.array(True)), after

    def summary(shared: Shared, private: Private, client: Client, key: Array) -> tuple[Summary, Private]:
        samples, after = sample(shared, private, client, key)
        weight = weights[client.index]
        if inverts:
            whitened = _sample_gaussian(weight, samples)
            mean, _ = whitened.moments()
            gaussian = shared.coordinates.of_whitened(mean, whitened.precision)
        else:
            gaussian = _shrunk_gaussian(config.shrinkage, shared, weight, samples)
        nothing = jnp.zeros((0, prior.size))
        known = jnp.zeros(()), jnp.asarray(float(num)), jnp.array(True)
        return Summary(gaussian, nothing, *known, samples.u[-1]), after

    def factor(shared: Shared, private: Private, client: Client, key: Array) -> tuple[Factor, Private]:
        samples, after = sample(shared, private, client, key)
        basis, rho = shrunk_factor(samples.u, config.shrinkage, samples.scale)
        return Factor(jnp.mean(samples.u, axis=0), basis, jnp.asarray(rho)), after

    def init(client: Client, shared: Shared, key: Array) -> Private:
        return local_coordinates(client, shared.coordinates), jnp.zeros(client.num_locals)

    name = str(config.solver)
    return Clients(
        init=init,
        deltas={name: LocalDelta(delta if num > 1 else average)},
        averages={"sgd": LocalDelta(average)},
        summaries={name: LocalSummary(summary, its_key)},
        factor=factor,
        retry=None,
    )


def _shrunk_gaussian(rho: float, shared: Shared, weight: Array, samples: Samples) -> Gaussian:
    """A client's own Gaussian over the globals, with the shrinkage precision times its weight."""
    precision = weight * shrunk_precision(samples.u, rho, samples.scale)
    return shared.coordinates.of_whitened(jnp.mean(samples.u, axis=0), precision)


def _sample_gaussian(weight: Array, samples: Samples) -> Gaussian:
    """A client's Gaussian in shared coordinates from the inverse of the samples' covariance."""
    num, size = samples.u.shape
    mean = jnp.mean(samples.u, axis=0)
    u = mean + jnp.sqrt(samples.scale / weight) * (samples.u - mean)
    draws = TiltedDraws(u, u, jnp.full(num, 1.0 / num), mean, jnp.eye(size), jnp.asarray(float(num)))
    found = covariance_inversion(draws, Gaussian.neutral(size))
    return Gaussian(found.shift, found.precision, jnp.full((), jnp.nan))
