"""Importing fedbayes costs nothing and changes nothing."""

import ast
import inspect
import subprocess
import sys

import pytest

import fedbayes

OPTIONAL = ["dp_accounting", "flwr", "formulaic", "funsor", "matplotlib", "pandas", "polars", "torch"]

SIDE_EFFECTS = """
import os, warnings
import jax, numpyro
jax.devices()
config, environment, filters = dict(jax.config.values), dict(os.environ), list(warnings.filters)
arrays = len(jax.live_arrays())

import fedbayes, fedbayes.inference, fedbayes.models

assert len(jax.live_arrays()) == arrays, jax.live_arrays()
assert dict(jax.config.values) == config
assert dict(os.environ) == environment
assert list(warnings.filters) == filters
"""


def python(program: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True)


def test_import_allocates_no_array_and_changes_no_setting(tmp_path):
    result = python(SIDE_EFFECTS, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["fedbayes", "fedbayes.inference", "fedbayes.models"])
def test_import_loads_no_heavy_or_optional_package(package, tmp_path):
    result = python(f"import sys, {package}; print(*[m for m in {OPTIONAL} if m in sys.modules])", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


STARTED_LATER = """
import socket
import jax, fedbayes

for name in fedbayes.__all__:
    getattr(fedbayes, name)
with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"localhost:{port}", 1, 0)  # refuses once JAX has started
"""


def test_jax_starts_after_all_of_fedbayes_is_imported(tmp_path):
    """Platforms, devices and other processes can still be chosen."""
    result = python(STARTED_LATER, tmp_path)
    assert result.returncode == 0, result.stderr


LAZY = """
import sys, fedbayes, fedbayes.cli
from typer.testing import CliRunner

for arguments in (["--version"], ["--help"], ["demo", "--help"]):
    assert CliRunner().invoke(fedbayes.cli.app, arguments).exit_code == 0
assert not {"jax", "numpyro", "numpy", "arviz"} & set(sys.modules)
assert set(fedbayes.__all__) <= set(dir(fedbayes))
"""


def test_the_command_answers_questions_without_jax(tmp_path):
    result = python(LAZY, tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_table_is_split_without_jax(tmp_path):
    program = "import sys, fedbayes; fedbayes.clients_from_dataframe; print('jax' in sys.modules)"
    assert python(program, tmp_path).stdout == "False\n"


@pytest.mark.parametrize("name", ["models", "inference", "theory", "executors", "errors"])
def test_modules_are_found_on_first_use(name, tmp_path):
    result = python(f"import fedbayes; print(fedbayes.{name}.__name__)", tmp_path)
    assert result.stdout == f"fedbayes.{name}\n", result.stderr


def test_all_public_names_are_there():
    for name in fedbayes.__all__:
        assert getattr(fedbayes, name).__name__ == name
    assert sorted(fedbayes.__all__) == sorted(fedbayes._HOME)
    assert {method.__name__ for method in fedbayes.inference.METHODS.values()} <= set(fedbayes.__all__)


@pytest.mark.parametrize("name", ["nosuchname", "_private", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'fedbayes' has no attribute '{name}'"):
        getattr(fedbayes, name)


def test_type_checkers_are_told_the_same():
    """The imports for them name each public name in the module from which it is loaded."""
    (block,) = (node for node in ast.parse(inspect.getsource(fedbayes)).body if is_for_type_checkers(node))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == fedbayes._HOME


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
