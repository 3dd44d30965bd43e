"""Every notebook runs from top to bottom, and its own assertions hold."""

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="these tests run away from a checkout")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own: of sockets, event loops and kernels
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
