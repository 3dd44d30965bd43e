"""The page on warnings quotes what the package says, and has each warning that it gives."""

import ast
import re
from pathlib import Path

import pytest

import fedbayes

PACKAGE = Path(fedbayes.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "when-warned.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the checkout alone")

# What a fit says of what is wrong with it is put together in these functions and constants.
OF_TROUBLE = {
    "contract/answer.py": {"_trouble"},
    "inference/ep/answer.py": {"verdict", "_advice", "_FAR", "_PRIORS", "_PARAMETRISATION"},
    "inference/fald/answer.py": {"_trouble"},
    "inference/fald/bias.py": {"_of_means", "_of_sds", "_of_participation"},
    "inference/fedavg/answer.py": {"late", "failures", "_stopped", "_beside_the_optimum", "_NOISE", "_TOO_LONG"},
    "inference/fed_ensemble/answer.py": {"_late", "_PARTLY"},
    "inference/merging/answer.py": {"_trouble"},
    "inference/correlated/answer.py": {"_unmixed"},
    "results/checked.py": {"trouble"},
    "results/fitted.py": {"without_check"},
    "questions/summary.py": {"_who_is_far", "of_put_out"},
    "questions/selection.py": {"select"},
    "problem/program/hierarchy.py": {"of_funnel"},
}
PUT_TOGETHER = "Client '\0'\0 \0."  # its words are a program's own, and looked for as every other on the page
# Sentences that go on after one that is on the page: a number's reading, or what to do.
GOES_ON = (
    "\0, at rest", "\0, and were still", "If more rounds don't help", "No step kept the global", "Or it was still",
    "A client keeps its site", "Raise `num_rounds`.", "The fit did not converge in",
    "Round \0. \0", "The clients' Gaussians fit", "The Gaussian of client", "\0, by importance weights",
    "\0. \0", "`\0", "`EP(", "In the last round",
)  # fmt: skip


def text_of(node: ast.AST) -> str | None:
    """A string of the program, with a zero byte for each part that changes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return None


def texts_in(tree: ast.AST) -> list[str]:
    """All strings, but docstrings, errors' words and the pieces of longer ones."""
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [text_of(node) for node in ast.walk(tree) if id(node) not in inside | docs | raised]
    return [text for text in found if text]


def named(tree: ast.Module, names: set[str]) -> dict[str, ast.AST]:
    """Functions and constants of a module by name, those of its classes among them."""
    found: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            found[node.name] = node
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names:
            found[node.targets[0].id] = node
    return found


def is_quoted(text: str, phrases: list[str]) -> bool:
    """Whether a phrase of the page, whose dots stand for what changes, is in a text."""
    return any(re.search(r"[\s\S]*?".join(map(re.escape, phrase.split("..."))), text) for phrase in phrases)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in files}


@pytest.fixture(scope="module")
def phrases() -> list[str]:
    """What the first column of the page's tables quotes."""
    found = re.findall(r"^\| `([^`]+)`", PAGE.read_text(), re.MULTILINE)
    assert len(found) > 50
    return [phrase.strip(". ,") for phrase in found]


def test_what_the_page_quotes_is_said(trees, phrases) -> None:
    said = [text.replace("`", "") for tree in trees.values() for text in texts_in(tree)]
    assert [phrase for phrase in phrases if not any(is_quoted(text, [phrase]) for text in said)] == []


def test_each_warning_is_on_the_page(trees, phrases) -> None:
    warned = {
        text.replace("`", "")
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
        for text in [text_of(node.args[0])]
        if text
    }
    assert len(warned) >= 10
    assert [text for text in warned - {PUT_TOGETHER} if not is_quoted(text, phrases)] == []


def test_each_trouble_of_a_fit_is_on_the_page(trees, phrases) -> None:
    missing = []
    for file, names in OF_TROUBLE.items():
        found = named(trees[file], names)
        assert found.keys() == names, file
        for name, node in found.items():
            sentences = [text for text in texts_in(node) if re.match(r"[A-Z\0][^\0]{8,} ", text.replace("`", ""))]
            missing += [
                f"{file} {name}: {text}"
                for text in sentences
                if not is_quoted(text.replace("`", ""), phrases) and not text.startswith(GOES_ON)
            ]
    assert not missing, "\n".join(missing)


def test_a_warning_that_is_not_there_is_seen(phrases) -> None:
    assert not is_quoted("The moon is in the way of the satellites: wait until it has set.", phrases)
    assert not is_quoted("The bias of the means is \0 posterior sds", phrases)
