"""A regression before its program is written: what the formulas say, and what all clients agree on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbayes.errors import FormulaError, did_you_mean
from fedbayes.formula.design.agreement import Agreement, agree, check_columns, check_declared, expressions_of
from fedbayes.formula.design.design import Design, design_of
from fedbayes.formula.design.tables import Table
from fedbayes.formula.design.totals import total
from fedbayes.formula.families.family import Family, Outcome, Summary
from fedbayes.formula.families.gaussian import GAUSSIAN_WITH_ERRORS
from fedbayes.formula.grammar.expressions import Expression, read_expression
from fedbayes.formula.grammar.terms import Terms, read_terms
from fedbayes.formula.grammar.text import FormulaText, cut
from fedbayes.formula.outcome import OutcomePlan, agree_on_outcome, plan_outcome, summarise
from fedbayes.formula.program.groups import Group, Grouping, Kind, groupings_of
from fedbayes.formula.program.predictor import Predictor, look_at
from fedbayes.formula.program.source import argument

Tables = Mapping[str, Table]
# Names that the program uses for something else.
_TAKEN = (
    *("x", "y", "offset", "rows", "trials", "observed", "weights", "errors"),
    *("eta", "beta", "level", "below", "above", "threshold", "expit", "model", "dist", "jnp", "fb", "numpyro"),
)


@dataclass(frozen=True)
class Formulas:
    """The formulas of a regression, read.

    Attributes
    ----------
    written
        By parameter; the empty name is the outcome's.
    texts
        The same, cut into parts.
    terms
        Their common terms.
    effects
        The terms of each group's effects.
    """

    written: Mapping[str, str]
    texts: Mapping[str, FormulaText]
    terms: Mapping[str, Terms]
    effects: Mapping[str, tuple[Terms, ...]]


@dataclass(frozen=True)
class Plan:
    """Everything about a regression but its priors and its program.

    Attributes
    ----------
    formulas, family, outcome, predictors
        What it is about.
    tables
        Every client's rows, those that are left out taken out.
    outcomes, summary
        Every client's outcomes, and what all of them are like.
    groups
        Of each client, the names of its groups, by group.
    notes
        What may surprise.
    """

    formulas: Formulas
    family: Family
    outcome: OutcomePlan
    predictors: tuple[Predictor, ...]
    tables: Tables
    outcomes: tuple[Outcome, ...]
    summary: Summary
    groups: Mapping[str, Mapping[str, tuple[str, ...]]]
    notes: tuple[str, ...]


def read_formulas(formula: str | Mapping[str, str], family: Family) -> Formulas:
    """Read all formulas; nothing of the data is looked at.

    Raises
    ------
    FormulaError
        One can't be read, or is of a parameter that the family does not have.
    """
    given = _by_parameter(formula, family)
    texts = {name: cut(text, outcome=not name) for name, text in given.items()}
    terms = {name: read_terms(text.common) for name, text in texts.items()}
    effects = {name: tuple(_effects(group.effects) for group in text.groups) for name, text in texts.items()}
    if not family.intercept and not terms[""].intercept:
        raise FormulaError(
            f"The family {family.name} has {family.parameters[0].name} in place of an intercept, which can't be left "
            "out. Leave '0' or '- 1' out of the formula."
        )
    return Formulas(given, texts, terms, effects)


def settled(family: Family, formulas: Formulas) -> Family:
    """The family, without its ``sigma`` where standard errors are known.

    Raises
    ------
    FormulaError
        There is a formula of ``sigma`` as well.
    """
    if "se" not in formulas.texts[""].additions or family.name != GAUSSIAN_WITH_ERRORS.name:
        return family
    if "sigma" in formulas.written:
        raise FormulaError("With known standard errors, `se(...)`, there is no sigma. Leave its formula out.")
    return GAUSSIAN_WITH_ERRORS


def _by_parameter(formula: Any, family: Family) -> dict[str, str]:
    if not isinstance(formula, Mapping):
        return {"": formula}
    known = {each.name for each in family.parameters if each.inverse is not None}
    main = [name for name, text in formula.items() if name not in known]
    if len(main) != 1:
        raise FormulaError(
            f"The formulas are of {list(formula)}. Write one of the outcome, under 'mu', and those of parameters of "
            f"the family {family.name}, which are {sorted(known) or 'none'}."
        )
    if main[0] != "mu":
        raise FormulaError(
            f"'{main[0]}' is no parameter of the family {family.name} with a formula of its own; these are "
            f"{sorted({'mu', *known})}.{did_you_mean(main[0], known)}"
        )
    return {"": formula["mu"], **{name: text for name, text in formula.items() if name != "mu"}}


def _effects(text: str) -> Terms:
    found = read_terms(text)
    if found.offsets:
        raise FormulaError(f"The effects '{text}' of a group have an offset, which is no effect. Write it outside.")
    if not found.intercept and not found.terms:
        raise FormulaError(f"The effects '{text}' of a group are none; write '(1 | group)'.")
    return found


def plan(
    formulas: Formulas, family: Family, tables: Tables, site: str, levels: Mapping[str, Sequence[Any]], drop: bool
) -> Plan:
    """Agree on everything, in sums.

    Raises
    ------
    FormulaError, ClientDataError
        See :func:`fedbayes.regression`.
    """
    outcome, expressions = plan_outcome(formulas.texts[""], family), _expressions(formulas)
    left_out: list[str] = []
    if drop:
        tables, left_out = _complete(tables, expressions, outcome, formulas, site)
    _check_site(expressions, tables, site)
    check_columns(tables, expressions.values())
    check_declared(levels, [*_columns(expressions, outcome), *_group_columns(formulas, site)])
    outcome, coded = agree_on_outcome(outcome, family, tables, levels)
    outcomes = _outcomes(outcome, family, tables)
    agreed = agree(tables, expressions, levels)
    predictors, empty = _predictors(formulas, agreed, tables, site, levels)
    summary, unsaid = summarise(outcome, family, outcomes)
    separated = _separated(predictors[0].design, tables, outcomes) if family.levels == "two" else []
    notes = (*left_out, *coded, *_alone(agreed, len(tables)), *empty, *unsaid, *separated)
    groups = {client: groups_of(predictors, table) for client, table in tables.items()}
    return Plan(formulas, family, outcome, predictors, tables, outcomes, summary, groups, notes)


def _expressions(formulas: Formulas) -> dict[str, Expression]:
    """Every factor and offset of all formulas, by how it is written."""
    of_groups = [terms for effects in formulas.effects.values() for terms in effects]
    offsets = {text: read_expression(text) for terms in formulas.terms.values() for text in terms.offsets}
    return {**expressions_of([*formulas.terms.values(), *of_groups]), **offsets}


def _outcomes(outcome: OutcomePlan, family: Family, tables: Tables) -> tuple[Outcome, ...]:
    """Every client's outcomes, all inside of the family's support."""
    found = tuple(outcome.outcome(table) for table in tables.values())
    for each in found:
        family.check(each)
    return found


def _columns(expressions: Mapping[str, Any], outcome: OutcomePlan) -> list[str]:
    return list(dict.fromkeys([*outcome.columns, *(name for each in expressions.values() for name in each.columns)]))


def _group_columns(formulas: Formulas, site: str) -> list[str]:
    names = [name.strip("` ") for text in formulas.texts.values() for group in text.groups
             for part in group.group.split("/") for name in part.split(":")]  # fmt: skip
    return [name for name in dict.fromkeys(names) if name != site]


def _complete(
    tables: Tables, expressions: Mapping[str, Any], outcome: OutcomePlan, formulas: Formulas, site: str
) -> tuple[Tables, list[str]]:
    """The rows that lack nothing which the formulas read, and how many others there were."""
    names = [*_columns(expressions, outcome), *_group_columns(formulas, site)]
    found = {client: table.without_missing(names) for client, table in tables.items()}
    left_out = {client: number for client, (_, number) in found.items() if number}
    counts = ", ".join(f"{number} of '{client}'" for client, number in left_out.items())
    notes = [f"Rows that lack a value are left out: {counts}."] if left_out else []
    return {client: table for client, (table, _) in found.items()}, notes


def _check_site(expressions: Mapping[str, Any], tables: Tables, site: str) -> None:
    """A client's own name is no covariate, unless the tables have it as a column."""
    for each in expressions.values():
        for table in tables.values():
            if site in each.columns and site not in table.names:
                raise FormulaError(
                    f"`{each.name}` names '{site}', which stands for the client itself and is no column. The client's "
                    f"own effect is `(1 | {site})`."
                )


def _predictors(
    formulas: Formulas, agreed: Agreement, tables: Tables, site: str, levels: Mapping[str, Sequence[Any]]
) -> tuple[tuple[Predictor, ...], list[str]]:
    """The linear predictors, that of the outcome first, and notes on their columns."""
    found: list[Predictor] = []
    notes: list[str] = []
    taken = list(_TAKEN)
    for name, text in formulas.texts.items():
        design = design_of(formulas.terms[name], agreed)
        groups = tuple(
            Group(grouping, design_of(terms, agreed), each.joint)
            for each, terms in zip(text.groups, formulas.effects[name], strict=True)
            for grouping in groupings_of(each, site, tables, levels)
        )
        columns, empty = look_at(design, groups, tables)
        notes += empty
        stems = []
        for group in groups:
            stems.append(argument(group.grouping.name + (f"_{name}" if name else ""), taken))
            taken.append(stems[-1])
        found.append(Predictor(name, design, groups, columns, tuple(stems)))
    return tuple(found), notes


def groups_of(predictors: Iterable[Predictor], table: Table) -> dict[str, tuple[str, ...]]:
    """The names of a client's groups, by group, in the order of their effects."""
    within: dict[str, Grouping] = {
        group.grouping.name: group.grouping
        for predictor in predictors
        for group in predictor.groups
        if group.grouping.kind is Kind.WITHIN
    }
    return {name: grouping.names(table) for name, grouping in within.items()}


def _alone(agreed: Agreement, num_clients: int) -> list[str]:
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


def _separated(design: Design, tables: Tables, outcomes: Sequence[Outcome]) -> list[str]:
    """Notes on levels at which all rows have the same outcome, from one sum."""
    of_levels = np.array([block.categorical for block in design.blocks for _ in block.labels], bool)
    if not of_levels.any():
        return []
    told = []
    for table, outcome in zip(tables.values(), outcomes, strict=True):
        there = (design.values(table)[:, of_levels] == 1.0).astype(float)
        told.append({"rows": there.sum(axis=0), "ones": outcome.y @ there})
    sums = total(told)
    names = np.asarray(design.names)[of_levels]
    return [
        f"All {rows:.0f} rows of {name} have the outcome {int(ones > 0)}: how large its coefficient is, its prior says."
        for name, rows, ones in zip(names, sums["rows"], sums["ones"], strict=True)
        if rows > 0 and ones in (0.0, rows)
    ]
