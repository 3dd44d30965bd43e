"""What `fit.converged` means: one table for all methods, and one limit."""

import re
from pathlib import Path

import jax

import fedbayes as fb
import fedbayes.contract.answer as contract
from fedbayes.inference import METHODS
from fedbayes.models import linear

ROOT = Path(__file__).parents[2]


def table() -> str:
    text = (ROOT / "DESIGN.md").read_text()
    return text.split("### What converged means")[1].split("\n### ")[0]


def test_every_method_is_in_the_table() -> None:
    rows = [line for line in table().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {method.__name__ for method in METHODS.values()} | {"GIFAIR"}
    assert all(len(row.split("|")) == 6 and all(cell.strip() for cell in row.split("|")[1:5]) for row in rows)


def test_the_docstring_and_the_table_agree_with_the_limits() -> None:
    assert fb.FederatedFit.converged.__doc__ is not None
    assert '"What converged means"' in fb.FederatedFit.converged.__doc__
    assert f"{contract.ERROR_LIMIT} posterior sds" in " ".join(fb.FederatedFit.converged.__doc__.split())
    assert f"{contract.ERROR_LIMIT} posterior sds" in table()
    assert f"R-hat {contract.R_HAT_LIMIT}" in table()
    assert f"{contract.ESS_LIMIT:.0f} draws" in table()


def test_no_method_has_a_limit_of_its_own() -> None:
    """Neither of errors nor of R-hat: they are those of the contract."""
    for path in (ROOT / "inference").rglob("*.py"):
        assert not re.search(r"^_?(ERROR_LIMIT|BIAS_LIMIT|R_HAT\w*|ESS\w*) *[,=]", path.read_text(), re.MULTILINE), path


def test_a_long_tolerance_does_not_lower_the_bar() -> None:
    """Newton's steps from a far start: the last one is no longer than the limit, whatever the tolerance is."""
    clients, _ = linear.simulate(jax.random.key(1))
    method = fb.Laplace(tolerance=1e3)
    fit = fb.fit_federated(linear.model, clients, method=method, key=jax.random.key(0), progress=False, correct=False)
    assert fit.converged
    assert float(fit.rounds["change"][-1].max()) <= contract.ERROR_LIMIT
