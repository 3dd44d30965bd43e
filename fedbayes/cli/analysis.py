"""The commands of ``fedbayes`` for files: a table 1; a fit by a formula or a study, a check before, a report after."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbayes.cli.errors import BAD_INPUT, NOT_USABLE, plain_errors, quiet, told_plainly
from fedbayes.cli.files import Asked
from fedbayes.cli.formulas import FormulaJob, formula_job, levels_of, priors_of
from fedbayes.cli.methods import check_method, options_of
from fedbayes.cli.studies import StudyJob, study_job
from fedbayes.errors import ClientDataError, FormulaError
from fedbayes.owner.text import aligned

if TYPE_CHECKING:
    from fedbayes.results.fit import FederatedFit
    from fedbayes.results.saved.folder import Saved

Data = Annotated[
    list[Path], typer.Argument(help="Tables, CSV or Parquet: a file for each client, or one file with `--by`.")
]
StudyAndData = Annotated[
    list[Path],
    typer.Argument(
        metavar="STUDY.py DATA...",
        help="A study file, or none with `--formula`; then tables, CSV or Parquet: a file for each client, or one file "
        "with `--by`.",
    ),
]
Formula = Annotated[
    list[str] | None,
    typer.Option(
        help="`sick ~ age * sex + (1 | site)`. Repeated, for further parameters of the family: `sigma ~ group`."
    ),
]
Family = Annotated[
    str | None,
    typer.Option(help="What law the outcome has, such as bernoulli, poisson or weibull; by default gaussian."),
]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows that lack a value which the formula or the study reads.")
]
MethodName = Annotated[
    str | None,
    typer.Option(help="Its name, as for `fedbayes.fit_federated`; by default the study's own, or that function's."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="Of the method, such as `num_samples=1024`. May be repeated."),
]
By = Annotated[str | None, typer.Option(help="Of one file, the column that names each row's client.")]
Levels = Annotated[
    list[str] | None,
    typer.Option(help="Levels of a column in order, `stage=I,II,III`; the first is compared with. May be repeated."),
]
Priors = Annotated[
    list[str] | None,
    typer.Option("--prior", help="Of a parameter, in place of its default: `age=Normal(0, 0.1)`. May be repeated."),
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
        from fedbayes.cli.columns import check_columns, reads_all
        from fedbayes.cli.files import of_files, read_clients
        from fedbayes.table_one.describe import describe as table_one

        wanted = None if columns is None else [name.strip() for name in columns.split(",")]
        clients = read_clients(data, by, encoding)
        try:
            found = table_one(clients, columns=wanted, levels=levels_of(levels), site=by or "site", by_client=by_client)
        except ClientDataError:
            for path, table in of_files(data, clients, by).items():  # where that can be said by file and row
                check_columns({path: table}, reads_all(table), "The table", dropped=True)
            raise
        typer.echo(found)


def fit(
    data: StudyAndData,
    formula: Formula = None,
    family: Family = None,
    by: By = None,
    levels: Levels = None,
    prior: Priors = None,
    drop_missing: DropMissing = False,
    method: MethodName = None,
    option: Options = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="A folder that is empty or not there yet.")] = Path(
        "fedbayes-fit"
    ),
    checkpoint: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for the state after each round: the same fit goes on from there."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    draws: Annotated[int, typer.Option(min=2, help="Of each of four chains.")] = 1000,
    level: Annotated[float, typer.Option(min=0.01, max=0.99, help="Probability of the intervals.")] = 0.9,
    encoding: Encoding = "utf-8",
) -> None:
    """A regression by a formula, or a study file with a model of its own, on tables in files, all in this process.

    Tables are CSV or Parquet: a file for each client, or one file with --by. The study file is the one that serves a
    network, app/study.py of `fedbayes new`: it defines model, method and load_data, which maps columns to arguments.

    Exit codes: 0 done; 2 bad input, and nothing is written; 3 the fit is written, but should not be relied on.

    Example: fedbayes fit north.csv south.csv --formula "sick ~ age + (1 | site)" --family bernoulli --out result

    Example: fedbayes fit app/study.py data/cleveland.csv data/budapest.csv --out result
    """
    with plain_errors(BAD_INPUT):
        from fedbayes.runtime.compiling import cache_programs

        _check_folder(out)
        cache_programs()
        job = _job(
            _asked(
                data,
                formula,
                family=family,
                by=by,
                levels=levels,
                priors=prior,
                drop_missing=drop_missing,
                method=method,
                options=option,
                encoding=encoding,
            )
        )
        typer.echo(f"{job}\n")
        found = _fitted(job, seed, draws, checkpoint)
        typer.echo(f"{found}\n")
        written = _written(job, found, out, level)
    for name, what in written.items():
        typer.echo(f"  {out / name!s:<30} {what}")
    if trouble := found.trouble():
        typer.secho(trouble, fg="yellow" if found.usable else "red", err=True)
    if not found.usable:
        raise typer.Exit(NOT_USABLE)


def report(
    fit: Annotated[Path, typer.Argument(help="A folder that `fedbayes fit --out` or `fit.save` wrote.")],
    data: Annotated[
        list[Path] | None,
        typer.Argument(help="Of a regression, the files that were fitted: the report then has the prior sensitivity."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file; one that is there is replaced.")] = Path("report.html"),
    question: Annotated[str, typer.Option(help="What was asked, for the report's first section.")] = "",
    by: By = None,
    encoding: Encoding = "utf-8",
) -> None:
    """A report of a saved fit by the steps of the Bayesian analysis reporting guidelines: one HTML file, no scripts.

    Exit codes: 0 done; 2 bad input, and nothing is written; 3 the report is written, but the fit should not be relied
    on.

    Example: fedbayes report result --out report.html --question "Does age matter?"

    Example: fedbayes report result north.csv south.csv
    """
    with plain_errors(BAD_INPUT):
        from fedbayes.cli.reports import tables_beside, whole_fit
        from fedbayes.report.writing import checked_path, judged, report_fitted, report_saved

        checked_path(out)  # before the folder is read, which takes longer
        folder, source = _saved_fit(fit)
        saved = _read(folder)
        with quiet():
            beside = tables_beside(folder.absolute().parent) if source else {}
            if data:
                whole = whole_fit(folder, data, by, encoding).fitted
                path, found = report_fitted(whole, out, question=question, source=source, tables=beside)
            else:
                path, found = report_saved(folder, saved, out, question=question, source=source, tables=beside)
    typer.echo(f"  {path!s:<30} {found.conclusion}")
    if not found.usable:
        typer.secho(found.trouble or judged(found), fg="red", err=True)
        raise typer.Exit(NOT_USABLE)


def _saved_fit(folder: Path) -> tuple[Path, str]:
    """The folder of a saved fit, and its program where `fedbayes fit` has put it beside the fit.

    That is a regression's, or the study file, the one Python file beside the table of its fit.
    """
    from fedbayes.results.saved.folder import fit_folder

    folder = fit_folder(folder)
    beside = folder.absolute().parent
    tables = {"agreed.json", "summary.csv"}
    programs = list(beside.glob("*.py"))
    is_ours = folder.name == "fit" and any((beside / name).is_file() for name in tables) and len(programs) == 1
    return folder, programs[0].read_text(encoding="utf-8") if is_ours else ""


def _read(folder: Path) -> "Saved":
    from fedbayes.errors import ReportError
    from fedbayes.results.saved.folder import read_meta

    try:
        return read_meta(folder)
    except ValueError as error:
        raise ReportError(str(error)) from error


def check(
    data: StudyAndData,
    formula: Formula = None,
    family: Family = None,
    by: By = None,
    levels: Levels = None,
    prior: Priors = None,
    drop_missing: DropMissing = False,
    method: MethodName = None,
    option: Options = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Before a fit: whether data and model go together, and what the owners' disclosure rules find in each client.

    Nothing is fitted or written, and no time is estimated. The limits are the defaults of the rules; a site of a
    network has its own, which `fedbayes disclosure` applies there.

    Exit codes: 0 the rules find nothing; 2 bad input; 3 a client would not take part.

    Example: fedbayes check app/study.py data/cleveland.csv data/budapest.csv
    """
    with plain_errors(BAD_INPUT):
        job = _job(
            _asked(
                data,
                formula,
                family=family,
                by=by,
                levels=levels,
                priors=prior,
                drop_missing=drop_missing,
                method=method,
                options=option,
                encoding=encoding,
            )
        )
        typer.echo(f"{job}\n")
        found = job.disclosure()
    rows = [(name, f"{rows:,}", _in_words(found.counts(name))) for name, rows in found.rows.items()]
    typer.echo("\n".join(aligned([("client", "rows", "the rules find"), *rows])))
    typer.echo(f"\n{found!r}\n")
    typer.echo(
        f"The model was run on every client's data: {found.num_globals} globals. Nothing was compiled for a fit, whose "
        "time is not known before its first rounds."
    )
    if found.refused:
        raise typer.Exit(NOT_USABLE)


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} ({times})" for what, times in counts.items()) or "nothing"


def _asked(
    data: list[Path],
    formula: list[str] | None,
    *,
    levels: list[str] | None,
    priors: list[str] | None,
    options: list[str] | None,
    **others: Any,
) -> Asked:
    """What the command was given, its texts read."""
    return Asked(
        data=data,
        formula=formula or [],
        levels=levels_of(levels),
        priors=priors_of(priors),
        options=options_of(options),
        **others,
    )


def _job(asked: Asked) -> FormulaJob | StudyJob:
    """Read everything that a fit needs."""
    if asked.method is not None:
        check_method(asked.method)
    if asked.data[0].suffix.lower() == ".py":
        return study_job(asked)
    if strange := [path for path in asked.data if path.suffix.lower() == ".py"]:
        raise ClientDataError(f"{strange[0]} is a study. Write it first, before the tables.")
    if not asked.formula:
        raise FormulaError(
            "`--formula` is missing. Write `--formula 'sick ~ age'`, or a study file (.py) before the tables."
        )
    return formula_job(asked)


def _fitted(job: FormulaJob | StudyJob, seed: int, draws: int, checkpoint: Path | None) -> "FederatedFit":
    import jax

    from fedbayes.errors import NotConvergedWarning, SlowFitWarning, UnreliableWarning

    with quiet(), told_plainly(SlowFitWarning):
        warnings.simplefilter("ignore", NotConvergedWarning)  # told at the end, when all is written
        warnings.simplefilter("ignore", UnreliableWarning)
        return job.fit(
            key=jax.random.key(seed),
            num_draws=draws,
            progress=True,
            checkpoint=None if checkpoint is None else checkpoint / "checkpoint",
        )


def _written(job: FormulaJob | StudyJob, found: "FederatedFit", out: Path, level: float) -> dict[str, str]:
    """Print what people read, and write all of it to a folder, which is there whole or not at all."""
    part = out.with_name(f".{out.name}.part")
    rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    written = job.write(found, part, level)
    if out.exists():
        out.rmdir()  # it is empty
    os.replace(part, out)
    return written


def _check_folder(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        raise ClientDataError(f"`--out {out}` is not empty, and nothing in it is overwritten. Name another folder.")
