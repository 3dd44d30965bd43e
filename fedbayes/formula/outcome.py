"""The left side of a formula: each client's outcomes, checked, and what all of them together are like."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbayes.errors import ClientDataError, FormulaError
from fedbayes.formula.design.agreement import agree
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.factors import Levels, numbers_of
from fedbayes.formula.design.tables import Table
from fedbayes.formula.design.totals import check_size, mean_and_sd, moments
from fedbayes.formula.families.family import Family, Outcome, Summary
from fedbayes.formula.grammar.expressions import Expression, column, read_expression
from fedbayes.formula.grammar.text import FormulaText

_SURVIVAL = re.compile(r"^Surv\s*\(\s*([^,()]+|`[^`]+`)\s*,\s*([^,()]+|`[^`]+`)\s*\)$")
_OUTSIDE = ("gaussian", "student", "lognormal")  # whose default priors need the outcome's sd
_CENSORED = {"0": 0.0, "1": 1.0, "none": 0.0, "right": 1.0, "False": 0.0, "True": 1.0}


@dataclass(frozen=True)
class OutcomePlan:
    """What the left side of a formula says.

    Attributes
    ----------
    name
        As it is written.
    expression
        Of the outcome.
    trials, weights, errors
        Expressions, or ``None``.
    censored, event
        The column that says which times are censored, or the one that says at which an event was seen.
    levels
        Of an outcome of levels, in order.
    scales
        Of scaled parts.
    """

    name: str
    expression: Expression
    trials: Expression | None = None
    weights: Expression | None = None
    censored: str | None = None
    event: str | None = None
    levels: tuple[str, ...] = ()
    scales: Mapping[str, tuple[float, float]] | None = None
    errors: Expression | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Everything that it reads."""
        found = list(self.expression.columns)
        for each in (self.trials, self.weights, self.errors):
            found += each.columns if each else ()
        found += [name for name in (self.censored, self.event) if name]
        return tuple(dict.fromkeys(found))

    def outcome(self, table: Table) -> Outcome:
        """A client's outcomes."""
        scales = self.scales or {}
        if self.levels:
            y = Levels(self.name, self.levels, self.levels[0]).codes(table).astype(float)
        else:
            y = numbers_of(self.expression, table, scales)
        trials = numbers_of(self.trials, table, {}) if self.trials else None
        weights = _above_zero("weights", self.weights, table)
        errors = _above_zero("standard errors", self.errors, table)
        return Outcome(table.client, self.name, y, trials, self._observed(table), weights, errors)

    def _observed(self, table: Table) -> np.ndarray | None:
        name = self.censored or self.event
        if name is None:
            return None
        labels = table.labels(name)
        if unknown := sorted({str(label) for label in labels} - _CENSORED.keys()):
            raise ClientDataError(
                f"Client '{table.client}': column '{name}' says which times are censored, by 0 and 1, or by 'none' and "
                f"'right'; it has {unknown[:5]}. Other kinds of censoring are not there."
            )
        marked = np.asarray([_CENSORED[str(label)] for label in labels])
        return marked if self.event else 1.0 - marked


def _above_zero(what: str, expression: Expression | None, table: Table) -> np.ndarray | None:
    if expression is None:
        return None
    found = numbers_of(expression, table, {})
    if bad := int((found <= 0).sum()):
        raise ClientDataError(
            f"Client '{table.client}': {bad} of {len(found)} {what} are not above zero. Leave these rows out."
        )
    return found


def arguments_of(outcome: Outcome, family: Family) -> dict[str, np.ndarray]:
    """The program's arguments, shape ``(n,)`` each."""
    found = {"y": outcome.y.astype(np.int64) if family.integers else outcome.y}
    if outcome.trials is not None:
        found["trials"] = outcome.trials.astype(np.int64)
    if outcome.errors is not None:
        found["errors"] = outcome.errors
    if outcome.observed is not None:
        found["observed"] = outcome.observed
    if outcome.weights is not None:
        found["weights"] = outcome.weights
    return found


def plan_outcome(text: FormulaText, family: Family) -> OutcomePlan:
    """Read the left side.

    Raises
    ------
    FormulaError
        It names what this family does not know, or lacks what it needs.
    """
    written, additions, event = text.outcome, dict(text.additions), None
    if found := _SURVIVAL.match(written):
        written, event = found[1].strip(), found[2].strip().strip("`")
        if "cens" in additions:
            raise FormulaError("The outcome says twice which times are censored, by `Surv` and by `cens`; write one.")
        additions["cens"] = ""
    for name in additions:
        if name not in family.additions:
            known = ", ".join(f"`{each}(...)`" for each in family.additions)
            raise FormulaError(f"`{name}(...)` means nothing for the family {family.name}, which knows {known}.")
    for name in family.needs:
        if name not in additions:
            raise FormulaError(
                f"The family {family.name} needs `{name}(...)`: write '{written} | {name}(n) ~ ...', with the column "
                f"of the {name}."
            )
    expression = _expression(written)
    trials = _expression(additions["trials"]) if "trials" in additions else None
    weights = _expression(additions["weights"]) if "weights" in additions else None
    errors = _expression(additions["se"]) if "se" in additions else None
    censored = additions["cens"].strip("` ") if "cens" in additions and event is None else None
    if expression.kind != "numbers":
        raise FormulaError(f"The outcome `{written}` is no number; write a column or an expression.")
    return OutcomePlan(written.strip("`"), expression, trials, weights, censored, event, errors=errors)


def _expression(text: str) -> Expression:
    bare = text.strip()
    if bare.startswith("`") and bare.endswith("`"):
        return column(bare.strip("`"))
    if re.fullmatch(r"[\d.]+", bare):
        raise FormulaError(f"The outcome's part `{bare}` names no column.")
    return read_expression(bare)


def agree_on_outcome(
    plan: OutcomePlan, family: Family, everybody: Everybody, declared: Mapping[str, Sequence[Any]]
) -> tuple[OutcomePlan, list[str]]:
    """The plan with the levels and scales of the outcome, and notes.

    Raises
    ------
    ClientDataError
        The outcome has levels where the family needs numbers, or too many, or none in order.
    """
    everybody.look(lambda table: table.check_there(plan.columns))
    single = plan.expression.columns == (plan.name,)
    text = single and everybody.is_labels(plan.name)
    if not family.levels and text:
        everybody.look(lambda table: table.numbers(plan.name, f"the family {family.name}"))
    if not family.levels or (family.levels == "two" and not text and plan.name not in declared):
        scaled = plan.expression.scaled
        scales = agree(everybody, {plan.name: plan.expression}, {}, "outcome").scales if scaled else {}
        return _with(plan, (), scales), []
    if not single:
        raise FormulaError(f"The outcome `{plan.name}` of the family {family.name} is a column's name.")
    levels = _levels(plan, family, everybody, declared)
    note = f"{plan.name} is 0 for {levels[0]!r} and 1 for {levels[1]!r}." if family.levels == "two" else ""
    return _with(plan, levels, {}), [note] if note else []


def _levels(
    plan: OutcomePlan, family: Family, everybody: Everybody, declared: Mapping[str, Sequence[Any]]
) -> tuple[str, ...]:
    coded = Expression(plan.name, "C", plan.expression.tree, {})
    levels = agree(everybody, {plan.name: coded}, declared, "outcome").levels[plan.name]
    if family.levels == "two" and len(levels) != 2:
        raise ClientDataError(
            f"The outcome `{plan.name}` of the family bernoulli has {len(levels)} levels, {list(levels)}; two are "
            "needed."
        )
    known = plan.name in declared or everybody.is_ordered(plan.name)
    if family.levels == "ordered" and everybody.is_labels(plan.name) and not known:
        raise ClientDataError(
            f"The outcome `{plan.name}` is text, {list(levels)}, and which level comes before which is not said. "
            f"Declare the order, `levels={{{plan.name!r}: {list(levels)}}}`."
        )
    return levels


def _with(plan: OutcomePlan, levels: tuple[str, ...], scales: Any) -> OutcomePlan:
    return replace(plan, levels=levels, scales=scales)


def summarise(plan: OutcomePlan, family: Family, everybody: Everybody) -> tuple[Summary, list[str]]:
    """What all outcomes together are like, from sums, and notes on what they leave open.

    Raises
    ------
    ClientDataError
        They do not vary, are too large or too small for a fit, or all times are censored.
    """
    sums = everybody.total("outcomes: moments and levels", lambda table: _tell(plan.outcome(table), plan.levels))
    rows, events = float(sums["y"][0]), float(sums["events"])
    if plan.censored or plan.event:
        if events == 0:
            raise ClientDataError(
                f"All {rows:.0f} times `{plan.name}` of all clients are censored: without an event nothing says how "
                "large the hazard is. Check the column; in `cens(c)` 1 is censored, in `Surv(time, event)` 1 is an "
                "event."
            )
    check_size(plan.name, sums["y"][1] / rows, sums["y"][2] / rows)
    name = f"log({plan.name})" if family.name == "lognormal" else plan.name
    notes = []
    if family.name in _OUTSIDE:
        mean_and_sd(name, sums["log_y"] if family.name == "lognormal" else sums["y"])
    elif not family.levels or family.levels == "two":
        notes = _constant(plan.name, sums["y"])
    if family.name == "gaussian":
        notes += _binary(plan.name, sums["y"])
    missing = [level for level, count in zip(plan.levels, sums["levels"], strict=True) if not count]
    if missing:
        notes.append(
            f"No row of any client has the outcome {', '.join(map(repr, missing))}: the prior alone speaks of it."
        )
    summary = Summary(
        rows, *_plain_moments(sums["y"]), *_plain_moments(sums["log_y"]), events=events, levels=plan.levels
    )

    def ask(name: str, tell: Callable[[Outcome], Mapping[str, Any]]) -> dict[str, Any]:
        return everybody.total(f"outcomes: {name}", lambda table: tell(plan.outcome(table)))

    return summary._replace(settings=family.agree(ask, plan.name, family.options)), notes


def _tell(outcome: Outcome, levels: Sequence[str]) -> dict[str, Any]:
    y = outcome.y if outcome.trials is None else outcome.y / outcome.trials
    positive = np.where(y > 0, y, 1.0)
    counts = np.bincount(outcome.y.astype(int), minlength=len(levels)) if levels else np.zeros(0)
    return {
        "y": moments(y),
        "log_y": moments(np.log(positive)),
        "events": float(len(y) if outcome.observed is None else outcome.observed.sum()),
        "levels": counts.astype(float),
    }


def _plain_moments(summed: np.ndarray) -> tuple[float, float]:
    """Mean and sd (divisor n - 1); an sd of one where nothing varies."""
    rows, first, second = map(float, summed)
    spread = (second / rows - (first / rows) ** 2) * rows / max(rows - 1.0, 1.0)
    return first / rows, float(np.sqrt(spread)) if spread > 1e-9 * second / rows else 1.0


def _constant(name: str, summed: np.ndarray) -> list[str]:
    rows, first, second = map(float, summed)
    if second / rows - (first / rows) ** 2 > 1e-9 * max(second / rows, 1e-300):
        return []
    return [
        f"All outcomes `{name}` are {first / rows:g}: how far the intercept is from there, and all coefficients, the "
        "priors alone say."
    ]


def _binary(name: str, summed: np.ndarray) -> list[str]:
    """A note on outcomes that are as their squares are, in sum."""
    rows, first, second = map(float, summed)
    if not 0.0 < first == second < rows:
        return []
    return [f'All outcomes `{name}` seem to be 0 or 1: `family="bernoulli"` is the law of such outcomes.']
