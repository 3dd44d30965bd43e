"""``fedbayes fit`` and ``check`` on a study file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import typer

from fedbayes.cli.columns import ReadBy, check_columns
from fedbayes.cli.files import Asked, by_file, check_names, of_files, read_clients
from fedbayes.cli.methods import configured
from fedbayes.cli.study import StudyFile, load_study, telling
from fedbayes.errors import ClientDataError, ModelError

if TYPE_CHECKING:
    import pandas as pd

    from fedbayes.owner.disclosure import Disclosure
    from fedbayes.results.fit import FederatedFit

_SHOWN = 40  # rows of a summary in the terminal


@dataclass(frozen=True)
class StudyJob:
    """A study file with the clients' data."""

    study: StudyFile
    clients: Mapping[str, Mapping[str, Any]] = field(repr=False)
    chosen: Any

    def __repr__(self) -> str:
        lines = [f"Study {self.study.path}", f"  method: {self.chosen!r}", f"  clients: {', '.join(self.clients)}"]
        return "\n".join(lines)

    def fit(self, **options: Any) -> "FederatedFit":
        """As :func:`fedbayes.fit_federated`."""
        from fedbayes.fit import fit_federated

        study = self.study
        with telling(study.path):
            return fit_federated(
                study.model, self.clients, method=self.chosen, coords=study.coords, dims=study.dims, **options
            )

    def disclosure(self) -> "Disclosure":
        """What the default rules find in the clients' data."""
        study = self.study
        with telling(study.path):
            return disclosed(study.model, self.clients, self.chosen, study.coords, study.dims)

    def write(self, found: "FederatedFit", folder: Path, level: float) -> dict[str, str]:
        """Print what people read, and write all of it; from the files' names to what they are."""
        table = _summary(found.idata, level)
        typer.echo(_shown(table) + "\n")
        table.to_csv(folder / "summary.csv", index=False)
        copyfile(self.study.path, folder / self.study.path.name)
        return {
            "summary.csv": "the table above",
            "fit": _save(found, folder / "fit"),
            self.study.path.name: "the study, as it was fitted",
        }


def study_job(asked: Asked) -> StudyJob:
    """The study and the clients' data of the files that the command was given.

    Raises
    ------
    ClientDataError, ModelError
        What is wrong, the value seen, and what to write instead.
    """
    path, data = asked.data[0], asked.data[1:]
    of_formulas = {"formula": asked.formula, "family": asked.family, "levels": asked.levels, "prior": asked.priors}
    for option, given in of_formulas.items():
        if given:
            raise ClientDataError(
                f"`--{option}` is for a regression by a formula, and {path} is a study, which has a model of its own. "
                f"Leave out `--{option}`, or the study."
            )
    if not data:
        raise ClientDataError(f"No tables are given beside the study {path}. Write them after it: {path} NORTH.csv ...")
    study = load_study(path)
    chosen = configured(asked.method or _method(study), asked.options)
    return StudyJob(study, _clients_of(study, data, asked), chosen)


def _clients_of(study: StudyFile, data: Sequence[Path], asked: Asked) -> dict[str, Any]:
    """The model's arguments, by client: of tables that are read here, or as the study's own function reads files."""
    of_table = getattr(study.load_data, "of_table", None)
    if of_table is None or any(path.suffix.lower() == ".npz" for path in data):
        return _read_by_study(study, data, asked)
    reads = ReadBy(study.load_data.names, numbers=study.load_data.names)  # type: ignore[attr-defined]
    found = read_clients(data, asked.by, asked.encoding)
    tables = of_files(data, found, asked.by)
    check_columns(tables, reads, f"The study {study.path}", dropped=asked.drop_missing)
    clients = {}
    for name, (path, table) in by_file(data, found, asked.by).items():
        kept = table.dropna(subset=list(reads.names)) if asked.drop_missing else table
        if not len(kept):
            raise ClientDataError(f"{path}: client '{name}' has no row that lacks no value. Leave the client out.")
        if len(kept) < len(table):
            typer.echo(f"{path}: {len(table) - len(kept)} of {len(table)} rows of '{name}' lack a value: left out.")
        with telling(study.path):
            clients[name] = of_table(kept, path)
    return clients


def _read_by_study(study: StudyFile, data: Sequence[Path], asked: Asked) -> dict[str, Any]:
    for option, given in (
        ("by", asked.by),
        ("drop-missing", asked.drop_missing),
        ("encoding", asked.encoding != "utf-8"),
    ):
        if given:
            raise ClientDataError(
                f"`--{option}` is about tables, and `load_data` of {study.path} reads its files by itself. Leave it "
                "out, and let `load_data` do that; or write `load_data = fedbayes.flower.data.columns(...)`."
            )
    check_names(data)
    clients = {}
    for path in data:
        if not path.is_file():
            raise ClientDataError(f"There is no file {path}.")
        with telling(study.path):
            clients[path.stem] = study.load_data({"site-id": path.stem, "data-path": str(path)})
        if not isinstance(clients[path.stem], Mapping):
            raise ModelError(
                f"`load_data` of {study.path} returns a {type(clients[path.stem]).__name__} for {path}. Return the "
                'model\'s arguments, `{"x": ..., "y": ...}`.'
            )
    return clients


def disclosed(
    model: Any,
    clients: Mapping[str, Mapping[str, Any]],
    method: Any,
    coords: Mapping[str, Sequence[Any]],
    dims: Mapping[str, Sequence[str]],
    columns: Mapping[str, Sequence[str]] | None = None,
) -> "Disclosure":
    """What the default rules find, after all that a fit checks before its first round.

    Parameters
    ----------
    model, clients, method, coords, dims
        As for :func:`fedbayes.fit_federated`.
    columns
        As for :func:`fedbayes.disclosure`.

    Raises
    ------
    ClientDataError, ModelError, ValueError
        As :func:`fedbayes.fit_federated`.
    """
    import numpy as np

    from fedbayes.fit import method_of, problem_for
    from fedbayes.owner.disclosure import disclosure_of
    from fedbayes.owner.rules import DisclosureRules
    from fedbayes.results.presented import Presentation, check_names
    from fedbayes.runtime.precision import computing

    with computing():
        problem = problem_for(method_of(method), model, clients, (), np.float64)
        check_names(problem, Presentation(1, dict(coords), dict(dims), (), False))
    return disclosure_of(problem, DisclosureRules(), columns=columns)


def _method(study: StudyFile) -> Any:
    from fedbayes.fit import method_of

    try:
        return method_of(study.method)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{study.path}: {error}") from None


def _summary(idata: Any, level: float) -> "pd.DataFrame":
    """Mean, sd and equal-tailed interval of every quantity, and how well its chains have mixed."""
    import numpy as np
    import pandas as pd

    from fedbayes.numerics.chains import chain_diagnostics
    from fedbayes.questions.comparison import flat_draws

    draws = flat_draws(idata)
    every = np.stack(list(draws.values()), axis=-1)
    ends = np.quantile(every, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=(0, 1))
    mixed = chain_diagnostics(every)
    return pd.DataFrame(
        {
            "quantity": list(draws),
            "mean": every.mean((0, 1)),
            "sd": every.std((0, 1), ddof=1),
            f"lower {level:.0%}": ends[0],
            f"upper {level:.0%}": ends[1],
            "r_hat": mixed["r_hat"].to_numpy(),
            "effective draws": mixed["ess"].to_numpy(),
        }
    )


def _shown(table: "pd.DataFrame") -> str:
    """The first rows of a summary, for a terminal."""
    from fedbayes.owner.text import aligned

    rows = [
        [str(row[0]), *(f"{value:.3f}" for value in row[1:-1]), f"{row[-1]:.0f}"]
        for row in table.head(_SHOWN).itertuples(index=False)
    ]
    more = [f"... and {len(table) - _SHOWN:,} more, in summary.csv"] if len(table) > _SHOWN else []
    return "\n".join([*aligned([["", *table.columns[1:]], *rows]), *more])


def _save(found: "FederatedFit", folder: Path) -> str:
    """Write a fit; where its method can't be written to a file, what ArviZ reads of it. What was written, in words."""
    try:
        found.save(folder)
    except ValueError:  # an option is a function
        folder.mkdir(exist_ok=True)
        found.idata.to_netcdf(str(folder / "posterior.nc"))
        found.rounds.to_netcdf(folder / "rounds.nc", engine="h5netcdf")
        return "posterior.nc and rounds.nc alone, for ArviZ: a function of the method can't be written"
    return "fedbayes.load_fit(...), whose .idata is for ArviZ"
