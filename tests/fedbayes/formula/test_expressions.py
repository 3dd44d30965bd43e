"""Expressions: what is on the list is computed, and nothing else is ever run."""

import os

import numpy as np
import pytest
from numpyro.handlers import seed, trace

import fedbayes as fb
from fedbayes.formula.grammar.expressions import compute, read_expression

X = np.array([0.5, 1.0, 4.0])
Z = np.array([2.0, -1.0, 3.0])
COMPUTED = {
    "log(x)": np.log(X),
    "np.log(x + 1)": np.log(X + 1.0),
    "I(x ** 2 - 3 * z)": X**2 - 3.0 * Z,
    "sqrt(x) / 2": np.sqrt(X) / 2.0,
    "x > 0.7": [0.0, 1.0, 1.0],
    "-x + +z": Z - X,
    "x ** -1": 1.0 / X,
    "exp(-abs(z))": np.exp(-np.abs(Z)),
    "scale(x)": (X - 2.0) / 4.0,
    "log(4 + center(z))": np.log(4.0 + Z - 1.0),
}


@pytest.mark.parametrize("text", COMPUTED)
def test_an_expression_is_computed(text):
    scales = {"scale(x)": (2.0, 4.0), "center(z)": (1.0, 1.0)}
    found = compute(read_expression(text).tree, {"x": X, "z": Z}, scales)
    np.testing.assert_allclose(found, COMPUTED[text], rtol=1e-12)


ATTACKS = [
    "__import__('os').system('touch {file}')",
    "os.system('touch {file}')",
    "I(__import__('os').system('touch {file}'))",
    "log(open('{file}', 'w'))",
    "bs(x, df=open('{file}', 'w'))",
    "bs(x, knots=[open('{file}', 'w')])",
    "C(x, levels=open('{file}', 'w'))",
    "C(x, Treatment(open('{file}', 'w')))",
    "C(x, open('{file}', 'w'))",
    'eval(\'open("{file}", "w")\')',
    'exec(\'open("{file}", "w")\')',
    "(lambda: open('{file}', 'w'))()",
    "[open('{file}', 'w') for _ in [1]]",
    "x.__class__.__base__.__subclasses__()",
    "().__class__",
    "f\"{{open('{file}', 'w')}}\"",
    "(y := open('{file}', 'w'))",
    "np.savetxt('{file}', x)",
    "np.log.__self__",
    "numpy.core.os.system('touch {file}')",
    "getattr(x, 'tofile')('{file}')",
    "x.tofile('{file}')",
    "scale(x.tofile('{file}'))",
    "log(*[open('{file}', 'w')])",
    "log(x, out=open('{file}', 'w'))",
    "x if open('{file}', 'w') else x",
    "x and open('{file}', 'w')",
    "9 ** 9 ** 9 ** 9",
    "x ** (x ** x)",
    "1e300 * x",
    "x[open('{file}', 'w')]",
    "{{open('{file}', 'w'): x}}",
    "print(x)",
    "breakpoint()",
    "await x",
    "x" + "[0]" * 500,
    "I(" + "+".join(["x"] * 300) + ")",
    "log(" * 400 + "x" + ")" * 400,
    "\x00",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_code_in_a_formula_is_refused_and_not_run(text, tmp_path):
    code = text.format(file=tmp_path / "touched")
    with pytest.raises(fb.FormulaError):
        read_expression(code)
    rows = {"a": {"x": X, "y": Z}}
    for formula in (
        f"y ~ {code}",
        f"{code} ~ x",
        f"y ~ x + offset({code})",
        f"y | weights({code}) ~ x",
        f"y ~ (0 + {code} | site)",
    ):
        with pytest.raises(fb.FormulaError):
            fb.regression(formula, clients=rows)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["open", "__import__", "print", "exec"])
def test_a_column_may_have_the_name_of_a_builtin(name):
    rng = np.random.default_rng(0)
    rows = {"a": {name: rng.normal(size=9), "y": rng.normal(size=9)}}
    reg = fb.regression(f"y ~ {name}", clients=rows)
    assert reg.terms == (name,)
    np.testing.assert_allclose(reg.clients["a"]["x"][:, 0], rows["a"][name] - rows["a"][name].mean(), atol=1e-12)


WORDS = {
    "lag(x)": r"`lag` in 'lag\(x\)' is no function that formulas know.*Did you mean 'log'",
    "log(x, 2)": "has other arguments than one",
    "scale(scale(x))": "is scaled twice",
    "bs(scale(x), df=4)": "is scaled twice",
    "log(bs(x, df=4))": "stands within",
    "bs()": "has no first argument",
    "bs(x, 4, 5)": "arguments without names",
    "bs(x, d=4)": "has the argument `d`.*Did you mean",
    "bs(x, 4, df=4)": "argument `df` twice",
    "C(x + 1)": "first argument of `C` is a column's name",
    "C(x, Helmert)": "is no contrast that formulas know",
    "C(x, Sum('a'))": "is no contrast that formulas know",
    "3": "names no column",
    "x +": "can't be read",
    "x ** z": "is no number up to 10",
    "1 < x < 2": "is not read",
}


@pytest.mark.parametrize("text", WORDS)
def test_a_refusal_says_what_is_wrong(text):
    with pytest.raises(fb.FormulaError, match=WORDS[text]):
        read_expression(text)


def test_what_was_not_checked_is_not_computed():
    import ast

    with pytest.raises(fb.FormulaError, match="can't be computed"):
        compute(ast.parse("[x]", mode="eval").body, {"x": X}, {})


NAMES = [
    'x")); open("{file}", "w"); (("',
    "x'); open('{file}', 'w'); ('",
    "x\nopen('{file}', 'w')",
    'x\\"); open("{file}", "w")',
    "x # {file}",
    "coding: utf-7",
]


@pytest.mark.parametrize("name", NAMES)
def test_code_in_the_name_of_a_column_is_quoted_and_not_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    column = name.format(file="touched")
    rng = np.random.default_rng(0)
    rows = {"a": {column: rng.normal(size=9), "y": rng.normal(size=9), "g": list("uvu") * 3}}
    for formula in (f"y ~ `{column}`", f"`{column}` ~ y", f"y ~ 1 + (1 + `{column}` | site)"):
        reg = fb.regression(formula, clients=rows)
        trace(seed(reg.model, 0)).get_trace(**reg.clients["a"])
    assert os.listdir(tmp_path) == []
