"""What a dishonest server reads off a federation's messages: ``python benchmarks/disclosure.py``.

The sites are the four hospitals of the heart data, in one process, and the server sends them messages of the form that
a fit has. Writes ``DISCLOSURE.md``: how many patients' rows each attack finds, by what owners allow; what rounded
log-likelihoods hold; and what secure sums cost.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from log_likelihoods import DRAWS, KNOWN, Held, cost_of_rounding, held
from pages import machine, table, wrapped
from rich.console import Console

import fedbayes as fb
from fedbayes.models import heart_disease
from fedbayes.network.client.masks import Masks, public_key
from fedbayes.network.fixed_point import to_integers, to_numbers
from fedbayes.network.messages import unpack
from fedbayes.numerics.gaussian import Gaussian, unpacked
from fedbayes.rounds.wire import arrays_of

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "fedbayes" / "network"))  # the attacks, which the tests try as well

from row_attacks import (  # noqa: E402
    ANYWHERE,
    HIDDEN,
    NEAR_THE_PRIOR,
    PLAUSIBLE,
    PUBLIC,
    SINGLE,
    Attacked,
    Clients,
    bends,
    kernels,
    num_found,
    rows_of,
    undecided,
)

WHERE = {
    ANYWHERE: "anywhere",
    NEAR_THE_PRIOR: "within 50 prior sds",
    PLAUSIBLE: "as by default, within 50 prior sds and where its own rows find it plausible",
}
SIZE = 14  # globals
SCALES = (1e6, 40.0)  # of the points: far away, and as far as a site answers by the prior alone
SMALLER = ("hungarian", "switzerland", "va")
NATS = (0.001, 0.01, 0.1)  # to which log-likelihoods are rounded
LINES = 4  # that are searched for bends
ORDERS = 1000  # Newton rounds that are asked from far away
STEPS = 1001  # of the intercept along a line
DIRECTIONS = 2
NEWTON, CAVITIES = "Newton rounds", "EP rounds with a narrow cavity"
METHODS = {NEWTON: fb.Laplace(), CAVITIES: fb.EP(solver="laplace", num_replicates=1)}


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


def hospitals(policy: str, data: Clients, rounds: str = NEWTON, *, single: bool) -> Attacked:
    """The sites by a policy, and a study that has such rounds."""
    return Attacked(PUBLIC + policy, data, METHODS[rounds], single=single)


def expansion_of(sites: Attacked, rounds: str) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """What such a round tells of a point."""
    return sites.newton if rounds == NEWTON else sites.narrow


def far_points(policy: str, scale: float, *, single: bool) -> Attack:
    """The search for bends."""
    data = heart_disease.clients()
    sites, rng, begin = hospitals(policy, data, single=single), np.random.default_rng(0), time.perf_counter()
    found = np.concatenate([bends(sites.log_likelihood, SIZE, scale, rng) for _ in range(LINES)])
    rows = rows_of({"cleveland": data["cleveland"]} if single else data)
    whose = "of Cleveland alone" if single else "of the sum over four"
    what = f"bends of the log-likelihood {whose}, at points up to {scale:g}"
    return Attack(
        what, allowed(policy, single), sites.values, num_found(found, rows), len(rows), time.perf_counter() - begin
    )


def far_orders(policy: str, scale: float, rounds: str = NEWTON, *, single: bool) -> Attack:
    """Rounds that are asked from far away: where one patient is undecided its row is the Hessian."""
    data = heart_disease.clients()
    sites, rng, begin = hospitals(policy, data, rounds, single=single), np.random.default_rng(1), time.perf_counter()
    found = undecided(expansion_of(sites, rounds), SIZE, scale, ORDERS, rng)
    rows = rows_of({"cleveland": data["cleveland"]} if single else data)
    whose = "Cleveland alone" if single else "the sum over four"
    what = f"{ORDERS:,} {rounds} of {whose}, from points up to {scale:g}"
    seconds = time.perf_counter() - begin
    return Attack(what, allowed(policy, single), sites.values, num_found(found, rows), len(rows), seconds)


def decided(policy: str, scale: float, rounds: str = NEWTON) -> Attack:
    """A sum over three hospitals along the intercept, with slopes at which nearly all rows are decided."""
    data = {name: each for name, each in heart_disease.clients().items() if name in SMALLER}
    sites, rng, begin = hospitals(policy, data, rounds, single=False), np.random.default_rng(0), time.perf_counter()
    expansion = expansion_of(sites, rounds)
    found = np.concatenate([kernels(expansion, SIZE, scale, STEPS, rng) for _ in range(DIRECTIONS)])
    rows, seconds = rows_of(data), time.perf_counter() - begin
    what = f"{DIRECTIONS * STEPS:,} {rounds} of the sum over three, along lines of up to {scale:g} prior sds"
    return Attack(what, allowed(policy, False), sites.values, num_found(found, rows), len(rows), seconds)


def one_dummy(policy: str, *, single: bool) -> Attack:
    """A dummy that one patient alone has: the Hessian's row over its diagonal, from the first honest message."""
    data = {
        name: {**each, "x": np.where(np.arange(13) == 2, each["x"] > 0.0, each["x"])}
        for name, each in heart_disease.clients().items()
    }
    names = ["switzerland", *(name for name in data if name != "switzerland")]
    begin = time.perf_counter()
    sites = hospitals(policy, {name: data[name] for name in names}, single=single)
    first = next(
        arrays_of(message.body)
        for message in map(unpack, sites.network.answered)
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
    fits = [hospitals(SINGLE, data, single=single).fit for single in (False, True)]
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
                is computed. They answer within 50 prior sds, and not where their own rows are on average more than 2
                nats less likely than at best: `farthest` and `nats_per_row` under `[points]` of the policy, of which
                inf is no limit. A row that is found in a sum is one of a patient of some hospital: nothing says
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
        plans += [lambda f=form, o=single: far_orders(f + ANYWHERE, SCALES[0], CAVITIES, single=o)]
    plans += [lambda r=rounds: decided(NEAR_THE_PRIOR, 50.0, r) for rounds in METHODS]
    plans += [lambda: decided(PLAUSIBLE, 50.0, CAVITIES)]
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
