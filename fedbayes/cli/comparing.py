"""The command of ``fedbayes`` that puts two fits side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbayes.cli.errors import BAD_INPUT, NOT_USABLE, plain_errors, quiet
from fedbayes.errors import ClientDataError
from fedbayes.owner.text import aligned
from fedbayes.runtime.files import replace_file

if TYPE_CHECKING:
    from fedbayes.questions.comparison import Comparison
    from fedbayes.report.facts import Facts

_SHOWN = 40
_HEAD = ("quantity", "mean a", "sd a", "mean b", "sd b", "difference in sds of b", "sd ratio")
_FEWEST = 4  # draws of a chain, below which nothing is known of their error

Fit = Annotated[
    Path,
    typer.Argument(
        help="Folder of a fit, such as `--out` of `fedbayes fit`, or a NetCDF file of ArviZ (posterior.nc)."
    ),
]


def compare(
    fit_a: Fit,
    fit_b: Fit,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A CSV file for the table, which is not there yet.")
    ] = None,
) -> None:
    """Two fits side by side: differences of means in sds of the second one, and ratios of sds, by quantity.

    Exit codes: 0 done; 2 bad input, and nothing is written; 3 one of the fits should not be relied on.

    Example: fedbayes compare result careful --out differences.csv

    Example: fedbayes compare result nuts.nc
    """
    with plain_errors(BAD_INPUT):
        if out is not None and out.exists():
            raise ClientDataError(f"`--out {out}` is there already, and is not overwritten. Name another file.")
        a, b = _posterior(fit_a), _posterior(fit_b)
        found = _compared(a, b, fit_a, fit_b)
        saved = {path: facts for path in (fit_a, fit_b) if (facts := _saved(path)) is not None}
        rows = _rows(found)
        typer.echo("\n".join(_lines(found, rows, fit_a, fit_b)))
        for path, idata in ((fit_a, a), (fit_b, b)):
            if left_out := _others(idata, found):
                typer.echo(f"  not compared, in {path} alone: {left_out}")
        if out is not None:
            _write(out, rows)
            typer.echo(f"  {out!s:<30} the table above")
    for path, facts in saved.items():
        if facts.trouble:
            typer.secho(f"{path}: {facts.trouble}", fg="red", err=True)
    if not all(facts.usable for facts in saved.values()):
        raise typer.Exit(NOT_USABLE)


def _posterior(path: Path) -> Any:
    from fedbayes.results.arviz import from_netcdf
    from fedbayes.results.saved.folder import fit_folder

    if not path.exists():
        raise ClientDataError(f"There is no '{path}'. Name the folder of a fit, or a NetCDF file.")
    file = fit_folder(path) / "posterior.nc" if path.is_dir() else path
    if not file.is_file():
        raise ClientDataError(
            f"'{path}' is not the folder of a fit: it holds no 'posterior.nc'. Name the folder that `--out` of "
            "`fedbayes fit`, or `fit.save`, was given."
        )
    try:
        with quiet():
            idata = from_netcdf(file)
        draws = idata["posterior"].sizes["draw"]
    except Exception as error:  # of whichever engine
        raise ClientDataError(
            f"'{file}' holds no posterior of ArviZ ({type(error).__name__}). Name the folder of a fit, or a NetCDF "
            "file that `idata.to_netcdf` has written."
        ) from None
    if draws < _FEWEST:
        raise ClientDataError(
            f"'{file}' has {draws} draws in each chain: a point, or too few to compare. Name a fit with {_FEWEST} or "
            "more."
        )
    return idata


def _compared(a: Any, b: Any, fit_a: Path, fit_b: Path) -> "Comparison":
    import numpy as np

    from fedbayes.questions import comparison

    try:
        with np.errstate(divide="ignore", invalid="ignore"):  # a quantity may be constant
            return comparison.compare(a, b)
    except ValueError as error:
        raise ClientDataError(f"'{fit_a}' and '{fit_b}' can't be compared. {error}") from None


def _others(idata: Any, found: "Comparison") -> str:
    """The quantities of one posterior that the other lacks."""
    from fedbayes.contract.answer import shortened
    from fedbayes.questions.comparison import flat_draws

    known = {row.name for row in found.rows}
    return shortened([name for name in flat_draws(idata) if name not in known])


def _rows(found: "Comparison") -> list[tuple[str, ...]]:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = [
            (row.mean, row.sd, row.reference_mean, row.reference_sd, row.difference, row.sd_ratio) for row in found.rows
        ]
    return [(row.name, *(repr(float(x)) for x in each)) for row, each in zip(found.rows, numbers, strict=True)]


def _lines(found: "Comparison", rows: list[tuple[str, ...]], fit_a: Path, fit_b: Path) -> list[str]:
    import numpy as np

    shown = [(name, *(f"{float(x):.3f}" for x in numbers)) for name, *numbers in rows[:_SHOWN]]
    more = [f"  ... and {len(rows) - _SHOWN:,} more: `--out TABLE.csv` has all"] if len(rows) > _SHOWN else []
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = f"{found.monte_carlo_error:.3f} of a's draws and {found.reference_monte_carlo_error:.3f} of b's"
        far = found.rms_difference
    return [
        f"a is {fit_a}, b is {fit_b}",
        "",
        *aligned([_HEAD, *shown]),
        *more,
        "",
        f"  The means differ by {far:.3f} sds (root mean square); Monte Carlo error alone makes {errors}.",
    ]


def _write(out: Path, rows: list[tuple[str, ...]]) -> None:
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_HEAD, *rows])
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, text.getvalue().encode())


def _saved(path: Path) -> "Facts | None":
    """What a saved fit says of itself; ``None`` where nothing was said, as in a file of draws."""
    from fedbayes.report.facts import facts_in
    from fedbayes.results.saved.folder import fit_folder, read_meta

    folder = fit_folder(path)
    if not (folder / "fit.json").is_file():
        return None
    try:
        meta = read_meta(folder)
    except ValueError as error:
        raise ClientDataError(str(error)) from None
    return None if meta.said is None else facts_in(folder, meta)
