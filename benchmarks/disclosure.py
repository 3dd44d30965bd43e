"""What a dishonest server reads off a federation's messages: ``python benchmarks/disclosure.py``.

The sites are the four hospitals of the heart data, in one process, and the server sends them messages of the form that
a fit has. Writes ``DISCLOSURE.md``: how many patients' rows each attack finds, by what owners allow; what rounded
log-likelihoods hold; and what secure sums cost.
"""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np
import typer
from log_likelihoods import DRAWS, KNOWN, Held, cost_of_rounding, held
from pages import machine, table, wrapped
from rich.console import Console
from scipy.special import expit

from fedbayes.inference.laplace import Laplace
from fedbayes.models import heart_disease
from fedbayes.network.client.masks import Masks, public_key
from fedbayes.network.fit import fit_over
from fedbayes.network.fixed_point import plus, to_integers, to_numbers
from fedbayes.network.messages import Message, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.rounds.wire import arrays_of, encode

HERE = Path(__file__).parent
KEY = jax.random.key(0)
PUBLIC = "[disclosure]\nsmallest_cell = 1\nglobals_per_row = 1e9\nseparation = false\n"  # the patients are public
SINGLE, HIDDEN = "[sums]\nsingle = true\n", ""
ANYWHERE = "[points]\nfarthest = inf\nnats_per_row = inf\n"
NEAR_THE_PRIOR = "[points]\nnats_per_row = inf\n"
PLAUSIBLE = ""
WHERE = {
    ANYWHERE: "anywhere",
    NEAR_THE_PRIOR: "within 50 prior sds",
    PLAUSIBLE: "as by default, within 50 prior sds and where its own rows find it plausible",
}
SIZE = 14  # globals
AT_ONCE = 512  # points in a message
FOUND = 0.01  # largest error of any covariate of a row that counts as found, in sds of the covariates
SCALES = (1e6, 40.0)  # of the points: far away, and as far as a site answers by the prior alone
SMALLER = ("hungarian", "switzerland", "va")
NATS = (0.001, 0.01, 0.1)  # to which log-likelihoods are rounded
LINES = 4  # that are searched for bends
ORDERS = 1000  # Newton rounds that are asked from far away
STEPS = 1001  # of the intercept along a line
DIRECTIONS = 2


class Attack(NamedTuple):
    """What one attack has found.

    Attributes
    ----------
    what, allowed
        In words.
    values
        Numbers that were answered.
    found, rows
        Patients whose rows it has, of how many.
    seconds
        It took.
    """

    what: str
    allowed: str
    values: int
    found: int
    rows: int
    seconds: float


class Hospitals:
    """The sites under one policy, and a server that sends them what it likes.

    Parameters
    ----------
    policy
        Of every owner, beside the disclosure rules.
    data
        By hospital.
    """

    def __init__(self, policy: str, data: dict[str, dict[str, np.ndarray]], *, single: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.study, self.names, self.single = Study(heart_disease.model, Laplace()), list(data), single
        self.sites = [self._site(name, policy, data) for name in self.names]
        self.network = Rehearsal(*self.sites)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fit = fit_over(
                self.network, self.study, key=KEY, num_clients=len(data), secure_sums=not single, progress=False
            )
        self.values, self._tickets = 0, 0

    def _site(self, name: str, policy: str, data: dict[str, dict[str, np.ndarray]]) -> Site:
        folder = Path(self._folder.name) / name
        folder.mkdir()
        (folder / "policy.toml").write_text(PUBLIC + policy)
        return Site(self.study, lambda config: data[name], {"site-id": name, "state-dir": str(folder)})

    def requests(self, kind: str) -> list[Message]:
        """The first request of a kind to each site."""
        return [each for each in map(unpack, self.network.sent) if each.header["kind"] == kind][: len(self.sites)]

    def asked(self, kind: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The first site's answer, or the sum of all sites' hidden ones, to a request with other arrays.

        Empty where a site refuses; a site that has nothing to add leaves the others' masks on.
        """
        self._tickets += 1
        answers = []
        for site, request in zip(self.sites[: 1 if self.single else None], self.requests(kind), strict=False):
            body = {name: array for name, array in arrays_of(request.body).items() if not name.startswith("recipes")}
            header = dict(request.header)
            if not self.single:
                header["ticket"] = f"{self._tickets:032x}"
            answer = unpack(site.answer(pack(header, encode({**body, **arrays}))))
            if answer.header["kind"] == "refusal":
                return {}
            answers.append(arrays_of(answer.body))
        if not self.single:
            numbers = to_numbers(reduce(plus, [answer["masked"] for answer in answers]))
            answers = [{"numbers": numbers}]
        self.values += sum(array.size for array in answers[0].values())
        return answers[0]

    def expansion(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and negative Hessian, ``(d,)`` and ``(d, d)``: of the first site, or of all; NaN where refused."""
        answer = self.asked("round", **{"shared/0": point[None], "first/0": np.zeros((1, SIZE))})
        if not answer:
            return np.full(SIZE, np.nan), np.full((SIZE, SIZE), np.nan)
        if self.single:
            parts = [answer[f"total/site/{name}"][0] for name in ("shift", "precision", "log_scale")]
        else:
            numbers = answer["numbers"]
            parts = [numbers[1 : 1 + SIZE], numbers[1 + SIZE : -1], numbers[-1]]
        site = unpacked(Gaussian(*parts))  # type: ignore[arg-type]
        return np.asarray(site.shift - site.precision @ point), np.asarray(site.precision)

    def log_likelihood(self, points: np.ndarray) -> np.ndarray:
        """At points ``(n, d)``: of the first site, or of all."""
        found = []
        for begin in range(0, len(points), AT_ONCE):
            part = points[begin : begin + AT_ONCE]
            padded = np.zeros((1, AT_ONCE, SIZE))
            padded[0, : len(part)] = part
            answer = self.asked("after", shared=padded)
            values = answer.get("total/0", np.full(AT_ONCE, np.nan)).ravel() if self.single else answer.get("numbers")
            found.append(np.full(len(part), np.nan) if values is None else values[: len(part)])
        return np.concatenate(found)


def rows_of(data: dict[str, dict[str, np.ndarray]]) -> np.ndarray:
    """All patients' covariates with a one for the intercept."""
    x = np.concatenate([np.asarray(each["x"]) for each in data.values()])
    return np.column_stack([np.ones(len(x)), x])


def num_found(candidates: np.ndarray, rows: np.ndarray) -> int:
    """Rows that are among the candidates."""
    if not len(candidates):
        return 0
    return int(sum(np.min(np.max(np.abs(candidates - row), axis=1)) < FOUND for row in rows))


def bends(value: Callable[[np.ndarray], np.ndarray], scale: float, rng: np.random.Generator) -> np.ndarray:
    """Rows by the bends of the log-likelihood along a line: there its gradient changes by one patient's row."""
    start, along = (each / np.abs(each).max() / 2.0 for each in rng.normal(size=(2, SIZE)))

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
    value: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    along: np.ndarray,
    places: np.ndarray,
    scale: float,
    narrow: float,
) -> np.ndarray:
    """Differences of the gradient across places on a line, by central differences, over that of the intercept."""
    steps = 0.5 * narrow * scale * np.concatenate([np.eye(SIZE), -np.eye(SIZE)])
    points = [
        scale * (start + (place + side * 3.0 * narrow) * along) + steps for place in places for side in (-1.0, 1.0)
    ]
    if not points:
        return np.zeros((0, SIZE))
    values = value(np.concatenate(points)).reshape(len(places), 2, 2, SIZE)
    gradients = values[:, :, 0] - values[:, :, 1]
    change = gradients[:, 0] - gradients[:, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = change / change[:, :1]
    return rows[np.all(np.isfinite(rows), axis=1)]


def far_points(policy: str, scale: float, *, single: bool) -> Attack:
    """The search for bends."""
    data = heart_disease.clients()
    hospitals, rng, begin = Hospitals(policy, data, single=single), np.random.default_rng(0), time.perf_counter()
    found = np.concatenate([bends(hospitals.log_likelihood, scale, rng) for _ in range(LINES)])
    rows = rows_of({"cleveland": data["cleveland"]} if single else data)
    whose = "of Cleveland alone" if single else "of the sum over four"
    what = f"bends of the log-likelihood {whose}, at points up to {scale:g}"
    return Attack(
        what, allowed(policy, single), hospitals.values, num_found(found, rows), len(rows), time.perf_counter() - begin
    )


def far_orders(policy: str, scale: float, *, single: bool) -> Attack:
    """Rounds of Newton's method that are asked from far away: where one patient is undecided its row is the Hessian."""
    data = heart_disease.clients()
    hospitals, rng, begin = Hospitals(policy, data, single=single), np.random.default_rng(1), time.perf_counter()
    found = []
    for _ in range(ORDERS):
        there = rng.normal(size=(1, SIZE))
        there *= scale / np.abs(there).max()
        _, hessian = hospitals.expansion(there[0])
        if not np.all(np.isfinite(hessian)) or not np.any(hessian):
            continue
        row = np.linalg.eigh(hessian)[1][:, -1]
        found.append(row / row[0])
    rows = rows_of({"cleveland": data["cleveland"]} if single else data)
    whose = "Cleveland alone" if single else "the sum over four"
    what = f"{ORDERS:,} Newton rounds of {whose}, from points up to {scale:g}"
    seconds = time.perf_counter() - begin
    return Attack(what, allowed(policy, single), hospitals.values, num_found(np.array(found), rows), len(rows), seconds)


def decided(policy: str, scale: float) -> Attack:
    """A sum over three hospitals along the intercept, with slopes at which nearly all rows are decided.

    The sum of ``s'(b + u_i)`` over the rows, with ``s`` the logistic function, is then one of known kernels around each
    row's ``-u_i``. These are found by least squares, and the Hessian's row of the intercept, a sum of the same kernels
    times the rows' covariates, is linear in these.
    """
    data = {name: each for name, each in heart_disease.clients().items() if name in SMALLER}
    hospitals, rng, begin = Hospitals(policy, data, single=False), np.random.default_rng(0), time.perf_counter()
    found = np.concatenate([kernels(hospitals, scale, rng) for _ in range(DIRECTIONS)])
    rows, seconds = rows_of(data), time.perf_counter() - begin
    what = f"{DIRECTIONS * STEPS:,} Newton rounds of the sum over three, along lines of up to {scale:g} prior sds"
    return Attack(what, allowed(policy, False), hospitals.values, num_found(found, rows), len(rows), seconds)


def kernels(hospitals: Hospitals, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Rows by one line: coefficients up to ``scale`` prior sds of 1, and the intercept as many of 5 on both sides."""
    slopes = rng.choice([-1.0, 1.0], SIZE - 1) * rng.uniform(0.3, 1.0, SIZE - 1) * scale
    intercepts = np.linspace(-5.0 * scale, 5.0 * scale, STEPS)
    told = [hospitals.expansion(np.concatenate([[b], slopes])) for b in intercepts]
    slope, hessian = np.array([each[0][0] for each in told]), np.array([each[1][0] for each in told])
    known = np.isfinite(slope) & np.all(np.isfinite(hessian), axis=1) & np.any(hessian != 0.0, axis=1)
    if known.sum() < 3:
        return np.zeros((0, SIZE))
    intercepts, hessian, slope = intercepts[known], hessian[known], slope[known]
    count = np.round(slope[0]) - slope  # rows that are on, beside those that were at first
    num = int(np.round(count[-1]))
    if not 0 < num < 2000:
        return np.zeros((0, SIZE))
    at = least_squares(-np.interp(np.arange(num) + 0.5, count, intercepts), intercepts, count, hessian[:, 0])
    on = expit(intercepts[:, None] + at)
    x = np.linalg.lstsq(on * (1.0 - on), hessian, rcond=1e-13)[0]
    return np.column_stack([np.ones(num), x[:, 1:]])


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


def one_dummy(policy: str, *, single: bool) -> Attack:
    """A dummy that one patient alone has: the Hessian's row over its diagonal, from the first honest message."""
    data = {
        name: {**each, "x": np.where(np.arange(13) == 2, each["x"] > 0.0, each["x"])}
        for name, each in heart_disease.clients().items()
    }
    names = ["switzerland", *(name for name in data if name != "switzerland")]
    begin = time.perf_counter()
    hospitals = Hospitals(policy, {name: data[name] for name in names}, single=single)
    first = next(
        arrays_of(message.body)
        for message in map(unpack, hospitals.network.answered)
        if message.header["kind"] == "round" and message.header["site"] == "switzerland"
    )
    if single:
        parts = [first[f"total/site/{name}"][0] for name in ("shift", "precision", "log_scale")]
    else:
        numbers = to_numbers(first["masked"])
        parts = [numbers[1 : 1 + SIZE], numbers[1 + SIZE : -1], numbers[-1]]
    hessian = np.nan_to_num(np.asarray(unpacked(Gaussian(*parts)).precision))  # type: ignore[arg-type]
    row = hessian[3] / (hessian[3, 3] or 1.0)
    x = rows_of({"switzerland": data["switzerland"]})
    alone = x[x[:, 3] == 1.0]
    what = "a dummy that one patient of Zurich has, in an honest fit's first message"
    size = sum(np.size(part) for part in parts)
    return Attack(what, allowed(policy, single), size, num_found(row[None], alone), 1, time.perf_counter() - begin)


def allowed(policy: str, single: bool) -> str:
    """A policy in words."""
    how = "single messages" if single else "terms of secure sums"
    return f"{how}, {WHERE[policy.removeprefix(SINGLE)]}"


def same_posterior() -> float:
    """The largest difference of a draw with secure sums from one without, in posterior sds."""
    data = heart_disease.clients()
    fits = [Hospitals(SINGLE, data, single=single).fit for single in (False, True)]
    draws = [np.asarray(fit.theta) for fit in fits]
    return float(np.max(np.abs(draws[0] - draws[1]) / draws[1].std(axis=(0, 1))))


def cost(num_sites: int, num_globals: int) -> tuple[int, float, float]:
    """Numbers of an EP message of one replicate, milliseconds that one site takes to hide it, and its kilobytes."""
    size = num_globals + num_globals * (num_globals + 1) // 2 + 4
    private = [f"{place:064x}" for place in range(1, num_sites + 1)]
    masks = Masks.agreed(private[0], 0, [public_key(each) for each in private], {})
    values, times = np.random.default_rng(0).normal(size=size), []
    for turn in range(20):
        begin = time.process_time()
        hidden = masks.hide(to_integers(values), str(turn).encode())
        times.append(time.process_time() - begin)
    return size, 1e3 * float(np.median(times)), hidden.nbytes / 1e3


OPENING = """# What a server reads off a federation

Rows of patients that a dishonest server finds by messages that a fit has, of the four hospitals of the heart data
(their patients have been public since 1988). A row is found where all 13 covariates are right to 0.01 of their sds.
"""


def finely(answers: list[Held], costs: list[tuple[float, float, float]]) -> list[str]:
    """The part of the page about rounded log-likelihoods."""
    columns = ("whose log-likelihoods", "rows", "entries", "exact", *(f"to {step:g} nats" for step in NATS))
    rows = [
        (each.sites, each.rows, f"{each.entries:,}", *(f"{100.0 * share:.1f} percent" for share in each.known))
        for each in answers
    ]
    costs_told = "; ".join(
        f"to {step:g} nats, {100.0 * left:.1f} percent of the effective draws are left and the mean that moves most "
        f"moves by {moved:.4f} posterior sds"
        for step, left, moved in costs
    )
    return [
        "## What log-likelihoods at draws of the posterior hold\n",
        wrapped(
            f"""A server that follows the protocol has the log-likelihoods of the fit's check, here at {DRAWS:,} draws.
            The table has how many of the rows' entries these leave known to less than {KNOWN:g} sds, where each was
            known to 1 sd before: to first order, that is, for a server that knows about where the rows are
            (`benchmarks/log_likelihoods.py`). Each site rounds its own values, by `nats` under `[answers]` of its
            policy, before they are hidden in a sum."""
        ),
        *table(columns, rows, right_from=1),
        wrapped(f"What rounding at all four sites costs the check: {costs_told}."),
    ]


def page(
    attacks: list[Attack],
    about_draws: list[str],
    same: float,
    costs: list[tuple[int, int, tuple[int, float, float]]],
) -> str:
    """The page."""
    rows = [
        (each.what, each.allowed, f"{each.values:,}", f"{each.found:,} of {each.rows:,}", f"{each.seconds:.0f}")
        for each in attacks
    ]
    columns = ("attack", "what the owners let leave", "numbers answered", "rows found", "seconds")
    sums = [(k, d, f"{size:,}", f"{ms:.2f}", f"{kb:,.0f}") for k, d, (size, ms, kb) in costs]
    return "\n".join(
        [
            OPENING,
            *table(columns, rows, right_from=2),
            wrapped(
                """By default the owners let terms of secure sums leave, and single messages are refused before anything
                is computed. They answer within 50 prior sds, and hardly ever where their own rows are on average more
                than 2 nats less likely than at best: `farthest` and `nats_per_row` under `[points]` of the policy, of
                which inf is no limit. A row that is found in a sum is one of a patient of some hospital: nothing says
                of which. Other attacks may find more; what is known not to be stopped is on the page
                [What leaves a client](../docs/what-leaves-a-client.md)."""
            ),
            *about_draws,
            "## What secure sums cost\n",
            wrapped(
                f"""The posterior by the Laplace approximation, checked and corrected, with secure sums differs from the
                one without by {same:.1e} posterior sds in the draw that differs most; the exchanges are the same. A
                site takes for one message of EP, one replicate, masks for all other sites:"""
            ),
            *table(("sites", "globals", "numbers", "ms of CPU", "kB"), sums, right_from=0),
            f"Measured on {machine().rstrip('.')}.\n",
        ]
    )


def main(
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "DISCLOSURE.md",
    quick: Annotated[bool, typer.Option(help="Try that everything runs, and write nothing.")] = False,
) -> None:
    """Try the attacks, and write the page."""
    logging.disable(logging.CRITICAL)
    console, scales = Console(stderr=True), SCALES[:1] if quick else SCALES
    attacks = []
    plans = [(lambda: one_dummy(SINGLE, single=True)), (lambda: one_dummy(HIDDEN, single=False))]
    for single in (True, False):
        form = SINGLE if single else HIDDEN
        for scale in scales:
            where = ANYWHERE if scale > 50.0 else NEAR_THE_PRIOR
            plans += [lambda f=form, w=where, s=scale, o=single: far_points(f + w, s, single=o)]
            plans += [lambda f=form, w=where, s=scale, o=single: far_orders(f + w, s, single=o)]
    plans += [lambda: decided(NEAR_THE_PRIOR, 50.0)]
    plans += [
        lambda: far_points(PLAUSIBLE, SCALES[1], single=False),
        lambda: far_orders(PLAUSIBLE, SCALES[1], single=False),
    ]
    plans += [lambda s=scale: decided(PLAUSIBLE, s) for scale in (50.0, 1.0)]
    for plan in plans[:3] if quick else plans:
        attacks.append(plan())
        console.print(attacks[-1])
    about_draws = finely([] if quick else held(NATS), [(step, *cost_of_rounding(step)) for step in NATS])
    same = same_posterior()
    costs = [(k, d, cost(k, d)) for k, d in ((3, 14), (10, 14), (10, 100), (50, 14))]
    text = page(attacks, about_draws, same, costs)
    if quick:
        console.print(text)
        return
    output.write_text(text)


if __name__ == "__main__":
    typer.run(main)
