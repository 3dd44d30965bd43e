"""What is in the checkout is what gets installed, under its one name."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedbayes
import fedbayes.inference

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "fedbayes": "fedbayes",
    "inference": "fedbayes.inference",
    "models": "fedbayes.models",
    "theory": "fedbayes.theory",
}

SOURCES = tuple(f"{ROOT / folder}/" for folder in FOLDERS)

in_checkout = pytest.mark.skipif(not (ROOT / "inference").is_dir(), reason="these tests run away from a checkout")


@in_checkout
@pytest.mark.parametrize("folder", ["inference", "models", "theory"])
def test_importing_a_folder_by_its_own_name_fails(folder):
    result = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True)
    last_line = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1
    assert last_line.startswith("ImportError")
    assert f"fedbayes.{folder}" in last_line


# without site-packages: a linked package (`pip install -e`) has a finder there, which knows the folders
ALONE = "-S"


def python(program: str, cwd: Path, *flags: str) -> str:
    result = subprocess.run([sys.executable, *flags, "-c", program], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@in_checkout
@pytest.mark.parametrize(
    "first",
    ["import fedbayes.inference", "import fedbayes.models.gp", "import fedbayes.theory", "from fedbayes import EP"],
)
def test_a_checkout_can_be_imported_as_it_stands(first):
    program = f"""{first}
import collections, sys, fedbayes, fedbayes.models.gp
assert fedbayes.EP is fedbayes.inference.METHODS["ep"]
files = {{name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}}
ours = {{name: file for name, file in files.items() if file.startswith({SOURCES})}}
assert {{"fedbayes", "fedbayes.inference", "fedbayes.inference.ep.method", "fedbayes.models.gp"}} <= set(ours)
assert all(name.split(".")[0] == "fedbayes" for name in ours), ours
assert max(collections.Counter(ours.values()).values()) == 1, "a file was loaded twice"
assert not [name for name in files if name.split(".")[0] == "fedbayes" and name not in ours], "a second copy"
"""
    python(program, ROOT)


@in_checkout
def test_a_checkout_is_imported_without_jax():
    assert python("import sys, fedbayes; print({'jax', 'numpy'} & set(sys.modules))", ROOT) == "set()\n"


@in_checkout
def test_theory_is_imported_without_jax_and_the_methods():
    program = "import sys, fedbayes.theory; print({'jax', 'fedbayes.inference', 'fedbayes.models'} & set(sys.modules))"
    assert python(program, ROOT) == "set()\n"


@in_checkout
def test_a_checkout_has_one_package_of_the_name():
    """The folder that holds `inference/` holds `fedbayes/`, too."""
    program = """
import pkgutil, fedbayes
found = {module.name for module in pkgutil.iter_modules(fedbayes.__path__)}
assert {"inference", "models", "theory", "rounds"} <= found
try:
    import fedbayes.fedbayes
except ImportError as error:
    print(error)
"""
    assert python(program, ROOT, ALONE) == "this is `fedbayes`, not `fedbayes.fedbayes`: write `import fedbayes`\n"


def test_the_installed_package_is_one_folder(tmp_path):
    """What stands beside it is never looked at: site-packages may hold another package called `inference`."""
    program = "import fedbayes.inference; print(len(fedbayes.__path__), fedbayes.__file__)"
    assert python(program, tmp_path) == f"1 {fedbayes.__file__}\n"


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_beside_is_taken_only_where_none_is_inside(complete, tmp_path):
    """A made-up installation: the face of the package, and folders called `inference` inside and beside."""
    inside = [tmp_path / "fedbayes" / "inference"] if complete else []
    for folder in [tmp_path / "fedbayes", tmp_path / "inference", *inside]:
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    (tmp_path / "fedbayes" / "__init__.py").write_text(Path(fedbayes.__file__).read_text())
    found = python("import fedbayes.inference; print(fedbayes.inference.__file__)", tmp_path, ALONE).strip()
    assert Path(found).parent == [*inside, tmp_path / "inference"][0]


@in_checkout
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_of_the_checkout_is_installed(folder):
    installed = Path(find_spec(FOLDERS[folder]).submodule_search_locations[0])
    files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
    missing = [str(path) for path in files if path.suffix != ".pyc" and not (installed / path).exists()]
    assert files
    assert not missing, f"not installed: {missing}; name the package in pyproject.toml, or install again"


MOST = 14  # Python files in a folder: a reader takes in at a glance what it holds


def numbers_of_files(folder: Path) -> dict[str, int]:
    """Of Python files, in a folder and in each folder below it."""
    walk = os.walk(folder, followlinks=True)
    return {os.path.relpath(path, folder): sum(name.endswith(".py") for name in files) for path, _, files in walk}


def crowded(folder: Path) -> dict[str, int]:
    return {path: number for path, number in numbers_of_files(folder).items() if number > MOST}


def test_no_folder_is_crowded():
    installed = Path(find_spec("fedbayes").submodule_search_locations[0])
    assert len(numbers_of_files(installed)) > 20
    assert crowded(installed) == {}


def test_a_planted_file_too_many_is_found(tmp_path):
    (tmp_path / "room" / "below").mkdir(parents=True)
    (tmp_path / "room" / "data.csv").touch()
    for number in range(MOST):
        (tmp_path / "room" / f"module_{number}.py").touch()
    assert crowded(tmp_path) == {}
    (tmp_path / "room" / "one_more.py").touch()
    assert crowded(tmp_path) == {"room": MOST + 1}


HALVES = {"__init__.py", "options.py", "method.py", "server.py", "client.py", "answer.py", "DESIGN.md"}
METHODS = Path(find_spec("fedbayes.inference").submodule_search_locations[0])
FOLDERS_OF_METHODS = sorted(path.parent.name for path in METHODS.glob("*/DESIGN.md"))


@pytest.mark.parametrize("folder", FOLDERS_OF_METHODS)
def test_every_method_has_the_same_files(folder):
    """So that a reader who knows one folder finds the way in the next."""
    assert {path.name for path in (METHODS / folder).iterdir()} >= HALVES


def test_every_method_of_a_folder_stands_in_its_method_file():
    homes = {cls.__module__ for cls in fedbayes.inference.METHODS.values()} - {"fedbayes.inference.laplace"}
    assert homes == {f"fedbayes.inference.{folder}.method" for folder in FOLDERS_OF_METHODS}


def test_the_version_follows_from_tags():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
    assert fedbayes.__version__ == metadata.version("fedbayes")
