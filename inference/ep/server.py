"""The server's half of EP: where it starts, the step after each round, and who computes how in the next."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.algorithm import Algorithm, Info, Replies, Update
from fedbayes.contract.answer import ERROR_LIMIT
from fedbayes.contract.work import Work
from fedbayes.errors import ResultCode
from fedbayes.inference.ep.client import Change, Family, Own, Shared, Told, local_update
from fedbayes.inference.ep.options import Options
from fedbayes.inference.ep.step import (
    ABOVE_NOISE,
    HOPELESS,
    NOISE_TARGET,
    EPState,
    Recount,
    damping,
    divergence,
    largest_proper_step,
    makes_progress,
    noise_limited,
    remaining,
)
from fedbayes.inference.local import solvers
from fedbayes.inference.local.density.moments import (
    Estimator,
    covariance_inversion,
    diagonal_regression,
    score_regression,
)
from fedbayes.inference.local.density.quadrature import NODES_FINER
from fedbayes.inference.local.density.tilted import (
    LocalSite,
    Tilted,
    cold_chains,
    cold_start,
    with_evidence,
)
from fedbayes.inference.mode import ModeState
from fedbayes.inference.mode import Own as OfMode
from fedbayes.inference.own_site import Counted, OwnSite
from fedbayes.inference.starts import no_modes
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked, where, whitener
from fedbayes.numerics.host import whiteners
from fedbayes.problem.client import Client
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.roster import Roster

_SETTLED = 0.5  # change of the global, in posterior sds, below which a large k-hat sends a client to NUTS
_NEAR = 2.0  # change above which draws are a waste, because Laplace's sites lead as far
_MORE = 8  # times as many draws for a client whose noise is too large
_MANY_LOCALS = 16  # of a client or an independent group: with Hessians a draw given the globals costs many plain ones
_MANY_SINGLES = 16  # single locals whose noise more draws of the globals would leave as it is
_FEW = 0.1  # share of the clients with locals that may draw them given the globals, and the others not
_BENDS = 0.05  # of the prior's precision, at least, that of a cavity whose mode a search is sure to find
_MUCH_WORK = 1e7  # rows times draws of a round, about a second, from which that is worth compiling one more program

_COVARIANCES: Mapping[str, Estimator] = {"score": score_regression, "sample": covariance_inversion}


def make_solvers(config: Options, num_samples: int) -> dict[str, solvers.Solver]:
    """The local solvers a configuration may use, its first choice first."""
    estimator = diagonal_regression if config.family == "diagonal" else _COVARIANCES[config.estimator]
    known = {
        "importance": solvers.importance(num_samples=num_samples, estimator=estimator),
        "nested": solvers.nested(num_samples=num_samples, estimator=estimator),
        "importance_more": solvers.importance(num_samples=_MORE * num_samples, estimator=estimator),
        "nested_more": solvers.nested(
            num_samples=_MORE * num_samples, estimator=estimator, many=_MANY_SINGLES, nodes=NODES_FINER
        ),
        "nuts": solvers.nuts(num_samples=max(1024, num_samples), num_warmup=30, estimator=estimator),
        "laplace": solvers.laplace(),
        "variational": solvers.variational(num_samples=num_samples),
    }
    auto = ("importance", "nested", "importance_more", "nested_more", "nuts")
    names = auto if config.solver == "auto" else (config.solver,)
    return {name: known[name] for name in names}


def _used_solvers(config: Options, roster: Roster, num_samples: int) -> dict[str, solvers.Solver]:
    """The solvers of a fit.

    Where draws are much work, clients without locals begin with Laplace approximations. Where all clients have locals,
    in groups of a few that are independent, they begin with nested draws: plain ones are seldom precise enough, and are
    one more program to compile.
    """
    work = roster.rows.sum() * num_samples * config.num_replicates
    known = make_solvers(config, num_samples)
    if config.solver != "auto":
        return known
    far = config.start(roster) != "mode"
    if far and work > _MUCH_WORK and not roster.num_locals.any():
        return {"laplace": solvers.laplace(), **known}
    kinds = {each: each.group_size for each in set(roster.locals)}  # of many clients there are few
    if all(0 < kinds[each] < _MANY_LOCALS for each in roster.locals):
        return {name: solver for name, solver in known.items() if not name.startswith("importance")}
    return known


def algorithm(config: Options, roster: Roster) -> Algorithm:
    """EP for the clients of a roster."""
    num_samples, size = config.draws_for(roster.size), roster.size
    family, has_locals = Family(config.family == "diagonal"), bool(np.any(roster.num_locals))
    refine = solvers.importance(num_samples=num_samples, estimator=score_regression)
    most_noise = NOISE_TARGET**2 * size / roster.num_clients

    def broadcast(state: EPState) -> tuple[Shared, Told]:
        recount = state.recount
        shared = Shared(state.mean(), packed(state.global_()), state.opening, state.round, recount.running)
        return shared, Told(state.counted, recount.running & ~recount.heard)

    def update(solver: solvers.Solver) -> Update:
        return Update(
            run=partial(local_update, solver, family, has_locals, most_noise),
            inputs=lambda key, shared, num_locals: solver.inputs(key, size + num_locals),
            in_turn=solver.in_turn,
            work=None if solver.work is None else partial(_work_of, solver.work),
        )

    return Algorithm(
        name="EP",
        init=partial(_init, roster, refine, family, config.start(roster) == "laplace", config.num_starts),
        broadcast=broadcast,
        init_client=lambda client, shared, key: _own(client, OwnSite.neutral(size)),
        continue_client=lambda client, shared, key, before: _own(client, _in_family(before, family)),
        updates={name: update(solver) for name, solver in _used_solvers(config, roster, num_samples).items()},
        aggregate=partial(_aggregate, config, family, roster.prior, refine),
        choose=partial(_choose, config, roster.num_locals),
        asked_at=_asked_at,
        found_at=None if has_locals or family.diagonal else partial(_found_at, roster.prior),
    )


def _work_of(solving: Callable[[Client], Work], shared: Shared, client: Client) -> Work:
    return solving(client)


def _asked_at(shared: Shared) -> Array:
    """Where a client begins its search, and the mean of the Gaussian that it makes its cavity of."""
    everybody = unpacked(shared.global_)
    return jnp.stack([shared.mean, jnp.linalg.solve(everybody.precision, everybody.shift)])


def _found_at(prior: Prior, shared: Shared, total: Change) -> Array:
    """In an opening a client's answer is an expansion at the mode of its cavity, the global, times its factor.

    From wherever its search began, if the cavity bends as much as the prior: a search ends where a step would gain next
    to nothing, and where nothing bends that may be far from the mode.
    """
    if prior.spread is None or not np.all(np.isfinite(prior.spread[1])):
        return _asked_at(shared)
    scale, cavity = prior.spread[1], unpacked(shared.global_)
    bends = jnp.linalg.eigvalsh(scale[:, None] * cavity.precision * scale)[0] > _BENDS
    everybody = cavity + unpacked(total.site)
    mode = jnp.linalg.solve(everybody.precision, everybody.shift)
    return jnp.where(shared.opening & bends, jnp.broadcast_to(mode, (2, len(mode))), _asked_at(shared))


def _own(client: Client, site: OwnSite) -> Own:
    return Own(site, cold_chains(cold_start(site.old.size + client.num_locals)), jnp.asarray(False))


def _in_family(before: OfMode, family: Family) -> OwnSite:
    """A client's expansions as sites."""
    assert isinstance(before.site, OwnSite)  # noqa: S101
    site = before.site
    old, new, later = (packed(family.within(unpacked(each))) for each in (site.old, site.new, site.later))
    return site._replace(old=old, new=new, later=later)


def _init(
    roster: Roster,
    refine: solvers.Solver,
    family: Family,
    opening: bool,
    num_starts: int,
    key: Array,
    previous: ModeState | None,
) -> EPState:
    """Flat sites, or the convex parts of the clients' expansions at the mode, where the global is then proper.

    They leave every cavity at least as precise as the prior.
    """
    start = _start(roster.prior, refine, key)
    state = EPState.start(start, _whitener_of(start), roster.num_clients, opening)
    if previous is None:
        return state if num_starts == 1 else state._replace(modes=no_modes(num_starts, roster.size))
    assert isinstance(previous.convex, Gaussian)  # noqa: S101
    state = state._replace(modes=previous.modes)
    sites = family.within(previous.convex)
    moved = state._replace(direction=sites, step=jnp.ones(()), counted=previous.counted())
    moved = moved._replace(white=whitener(moved.global_().precision), round=previous.round)
    state = state._replace(round=previous.round)
    proper = jnp.all(jnp.isfinite(moved.white))
    return jax.tree.map(partial(jnp.where, proper), moved, state)


def _start(prior: Prior, refine: solvers.Solver, key: Array) -> Gaussian:
    """The prior, or what it looks like as a whole where it is no Gaussian; the rounds refine that."""
    if prior.gaussian is not None:
        return prior.gaussian
    if prior.spread is not None:
        centre, scale = prior.spread
        with np.errstate(all="ignore"):
            precision = 1.0 / scale**2
        if np.all(np.isfinite(centre * precision)) and np.all(precision > 0.0):
            return Gaussian(centre * precision, np.diag(precision), np.zeros(()))  # type: ignore[arg-type]
    wide = Gaussian(jnp.zeros(prior.size), 0.01 * jnp.eye(prior.size), jnp.zeros(()))
    return _prior_site(prior, refine, wide, wide, key).site


def _whitener_of(start: Gaussian) -> Array:
    """Of the first global; a prior that is known before the fit costs no program."""
    if isinstance(start.precision, jax.core.Tracer):
        return whitener(start.precision)
    return jnp.asarray(whiteners(np.asarray(start.precision)[None])[0])


def _aggregate(
    config: Options,
    family: Family,
    prior: Prior,
    refine: solvers.Solver,
    state: EPState,
    replies: Replies,
    key: Array,
) -> tuple[EPState, Info]:
    """The server's half of a round: refine the prior's site, choose the step, take it.

    While the sites are counted anew, and where nobody's reply can be used, nothing moves.
    """
    old, used, total = state.global_(), replies.used, replies.total
    counting, lost = state.recount.running, total.lost > 0.0
    plain = ~counting & jnp.any(used)
    noise = jnp.where(plain, jnp.sqrt(total.noise / prior.size), state.noise)
    wanted = damping(noise, state.change) if config.damping is None else jnp.asarray(config.damping)
    wanted = jnp.where(state.opening, 1.0, jnp.minimum(wanted, state.ceiling))
    moved, step = largest_proper_step(_ahead(family, prior, refine, state, total, key), wanted)
    still = step <= 0.0  # nothing has moved
    kl = jnp.where(plain & ~still, divergence(moved, state, old), 0.0)
    # ``sqrt(2 KL / d)``: for a shift of the mean, its root mean square in posterior sds
    rms = jnp.sqrt(jnp.maximum(2.0 * kl, 0.0) / prior.size)
    change = jnp.where(still, jnp.inf, rms / step)
    change = jnp.where(plain, jnp.where(jnp.isfinite(change), change, jnp.inf), state.change)
    oscillates = plain & (change > state.change) & (change > ABOVE_NOISE * noise) & (change > config.tolerance)
    # where the noise has halved, as by a better solver, the last change says nothing of how far this one could shrink
    comparable = jnp.where(state.noise <= 2.0 * noise, state.change, jnp.inf)
    at_noise = noise_limited(noise, change, comparable, step)
    left = remaining(change, state.change, noise, state.noise, step)
    alone = ~jnp.isfinite(state.change) & (change > 2.0 * noise)  # one round tells of its own change only
    far = jnp.where(alone, change, left) > ERROR_LIMIT  # false where that is not known
    ceiling = jnp.where(oscillates & (config.damping is None), 0.7 * state.ceiling, state.ceiling)
    fine = makes_progress(noise, change, state.change, step) | state.opening | ~jnp.all(used)
    stuck = jnp.where(counting, state.stuck, jnp.where(fine, 0.0, state.stuck + 1.0))
    known = jnp.where(state.opening, jnp.inf, change)  # the opening round's change says nothing of the next one's
    moved = where_state(plain, moved, state)._replace(
        ceiling=ceiling,
        change=known,
        noise=noise,
        opening=jnp.asarray(False),
        stuck=stuck,
        counted=_counted(state, replies.used & plain, step),
    )
    moved = _recounted(moved, replies, family, counting, lost)
    moved = moved._replace(round=state.round + 1)
    info = {
        "kl": kl,
        "change": change,
        "monte_carlo_noise": noise,
        "step": jnp.where(plain, step, 0.0),
        "stuck": stuck,
        "hopeless": stuck >= HOPELESS,
        "converged": plain & ~lost & ((change <= config.tolerance) | at_noise) & ~far & ~state.opening,
        "proper": jnp.all(jnp.isfinite(moved.white)),
    }
    return moved, info


def where_state(condition: Array, one: EPState, other: EPState) -> EPState:
    """One state or another."""
    found: EPState = jax.tree.map(partial(jnp.where, condition), one, other)
    return found


def _ahead(family: Family, prior: Prior, refine: solvers.Solver, state: EPState, total: Change, key: Array) -> EPState:
    """The state with the base and the direction of the next step."""
    old, own = state.global_(), state.prior_site()
    refined = Gaussian.neutral(prior.size)
    if prior.gaussian is None:
        found = _prior_site(prior, refine, old - own, old, key)
        refined = where(_usable(found), found.site - own, refined)
    direction = family.read(total.site) + refined
    return state._replace(base=old, direction=direction, prior=own, prior_direction=refined)


def _counted(state: EPState, now: Array, step: Array) -> Counted:
    """Whose reply of this round counts, and how far."""
    return Counted(jnp.where(now, state.round, state.counted.round), jnp.where(now, step, state.counted.step))


def _recounted(state: EPState, replies: Replies, family: Family, counting: Array, lost: Array) -> EPState:
    """Sites counted anew go into the sum; once all are in it, it is the global. A count begins where a site is lost.

    A client that has sent its whole site proposes it as its next one, so its reply counts in full: a client that had
    lost its site is known again by that.
    """
    recount = state.recount
    asked = replies.used & ~recount.heard & counting
    rounds, steps = jnp.where(asked, state.round, state.counted.round), jnp.where(asked, 1.0, state.counted.step)
    state = state._replace(counted=Counted(rounds, steps))
    sites = where(counting, recount.sites + family.read(replies.total.site), recount.sites)
    heard = recount.heard | asked
    complete = counting & jnp.all(heard)
    flat = Gaussian.neutral(sites.size)
    base = where(complete, state.prior_site() + sites, state.base)
    whole = state._replace(
        base=base, prior=state.prior_site(), direction=flat, prior_direction=flat, step=jnp.zeros(())
    )
    state = where_state(complete, whole._replace(white=whitener(base.precision)), state)
    running = (counting & ~complete) | (lost & ~counting)
    fresh = Recount(running, where(running & counting, sites, flat), heard & running & counting)
    return state._replace(recount=fresh)


def _choose(
    config: Options, num_locals: np.ndarray, variants: Sequence[str], infos: Mapping[str, np.ndarray]
) -> list[str]:
    """Draws from near the fixed point on; nested ones where locals make the plain ones fail.

    Once the global has settled, more draws, or NUTS. Of single clients it reads the result codes alone.
    """
    if config.solver != "auto":
        return list(variants)
    if "laplace" in variants:
        return ["laplace" if np.max(infos["change"]) > _NEAR else "importance"] * len(variants)
    codes, has_locals = infos["code"].reshape(len(variants), -1), num_locals > 0
    heavy_tailed = codes == ResultCode.UNRELIABLE
    change, noise = np.max(infos["change"]), np.max(infos["monte_carlo_noise"])
    noisy = (noise > NOISE_TARGET) & ((heavy_tailed | (codes == ResultCode.NOISY)).mean(axis=1) > 0.5)
    plain = np.asarray(variants) == "importance"
    heavy = heavy_tailed.mean(axis=1) > 0.5  # in most replicates
    fails = np.where(num_locals < _MANY_LOCALS, heavy_tailed.any(axis=1), heavy)
    needed = plain & has_locals & (fails | noisy)
    given = needed | (has_locals & ~plain)  # those who draw them given the globals already count, too
    if given.sum() > _FEW * has_locals.sum():  # the others would follow one by one, and each takes a round
        needed = plain & has_locals
    chosen = np.where(needed, "nested", variants)
    if change > max(_SETTLED, ABOVE_NOISE * noise):  # early cavities are wide, and say little about the later ones
        return chosen.tolist()
    chosen = np.where(plain & ~has_locals & noisy, "importance_more", chosen)
    nested = np.asarray(variants) == "nested"
    chosen = np.where(nested & (noisy | heavy), "nested_more", chosen)  # a k-hat near its limit is noise, too
    return np.where(heavy & ~(plain & has_locals) & ~nested, "nuts", chosen).tolist()


def startable(state: ModeState) -> Array:
    """Whether the convex parts of the expansions make a proper global."""
    assert isinstance(state.convex, Gaussian)  # noqa: S101
    return jnp.all(jnp.isfinite(whitener((state.prior + state.convex).symmetrised().precision)))


def _usable(found: LocalSite) -> Array:
    return jnp.all(jnp.isfinite(found.site.shift)) & jnp.all(jnp.isfinite(found.site.precision))


def _prior_site(prior: Prior, solver: solvers.Solver, cavity: Gaussian, everybody: Gaussian, key: Array) -> LocalSite:
    """The prior refined at the server, as if it were one more client."""
    mean, _ = everybody.moments()
    found = solver.run(Tilted(prior, cavity.symmetrised()), cold_chains(mean), solver.inputs(key, prior.size))
    return found._replace(site=with_evidence(found.site, cavity, found.log_evidence))
