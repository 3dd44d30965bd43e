"""What federated averaging ends with: a point, and up to some hundred globals a Laplace posterior around it."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from fedbayes.contract.answer import CLIENT, ERROR_LIMIT, REPLICATE, Diagnostic, GaussianAnswer, Verdict, bad_clients
from fedbayes.contract.client_locals import FromCavity, FromOwnPoint, FromStart
from fedbayes.contract.locals_from import LocalsFrom
from fedbayes.contract.state import RunState
from fedbayes.inference.fedavg.client import Own
from fedbayes.inference.fedavg.curvature import told_at_end
from fedbayes.inference.fedavg.fairness import Fairness
from fedbayes.inference.fedavg.optimum import distances_from_optimum
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import log_joint, product_of, spread_of_means
from fedbayes.problem.roster import Roster

if TYPE_CHECKING:
    import xarray as xr

GROUP = "group"  # a dimension of the diagnostics, by GIFAIR
DIAGNOSTICS: Mapping[str, Diagnostic] = {
    "objective": Diagnostic(
        (REPLICATE,),
        "minus the log joint density at the server's position before the round; with mini-batches the mean over the "
        "clients' steps",
        "nats",
    ),
    "gradient_norm": Diagnostic(
        (REPLICATE,), "norm of the gradient of the mean loss of a row at the server's position before the round"
    ),
    "moved": Diagnostic(
        (REPLICATE,),
        "how far the round moved the server, root mean square over the globals; NaN where no step could be taken",
        "unconstrained units",
    ),
    "change": Diagnostic(
        (REPLICATE,), "length of the move of the round before, root mean square over the globals", "posterior sds"
    ),
    "left": Diagnostic((REPLICATE,), "estimated distance to the rounds' fixed point", "posterior sds"),
    "pull": Diagnostic(
        (REPLICATE,), "how far the clients' steps led in the mean, over their step size", "unconstrained units"
    ),
    "alignment": Diagnostic((REPLICATE,), "cosine of the angle between that way and the one of the round before"),
    "step_size": Diagnostic(
        (REPLICATE,), "step size of plain gradient steps on the mean loss, before the schedule; otherwise one"
    ),
    "drift": Diagnostic(
        (CLIENT, REPLICATE),
        "how far the client's steps led from the server, root mean square over the globals",
        "unconstrained units",
    ),
    "curvature": Diagnostic((CLIENT, REPLICATE), "largest curvature of the client's loss at the start"),
    "group_loss": Diagnostic((REPLICATE, GROUP), "mean loss of the group's clients, each the mean of its rows", "nats"),
    "own_loss": Diagnostic((CLIENT, REPLICATE), "the client's mean loss at the end of its steps", "nats"),
    "group_rank": Diagnostic((REPLICATE, GROUP), "how many groups fare better, less how many fare worse"),
    "gap": Diagnostic(
        (REPLICATE,), "length of the Newton step to the mode, root mean square over the globals", "posterior sds"
    ),
}
_NOISE = (
    "They differ in their clients or batches, and end in noise as wide as their steps. Let the steps shrink, "
    "`schedule=lambda round: 1.0 / (1.0 + round / 20)`, or take more rows and clients."
)
_POINT = 1e-5  # width of a point, in unconstrained units
_TOO_LONG = (
    "The objective has risen: the steps are too long. Write smaller ones, at the clients (`step_size`, `optimizer`) or "
    "in `server_optimizer`."
)
_LATE = 10  # rounds that tell whether groups still take turns
_ALIGNED, _UNSPENT = 0.25, 0.5  # mean cosine of late rounds' ways, and their length over that of the first
_FALL = 0.01  # relative fall of the objective over the last half of the rounds that counts as none


class _Ended:
    """How the averaging rounds ended, whatever came after them."""

    def __init__(self, run: RunState, tolerance: float, *, steady: bool = True) -> None:
        self._places = [place for place, record in enumerate(run.history) if "objective" in record]
        self.rounds = [run.history[place] for place in self._places]
        self.tolerance, self._steady = tolerance, steady

    @property
    def left(self) -> float:
        """Estimated distance to the rounds' fixed point, in posterior sds; not finite where it is not known."""
        return float(np.max(self.rounds[-1]["left"]))

    def lines(self) -> list[str]:
        """Objective and drift."""
        last = self.rounds[-1]
        lines = [f"  objective {self._level(-1):,.6g} nats before the last round"]
        if "drift" in last and np.any(np.isfinite(last["drift"])):  # over a network it stays with the clients
            drift = np.nanmax(last["drift"])
            lines.append(f"  drift     a client's steps lead {drift:.2g} away at most, in unconstrained units")
        return lines

    @property
    def steady(self) -> bool:
        """Whether gradients tell where the rounds are: they were sent, by all clients, and of all rows."""
        known = all(np.all(np.isfinite(each["gradient_norm"])) and np.all(each["active"]) for each in self.rounds)
        return self._steady and known

    @property
    def rose(self) -> bool:
        """Whether the objective has risen by half or more, or is no number: steps were too long, not just drifting."""
        first, last = self._level(0), self._level(-1)
        return not last <= first + 0.5 * abs(first)

    def _level(self, place: int) -> float:
        """The objective in a round: the largest of the replicates; the mean of the modes that do not idle."""
        values = self.rounds[place]["objective"]
        if self._steady:
            return float(np.max(values))
        known = values[~np.isnan(values)]
        return float(np.mean(known)) if known.size else float("nan")

    @property
    def arrived(self) -> bool:
        """Whether the fixed point is near; where that can't be known, whether the objective has stopped falling.

        It has, if over the last half of the rounds it fell by less than a percent, and not for the reason that steps
        are too small.
        """
        if self.steady:
            return self.left <= min(self.tolerance, ERROR_LIMIT)
        values = np.array([self._level(place) for place in range(len(self.rounds))])
        late = values[len(values) // 2 :]
        if len(late) < 4 or not np.all(np.isfinite(late)):
            return False
        first, second = late[: len(late) // 2].mean(), late[len(late) // 2 :].mean()
        return bool(first - second <= _FALL * max(abs(first), abs(second))) and not self.crept

    @property
    def crept(self) -> bool:
        """Whether late rounds have led as far as the first one, and each the same way: steps were too small.

        Around a fixed point ways turn from round to round; on the way to one they grow shorter. The numbers are ratios,
        and do not depend on the steps' size.
        """
        late = range(len(self.rounds) // 2, len(self.rounds))
        pulls, cosines = (np.array([self.rounds[i][name] for i in late]) for name in ("pull", "alignment"))
        first, known = np.asarray(self.rounds[0]["pull"]), np.isfinite(pulls) & np.isfinite(cosines)
        num = np.maximum(known.sum(axis=0), 1)
        mean_pull, mean_cosine = (np.where(known, each, 0.0).sum(axis=0) / num for each in (pulls, cosines))
        return bool(np.any((mean_cosine > _ALIGNED) & (mean_pull > _UNSPENT * first)))

    @property
    def fair(self) -> bool:
        """Whether clients had other weights than those of their rows, by GIFAIR."""
        return "group_rank" in self.rounds[-1]

    def late(self) -> str:
        """Why the rounds have not arrived, and what to try."""
        if self.rose:
            return _TOO_LONG
        if not self.steady and self.crept:
            return (
                "Each round still leads the same way as the one before, and as far as the first: the steps are too "
                "small to arrive. Write larger ones, at the clients (`step_size`, `optimizer`) or in "
                "`server_optimizer`."
            )
        if self.fair and np.ptp([each["group_rank"] for each in self.rounds[-_LATE:]], axis=0).any():
            return (
                "Groups take turns in faring worst, which the rounds answer by turning back: around equal losses they "
                "end in a zigzag as wide as their steps. Let these shrink: `schedule=lambda round: 1.0 / (1.0 + round "
                "/ 50)`."
            )
        return "The rounds were spent before they had arrived: raise `num_rounds`."

    def failures(self, rounds: "xr.Dataset") -> list[str]:
        """What went wrong in the last round: the clients whose steps were no good, and the server's own."""
        last = rounds.isel(round=self._places[-1])
        parts = [f"Round {int(last['round'])}. {each}" for each in bad_clients(last)]
        if np.any(np.isnan(self.rounds[-1]["moved"])):
            parts.append(
                "The server could take no step that was finite: the fit ends where it was before. Write smaller steps, "
                "at the clients or in `server_optimizer`."
            )
        return parts


class LaplaceAnswer(GaussianAnswer):
    """The Laplace approximation centred where the rounds have ended.

    Parameters
    ----------
    run
        How the rounds went.
    tolerance
        Distance to the rounds' fixed point that counts as none, in posterior sds.
    steady
        Whether every round could be the same function of the server's position.
    """

    def __init__(self, run: RunState, tolerance: float, *, steady: bool = True) -> None:
        state = run.state
        self._ended = _Ended(run, tolerance, steady=steady)
        posterior = product_of(state.prior, state.sites)
        super().__init__(posterior, FromCavity(told_at_end(state, posterior), posterior), run)

    @property
    def gap(self) -> float:
        """Distance from the mode by a Newton step, in posterior sds; NaN where the curvature is no precision."""
        return self._run.last("gap")

    def report(self) -> dict[str, float]:
        """``distance_from_mode``: by a Newton step from where the rounds have ended, in posterior sds."""
        return {"distance_from_mode": self.gap}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether the rounds have arrived, every client heard, and near the mode, as the answer is that of the mode.

        Rounds that differ, by their clients or batches, never arrive, and are judged by the mode alone.
        """
        ended, near = self._ended, self.gap <= ERROR_LIMIT
        failures = ended.failures(rounds)
        fine = near and (ended.arrived or not ended.steady) and not failures
        trouble = "" if fine else " ".join(failures or self._stopped())
        lines = ended.lines()
        if np.isfinite(self.gap):
            drifts = ": the clients' drift keeps it there" if self._drifts else ""
            lines.append(f"  mode      {self.gap:.2g} posterior sds away, by a Newton step{drifts}")
        return Verdict(bool(fine), spread_of_means(self.posterior), lines, trouble)

    @property
    def _drifts(self) -> bool:
        """Whether the rounds have come to rest away from the mode."""
        return self._ended.steady and self._ended.arrived and self.gap > ERROR_LIMIT

    def _stopped(self) -> list[str]:
        """Why the rounds have not arrived, and what to try."""
        if self._ended.rose:
            return [_TOO_LONG]
        if not np.isfinite(self.gap):
            return [
                "Where the rounds ended the curvature is no precision matrix, so there is no Laplace posterior: they "
                "are far from a mode, or it is at infinity. Raise `num_rounds`, scale the data to unit size, give the "
                "globals proper priors, or write `laplace=False` for the point alone."
            ]
        where = f"The rounds ended {self.gap:.2g} posterior sds from the mode (the limit is {ERROR_LIMIT})"
        if self._drifts:
            return [
                f"{where}, at rest: the clients' drift keeps them there, as each goes towards its own optimum in its "
                "local steps. Write `local_steps=1` or a smaller `step_size`. `method='laplace'` finds the mode by "
                "Newton steps."
            ]
        if not self._ended.steady:
            return [f"{where}. {_NOISE}"]
        return [
            f"{where}, and were still on their way: raise `num_rounds`, or take another optimiser at the server, such "
            "as `server_optimizer=optax.sgd(1.0, momentum=0.9)`. `method='laplace'` finds the mode by Newton steps."
        ]

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return super().attrs() | {
            "inference": "federated-averaging-laplace",
            "draws": "of a Gaussian in unconstrained space, centred where federated averaging ended, with the inverse "
            "of the summed Hessians there",
        }


def own_point(own: Own) -> np.ndarray:
    """One draw of a client's globals and locals for each replicate."""
    return np.concatenate([np.asarray(own.position), np.asarray(own.z)], axis=-1)[:, None]


class PointAnswer:
    """The point where the rounds have ended.

    Parameters
    ----------
    roster
        Of the clients.
    run
        How the rounds went.
    tolerance
        As for :class:`LaplaceAnswer`.
    steady
        Whether every round could be the same function of the server's position.
    personalised
        Whether clients keep points of their own.
    fairness
        Whose optimum the last round has looked for, if it has.
    """

    posterior = None

    def __init__(
        self,
        roster: Roster,
        run: RunState,
        tolerance: float,
        *,
        steady: bool = True,
        personalised: bool = False,
        fairness: Fairness | None = None,
    ) -> None:
        self._roster, self._run, self._personalised, self._fairness = roster, run, personalised, fairness
        self._ended = _Ended(run, tolerance, steady=steady)

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: one for each replicate, whatever ``num``."""
        return np.asarray(self._run.state.position)[:, None]

    @property
    def locals_from(self) -> LocalsFrom:
        """See :class:`~fedbayes.contract.answer.Answer`: ``GIFAIR(personalised=True)`` ends each client by itself."""
        if self._personalised:
            return FromOwnPoint(own_point, self._around())
        return FromStart(self._around(), self.draws(None, 0).shape[1])  # type: ignore[arg-type]  # nothing is drawn

    def _around(self) -> Gaussian | None:
        """A narrow Gaussian around the points, for clients with locals: where these are looked for."""
        if not self._roster.num_locals.any():
            return None
        theta = self.draws(None, 0)  # type: ignore[arg-type]  # points are not drawn
        precision = 1.0 / (theta.var(axis=1) + _POINT**2)
        shift, num = precision * theta.mean(axis=1), self._roster.num_clients
        wide = lambda leaf: np.repeat(leaf[:, None], num, axis=1)  # noqa: E731
        matrices = precision[:, :, None] * np.eye(self._roster.size)
        return Gaussian(wide(shift), wide(matrices), np.zeros((len(theta), num)))  # type: ignore[arg-type]

    def sample_stats(self, theta: np.ndarray, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """``lp``: the log joint density at the point."""
        return {"lp": log_joint(self._roster.prior.log_densities, theta, log_likelihood)}

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: a point has none."""
        return np.full(len(self._run.state.position), np.nan)

    @cached_property
    def from_optimum(self) -> float:
        """Distance from the optimum of GIFAIR's objective, in posterior sds; NaN where it is not known."""
        if self._fairness is None:
            return float("nan")
        return float(np.max(distances_from_optimum(self._run.state, self._fairness)))

    def report(self) -> dict[str, float]:
        """``distance_from_optimum`` with GIFAIR: of its own objective, by a Newton step, in posterior sds."""
        return {} if self._fairness is None else {"distance_from_optimum": self.from_optimum}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether the rounds have arrived, or the objective has stopped falling, with every client heard.

        And, where it is known, whether that is near the optimum; clients with points of their own end beside it.
        """
        ended, lines, failures = self._ended, self._ended.lines(), self._ended.failures(rounds)
        stopped = [] if ended.arrived and not ended.rose else [ended.late()]
        drifted = ended.arrived and self.from_optimum > ERROR_LIMIT and not self._personalised
        trouble = " ".join(failures or stopped or ([self._beside_the_optimum()] if drifted else []))
        if np.isfinite(self.from_optimum):
            drift = ": the clients' drift keeps it there" if drifted and ended.steady else ""
            lines.append(f"  optimum   {self.from_optimum:.2g} posterior sds away, by a Newton step{drift}")
        return Verdict(not trouble, float("nan"), lines, trouble, [self._remark()])

    def _beside_the_optimum(self) -> str:
        limit = f"(the limit is {ERROR_LIMIT})"
        where = (
            f"The rounds ended {self.from_optimum:.2g} posterior sds from the optimum of their own objective {limit}"
        )
        if not self._ended.steady:
            return f"{where}. {_NOISE}"
        return (
            f"{where}, at rest: in many local steps each client goes to its own optimum, whatever its factor. Write "
            "`local_steps=1` or a smaller `step_size`."
        )

    def _remark(self) -> str:
        fair = ", which weighs clients by GIFAIR: no mode of the posterior" if self._ended.fair else ""
        return f"{self._points()}{fair}"

    def _points(self) -> str:
        """What the fit ends with, in words."""
        return "a point estimate"

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "point-estimate",
            "draws": "one: the point where federated averaging ended. It is no draw of the posterior: intervals, R-hat "
            "and effective draws mean nothing",
            "chains": "replicates from other starts",
        }
