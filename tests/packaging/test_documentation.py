"""Every public name is documented and annotated, and every example in a docstring runs."""

import doctest
import enum
import importlib
import inspect
import pkgutil

import pytest

import fedbayes
import fedbayes.inference
import fedbayes.models
import fedbayes.theory


def load(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        pytest.skip("flwr is not installed")


def modules(package):
    """Names of the package and of all modules below it; nothing is imported but packages."""
    found = pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None)
    return [package.__name__, *(module.name for module in found if not module.name.endswith("__main__"))]


def public(module):
    """(qualified name, object) of what a module offers: its `__all__`, else what it defines without an underscore."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", [name for name in defined if not name.startswith("_")]):
        value = getattr(module, name)
        if callable(value) and getattr(value, "__module__", "").startswith("fedbayes"):
            yield f"{module.__name__}.{name}", value


def members(cls):
    """(name, function) of the public methods and properties that a class defines itself."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


FACES = [fedbayes.__name__, fedbayes.inference.__name__, *modules(fedbayes.models), *modules(fedbayes.theory)]
PUBLIC = {name: value for face in FACES for name, value in public(importlib.import_module(face))}


def undocumented(name, value):
    doc = inspect.cleandoc(value.__doc__ or "")
    # dataclasses and NamedTuples write their signature where a docstring is missing
    generated = inspect.isclass(value) and doc.startswith(value.__name__ + "(")
    return [name] if not doc or generated else []


def unannotated(name, function):
    if inspect.isclass(function) and issubclass(function, Exception | enum.Enum):
        return []  # the constructor is Python's own
    signature = inspect.signature(function)
    missing = [
        f"{name}({parameter.name})"
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    returns = inspect.isclass(function) or signature.return_annotation is not signature.empty
    return missing if returns else [*missing, f"{name} -> ?"]


def complaints(check, name, value):
    found = check(name, value)
    if inspect.isclass(value):
        found += [line for member, function in members(value) for line in check(f"{name}.{member}", function)]
    return found


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name):
    assert complaints(undocumented, name, PUBLIC[name]) == []


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_signature_is_annotated(name):
    assert complaints(unannotated, name, PUBLIC[name]) == []


@pytest.mark.parametrize("name", modules(fedbayes))
def test_every_module_has_a_docstring(name):
    assert load(name).__doc__


@pytest.mark.parametrize("name", modules(fedbayes))
def test_examples_in_docstrings_run(name):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(load(name), optionflags=options).failed == 0


class Planted:
    def method(self, x):
        return x


def test_the_checks_find_what_they_look_for():
    assert complaints(undocumented, "Planted", Planted) == ["Planted", "Planted.method"]
    assert complaints(unannotated, "Planted", Planted) == ["Planted.method(x)", "Planted.method -> ?"]
