"""Stored fits, for whatever is drawn or printed; and the helpers beside this file."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the package itself is found where it is installed


@pytest.fixture(scope="session")
def stored_fits():
    """The module beside the stored fits: its recipes, and what reads them."""
    path = Path(__file__).parent / "stored" / "fits.py"
    spec = importlib.util.spec_from_file_location("stored_fits", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.read = cache(module.read)
    return module


@pytest.fixture(scope="session")
def small_fit(stored_fits):
    """A linear model of three clients; shared, so that no test may change it."""
    return stored_fits.read("linear")
