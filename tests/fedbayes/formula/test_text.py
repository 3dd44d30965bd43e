"""Formulas as text: cut where we say, multiplied out by formulaic, and refused where they mean nothing."""

import builtins
import sys

import pytest

import fedbayes as fb
from fedbayes.formula.grammar.terms import read_terms
from fedbayes.formula.grammar.text import GroupText, cut


def names(text):
    return [term.name for term in read_terms(cut(f"y ~ {text}").common).terms]


def test_a_formula_is_cut_into_its_parts():
    found = cut("sick | trials(n) + weights(w) ~ age * sex - 1 + (1 + age | site) + (1 || ward)")
    assert found.outcome == "sick"
    assert found.additions == {"trials": "n", "weights": "w"}
    assert found.common == "age * sex - 1"
    assert found.groups == (GroupText("1 + age", "site", True), GroupText("1", "ward", False))


def test_bars_brackets_and_signs_in_quotes_and_calls_cut_nothing():
    found = cut("log(y + 1) ~ C(x, Treatment('a|b ~ c')) + `a + (b` + bs(z, df=4)")
    assert found.outcome == "log(y + 1)"
    assert found.groups == ()
    assert names("`a + (b` + C(x, Treatment('a|b ~ c'))") == ["a + (b", "C(x, Treatment('a|b ~ c'))"]


PRODUCTS = {
    "a + b": ["a", "b"],
    "a * b": ["a", "b", "a:b"],
    "a / b": ["a", "a:b"],
    "(a + b + c) ^ 2": ["a", "b", "c", "a:b", "a:c", "b:c"],
    "(a + b) ** 2 - a:b": ["a", "b"],
    "b %in% a": ["a", "a:b"],
    "a:b + a": ["a", "b:a"],
    "a - -b": ["a", "b"],
    "-1 + a": ["a"],
    "a + a": ["a"],
}


@pytest.mark.parametrize("text", PRODUCTS)
def test_terms_are_multiplied_out(text):
    assert [set(name.split(":")) for name in names(text)] == [set(name.split(":")) for name in PRODUCTS[text]]


@pytest.mark.parametrize(
    ("text", "intercept"), [("x", True), ("0 + x", False), ("x - 1", False), ("1", True), ("x + 0 + 1", True)]
)
def test_the_intercept_is_there_unless_it_is_taken_out(text, intercept):
    assert read_terms(cut(f"y ~ {text}").common).intercept is intercept


def test_offsets_are_told_from_terms():
    found = read_terms(cut("y ~ x + offset(log(days))").common)
    assert found.offsets == ("log(days)",)
    assert [term.name for term in found.terms] == ["x"]


REFUSED = {
    "y": "no outcome",
    "~ x": "no outcome",
    "y ~": "no terms",
    "y ~ x ~ z": "2 tildes",
    "y ~ x +": "end in a sign",
    "y ~ (1 | g": r"a '\)' is missing",
    "y ~ x)": r"a '\)' closes nothing",
    "y ~ 'a": "is left open",
    "y ~ x | g": "A bar stands within",
    "y ~ (x | g) * z": "A bar stands within",
    "y ~ (1 | )": "can't be read; write",
    "y ~ (1 | a | b)": "can't be read; write",
    "y ~ -(1 | g)": "is subtracted",
    "y | n ~ x": "After the outcome's bar stands 'n'",
    "y | trials(n) + trials(m) ~ x": "twice",
    "y | a | b ~ x": "2 bars",
    "y ~ a ^ 9": "no whole number from 1 to 5",
    "y ~ a ^ b": "no whole number from 1 to 5",
    "y ~ .": "operator '.' is not read",
    "y ~ 2:x": "number 2 stands in the term",
    "y ~ 'a'": "can't be read",
    "y ~ a b": "can't be read: Missing operator",
    "y ~ x = 3": "can't be read: Unknown operator",
    "y ~ x.z": "written in backticks",
    "y ~ a * offset(b)": "multiplies an offset",
    "y ~ offset(a, b)": "has other arguments than one",
    "y ~ (" + "x + (" * 30 + "x" + ")" * 31: "deep; at most 20",
    "y ~ " + " + ".join(f"x{i}" for i in range(10_000)): "characters; at most 2,000",
    "y ~ " + " + ".join(f"x{i}" for i in range(250)): "once it is multiplied out; at most 200",
    "y ~ " + " * ".join("abcdefghijklmnopqrstuvwxyz"): "once it is multiplied out; at most 200",
    "y ~ (a + b + c + d + e + f) ^ 5": "once it is multiplied out; at most 200",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_what_means_nothing_is_refused_in_our_words(text):
    with pytest.raises(fb.FormulaError, match=REFUSED[text]) as caught:
        read_terms(cut(text).common)
    assert "\x1b" not in str(caught.value)


def test_what_is_no_text_is_refused():
    with pytest.raises(fb.FormulaError, match="The formula is a int"):
        cut(3)


@pytest.mark.parametrize(("text", "words"), [("y ~ x", "has no outcome"), (" ~ ", "no terms")])
def test_a_formula_of_a_parameter_has_no_outcome(text, words):
    assert cut("~ x", outcome=False).common == "x"
    assert cut("x", outcome=False).common == "x"
    with pytest.raises(fb.FormulaError, match=words):
        cut(text, outcome=False)


def test_without_formulaic_one_is_told_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("formulaic"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("formulaic")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(fb.FormulaError, match=r"pip install 'fedbayes\[formula\]'"):
        read_terms("x")
