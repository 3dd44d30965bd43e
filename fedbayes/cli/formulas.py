"""``fedbayes fit`` and ``check`` on a formula."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedbayes.cli.columns import check_columns, reads_of_formulas
from fedbayes.cli.files import Asked, of_files, read_clients
from fedbayes.cli.methods import configured
from fedbayes.cli.studies import disclosed
from fedbayes.cli.study import refusing
from fedbayes.errors import FormulaError

if TYPE_CHECKING:
    from fedbayes.formula.regression import Regression
    from fedbayes.owner.disclosure import Disclosure
    from fedbayes.questions.regression.estimates import Estimates
    from fedbayes.results.fit import FederatedFit


_PRIOR = re.compile(r"(.+?)=\s*(\w+(?:\.\w+)*\(.*)", re.DOTALL)  # a parameter, and what looks like a call
_ARGUMENT = re.compile(r"`priors(?:\[(.+?)\])?`")  # as Python calls them


@dataclass(frozen=True)
class FormulaJob:
    """A regression by a formula."""

    reg: "Regression"
    chosen: Any

    def __repr__(self) -> str:
        return repr(self.reg)

    def fit(self, **options: Any) -> "FederatedFit":
        """As :func:`fedbayes.fit_federated`."""
        with refusing():
            return self.reg.fit(method=self.chosen, **options)

    def disclosure(self) -> "Disclosure":
        """What the default rules find in the clients' data."""
        reg = self.reg
        with refusing():
            return disclosed(reg.model, reg.clients, self.chosen, reg.coords, reg.dims, reg.columns)

    def write(self, found: "FederatedFit", folder: Path, level: float) -> dict[str, str]:
        """Print what people read, and write all of it; from the files' names to what they are."""
        from fedbayes.formula.reading.spread import heterogeneity

        reg = self.reg
        tables: dict[str, Estimates] = {"coefficients": found.summary_table(level)}
        if any("|" in name for name in reg.priors):
            tables |= {"effects": found.random_effects(level), "heterogeneity": heterogeneity(reg, found, level)}
        for name, table in tables.items():
            typer.echo(f"{table}\n")
            table.to_pandas().to_csv(folder / f"{name}.csv", index=False)
        found.save(folder / "fit")
        reg.agreed.save(folder / "agreed.json")
        (folder / "model.py").write_text(reg.source, encoding="utf-8")
        return {f"{name}.csv": "the table above" for name in tables} | {
            "fit": "fedbayes.load_fit(...), whose .idata is for ArviZ",
            "agreed.json": "fedbayes.regression(..., agreed=...): the same regression without rows",
            "model.py": "the NumPyro program of one client",
        }


def formula_job(asked: Asked) -> FormulaJob:
    """The regression of the files that the command was given.

    Raises
    ------
    ClientDataError, FormulaError
        What is wrong, the value seen, and what to write instead.
    """
    from fedbayes.fit import DEFAULT_METHOD
    from fedbayes.formula.regression import regression

    chosen = configured(asked.method or DEFAULT_METHOD, asked.options)
    formulas, family, site = _formulas(asked.formula), asked.family or "gaussian", asked.by or "site"
    reads = reads_of_formulas(formulas, family, site, asked.levels)
    clients = read_clients(asked.data, asked.by, asked.encoding)
    check_columns(of_files(asked.data, clients, asked.by), reads, "The formula", dropped=asked.drop_missing)
    try:
        reg = regression(
            formulas,
            family=family,
            clients=clients,
            levels=asked.levels,
            priors=asked.priors,
            site=site,
            missing="drop" if asked.drop_missing else "refuse",
        )
    except FormulaError as error:
        option = _ARGUMENT.sub(lambda found: f"`--prior` of {found[1]}" if found[1] else "`--prior`", str(error))
        raise FormulaError(option) from None
    return FormulaJob(reg, chosen)


def _formulas(texts: Sequence[str]) -> str | dict[str, str]:
    """The outcome's formula first; of the others, by the parameter on the left."""
    if len(texts) == 1:
        return texts[0]
    others = {name.strip(): f"~{text}" for name, _, text in (each.partition("~") for each in texts[1:])}
    return {"mu": texts[0]} | others


def levels_of(texts: Sequence[str] | None) -> dict[str, list[str]]:
    """The levels of columns, from ``stage=I,II,III``.

    Raises
    ------
    FormulaError
        A text has no equals sign.
    """
    found = {}
    for text in texts or ():
        name, equals, levels = text.partition("=")
        if not equals:
            raise FormulaError(f"`--levels {text}` names no levels. Write `--levels stage=I,II,III`.")
        found[name.strip()] = [level.strip() for level in levels.split(",")]
    return found


def priors_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """The priors of parameters, from ``age=Normal(0, 1)``.

    Raises
    ------
    FormulaError
        A text has no equals sign, or no distribution behind it; or two are of one parameter.
    """
    from fedbayes.formula.program.typed import prior_of

    found = {}
    for text in texts or ():
        if (parts := _PRIOR.fullmatch(text)) is None:
            raise FormulaError(f"`--prior {text}` gives no prior. Write `--prior 'age=Normal(0, 1)'`.")
        if (name := parts[1].strip()) in found:
            raise FormulaError(f"`--prior {name}` is given twice. Leave one of them out.")
        found[name] = prior_of(parts[2], f"`--prior` of '{name}'")
    return found
