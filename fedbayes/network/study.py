"""What is fitted: the model and the method, which server and clients must have in common, down to the source text."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from fedbayes.contract.algorithm import Method
from fedbayes.fit import DEFAULT_METHOD, method_of
from fedbayes.problem.problem import Options
from fedbayes.problem.program.program import Model
from fedbayes.rounds.description import described

_LINES = 40  # of a difference that are shown
_LONGEST = 500  # characters of such a line
_TIMES, _MORE = 4, 10_000  # how much longer a client's description may be than the server's


class Common(Protocol):
    """What server and clients have in common, whatever the run is about."""

    @property
    def description(self) -> dict[str, str]:
        """All that must be the same everywhere, as text."""

    @property
    def digest(self) -> str:
        """Of the description; every message carries it."""


def digest_of(description: Mapping[str, str]) -> str:
    """What stands for a description in messages."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Study:
    """A model and a method, the same on the server and on every client.

    Parameters
    ----------
    model
        One client's NumPyro program.
    method
        Its name, or configured, as for :func:`fedbayes.fit_federated`.
    local
        Names of client-local latents, for a model that does not use ``fedbayes.local()``.
    dtype
        Precision in which the model runs.
    """

    model: Model
    method: str | Method = DEFAULT_METHOD
    local: Sequence[str] = ()
    dtype: Any = np.float64

    @cached_property
    def configured(self) -> Method:
        """The method with its options."""
        return method_of(self.method)

    @property
    def options(self) -> Options:
        """What the split of the model depends on."""
        return Options(self.model, tuple(self.local), np.dtype(self.dtype))

    @cached_property
    def description(self) -> dict[str, str]:
        """All that must be the same everywhere, as text: version of fedbayes, method, and the model's source."""
        return {
            "fedbayes": version("fedbayes"),
            "method": described(self.configured),
            "model": described(self.model),
            "local": str(sorted(self.local)),
            "dtype": str(np.dtype(self.dtype)),
        }

    @cached_property
    def digest(self) -> str:
        """Of the description; every message carries it."""
        return digest_of(self.description)


def difference(ours: Mapping[str, str], theirs: Mapping[str, str], name: str) -> str:
    """What differs between the server's description of a study and a client's, for a person to read."""
    found = []
    for part in ours:
        one, two = ours[part], theirs.get(part, "")
        if one != two:
            two = two[: _TIMES * len(one) + _MORE]  # it may come from anybody, and comparing takes long
            lines = difflib.unified_diff(one.splitlines(), two.splitlines(), "server", name, lineterm="", n=1)
            shown = [_printable(line) for line in list(lines)[:_LINES]]
            found.append(f"The {part} differs:\n" + "\n".join(shown))
    return "\n".join(found)


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() or each == "\t" else "?" for each in line[:_LONGEST])
