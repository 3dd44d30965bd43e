"""What holds for every test: two CPU devices, a compilation cache, the installed package, and a bound on memory.

Nearly all the time of a test goes into tracing and compiling. So programs are compiled without XLA's optimisations, but
for tests marked `optimised`, and they are shared by the tests of a process as far as its memory allows.
"""

import ctypes
import gc
import importlib.util
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEVICES = "--xla_force_host_platform_device_count"
# JAX 0.10 can deadlock on two independent batched LAPACK calls in one CPU program.
SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
# The older code generator, one thread, and less of LLVM: programs compile in about half the time.
# All runs have the same, and so have the processes that tests start, so that one can read what another has compiled.
QUICK = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_backend_optimization_level=1",
)


def accepted(flag: str) -> bool:
    """Whether the installed JAX starts with `flag`: XLA aborts the process on one it doesn't know."""
    environment = {**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def add_flag(flag: str) -> None:
    """Add it if the installed JAX takes it. The workers of pytest-xdist inherit it, and so ask no second time."""
    present = os.environ.get("XLA_FLAGS", "")
    if flag not in present and accepted(flag):
        os.environ["XLA_FLAGS"] = f"{present} {flag}".strip()


def set_environment() -> None:
    """Before the first import of JAX."""
    if DEVICES not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=2".strip()
    for flag in (SCHEDULER, *QUICK):
        add_flag(flag)
    os.environ["MPLBACKEND"] = "Agg"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax-cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def hide_checkout() -> None:
    """Take the repository root off sys.path (`python -m pytest` puts it there): the installed package is tested."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]


set_environment()
hide_checkout()

import jax  # noqa: E402  (after the environment it reads)

import fedbayes  # noqa: E402
from fedbayes.rounds.programs import forget_programs  # noqa: E402

M_ARENA_MAX = -8  # of glibc's malloc.h
C_LIBRARY = ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
# Bytes: a process that has grown to these lets go of its programs. At most three run at once, beside those they start.
ROOM = min(3e9, os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() / 8) if sys.platform == "linux" else 1.8e9
DURATIONS = Path(__file__).parent / "durations.json"


def pytest_sessionstart() -> None:
    """Collect garbage rarely: tracing makes many small objects, and what has been imported is not looked at again.

    Compilers' threads share two arenas of memory, so that less of it is kept unused.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if C_LIBRARY is not None:
        C_LIBRARY.mallopt(M_ARENA_MAX, 2)


def resident() -> int:
    """Memory of this process in bytes; zero where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def trim() -> None:
    """Give freed memory, of which glibc keeps much, back to the system."""
    if C_LIBRARY is not None:
        C_LIBRARY.malloc_trim(0)


@pytest.fixture(autouse=True)
def _bound_of_memory() -> Iterator[None]:
    """Programs are shared by the tests of a process, also of several files, while there is room for them."""
    yield
    if 0 < resident() < ROOM:
        return
    trim()
    if not 0 < resident() < ROOM:
        forget_programs()
        jax.clear_caches()
        gc.collect()
        trim()


@pytest.fixture(autouse=True)
def _effort_of_compilation(request: pytest.FixtureRequest) -> None:
    """Programs of tests marked `optimised` are compiled with some of XLA's optimisations, all others with none."""
    optimised = request.node.get_closest_marker("optimised") is not None
    if jax.config.read("jax_disable_most_optimizations") == optimised:
        jax.config.update("jax_disable_most_optimizations", not optimised)


@pytest.fixture(scope="module")
def rounds_alone() -> Iterator[None]:
    """Fits end with their rounds unless a test writes ``correct=True``: the check after them is not what it asks.

    Its folder's conftest asks for this. The check has tests of its own, and costs a third of a small fit.
    """
    fedbayes.fit_federated.__kwdefaults__["correct"] = False
    yield
    fedbayes.fit_federated.__kwdefaults__["correct"] = True


COLLECTED = pytest.StashKey[list[pytest.Item]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no worker ends minutes after the other.

    All tests are kept for the table of statistical ones, before the slow ones are left out.
    """
    lanes = {"not slow": ["fast"], "slow": ["slow"]}.get(config.option.markexpr, ["fast", "slow"])
    known = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -sum(known[lane].get(_file_of(item), 0) for lane in lanes))
    config.stash[COLLECTED] = list(items)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


@pytest.fixture(scope="session")
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Every test that was collected, also those that this run leaves out."""
    return request.config.stash[COLLECTED]


def pytest_terminal_summary(terminalreporter) -> None:
    """How much memory a worker has grown to."""
    largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    terminalreporter.write_line(f"largest process: {largest / (1 << 20):.1f} GiB")


@pytest.fixture(scope="session")
def shapes() -> ModuleType:
    """What tests of the shapes in signatures share, `tests/shapes.py`."""
    spec = importlib.util.spec_from_file_location("shapes", Path(__file__).parent / "shapes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
