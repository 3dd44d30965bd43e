"""All that a report says of a fit, as one value: of a fit in this process, or of its folder alone.

Nothing here is a client's: no row, no column, no count of few rows. What the value has is what ``print(fit)``,
``fit.idata``, ``fit.rounds``, ``fit.error`` and ``fit.conflict()`` show to whoever has the fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedbayes.questions.sensitivity import sensitivity
from fedbayes.questions.summary import CAN_BE_USED, summary, tables, trouble
from fedbayes.report.priors import priors_of, source_of
from fedbayes.report.tables import Given
from fedbayes.results.corrected import check_is_due
from fedbayes.results.fitted import Fitted, cost, rounds
from fedbayes.results.posterior import idata
from fedbayes.results.rounds import Communication
from fedbayes.results.saved.folder import TABLES, Saved, SavedPosterior, read_table
from fedbayes.results.saved.regression import Regressed

if TYPE_CHECKING:
    import xarray as xr

_LABEL = len("  globals   ")  # of a line of the printed fit
_MANY = 50  # globals, beyond which the sensitivity of all of them takes long


class Facts(NamedTuple):
    """What a report says of a fit.

    Attributes
    ----------
    summary, trouble
        The printed fit, and what is wrong with it; empty: nothing, or not known.
    method
        With its settings.
    clients
        Name and number of rows of each, as the server knows them.
    globals
        Shape of each, unconstrained.
    locals
        Names of the latents that stay with their client.
    idata
        The posterior for ArviZ.
    tables
        ``"rounds"``, ``"error"``, ``"conflict"``: those that there are.
    progress
        The diagnostic by which the rounds are judged; empty if none is known.
    falls
        Whether it falls to zero.
    tolerance
        Of it; ``None`` where the method has none.
    cost
        Of all exchanges.
    key
        Of all randomness, as JAX makes it again.
    elsewhere
        Whether the clients were other processes.
    whole
        Whether model and data are at hand.
    source, priors
        The program's text, and each global's prior; empty where they can't be had.
    sensitivity
        To prior and likelihood; ``None`` where it was not cheap.
    regression
        What was fitted, where that was a formula.
    given
        Further tables, of whoever asked for the report.
    """

    summary: str
    trouble: str
    method: str
    clients: Sequence[tuple[str, float]]
    globals: Mapping[str, tuple[int, ...]]
    locals: Sequence[str]
    idata: Any
    tables: Mapping[str, "xr.Dataset"]
    progress: str
    falls: bool
    tolerance: float | None
    cost: Communication | None
    key: str
    elsewhere: bool
    whole: bool
    source: str = ""
    priors: Mapping[str, str] = {}
    sensitivity: "xr.Dataset | None" = None
    regression: Regressed | None = None
    given: Sequence[Given] = ()

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The printed fit below its first line, without what it can be asked next: labels and what they say."""
        lines = [(line[:_LABEL].strip(), line[_LABEL:]) for line in self.summary.splitlines()[1:]]
        return [line for line in lines if line[0] != "look at"]

    @property
    def conclusion(self) -> str:
        """Whether the posterior may be used: the printed fit's last line."""
        told = dict(self.lines)
        unknown = "whether fit.idata can be used was not saved with the fit"
        return told.get("verdict", told.get("so", unknown))  # "so" in fits that were saved by early versions

    @property
    def converged(self) -> bool:
        """Whether the rounds have converged, as the printed fit's first line says."""
        return "NOT CONVERGED" not in self.summary.partition("\n")[0]

    @property
    def usable(self) -> bool:
        """Whether it may be used as it is."""
        return self.conclusion.startswith(CAN_BE_USED)


def facts_of(fitted: Fitted) -> Facts:
    """Of a fit in this process; its clients are asked for no more than ``fit.idata`` asks them."""
    draws, problem, roster = idata(fitted), fitted.problem, fitted.roster
    progress = _progress(rounds(fitted), fitted.method.progress)
    names = dict.fromkeys(name for latents in roster.locals for name in latents.block.names)
    return Facts(
        summary(fitted),
        "" if check_is_due(fitted) else trouble(fitted),
        repr(fitted.method),
        list(zip(roster.names, np.asarray(roster.rows).tolist(), strict=True)),
        dict(roster.globals.shapes),
        list(names) or list(fitted.shown.local),
        draws,
        tables(fitted),
        progress,
        progress == fitted.method.progress[0],
        fitted.method.tolerance,
        cost(fitted),
        _key(fitted.key),
        problem.elsewhere,
        True,
        source_of(problem) if fitted.regression is None else fitted.regression.source,
        priors_of(problem) if fitted.regression is None else fitted.regression.priors,
        _cheap_sensitivity(fitted),
        fitted.regression,
    )


def _cheap_sensitivity(fitted: Fitted) -> "xr.Dataset | None":
    """Where nobody elsewhere has to be asked for it, and there are few globals.

    Of a loaded fit the clients in this process are asked once more, and that is no exchange of the fit's.
    """
    if fitted.problem.elsewhere or fitted.roster.size > _MANY:
        return None
    loaded = fitted.saved is not None
    try:
        return sensitivity(replace(fitted, clients=fitted.clients.aside(), answers={}) if loaded else fitted)
    except ValueError:  # a point, or clients that are coupled
        return None


def facts_in(folder: Path, saved: Saved) -> Facts:
    """Of a saved fit, from its folder alone.

    Raises
    ------
    ValueError
        A file in it can't be read.
    FileNotFoundError
        It has no posterior.
    """
    draws = SavedPosterior(folder, saved.cost, saved.checked).read()
    if draws is None:
        raise FileNotFoundError(f"'{folder}' holds no 'posterior.nc', and a report is of the posterior.")
    said, about = saved.said, saved.about
    found = {name: table for name in TABLES if (table := read_table(folder, name)) is not None}
    options = ", ".join(f"{name}={value!r}" for name, value in saved.options.items())
    return Facts(
        f"FederatedFit by {saved.method}" if said is None else said.summary,
        "" if said is None else said.trouble,
        f"{saved.method}({options})",
        [(str(name), float(rows)) for name, rows in about.get("clients", ())],
        {name: tuple(shape) for name, shape in about.get("globals", {}).items()},
        saved.shown.local,
        draws,
        found,
        _progress(found.get("rounds"), ("change",)),
        True,
        saved.options.get("tolerance"),
        None if said is None else said.cost,
        _key(saved.key),
        bool(about.get("elsewhere")),
        False,
        "" if saved.regression is None else saved.regression.source,
        {} if saved.regression is None else saved.regression.priors,
        regression=saved.regression,
    )


def _progress(table: "xr.Dataset | None", names: Sequence[str]) -> str:
    """The first of the diagnostics that has numbers; empty if none has."""
    if table is None:
        return ""
    return next((name for name in names if name in table and bool(np.isfinite(table[name]).any())), "")


def _key(key: jax.Array) -> str:
    data = np.asarray(jax.random.key_data(key)).tolist()
    return f"jax.random.wrap_key_data(jax.numpy.array({data}, 'uint32'), impl='{jax.random.key_impl(key)}')"
