"""Server and clients have the same study where all that its functions use is the same."""

import sys
from functools import partial
from importlib import import_module

import optax
import pytest

from fedbayes.rounds.description import described

FILES = {
    "__init__.py": "",
    "constants.py": "PRIOR_SD = 1.0\n\n\ndef doubled(y):\n    return y * 2\n",
    "program.py": "import a_study.constants\nfrom a_study import constants\n\n\ndef model(y):\n"
    "    return constants.PRIOR_SD * a_study.constants.doubled(y)\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "a_study").mkdir()
    for name, text in FILES.items():
        (tmp_path / "a_study" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("a_study.program")
    for name in [name for name in sys.modules if name.split(".")[0] == "a_study"]:
        del sys.modules[name]


def test_what_a_model_uses_by_the_name_of_a_module_is_compared(package, monkeypatch):
    before = described(package.model)
    assert "a_study.constants.PRIOR_SD = 1.0" in before
    monkeypatch.setattr(package.constants, "PRIOR_SD", 2.0)
    assert described(package.model) != before
    monkeypatch.setattr(package.constants, "PRIOR_SD", 1.0)
    assert described(package.model) == before
    assert "return y * 2" in before


def closing_over(value):
    def model(y):
        return value, y

    return model


def test_arguments_kept_by_a_closure_are_compared():
    assert described(closing_over(partial(pow, 2))) == described(closing_over(partial(pow, 2)))
    assert described(closing_over(partial(pow, 2))) != described(closing_over(partial(pow, 3)))


def test_sets_are_the_same_in_any_order():
    assert described({"b", "a", "c"}) == described({"c", "b", "a"})
    assert described({"b", "a"}).index("'a'") < described({"b", "a"}).index("'b'")


def test_defaults_and_what_a_foreign_function_closes_over_are_compared():
    def wrapping(rate):
        schedule = optax.exponential_decay(rate, 10, 0.9)
        return lambda step: schedule(step)

    def with_default(value):
        return lambda y, scale=value: y * scale

    for make in (wrapping, with_default):
        assert described(make(0.1)) == described(make(0.1))
        assert described(make(0.1)) != described(make(0.2))
