"""How FA-LD's rounds become draws, and which chains are refused: at their start, or on their way."""

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Recording
from fedbayes.contract.state import RunState
from fedbayes.errors import FederatedError, ResultCode
from fedbayes.inference.fald.client import locals_of
from fedbayes.inference.fald.options import Options
from fedbayes.inference.fald.plan import Plan
from fedbayes.inference.fald.server import position
from fedbayes.inference.largest import largest_curvature_of
from fedbayes.problem.roster import Roster

_DIVERGED = {True: 1e6, False: 1e30}  # in posterior sds where coordinates are whitened, else in the model's units


def recording(config: Options, roster: Roster) -> Recording:
    """A draw every so many rounds, as the plan says; the chains are checked before and while they run."""

    def check(run: RunState) -> None:
        if run.rounds_in_phase == 0:
            _check_start(run, roster, config, plan_of(run))
        else:
            _check_alive(run, roster, config, plan_of(run))

    return Recording(
        draw=position,
        private_draw=locals_of,
        stride=lambda state: config.thinning or int(np.nan_to_num(_first(state.plan).rounds_per_draw, nan=1.0)),
        num_warmup=config.num_warmup,
        check=check,
    )


def plan_of(run: RunState) -> Plan:
    """The plan of a run's chains."""
    return _first(run.state.plan)


def _first(plan: Plan) -> Plan:
    """Of the first chain: it is the same for all."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], plan)


def _check_start(current: RunState, roster: Roster, config: Options, plan: Plan) -> None:
    """Refuse chains that can't start: a mode without curvature, an unstable step."""
    _check_curvature(current, config, plan)
    step = _step_at(config, plan, 0.0)
    if not 0.0 <= step < np.inf:
        raise ValueError(f"`step_size` gives {step} at iteration 0; a schedule gives positive numbers.")
    whose, curvature = largest_curvature_of(current, roster, float(plan.smoothness))
    limit = 2.0 / curvature
    if step > limit:
        raise ValueError(
            f"`step_size` is {step:.3g}, beyond stability: {whose} has curvature {curvature:.3g} in the shared "
            f"coordinates, which diverges above {limit:.3g}. Theory asks for at most {limit / 4:.3g}."
        )


def _check_curvature(current: RunState, config: Options, plan: Plan) -> None:
    known = (current.state.coordinates.white, current.state.position, plan.rounds_per_draw)
    # in whitened coordinates all directions have the curvature one: if not, it was all rounding
    flat = config.preconditioner == "dense" and config.step_size is None and plan.rounds_per_draw > config.max_rounds
    if flat or not all(np.all(np.isfinite(value)) for value in known):
        raise FederatedError(
            "The Newton rounds found no mode with positive curvature to start from. Give the globals proper priors, or "
            "write `FALD(init='zero', step_size=...)`."
        )
    if config.thinning is None and plan.rounds_per_draw > config.max_rounds:
        raise FederatedError(
            f"One draw would take {float(plan.rounds_per_draw):.2g} rounds, more than `max_rounds`, "
            f"{config.max_rounds}: some direction has next to no curvature. Write `preconditioner='dense'`, rescale "
            "the globals, or write `thinning=...`."
        )


def _step_at(config: Options, plan: Plan, iteration: float) -> float:
    """The step size at a local iteration; of the default and of ``"decaying"`` the first."""
    if not callable(config.step_size):
        return float(plan.step_size)
    step = np.asarray(config.step_size(jnp.asarray(iteration)))
    if step.shape != ():
        raise ValueError(
            f"`step_size` gives shape {step.shape} at iteration {iteration:g}; a schedule gives one number."
        )
    return float(step)


def _check_alive(current: RunState, roster: Roster, config: Options, plan: Plan) -> None:
    """Refuse to go on with chains that have diverged, or never had a gradient."""
    blind = np.any(current.history[-1]["code"] == ResultCode.NO_GRADIENT, axis=1)
    if np.any(blind):
        raise FederatedError(
            f"The gradient of client '{roster.names[int(np.argmax(blind))]}' is not finite where the chains start "
            f"({config.init}). Give the globals proper priors, rescale the data, or try the other `init`."
        )
    lost = np.any(np.all(current.history[-1]["code"] == ResultCode.NOT_FINITE, axis=0))
    far = _DIVERGED[config.init == "mode" and config.preconditioner != "none"]
    if not lost and np.all(np.abs(np.nan_to_num(current.state.position, nan=np.inf)) < far):
        return
    done = current.rounds_in_phase
    step = _step_at(config, plan, float(done * plan.local_steps))
    advice = "Write a smaller schedule" if callable(config.step_size) else f"Try `FALD(step_size={step / 4:.2g})`"
    whose, _ = largest_curvature_of(current, roster, np.nan)
    known = f"the largest curvature is that of {whose}" if config.init == "mode" else "or `init='mode'`"
    raise FederatedError(f"The chain diverged by round {done}, with step size {step:.3g}. {advice}; {known}.")
