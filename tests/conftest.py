"""What holds for every test: two CPU devices, a compilation cache, the installed package."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEVICES = "--xla_force_host_platform_device_count"
SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler"


def accepted(flag: str) -> bool:
    """Whether the installed JAX starts with `flag`: XLA aborts the process on a flag it doesn't know."""
    environment = {**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def set_environment() -> None:
    """Before the first import of JAX. The workers of pytest-xdist inherit it, and so ask no second time."""
    flags = os.environ.get("XLA_FLAGS", "")
    if DEVICES not in flags:
        flags += f" {DEVICES}=2"
    # JAX 0.10 can deadlock on two independent batched LAPACK calls in one CPU program.
    if SCHEDULER not in flags and accepted(f"{SCHEDULER}=false"):
        flags += f" {SCHEDULER}=false"
    os.environ["XLA_FLAGS"] = flags.strip()
    os.environ["MPLBACKEND"] = "Agg"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax-cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def hide_checkout() -> None:
    """Take the repository root off sys.path (`python -m pytest` puts it there): the installed package is tested."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]


set_environment()
hide_checkout()

import jax  # noqa: E402  (after the environment it reads)

from fedbayes.rounds.programs import forget_programs  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _let_go_of_programs() -> Iterator[None]:
    """A worker's memory stays that of one test file: compiled programs don't outlive it."""
    yield
    forget_programs()
    jax.clear_caches()


COLLECTED = pytest.StashKey[list[pytest.Item]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests, before the slow ones are left out: for the table of statistical tests."""
    config.stash[COLLECTED] = list(items)


@pytest.fixture(scope="session")
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Every test that was collected, also those that this run leaves out."""
    return request.config.stash[COLLECTED]


def pytest_terminal_summary(terminalreporter) -> None:
    """How much memory a worker has grown to."""
    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    terminalreporter.write_line(f"largest process: {largest / (1 << 20):.1f} GiB")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
