"""What a dishonest server tries, to have single rows: it sends messages of the form that a fit has, about other values.

The tests try it on small sites, and ``benchmarks/disclosure.py`` on hospitals.
"""

import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

import jax
import numpy as np
from scipy.special import expit

from fedbayes.contract.algorithm import Method
from fedbayes.models import heart_disease
from fedbayes.network.fit import fit_over
from fedbayes.network.fixed_point import plus, to_numbers
from fedbayes.network.messages import Message, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.numerics.gaussian import Gaussian, packed, unpacked
from fedbayes.rounds.wire import arrays_of, encode

PUBLIC = "[disclosure]\nsmallest_cell = 1\nglobals_per_row = 1e9\nseparation = false\n"  # the patients are public
SINGLE, HIDDEN = "[sums]\nsingle = true\n", ""
ANYWHERE = "[points]\nfarthest = inf\nnats_per_row = inf\n"
NEAR_THE_PRIOR = "[points]\nnats_per_row = inf\n"
PLAUSIBLE = ""
AT_ONCE = 512  # points in a message
FOUND = 0.01  # largest error of any covariate of a row that counts as found, in sds of the covariates
NARROW = 1e10  # precision of a cavity, in which a site's search for the mode ends where it begins
Clients = dict[str, dict[str, np.ndarray]]


class Attacked:
    """Sites under one policy, whose logistic regression is fitted, and a server that sends them what it likes.

    Parameters
    ----------
    policy
        Of every owner.
    data
        By site.
    method
        Of the study, which sends expansions to second order: the Laplace approximation, or EP.
    single
        Whether the first site is asked alone, and not all sites for a secure sum.
    """

    def __init__(self, policy: str, data: Clients, method: Method, *, single: bool) -> None:
        self._folder = Path(mkdtemp())
        finalize(self, rmtree, self._folder)
        self.study, self.single = Study(heart_disease.model, method), single
        self.size = 1 + np.shape(next(iter(data.values()))["x"])[1]
        self._policy = self._folder / "policy.toml"
        self.allow(policy)
        self.sites = [self._site(name, data) for name in data]
        self.network = Rehearsal(*self.sites)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fit = fit_over(
                self.network,
                self.study,
                key=jax.random.key(0),
                num_clients=len(data),
                secure_sums=not single,
                progress=False,
            )
        self.values, self._tickets = 0, 0

    def allow(self, policy: str) -> None:
        """Have the owners write this policy."""
        self._policy.write_text(policy)

    def _site(self, name: str, data: Clients) -> Site:
        state = str(self._folder / name)
        config = {"site-id": name, "state-dir": state, "policy": str(self._policy)}
        return Site(self.study, lambda config: data[name], config)

    def requests(self, kind: str) -> list[Message]:
        """The first request of a kind to each site."""
        return [each for each in map(unpack, self.network.sent) if each.header["kind"] == kind][: len(self.sites)]

    def asked(self, kind: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The first site's answer, or the sum of all sites' hidden ones, to a request with other arrays.

        Empty where a site refuses or has nothing to add: then the others' masks stay on.
        """
        self._tickets += 1
        answers = []
        for site, request in zip(self.sites[: 1 if self.single else None], self.requests(kind), strict=False):
            body = {name: array for name, array in arrays_of(request.body).items() if not name.startswith("recipes")}
            header = {name: value for name, value in request.header.items() if name != "ticket"}
            if not self.single:
                header["ticket"] = f"{self._tickets:032x}"
            answer = unpack(site.answer(pack(header, encode({**body, **arrays}))))
            if answer.header["kind"] == "refusal" or answer.header["told"].get("open"):
                return {}
            answers.append(arrays_of(answer.body))
        if not self.single:
            answers = [{"numbers": to_numbers(reduce(plus, [answer["masked"] for answer in answers]))}]
        self.values += sum(array.size for array in answers[0].values())
        return answers[0]

    def newton(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and negative Hessian, ``(d,)`` and ``(d, d)``, of the first site or of all; NaN where refused.

        Of a study by the Laplace approximation, whose rounds ask for them.
        """
        answer = self.asked("round", **{"shared/0": point[None], "first/0": np.zeros((1, self.size))})
        return self._expansion(answer, point, begins=1)  # beside the value

    def narrow(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of a study by EP: a site's answer is about where its cavity is, and it is as narrow as it is told.

        By the first round's request no reply has counted, so that the cavity is the global.
        """
        everybody = packed(Gaussian(NARROW * point, NARROW * np.eye(self.size), np.zeros(())))  # type: ignore[arg-type]
        told = {name: getattr(everybody, name) for name in ("shift", "precision", "log_scale")}
        shared = {f"shared/global_/{name}": np.asarray(value)[None] for name, value in told.items()}
        answer = self.asked("round", **shared, **{"shared/mean": point[None], "shared/opening": np.zeros(1, bool)})
        return self._expansion(answer, point, begins=0)

    def _expansion(self, answer: dict[str, np.ndarray], point: np.ndarray, begins: int) -> tuple[np.ndarray, ...]:
        size = self.size
        if not answer:
            return np.full(size, np.nan), np.full((size, size), np.nan)
        if self.single:
            parts = [answer[f"total/site/{name}"][0] for name in ("shift", "precision", "log_scale")]
        else:
            parts = np.split(answer["numbers"][begins:], [size, size + size * (size + 1) // 2])
            parts[2] = parts[2][0]
        site = unpacked(Gaussian(*parts))  # type: ignore[arg-type]
        return np.asarray(site.shift - site.precision @ point), np.asarray(site.precision)

    def log_likelihood(self, points: np.ndarray) -> np.ndarray:
        """At points ``(n, d)``: of the first site, or of all."""
        found = []
        for begin in range(0, len(points), AT_ONCE):
            part = points[begin : begin + AT_ONCE]
            padded = np.zeros((1, AT_ONCE, self.size))
            padded[0, : len(part)] = part
            answer = self.asked("after", shared=padded)
            values = answer.get("total/0", np.full(AT_ONCE, np.nan)).ravel() if self.single else answer.get("numbers")
            found.append(np.full(len(part), np.nan) if values is None else values[: len(part)])
        return np.concatenate(found)


def rows_of(data: Clients) -> np.ndarray:
    """All patients' covariates with a one for the intercept."""
    x = np.concatenate([np.asarray(each["x"]) for each in data.values()])
    return np.column_stack([np.ones(len(x)), x])


def num_found(candidates: np.ndarray, rows: np.ndarray, error: float = FOUND) -> int:
    """Rows that are among the candidates, but for an error in each covariate."""
    if not len(candidates):
        return 0
    return int(sum(np.min(np.max(np.abs(candidates - row), axis=1)) < error for row in rows))


Value = Callable[[np.ndarray], np.ndarray]


def bends(value: Value, size: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Rows by the bends of the log-likelihood along a line: there its gradient changes by one patient's row."""
    start, along = (each / np.abs(each).max() / 2.0 for each in rng.normal(size=(2, size)))

    def at(places: np.ndarray) -> np.ndarray:
        return value(scale * (start + places[:, None] * along))

    narrow = max(1e-5, 0.1 / scale)
    grid = np.linspace(-0.9, 0.9, 257)
    left, right, at_left, at_right = grid[:-1], grid[1:], *(lambda v: (v[:-1], v[1:]))(at(grid))
    found = []
    while len(left) and len(left) < 4096:
        middle = 0.5 * (left + right)
        at_middle = at(middle)
        with np.errstate(invalid="ignore"):
            bent = np.abs(at_middle - 0.5 * (at_left + at_right)) > 1e-9 * scale
        done = bent & (right - left < narrow)
        found.append(middle[done])
        go_on = bent & ~done
        left, right, at_left, at_middle, at_right, middle = (
            each[go_on] for each in (left, right, at_left, at_middle, at_right, middle)
        )
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        at_left, at_right = np.concatenate([at_left, at_middle]), np.concatenate([at_middle, at_right])
    places = np.sort(np.concatenate(found)) if found else np.zeros(0)
    places = places[np.concatenate([[True], np.diff(places) > 2.0 * narrow])] if len(places) else places
    return jumps(value, start, along, places, scale, narrow)


def jumps(
    value: Value, start: np.ndarray, along: np.ndarray, places: np.ndarray, scale: float, narrow: float
) -> np.ndarray:
    """Differences of the gradient across places on a line, by central differences, over that of the intercept."""
    size = len(start)
    steps = 0.5 * narrow * scale * np.concatenate([np.eye(size), -np.eye(size)])
    points = [
        scale * (start + (place + side * 3.0 * narrow) * along) + steps for place in places for side in (-1.0, 1.0)
    ]
    if not points:
        return np.zeros((0, size))
    values = value(np.concatenate(points)).reshape(len(places), 2, 2, size)
    gradients = values[:, :, 0] - values[:, :, 1]
    change = gradients[:, 0] - gradients[:, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = change / change[:, :1]
    return rows[np.all(np.isfinite(rows), axis=1)]


Expansion = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def undecided(expansion: Expansion, size: int, scale: float, num: int, rng: np.random.Generator) -> np.ndarray:
    """Rows by expansions far away: where one row is less decided than all others the Hessian is its square."""
    found = []
    for there in rng.normal(size=(num, size)):
        _, hessian = expansion(scale * there / np.abs(there).max())
        if np.all(np.isfinite(hessian)) and np.any(hessian):
            row = np.linalg.eigh(hessian)[1][:, -1]
            found.append(row / row[0])
    return np.reshape(found, (-1, size))


def kernels(
    expansion: Expansion, size: int, scale: float, num: int, rng: np.random.Generator, width: float = 5.0
) -> np.ndarray:
    """Rows by so many expansions along one line, with slopes at which nearly all rows are decided.

    The sum of ``s'(b + u_i)`` over the rows, with ``s`` the logistic function, is then one of known kernels around each
    row's ``-u_i``. These are found by least squares, and the Hessian's row of the intercept, a sum of the same kernels
    times the rows' covariates, is linear in these. The coefficients are up to ``scale`` prior sds of 1, and the
    intercept goes ``width`` times as far to both sides.
    """
    slopes = rng.choice([-1.0, 1.0], size - 1) * rng.uniform(0.3, 1.0, size - 1) * scale
    intercepts = width * np.linspace(-scale, scale, num)
    told = [expansion(np.concatenate([[b], slopes])) for b in intercepts]
    slope, hessian = np.array([each[0][0] for each in told]), np.array([each[1][0] for each in told])
    known = np.isfinite(slope) & np.all(np.isfinite(hessian), axis=1) & np.any(hessian != 0.0, axis=1)
    if known.sum() < 3:
        return np.zeros((0, size))
    intercepts, hessian, slope = intercepts[known], hessian[known], slope[known]
    count = np.round(slope[0]) - slope  # rows that are on, beside those that were at first
    num_rows = int(np.round(count[-1]))
    if not 0 < num_rows < 2000:
        return np.zeros((0, size))
    at = least_squares(-np.interp(np.arange(num_rows) + 0.5, count, intercepts), intercepts, count, hessian[:, 0])
    on = expit(intercepts[:, None] + at)
    x = np.linalg.lstsq(on * (1.0 - on), hessian, rcond=1e-13)[0]
    return np.column_stack([np.ones(num_rows), x[:, 1:]])


def least_squares(at: np.ndarray, intercepts: np.ndarray, count: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Places of kernels from their sum and its derivative, by the steps of Levenberg and Marquardt from a guess."""

    def residual(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        on = expit(intercepts[:, None] + at)
        return np.concatenate([on.sum(1) - count, (on * (1.0 - on)).sum(1) - curvature]), on

    (off, on), damping = residual(at), 1e-3
    for _ in range(60):
        weight = on * (1.0 - on)
        jacobian = np.concatenate([weight, weight * (1.0 - 2.0 * on)])
        square = jacobian.T @ jacobian
        damped = square + damping * np.diag(np.diag(square)) + 1e-30 * np.eye(len(at))
        moved = at - np.linalg.solve(damped, jacobian.T @ off)
        next_off, next_on = residual(moved)
        better = next_off @ next_off < off @ off
        at, off, on = (moved, next_off, next_on) if better else (at, off, on)
        damping = max(damping / 5.0, 1e-14) if better else 4.0 * damping
    return at
