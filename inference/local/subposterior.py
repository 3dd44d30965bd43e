"""One client's subposterior, its factor times its share of the prior, summed up as a Gaussian and as draws."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from fedbayes.inference.local.density.moments import Estimator
from fedbayes.inference.local.density.tilted import (
    Tilted,
    cold_chains,
    laplace_site,
    with_evidence,
)
from fedbayes.inference.local.sampling.draws import by_importance, by_nuts, importance_inputs, nuts_inputs
from fedbayes.inference.local.sampling.resampling import Resampling, equal_weights, pool_size, resampling
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior


class Subposterior(NamedTuple):
    """``f_k(theta, z) p(theta)^share`` in unconstrained space: the product over clients is the posterior.

    Attributes
    ----------
    client
        Gives the factor.
    prior
        Of the globals, with its Jacobian.
    share
        This client's; the shares of all clients sum to one, so that the prior counts once.
    """

    client: Client
    prior: Prior
    share: Float[Array, ""]

    @property
    def num_locals(self) -> int:
        """Number of local latents."""
        return self.client.num_locals

    @property
    def jacobian(self) -> Callable:
        """How the gradient is differentiated."""
        return self.client.jacobian

    @property
    def groups(self) -> Int[np.ndarray, "group size"]:
        """Places of the locals of each independent group."""
        return self.client.groups

    def at_many(
        self,
        function: Callable[[Any], Any],
        points: Any,
        evaluations: int = 1,
        most: int | None = None,
        num: Int[Array, ""] | None = None,
    ) -> Any:
        """See :class:`~fedbayes.problem.client.Client`."""
        return self.client.at_many(function, points, evaluations, most, num)

    def log_factor(self, position: Float[Array, " p"]) -> Float[Array, ""]:
        """Log density at the joint position ``(theta, z)``, unnormalised."""
        return self.client.log_factor(position) + self.share * self.prior.log_density(position[: self.prior.size])

    def given(self, theta: Float[Array, " d"]) -> Callable[[Array], Array]:
        """The same as a function of the locals, at the globals."""
        of_locals, own = self.client.given(theta), self.share * self.prior.log_density(theta)
        return lambda z: of_locals(z) + own

    def alone(self) -> Tilted:
        """The subposterior as a density to be sampled, without the other clients' knowledge."""
        return Tilted(self, Gaussian.neutral(self.prior.size))


class Summary(NamedTuple):
    """What a client finds out about its subposterior's globals; local latents are integrated out.

    Attributes
    ----------
    gaussian
        Mean and precision as natural parameters, with the evidence as its integral.
    draws
        Draws of equal weight; none where none were asked for.
    k_hat, effective
        Of the importance weights; zero and infinite without randomness.
    reliable
        Whether the draws can be trusted.
    mode
        Joint mode, of ``p = d + m`` numbers: the next start.
    """

    gaussian: Gaussian
    draws: Float[Array, "draw d"]
    k_hat: Float[Array, ""]
    effective: Float[Array, ""]
    reliable: Bool[Array, ""]
    mode: Float[Array, " p"]


class Sampler(NamedTuple):
    """A way to sum up a subposterior.

    Attributes
    ----------
    run
        ``(subposterior, start, inputs) -> summary``, with Newton's start ``(d + m,)``.
    inputs
        ``(key, size) -> inputs``: the random numbers that ``run`` needs in ``size`` joint dimensions.
    """

    run: Callable[[Subposterior, Array, Any], Summary]
    inputs: Callable[[Array, int], Any]


def laplace() -> Sampler:
    """Mode and curvature; exact for Gaussian clients."""

    def run(sub: Subposterior, start: Float[Array, " p"], inputs: tuple[()]) -> Summary:
        tilted = sub.alone()
        mode = tilted.mode(start, tolerance=1e-8)
        found = laplace_site(mode, tilted.cavity)
        gaussian = with_evidence(found.site, tilted.cavity, found.log_evidence)
        nothing = jnp.zeros((0, sub.prior.size))
        return Summary(gaussian, nothing, jnp.zeros(()), jnp.full((), jnp.inf), jnp.array(True), mode.position)

    return Sampler(run, lambda key, size: ())


def importance(*, num_samples: int, num_kept: int, estimator: Estimator) -> Sampler:
    """Importance sampling from the Laplace approximation with ``num_samples`` draws, ``num_kept`` of them resampled."""

    def run(
        sub: Subposterior, start: Float[Array, " p"], inputs: tuple[Float[Array, " p"], Resampling | tuple[()]]
    ) -> Summary:
        tilted, (shift, picking) = sub.alone(), inputs
        drawn = by_importance(tilted, cold_chains(start), shift, num_samples=num_samples)
        found = estimator(drawn.draws, tilted.cavity)
        site = Gaussian(found.shift, found.precision, jnp.zeros(()))
        gaussian = with_evidence(site, tilted.cavity, drawn.log_evidence)
        kept = jnp.zeros((0, sub.prior.size))
        if isinstance(picking, Resampling):
            kept = equal_weights(drawn.draws, picking)[:, : sub.prior.size]
        return Summary(gaussian, kept, drawn.k_hat, drawn.draws.effective, drawn.reliable, drawn.warm.position)

    def inputs(key: Key[Array, ""], size: int) -> tuple[Float[Array, " {size}"], Resampling | tuple[()]]:
        shift_key, pick_key = jax.random.split(key)
        picking = resampling(pick_key, num_samples, num_kept) if num_kept else ()
        return importance_inputs(shift_key, size), picking

    return Sampler(run, inputs)


def nuts(*, num_samples: int, num_kept: int, num_warmup: int, estimator: Estimator) -> Sampler:
    """NumPyro's NUTS, whitened by the Laplace approximation: four chains, ``num_samples`` draws in all."""

    def run(
        sub: Subposterior,
        start: Float[Array, " p"],
        inputs: tuple[tuple[Float[Array, " p"], Key[Array, ""]], Int[Array, " draw"]],
    ) -> Summary:
        tilted, (chains, order) = sub.alone(), inputs
        drawn = by_nuts(
            tilted, cold_chains(start), chains, num_samples=num_samples, num_warmup=num_warmup, num_proposed=256
        )
        found = estimator(drawn.draws, tilted.cavity)
        site = Gaussian(found.shift, found.precision, jnp.zeros(()))
        gaussian = with_evidence(site, tilted.cavity, drawn.log_evidence)
        # consensus pairs draws of different clients: neighbours in a chain must not meet neighbours
        mixed = drawn.draws.position[order][:num_kept, : sub.prior.size]
        return Summary(gaussian, mixed, drawn.k_hat, drawn.draws.effective, drawn.reliable, drawn.warm.position)

    def inputs(
        key: Key[Array, ""], size: int
    ) -> tuple[tuple[Float[Array, " {size}"], Key[Array, ""]], Int[Array, " draw"]]:
        chain_key, mix_key = jax.random.split(key)
        return nuts_inputs(chain_key, size), jax.random.permutation(mix_key, num_samples)

    return Sampler(run, inputs)


def samplers(name: str, num_samples: int, num_kept: int, estimator: Estimator) -> dict[str, Sampler]:
    """The ways to sum up that a sampler's name stands for, its first choice first.

    Parameters
    ----------
    name
        ``"importance"``, ``"nuts"``, ``"laplace"``, or ``"auto"``: importance sampling, and NUTS for the unreliable.
    num_samples, num_kept
        Draws for the moments, and those handed on.
    estimator
        Turns the draws into a Gaussian.
    """
    if name == "laplace":
        return {"laplace": laplace()}
    pool = max(256, pool_size(num_samples)) if num_kept else 1 << (num_samples - 1).bit_length()
    chains = max(64, 4 * -(-num_samples // 4))
    known = {
        "importance": importance(num_samples=pool, num_kept=num_kept, estimator=estimator),
        "nuts": nuts(num_samples=chains, num_kept=num_kept, num_warmup=100, estimator=estimator),
    }
    return known if name == "auto" else {name: known[name]}
