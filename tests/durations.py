"""Write durations.json, the seconds of each test file, by which runs are ordered.

make test-all ARGS=--junitxml=report.xml
python tests/durations.py report.xml [more.xml ...]
"""

import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent


def seconds_by_file(reports: list[str]) -> dict[str, int]:
    """Rounded up, the longest first; a test's class in the report is its file's path with dots."""
    files = {
        str(path.relative_to(HERE.parent).with_suffix("")).replace("/", "."): path for path in HERE.rglob("test_*.py")
    }
    found: Counter[str] = Counter()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            path = files[case.get("classname", "")]
            found[str(path.relative_to(HERE))] += float(case.get("time", 0.0))
    return {name: int(seconds) + 1 for name, seconds in found.most_common()}


if __name__ == "__main__":
    (HERE / "durations.json").write_text(json.dumps(seconds_by_file(sys.argv[1:]), indent=0) + "\n")
