"""What is in the checkout is what gets installed, under its one name."""

import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedbayes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"fedbayes": "fedbayes", "inference": "fedbayes.inference", "models": "fedbayes.models"}

in_checkout = pytest.mark.skipif(not (ROOT / "inference").is_dir(), reason="these tests run away from a checkout")


@in_checkout
@pytest.mark.parametrize("folder", ["inference", "models"])
def test_importing_a_folder_by_its_own_name_fails(folder):
    result = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True)
    last_line = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1
    assert last_line.startswith("ImportError")
    assert f"fedbayes.{folder}" in last_line


@in_checkout
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_of_the_checkout_is_installed(folder):
    installed = Path(find_spec(FOLDERS[folder]).submodule_search_locations[0])
    files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
    missing = [str(path) for path in files if path.suffix != ".pyc" and not (installed / path).exists()]
    assert files
    assert not missing, f"not installed: {missing}; name the package in pyproject.toml, or install again"


def test_the_version_is_the_one_in_pyproject():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert metadata.version("fedbayes") == version
    assert getattr(fedbayes, "__version__", version) == version
