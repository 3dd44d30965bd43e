"""Every notebook runs from top to bottom, and its own assertions hold."""

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="these tests run away from a checkout")

ALARMS = {  # of the notebooks that compare Monte Carlo estimates; what the others say depends on their data alone
    "fed_ensemble": 3e-4,  # sds of 100 draws within 4.2 errors, of a curve with some ten degrees of freedom
    "getting_started": 1e-4,  # as `fedbayes demo`
    "langevin_gaussian": 1.5e-3,  # some twenty numbers to four standard errors
    "langevin_hospitals": 1e-4,
    "posterior_averaging": 5e-4,  # a ratio of errors of sixteen numbers each, about 4, in [1.5, 12]
    "when_to_trust": 0.014,  # Kolmogorov's 0.1 percent point four times, and p-values of a calibration at 0.01
}


def marked(path):
    """A notebook, with its rate of false alarms if it has one; the keys are in its cells."""
    rate = ALARMS.get(path.stem)
    return pytest.param(path, marks=[] if rate is None else pytest.mark.statistical(key="its own", alarm=rate))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own: of sockets, event loops and kernels
@pytest.mark.parametrize("path", [marked(path) for path in NOTEBOOKS], ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    # a notebook sees the machine as a user's does: one CPU device, its own backend
    monkeypatch.delenv("MPLBACKEND", raising=False)
    flags = os.environ.get("XLA_FLAGS", "").split()
    monkeypatch.setenv("XLA_FLAGS", " ".join(flag for flag in flags if "device_count" not in flag))
    monkeypatch.setenv("JPY_ALLOW_INSECURE_WRITES", "1")
    copy = shutil.copy(path, tmp_path)
    notebook = nbformat.read(copy, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(path):
    nbformat = pytest.importorskip("nbformat")
    assert path.stat().st_size < 1_000_000
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "assert" in cells[-1].source
