"""What all clients agree on about a regression, as one value: with it the regression needs nobody's rows."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedbayes.errors import UNREADABLE, FormulaError
from fedbayes.formula.design.agreement import Agreement
from fedbayes.formula.design.design import Design
from fedbayes.formula.design.factors import Polynomial, Scales, Spline
from fedbayes.formula.design.tables import label_text
from fedbayes.formula.families.family import Summary
from fedbayes.formula.grammar.expressions import read_expression
from fedbayes.formula.program.groups import Group
from fedbayes.formula.program.predictor import Columns
from fedbayes.runtime.files import replace_file

_FORMAT = 1  # raised when the file changes
_LARGEST = 1 << 24  # bytes


@dataclass(frozen=True)
class Agreed:
    """All that the clients of a regression have in common: levels, means, sds, knots, and what outcomes are like.

    It holds numbers about all clients together, and none of a single one, unless one client alone has a level. In one
    process notes also say how many rows of which client were left out.

    Attributes
    ----------
    formulas
        By parameter of the family; the empty name is the outcome's.
    family, options
        Its name, and what it was given, such as ``ends``.
    site
        The word that stands for the client.
    declared
        Levels that were declared.
    drop
        Whether rows that lack a value are left out.
    num_clients
        How many have agreed.
    outcome_levels, outcome_scales
        Of an outcome of levels, in order; centre and scale of each scaled part of the outcome.
    columns
        Levels, scales, knots and coefficients of all factors.
    predictors
        Everybody's means and sds of each linear predictor's columns, by parameter.
    summary
        Of all outcomes.
    notes
        What may surprise.
    priors
        Those that were given in place of defaults, as text. They are part of the study, and are only compared.

    See Also
    --------
    regression : Makes it, and takes it in place of the clients' tables.
    describe : The clients' tables before they agree.

    Examples
    --------
    >>> import pandas as pd, fedbayes as fb
    >>> table = pd.DataFrame({"y": [1.0, 2.0, 1.5, 2.5], "sex": ["f", "m", "f", "m"]})
    >>> agreed = fb.regression("y ~ sex", clients={"north": table, "south": table}).agreed
    >>> agreed.num_clients, agreed.summary.rows
    (2, 8.0)
    """

    formulas: Mapping[str, str]
    family: str
    options: Mapping[str, Any]
    site: str
    declared: Mapping[str, tuple[str, ...]]
    drop: bool
    num_clients: int
    outcome_levels: tuple[str, ...]
    outcome_scales: Scales
    columns: Agreement
    predictors: Mapping[str, Columns]
    summary: Summary
    notes: tuple[str, ...]
    priors: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: str | os.PathLike) -> None:
        """Write it as JSON, which a person can read, and :meth:`load` reads again.

        Parameters
        ----------
        path
            The file; its folder must be there.

        Raises
        ------
        FormulaError
            There is no such folder.

        Examples
        --------
        >>> import fedbayes as fb
        >>> rows = {"a": {"x": [0.0, 1.0, 2.0, 4.0], "y": [1.0, 2.0, 2.0, 5.0]}}
        >>> fb.regression("y ~ x", clients=rows).agreed.save("agreed.json")  # doctest: +SKIP
        >>> fb.regression("y ~ x", agreed="agreed.json")  # doctest: +SKIP
        """
        folder = Path(path).parent
        if not folder.is_dir():
            raise FormulaError(
                f"The agreement can't be saved as '{path}': there is no folder '{folder}'. Make it first."
            )
        told = self._written()
        told = {"format": _FORMAT, "fedbayes": version("fedbayes"), **told, "sha256": _digest(told)}
        replace_file(Path(path), _readable(told).encode())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Agreed":
        """Read what :meth:`save` has written.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Agreed
            Equal to what was saved, to the last bit.

        Raises
        ------
        FormulaError
            There is no such file; it is none of these, of another version, or was changed since.

        Examples
        --------
        >>> fb.Agreed.load("agreed.json").columns.levels  # doctest: +SKIP
        """
        told = _told(Path(path))
        try:
            return _read(told)
        except FormulaError:
            raise
        except UNREADABLE as error:
            raise FormulaError(f"'{path}' is no agreement on a regression. {_HOW}") from error

    def of_predictor(self, name: str, design: Design, groups: Sequence[Group]) -> Columns:
        """The means and sds of a linear predictor's columns.

        Raises
        ------
        FormulaError
            There are none, or for other columns.
        """
        found = self.predictors.get(name, Columns(np.zeros(0), np.zeros(0)))
        wide = tuple(len(group.effects) for group in groups)
        if len(found.means) != design.width or tuple(map(len, found.of_groups)) != wide:
            raise FormulaError(
                f"The agreement is about {len(found.means)} columns, and the formula has {design.width}. {_HOW}"
            )
        return found

    def check(self, formulas: Mapping[str, str], family: str, options: Mapping[str, Any]) -> None:
        """Refuse another formula or family than those that were agreed on.

        Raises
        ------
        FormulaError
            With both.
        """
        for name in dict.fromkeys([*self.formulas, *formulas]):
            agreed, written = (" ".join(each.get(name, "").split()) for each in (self.formulas, formulas))
            if agreed != written:
                what = f"The formula of {name}" if name else "The formula"
                raise FormulaError(
                    f"{what} is {written or 'none'!r}, and was {agreed or 'none'!r} when the clients agreed. {_HOW}"
                )
        if family != self.family:
            raise FormulaError(f"The family is {family}, and was {self.family} when the clients agreed. {_HOW}")
        if _plain(options) != _plain(self.options):
            raise FormulaError(
                f"The family's options are {_plain(options)}, and were {_plain(self.options)} when the clients agreed. "
                f"{_HOW}"
            )

    def check_declared(self, levels: Mapping[str, Sequence[Any]], site: str, drop: bool) -> None:
        """Refuse other levels, another word for the client, or another way with missing values, where one is given.

        Raises
        ------
        FormulaError
            With both.
        """
        for name, given in levels.items():
            known = self.declared.get(name, self.columns.levels.get(name, self.outcome_levels))
            if tuple(map(label_text, given)) != known:
                raise FormulaError(
                    f"The levels of '{name}' are {list(given)}, and were {list(known)} when the clients agreed. {_HOW}"
                )
        if site not in ("site", self.site):
            raise FormulaError(f"`site` is {site!r}, and was {self.site!r} when the clients agreed. {_HOW}")
        if drop and not self.drop:
            raise FormulaError(f"`missing` is 'drop', and was 'refuse' when the clients agreed. {_HOW}")

    def check_priors(self, given: Mapping[str, str]) -> None:
        """Refuse priors in place of defaults that are not those with which the clients agreed.

        Raises
        ------
        FormulaError
            With the first of which this is so.
        """
        for name in dict.fromkeys([*self.priors, *given]):
            agreed, written = self.priors.get(name, "the default"), given.get(name, "the default")
            if agreed != written and self.priors:
                raise FormulaError(
                    f"The prior of '{name}' is {written}, and was {agreed} when the agreement was saved. Give the same "
                    f"`priors`, or save the agreement of a regression without any."
                )

    def _written(self) -> dict[str, Any]:
        columns = self.columns
        return {
            "formula": {name or "mu": text for name, text in self.formulas.items()},
            "family": self.family,
            "options": _plain(self.options),
            "site": self.site,
            "declared": _plain(self.declared),
            "drop": self.drop,
            "clients": self.num_clients,
            "rows": columns.rows,
            "levels": _plain(columns.counts),
            "scales": _plain(columns.scales),
            "shapes": {name: _written_shape(shape) for name, shape in columns.shapes.items()},
            "columns": {name or "mu": _written_columns(each) for name, each in self.predictors.items()},
            "outcome": {
                **_plain(self.summary._asdict()),
                "levels": list(self.outcome_levels),
                "scales": _plain(self.outcome_scales),
            },
            "notes": list(self.notes),
            "priors": dict(self.priors),
        }  # fmt: skip


_HOW = "Ask the clients again: `fedbayes.regression(formula, clients=...)`, and `.agreed.save('agreed.json')`."


def _told(path: Path) -> dict[str, Any]:
    """What a file says, unchanged since it was saved."""
    try:
        if path.stat().st_size > _LARGEST:
            raise FormulaError(f"'{path}' has more than {_LARGEST:,} bytes, and is no agreement. {_HOW}")
        told = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise FormulaError(f"'{path}' can't be read: {error.strerror or error}.") from error
    except UNREADABLE as error:
        raise FormulaError(f"'{path}' is no file of JSON, as an agreement is. {_HOW}") from error
    if not isinstance(told, dict) or not {"format", "sha256", "formula", "columns"} <= told.keys():
        raise FormulaError(f"'{path}' is no agreement on a regression. {_HOW}")
    if told.pop("format") != _FORMAT:
        raise FormulaError(f"'{path}' was saved by another version, fedbayes {told.get('fedbayes')}. {_HOW}")
    told.pop("fedbayes", None)
    if told.pop("sha256") != _digest(told):
        raise FormulaError(
            f"'{path}' was changed after it was saved: what all clients have agreed on is not to be edited. {_HOW}"
        )
    return told


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number on which anybody has agreed.")


def _digest(told: Mapping[str, Any]) -> str:
    """Of what a file says, in its order: the first level is the one that others are compared with."""
    return hashlib.sha256(json.dumps(told, allow_nan=False).encode()).hexdigest()


def _readable(told: Mapping[str, Any]) -> str:
    """One line for each part, and for each column within it."""
    lines = []
    for name, value in told.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, dict) and len(text) > 80:
            inside = [f"    {json.dumps(key)}: {json.dumps(each, allow_nan=False)}" for key, each in value.items()]
            text = "{\n" + ",\n".join(inside) + "\n  }"
        lines.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read(told: Mapping[str, Any]) -> Agreed:
    formulas = {"" if name == "mu" else name: str(text) for name, text in told["formula"].items()}
    counts = {
        name: {level: (int(rows), int(clients)) for level, (rows, clients) in found.items()}
        for name, found in told["levels"].items()
    }
    levels = {name: tuple(found) for name, found in counts.items()}
    shapes = {name: _read_shape(name, shape) for name, shape in told["shapes"].items()}
    columns = Agreement(levels, counts, _read_scales(told["scales"]), shapes, int(told["rows"]))
    predictors = {"" if name == "mu" else name: _read_columns(each) for name, each in told["columns"].items()}
    outcome = dict(told["outcome"])
    outcome_levels, scales = tuple(map(str, outcome.pop("levels"))), _read_scales(outcome.pop("scales"))
    settings = {name: _tuples(value) for name, value in outcome.pop("settings").items()}
    numbers = {name: float(value) for name, value in outcome.items()}
    declared = {name: tuple(map(str, given)) for name, given in told["declared"].items()}
    return Agreed(
        formulas, str(told["family"]), told["options"], str(told["site"]), declared, bool(told["drop"]),
        int(told["clients"]), outcome_levels, scales, columns, predictors,
        Summary(**numbers, levels=outcome_levels, settings=settings), tuple(map(str, told["notes"])),
        {name: str(text) for name, text in told["priors"].items()},
    )  # fmt: skip


def _written_shape(shape: Spline | Polynomial) -> dict[str, Any]:
    if isinstance(shape, Spline):
        return {"knots": list(shape.knots), "degree": shape.degree, "with_first": shape.with_first}
    return {"centre": shape.centre, "scale": shape.scale, "coefficients": _plain(shape.coefficients)}


def _read_shape(name: str, told: Mapping[str, Any]) -> Spline | Polynomial:
    expression = read_expression(name)
    if "knots" in told:
        knots = tuple(map(float, told["knots"]))
        return Spline(expression, knots, int(told["degree"]), bool(told["with_first"]))
    coefficients = tuple(tuple(map(float, row)) for row in told["coefficients"])
    return Polynomial(expression, float(told["centre"]), float(told["scale"]), coefficients)


def _written_columns(columns: Columns) -> dict[str, Any]:
    return {
        "means": _plain(columns.means),
        "sds": _plain(columns.sds),
        "of_groups": [_plain(sds) for sds in columns.of_groups],
        "offset": columns.offset,
    }


def _read_columns(told: Mapping[str, Any]) -> Columns:
    means, sds = np.asarray(told["means"], float), np.asarray(told["sds"], float)
    if means.ndim != 1 or means.shape != sds.shape:
        raise ValueError("There is a mean and an sd for each column.")
    return Columns(means, sds, tuple(np.asarray(each, float) for each in told["of_groups"]), float(told["offset"]))


def _read_scales(told: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(centre), float(scale)) for name, (centre, scale) in told.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
