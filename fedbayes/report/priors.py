"""The program's text and the priors of its globals, as far as they can be had in words."""

import inspect
from collections.abc import Mapping
from functools import partial
from textwrap import dedent
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from fedbayes.problem.problem import Problem
from fedbayes.problem.program.sites import base_law
from fedbayes.results.arviz import Shapes, shapes_of
from fedbayes.runtime.precision import computing

_LARGE = 1 << 20  # bytes of a client's arrays, beyond which the program is not run for a table's sake
_FEW = 4  # different values of a parameter that are written out


def source_of(problem: Problem) -> str:
    """The text of the model's function; empty where Python has none, as for what was typed into a terminal."""
    model: Any = problem.programs[0].model
    while isinstance(model, partial):
        model = model.func
    function = inspect.unwrap(model)
    try:
        text = dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
    # Python 3.13 takes what `python -c` was given for the text of whatever was compiled from a string
    name = function.__code__.co_name if inspect.isfunction(function) else ""
    return text if ("lambda" if name == "<lambda>" else name) in text else ""


def priors_of(problem: Problem) -> dict[str, str]:
    """Each global's prior in words, by its name; empty where the program can't be run on made-up data.

    The program is run twice on arrays of ones, from different values of the latents: a parameter of a prior that is not
    the same is a function of other latents.
    """
    shapes = shapes_of(problem)[0]
    if shapes.num_bytes > _LARGE:
        return {}
    try:
        with computing():
            first, second = (_laws(shapes, number) for number in (0, 1))
    except Exception:  # the user's own code, on data that it never meant to see: the program itself is in the report
        return {}
    return {name: in_words(law, second[name]) for name, law in first.items()}


def _laws(shapes: Shapes, number: int) -> dict[str, dist.Distribution]:
    program = shapes.program
    model = substitute(seed(program.model, jax.random.key(number)), substitute_fn=init_to_uniform(radius=0.5))
    sites = trace(model).get_trace(**program.static, **shapes.ones())
    return {name: sites[name]["fn"] for name in program.globals.names}


def in_words(law: dist.Distribution, again: dist.Distribution) -> str:
    """``Normal(loc=0, scale=2.5)``; of a law and of the same at other values of the latents."""
    one, other = base_law(law), base_law(again)
    given = [f"{name}={_value(getattr(one, name), getattr(other, name))}" for name in _parameters(one)]
    return f"{type(one).__name__}({', '.join(given)})"


def _parameters(law: dist.Distribution) -> list[str]:
    names: Mapping[str, Any] = law.arg_constraints
    return [name for name in names if isinstance(getattr(law, name, None), int | float | np.ndarray | jax.Array)]


def _value(one: Any, other: Any) -> str:
    values = np.asarray(one)
    if not np.array_equal(values, np.asarray(other), equal_nan=True):
        return "given other latents"
    different = np.unique(values)
    if different.size == 1:
        return f"{different[0]:.4g}"
    if values.ndim == 1 and values.size <= _FEW:
        return f"[{', '.join(f'{value:.4g}' for value in values)}]"
    return f"{different[0]:.4g} to {different[-1]:.4g}, shape {values.shape}"
