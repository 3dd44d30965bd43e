"""What ``fedbayes report`` finds beside a fit of ``fedbayes fit``, and the whole fit with the files that it read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbayes.cli.files import read_clients
from fedbayes.errors import ReportError

if TYPE_CHECKING:
    from fedbayes.results.fit import FederatedFit

_EFFECTS = "Effects of sites and groups, on the scale of the link"
_SHOWN = ("unit", "term", "effect", "mean", "lower", "upper", "tau", "shrinkage")


def tables_beside(folder: Path) -> dict[str, Any]:
    """The effects that ``fedbayes fit`` has written beside the fit, by the title of their table."""
    file = folder / "effects.csv"
    if not file.is_file():
        return {}
    import pandas as pd

    try:
        found = pd.read_csv(file, dtype=dict.fromkeys(("unit", "term", "effect"), str))
    except ValueError:  # not what was written
        return {}
    return {_EFFECTS: found[[name for name in _SHOWN if name in found]]}


def whole_fit(folder: Path, data: Sequence[Path], by: str | None, encoding: str) -> "FederatedFit":
    """A fit of a regression with the files that it was fitted to.

    Raises
    ------
    ReportError
        It is no fit of `fedbayes fit --formula`, or the files are others.
    ClientDataError, FormulaError
        The files can't be read.
    """
    from fedbayes.fit import load_fit
    from fedbayes.formula.agreed import Agreed
    from fedbayes.formula.program.typed import prior_of
    from fedbayes.formula.regression import regression

    file = folder.absolute().parent / "agreed.json"
    if not file.is_file():
        raise ReportError(
            f"Data are read again for a fit by `fedbayes fit --formula`, and '{file}' is not there. Leave them out, or "
            "write in Python `fedbayes.load_fit(folder, model, clients).report(path)`."
        )
    agreed = Agreed.load(file)
    formulas = {name or "mu": text for name, text in agreed.formulas.items()}
    reg = regression(
        formulas,
        family=agreed.family,
        agreed=agreed,
        clients=read_clients(data, by, encoding),
        priors={name: prior_of(text, f"'{file}', the prior of '{name}'") for name, text in agreed.priors.items()},
        site=agreed.site,
        missing="drop" if agreed.drop else "refuse",
        **agreed.options,
    )
    try:
        return load_fit(folder, reg.model, reg.clients)
    except ValueError as error:
        raise ReportError(str(error)) from error
