"""Write into durations.json the seconds of each file's slow tests, or of its others: runs are ordered by them.

make test ARGS=--junitxml=report.xml       then   python tests/durations.py fast report.xml
make test-slow ARGS=--junitxml=report.xml  then   python tests/durations.py slow report.xml
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


def write(lane: str, reports: list[str]) -> None:
    """Replace the seconds of one of the two lanes, ``"fast"`` or ``"slow"``."""
    known = json.loads((HERE / "durations.json").read_text())
    if lane not in known:
        raise SystemExit(f"The lane is {lane!r}; write one of {sorted(known)}, and then the reports.")
    (HERE / "durations.json").write_text(json.dumps({**known, lane: seconds_by_file(reports)}, indent=0) + "\n")


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2:])
