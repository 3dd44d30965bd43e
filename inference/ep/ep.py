"""Federated expectation propagation with Gaussian sites (Algorithms 3.2 and 3.3 of Yue 2023, completed).

The posterior of the globals is ``q(theta) = p(theta) prod_k s_k(theta)`` with one Gaussian site per client. A round,
for client k:

    cavity      q / s_k                             natural parameters subtract
    tilted      (q / s_k) f_k(theta, z)             z: the client's local latents
    new site    moment match of the tilted density, divided by the cavity

The message is the new site itself; it replaces the last one, so a lost or repeated reply can't break the product. The
server takes the step ``s_k <- s_k + eta (new - s_k)`` with ``eta`` small enough that the global and every cavity stay
proper.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import FederatedAlgorithm, Info, Phase
from fedbayes.errors import ResultCode
from fedbayes.gaussian import Gaussian, kl_divergence, where, whitener
from fedbayes.inference.ep.step import (
    NOISE_TARGET,
    EPState,
    all_proper,
    convex,
    damping,
    largest_proper_step,
    rms_change,
    smallest_eigenvalue,
)
from fedbayes.inference.local import solvers
from fedbayes.inference.local.moments import Estimator, covariance_inversion, diagonal_regression, score_regression
from fedbayes.inference.local.nuts import NUM_CHAINS
from fedbayes.inference.local.tilted import LocalSite, Tilted, Warm, cold_start
from fedbayes.inference.merging.merge import MergeState
from fedbayes.inference.merging.one_shot import OneShot, one_shot
from fedbayes.inference.mode import ModeState, federated_mode
from fedbayes.problem.clients import Client
from fedbayes.problem.prior import Prior
from fedbayes.problem.problem import Problem

_SETTLED = 0.5  # change of the global, in posterior sds, below which a large k-hat sends a client to NUTS


class SiteMessage(NamedTuple):
    """What a client sends: its site, ``d + d^2`` numbers (the matrix is symmetric), its log scale, and its noise.

    Attributes
    ----------
    site
        Natural parameters; the precision is a vector ``(d,)`` for diagonal sites.
    noise
        Expected squared Monte Carlo error of the global that this site causes, in posterior sds, summed over
        coordinates.
    """

    site: Gaussian
    noise: Array


class Shared(NamedTuple):
    """The broadcast: mean and variances of the global, for warm starts and for the scale of errors."""

    mean: Array
    variance: Array


@dataclass(frozen=True, kw_only=True)
class EP:
    """Federated expectation propagation.

    Parameters
    ----------
    num_draws
        Draws per client, round and replicate, a power of two; ``None``: 256, or more where the globals need more.
    solver
        Local solver: ``"auto"`` (importance sampling; eight times the draws for a client whose noise is too large, NUTS
        for one whose k-hat exceeds 0.7, once the global has settled), ``"importance"``, ``"nuts"``, ``"laplace"`` or
        ``"variational"``.
    damping
        Step ``eta`` in ``(0, 1]``; ``None``: one, or less where the Monte Carlo noise of all sites together asks for
        it, so that ``eta / (2 - eta) noise^2`` stays below ``0.1^2`` (in posterior sds).
    init
        ``"mode"``: sites start at the federated mode and curvature (a few Newton rounds, cheaper than EP's), where
        cavities are narrow and moments easy; ``"prior"``: at one, so that the first cavity is the prior; ``"laplace"``
        or ``"gaussian_product"``: at the clients' Gaussians of that one-shot combination, one round instead of several.
    moments
        ``"score"`` (score regression) or ``"covariance"`` (classical, for comparison).
    family
        ``"dense"`` sites, or ``"diagonal"`` for large dimensions: messages of ``2 d`` numbers, at the price of the
        global's correlations, without which heterogeneous clients can be far off.
    tolerance
        The fit has converged when a round changes the global by less, in posterior sds (root mean square, ``sqrt(2 KL /
        d)``).
    num_replicates
        Independent runs of the whole fit with other keys; they become the chains of the posterior, so that R-hat and
        Monte Carlo standard errors speak about the fit.
    """

    num_draws: int | None = None
    solver: Literal["auto", "importance", "nuts", "laplace", "variational"] = "auto"
    damping: float | None = None
    init: Literal["mode", "prior", "laplace", "gaussian_product"] = "mode"
    moments: Literal["score", "covariance"] = "score"
    family: Literal["dense", "diagonal"] = "dense"
    tolerance: float = 0.02
    num_replicates: int = 4
    needs_rows = False

    def __post_init__(self) -> None:
        if self.damping is not None and not 0.0 < self.damping <= 1.0:
            raise ValueError(f"`damping` is {self.damping}; it is the step of a round and lies in (0, 1].")
        for name, known in (
            ("solver", (*_SOLVERS, "auto")),
            ("init", ("mode", "prior", "laplace", "gaussian_product")),
            ("moments", tuple(_MOMENTS)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; it is one of {sorted(known)}.")
        if self.family not in ("dense", "diagonal"):
            raise ValueError(f"`family` is {self.family!r}; it is 'dense' or 'diagonal'.")
        if self.num_draws is not None and (
            not isinstance(self.num_draws, int) or self.num_draws < 16 or self.num_draws & (self.num_draws - 1)
        ):
            raise ValueError(
                f"`num_draws` is {self.num_draws}; quasi-random draws need a power of two from 16 on, such as 256."
            )
        if not isinstance(self.num_replicates, int) or self.num_replicates < 1:
            raise ValueError(f"`num_replicates` is {self.num_replicates}; it is a number of runs, at least one.")
        if not self.tolerance > 0.0:
            raise ValueError(f"`tolerance` is {self.tolerance}; it is a change in posterior sds, such as 0.02.")

    def draws_for(self, size: int) -> int:
        """Draws per client and round for d globals: well above the ``2 d + 2`` regressors."""
        if self.num_draws is None:
            return max(256, 1 << (8 * (size + 1) - 1).bit_length())
        if self.num_draws <= 2 * size + 2:
            raise ValueError(
                f"`num_draws` is {self.num_draws}, but {size} globals need more than {2 * size + 2} draws to be "
                f"regressed on. "
                f"Write at least {1 << (4 * size + 7).bit_length()}, or leave it out."
            )
        return self.num_draws

    def phases(self, problem: Problem) -> list[Phase]:
        """Newton rounds to the federated mode where the start asks for them, then EP."""
        num_draws = self.draws_for(problem.globals.size)
        ep = Phase(_algorithm(self, problem, num_draws), 30, False)
        if self.init == "mode":
            return [Phase(federated_mode(problem, num_draws=64), 25, True, main=False, once=True), ep]
        if self.init == "prior":
            return [ep]
        combination = OneShot(combine=self.init, num_replicates=1)
        return [one_shot(combination, problem)._replace(main=False, once=True), ep]


_MOMENTS: Mapping[str, Estimator] = {"score": score_regression, "covariance": covariance_inversion}
_SOLVERS = ("importance", "nuts", "laplace", "variational")


def make_solvers(config: EP, num_draws: int) -> dict[str, solvers.Solver]:
    """The local solvers a configuration may use, its first choice first."""
    estimator = diagonal_regression if config.family == "diagonal" else _MOMENTS[config.moments]
    known: dict[str, solvers.Solver] = {
        "importance": partial(solvers.importance, num_draws=num_draws, estimator=estimator),
        "importance_more": partial(solvers.importance, num_draws=8 * num_draws, estimator=estimator),
        "nuts": partial(solvers.nuts, num_draws=max(1024, num_draws), num_warmup=30, estimator=estimator),
        "laplace": solvers.laplace,
        "variational": partial(solvers.variational, num_draws=num_draws),
    }
    names = ("importance", "importance_more", "nuts") if config.solver == "auto" else (config.solver,)
    return {name: known[name] for name in names}


def _algorithm(config: EP, problem: Problem, num_draws: int) -> FederatedAlgorithm:
    prior, num_clients = problem.prior, len(problem.names)
    diagonal = config.family == "diagonal"
    chosen = make_solvers(config, num_draws)
    refine: solvers.Solver = partial(solvers.importance, num_draws=num_draws, estimator=score_regression)

    def init(key: Array, previous: ModeState | MergeState | None) -> EPState:
        infinity = jnp.full((), jnp.inf)
        start = prior.gaussian
        if start is None:  # a wide cavity: what a non-Gaussian prior looks like as a whole
            wide = Gaussian(jnp.zeros(prior.size), 0.01 * jnp.eye(prior.size), jnp.zeros(()))
            start = _prior_site(prior, refine, wide, wide, key).site
        state = EPState(Gaussian.neutral(prior.size, (num_clients,)), start, jnp.ones(()), infinity)
        if previous is None:
            return state
        # where the factors are not log-concave, the expansions at the mode may leave a cavity improper: then their
        # convex part may do
        bent = state._replace(sites=_in_family(convex(previous.sites, previous.best), diagonal))
        exact = state._replace(sites=_in_family(previous.sites, diagonal), prior=previous.prior)
        for candidate in (bent, exact):
            state = jax.tree.map(partial(jnp.where, all_proper(candidate)), candidate, state)
        return state

    def broadcast(state: EPState) -> tuple[Shared, Gaussian]:
        everybody = state.global_()
        mean, covariance = everybody.moments()
        cavities = jax.vmap(lambda site: (everybody - site).symmetrised())(state.sites)
        return Shared(mean, jnp.diagonal(covariance)), cavities

    return FederatedAlgorithm(
        name="EP",
        init=init,
        init_client=_init_client,
        broadcast=broadcast,
        local_updates={name: partial(_local_update, solver, diagonal) for name, solver in chosen.items()},
        choose=partial(_choose, config, prior.size),
        aggregate=partial(_aggregate, config, prior, refine),
        posterior=EPState.global_,
        reduction="stack",
    )


def _aggregate(
    config: EP, prior: Prior, refine: solvers.Solver, state: EPState, messages: SiteMessage, used: Array, key: Array
) -> tuple[EPState, Info]:
    """The server's half of a round: refine the prior's site, choose the step, take it."""
    old = state.global_()
    proposed = _expanded(messages.site) if config.family == "diagonal" else messages.site
    target = where(used, proposed, state.sites)
    prior_target = state.prior
    if prior.gaussian is None:
        refined = _prior_site(prior, refine, old - state.prior, old, key)
        prior_target = where(_usable(refined), refined.site, state.prior)
    noise = jnp.sqrt(jnp.sum(jnp.where(used, messages.noise, 0.0)) / prior.size)
    wanted = damping(noise, state.change) if config.damping is None else jnp.asarray(config.damping)
    wanted = jnp.minimum(wanted, state.ceiling)
    moved, step = largest_proper_step(state, target, prior_target, wanted)
    new = moved.global_()
    change = jnp.where(step > 0, rms_change(new, old) / step, jnp.inf)
    change = jnp.where(jnp.any(used), change, state.change)
    oscillates = (change > state.change) & (change > 4.0 * noise) & (change > config.tolerance)
    # no smaller change is to be had: the last two rounds differ by noise alone
    noise_limited = (change <= 5.0 * noise) & (change > 0.5 * state.change) & (noise <= NOISE_TARGET)
    ceiling = jnp.where(oscillates & (config.damping is None), 0.7 * state.ceiling, state.ceiling)
    moved = moved._replace(ceiling=ceiling, change=change)
    info = {
        "kl": kl_divergence(new, old),
        "change": change,
        "monte_carlo_noise": noise,
        "step": step,
        "smallest_cavity_eigenvalue": jax.vmap(lambda site: smallest_eigenvalue(new, new - site))(moved.sites),
        "converged": (change <= config.tolerance) | noise_limited,
    }
    return moved, info


def _choose(config: EP, size: int, variants: Sequence[str], infos: Mapping[str, np.ndarray]) -> list[str]:
    """More draws for noisy clients, NUTS for heavy-tailed ones, once the global has settled."""
    num_clients = len(variants)
    if config.solver != "auto":
        return list(variants)
    change, noise = np.max(infos["change"]), np.max(infos["monte_carlo_noise"])
    if change > max(_SETTLED, 5.0 * noise):  # early cavities are wide, and say little about the later ones
        return list(variants)
    per_client = {name: infos[name].reshape(num_clients, -1).mean(axis=1) for name in ("heavy_tailed", "noise")}
    noisy = (noise > NOISE_TARGET) & (per_client["noise"] >= NOISE_TARGET**2 * size / num_clients)
    chosen = np.where(noisy & (np.asarray(variants) == "importance"), "importance_more", variants)
    return np.where(per_client["heavy_tailed"] > 0.5, "nuts", chosen).tolist()  # of most replicates


def _init_client(client: Client, shared: Shared, key: Array) -> Warm:
    size = client.program.globals.size + client.num_locals
    return Warm(cold_start(size), jnp.full((NUM_CHAINS, size), jnp.nan), jnp.full((), 0.5))


def _local_update(
    solver: solvers.Solver,
    diagonal: bool,
    shared: Shared,
    cavity: Gaussian,
    warm: Warm,
    client: Client,
    key: Array,
) -> tuple[SiteMessage, Warm, Info]:
    tilted = Tilted(client, cavity)
    warm = warm._replace(position=_better_start(tilted, warm.position, shared.mean))
    found = solver(tilted, warm, key)
    scale = jnp.where(jnp.isfinite(shared.variance), shared.variance, 0.0)
    noise = scale @ found.shift_variance + 0.5 * scale @ found.precision_variance @ scale
    site = found.site
    if diagonal:
        site = Gaussian(site.shift, jnp.diagonal(site.precision), site.log_scale)
    broken = jnp.where(jnp.isfinite(tilted.log_density(warm.position)), ResultCode.IMPROPER, ResultCode.NOT_FINITE)
    code = jnp.where(_usable(found), ResultCode.OK, broken)
    heavy_tailed = ~jnp.asarray(found.reliable)
    info = {
        "code": jnp.where(heavy_tailed & (code == ResultCode.OK), ResultCode.UNRELIABLE, code),
        "heavy_tailed": heavy_tailed,
        "k_hat": found.k_hat,
        "effective_draws": found.effective,
        "influence": _influence(cavity, found.site),
        "noise": noise,
    }
    keep = _usable(found)
    new_warm = jax.tree.map(lambda new, old: jnp.where(keep, new, old), found.warm, warm)
    return SiteMessage(site, jnp.where(jnp.isfinite(noise), noise, 0.0)), new_warm, info


def _better_start(tilted: Tilted, last: Array, mean: Array) -> Array:
    """Newton's start: the last mode, or the global mean with the last locals, whichever is likelier."""
    other = jnp.concatenate([jnp.where(jnp.isfinite(mean), mean, last[: mean.shape[0]]), last[mean.shape[0] :]])
    return jnp.where(tilted.log_density(other) >= tilted.log_density(last), other, last)


def _usable(found: LocalSite) -> Array:
    return jnp.all(jnp.isfinite(found.site.shift)) & jnp.all(jnp.isfinite(found.site.precision))


def _influence(cavity: Gaussian, site: Gaussian) -> Array:
    """How far the client moves everybody else's mean, in the cavity's sds (root mean square)."""
    white = whitener(cavity.precision)
    without = white.T @ (white @ cavity.shift)
    with_, _ = (cavity + site).moments()
    gap = with_ - without
    return jnp.sqrt(gap @ cavity.precision @ gap / cavity.size)


def _prior_site(prior: Prior, solver: Callable, cavity: Gaussian, everybody: Gaussian, key: Array) -> LocalSite:
    """The prior refined at the server, as if it were one more client."""
    mean, _ = everybody.moments()
    warm = Warm(mean, jnp.zeros((NUM_CHAINS, prior.size)), jnp.ones(()))
    return solver(Tilted(prior, cavity.symmetrised()), warm, jax.random.fold_in(key, 0))


def _expanded(site: Gaussian) -> Gaussian:
    return Gaussian(site.shift, jax.vmap(jnp.diag)(site.precision), site.log_scale)


def _in_family(sites: Gaussian, diagonal: bool) -> Gaussian:
    if not diagonal:
        return sites
    mask = jnp.eye(sites.size)
    return Gaussian(sites.shift, sites.precision * mask, sites.log_scale)
