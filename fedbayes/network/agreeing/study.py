"""What is to be agreed on: a formula and a family, which server and clients have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

from fedbayes.errors import FormulaError
from fedbayes.formula.agreed import Agreed
from fedbayes.formula.design.everybody import Everybody
from fedbayes.formula.families import Family, family_of
from fedbayes.formula.grammar.expressions import Expression
from fedbayes.formula.outcome import OutcomePlan, plan_outcome
from fedbayes.formula.planned import (
    Formulas,
    agree_on,
    check_imputed,
    columns_imputed,
    columns_read,
    expressions_in,
    read_formulas,
    settled,
)
from fedbayes.formula.program.groups import Kind, groupings_of
from fedbayes.network.study import digest_of


@dataclass(frozen=True)
class FormulaStudy:
    """A regression on which sites agree, the same on the server and at every site.

    Parameters
    ----------
    formula, family, levels, site, missing
        As for :func:`fedbayes.regression`. Declared levels come first. Where a column of text has none, sites agree on
        its labels in secure sums, which tell all labels and how many sites have each; an order of outcomes is declared.
    options
        Of the family, ``{"ends": [30, 90]}``.

    Raises
    ------
    FormulaError
        The formula can't be read, or something in it can't be agreed on by sums.

    Examples
    --------
    >>> study = FormulaStudy("sick ~ age + sex", family="bernoulli", levels={"sex": ["f", "m"]})
    >>> study.reads
    ('sick', 'age', 'sex')
    """

    formula: str | Mapping[str, str]
    family: str = "gaussian"
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    site: str = "site"
    missing: str = "refuse"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.missing not in ("refuse", "drop"):
            raise FormulaError(f"`missing` is {self.missing!r}; write 'refuse' or 'drop'.")
        self._check_levels()
        self._check_groups()
        family, formulas = self._read
        check_imputed(formulas, family, self.outcome, self.site)

    def agree(self, everybody: Everybody) -> Agreed:
        """Agree on it.

        Raises
        ------
        FormulaError, ClientDataError
            As :func:`fedbayes.regression`.
        """
        family, formulas = self._read
        return agree_on(formulas, family, everybody, self.site, self.levels, self.missing == "drop")

    @cached_property
    def labelled(self) -> frozenset[str]:
        """The columns of text whose levels are declared."""
        return frozenset([*self.levels, *(each.inner for each in self._calls if "levels" in each.options)])

    @cached_property
    def coded(self) -> frozenset[str]:
        """The columns whose values are levels, text or not."""
        outcome = [self.outcome.name] if self._read[0].levels == "any" else []
        return frozenset([*self.levels, *(each.inner for each in self._calls), *outcome])

    @cached_property
    def undeclared(self) -> tuple[str, ...]:
        """The columns that may be text, of which no levels are declared."""
        family, formulas = self._read
        single = [each for each in expressions_in(formulas).values() if each.columns == (each.name,)]
        if family.levels in ("two", "any") and self.outcome.expression.columns == (self.outcome.name,):
            single.append(self.outcome.expression)
        names = [*(each.name for each in single), *(each.inner for each in self._calls)]
        return tuple(name for name in dict.fromkeys(names) if name not in self.labelled)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns of a site's table that the formulas read."""
        return tuple(columns_read(self._read[1], self.outcome, self.site))

    @cached_property
    def imputed(self) -> tuple[str, ...]:
        """Those among them whose missing values are imputed."""
        return tuple(columns_imputed(self._read[1]))

    @cached_property
    def told(self) -> tuple[str, ...]:
        """Those among them of which sums tell: all but the names of groups within a site, which stay there."""
        factors = [name for each in expressions_in(self._read[1]).values() for name in each.columns]
        known = {*self.outcome.columns, *factors, *self.levels}
        return tuple(name for name in self.reads if name in known)

    @cached_property
    def outcome(self) -> OutcomePlan:
        """What the left side says."""
        family, formulas = self._read
        return plan_outcome(formulas.texts[""], family)

    @cached_property
    def _read(self) -> tuple[Family, Formulas]:
        family = family_of(self.family, self.options)
        formulas = read_formulas(self.formula, family)
        return settled(family, formulas), formulas

    @property
    def _calls(self) -> list[Expression]:
        """All `C(...)`."""
        return [each for each in expressions_in(self._read[1]).values() if each.kind == "C"]

    @cached_property
    def description(self) -> dict[str, str]:
        """All that must be the same everywhere, as text."""
        family, formulas = self._read
        return {
            "fedbayes": version("fedbayes"),
            "formula": "\n".join(f"{name or 'mu'}: {text}" for name, text in formulas.written.items()),
            "family": f"{family.name}, {sorted(self.options.items())}",
            "levels": str({name: list(given) for name, given in self.levels.items()}),
            "site": self.site,
            "missing": self.missing,
        }

    @cached_property
    def digest(self) -> str:
        """Of the description; every message carries it."""
        return digest_of(self.description)

    def _check_levels(self) -> None:
        """Refuse an order that no sum would tell."""
        name = self.outcome.name
        if self._read[0].levels == "ordered" and name not in self.levels:
            raise FormulaError(
                f"The levels of '{name}' are not declared, and which comes before which is not said by sums: write "
                f"`levels={{{name!r}: [...]}}` in the study, from the lowest on."
            )

    def _check_groups(self) -> None:
        for text in self._read[1].texts.values():
            for group in text.groups:
                for each in groupings_of(group, self.site, self.levels):
                    if each.kind is Kind.WITHIN and self.site not in each.name.split(":"):
                        raise FormulaError(
                            f"Whether two sites have the same label of the group '{each.name}' is no sum. Write "
                            f"`(... | {self.site}:{each.name})` for groups within a site, or declare the labels of "
                            f"groups that cross sites, `levels={{{each.name!r}: [...]}}`."
                        )
