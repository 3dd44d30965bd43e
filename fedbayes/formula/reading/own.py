"""New rows of a client in whose process this is: what is expected of them, and what new outcomes are like."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpyro.infer import Predictive

from fedbayes.errors import ClientDataError, FormulaError
from fedbayes.formula.design.tables import Table
from fedbayes.formula.families.cox import NO_TIMES
from fedbayes.formula.planned import groups_of
from fedbayes.formula.program.groups import Grouping, Kind
from fedbayes.formula.program.source import plain
from fedbayes.formula.reading.places import Place, values_at
from fedbayes.formula.reading.reader import Outcomes, Reader, check_scale, warn_outside
from fedbayes.formula.regression import Regression, own_rows
from fedbayes.problem.program.handlers import Unobserved
from fedbayes.questions.hypothesis import check_level
from fedbayes.questions.regression.estimates import Estimates, named_draws
from fedbayes.runtime.precision import computing

_AT_ONCE = 8_000_000  # draws times rows times levels that are held side by side: 64 MB


@dataclass(frozen=True)
class OwnRows:
    """Rows to predict at a client itself.

    Attributes
    ----------
    outcomes, table
        What is read, and all rows.
    level
        Probability of the intervals.
    key
        For new outcomes.
    """

    outcomes: Outcomes
    table: Table
    level: float
    key: Array

    @property
    def only_expected(self) -> str:
        """Why there are no new outcomes, in words; empty: there are."""
        reg = self.outcomes.reader.reg
        outcome, family = reg.parts.outcome, reg.parts.family
        if self.outcomes.scale == "link":
            return "There are no new outcomes on the scale of the link."
        if family.levels:
            return "There are no new outcomes: the probabilities say all of them."
        beside = [name for each in (outcome.trials, outcome.errors) if each is not None for name in each.columns]
        lacking = [f"`{name}`" for name in beside if name not in self.table.names]
        if lacking:
            return (
                f"There are no new outcomes: they need {', '.join(lacking)}, of the left side of the formula, and the "
                "rows have no such column."
            )
        return ""

    def parts(self) -> Iterator[tuple[Estimates, Estimates | None]]:
        """The expected outcomes and new ones, so many rows at a time; rows are counted from 1."""
        posterior = self.outcomes.reader.place.posterior
        held = (
            posterior.sizes["chain"] * posterior.sizes["draw"] * max(map(len, self.outcomes.levels.values()), default=1)
        )
        step = max(_AT_ONCE // held, 1)
        for first in range(0, self.table.num_rows, step):
            table = self.table.part(slice(first, first + step))
            row = {"row": np.arange(first, first + table.num_rows) + 1}
            draws = named_draws(self.outcomes.at(table), {**row, **self.outcomes.levels})
            new = None if self.only_expected else self._new(table, row, jax.random.fold_in(self.key, first))
            yield Estimates(draws, self.outcomes.title, self.level), new

    def _new(self, table: Table, row: dict[str, Any], key: Array) -> Estimates:
        """One outcome of each row at each draw of the parameters."""
        reader = self.outcomes.reader
        reg, place, outcome = reader.reg, reader.place, reader.reg.parts.outcome
        arguments = replace(reg, groups={place.client: reader.groups(table)}).arguments(place.client, table)
        with computing():
            values = values_at(reg, place, reader.arguments(table), reader.key)
            law = Predictive(Unobserved(reg.model), values, batch_ndims=2)
            drawn = np.asarray(law(key, **arguments)[plain(outcome.name)], float)
        count = f", a count out of `{outcome.trials.name}`," if outcome.trials else ""
        return Estimates(named_draws(drawn, row), f"A new `{outcome.name}`{count} {place.words}", self.level)


def own_predictions(
    reg: Regression,
    client: str,
    posterior: Any,
    rows: Any,
    *,
    fitted: Mapping[str, Any],
    own: Any = None,
    scale: str = "response",
    level: float = 0.9,
    new_groups: bool = False,
    key: Array | None = None,
) -> OwnRows:
    """What is expected of new rows of a client in whose process this is, and what new observations are like.

    Parameters
    ----------
    reg
        The regression.
    client
        The client's name.
    posterior
        Draws of its effects and of the globals.
    rows
        A table with the columns on the right of the formula; of new outcomes those on the left side, too, which are no
        outcomes: trials, or standard errors.
    fitted
        The program's arguments that were fitted.
    own
        The table of which these were made, which says whose the effects of groups within the client are.
    scale, level, new_groups
        As of :func:`predictions`.
    key
        For effects and outcomes that are drawn; ``None``: the same draws each time.

    Raises
    ------
    FormulaError, ClientDataError
        As :func:`predictions`; or the formula has groups within the client, and ``own`` is not given, or has others.
    ValueError
        ``level`` is no probability.
    """
    if check_scale(scale) == "response" and reg.parts.family.stratified:
        raise FormulaError(NO_TIMES)
    of_effects, of_outcomes = jax.random.split(jax.random.key(0) if key is None else key)
    place = Place(client, f"at '{client}'", posterior, groups=_own_groups(reg, client, own, fitted))
    reader = Reader(reg, place, of_effects, new_groups)
    table = reader.table(rows)
    warn_outside(reg, [table])
    return OwnRows(Outcomes(replace(reader, of=table), scale), table, check_level(level), of_outcomes)


class _Within(NamedTuple):
    """Groups within a client, and what their arguments begin with."""

    grouping: Grouping
    stem: str


def _own_groups(reg: Regression, client: str, own: Any, fitted: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """The labels of a client's groups, in the order of their effects."""
    within = [
        _Within(group.grouping, stem)
        for predictor in reg.parts.predictors
        for group, stem in zip(predictor.groups, predictor.stems, strict=True)
        if group.grouping.kind is Kind.WITHIN
    ]
    if not within:
        return {}
    if own is None:
        raise FormulaError(
            f"The formula has groups '{within[0].grouping.name}' within a site, and their labels were not kept. Give "
            "the table that was fitted, `--own FILE`."
        )
    table = own_rows(reg, client, own)
    table.check_there([name for each in within for name in each.grouping.columns])
    groups = groups_of(reg.parts.predictors, table)
    for grouping, stem in within:
        if differs := _differs(
            table, grouping, groups[grouping.name], fitted[f"{stem}_index"], fitted[f"{stem}_count"]
        ):
            raise ClientDataError(
                f"`--own` is not the table that was fitted: {differs}. Write the table as `load_data` gives it to the "
                "regression: all rows in their order, and the same labels. `01` is a number in a CSV file, and a "
                "label of text in a Parquet file."
            )
    return groups


def _differs(table: Table, grouping: Grouping, names: tuple[str, ...], index: Any, count: Any) -> str:
    """What tells a table's groups from those that were fitted, by counts; empty: nothing."""
    if table.num_rows != len(index):
        return f"it has {table.num_rows} rows, and the site's data {len(index)}"
    if len(names) != int(count):
        return f"its groups '{grouping.name}' are {len(names)}, and those of the site's data {int(count)}"
    others = int((grouping.codes(table, names) != np.asarray(index)).sum())
    return f"{others} of {table.num_rows} rows are of another group '{grouping.name}'" if others else ""
