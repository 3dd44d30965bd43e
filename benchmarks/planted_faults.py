"""Faults planted one by one in EP's server half and its local solvers: which test of `make test` notices?

    python benchmarks/planted_faults.py                     # all of them
    python benchmarks/planted_faults.py --only damping      # those whose name contains this
    python benchmarks/planted_faults.py --slow              # with the slow tests, too

Each fault is one replacement in a copy of the package, which the tests of ``tests/inference`` import in its place. The
test that has caught it before is tried first; where it passes, or none is known, all tests run, up to the first one
that fails. Results go to ``planted_faults.json``, and all of them into ``PLANTED_FAULTS.md``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pages import table

import fedbayes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NO_SUCH_TEST, NO_TESTS_RUN = 4, 5  # pytest's exit codes
TESTS = ("tests/inference/local", "tests/inference/test_mode.py", "tests/inference/ep")
STORE, PAGE = HERE / "planted_faults.json", HERE / "PLANTED_FAULTS.md"


class Fault(NamedTuple):
    """One replacement in a file below ``fedbayes/inference``."""

    name: str
    file: str
    right: str
    wrong: str


FAULTS = (
    # those that the tests once let pass
    Fault(
        "quadratic control variate without its mean",
        "local/moments.py",
        "residual * scores + 1.0, axis=1",
        "residual * scores, axis=1",
    ),
    Fault("damping twice as large", "ep/step.py", "2.0 * ratio / (1.0 + ratio)", "4.0 * ratio / (1.0 + ratio)"),
    Fault(
        "step although a cavity becomes improper",
        "ep/step.py",
        "& jnp.all(jax.vmap(cavity_is_proper)(state.sites))",
        "",
    ),
    # the server's half
    Fault("no trust region", "ep/step.py", "- 0.1 * identity", ""),
    Fault(
        "a client counts in its own cavity", "ep/server.py", "packed(state.global_() - site)", "packed(state.global_())"
    ),
    Fault("change of a damped round not undone", "ep/server.py", "rms / step, jnp.inf)", "rms, jnp.inf)"),
    Fault("messages of inactive clients used", "ep/server.py", "where(used, proposed, state.sites)", "proposed"),
    Fault(
        "the prior's site never refined",
        "ep/server.py",
        "where(_usable(refined), refined.site, state.prior)",
        "state.prior",
    ),
    Fault("converged at any noise", "ep/step.py", "| near) & (noise <= NOISE_TARGET)", "| near)"),
    Fault(
        "rounds without progress never forgotten",
        "ep/server.py",
        "jnp.where(fine, 0.0, state.stuck + 1.0)",
        "state.stuck + jnp.where(fine, 0.0, 1.0)",
    ),
    Fault("slope of the convex part at zero", "ep/step.py", "slope + precision @ position", "sites.shift"),
    # the local solvers
    Fault("no proposal density in the weights", "local/draws.py", "+ 0.5 * jnp.sum(noise**2, axis=1)", ""),
    Fault(
        "smoothed weights in the wrong places",
        "../numerics/importance.py",
        ".at[order].set(ranked)",
        ".at[jnp.argsort(order)].set(ranked)",
    ),
    Fault(
        "site of the first moment without the score",
        "local/moments.py",
        "slopes[0] + precision @ mean, precision",
        "precision @ mean, precision",
    ),
    Fault(
        "locals not integrated out of a Laplace site",
        "local/tilted.py",
        "curvature[:size, :size] - half.T @ half",
        "curvature[:size, :size]",
    ),
    Fault(
        "evidence of a Laplace site with the sign of its determinant",
        "local/tilted.py",
        "LOG_2PI - log_det(mode.white)",
        "LOG_2PI + log_det(mode.white)",
    ),
    Fault("wide half of a nested proposal not in the weights", "local/nested.py", " - size * jnp.log(wide)", ""),
    Fault(
        "spread of the locals not in the nested weights",
        "local/nested.py",
        " + jax.vmap(Conditional.log_spread)(locals_)",
        "",
    ),
    Fault("nested draws weighed evenly", "local/nested.py", "jnp.where(last, draws.weight, even)", "even"),
    Fault(
        "the cavity left in an opening site",
        "local/tilted.py",
        "marginal @ mean[:size] - cavity.shift, marginal - cavity.precision",
        "marginal @ mean[:size], marginal",
    ),
    Fault("the last Newton step not taken", "local/laplace.py", "jnp.where(done, after[0], position)", "position"),
    Fault(
        "noise of a site ten times too small",
        "local/moments.py",
        "jnp.sum(covariance * self.level) + 0.5 * entries",
        "0.01 * (jnp.sum(covariance * self.level) + 0.5 * entries)",
    ),
)


def plant(fault: Fault, folder: Path) -> None:
    """A copy of the package with the fault in it.

    Raises
    ------
    ValueError
        The text to replace is not, or not only once, in the file.
    """
    package = folder / "fedbayes"
    shutil.copytree(Path(fedbayes.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / "inference" / fault.file
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise ValueError(f"'{fault.right}' is {text.count(fault.right)} times in {fault.file}; it must be there once.")
    path.write_text(text.replace(fault.right, fault.wrong))


def caught_by(fault: Fault, known: str, *, slow: bool) -> str:
    """The first test that fails; empty if none does. ``known`` is tried before all others."""
    with tempfile.TemporaryDirectory() as folder:
        plant(fault, Path(folder))
        caught = _failing(folder, _where(known), slow=slow) if _where(known) else ""
        return caught or _failing(folder, [str(ROOT / name) for name in TESTS], slow=slow)


def _where(known: str) -> list[str]:
    """The address of a test that a page names by its file's name alone; empty where it is no more."""
    name, _, test = known.strip("`").partition("::")
    found = sorted(ROOT.glob(f"tests/inference/**/{name}")) if name else []
    return [f"{found[0]}::{test}"] if found and test.partition("[")[0] in found[0].read_text() else []


def _failing(folder: str, tests: list[str], *, slow: bool) -> str:
    """The first of these tests that fails on the package in a folder."""
    workers = ["-n", "2", "--dist", "loadfile"] if len(tests) > 1 else []
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-x", "-q", *workers, "-p", "no:cacheprovider", *(["-m", ""] * slow), *tests],
        env={**os.environ, "PYTHONPATH": folder},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (NO_SUCH_TEST, NO_TESTS_RUN) and len(tests) == 1:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?([^/\s]+\.py)::(\S+)", done.stdout, re.MULTILINE)
    if done.returncode and failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode} and names no test:\n{done.stdout[-2000:]}")
    return f"`{failed[1]}::{failed[2]}`" if failed else ""


_HEAD = """\
# Planted faults

Written by `planted_faults.py`. Each row is one replacement in a copy of the package, and a test of `make test` in
`tests/inference/ep`, `tests/inference/local` or `tests/inference/test_mode.py` that fails on it. Other tests may fail
too. The first three are faults that the tests once let pass.
"""


def page(found: Mapping[str, str]) -> str:
    """``PLANTED_FAULTS.md``."""
    faults = [fault for fault in FAULTS if fault.name in found]
    caught = sum(bool(found[fault.name]) for fault in faults)
    lines = [_HEAD, f"{caught} of {len(faults)} are caught.", ""]
    rows = [(each.name, f"`{each.file}`", found[each.name] or "**nothing**") for each in faults]
    return "\n".join([*lines, *table(("fault", "in", "caught by"), rows)])


def main(
    only: Annotated[str, typer.Option(help="A part of the names of the faults to plant.")] = "",
    slow: Annotated[bool, typer.Option("--slow", help="Run the slow tests, too.")] = False,
) -> None:
    """Plant, test, print, and write."""
    found = json.loads(STORE.read_text()) if STORE.exists() else {}
    for fault in FAULTS:
        if only in fault.name:
            found[fault.name] = caught_by(fault, found.get(fault.name, ""), slow=slow)
            print(f"{fault.name}: {found[fault.name] or 'NOTHING'}", flush=True)
            STORE.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    typer.run(main)
