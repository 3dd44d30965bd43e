"""Clients that take gradient steps from the server's position, in the federation's shared coordinates."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from fedbayes.contract.algorithm import its_key
from fedbayes.inference.fedpa.client import (
    Clients,
    Delta,
    Factor,
    LocalDelta,
    Private,
    Samples,
    Shared,
    shrunk_gaussian,
)
from fedbayes.inference.fedpa.options import Options
from fedbayes.inference.fedpa.shrinkage import shrunk_delta, shrunk_factor
from fedbayes.inference.local.density.moments import TiltedDraws, covariance_inversion
from fedbayes.inference.local.steps.coordinates import LocalCoordinates, local_coordinates
from fedbayes.inference.local.steps.descent import descend
from fedbayes.inference.local.steps.energy import Energy
from fedbayes.inference.local.steps.sgd import Steps, covariance_factor, gradient_samples, step_keys
from fedbayes.inference.local.subposterior import Summary
from fedbayes.inference.merging.client import LocalSummary
from fedbayes.inference.merging.estimators import affordable
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster


def stepping_clients(config: Options, roster: Roster, weights: Array) -> Clients:
    """Clients that take gradient steps, by the configured sampler; with one sample as in FedAvg."""
    num, name = config.samples_for(roster.size), str(config.solver)
    inverts = config.estimator == "sample" and affordable("sample", num, roster.size) == "sample"
    way = _Stepping(config, roster, weights, inverts)
    return Clients(
        init=way.init,
        deltas={name: LocalDelta(way.delta if num > 1 else way.average)},
        averages={"sgd": LocalDelta(way.average)},
        summaries={name: LocalSummary(way.summary, its_key)},
        factor=way.factor,
        retry=None,
    )


@dataclass(frozen=True, eq=False)
class _Stepping:
    """What such a client does. It keeps its locals, in coordinates of their own.

    Attributes
    ----------
    config, roster
        Of the fit.
    weights
        Of the clients, shape ``(K,)``.
    inverts
        Whether precisions are inverses of the samples' covariances; else they are shrunk to the identity.
    """

    config: Options
    roster: Roster
    weights: Array
    inverts: bool

    @property
    def num(self) -> int:
        """Samples of a client and round."""
        return self.config.samples_for(self.roster.size)

    @property
    def window(self) -> int:
        """Steps of a sample."""
        return (self.config.local_steps - self.config.burn_in) // self.num

    @property
    def steps(self) -> Steps:
        """Of a round; a single sample is where they end."""
        total, averages = self.config.local_steps, self.config.solver == "iasg"
        if self.num == 1:
            return Steps(total - 1, 1, 1, average=False, noisy=False)
        return Steps(total - self.num * self.window, self.window, self.num, averages, noisy=not averages)

    def init(self, client: Client, shared: Shared, key: Array) -> Private:
        """The client's own coordinates, and its locals at their origin."""
        return local_coordinates(client, shared.coordinates), jnp.zeros(client.num_locals)

    def average(self, shared: Shared, private: Private, client: Client, key: Array) -> tuple[Delta, Private]:
        """FedAvg's delta, to where the steps end."""
        own, v = private
        energy = self._energy(shared, own, client)

        def evaluate(i: Array, at: tuple[Array, Array], carry: tuple[()]) -> tuple[Array, Any, tuple[()]]:
            return jnp.zeros(()), energy.slopes(*at, step_keys(key, i)[0]), ()

        done = descend(
            evaluate,
            (shared.position, v),
            (),
            optimizer=optax.sgd(1.0),
            num_steps=self.config.local_steps,
            scale=shared.step_size,
        )
        mean, v = done.position
        return Delta(shared.position - mean, mean, jnp.zeros(()), jnp.array(True)), (own, v)

    def delta(self, shared: Shared, private: Private, client: Client, key: Array) -> tuple[Delta, Private]:
        """FedPA's delta, by the samples' covariance."""
        samples, after = self._sample(shared, private, client, key)
        weight = self.weights[client.index]
        if self.inverts:
            gaussian = _sample_gaussian(weight, samples)
            delta = (gaussian.precision @ shared.position - gaussian.shift) / weight
            mean, _ = gaussian.moments()
        else:
            delta, mean = shrunk_delta(shared.position, samples.u, self.config.shrinkage, samples.scale)
        return Delta(delta, mean, jnp.zeros(()), jnp.array(True)), after

    def summary(self, shared: Shared, private: Private, client: Client, key: Array) -> tuple[Summary, Private]:
        """The Gaussian of the last round."""
        samples, after = self._sample(shared, private, client, key)
        weight = self.weights[client.index]
        if self.inverts:
            whitened = _sample_gaussian(weight, samples)
            mean, _ = whitened.moments()
            gaussian = shared.coordinates.of_whitened(mean, whitened.precision)
        else:
            gaussian = shrunk_gaussian(self.config.shrinkage, shared, weight, samples)
        nothing = jnp.zeros((0, self.roster.size))
        known = jnp.zeros(()), jnp.asarray(float(self.num)), jnp.array(True)
        return Summary(gaussian, nothing, *known, samples.u[-1]), after

    def factor(self, shared: Shared, private: Private, client: Client, key: Array) -> tuple[Factor, Private]:
        """The last round's Gaussian where there are too many globals for a matrix."""
        samples, after = self._sample(shared, private, client, key)
        basis, rho = shrunk_factor(samples.u, self.config.shrinkage, samples.scale)
        return Factor(jnp.mean(samples.u, axis=0), basis, jnp.asarray(rho)), after

    def _sample(self, shared: Shared, private: Private, client: Client, key: Array) -> tuple[Samples, Private]:
        own, v = private
        scale, energy = self.weights[client.index], self._energy(shared, own, client)
        steps = self.steps
        u, v = gradient_samples(energy, shared.position, v, key, step_size=shared.step_size, steps=steps)
        if self.config.solver == "iasg" and self.config.batch_size is not None:
            rows = jnp.asarray(self.roster.rows)[client.index]
            scale = scale * covariance_factor(rows, self.config.batch_size, self.window)
        return Samples(u, scale), (own, v)

    def _energy(self, shared: Shared, own: LocalCoordinates, client: Client) -> Energy:
        share = jnp.asarray(1.0 / self.roster.num_clients)
        weight, size = self.weights[client.index], self.config.batch_size
        return Energy(self.roster.prior, weight, share, client, shared.coordinates, own, size)


def _sample_gaussian(weight: Array, samples: Samples) -> Gaussian:
    """A client's Gaussian in shared coordinates from the inverse of the samples' covariance."""
    num, size = samples.u.shape
    mean = jnp.mean(samples.u, axis=0)
    u = mean + jnp.sqrt(samples.scale / weight) * (samples.u - mean)
    draws = TiltedDraws(
        u, u, jnp.full(num, 1.0 / num), mean, jnp.eye(size), jnp.zeros((size, 0)), jnp.asarray(float(num))
    )
    found = covariance_inversion(draws, Gaussian.neutral(size))
    return Gaussian(found.shift, found.precision, jnp.full((), jnp.nan))
