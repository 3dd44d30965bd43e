"""The commands of ``fedbayes`` for files: a table 1, a regression by a formula, and the report of a fit."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated

import typer

from fedbayes.cli.errors import plain_errors

if TYPE_CHECKING:
    from fedbayes.formula.reading.estimates import Estimates
    from fedbayes.formula.regression import Regression
    from fedbayes.results.fit import FederatedFit
    from fedbayes.results.saved.folder import Saved

BAD_INPUT, NOT_USABLE = 2, 3  # exit codes

Data = Annotated[
    list[Path], typer.Argument(help="Tables, CSV or Parquet: a file for each client, or one file with `--by`.")
]
By = Annotated[str | None, typer.Option(help="Of one file, the column that names each row's client.")]
Levels = Annotated[
    list[str] | None,
    typer.Option(help="Levels of a column in order, `stage=I,II,III`; the first is compared with. May be repeated."),
]
Encoding = Annotated[str, typer.Option(help="Of CSV files.")]


def describe(
    data: Data,
    by: By = None,
    columns: Annotated[str | None, typer.Option(help="Which ones, `age,sex,sick`; by default all.")] = None,
    levels: Levels = None,
    by_client: Annotated[bool, typer.Option(help="A column for each client, beside all of them.")] = True,
    encoding: Encoding = "utf-8",
) -> None:
    """Table 1 of a paper: rows, means, quartiles and counts, by client and over all; small cells are hidden.

    Example: fedbayes describe north.csv south.csv --columns age,sex,sick
    """
    with plain_errors(BAD_INPUT):
        from fedbayes.cli.files import read_clients
        from fedbayes.table_one.describe import describe as table_one

        wanted = None if columns is None else [name.strip() for name in columns.split(",")]
        clients = read_clients(data, by, encoding)
        typer.echo(table_one(clients, columns=wanted, levels=_levels(levels), site=by or "site", by_client=by_client))


def fit(
    data: Data,
    formula: Annotated[
        list[str],
        typer.Option(
            help="`sick ~ age * sex + (1 | site)`. Repeated, for further parameters of the family: `sigma ~ group`."
        ),
    ],
    family: Annotated[
        str, typer.Option(help="What law the outcome has, such as bernoulli, poisson or weibull.")
    ] = "gaussian",
    by: By = None,
    levels: Levels = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows that lack a value which the formula reads.")
    ] = False,
    out: Annotated[Path, typer.Option(file_okay=False, help="A folder that is empty or not there yet.")] = Path(
        "fedbayes-fit"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    draws: Annotated[int, typer.Option(min=2, help="Of each of four chains.")] = 1000,
    level: Annotated[float, typer.Option(min=0.01, max=0.99, help="Probability of the intervals.")] = 0.9,
    encoding: Encoding = "utf-8",
) -> None:
    """A regression by a formula, on tables in files; all clients are in this process.

    Exit codes: 0 done; 2 bad input, and nothing is written; 3 the fit is written, but should not be relied on.

    Example: fedbayes fit north.csv south.csv --formula "sick ~ age + (1 | site)" --family bernoulli --out result
    """
    with plain_errors(BAD_INPUT):
        from fedbayes.cli.files import read_clients
        from fedbayes.formula.regression import regression
        from fedbayes.runtime.compiling import cache_programs

        _check_folder(out)
        cache_programs()
        reg = regression(
            _formulas(formula),
            family=family,
            clients=read_clients(data, by, encoding),
            levels=_levels(levels),
            site=by or "site",
            missing="drop" if drop_missing else "refuse",
        )
        typer.echo(f"{reg}\n")
        found = _fitted(reg, seed, draws)
        typer.echo(f"{found}\n")
        written = _written(reg, found, out, level)
    for name, what in written.items():
        typer.echo(f"  {out / name!s:<30} {what}")
    if not found.usable:
        typer.secho(found.trouble(), fg="red", err=True)
        raise typer.Exit(NOT_USABLE)


def report(
    fit: Annotated[Path, typer.Argument(help="A folder that `fedbayes fit --out` or `fit.save` wrote.")],
    out: Annotated[Path, typer.Option(help="The file; one that is there is replaced.")] = Path("report.html"),
    question: Annotated[str, typer.Option(help="What was asked, for the report's first section.")] = "",
) -> None:
    """A report of a saved fit by the steps of the Bayesian analysis reporting guidelines: one HTML file, no scripts.

    Exit codes: 0 done; 2 bad input, and nothing is written; 3 the report is written, but the fit should not be relied
    on.

    Example: fedbayes report result --out report.html --question "Does age matter?"
    """
    with plain_errors(BAD_INPUT):
        from fedbayes.report.writing import checked_path, judged, report_saved

        checked_path(out)  # before the folder is read, which takes longer
        folder, source = _saved_fit(fit)
        with _quiet():
            path, found = report_saved(folder, _read(folder), out, question=question, source=source)
    typer.echo(f"  {path!s:<30} {found.conclusion}")
    if not found.usable:
        typer.secho(found.trouble or judged(found), fg="red", err=True)
        raise typer.Exit(NOT_USABLE)


def _saved_fit(folder: Path) -> tuple[Path, str]:
    """The folder of a saved fit, and the text of its program where it is a regression's that has it beside the fit."""
    if not (folder / "fit.json").is_file() and (folder / "fit" / "fit.json").is_file():
        folder = folder / "fit"
    beside = folder.absolute().parent
    is_regression = folder.name == "fit" and (beside / "agreed.json").is_file() and (beside / "model.py").is_file()
    return folder, (beside / "model.py").read_text(encoding="utf-8") if is_regression else ""


def _read(folder: Path) -> "Saved":
    from fedbayes.errors import ReportError
    from fedbayes.results.saved.folder import read_meta

    try:
        return read_meta(folder)
    except ValueError as error:
        raise ReportError(str(error)) from error


def _fitted(reg: "Regression", seed: int, draws: int) -> "FederatedFit":
    import sys

    import jax

    from fedbayes.errors import NotConvergedWarning, UnreliableWarning

    with _quiet():
        warnings.simplefilter("ignore", NotConvergedWarning)  # said by the printed fit, and by the exit code
        warnings.simplefilter("ignore", UnreliableWarning)
        key = jax.random.key(seed)
        return reg.fit(key=key, num_draws=draws, progress=sys.stderr.isatty())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without ArviZ's announcement of its next version."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        yield


def _written(reg: "Regression", found: "FederatedFit", out: Path, level: float) -> dict[str, str]:
    """Print what people read, and write all of it to a folder, which is there whole or not at all."""
    from fedbayes.formula.reading.coefficients import summary_table
    from fedbayes.formula.reading.effects import random_effects
    from fedbayes.formula.reading.spread import heterogeneity

    tables: dict[str, Estimates] = {"coefficients": summary_table(reg, found, level)}
    if any("|" in name for name in reg.priors):
        tables |= {"effects": random_effects(reg, found, level), "heterogeneity": heterogeneity(reg, found, level)}
    part = out.with_name(f".{out.name}.part")
    rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, table in tables.items():
        typer.echo(f"{table}\n")
        table.to_pandas().to_csv(part / f"{name}.csv", index=False)
    found.save(part / "fit")
    reg.agreed.save(part / "agreed.json")
    (part / "model.py").write_text(reg.source, encoding="utf-8")
    if out.exists():
        out.rmdir()  # it is empty
    os.replace(part, out)
    return {f"{name}.csv": "the table above" for name in tables} | {
        "fit": "fedbayes.load_fit(...), whose .idata is for ArviZ",
        "agreed.json": "fedbayes.regression(..., agreed=...): the same regression without rows",
        "model.py": "the NumPyro program of one client",
    }


def _check_folder(out: Path) -> None:
    from fedbayes.errors import ClientDataError

    if out.exists() and any(out.iterdir()):
        raise ClientDataError(f"`--out {out}` is not empty, and nothing in it is overwritten. Name another folder.")


def _formulas(texts: Sequence[str]) -> str | dict[str, str]:
    """The outcome's formula first; of the others, by the parameter on the left."""
    if len(texts) == 1:
        return texts[0]
    others = {name.strip(): f"~{text}" for name, _, text in (each.partition("~") for each in texts[1:])}
    return {"mu": texts[0]} | others


def _levels(texts: Sequence[str] | None) -> dict[str, list[str]]:
    from fedbayes.errors import FormulaError

    found = {}
    for text in texts or ():
        name, equals, levels = text.partition("=")
        if not equals:
            raise FormulaError(f"`--levels {text}` names no levels. Write `--levels stage=I,II,III`.")
        found[name.strip()] = [level.strip() for level in levels.split(",")]
    return found
