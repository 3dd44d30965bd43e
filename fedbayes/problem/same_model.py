"""When two models are the same, so that programs compiled for one serve the other.

Running a notebook's cell again makes a new function of the same code, and writing ``partial(model, degree=3)`` again a
new object of the same parts. Both are compared by what they are made of. Whatever is no plain function, `partial`,
number, text or array counts as the same only where it is the same object. Global variables that a function reads are
seen by its trace, which is compared whenever a program is used again.
"""

from collections.abc import Hashable
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


class _Itself:
    """An object that equals itself alone."""

    def __init__(self, value: Any) -> None:
        self._value = value  # held, so that no other object gets its number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def model_key(model: Any) -> Hashable:
    """A model to be compared: equal for models that do the same to the same arguments.

    Parameters
    ----------
    model
        The user's NumPyro function, or an object that is called like one.
    """
    return _key(model, ())


def _key(value: Any, inside: tuple[int, ...]) -> Hashable:
    if id(value) in inside:  # a function that calls itself
        return ("again", inside.index(id(value)))
    inside = (*inside, id(value))
    if type(value) is FunctionType:
        return (
            FunctionType,
            value.__code__,
            id(value.__globals__),
            _key(value.__defaults__, inside),
            _named(value.__kwdefaults__ or {}, inside),
            tuple(_cell(cell, inside) for cell in value.__closure__ or ()),
            _named(value.__dict__, inside),
        )
    if type(value) is partial:
        return (partial, _key(value.func, inside), _key(value.args, inside), _named(value.keywords, inside))
    if isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
        array = np.asarray(value)
        return _Itself(value) if array.dtype.hasobject else (type(value), array.shape, array.dtype.str, array.tobytes())
    if type(value) is tuple:
        return (tuple, *(_key(each, inside) for each in value))
    return (type(value), repr(value), value) if isinstance(value, _PLAIN) else _Itself(value)


def _named(values: dict[str, Any], inside: tuple[int, ...]) -> Hashable:
    return tuple((name, _key(values[name], inside)) for name in sorted(values))


def _cell(cell: Any, inside: tuple[int, ...]) -> Hashable:
    try:
        return _key(cell.cell_contents, inside)
    except ValueError:  # the variable has no value yet
        return _Itself(cell)
