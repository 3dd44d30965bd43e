"""What a site's noisy answers have told of its records in all, held against its owner's budget before each answer.

There is one account for a site, whatever the study, the run and the data: a record may have been there all the time.

A server may choose a request by what earlier answers have shown. Renyi divergences of *one* order then still add up, up
to a limit that was fixed beforehand (Feldman and Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS
2021), but the best order may not be looked up at the end. So the order that decides is chosen once, when the first
request that tells anything is charged, as the one at which the budget suffices for most requests of that kind.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.network.client.policy import Budget
from fedbayes.network.messages import Refusal, Refused
from fedbayes.numerics.accounting import ORDERS, Release, best_order, divergences, epsilon_of, surcharge
from fedbayes.runtime.files import alone, replace_private_file, settle

LEDGER = "privacy.json"
_FORMAT = 1
_ASSUMPTIONS = (
    "neighbours differ in one row of this site's data; the number of rows, their columns with the kinds of their "
    "numbers and the numbers of their groups, what has no rows, the code and the messages of the server are public",
    "the study's code at this site is the one that its owner has approved, and rows are independent given the globals",
    "that the site answers, refuses or fails, and when, is not counted; nor is what its owner publishes, such as a "
    "client posterior",
    "exact numbers that have left before, or leave for other data of the same persons, are not counted",
    "this folder is never set back to an older copy, with which the account would be; noise is fresh all the same",
    "noise comes from Threefry, four streams with secret keys of 256 bits in all, which nobody can tell from chance",
    "numbers are double precision: the bounds hold up to rounding; steps are rounded to a millionth of their noise, "
    "which takes off the bits that floating-point noise is known to leak by",
)


class Account(NamedTuple):
    """Where a site stands.

    Attributes
    ----------
    answers, steps
        Noisy answers, and steps of a Gaussian mechanism in them; both are counted before an answer is computed.
    order
        The place in :data:`~fedbayes.numerics.accounting.ORDERS` of the order that decides; ``None`` before the first
        answer that tells anything: a step of size zero could choose one at which the budget suffices for nothing else.
    spent
        Renyi divergences at all orders.
    """

    answers: int = 0
    steps: int = 0
    order: int | None = None
    spent: np.ndarray = np.zeros(len(ORDERS))

    def after(self, releases: Sequence[Release], budget: Budget) -> Self:
        """The same with what one more answer tells."""
        more = np.sum([divergences(each) for each in releases], axis=0)
        tells = bool(np.all(np.isfinite(more)) and np.any(more > 0.0))
        order = best_order(more, *budget) if self.order is None and tells else self.order
        steps = self.steps + sum(each.steps for each in releases)
        return type(self)(self.answers + 1, steps, order, self.spent + more)

    def bound(self, delta: float) -> float:
        """The epsilon that is held against the budget: by the order that decides, whatever requests depended on."""
        if self.order is None:
            return 0.0 if np.all(np.isfinite(self.spent)) else math.inf
        return float(self.spent[self.order] + surcharge(delta)[self.order])

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon, which holds where no request depended on earlier answers, as in an honest fit."""
        return epsilon_of(self.spent, delta)

    def part(self, budget: Budget) -> float:
        """Which part of the budget is spent, between 0 and 1: that many of the answers that it suffices for."""
        if self.order is None:
            return 0.0
        room = budget.epsilon - float(surcharge(budget.delta)[self.order])
        return 1.0 if room <= 0.0 else min(1.0, float(self.spent[self.order]) / room)


class Ledger:
    """The account of a site, in its state folder. Whoever deletes the file gives the site a new budget.

    Parameters
    ----------
    folder
        Of the site.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER

    def read(self) -> Account:
        """Where the site stands.

        Raises
        ------
        ValueError
            The file is damaged, or of another version.
        """
        if not self.path.exists():
            return Account()
        told = json.loads(self.path.read_text())
        spent = np.asarray(told["spent"], float)
        if told["format"] != _FORMAT or told["orders"] != ORDERS.tolist() or spent.shape != ORDERS.shape:
            raise ValueError("it has other orders than this version of fedbayes keeps account at")
        order = None if told["order"] is None else int(told["order"])
        return Account(int(told["answers"]), int(told["steps"]), order, spent)

    def charge(self, releases: Sequence[Release], budget: Budget) -> int:
        """Enter an answer that is about to be computed; the number of answers with it.

        It is on the disk when this returns, so that an answer that has left is never forgotten.

        Raises
        ------
        Refused
            The budget does not suffice. Nothing is entered.
        """
        with self._alone():
            after = self.read().after(releases, budget)
            if not after.bound(budget.delta) <= budget.epsilon:  # NaN is not
                raise Refused(Refusal.SPENT)
            told = {"format": _FORMAT, "answers": after.answers, "steps": after.steps, "order": after.order}
            content = json.dumps({**told, "orders": ORDERS.tolist(), "spent": after.spent.tolist()})
            replace_private_file(self.path, content.encode())
            settle(self.path.parent)
        return after.answers

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process of the site enters anything meanwhile."""
        lock = self.path.with_name("privacy.lock")
        lock.touch(mode=0o600)
        with lock.open("a") as file, alone(file):
            yield


def as_text(ledger: Ledger, budget: Budget | None, exact: int) -> list[str]:
    """What has been spent, what of exact numbers is known, and what the claim rests on; empty where there is nothing.

    Parameters
    ----------
    ledger, budget
        Of the site.
    exact
        How many numbers about its data have left without noise.

    Raises
    ------
    ClientDataError
        The account can't be read.
    """
    try:
        found = ledger.read()
    except (ValueError, TypeError, LookupError) as error:
        raise ClientDataError(f"The account of noisy answers, '{ledger.path}', can't be read: {error}.") from None
    if budget is None and not found.answers:
        return []
    lines = [f"{found.answers:,} noisy answers, of {found.steps:,} steps, are charged."]
    if budget is None:
        lines[0] += " The policy has no table [privacy] any more."
    else:
        spent, allowed = found.bound(budget.delta), budget.epsilon
        lines[0] += (
            f" They amount to epsilon {spent:.3g} at delta {budget.delta:g}; the budget is epsilon {allowed:g}, and "
            f"{found.part(budget):.0%} of the answers that it suffices for have been given."
        )
    if exact:
        lines.append(f"{exact:,} numbers have left this site without noise: none of this holds for the data in them.")
    return [*lines, "This rests on:", *(f"  - {each}" for each in _ASSUMPTIONS)]
