"""Every notebook runs from top to bottom, prints what is stored in it and passes its checks; a reader can follow it."""

import ast
import re
from decimal import Decimal

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("nbclient")

import execution  # noqa: E402  (after what it needs)
from execution import CHECKS, FOLDER, checks_of, code_cells, differences, executed  # noqa: E402

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="these tests run away from a checkout")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


# Most of their time is compilation, and no number that they print is a chain's that another rounding leads elsewhere,
# or it is printed with few decimals: whether their programs are optimised as tests' are, or not at all. The programs of
# the other notebooks are compiled as a user's are.
COMPILED = {
    "fairness": False,
    "hospitals_by_formula": True,
    "meta_analysis": True,
    "multi_fidelity": True,
    "posterior_averaging": False,
    "related_engines": False,
    "survival": True,
    "variable_selection": True,
    "when_to_trust": False,
}

ALARMS = {  # of the notebooks that compare Monte Carlo estimates; what the others say depends on their data alone
    "fed_ensemble": 4e-6,  # sds of 150 draws within 5.2 errors, of a curve with some ten degrees of freedom
    "getting_started": 1e-4,  # as `fedbayes demo`
    "hospitals_by_formula": 2e-5,  # twenty numbers to a tenth of an sd, five errors of some 5,000 draws on both sides
    "langevin_gaussian": 1.2e-5,  # some twenty numbers to five standard errors
    "langevin_hospitals": 1e-4,
    "meta_analysis": 2e-6,  # a mean to five errors; two numbers to six and more
    # two measured errors to 0.12 posterior sds, four errors of some 1,000 effective draws; EP's 14 means to 0.05 rms,
    # which are draws worth 2,000: 2e-8
    "posterior_averaging": 1.3e-4,
    "students": 1e-9,  # twenty numbers to a tenth of an sd, more than six errors of some 4,600 draws
    "survival": 2e-5,  # as hospitals_by_formula
    # p-values of a calibration at 0.001, and four distribution functions, whose differences from the exact ones have
    # Kolmogorov's law for the effective draws and the 8,000 resampled ones: rates of 7e-5 and less
    "when_to_trust": 1.2e-3,
}


def marked(path):
    """A notebook, with its rate of false alarms if it has one; the keys are in its cells."""
    rate = ALARMS.get(path.stem)
    return pytest.param(path, marks=[] if rate is None else pytest.mark.statistical(key="its own", alarm=rate))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own: of sockets, event loops and kernels
@pytest.mark.parametrize("path", [marked(path) for path in NOTEBOOKS], ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(path):
    found = differences(nbformat.read(path, as_version=4), executed(path, COMPILED.get(path.stem)))
    assert not found, "\n".join(["run `make notebooks`, and look at what has changed:", *found])


@each_notebook
def test_a_notebook_is_committed_as_it_ran(path):
    assert path.stat().st_size < 1_000_000
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    assert any(map(shows_picture, cells))


@each_notebook
def test_what_must_hold_stands_in_checks_and_not_in_the_notebook(path):
    assert not [cell.source for cell in code_cells(nbformat.read(path, as_version=4)) if "assert" in cell.source]
    tree = ast.walk(ast.parse(checks_of(path).read_text()))
    assert any(isinstance(node, ast.Assert) for node in tree)


def test_no_checks_are_left_of_a_notebook_that_is_gone():
    assert {path.stem for path in CHECKS.glob("*.py")} == {path.stem for path in NOTEBOOKS}


@each_notebook
def test_a_notebook_asks_one_question_and_ends_with_its_answer(path):
    first, *_, last = nbformat.read(path, as_version=4).cells
    assert first.cell_type == last.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert first.source.count("?") == 1
    assert last.source.startswith("## Conclusion\n")


DERIVED = {  # from what is printed: a difference; exponentials of effects on the scale of the log
    "fairness": {"0.0007"},
    "meta_analysis": {"0.49", "0.35", "0.68", "0.75"},
}


DECIMAL, POWER = r"(?<![\w.])\d+\.\d", r"(?:e[-+]?\d+)?"  # signs are told in words


def printed(cell):
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


@each_notebook
def test_a_conclusion_quotes_what_is_printed(path):
    """Its numbers of two decimals and more, to rounding: they go stale where a notebook is run again."""
    *cells, last = nbformat.read(path, as_version=4).cells
    outputs = " ".join(printed(cell) for cell in cells if cell.cell_type == "code")
    known = [Decimal(number) for number in re.findall(rf"{DECIMAL}+{POWER}", outputs)]
    quoted = set(re.findall(rf"{DECIMAL}{{2,}}(?!\d){POWER}", last.source)) - DERIVED.get(path.stem, set())
    half = {number: Decimal((0, (5,), Decimal(number).as_tuple().exponent - 1)) for number in quoted}
    assert not [each for each in quoted if not any(abs(value - Decimal(each)) <= half[each] for value in known)]


def shows_picture(cell):
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


@each_notebook
def test_every_picture_is_told_in_words(path):
    cells = filter(shows_picture, code_cells(nbformat.read(path, as_version=4)))
    short = [
        f"cell {cell.execution_count}: {alt!r}"
        for cell in cells
        if len(alt := cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) < 40
    ]
    assert not short, "the cell's metadata need {'mystnb': {'image': {'alt': ...}}}: " + ", ".join(short)


def cell(source, *outputs):
    return nbformat.v4.new_code_cell(source, outputs=list(outputs))


def notebook_of(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


PRINTED = "converged after 4 rounds: off by 0.127 sds, 9,956 draws, 2e-16 by rounding"


@pytest.mark.parametrize("output", [{"text": PRINTED}, {"data": {"text/plain": PRINTED}}], ids=["print", "value"])
@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("0.127", "0.128", True),  # one unit of the last decimal
        ("9,956", "9,871", True),  # less than 5 percent
        ("2e-16", "9e-15", True),  # rounding errors
        ("0.127", "0.137", False),
        ("9,956", "4,551", False),
        ("4 rounds", "5 rounds", False),
        ("2e-16", "2e-06", False),
        ("0.127", "-0.127", False),
        ("converged", "NOT CONVERGED", False),
        ("draws", "draws of 12,000", False),
    ],
)
def test_a_number_or_a_word_that_has_changed_is_found(output, old, new, same):
    kind = "stream" if "text" in output else "execute_result"
    stored = notebook_of(cell("fit"), cell("fit", nbformat.v4.new_output(kind, **output)))
    run = nbformat.reads(nbformat.writes(stored).replace(old, new), as_version=4)
    assert (not differences(stored, run)) == same


def test_a_missing_picture_or_output_is_found():
    picture, words = {"image/png": "", "text/plain": "<Figure>"}, {"text/plain": "<Figure>"}
    stored = notebook_of(cell("plot()", nbformat.v4.new_output("display_data", data=picture)))
    lost = notebook_of(cell("plot()", nbformat.v4.new_output("display_data", data=words)))
    assert not differences(stored, stored)
    assert differences(stored, lost)
    assert differences(stored, notebook_of(cell("plot()")))


@pytest.mark.filterwarnings("ignore")  # Jupyter's own
@pytest.mark.parametrize(
    ("check", "says"), [("assert x == 1", None), ("assert x == 2, 'a planted bug'", r"planted\.py does not hold")]
)
def test_checks_run_in_the_kernel_and_leave_no_trace(check, says, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "CHECKS", tmp_path)
    path = tmp_path / "planted.ipynb"
    nbformat.write(notebook_of(cell("x = 1")), path)
    (tmp_path / "planted.py").write_text(check)
    if says is None:
        assert [each.source for each in executed(path).cells] == ["x = 1"]
    else:
        with pytest.raises(AssertionError, match=says) as caught:
            executed(path)
        assert "a planted bug" in str(caught.value)


def test_a_notebook_without_checks_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "CHECKS", tmp_path)
    nbformat.write(notebook_of(cell("x = 1")), tmp_path / "bare.ipynb")
    with pytest.raises(FileNotFoundError, match=r"bare\.py"):
        executed(tmp_path / "bare.ipynb")
