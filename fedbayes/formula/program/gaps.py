"""Missing values of covariates as latents of the client, which its rows without gaps inform through a normal law.

A client has a latent for each of its rows that lacks a value, and for each imputed column. Their number is rounded up
to a power of two: clients then share compiled programs, and a server learns how much is missing to a factor of two. The
latents beyond the last gap are standard normal and in no outcome, so that they change no answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpyro.distributions as dist

from fedbayes.formula.design.imputed import Imputed
from fedbayes.formula.design.tables import Table
from fedbayes.formula.families.family import half_student, rounded
from fedbayes.formula.program.predictor import Predictor
from fedbayes.formula.program.source import Source, argument, numbers, plain

INDEX, COUNT = "gap_index", "gap_count"


@dataclass(frozen=True)
class Gaps:
    """The imputed columns of a regression.

    Attributes
    ----------
    columns
        Of all its linear predictors, each once.
    stems
        What the arguments of each begin with.
    """

    columns: tuple[Imputed, ...] = ()
    stems: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a table that may lack values."""
        return tuple(each.column for each in self.columns)

    @property
    def offsets(self) -> tuple[str, ...]:
        """The sites of the latents."""
        return tuple(f"{plain(each.name)}_offset" for each in self.columns)

    def names(self) -> tuple[str, ...]:
        """Of the program's arguments."""
        found = [name for stem in self.stems for name in (stem, f"{stem}_seen")]
        return (*found, INDEX, COUNT) if found else ()

    def arrays(self, table: Table, count: int | None = None) -> dict[str, Any]:
        """A client's arguments: values and where they are seen, ``(n,)`` each, and each row's gap.

        Parameters
        ----------
        table
            Its rows.
        count
            How many latents there are for each column; of a client of a fit that of the fit, for rows that lack
            nothing.
        """
        if not self.columns:
            return {}
        found: dict[str, Any] = {}
        lacking = np.zeros(table.num_rows, bool)
        for each, stem in zip(self.columns, self.stems, strict=True):
            found[stem], found[f"{stem}_seen"] = each.values(table, full=False)[:, 0], each.seen(table)
            lacking |= ~found[f"{stem}_seen"]
        found[INDEX] = np.where(lacking, np.cumsum(lacking) - 1, 0)
        found[COUNT] = 1 << int(max(lacking.sum() - 1, 0)).bit_length() if count is None else count
        return found


def gaps_of(imputed: Iterable[Imputed], taken: list[str]) -> Gaps:
    """The imputed columns with names for their arguments, which are then taken."""
    columns = tuple({each.name: each for each in imputed}.values())
    stems = []
    for each in columns:
        stems.append(argument(each.name, taken))
        taken.append(stems[-1])
    return Gaps(columns, tuple(stems))


def write_gaps(source: Source, gaps: Gaps) -> None:
    """The normal law of each imputed column, of which both its values and its gaps are draws."""
    for each, stem in zip(gaps.columns, gaps.stems, strict=True):
        name = plain(each.name)
        mean = source.priors.text(f"{name}_mean", dist.Normal(rounded(each.mean), rounded(2.5 * each.sd)))
        sd = source.priors.text(f"{name}_sigma", half_student(each.sd))
        source.add(
            f"{stem}_mean = numpyro.sample({source.site(f'{name}_mean')}, {mean})",
            f"{stem}_sd = numpyro.sample({source.site(f'{name}_sigma')}, {sd})",
            f"numpyro.sample({source.site(plain(each.column))}, "
            f"dist.Normal({stem}_mean, {stem}_sd).mask({stem}_seen), obs={stem})",
            "with fb.local():",
            f"    {stem}_offset = numpyro.sample({source.site(f'{name}_offset')}, "
            f"dist.Normal(0.0, 1.0).expand([{COUNT}]).to_event(1))",
            f"    {stem}_gaps = numpyro.deterministic({source.site(f'{name}_imputed')}, "
            f"{stem}_mean + {stem}_sd * {stem}_offset)",
            f"{stem} = jnp.where({stem}_seen, {stem}, {stem}_gaps[{INDEX}])",
        )


def write_products(source: Source, gaps: Gaps, predictor: Predictor) -> None:
    """The columns of a linear predictor that imputed values are factors of, centred as the others are."""
    design = predictor.design
    if not design.imputed:
        return
    x, columns = f"x{predictor.suffix}", np.arange(design.width)
    for each, stem in zip(gaps.columns, gaps.stems, strict=True):
        if each.name in design.imputed:
            there = np.isin(columns, design.imputed[each.name]).tolist()
            source.add(f"{x} = {x} * jnp.where(jnp.array({there}), {stem}[:, None], 1.0)")
    if predictor.centred:
        means = np.where(np.isin(columns, design.with_imputed), predictor.columns.means, 0.0)
        source.add(f"{x} = {x} - {numbers(means)}")
