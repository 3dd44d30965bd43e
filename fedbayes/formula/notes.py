"""What is right in a regression but may surprise, in sentences, from what all clients agree on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbayes.contract.answer import shortened
from fedbayes.formula.design.agreement import Agreement
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.tables import Table
from fedbayes.formula.grammar.expressions import Expression
from fedbayes.formula.outcome import OutcomePlan
from fedbayes.formula.program.groups import Group, Kind

_SINGLE = 0.9  # groups for each row from which on a group is told to be none


def levels_alone(agreed: Agreement, num_clients: int) -> list[str]:
    """Notes on levels that only one of several clients has."""
    if num_clients < 2:
        return []
    alone = [
        f"{name}[{level}]"
        for name, counts in agreed.counts.items()
        for level, (_, clients) in counts.items()
        if clients == 1
    ]
    return (
        [f"One client alone has rows of {', '.join(alone)}: what is found for these rests on that client."]
        if alone
        else []
    )


def single_client(groups: Iterable[Group], num_clients: int) -> list[str]:
    """A note on effects of the client where there is one client."""
    names = [group.grouping.name for group in groups if group.grouping.kind is Kind.CLIENT]
    if num_clients > 1 or not names:
        return []
    return [f"There is one client: how far effects of `{names[0]}` differ between clients, the prior alone says."]


def constant_columns(expressions: Mapping[str, Expression], agreed: Agreement, everybody: Everybody) -> list[str]:
    """Notes on columns of numbers that are constant at some client, and vary at others."""
    columns = dict.fromkeys(name for each in expressions.values() for name in each.columns)
    found = everybody.constant(name for name in columns if name not in agreed.levels)
    return [
        f"{name} has one value in all rows of {shortened([repr(client) for client in clients])}, and varies elsewhere: "
        "is it a code for a missing value?"
        for name, clients in found.items()
    ]


def separated(design: Design, outcome: OutcomePlan, everybody: Everybody) -> list[str]:
    """Notes on levels at which all rows have the same outcome, or no event, from one sum.

    Of an outcome of two levels, and of times of which some are censored.
    """
    survival = bool(outcome.censored or outcome.event)
    of_levels = np.array([block.categorical for block in design.blocks for _ in block.labels], bool)
    if not of_levels.any():
        return []

    def tell(table: Table) -> dict[str, np.ndarray]:
        there = (design.values(table)[:, of_levels] == 1.0).astype(float)
        found = outcome.outcome(table)
        return {"rows": there.sum(axis=0), "ones": (found.observed if survival else found.y) @ there}

    sums = everybody.total("outcomes at levels", tell)
    names = np.asarray(design.names)[of_levels]
    return [
        f"All {rows:.0f} {'times' if survival else 'rows'} of {name} "
        + ("are censored" if survival else f"have the outcome {int(ones > 0)}")
        + ": how large its coefficient is, its prior says."
        for name, rows, ones in zip(names, sums["rows"], sums["ones"], strict=True)
        if rows > 0 and (ones == 0.0 or (ones == rows and not survival))
    ]


def single_rows(groups: Mapping[str, Mapping[str, Sequence[str]]], rows: int, outcome: OutcomePlan) -> list[str]:
    """Notes on groups within clients of which hardly any has several rows; not where the variance of a row is known.

    Parameters
    ----------
    groups
        Of each client the labels of its groups, by group.
    rows
        Of all clients.
    outcome
        Of the regression.
    """
    if outcome.errors or outcome.trials:
        return []
    numbers = Counter({name: 0 for found in groups.values() for name in found})
    for found in groups.values():
        numbers.update({name: len(labels) for name, labels in found.items()})
    return [
        f"`(... | {name})` has {number} groups in {rows} rows, one for nearly each row, whose effects can hardly be "
        "told from what the rows vary by themselves. If a number names them, it is a covariate, without a bar."
        for name, number in numbers.items()
        if number > _SINGLE * rows
    ]
