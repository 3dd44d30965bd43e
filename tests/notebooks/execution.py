"""Notebooks run by Jupyter; what two runs print is compared.

What must hold of a notebook's numbers is no matter for its reader: it stands in `checks/`, a file for each notebook,
and runs in the notebook's kernel after the last cell. `make notebooks` runs this file as a script: it executes the
notebooks named, or all, and writes them in place, without the checks.
"""

import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
CHECKS = Path(__file__).resolve().parent / "checks"

DEVICES = "--xla_force_host_platform_device_count"
# With how much effort tests compile, which `tests/conftest.py` sets.
EFFORT = (
    "--xla_cpu_use_fusion_emitters",
    "--xla_cpu_parallel_codegen_split_count",
    "--xla_backend_optimization_level",
)

# A number that is no part of a name: `x4` and `float64` are words, and `theta[4]` has a number.
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?")


def checks_of(path):
    return CHECKS / f"{path.stem}.py"


def executed(path, optimised=None):
    """The notebook after a run of all its cells by Jupyter, and of its checks, which are left out of what is returned.

    It sees the machine as a user's does: one CPU device, programs as JAX compiles them, Jupyter's pictures. Where
    `optimised` is told, its programs are compiled as a test's are that is marked so, or as one's that is not.
    """
    os.environ.setdefault("JPY_ALLOW_INSECURE_WRITES", "1")
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    checks = nbformat.v4.new_code_cell(checks_of(path).read_text())
    notebook.cells.append(checks)
    environment = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "JAX_DISABLE_MOST_OPTIMIZATIONS")}
    left_out = (DEVICES,) if optimised is not None else (DEVICES, *EFFORT)
    flags = os.environ.get("XLA_FLAGS", "").split()
    environment["XLA_FLAGS"] = " ".join(flag for flag in flags if flag.partition("=")[0] not in left_out)
    if optimised is False:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    # tqdm without Jupyter's widgets; and what hangs on the machine, and on what else it does
    environment["PYTHONWARNINGS"] = "ignore:IProgress not found,ignore:This fit will go on for"
    with TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": empty}},
            record_timing=False,
            coalesce_streams=True,  # how a stream is cut is chance
        )
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            if "error" not in [output.output_type for output in checks.outputs]:
                raise
            raise AssertionError(f"{path.name} runs, but {checks_of(path).name} does not hold:\n{error}") from None
    assert checks.execution_count, f"the checks of {path.name} did not run"
    notebook.cells.remove(checks)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    return [sorted(output.get("data", [output.output_type])) for output in cell.outputs]


def differences(stored, new):
    """How the outputs of a new run differ from the stored ones: a line for each output, empty where they agree."""
    found = []
    for number, (a, b) in enumerate(zip(code_cells(stored), code_cells(new), strict=True), start=1):
        if kinds(a) != kinds(b):
            found.append(f"cell {number}: {kinds(a)} are stored, {kinds(b)} are new")
            continue
        texts = zip(map(text, a.outputs), map(text, b.outputs), strict=True)
        found += [
            f"cell {number}: {why}\nstored: {old}\nnew:    {now}" for old, now in texts if (why := unlike(old, now))
        ]
    return found


def text(output):
    return output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")


def unlike(old, new):
    """Why two texts say different things, or nothing: the words are the same, and the numbers close.

    Keys are fixed, so that on the same machine the numbers are the same. Another machine rounds differently: a number
    may differ by 5 percent, or by one unit of its last decimal; rounding errors, below 1e-8, by anything. A whole
    number has no decimals, so that counts up to 19 are the same.
    """
    if NUMBER.sub("#", old).split() != NUMBER.sub("#", new).split():
        return "other words"
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return ", ".join(f"{a} is now {b}" for a, b in pairs if not close(a, b))


def close(old, new):
    a, b = (float(number.replace(",", "")) for number in (old, new))
    mantissa, _, exponent = old.partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent else 0.0
    return abs(a - b) <= max(0.05 * abs(a), 1.001 * unit, 1e-8)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(path.name, flush=True)
