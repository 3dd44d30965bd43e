"""The import graph has no circle, and the rooms that all methods share know none of them by name."""

import ast
import io
import re
import tokenize
from importlib.util import find_spec
from pathlib import Path

import pytest

Graph = dict[str, set[str]]


def installed() -> dict[str, Path]:
    """Every module of the installed package, and its file."""
    return modules_below("fedbayes", find_spec("fedbayes").submodule_search_locations[0])


def modules_below(name: str, folder: str | Path) -> dict[str, Path]:
    found = {name: Path(folder) / "__init__.py"}
    for path in sorted(Path(folder).iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            found |= modules_below(f"{name}.{path.name}", path)
        elif path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            found[f"{name}.{path.stem}"] = path
    return found


def imports_of(source: str, modules: set[str]) -> set[str]:
    """The modules that a source names in an import, anywhere: in functions and for type checkers too.

    Of ``from package import module`` it is the module; the package's own ``__init__`` comes with every module below it
    and is named by none of them, so it counts only where it is imported itself.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & modules
            if inside - modules:  # names that the module itself defines
                found.add(str(node.module))
    return found & modules


def graph_of(modules: dict[str, Path]) -> Graph:
    return {name: imports_of(path.read_text(), set(modules)) - {name} for name, path in modules.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Each circle that a depth-first walk closes, as the modules on it in order."""
    found, done = [], set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                walk(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return found


def test_the_import_graph_has_no_circle():
    graph = graph_of(installed())
    assert len(graph) > 50
    assert sum(map(len, graph.values())) > 200
    assert circles(graph) == []


PLANTED = {
    "between modules": {"a": "import p.b", "b": "from p.b import x\nfrom p.c import y", "c": "from p.a import z"},
    "of a package's module": {"a": "from p import b", "b": "from p import a"},
    "inside a function": {"a": "from p.b import x", "b": "def f():\n    from p.a import y"},
    "for type checkers": {
        "a": "from p.b import x",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import y",
    },
    "through the package": {"__init__": "from p.a import x", "a": "from p import x"},
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_circle_is_found(case, tmp_path):
    for name, source in ({"__init__": "", "a": "", "b": "", "c": ""} | PLANTED[case]).items():
        (tmp_path / f"{name}.py").write_text(source)
    graph = graph_of(modules_below("p", tmp_path))
    assert circles(graph) != []
    first = next(iter(PLANTED[case]))
    (tmp_path / f"{first}.py").write_text("")
    assert circles(graph_of(modules_below("p", tmp_path))) == []


WORDS = (
    "ep|epanswer|epstate|expectation propagation|fald|fa-ld|langevin|fedpa|posterior.averaging|oneshot|one.shot|merging"
    "|laplace|correlatedclients"
)
NAMES = re.compile(rf"(?<![a-z])({WORDS})(?![a-z])", re.IGNORECASE)
# the public call, the public names, and the demonstration, which is a user like any other
MAY_NAME_METHODS = {"fedbayes", "fedbayes.fit", "fedbayes.privacy", "fedbayes.demo"}


def methods_in(source: str) -> list[str]:
    """The methods that a source names, in its code: comments and docstrings may."""
    statements = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    docstrings = {(node.lineno, node.col_offset) for node in statements if isinstance(node, ast.Constant)}
    code = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type != tokenize.COMMENT and token.start not in docstrings
    ]
    return sorted({match.group().lower() for match in NAMES.finditer(" ".join(code))})


SHARED = {
    name: path
    for name, path in installed().items()
    if name not in MAY_NAME_METHODS and not name.startswith(("fedbayes.inference", "fedbayes.models"))
}


def test_the_shared_rooms_name_no_method():
    assert len(SHARED) > 25
    found = {name: methods_in(path.read_text()) for name, path in SHARED.items()}
    assert {name: words for name, words in found.items() if words} == {}


NAMING = {
    "a message": ("def f():\n    raise ValueError(\"EP does: `method='ep'`\")", ["ep"]),
    "an import": ("from fedbayes.inference.fald.method import FALD", ["fald"]),
    "a part of a name": ("merging_options = fit_one_shot = langevin2", ["langevin", "merging", "one_shot"]),
    "a formatted text": ('print(f"{x} by FA-LD and FedPA")', ["fa-ld", "fedpa"]),
    "a comment": ("x = 1  # as in EP", []),
    "docstrings": ('"""Of EP."""\n\nx = 1\n"""For FedPA."""\n\n\ndef f():\n    """As FALD."""', []),
    "other words": ("step, epoch, merge, shot, keep, deep = sharp", []),
}


@pytest.mark.parametrize("case", NAMING)
def test_a_named_method_is_found(case):
    source, words = NAMING[case]
    assert methods_in(source) == words
