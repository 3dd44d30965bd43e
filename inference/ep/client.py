"""The client's half of EP: from the global and its own site to its cavity, and from that to its next site."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedbayes.contract.algorithm import Info, Reply
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.step import smallest_eigenvalue
from fedbayes.inference.local.density.tilted import Tilted, Warm
from fedbayes.inference.local.solvers import Solver
from fedbayes.inference.own_site import Counted, OwnSite
from fedbayes.numerics.gaussian import LOG_2PI, Gaussian, log_det, packed, unpacked, where, whitener
from fedbayes.problem.client import Client

_IMPROPER_SLACK = 1e-9  # a cavity may be singular where only its own client knows a direction, as under a flat prior
_MOST_OWN = 0.9  # of the global's precision, what the client's own part of it may be once its cavity was improper


class Family(NamedTuple):
    """Of the sites: all Gaussians, or those with a diagonal precision, of which only the diagonal is sent."""

    diagonal: bool

    def within(self, site: Gaussian) -> Gaussian:
        """The site without what is not in the family."""
        if not self.diagonal:
            return site
        return Gaussian(site.shift, site.precision * jnp.eye(site.size), site.log_scale)

    def sent(self, site: Gaussian) -> Gaussian:
        """The site as it travels."""
        if not self.diagonal:
            return packed(site)
        return Gaussian(site.shift, jnp.diagonal(site.precision), site.log_scale)

    def read(self, sent: Gaussian) -> Gaussian:
        """The site from what has travelled."""
        if not self.diagonal:
            return unpacked(sent)
        return Gaussian(sent.shift, jnp.diag(sent.precision), sent.log_scale)


class Change(NamedTuple):
    """What a client sends, of which the server sees the sum alone.

    Attributes
    ----------
    site
        How its site should change, in natural parameters: ``d + d (d + 1) / 2`` numbers and the log scale; for diagonal
        sites the precision is a vector ``(d,)``. Where the server counts the sites anew: the whole site.
    noise
        Expected squared Monte Carlo error of the global that this causes, in posterior sds, summed over coordinates.
    lost
        One where the client has lost its site: what the global holds of it is not known to anybody.
    """

    site: Gaussian
    noise: Array
    lost: Array


class Shared(NamedTuple):
    """The broadcast.

    Attributes
    ----------
    mean
        Of the global, for warm starts, shape ``(d,)``.
    global_
        Prior times all sites, its precision as a triangle.
    opening
        Whether Laplace approximations are asked for, as in the first round of ``init="laplace"``.
    round
        Number of the round.
    recount
        Whether the sites are counted anew: then nobody proposes anything.
    """

    mean: Array
    global_: Gaussian
    opening: Array
    round: Array
    recount: Array


class Told(NamedTuple):
    """What is addressed to one client: which of its replies counted, and whether its whole site is asked for."""

    counted: Counted
    whole: Array


class Own(NamedTuple):
    """What a client keeps: its site, where its solver starts, and whether its cavity was improper once."""

    site: OwnSite
    warm: Warm
    was_improper: Array


class Matched(NamedTuple):
    """A client's next site, from a cavity.

    Attributes
    ----------
    site
        With its scale, see :func:`~fedbayes.inference.local.density.tilted.with_evidence`.
    white
        Whitener of cavity times site, shape ``(d, d)``.
    noise
        Expected squared Monte Carlo error of the global that it causes, in posterior sds, summed over coordinates.
    usable
        Whether its numbers are finite, and the opening's mode was found.
    code, info
        Of the reply.
    warm
        For the next round.
    """

    site: Gaussian
    white: Array
    noise: Array
    usable: Array
    code: Array
    info: Info
    warm: Warm


def matched(solver: Solver, tilted: Tilted, opening: Array, warm: Warm, inputs: Any) -> Matched:
    """Moment match of the tilted density, divided by the cavity.

    Parameters
    ----------
    solver
        How the tilted density is explored.
    tilted
        Cavity times factor.
    opening
        Whether the Laplace approximation is asked for, as in an opening round.
    warm, inputs
        See :class:`~fedbayes.inference.local.solvers.Solver`.
    """
    cavity, found = tilted.cavity, solver.run(tilted, warm, inputs)
    laplace, either = found.laplace, partial(jax.tree.map, partial(jnp.where, opening))
    site, log_evidence = either((laplace.site, laplace.log_evidence), (found.site, found.log_evidence))
    usable = jnp.all(jnp.isfinite(site.shift)) & jnp.all(jnp.isfinite(site.precision))
    usable = usable & (laplace.converged | ~opening)  # no approximation of what grows for ever
    site, white, influence = _scaled(site, cavity, log_evidence)
    # the tilted covariance is the global's where EP has converged
    noise = found.error.noise(white.T @ white)
    noise = jnp.where(jnp.isfinite(noise) & ~opening, noise, 0.0)
    heavy_tailed = ~(jnp.asarray(found.reliable) | opening)
    broken = jnp.where(jnp.isfinite(laplace.value), ResultCode.IMPROPER, ResultCode.NOT_FINITE)
    code = jnp.where(usable, jnp.where(heavy_tailed, ResultCode.UNRELIABLE, ResultCode.OK), broken)
    info = {
        "heavy_tailed": heavy_tailed.astype(float),
        "k_hat": found.k_hat,
        "effective_draws": found.effective,
        "influence": influence,
        "noise": noise,
    }
    after = jax.tree.map(lambda new, old: jnp.where(usable, new, old), found.warm, warm)
    return Matched(site, white, noise, usable, code, info, after)


def local_update(
    solver: Solver,
    family: Family,
    spread: bool,
    most_noise: float,
    shared: Shared,
    told: Told,
    own: Own,
    client: Client,
    inputs: Any,
) -> tuple[Reply, Own]:
    """One client's round: how its site should change.

    Parameters
    ----------
    solver, family
        See :func:`matched`, and the family of the sites.
    spread
        Whether the solver is told how wide the global is, as clients with locals need it.
    most_noise
        The client's share of the noise that is aimed at, from which its reply is called noisy.
    shared, told, own, client, inputs
        See :class:`~fedbayes.contract.algorithm.Update`.
    """
    kept, lost = own.site.settled(told.counted)
    site, everybody = kept.at(told.counted), unpacked(shared.global_)
    cavity, power, smallest, was_improper = cavity_of(everybody, site, own.was_improper)
    tilted = Tilted(client, cavity, shared.mean, everybody.precision if spread else None)
    found = matched(solver, tilted, shared.opening, own.warm, inputs)
    idle = lost | shared.recount  # nothing is proposed
    proposed = where(found.usable & ~idle, family.within(found.site), site)
    change = Change(
        site=family.sent(where(told.whole, site, proposed - site)),
        noise=jnp.where(idle, 0.0, found.noise),
        lost=lost.astype(float),
    )
    noisy = (found.code == ResultCode.OK) & (found.noise >= most_noise)
    code = jnp.where(idle, ResultCode.OK, jnp.where(noisy, ResultCode.NOISY, found.code))
    code = jnp.where(lost, ResultCode.LOST, code)
    influence = jnp.where(power < 1.0, jnp.nan, found.info["influence"])  # the others know the cavity itself
    info = found.info | {"noise": change.noise, "smallest_cavity_eigenvalue": smallest, "influence": influence}
    reply = Reply(total=change, code=code, info=info)
    warm, was_improper = jax.tree.map(
        lambda new, old: jnp.where(idle, old, new), (found.warm, was_improper), (own.warm, own.was_improper)
    )
    return reply, Own(kept.replied(told.counted, proposed, shared.round), warm, was_improper)


def cavity_of(everybody: Gaussian, site: Gaussian, was_improper: Array) -> tuple[Gaussian, Array, Array, Array]:
    """The Gaussian in which a client matches moments: its cavity ``q / s_k``, or ``q / s_k^a`` with ``a < 1``.

    Monte Carlo noise, or the way to the fixed point, can make a cavity improper, though it is proper at the fixed
    point. From then on the client takes the largest power ``a`` of its site out of the global that leaves a tenth of
    the global's precision in every direction. A site that holds less than nine tenths of it has ``a = 1``, the cavity.

    Parameters
    ----------
    everybody, site
        The global, and the client's site in it.
    was_improper
        Whether the cavity was improper in an earlier round.

    Returns
    -------
    cavity
        Proper wherever the global is, up to the error of :func:`~fedbayes.inference.ep.step.smallest_eigenvalue`.
    power
        The exponent ``a``.
    smallest
        Smallest eigenvalue of ``q / s_k``'s precision, in units of the global's; NaN where the global is improper.
    was_improper
        In this round or an earlier one.
    """
    smallest = smallest_eigenvalue(whitener(everybody.precision), site)
    was_improper = was_improper | (smallest < -_IMPROPER_SLACK)
    own = 1.0 - smallest
    power = jnp.where(was_improper & (own > _MOST_OWN), _MOST_OWN / own, 1.0)
    return everybody - site.scaled(power), power, smallest, was_improper


def _scaled(site: Gaussian, cavity: Gaussian, log_evidence: Array) -> tuple[Gaussian, Array, Array]:
    """The site with its scale, the whitener of cavity times site, and the client's influence.

    The scale is that of :func:`~fedbayes.inference.local.density.tilted.with_evidence`. The influence is how far the
    client moves everybody else's mean, in the cavity's sds (root mean square).
    """
    white, other = jax.vmap(whitener)(jnp.stack([cavity.precision + site.precision, cavity.precision]))
    half = white @ (cavity.shift + site.shift)
    gap = white.T @ half - other.T @ (other @ cavity.shift)
    log_integral = 0.5 * (half @ half - log_det(white) + site.size * LOG_2PI)
    influence = jnp.sqrt(gap @ cavity.precision @ gap / site.size)
    scaled = Gaussian(site.shift, site.precision, log_evidence - log_integral)
    return scaled, white, influence
