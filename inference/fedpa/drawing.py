"""Clients that draw from their whole subposterior. It does not depend on the server: they draw once in a phase."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import no_inputs
from fedbayes.inference.fedpa.client import Clients, Delta, LocalDelta, Samples, Shared, shrunk_gaussian
from fedbayes.inference.fedpa.options import Options
from fedbayes.inference.fedpa.shrinkage import shrunk_delta
from fedbayes.inference.local.density.tilted import cold_start
from fedbayes.inference.local.subposterior import Sampler, Subposterior, Summary, samplers
from fedbayes.inference.merging.client import LocalSummary
from fedbayes.inference.merging.estimators import ESTIMATORS, affordable
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.roster import Roster


def drawing_clients(config: Options, roster: Roster, weights: Array) -> Clients:
    """Clients that draw, by each sampler of the configured solver."""
    size, num = roster.size, config.samples_for(roster.size)
    estimator = "score"  # of the curvature at the mode, nothing is drawn
    if config.solver != "laplace":
        estimator = affordable(config.estimator or "score", num, size)
    kept = num if estimator == "shrinkage" else 0
    way = _Drawing(roster, weights, jnp.asarray(1.0 / roster.num_clients), config.shrinkage, kept)
    ways = samplers(config.solver, num, kept, ESTIMATORS[estimator])
    deltas = {name: LocalDelta(partial(way.draw, each), partial(way.inputs, each)) for name, each in ways.items()}
    return Clients(
        init=way.init,
        deltas=deltas | {"kept": LocalDelta(way.keep, no_inputs)},
        averages={},
        summaries={
            name: LocalSummary(partial(way.summary, each), partial(way.inputs, each)) for name, each in ways.items()
        },
        factor=None,
        retry="nuts" if config.solver == "auto" else None,
    )


@dataclass(frozen=True, eq=False)
class _Drawing:
    """What such a client does. It keeps the summary of its subposterior.

    Attributes
    ----------
    roster, weights
        Of the clients; their weights have shape ``(K,)``.
    share
        Of the prior in a client's subposterior.
    shrinkage
        ``rho`` of the shrinkage covariance.
    num_kept
        Draws that the shrinkage covariance needs; zero where another covariance is asked for.
    """

    roster: Roster
    weights: Array
    share: Array
    shrinkage: float
    num_kept: int

    def init(self, client: Client, shared: Shared, key: Array) -> Summary:
        """Nothing is known yet but where the search for the mode begins, and no delta can be made of these draws.

        Of noughts one could: a server that asks all sites but one for it has that one's delta in a secure sum.
        """
        size = self.roster.size
        start = cold_start(size + client.num_locals)
        draws = jnp.full((self.num_kept, size), jnp.nan)
        return Summary(Gaussian.neutral(size), draws, jnp.zeros(()), jnp.zeros(()), jnp.array(True), start)

    def inputs(self, sampler: Sampler, key: Array, shared: Shared, num_locals: int) -> Any:
        """The random numbers of a sampler."""
        return sampler.inputs(key, self.roster.size + num_locals)

    def draw(
        self, sampler: Sampler, shared: Shared, private: Summary, client: Client, inputs: Any
    ) -> tuple[Delta, Summary]:
        """Draws anew, and the delta from them."""
        known = self._known(sampler, private, client, inputs)
        return self._delta(known, shared, client), known

    def keep(self, shared: Shared, private: Summary, client: Client, inputs: tuple[()]) -> tuple[Delta, Summary]:
        """The delta from the draws of an earlier round."""
        return self._delta(private, shared, client), private

    def summary(
        self, sampler: Sampler, shared: Shared, private: Summary, client: Client, inputs: Any
    ) -> tuple[Summary, Summary]:
        """The Gaussian of the last round."""
        known = self._known(sampler, private, client, inputs)
        if not self.num_kept:
            return known, known
        weight = self.weights[client.index]
        samples = Samples(shared.coordinates.whitened(known.draws), weight)
        gaussian = shrunk_gaussian(self.shrinkage, shared, weight, samples)
        return known._replace(gaussian=gaussian, draws=known.draws[:0]), known

    def _known(self, sampler: Sampler, private: Summary, client: Client, inputs: Any) -> Summary:
        return sampler.run(Subposterior(client, self.roster.prior, self.share), private.mode, inputs)

    def _delta(self, known: Summary, shared: Shared, client: Client) -> Delta:
        weight = self.weights[client.index]
        if self.num_kept:
            samples = shared.coordinates.whitened(known.draws)
            delta, mean = shrunk_delta(shared.position, samples, self.shrinkage, weight)
        else:
            gaussian, at = known.gaussian, shared.coordinates.globals_at(shared.position)
            delta = shared.coordinates.pulled_back(gaussian.precision @ at - gaussian.shift) / weight
            mean = shared.coordinates.whitened(gaussian.moments()[0][None])[0]
        return Delta(delta, mean, known.k_hat, known.reliable)
