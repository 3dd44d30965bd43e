"""The program at new rows and a fit's draws: each row's law, and what is read of it."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.handlers import seed, substitute, trace

from fedbayes.errors import FormulaError
from fedbayes.formula.design.factors import Spline
from fedbayes.formula.design.tables import Table
from fedbayes.formula.planned import groups_of
from fedbayes.formula.program.groups import Kind
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.source import plain
from fedbayes.formula.reading.places import Place, place_of, values_at
from fedbayes.formula.regression import Regression
from fedbayes.problem.program.tracing import digest_of
from fedbayes.runtime.keys import typed_key
from fedbayes.runtime.lru import Kept
from fedbayes.runtime.precision import computing

_READERS: Kept[Any] = Kept(32)
_AT_ONCE = 64  # draws that are computed side by side


@dataclass(frozen=True)
class Reader:
    """A regression at a place.

    Attributes
    ----------
    reg
        The regression.
    place
        Whose effects.
    key
        For the effects of a new site, which are the same whenever the reader is asked.
    new_groups
        Whether rows of a client may be of groups within it that were not in the fit.
    of
        The table whose groups are numbered, where the rows that are read are a part of it; ``None``: they are all.
    """

    reg: Regression
    place: Place
    key: Array
    new_groups: bool = False
    of: Table | None = None

    def table(self, rows: Any) -> Table:
        """Rows of this place, with all columns that the formula reads.

        Groups within a site that a table does not name are one new group, where the place is no client of the fit.
        A mapping to single values is one row.

        Raises
        ------
        FormulaError, ClientDataError
            A column is missing, or lacks values.
        """
        table, predictors = Table(self.place.client, _one_row(rows), new=True), self.reg.parts.predictors
        if self.place.groups is None:
            covariates = {name for predictor in predictors for name in _covariates(predictor)}
            table.check_there(sorted(covariates))
            for name in _within(predictors):
                table = table if name in table.names else table.with_column(name, "new")
        table.check_there(dict.fromkeys(name for predictor in predictors for name in predictor.reads))
        return table

    def arguments(self, table: Table) -> dict[str, Any]:
        """The program's arguments of these rows; trials, weights and known standard errors are one."""
        parts, ones = self.reg.parts, np.ones(table.num_rows)
        groups = self.groups(table)
        found: dict[str, Any] = {}
        for predictor in parts.predictors:
            found |= predictor.arrays(table, groups)
        found |= parts.gaps.arrays(table)
        found |= {"rows": ones} if parts.needs_rows else {}
        found |= {"trials": np.ones(table.num_rows, int)} if parts.outcome.trials else {}
        found |= {"errors": ones} if parts.outcome.errors else {}
        found |= {"weights": ones} if parts.outcome.weights else {}
        return found | {"y": np.ones(table.num_rows, int) if parts.family.integers else ones}

    def groups(self, table: Table) -> Mapping[str, tuple[str, ...]]:
        """Names of the groups within the site: a client's own first, and those of the rows where they may be new."""
        known, there = self.place.groups, groups_of(self.reg.parts.predictors, self.of or table)
        if known is None or not self.new_groups:
            return there if known is None else known
        return {name: (*known[name], *(label for label in there[name] if label not in known[name])) for name in there}

    def read(self, table: Table, of: Callable[[Any], Any], *more: int, average: bool = False) -> np.ndarray:
        """A function of each row's law at each draw, shape ``(chain, draw, n, *more)``; averaged without the rows."""
        arguments, site = self.arguments(table), plain(self.reg.parts.outcome.name)
        fixed = {name: value for name, value in arguments.items() if not isinstance(value, np.ndarray)}
        arrays = {name: value for name, value in arguments.items() if name not in fixed}
        shape = (table.num_rows, *more)

        def one(values: Mapping[str, Array], arrays: Mapping[str, Array]) -> Array:
            with numpyro.validation_enabled(False):
                sites = trace(substitute(seed(self.reg.model, 0), data=dict(values))).get_trace(**arrays, **fixed)
                found = jnp.broadcast_to(of(sites[site]["fn"]), shape)
                return found.mean(axis=0) if average else found

        def run(values: Mapping[str, Array], arrays: Mapping[str, Array]) -> Any:
            return jax.lax.map(lambda each: one(each, arrays), values, batch_size=_AT_ONCE)

        with computing():
            values = values_at(self.reg, self.place, arguments, self.key)
            samples = next(iter(values.values())).shape[:2]
            flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in values.items()}
            traced = jax.jit(run).trace(flat, arrays)
            kept = _READERS.get(digest_of(traced.jaxpr), lambda: traced.lower().compile())
            found = np.asarray(kept(flat, arrays))
            return found.reshape(*samples, *found.shape[1:])


@dataclass(frozen=True)
class Outcomes:
    """What is expected of outcomes, on a scale.

    Attributes
    ----------
    reader
        The regression at a place.
    scale
        ``"response"`` or ``"link"``.
    """

    reader: Reader
    scale: str

    @property
    def levels(self) -> dict[str, list[str]]:
        """The further dimension of outcomes of levels, with its labels."""
        parts = self.reader.reg.parts
        levels = list(parts.outcome.levels)
        if self.scale == "link":
            return {"level": levels[1:]} if parts.family.several else {}
        return {"level": levels} if parts.family.levels in ("ordered", "any") else {}

    @property
    def words(self) -> str:
        """What is expected."""
        reg = self.reader.reg
        what = reg.parts.family.reading.response if self.scale == "response" else "linear predictor"
        two = self.scale == "response" and len(reg.parts.outcome.levels) == 2 and not self.levels
        which = f" = '{reg.parts.outcome.levels[1]}'" if two else ""
        return f"{what} of `{reg.parts.outcome.name}`{which}"

    @property
    def title(self) -> str:
        """What is expected, and where, as a title."""
        words = self.words
        return f"{words[0].upper()}{words[1:]} {self.reader.place.words}"

    def at(self, table: Table, average: bool = False) -> np.ndarray:
        """Shape ``(chain, draw, n)``, or ``(chain, draw, n, levels)``; of the mean over the rows without ``n``."""
        reading = self.reader.reg.parts.family.reading
        of = reading.expected if self.scale == "response" else reading.linear
        return self.reader.read(table, of, *(len(labels) for labels in self.levels.values()), average=average)


def reader_of(reg: Regression, fit: Any, where: Any, key: Array | None, new_groups: bool) -> Reader:
    """The regression at a place."""
    return Reader(reg, place_of(reg, fit, where), jax.random.key(0) if key is None else typed_key(key), new_groups)


def outcomes_of(reg: Regression, fit: Any, where: Any, scale: Any, key: Array | None, new_groups: bool) -> Outcomes:
    """What is expected at a place, on a scale.

    Raises
    ------
    FormulaError
        There is no such scale.
    """
    return Outcomes(reader_of(reg, fit, where, key, new_groups), check_scale(scale))


def check_scale(scale: Any) -> str:
    """The scale, if it is one.

    Raises
    ------
    FormulaError
        There is no such scale.
    """
    if scale not in ("response", "link"):
        raise FormulaError(f"`scale` is {scale!r}; write 'response' for expected outcomes, or 'link'.")
    return str(scale)


def _one_row(rows: Any) -> Any:
    """A mapping from columns to single values as one row; everything else as it is."""
    if isinstance(rows, Mapping) and rows and all(np.ndim(value) == 0 for value in rows.values()):
        return {name: [value] for name, value in rows.items()}
    return rows


def warn_outside(reg: Regression, tables: Iterable[Table]) -> None:
    """Say in how many rows the argument of a spline is beyond its bounds; of several tables, in any of them."""
    for spline in _splines(reg):
        outside = np.any([spline.outside(table) for table in tables], axis=0)
        if outside.any():
            lower, upper = spline.bounds
            warnings.warn(
                f"{outside.sum()} of {len(outside)} rows are outside the bounds of `{spline.expression.name}`, "
                f"{lower:.4g} and {upper:.4g}: there the outer polynomials go on, and grow fast.",
                stacklevel=3,
            )


def _splines(reg: Regression) -> list[Spline]:
    """Of all linear predictors, each once."""
    designs = [predictor.design for predictor in reg.parts.predictors]
    designs += [group.design for predictor in reg.parts.predictors for group in predictor.groups]
    factors = {name: factor for design in designs for name, factor in design.factors.items()}
    return [factor for factor in factors.values() if isinstance(factor, Spline)]


def _covariates(predictor: Predictor) -> Iterable[str]:
    """The columns that have to be in a table of rows anywhere."""
    yield from predictor.design.reads
    for group in predictor.groups:
        yield from group.design.reads
        yield from group.grouping.columns if group.grouping.kind is Kind.ACROSS else ()


def _within(predictors: Iterable[Predictor]) -> set[str]:
    """The columns of groups within a client."""
    groups = [group for predictor in predictors for group in predictor.groups]
    return {name for group in groups if group.grouping.kind is Kind.WITHIN for name in group.grouping.columns}
