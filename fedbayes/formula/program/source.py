"""The program as text: an ordinary NumPyro function, for reading, editing and running."""

import json
import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from keyword import iskeyword
from typing import Any

import numpy as np

from fedbayes.errors import FormulaError
from fedbayes.formula.families.family import Family, Parameter, Summary
from fedbayes.formula.program.priors import Priors


@dataclass
class Source:
    """What a program is made of while it is written.

    Attributes
    ----------
    family, summary, priors
        Of the regression.
    lines
        Of the function's body.
    sites
        Names of all sites so far, so that none comes twice.
    coords, dims
        For ArviZ.
    """

    family: Family
    summary: Summary
    priors: Priors
    lines: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    coords: dict[str, list[str]] = field(default_factory=dict)
    dims: dict[str, list[str]] = field(default_factory=dict)

    def site(self, name: str, *axes: Sequence[str] | None) -> str:
        """The name of a new site, quoted.

        Parameters
        ----------
        name
            Of the site.
        *axes
            Labels of the entries along each of its axes, where these have any.

        Raises
        ------
        FormulaError
            There is one of this name.
        """
        if name in self.sites:
            raise FormulaError(f"Two parameters would be called '{name}'. Rename the column, or leave a term out.")
        self.sites.append(name)
        if axes and all(axis is not None for axis in axes):
            dims = [f"{name}_dim" if len(axes) == 1 else f"{name}_dim_{place}" for place in range(len(axes))]
            self.dims[name] = dims
            self.coords |= {dim: list(axis) for dim, axis in zip(dims, axes, strict=True) if axis is not None}
        return json.dumps(name, ensure_ascii=False)

    def add(self, *lines: str) -> None:
        """Lines of the body."""
        self.lines += lines


def plain(name: str) -> str:
    """The name of a site: a term as it is written, but for the slash, which divides folders in a file of ArviZ."""
    return name.replace("/", "÷")


def argument(name: str, taken: Iterable[str]) -> str:
    """A name for variables that says what they are of, and is not taken."""
    found = re.sub(r"[^0-9a-zA-Z]+", "_", name).strip("_") or "group"
    found = f"of_{found}" if found[0].isdigit() or iskeyword(found) else found
    number, chosen = 1, found
    while chosen in taken:
        number += 1
        chosen = f"{found}_{number}"
    return chosen


def write_parameter(source: Source, parameter: Parameter) -> None:
    """A parameter beside the linear predictor, which is one for all rows."""
    size = parameter.shape(source.summary)
    shape = () if size is None else (size,)
    labels = _labels_of(parameter, source.summary, size)
    site = source.site(parameter.name, *([labels] if labels else []))
    text = source.priors.text(parameter.name, parameter.prior(source.summary), shape)
    source.add(f"{parameter.name} = numpyro.sample({site}, {text})")


def _labels_of(parameter: Parameter, summary: Summary, size: int | None) -> list[str] | None:
    if size is None:
        return None
    if len(summary.levels) == size:
        return list(summary.levels)
    ends = summary.settings.get("ends", ())
    edges = [0.0, *ends]
    return [f"{start:g} to {end:g}" for start, end in zip(edges, ends, strict=False)] + [f"after {edges[-1]:g}"]


def write_likelihood(source: Source, outcome: str, arguments: Sequence[str]) -> None:
    """The outcomes' law."""
    source.add(*source.family.before(source.summary))
    if source.family.name == "cumulative":
        levels = source.summary.levels
        source.site("threshold", [f"{low} | {high}" for low, high in pairwise(levels)])
    site = source.site(outcome)
    line = f"numpyro.sample({site}, {source.family.likelihood(source.summary)}, obs=y)"
    if "weights" in arguments:
        source.add("with numpyro.handlers.scale(scale=weights):", f"    {line}")
    else:
        source.add(line)


def finished(source: Source, title: str, arguments: Sequence[str]) -> str:
    """The whole text, from imports to the last line."""
    body = "\n".join(f"    {line}" for line in source.lines)
    imports = ["import jax.numpy as jnp", "import numpyro", "import numpyro.distributions as dist"]
    if "expit(" in body:
        imports.append("from jax.scipy.special import expit")
    imports += ["", *(["import fedbayes as fb"] if "fb.local" in body else []), *source.family.imports]
    optional = [name for name in arguments if name in _OPTIONAL]
    signature = ", ".join(
        [*(name for name in arguments if name not in _OPTIONAL), "y=None", *(f"{name}=None" for name in optional)]
    )
    head = "\n".join(imports).strip()
    return f"{head}\n\n\ndef model({signature}):\n    # {title}\n{body}\n"


_OPTIONAL = ("observed",)


def compiled(source: str) -> Callable[..., None]:
    """The function of a text that was written here; ``inspect.getsource`` finds the text.

    The text is made of the grammar's own words, numbers, and quoted names: nothing of a formula is run.
    """
    name = f"<regression {sha256(source.encode()).hexdigest()[:16]}>"
    namespace: dict[str, Any] = {"__name__": "regression"}
    exec(compile(source, name, "exec"), namespace)  # noqa: S102
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    model: Callable[..., None] = namespace["model"]
    return model


def numbers(values: np.ndarray) -> str:
    """An array as text, to the last digit."""
    return f"jnp.array({np.asarray(values).tolist()!r})"
