"""A saved fit without its model and the clients' data: what its files tell."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedbayes.questions.regression.coefficients import Coefficients, coefficients, known
from fedbayes.report.writing import report_saved
from fedbayes.results.rounds import Communication
from fedbayes.results.saved.folder import Said, Saved, SavedPosterior, read_table

if TYPE_CHECKING:
    import xarray as xr

_LOOK_AT = "  look at "


class SavedFit:
    """A fit read from its folder alone, by ``fedbayes.load_fit(path)``: neither the model nor any data are needed.

    It has what the fit had found when it was saved, under the names that these have in
    :class:`~fedbayes.FederatedFit`. What asks the clients, or runs the model, takes both.

    Parameters
    ----------
    folder
        Of the fit.
    saved
        What its ``fit.json`` says.
    """

    def __init__(self, folder: Path, saved: Saved) -> None:
        self._folder, self._saved = folder, saved

    @cached_property
    def idata(self) -> Any:
        """The global posterior for ArviZ."""
        found = SavedPosterior(self._folder, self._saved.cost, self._saved.checked).read()
        if found is None:
            raise FileNotFoundError(f"'{self._folder}' holds no 'posterior.nc'. {self._whole()}")
        return found

    def summary_table(self, level: float = 0.9) -> Coefficients:
        """Every coefficient of a regression, as :meth:`fedbayes.FederatedFit.summary_table` has it.

        Parameters
        ----------
        level
            Probability of the intervals.

        Returns
        -------
        Coefficients
            The same table.

        Raises
        ------
        FormulaError
            The fit knows of no regression.
        ValueError
            ``level`` is no probability.
        """
        return coefficients(known(self._saved.regression), self.idata["posterior"], level)

    @cached_property
    def rounds(self) -> "xr.Dataset":
        """Diagnostics per round."""
        return self._table("rounds")

    @cached_property
    def error(self) -> "xr.Dataset":
        """How far the Gaussian answer is from the posterior, by importance weights."""
        return self._table("error")

    def conflict(self) -> "xr.Dataset":
        """Whether what each client says of the globals agrees with what all the others say."""
        return self._table("conflict")

    def trouble(self) -> str:
        """What is wrong with the fit, in words, and what to try; empty if nothing is."""
        return self._said.trouble

    def report(
        self,
        path: str | os.PathLike,
        *,
        question: str = "",
        source: str = "",
        tables: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a report of the fit as :meth:`fedbayes.FederatedFit.report` does; it says what needs model and data.

        Parameters
        ----------
        path
            The file; one that is there is replaced by a whole one, or stays as it is.
        question
            What was asked, for the preamble.
        source
            The program's text, which was saved of a regression by a formula alone.
        tables
            Further tables by title, as for the fit itself.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        ReportError
            The path is a folder, or lies in one that does not exist; or ``tables`` holds something else.
        FileNotFoundError
            The fit's folder holds no posterior.
        """
        return report_saved(self._folder, self._saved, path, question=question, source=source, tables=tables)[0]

    @property
    def converged(self) -> bool:
        """Whether the rounds have ended where they lead."""
        return bool(self.idata["posterior"].attrs["converged"])

    @property
    def communication(self) -> Communication:
        """Exchanges and bytes per client of all that the fit had been asked."""
        return self._said.cost

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients, in the order given."""
        return tuple(name for name, _ in self._saved.about["clients"])

    @property
    def global_labels(self) -> list[str]:
        """Names of the unconstrained globals."""
        return self._said.labels

    @property
    def _said(self) -> Said:
        if self._saved.said is None:
            raise ValueError(f"The fit in '{self._folder}' was saved by an earlier version. {self._whole()}")
        return self._saved.said

    def _table(self, name: str) -> "xr.Dataset":
        found = read_table(self._folder, name)
        if found is None:
            raise ValueError(
                f"'{self._folder}' holds no '{name}.nc': the fit had none when it was saved. {self._whole()}"
            )
        return found

    def _whole(self) -> str:
        if self._saved.about.get("elsewhere"):
            return "It was made over a network, and its clients can't be asked again."
        return f"Load it with its model and data: `fedbayes.load_fit('{self._folder}', model, clients)`."

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"A fit that is read without its model and data has no `{name}`; it has {', '.join(_public())}. "
            f"{self._whole()}"
        )

    def __repr__(self) -> str:
        if self._saved.said is None:
            return f"FederatedFit by {self._saved.method}, saved by an earlier version in '{self._folder}'"
        there = [f"fit.{name}" for name in ("idata", "rounds")]
        there += [
            f"fit.{call}" for call in ("error", "conflict()") if (self._folder / f"{call.strip('()')}.nc").is_file()
        ]
        lines = self._saved.said.summary.splitlines()
        shown = f"{_LOOK_AT}  {', '.join(there)}; read without model and data"
        return "\n".join(shown if line.startswith(_LOOK_AT) else line for line in lines)


def _public() -> list[str]:
    return [name for name in vars(SavedFit) if not name.startswith("_")]
