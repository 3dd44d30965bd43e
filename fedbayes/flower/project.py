"""A new project: a study that runs at once over a network, to be edited."""

import re
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np

# three sites, and one that joins later, with the hospitals' names in the data
_SITES = {"cleveland": "cleveland", "budapest": "hungarian", "long-beach": "va", "zurich": "switzerland"}
_OUTCOME = "disease"


def write_project(folder: Path) -> list[Path]:
    """Write a Flower project with the heart study, and four hospitals' files to try it on.

    Parameters
    ----------
    folder
        Where to; it is made where there is none.

    Returns
    -------
    list[Path]
        The files, relative to the folder.

    Raises
    ------
    FileExistsError
        The folder is not empty, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise FileExistsError(
            f"'{folder}' {what}. Name a folder that is empty or not there yet: nothing is overwritten."
        )
    template = Path(__file__).with_name("template")
    copytree(template, folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))
    (folder / "gitignore").rename(folder / ".gitignore")
    settings = folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace("STUDY", _project_name(folder)))
    for script in folder.glob("*.sh"):
        script.chmod(0o755)  # a wheel may have forgotten it
    _write_data(folder / "data")
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _project_name(folder: Path) -> str:
    """The folder's name as Flower takes it for a project's: letters, digits and hyphens, at most 32."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"study-{name}")[:32].strip("-")


def _write_data(folder: Path) -> None:
    """The hospitals, each a file, with all digits of its numbers."""
    from fedbayes.models import heart_disease

    folder.mkdir(mode=0o700)
    hospitals, names = heart_disease.coarse_clients(), heart_disease.COARSE
    for site, hospital in _SITES.items():
        x, y = hospitals[hospital]["x"], hospitals[hospital]["y"]
        rows = [
            [*(repr(float(value)) for value in row), str(int(sick))] for row, sick in zip(np.asarray(x), y, strict=True)
        ]
        lines = [",".join(row) for row in [[*names, _OUTCOME], *rows]]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
