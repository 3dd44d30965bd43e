"""Importing fedbayes costs nothing and changes nothing."""

import subprocess
import sys

import pytest

OPTIONAL = ["dp_accounting", "flwr", "funsor", "matplotlib", "pandas"]

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
