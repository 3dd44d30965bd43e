"""The shapes in the signatures of `inference/local` are those of what goes in and comes out, for one tiny client.

Functions are traced, not run, which is enough to know every shape and compiles nothing.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jaxtyping import TypeCheckError

import fedbayes as fb
from fedbayes.contract.locals_from import Wanted
from fedbayes.inference.local import after, log_factors, marginal, solvers, subposterior
from fedbayes.inference.local.density import conditional, laplace, moments, tilted
from fedbayes.inference.local.density.moments import SiteError, TiltedDraws
from fedbayes.inference.local.density.tilted import Tilted, Warm
from fedbayes.inference.local.sampling import draws, nested, nuts, resampling
from fedbayes.inference.local.steps import coordinates, descent, energy, sgd
from fedbayes.inference.local.steps.coordinates import Coordinates, LocalCoordinates
from fedbayes.inference.local.subposterior import Subposterior
from fedbayes.inference.own_site import EVERYBODY
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.client import Client
from fedbayes.problem.problem import make_problem

MODULES = [
    *(after, log_factors, marginal, solvers, subposterior),
    *(conditional, laplace, moments, tilted),
    *(draws, nested, nuts, resampling),
    *(coordinates, descent, energy, sgd),
]
KEY = jax.random.key(0)
D, M, N, ROWS = 2, 3, 16, 6
P = D + M


def grouped(y) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(mu, tau).expand([M]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.sum(z), 1.0), obs=y)


def plain(y) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, tau), obs=y)


@cache
def problem(model):
    return make_problem(model, {"a": {"y": np.linspace(-1.0, 1.0, ROWS)}}, rows=True)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """The problems are made before anything is traced."""
    with jax.enable_x64(True):
        problem(grouped), problem(plain)
        yield


def client(model=grouped) -> Client:
    return problem(model).client("a")


def cavity() -> Gaussian:
    return Gaussian(jnp.zeros(D), jnp.eye(D), jnp.zeros(()))


def target(model=grouped) -> Tilted:
    return Tilted(client(model), cavity())


def guessed() -> Tilted:
    return target()._replace(guess=jnp.ones(D), spread=jnp.eye(D))


def cold(size: int = P) -> Warm:
    return tilted.cold_chains(tilted.cold_start(size))


def weighted() -> TiltedDraws:
    even, scalar = jnp.full(N, 1.0 / N), jnp.asarray(float(N))
    return TiltedDraws(jnp.ones((N, P)), jnp.ones((N, P)), even, jnp.ones(P), jnp.eye(D), jnp.ones((D, M)), scalar)


def regression(draws: TiltedDraws, cavity: Gaussian) -> moments.SiteEstimate:
    """The estimator as it is when it is called, checked or not."""
    return moments.score_regression(draws, cavity)


def shared(white) -> Coordinates:
    return Coordinates(jnp.zeros(D), white)


def as_it_is(function: Callable) -> Callable:
    return function


def solve(solver: solvers.Solver, of: Tilted, check: Callable = as_it_is, **other: Any) -> Any:
    """The site, also with other inputs than the solver's."""
    size = D + of.factor.num_locals
    inputs = other.get("inputs", check(solver.inputs)(KEY, size))
    return check(solver.run)(of, cold(size), inputs)


def summed_up(sampler: subposterior.Sampler, check: Callable = as_it_is, **other: Any) -> Any:
    """The summary, also from another start."""
    whole = problem(grouped)
    own = Subposterior(whole.client("a"), whole.prior, jnp.asarray(1.0))
    start = other.get("start", tilted.cold_start(P))
    return check(sampler.run)(own, start, check(sampler.inputs)(KEY, P))


def ask(name: str, shared: Any, model=grouped) -> Any:
    update, own = after.AFTER[name], client(model)
    return update.run(shared, cavity(), (), own, update.inputs(KEY, shared, own.num_locals))


def asked_later() -> Any:
    update = after.in_sum(after.forming_cavities(after.AFTER["log_likelihood"], fb.EP(), EVERYBODY))
    return update.run(jnp.ones((N, D)), cavity(), (), client(), update.inputs(KEY, jnp.ones((N, D)), M))


def moved(white) -> Any:
    """All that the shared coordinates do."""
    known, theta = shared(white), jnp.ones(D)
    known.globals_at(theta), known.inverse(), known.whitened(jnp.ones((N, D))), known.pulled_back(theta)
    known.curvature(jnp.eye(D)), known.from_whitened(theta, jnp.eye(D))
    return known.of_whitened(theta, jnp.eye(D))


def energy_of(**options: Any) -> energy.Energy:
    own, one = coordinates.local_coordinates(client(), shared(jnp.eye(D))), jnp.ones(())
    return energy.Energy(problem(grouped).prior, one, one, client(), shared(jnp.eye(D)), own, **options)


def walked(**options: Any) -> Any:
    steps = sgd.Steps(1, 2, 4, average=True, noisy=True)
    return sgd.gradient_samples(
        energy_of(**options), jnp.ones(D), jnp.ones(M), KEY, step_size=jnp.asarray(0.1), steps=steps
    )


def descended() -> Any:
    def evaluate(step, position, carry):
        return jnp.sum(position**2), 2.0 * position, carry

    return descent.descend(evaluate, jnp.ones(D), (), optimizer=optax.sgd(0.1), num_steps=jnp.asarray(2))


def wanted() -> Wanted:
    return Wanted(jnp.ones(D), jnp.zeros(N))


def many() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Globals, a shift, and picks."""
    return jnp.ones((N, D)), jnp.full(M, 0.3), jnp.full(N, 0.5)


RUNS: dict[str, Callable[[], Any]] = {
    "the update for cavities": lambda: ask("cavity", jnp.ones(())),
    "the update for log-likelihoods": lambda: ask("log_likelihood", jnp.ones((N, D))),
    "the update for log-likelihoods without locals": lambda: ask("log_likelihood", jnp.ones((N, D)), plain),
    "the update for locals": lambda: ask("given", jnp.ones((N, D))),
    "the update for importance draws": lambda: ask("resampled", wanted()),
    "the update for NUTS": lambda: ask("chained", wanted()),
    "updates made of others": asked_later,
    "locals integrated out": lambda: marginal.integrate_locals(client(), jnp.ones(D), jnp.ones(M), N),
    "slopes by another position's weights": lambda: marginal.integrate_locals(
        client(), jnp.ones(D), jnp.ones(M), N
    ).slope_for(jnp.zeros(())),
    "a subposterior given the globals": lambda: Subposterior(client(), problem(grouped).prior, jnp.ones(())).given(
        jnp.ones(D)
    )(jnp.ones(M)),
    "locals at their mode": lambda: marginal.profile_locals(client(), jnp.ones(D), jnp.ones(M)),
    "laplace": lambda: solve(solvers.laplace(), guessed()),
    "importance": lambda: solve(solvers.importance(num_samples=N, estimator=regression), target()),
    "nested": lambda: solve(solvers.nested(num_samples=N, estimator=regression), guessed()),
    "nested without locals": lambda: solve(solvers.nested(num_samples=N, estimator=regression), target(plain)),
    "nuts": lambda: solve(solvers.nuts(num_samples=N, num_warmup=2, estimator=regression), target()),
    "variational": lambda: solve(solvers.variational(num_samples=N), target()),
    "the evidence of a site": lambda: tilted.with_evidence(cavity(), cavity(), jnp.zeros(())),
    "a site without error": lambda: SiteError.none(D).noise(jnp.eye(D)),
    **{
        f"the estimator {name}": lambda name=name: getattr(moments, name)(weighted(), cavity())
        for name in ("covariance_inversion", "diagonal_regression", "shrunk_covariance", "proper_regression")
    },
    "opposite draws": lambda: moments.score_regression(weighted()._replace(sides=2), cavity()),
    "control variates without locals": lambda: moments.control_variates(weighted(), P),
    **{
        f"a subposterior by {name}": lambda name=name, kept=kept: summed_up(
            subposterior.samplers(name, N, kept, moments.proper_regression)[name]
        )
        for name, kept in {"laplace": 0, "importance": 8, "nuts": 8}.items()
    },
    "coordinates by a matrix": lambda: moved(jnp.eye(D)),
    "coordinates by a vector": lambda: moved(jnp.ones(D)),
    "no coordinates of locals": lambda: coordinates.local_coordinates(client(plain), shared(jnp.eye(D))),
    "steps": walked,
    "steps by batches": lambda: walked(batch_size=2),
    "steps with clipped rows": lambda: walked(batch_size=2, clip=1.0),
    "clipped rows beside the prior": lambda: energy_of(clip=1.0).clipped_slopes(jnp.ones(D), jnp.ones(M), KEY),
    "descent": descended,
    "batches": lambda: descent.make_batches(jnp.ones(ROWS, bool), KEY, 2, 3).at(jnp.asarray(1), 2),
    "the factor of averages": lambda: sgd.covariance_factor(jnp.asarray(ROWS), 2, 3),
    "modes of single locals": lambda: conditional.find_singles(lambda z: -jnp.sum(z**2), jnp.ones(M)),
    "a client's own mode": lambda: after.own_mode(client(), D),
    "what is counted before work": lambda: (
        log_factors.work_of_log_factors(client(), N),
        marginal.work_of_marginal(client(), N),
        nested.work_of_nested(client(), N, nested.MANY_SINGLES, nested.quadrature.NODES),
    ),
}
# each has one wrong shape, or a wrong kind of number or key
REFUSED: dict[str, Callable[[], Any]] = {
    "globals in three dimensions": lambda: log_factors.log_factors(client(), jnp.ones((N, D + 1)), many()[1]),
    "a shift for too many locals": lambda: log_factors.log_factors(client(), many()[0], jnp.ones(M + 1)),
    "too few picks": lambda: log_factors.locals_given(client(), *many()[:2], jnp.ones(N - 1), jnp.ones((N, M))),
    "locals in a matrix": lambda: marginal.integrate_locals(client(), jnp.ones(D), jnp.ones((1, M)), N),
    "many globals at once": lambda: marginal.profile_locals(client(), jnp.ones((N, D)), jnp.ones(M)),
    "a start that is a number": lambda: laplace.find_mode(jnp.sum, jnp.ones(())),
    "groups that are not whole numbers": lambda: conditional.find_conditional(
        jnp.sum, jnp.ones(M), jnp.ones((1, M)), max_steps=1
    ),
    "single locals in a matrix": lambda: conditional.find_singles(jnp.sum, jnp.ones((1, M))),
    "a step size for each chain": lambda: draws.by_importance(
        target(), cold()._replace(step_size=jnp.ones(4)), jnp.ones(P), num_samples=N
    ),
    "a mode with another curvature": lambda: tilted.laplace_site(
        laplace.Mode(jnp.ones(P), jnp.ones(()), jnp.eye(D), jnp.eye(P), jnp.array(True)), cavity()
    ),
    "a spread that is a vector": lambda: (
        target()._replace(guess=jnp.ones(D), spread=jnp.ones(D)).log_cavity(jnp.ones(P))
    ),
    "positions one by one": lambda: target().log_cavities(jnp.ones(P)),
    "a density at many points": lambda: target().log_density(jnp.ones((N, P))),
    "a curvature of other size": lambda: tilted.site_of_gaussian(jnp.ones(D), jnp.eye(P), cavity()),
    "evidences of many": lambda: tilted.with_evidence(cavity(), cavity(), jnp.zeros(N)),
    "weights of other draws": lambda: moments.score_regression(weighted()._replace(weight=jnp.ones(N + 1)), cavity()),
    "scores of the globals alone": lambda: moments.score_regression(
        weighted()._replace(score=jnp.ones((N, D))), cavity()
    ),
    "slopes of other size": lambda: moments.symmetric_slope(jnp.eye(D), jnp.eye(D), jnp.eye(P)),
    "a variance for a covariance": lambda: SiteError.none(D).noise(jnp.ones(D)),
    "two shifts": lambda: draws.by_importance(target(), cold(), jnp.ones((2, P)), num_samples=N),
    "two keys": lambda: draws.importance_inputs(jax.random.split(KEY), P),
    "a raw key": lambda: draws.nuts_inputs(jax.random.key_data(KEY), P),
    "inputs in another order": lambda: draws.by_nuts(
        target(), cold(), (KEY, jnp.ones(P)), num_samples=N, num_warmup=2, num_proposed=N
    ),
    "a shift that is a number": lambda: nested.nested_site(
        target(), cold(), jnp.ones(()), num_samples=N, estimator=regression
    ),
    "an order of real numbers": lambda: resampling.equal_weights(
        weighted(), resampling.Resampling(jnp.ones(()), jnp.ones(N), jnp.arange(4))
    ),
    "globals beside locals": lambda: shared(jnp.eye(D)).globals_at(jnp.ones((N, D))),
    "a map to fewer globals": lambda: shared(jnp.ones((1, D))).globals_at(jnp.ones(D)),
    "one theta where many are meant": lambda: shared(jnp.eye(D)).whitened(jnp.ones(D)),
    "a slope of the wrong way": lambda: LocalCoordinates(jnp.ones(M), jnp.ones((D, M)), jnp.eye(M)).locals_at(
        jnp.ones(D), jnp.ones(M)
    ),
    "step sizes of many": lambda: sgd.gradient_samples(
        energy_of(), jnp.ones(D), jnp.ones(M), KEY, step_size=jnp.ones(2), steps=sgd.Steps(1, 1, 1, True, True)
    ),
    "a mask of numbers": lambda: descent.make_batches(jnp.ones(ROWS), KEY, 2, 3),
    "a batch of no whole number": lambda: descent.make_batches(jnp.ones(ROWS, bool), KEY, 2, 3).at(jnp.ones(()), 2),
    "a share for each global": lambda: Subposterior(client(), problem(grouped).prior, jnp.ones(D)).log_factor(
        jnp.ones(P)
    ),
}


def test_all_shapes_are_those_of_the_signatures_and_every_public_function_is_called(shapes, monkeypatch) -> None:
    called = shapes.switch_on(monkeypatch, MODULES)
    for run in RUNS.values():
        jax.eval_shape(run)
    public = {name for module in MODULES for name, _ in shapes.members(module)}
    protocol = {f"tilted.Factor.{name}" for name in ("log_factor", "given", "at_many")}  # they are the client's own
    assert called == public - protocol


@pytest.mark.parametrize("name", REFUSED)
def test_another_shape_is_refused(shapes, monkeypatch, name) -> None:
    shapes.switch_on(monkeypatch, MODULES)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        jax.eval_shape(REFUSED[name])


SOLVERS = {
    "laplace": solvers.laplace(),
    "importance": solvers.importance(num_samples=N, estimator=regression),
    "nested": solvers.nested(num_samples=N, estimator=regression),
    "nuts": solvers.nuts(num_samples=N, num_warmup=2, estimator=regression),
    "variational": solvers.variational(num_samples=N),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_what_runs_inside_a_solver_is_checked(shapes, name) -> None:
    jax.eval_shape(lambda: solve(SOLVERS[name], target(), shapes.checked))
    with pytest.raises(TypeCheckError, match="parameter 'inputs'"):
        jax.eval_shape(lambda: solve(SOLVERS[name], target(), shapes.checked, inputs=jnp.ones((1, P))))


@pytest.mark.parametrize("name", ["laplace", "importance", "nuts"])
def test_what_sums_up_a_subposterior_is_checked(shapes, name) -> None:
    sampler = subposterior.samplers(name, N, 8, moments.proper_regression)[name]
    jax.eval_shape(lambda: summed_up(sampler, shapes.checked))
    with pytest.raises(TypeCheckError, match="parameter 'start'"):
        jax.eval_shape(lambda: summed_up(sampler, shapes.checked, start=jnp.ones((1, P))))


def test_a_planted_wrong_result_is_caught(shapes, monkeypatch) -> None:
    """The diagonal of a precision."""
    monkeypatch.setattr(moments, "symmetrised", jnp.diagonal)
    shapes.switch_on(monkeypatch, MODULES)
    with pytest.raises(TypeCheckError, match="checking the return value"):
        jax.eval_shape(lambda: solve(solvers.laplace(), target()))


def test_a_planted_wrong_field_is_caught(shapes, monkeypatch) -> None:
    """The evidence by each draw, not by all."""
    monkeypatch.setattr(draws, "log_mean_exp", lambda values: values)
    shapes.switch_on(monkeypatch, MODULES)
    with pytest.raises(TypeCheckError, match="log_evidence"):
        jax.eval_shape(lambda: solve(solvers.importance(num_samples=N, estimator=regression), target()))
