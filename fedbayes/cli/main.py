"""The command ``fedbayes``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbayes.cli import analysis, comparing, network

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from fedbayes.questions.comparison import Comparison
    from fedbayes.results.fit import FederatedFit

app = typer.Typer(
    help="Federated Bayesian inference for NumPyro programs.", no_args_is_help=True, pretty_exceptions_show_locals=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fedbayes {version('fedbayes')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated Bayesian inference for NumPyro programs."""


app.command()(analysis.fit)
app.command()(analysis.check)
app.command()(analysis.describe)
app.command()(analysis.report)
app.command()(comparing.compare)
app.command()(network.new)
app.command()(network.disclosure)
app.command()(network.approve)
app.command()(network.keys)
app.command()(network.check_node)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(network.start_node)
app.command()(network.log)
app.command()(network.privacy)
app.command()(network.client_posterior)
app.command()(network.predict)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(file_okay=False, help="Folder for the posterior and the pictures.")] = Path(
        "fedbayes-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    nuts: Annotated[bool, typer.Option(help="Compare with NUTS on the pooled data.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Few draws: to see that it runs.")] = False,
) -> None:
    """Heart disease in four hospitals: a federated fit by expectation propagation, against NUTS on the pooled data."""
    import time
    import warnings

    from rich.console import Console

    from fedbayes.pictures import drawing
    from fedbayes.runtime.compiling import cache_programs

    cache_programs()
    console = Console(highlight=False)
    try:
        drawing.require_matplotlib()
    except ImportError as error:
        Console(stderr=True).print(str(error), style="red", markup=False)
        raise typer.Exit(1) from None
    started = time.perf_counter()
    warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
    _run_demo(console, output, seed, nuts, quick)
    console.print(f"\nDone in {time.perf_counter() - started:.0f} seconds.")
    posterior = output / "posterior.nc"
    console.print(
        f"Next: look at the posterior by `arviz.summary(arviz.from_netcdf('{posterior}'))`, and fit a model of your "
        "own by `fedbayes.fit_federated(model, clients, key=jax.random.key(0))`: `help(fedbayes.fit_federated)`.",
        soft_wrap=True,
        markup=False,
    )


def _run_demo(console: "Console", folder: Path, seed: int, nuts: bool, quick: bool) -> None:
    from fedbayes.cli import demo as job
    from fedbayes.questions.comparison import compare

    size, progress = job.QUICK if quick else job.FULL, console.is_terminal
    _heading(console, "The clients", "Logistic regression of heart disease. The patients stay in their hospitals.")
    _show(console, _clients_table())
    _tell_disclosure(console, job)
    _heading(console, "The federated fit", f"{job.METHOD}. The first round of each phase compiles: some seconds.")
    fit = job.fit(seed, size=size, progress=progress)
    _show(console, rounds_table(fit))
    console.print(repr(fit), markup=False, soft_wrap=True)
    _heading(console, "The posterior", "az.summary(fit.idata)")
    _show(console, summary_table(fit.idata))
    reference = None
    if nuts:
        _heading(console, "NUTS on the pooled data", "Only here can all patients be put in one place.")
        reference = job.pooled_nuts(seed, size=size, progress=progress)
        comparison = compare(fit.idata, reference)
        _show(console, comparison_table(comparison))
        console.print(_verdict(comparison))
    _heading(console, "The careful fit", "Three hospitals, and columns in which no value belongs to few patients.")
    careful = job.careful_fit(seed, size=size, progress=progress)
    _show(console, comparison_table(compare(careful.idata, fit.idata), "careful", "full"))
    console.print("Zurich has recorded cholesterol as 0 for all patients: without Zurich its coefficient is different.")
    _heading(console, "The files")
    for what, path in job.save(fit, folder, reference).items():
        console.print(f"  {what:<30} {path}", soft_wrap=True, markup=False)


def _tell_disclosure(console: "Console", job: Any) -> None:
    """What the hospitals would not send over a network, and what a careful analyst does about it."""
    from fedbayes.models import heart_disease

    _heading(console, "What a hospital would not send", "fedbayes.disclosure(model, clients)")
    found = job.disclosed(heart_disease.clients(), heart_disease.COORDS["coefficient"])
    console.print(repr(found), markup=False, soft_wrap=True)
    console.print(
        "Where one patient alone has some finding, the hospital's messages give away all covariates of this patient. A "
        "careful analyst merges values that few patients have, uses only the men of Long Beach, which has five women, "
        "and does without Zurich, where only one patient has no disease:",
        soft_wrap=True,
    )
    console.print(repr(job.disclosed(job.careful_clients(), heart_disease.COARSE)), markup=False, soft_wrap=True)
    console.print("These patients are public, so the fit below has all of them, and the careful one stands beside it.")


def rounds_table(fit: "FederatedFit") -> "Table":
    """What each round did; with several replicates and clients, the worst of them.

    A dash stands for what a round does not report.

    Parameters
    ----------
    fit
        A fit.

    Returns
    -------
    rich.table.Table
        One row per round.

    Raises
    ------
    ValueError
        The fit lacks the diagnostic ``change``.
    """
    from fedbayes.results.rounds import check_diagnostics

    check_diagnostics(fit.rounds, ["change"], "rounds_table", fit.method)
    rows: list[list[str]] = []
    rounds, phase, number = fit.rounds, "", 0
    for i in range(rounds.sizes["round"]):
        record = rounds.isel(round=i)
        name = str(record["phase"].item())
        number = number + 1 if name == phase else 1
        change, noise, step, k_hat = (
            _known(record, which) for which in ("change", "monte_carlo_noise", "step", "k_hat")
        )
        rows.append(
            [
                name if name != phase else "",
                str(number),
                f"{max(change):.3g}" if change else "–",
                f"{max(noise):.3f}" if max(noise, default=0.0) > 0 else "–",
                f"{min(step):.2f}" if step else "–",
                f"{max(k_hat):.2f}" if k_hat else "–",
                f"{float(record['seconds']):.2f}",
            ]
        )
        phase = name
    return _table(["phase", "round", "change, sd", "Monte Carlo\nnoise, sd", "step", "k-hat", "seconds"], rows)


def _known(record: "xr.Dataset", name: str) -> list[float]:
    """All values of a diagnostic in one round, over clients and replicates, that are not NaN."""
    return [] if name not in record else [value for value in record[name].to_numpy().ravel().tolist() if value == value]


def summary_table(idata: Any) -> "Table":
    """``az.summary`` as a table, whatever ArviZ's generation puts into it.

    Parameters
    ----------
    idata
        ArviZ object with a group ``posterior``.

    Returns
    -------
    rich.table.Table
        One row per parameter.
    """
    import arviz as az

    summary = az.summary(idata, group="posterior")
    columns = [str(column) for column in summary.columns]
    rows = [
        [str(row[0]), *(_cell(name, value) for name, value in zip(columns, row[1:], strict=True))]
        for row in summary.itertuples()
    ]
    return _table(["", *(name.replace("_", "\n") for name in columns)], rows)


def _cell(column: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.{0 if column.startswith('ess') else 2 if column == 'r_hat' else 3}f}"


def comparison_table(comparison: "Comparison", name: str = "federated", reference: str = "NUTS") -> "Table":
    """Means and sds of both posteriors, parameter by parameter.

    Parameters
    ----------
    comparison
        A posterior against a reference.
    name, reference
        What the columns call them.

    Returns
    -------
    rich.table.Table
        One row per parameter.
    """
    columns = ["", *(f"{who}\n{what}" for who in (name, reference) for what in ("mean", "sd"))]
    columns += [f"difference,\n{reference} sds", "sd\nratio"]
    rows = []
    for row in comparison.rows:
        moments = (row.mean, row.sd, row.reference_mean, row.reference_sd)
        rows.append([row.name, *(f"{x:.3f}" for x in moments), f"{row.difference:+.3f}", f"{row.sd_ratio:.3f}"])
    return _table(columns, rows)


def _verdict(comparison: "Comparison") -> str:
    return (
        f"The means differ by [bold]{comparison.rms_difference:.3f} sds[/bold] (root mean square). "
        f"Monte Carlo error alone makes {comparison.reference_monte_carlo_error:.3f} of NUTS's draws "
        f"and {comparison.monte_carlo_error:.3f} of fedbayes's."
    )


def _clients_table() -> "Table":
    from fedbayes.cli.demo import HOSPITALS
    from fedbayes.models import heart_disease

    rows = [
        [name, HOSPITALS[name], str(len(data["y"])), f"{data['y'].mean():.0%}"]
        for name, data in heart_disease.clients().items()
    ]
    return _table(["client", "hospital", "patients", "with heart disease"], rows, words=2)


def _heading(console: "Console", title: str, text: str = "") -> None:
    console.print(f"\n[bold]{title}[/bold]")
    if text:
        console.print(text, style="dim", markup=False)


def _show(console: "Console", table: "Table") -> None:
    console.print("", table, "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> "Table":
    """A table whose first ``words`` columns are words, and the others numbers."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < words else "right", no_wrap=True, vertical="bottom")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
