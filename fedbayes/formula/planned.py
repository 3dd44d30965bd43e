"""A regression before its program is written: what the formulas say, and what all clients agree on.

:func:`agree_on` asks everybody, by sums, and ends in a value, :class:`~fedbayes.formula.agreed.Agreed`. :func:`plan`
makes everything else of that value, without anybody's rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbayes.errors import FormulaError, did_you_mean
from fedbayes.formula.agreed import Agreed
from fedbayes.formula.design.agreement import Agreement, agree, check_columns, check_declared, expressions_of
from fedbayes.formula.design.design import Design, design_of
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.design.imputed import Imputed
from fedbayes.formula.design.tables import Table, label_text
from fedbayes.formula.families.family import Family, Summary
from fedbayes.formula.families.gaussian import GAUSSIAN_WITH_ERRORS
from fedbayes.formula.grammar.expressions import Expression, read_expression
from fedbayes.formula.grammar.terms import Terms, read_terms
from fedbayes.formula.grammar.text import FormulaText, cut
from fedbayes.formula.notes import constant_columns, levels_alone, separated, single_client
from fedbayes.formula.outcome import OutcomePlan, agree_on_outcome, plan_outcome, summarise
from fedbayes.formula.program.gaps import Gaps, gaps_of
from fedbayes.formula.program.groups import Group, Grouping, Kind, check_grouping, check_once, groupings_of
from fedbayes.formula.program.predictor import Predictor, look_at
from fedbayes.formula.program.source import argument

# Names that the program uses for something else.
_TAKEN = (
    *("x", "y", "offset", "rows", "trials", "observed", "weights", "errors"),
    *("gap", "eta", "beta", "level", "below", "above", "threshold", "expit", "model", "dist", "jnp", "fb", "numpyro"),
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
    summary
        What all outcomes together are like.
    reads
        The columns of a table that the formulas read, and in which a row lacks nothing.
    gaps
        Covariates whose missing values are imputed.
    """

    formulas: Formulas
    family: Family
    outcome: OutcomePlan
    predictors: tuple[Predictor, ...]
    summary: Summary
    reads: tuple[str, ...]
    gaps: Gaps


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
            f"The family {family.name} has {_baseline(family)} in place of an intercept, which can't be left "
            "out. Leave '0' or '- 1' out of the formula."
        )
    if family.stratified and not terms[""].terms and not effects[""]:
        raise FormulaError(
            f"The family {family.name} has {_baseline(family)}, and the formula '{given['']}' has no predictor "
            "beside it: nothing is left to be learned. Write predictors that vary within clients."
        )
    return Formulas(given, texts, terms, effects)


def _baseline(family: Family) -> str:
    """What a family has in place of an intercept."""
    return "a baseline hazard of each client" if family.stratified else family.parameters[0].name


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


def agree_on(
    formulas: Formulas, family: Family, everybody: Everybody, site: str, levels: Mapping[str, Sequence[Any]], drop: bool
) -> Agreed:
    """Agree on everything, in sums.

    Raises
    ------
    FormulaError, ClientDataError
        See :func:`fedbayes.regression`.
    """
    outcome, expressions = plan_outcome(formulas.texts[""], family), expressions_in(formulas)
    check_imputed(formulas, family, outcome, site)
    _check_outcome(formulas, outcome, site)
    for name, text in formulas.texts.items():
        check_once(zip(text.groups, formulas.effects[name], strict=True), site, levels)
    left_out: list[str] = []
    if drop:
        everybody, left_out = everybody.complete(columns_needed(formulas, outcome, site))
    everybody.look(lambda table: _check_site(expressions, table, site))
    check_columns(everybody, expressions.values())
    check_declared(levels, columns_read(formulas, outcome, site))
    outcome, coded = agree_on_outcome(outcome, family, everybody, levels)
    everybody.look(lambda table: family.check(outcome.outcome(table)))
    agreed = agree(everybody, expressions, levels)
    designs, columns, empty = _designs(formulas, agreed, site, levels), {}, []
    for name, (design, groups) in designs.items():
        for group in groups:
            check_grouping(group.grouping, site, everybody)
            _check_told(family, group)
        columns[name], notes = look_at(design, groups, everybody, name, within=family.stratified)
        empty += notes
    summary, unsaid = summarise(outcome, family, everybody)
    every = [group for _, groups in designs.values() for group in groups]
    notes = [*left_out, *coded, *levels_alone(agreed, everybody.num_clients)]
    notes += constant_columns(expressions, agreed, everybody) + single_client(every, everybody.num_clients)
    notes += [*empty, *unsaid]
    if family.levels == "two" or outcome.censored or outcome.event:
        notes += separated(designs[""][0], outcome, everybody)
    declared = {name: tuple(map(label_text, given)) for name, given in levels.items()}
    return Agreed(
        formulas.written, family.name, family.options, site, declared, drop, everybody.num_clients, outcome.levels,
        outcome.scales or {}, agreed, columns, summary, tuple(notes),
    )  # fmt: skip


def plan(formulas: Formulas, family: Family, agreed: Agreed) -> Plan:
    """The plan that follows from an agreement; nobody's rows are looked at.

    Raises
    ------
    FormulaError
        The agreement is about other columns than those of the formulas.
    """
    read = plan_outcome(formulas.texts[""], family)
    outcome = replace(read, levels=agreed.outcome_levels, scales=agreed.outcome_scales)
    check_imputed(formulas, family, outcome, agreed.site)
    found: list[Predictor] = []
    taken = list(_TAKEN)
    designs = _designs(formulas, agreed.columns, agreed.site, agreed.declared)
    every = [factor for design, _ in designs.values() for factor in design.factors.values()]
    gaps = gaps_of((factor for factor in every if isinstance(factor, Imputed)), taken)
    for name, (design, groups) in designs.items():
        stems = []
        for group in groups:
            stems.append(argument(group.grouping.name + (f"_{name}" if name else ""), taken))
            taken.append(stems[-1])
        found.append(Predictor(name, design, groups, agreed.of_predictor(name, design, groups), tuple(stems)))
    needed = tuple(columns_needed(formulas, outcome, agreed.site))
    return Plan(formulas, family, outcome, tuple(found), agreed.summary, needed, gaps)


def columns_read(formulas: Formulas, outcome: OutcomePlan, site: str) -> list[str]:
    """The columns of a table that the formulas read, those that name groups last."""
    columns = [name for each in expressions_in(formulas).values() for name in each.columns]
    return list(dict.fromkeys([*outcome.columns, *columns, *group_columns(formulas, site)]))


def columns_needed(formulas: Formulas, outcome: OutcomePlan, site: str) -> list[str]:
    """Those among the columns that the formulas read in which a row lacks nothing: all that are not imputed."""
    imputed = columns_imputed(formulas)
    return [name for name in columns_read(formulas, outcome, site) if name not in imputed]


def columns_imputed(formulas: Formulas) -> list[str]:
    """The columns whose missing values are imputed."""
    return [each.inner for each in expressions_in(formulas).values() if each.kind == "mi"]


def check_imputed(formulas: Formulas, family: Family, outcome: OutcomePlan, site: str) -> None:
    """Refuse imputed columns where the program would be another one than the formula says.

    Raises
    ------
    FormulaError
        One is read elsewhere as it is, or in effects of groups; rows have weights or are no product.
    """
    imputed = columns_imputed(formulas)
    if not imputed:
        return
    call = f"`mi({imputed[0]})`"
    as_they_are = [each for each in expressions_in(formulas).values() if each.kind != "mi"]
    others = {name: each.name for each in as_they_are for name in each.columns}
    others |= dict.fromkeys([*outcome.columns, *group_columns(formulas, site)], "")
    for name in imputed:
        if name in others:
            where = f"in `{others[name]}`" if others[name] else "as an outcome or a group"
            raise FormulaError(
                f"`mi({name})` imputes what '{name}' lacks, and the column is read as it is {where}. Write "
                f"`mi({name})` everywhere: by itself, or in products with other columns."
            )
    of_groups = [terms for effects in formulas.effects.values() for terms in effects]
    offsets = [read_expression(text) for terms in formulas.terms.values() for text in terms.offsets]
    if any(each.kind == "mi" for each in [*expressions_of(of_groups).values(), *offsets]):
        raise FormulaError(
            f"{call} stands in an offset, or in the effects of a group. Missing values are imputed in common terms "
            "alone: write it as one of these."
        )
    if family.stratified:
        raise FormulaError(
            f"The family {family.name} has no imputed covariates: each row's term reads the rows at risk, so that "
            f"every missing value would depend on all others. Write `missing='drop'` in place of {call}, or take "
            "family='piecewise_exponential'."
        )
    if outcome.weights is not None:
        raise FormulaError(
            f"{call} and `weights(...)` stand in one formula: rows that are counted several times would share one "
            "imputed value. Repeat such rows in place of the weights."
        )


def _check_outcome(formulas: Formulas, outcome: OutcomePlan, site: str) -> None:
    """Refuse a column that is the outcome and a predictor of it; one of several that an outcome is made of may be."""
    read = {name: each.name for each in expressions_in(formulas).values() for name in each.columns}
    read |= {name: f"(... | {name})" for name in group_columns(formulas, site)}
    columns = outcome.expression.columns
    if len(columns) == 1 and columns[0] in read:
        raise FormulaError(
            f"The outcome's column '{columns[0]}' stands on the right of the formula too, in `{read[columns[0]]}`, "
            "where it would explain itself. Leave it out there."
        )


def expressions_in(formulas: Formulas) -> dict[str, Expression]:
    """Every factor and offset of all formulas, by how it is written."""
    of_groups = [terms for effects in formulas.effects.values() for terms in effects]
    offsets = {text: read_expression(text) for terms in formulas.terms.values() for text in terms.offsets}
    return {**expressions_of([*formulas.terms.values(), *of_groups]), **offsets}


def group_columns(formulas: Formulas, site: str) -> list[str]:
    """The columns that name groups."""
    names = [name.strip("` ") for text in formulas.texts.values() for group in text.groups
             for part in group.group.split("/") for name in part.split(":")]  # fmt: skip
    return [name for name in dict.fromkeys(names) if name != site]


def _check_site(expressions: Mapping[str, Any], table: Table, site: str) -> None:
    """A client's own name is no covariate, unless its table has it as a column."""
    for each in expressions.values():
        if site in each.columns and site not in table.names:
            raise FormulaError(
                f"`{each.name}` names '{site}', which stands for the client itself and is no column. The client's own "
                f"effect is `(1 | {site})`."
            )


def _designs(
    formulas: Formulas, agreed: Agreement, site: str, levels: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Design, tuple[Group, ...]]]:
    """The columns of each linear predictor and of its groups, that of the outcome first."""
    return {
        name: (
            design_of(formulas.terms[name], agreed),
            tuple(
                Group(grouping, design_of(terms, agreed), each.joint)
                for each, terms in zip(text.groups, formulas.effects[name], strict=True)
                for grouping in groupings_of(each, site, levels)
            ),
        )
        for name, text in formulas.texts.items()
    }


def groups_of(predictors: Iterable[Predictor], table: Table) -> dict[str, tuple[str, ...]]:
    """The names of a client's groups, by group, in the order of their effects."""
    within: dict[str, Grouping] = {
        group.grouping.name: group.grouping
        for predictor in predictors
        for group in predictor.groups
        if group.grouping.kind is Kind.WITHIN
    }
    return {name: grouping.names(table) for name, grouping in within.items()}


def _check_told(family: Family, group: Group) -> None:
    """An effect of the client that is added to all its rows can't be told from a baseline of its own."""
    if family.stratified and group.grouping.kind is Kind.CLIENT and group.design.intercept:
        raise FormulaError(
            f"The family {family.name} has {_baseline(family)}, from which the effect '({group.name})' can't be told. "
            f"Leave it out, or write '(0 + x | {group.grouping.name})' for coefficients that differ between clients."
        )
