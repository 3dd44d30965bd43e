"""The server's half of EP: where it starts, the step after each round, and who computes how in the next."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Algorithm, Info, Replies, Update
from fedbayes.inference.ep.client import Shared, SiteMessage, local_update
from fedbayes.inference.ep.options import Options
from fedbayes.inference.ep.step import (
    ABOVE_NOISE,
    HOPELESS,
    NOISE_TARGET,
    EPState,
    all_proper,
    convex,
    damping,
    divergence,
    largest_proper_step,
    makes_progress,
    noise_limited,
    smallest_eigenvalue,
)
from fedbayes.inference.local import solvers
from fedbayes.inference.local.moments import Estimator, covariance_inversion, diagonal_regression, score_regression
from fedbayes.inference.local.tilted import (
    LocalSite,
    Tilted,
    cold_chains,
    cold_start,
    with_evidence,
)
from fedbayes.inference.merging.server import MergeState
from fedbayes.inference.mode import ModeState
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked, where, whitener
from fedbayes.numerics.host import whiteners
from fedbayes.problem.prior import Prior
from fedbayes.problem.roster import Roster

_SETTLED = 0.5  # change of the global, in posterior sds, below which a large k-hat sends a client to NUTS
_NEAR = 2.0  # change above which draws are a waste, because Laplace's sites lead as far
_MORE = 8  # times as many draws for a client whose noise is too large
_MANY_LOCALS = 16  # from which a draw of them given the globals, with its Hessians, costs more than many plain ones
_FEW = 0.1  # share of the clients with locals that may draw them given the globals, and the others not
_MUCH_WORK = 1e7  # rows times draws of a round, about a second, from which that is worth compiling one more program

_COVARIANCES: Mapping[str, Estimator] = {"score": score_regression, "sample": covariance_inversion}


def make_solvers(config: Options, num_samples: int) -> dict[str, solvers.Solver]:
    """The local solvers a configuration may use, its first choice first."""
    estimator = diagonal_regression if config.family == "diagonal" else _COVARIANCES[config.covariance]
    known = {
        "importance": solvers.importance(num_samples=num_samples, estimator=estimator),
        "nested": solvers.nested(num_samples=num_samples, estimator=estimator),
        "importance_more": solvers.importance(num_samples=_MORE * num_samples, estimator=estimator),
        "nested_more": solvers.nested(num_samples=_MORE * num_samples, estimator=estimator),
        "nuts": solvers.nuts(num_samples=max(1024, num_samples), num_warmup=30, estimator=estimator),
        "laplace": solvers.laplace(),
        "variational": solvers.variational(num_samples=num_samples),
    }
    auto = ("importance", "nested", "importance_more", "nested_more", "nuts")
    names = auto if config.solver == "auto" else (config.solver,)
    return {name: known[name] for name in names}


def _used_solvers(config: Options, roster: Roster, num_samples: int) -> dict[str, solvers.Solver]:
    """The solvers of a fit. Where draws are much work, clients without locals begin with Laplace approximations."""
    work = roster.rows.sum() * num_samples * config.num_replicates
    known = make_solvers(config, num_samples)
    far = config.start(roster) != "mode"
    if config.solver == "auto" and far and work > _MUCH_WORK and not roster.num_locals.any():
        return {"laplace": solvers.laplace(), **known}
    return known


def algorithm(config: Options, roster: Roster) -> Algorithm:
    """EP for the clients of a roster."""
    num_samples = config.draws_for(roster.size)
    prior, size = roster.prior, roster.size
    diagonal, has_locals = config.family == "diagonal", roster.num_locals > 0
    refine = solvers.importance(num_samples=num_samples, estimator=score_regression)

    def broadcast(state: EPState) -> tuple[Shared, Gaussian]:
        cavities = jax.vmap(lambda site: packed(state.global_() - site))(state.sites)
        precision = packed(state.global_()).precision if has_locals.any() else ()
        return Shared(state.mean(), state.opening, precision), cavities

    def update(solver: solvers.Solver) -> Update:
        return Update(
            run=partial(local_update, solver, diagonal),
            inputs=lambda key, shared, num_locals: solver.inputs(key, size + num_locals),
        )

    return Algorithm(
        name="EP",
        init=partial(_init, roster, refine, diagonal, config.start(roster) == "laplace"),
        broadcast=broadcast,
        init_client=lambda client, shared, key: cold_chains(cold_start(size + client.num_locals)),
        updates={name: update(solver) for name, solver in _used_solvers(config, roster, num_samples).items()},
        aggregate=partial(_aggregate, config, prior, refine),
        choose=partial(_choose, config, size, roster.num_locals),
    )


def _init(
    roster: Roster,
    refine: solvers.Solver,
    diagonal: bool,
    opening: bool,
    key: Array,
    previous: ModeState | MergeState | None,
) -> EPState:
    """Sites of one, or those of the phase before, as far as they leave every cavity proper."""
    prior, infinity = roster.prior, jnp.full((), jnp.inf)
    start = prior.gaussian
    if start is None:  # a wide cavity: what a non-Gaussian prior looks like as a whole
        wide = Gaussian(jnp.zeros(prior.size), 0.01 * jnp.eye(prior.size), jnp.zeros(()))
        start = _prior_site(prior, refine, wide, wide, key).site
    white = _whitener_of(start)
    sites, opens = Gaussian.neutral(prior.size, (roster.num_clients,)), jnp.asarray(opening)
    state = EPState(sites, start, white, jnp.ones(()), infinity, infinity, opens, jnp.zeros(()))
    if previous is None:
        return state
    # where the factors are not log-concave, the expansions may leave a cavity improper: then their convex part may do
    only_convex = state._replace(sites=_in_family(convex(previous.sites, previous.best), diagonal))
    exact = state._replace(sites=_in_family(previous.sites, diagonal), prior=previous.prior)
    for candidate in (only_convex, exact):
        candidate = candidate._replace(white=whitener(candidate.global_().precision))
        proper = all_proper(candidate, jnp.eye(prior.size))
        state = jax.tree.map(partial(jnp.where, proper), candidate, state)
    return state


def _whitener_of(start: Gaussian) -> Array:
    """Of the first global; a prior that is known before the fit costs no program."""
    if isinstance(start.precision, jax.core.Tracer):
        return whitener(start.precision)
    return jnp.asarray(whiteners(np.asarray(start.precision)[None])[0])


def _aggregate(
    config: Options, prior: Prior, refine: solvers.Solver, state: EPState, replies: Replies, key: Array
) -> tuple[EPState, Info]:
    """The server's half of a round: refine the prior's site, choose the step, take it."""
    old, used = state.global_(), replies.used
    messages: SiteMessage = replies.each
    proposed = _expanded(messages.site) if config.family == "diagonal" else unpacked(messages.site)
    target = where(used, proposed, state.sites)
    prior_target = state.prior
    if prior.gaussian is None:
        refined = _prior_site(prior, refine, old - state.prior, old, key)
        prior_target = where(_usable(refined), refined.site, state.prior)
    noise = jnp.sqrt(jnp.sum(jnp.where(used, messages.noise, 0.0)) / prior.size)
    wanted = damping(noise, state.change) if config.damping is None else jnp.asarray(config.damping)
    wanted = jnp.where(state.opening, 1.0, jnp.minimum(wanted, state.ceiling))
    moved, step = largest_proper_step(state, target, prior_target, wanted)
    kl = divergence(moved, state)
    # ``sqrt(2 KL / d)``: for a shift of the mean, its root mean square in posterior sds
    rms = jnp.sqrt(jnp.maximum(2.0 * kl, 0.0) / prior.size)
    change = jnp.where(step > 0, rms / step, jnp.inf)
    change = jnp.where(jnp.any(used), jnp.where(jnp.isfinite(change), change, jnp.inf), state.change)
    oscillates = (change > state.change) & (change > ABOVE_NOISE * noise) & (change > config.tolerance)
    # where the noise has halved, as by a better solver, the last change says nothing of how far this one could shrink
    comparable = jnp.where(state.noise <= 2.0 * noise, state.change, jnp.inf)
    at_noise = noise_limited(noise, change, comparable, step)
    ceiling = jnp.where(oscillates & (config.damping is None), 0.7 * state.ceiling, state.ceiling)
    fine = makes_progress(noise, change, state.change, step) | state.opening | ~jnp.all(used)
    stuck = jnp.where(fine, 0.0, state.stuck + 1.0)
    known = jnp.where(state.opening, jnp.inf, change)  # the opening round's change says nothing of the next one's
    moved = moved._replace(ceiling=ceiling, change=known, noise=noise, opening=jnp.asarray(False), stuck=stuck)
    info = {
        "kl": kl,
        "change": change,
        "monte_carlo_noise": noise,
        "step": step,
        "stuck": stuck,
        "hopeless": stuck >= HOPELESS,
        "smallest_cavity_eigenvalue": jax.vmap(partial(smallest_eigenvalue, moved.white))(moved.sites),
        "converged": ((change <= config.tolerance) | at_noise) & ~state.opening,
        "proper": jnp.all(jnp.isfinite(moved.white)),
    }
    return moved, info


def _choose(
    config: Options, size: int, num_locals: np.ndarray, variants: Sequence[str], infos: Mapping[str, np.ndarray]
) -> list[str]:
    """Draws from near the fixed point on; nested ones where locals make the plain ones fail.

    Once the global has settled, more draws, or NUTS.
    """
    if config.solver != "auto":
        return list(variants)
    if "laplace" in variants:
        return ["laplace" if np.max(infos["change"]) > _NEAR else "importance"] * len(variants)
    num_clients, has_locals = len(variants), num_locals > 0
    heavy_tailed, noises = (infos[name].reshape(num_clients, -1) for name in ("heavy_tailed", "noise"))
    change, noise = np.max(infos["change"]), np.max(infos["monte_carlo_noise"])
    noisy = (noise > NOISE_TARGET) & (noises.mean(axis=1) >= NOISE_TARGET**2 * size / num_clients)
    plain = np.asarray(variants) == "importance"
    heavy = heavy_tailed.mean(axis=1) > 0.5  # in most replicates
    fails = np.where(num_locals < _MANY_LOCALS, heavy_tailed.any(axis=1), heavy)
    needed = plain & has_locals & (fails | noisy)
    if needed.sum() > _FEW * has_locals.sum():  # the others would follow one by one, and each takes a round
        needed = plain & has_locals
    chosen = np.where(needed, "nested", variants)
    if change > max(_SETTLED, ABOVE_NOISE * noise):  # early cavities are wide, and say little about the later ones
        return chosen.tolist()
    chosen = np.where(plain & ~has_locals & noisy, "importance_more", chosen)
    chosen = np.where((np.asarray(variants) == "nested") & noisy, "nested_more", chosen)
    return np.where(heavy & ~(plain & has_locals), "nuts", chosen).tolist()


def startable(state: ModeState) -> Array:
    """Whether the expansions, or their convex parts, leave every cavity proper."""
    identity = jnp.eye(state.best.shape[0])
    only_convex = state._replace(sites=convex(state.sites, state.best))
    return all_proper(state, identity) | all_proper(only_convex, identity)


def _usable(found: LocalSite) -> Array:
    return jnp.all(jnp.isfinite(found.site.shift)) & jnp.all(jnp.isfinite(found.site.precision))


def _prior_site(prior: Prior, solver: solvers.Solver, cavity: Gaussian, everybody: Gaussian, key: Array) -> LocalSite:
    """The prior refined at the server, as if it were one more client."""
    mean, _ = everybody.moments()
    found = solver.run(Tilted(prior, cavity.symmetrised()), cold_chains(mean), solver.inputs(key, prior.size))
    return found._replace(site=with_evidence(found.site, cavity, found.log_evidence))


def _expanded(site: Gaussian) -> Gaussian:
    return Gaussian(site.shift, jax.vmap(jnp.diag)(site.precision), site.log_scale)


def _in_family(sites: Gaussian, diagonal: bool) -> Gaussian:
    if not diagonal:
        return sites
    mask = jnp.eye(sites.size)
    return Gaussian(sites.shift, sites.precision * mask, sites.log_scale)
