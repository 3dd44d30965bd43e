"""The faults of `benchmarks/planted_faults.py` can be planted: the line that each replaces is in the code, once."""

from os.path import normpath
from pathlib import Path

import fedbayes


def test_each_fault_has_its_line_and_a_name_of_its_own(load) -> None:
    faults = load("planted_faults").FAULTS
    package = Path(fedbayes.__file__).parent / "inference"
    sources = {fault.name: Path(normpath(package / fault.file)).read_text() for fault in faults}
    found = {fault.name: sources[fault.name].count(fault.right) for fault in faults}
    assert {name: count for name, count in found.items() if count != 1} == {}
    assert len(found) == len(faults) > 50
