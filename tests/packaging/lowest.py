"""The lower bounds of `pyproject.toml` as pins, for `pip install --constraint`.

    python lowest.py pyproject.toml EXTRA...

With them a release is installed beside the oldest packages that it says it takes.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement


def lowest(text: str, extras: list[str]) -> list[str]:
    """A pin for each package that the project, or one of these extras, asks for."""
    project = tomllib.loads(text)["project"]
    asked = project["dependencies"] + [each for extra in extras for each in project["optional-dependencies"][extra]]
    return sorted({_pin(Requirement(each)) for each in asked})


def _pin(asked: Requirement) -> str:
    bounds = [each.version for each in asked.specifier if each.operator == ">="]
    if len(bounds) != 1:
        raise ValueError(f"'{asked}' has {len(bounds)} lower bounds; write one, such as '{asked.name}>=1.2'.")
    return f"{asked.name}=={bounds[0]}"


if __name__ == "__main__":
    print(*lowest(Path(sys.argv[1]).read_text(), sys.argv[2:]), sep="\n")
