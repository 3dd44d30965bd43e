"""Imports go down from room to room and in no circle, and the rooms that all methods share know none by name."""

import ast
import io
import re
import tokenize
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from fedbayes import inference

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


# The order of the rooms, from the ground up. A module imports from its own room and from the floors below, never from
# beside or above. Where a name begins another (`inference`, `inference.ep`), a module belongs to the longest.
FLOORS = [
    {"numerics", "errors", "runtime", "theory"},
    {"problem.data"},
    {"problem.program"},
    {"problem"},
    {"contract", "models", "owner", "formula.grammar"},
    {"formula.design"},
    {"formula.families", "table_one"},
    {"formula.program"},
    {"rounds"},
    {"correction"},
    {"results"},
    {"questions", "pictures.drawing"},
    {"report"},
    {"results.fit", "results.saved.fit"},  # the faces, whose methods are the questions, and the report
    {"pictures", "questions.fairness"},  # what compares several fits takes faces
    {"inference.local.density", "inference.options"},
    {"inference.local.sampling", "inference.local.steps"},
    {"inference.local"},
    {"inference.own_site"},
    {"inference.mode"},
    {"inference.curvature", "inference.largest", "inference.starts"},
    {"inference.fald", "inference.fedavg", "inference.laplace", "inference.merging"},
    {"inference.ep", "inference.fed_ensemble", "inference.fedpa"},
    {"inference.correlated"},
    {"inference"},
    {"fit"},
    {
        "network.charter",
        "network.draws",
        "network.fixed_point",
        "network.messages",
        "network.replies",
        "network.study",
        "network.transport",
    },  # what both halves know
    {"network.client", "network.server"},  # neither knows the other
    {"calibration", "cli.demo", "formula", "network", "questions.gain"},
    {"formula.reading"},
    {"network.agreeing"},
    {"flower.codes", "flower.waits"},
    {"flower.node"},
    {"flower"},
    {"cli"},
    {"executors", "plots", "comparison", "privacy"},  # public names, passed on
    {""},  # the package itself: it passes on all the others
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


# a method that no floor names stands on the lowest of the methods', and sees no other
FOLDERS = {name.split(".")[2] for name in installed() if name.count(".") > 2 and ".inference." in name}
FLOOR = {f"inference.{folder}": FLOOR["inference.fald"] for folder in FOLDERS} | FLOOR


MAY_USE_METHODS = {"", "fit", "cli.demo", "plots", "privacy"}


def room_of(module: str) -> str:
    inside = module.removeprefix("fedbayes").removeprefix(".")
    return max((room for room in FLOOR if f"{inside}.".startswith(f"{room}.") or not room), key=len)


def upward(graph: Graph) -> set[tuple[str, str]]:
    """The imports from another room that is not below the module's own."""
    pairs = {(name, other) for name, others in graph.items() for other in others}
    return {(a, b) for a, b in pairs if room_of(a) != room_of(b) and FLOOR[room_of(a)] <= FLOOR[room_of(b)]}


def users_of_methods(graph: Graph) -> set[str]:
    """The rooms outside `inference/` that import from it."""
    users = {name for name, others in graph.items() if any(map(is_inference, others))}
    return {room_of(name) for name in users if not is_inference(name)}


def is_inference(module: str) -> bool:
    return room_of(module).split(".")[0] == "inference"


def test_every_module_has_its_room():
    inhabited = {room_of(name) for name in installed() if name != "fedbayes"}
    assert inhabited == set(FLOOR) - {""}


def test_imports_go_down():
    assert upward(graph_of(installed())) == set()


def test_only_the_public_call_and_users_stand_on_the_methods():
    assert users_of_methods(graph_of(installed())) == MAY_USE_METHODS


UPWARD = {
    "to the floor above": ("problem.planted", "from fedbayes.contract.algorithm import Update", {"contract.algorithm"}),
    "to the top": ("results.planted", "from fedbayes import EP", {""}),
    "beside": ("network.planted", "import fedbayes.calibration.fits", {"calibration.fits"}),
    "by the name of a module": ("fit.planted", "from fedbayes.questions import gain, errors", {"questions.gain"}),
    "from the contract": ("contract.state", "from fedbayes.rounds.loop import run", {"rounds.loop"}),
    "from data to programs": (
        "problem.data.planted",
        "import fedbayes.problem.program.split",
        {"problem.program.split"},
    ),
    "between the halves": ("network.server.site", "import fedbayes.network.client.vault", {"network.client.vault"}),
    "inside a function": ("rounds.planted", "def f():\n    from fedbayes.results.fit import x", {"results.fit"}),
    "for type checkers": ("fit", "if TYPE_CHECKING:\n    from fedbayes.network.fit import x", {"network.fit"}),
    "between methods": ("inference.fald.planted", "from fedbayes.inference import ep", {"inference.ep"}),
    "down": ("flower.planted", "from fedbayes.network.fit import x\nfrom fedbayes import fit, errors", set()),
    "in the room": ("results.planted", "from fedbayes.results.fitted import Fitted", set()),
    "to the face": ("questions.planted", "from fedbayes.results.fit import FederatedFit", {"results.fit"}),
}


@pytest.mark.parametrize("case", UPWARD)
def test_a_planted_import_upward_is_found(case):
    module, source, found = UPWARD[case]
    imports = imports_of(source, set(installed()))
    assert imports
    above = {(f"fedbayes.{module}", f"fedbayes.{other}".removesuffix(".")) for other in found}
    assert upward({f"fedbayes.{module}": imports}) == above


def test_a_planted_use_of_a_method_is_found():
    graph = graph_of(installed())
    graph["fedbayes.network.fit"] |= imports_of("from fedbayes.inference.ep.method import EP", set(graph))
    assert upward(graph) == set()  # the direction alone would not tell
    assert users_of_methods(graph) == MAY_USE_METHODS | {"network"}


ASKED_WHETHER = re.compile(r"\b(?:getattr|hasattr)\((?:\w+\.)*_?(?:method|configured)\b")


def test_no_method_is_asked_whether_it_has_something():
    """What some methods alone have stands in `Method`, with what all others answer."""
    found = [name for name, path in installed().items() if ASKED_WHETHER.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line", ['getattr(method, "after", None)', 'hasattr(fit._method, "x")', 'getattr(study.configured, "only_locals")']
)
def test_a_planted_question_whether_a_method_has_something_is_found(line):
    assert ASKED_WHETHER.search(f"    found = {line}")


def private_reads(source: str) -> list[str]:
    """Private attributes that a source reads of a fit or of its value, and whatever it reads by `self.__dict__`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if re.search(r"(^|_)(fit|fitted)$", owner) or (owner, node.attr) == ("self", "__dict__"):
                found.append(ast.unparse(node))
    return found


def stubs(source: str) -> list[str]:
    """Methods that a source declares for type checkers alone, as a mixin does of what another class has."""
    blocks = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If)]
    guarded = [block for block in blocks if ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")]
    inside = [node for block in guarded for line in block.body for node in ast.walk(line)]
    return [node.name for node in inside if isinstance(node, ast.FunctionDef)]


def test_a_fit_is_asked_by_its_public_names():
    assert {name: found for name, path in installed().items() if (found := private_reads(path.read_text()))} == {}


def test_no_class_has_methods_for_type_checkers_alone():
    assert {name: found for name, path in installed().items() if (found := stubs(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line", ["x = fit._answer", "found = self.fit._key", "fitted._x = 1", 'y = self.__dict__["y"]']
)
def test_a_planted_private_read_is_found(line):
    assert private_reads(line) != []


def test_a_planted_mixin_is_found():
    assert stubs("class Part:\n    if TYPE_CHECKING:\n\n        def whole(self) -> int: ...") == ["whole"]
    assert private_reads("self._key = other._key; fit.fitted.key; self.fitted") == []


def test_the_face_of_a_fit_is_thin():
    """Each method of `FederatedFit` is one statement, which asks a question or shows a value."""
    (face,) = (
        node
        for node in ast.parse(installed()["fedbayes.results.fit"].read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert face.bases == []
    methods = [node for node in face.body if isinstance(node, ast.FunctionDef)]
    assert len(methods) > 10
    assert [node.name for node in methods if len(node.body) - bool(ast.get_docstring(node)) != 1] == []


LOCALS_FROM = re.compile(r"\bFrom[A-Z][a-z]\w+\b")
# where they are defined, and the answer that most methods share
ENDS = ("fedbayes.contract.client_locals", "fedbayes.contract.answer")


def test_nobody_asks_which_class_says_where_locals_come_from():
    """The classes are named where they are defined, and where an answer makes one."""
    texts = {name: path.read_text() for name, path in installed().items()}
    names = [name for text in texts.values() for name in re.findall(r"^class (\w+)\(LocalsFrom\)", text, re.MULTILINE)]
    assert len(names) >= 5
    assert all(map(LOCALS_FROM.fullmatch, names))
    found = [name for name, text in texts.items() if LOCALS_FROM.search(text)]
    assert [name for name in found if name not in ENDS and not name.startswith("fedbayes.inference.")] == []


def test_a_planted_question_where_locals_come_from_is_found():
    assert LOCALS_FROM.search("    if isinstance(answer.locals_from, FromServer):")


CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # FedPAState is Fed PA State
# what papers call a method, which neither the registry nor a class does
IN_PAPERS = {"expectation propagation", "federated averaging", "FA-LD", "Langevin"}


def names_of(package: ModuleType) -> set[str]:
    """The methods' names: in the registry, of the exported classes, and of the folders where these stand."""
    exported = {getattr(package, name) for name in package.__all__ if name != "METHODS"}
    classes = {*package.METHODS.values(), *exported}
    folders = {folder for cls in classes for folder in cls.__module__.split(".")[2:-1]}
    return {*package.METHODS, *(cls.__name__ for cls in classes), *folders}


def any_of(names: set[str]) -> re.Pattern:
    """Finds the names in any spelling: OneShot, one_shot, one-shot."""
    parts = [re.findall("[a-z0-9]+", CAMEL.sub(" ", name).lower()) for name in sorted(names)]
    words = "|".join("[^a-z]?".join(part) for part in parts)
    return re.compile(rf"(?<![a-z])({words})(?![a-z])", re.IGNORECASE)


NAMES = names_of(inference)


def methods_in(source: str, names: set[str] = NAMES | IN_PAPERS) -> set[str]:
    """The methods that a source names, in its code: comments and docstrings may."""
    statements = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    docstrings = {(node.lineno, node.col_offset) for node in statements if isinstance(node, ast.Constant)}
    code = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type != tokenize.COMMENT and token.start not in docstrings
    ]
    found = any_of(names).finditer(CAMEL.sub(" ", " ".join(code)))
    return {squeezed(match.group()) for match in found}


def squeezed(name: str) -> str:
    """A name without case and separators, which is the same in every spelling."""
    return re.sub("[^a-z0-9]", "", name.lower())


# Only files that speak to the user may name a method. (The template of `fedbayes new` is a user's own program.)
MAY_NAME = {
    "fedbayes": {squeezed(name) for name in inference.__all__ if name != "METHODS"},  # passes their classes on
    "fedbayes.fit": {"ep"},  # the default method, and the example in messages on `method`
    "fedbayes.privacy": {"fald"},  # passes on what is known of the privacy of this one method
    "fedbayes.plots": {"correlated", "ep", "merging"},  # passes on the pictures that stand beside their methods
    "fedbayes.cli.demo": {"ep", "expectationpropagation"},  # a user like any other: it chooses a method and says which
    "fedbayes.formula.program.typed": {"laplace"},  # the law of a prior, which is no method
}


def shared_modules() -> dict[str, Path]:
    not_shared = ("fedbayes.inference", "fedbayes.models", "fedbayes.theory")
    return {name: path for name, path in installed().items() if not name.startswith(not_shared)}


def test_the_shared_rooms_name_no_method():
    shared = shared_modules()
    assert len(shared) > 80
    found = {name: methods_in(path.read_text()) for name, path in shared.items()}
    # equal, so that a permission that is no longer needed fails as well
    assert {name: words for name, words in found.items() if words} == MAY_NAME


NAMING = {
    "a message": ("def f():\n    raise ValueError(\"EP does: `method='ep'`\")", {"ep"}),
    "an import": ("from fedbayes.inference.fald.method import FALD", {"fald"}),
    "a part of a name": ("merging_options = fit_one_shot = langevin2", {"langevin", "merging", "oneshot"}),
    "a part of a class": ("EPState, GIFAIRWeights, TheFedPAAnswer", {"ep", "gifair", "fedpa"}),
    "a formatted text": ('print(f"{x} by FA-LD, FedPA and one-shot merging")', {"fald", "fedpa", "oneshot", "merging"}),
    "a name in a paper": ('"by federated averaging".title()', {"federatedaveraging"}),
    "a comment": ("x = 1  # as in EP", set()),
    "docstrings": ('"""Of EP."""\n\nx = 1\n"""For FedPA."""\n\n\ndef f():\n    """As FALD."""', set()),
    "other words": ("step, epoch, merge, shot, keep, deep, fed, average = sharp", set()),
}


@pytest.mark.parametrize("case", NAMING)
def test_a_named_method_is_found(case):
    source, words = NAMING[case]
    assert methods_in(source) == words


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_method_is_found_in_a_shared_room(name):
    source = installed()["fedbayes.pictures.rounds"].read_text()
    planted = f'{source}\n\ndef planted():\n    raise ValueError("`fit` is not by {name}.")\n'
    assert methods_in(source) == set()
    assert methods_in(planted) == {squeezed(name)}


def test_a_new_method_is_known_by_the_registry_alone():
    class MadeUp:
        __module__ = "fedbayes.inference.gibbs.method"

    package = ModuleType("inference")
    package.METHODS, package.__all__ = {"made_by_test": MadeUp}, ["METHODS"]
    assert names_of(package) == {"made_by_test", "MadeUp", "gibbs"}
    assert methods_in("import gibbs\nmade_up = 'made by test'", names_of(package)) == {"gibbs", "madeup", "madebytest"}


def errors_without_base(source: str) -> list[str]:
    """The classes of exceptions that are none of ours."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    bases = {each.name: [base.id for base in each.bases if isinstance(base, ast.Name)] for each in classes}
    ours = {"FedbayesError", "ClientDataError", "ModelError", "FederatedError"}
    return [
        name
        for name, names in bases.items()
        if name != "FedbayesError"
        and any(base.endswith(("Error", "Exception")) for base in names)
        and not ours & {*names}
    ]


def test_every_error_has_the_base():
    assert [name for path in installed().values() for name in errors_without_base(path.read_text())] == []


def test_a_planted_error_without_it_is_found():
    assert errors_without_base("class Mine(ValueError): ...") == ["Mine"]
