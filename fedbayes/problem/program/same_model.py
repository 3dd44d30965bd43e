"""When two models are the same, so that programs compiled for one serve the other.

Running a notebook's cell again makes a new function of the same code, and writing ``partial(model, degree=3)`` again a
new object of the same parts. Both are compared by what they are made of, as long as that can't change: plain functions,
`partial`, numbers, texts, tuples and JAX arrays. Whatever could change later (a NumPy array, a list, a variable that a
function closes over, an object whose method it is) counts as the same only where it is the same object, since the
programs of one model would go on with the other's. Global variables that a function reads are the same for both; their
values are seen by the trace, which is compared whenever a program is used again.
"""

from collections.abc import Hashable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


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
    if id(value) in inside:  # a function that holds itself
        return ("again", inside.index(id(value)))
    inside = (*inside, id(value))
    if type(value) is FunctionType:
        return (
            FunctionType,
            value.__code__,
            id(value.__globals__),
            _key(value.__defaults__, inside),
            _named(value.__kwdefaults__ or {}, inside),
            tuple(_Itself(cell) for cell in value.__closure__ or ()),
            _named(value.__dict__, inside),
        )
    if type(value) is MethodType:
        return (MethodType, _key(value.__func__, inside), _Itself(value.__self__))
    if type(value) is partial:
        return (partial, _key(value.func, inside), _key(value.args, inside), _named(value.keywords, inside))
    if type(value) is tuple:
        return (tuple, *(_key(each, inside) for each in value))
    if isinstance(value, jax.Array):
        return _array(value)
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0
    return (type(value), repr(value), value) if type(value) in _PLAIN or _number(value) else _Itself(value)


def _named(values: Mapping[str, Any], inside: tuple[int, ...]) -> Hashable:
    return tuple((name, _key(value, inside)) for name, value in values.items())


def _array(value: jax.Array) -> Hashable:
    if isinstance(value, jax.core.Tracer) or jnp.issubdtype(value.dtype, jax.dtypes.extended):  # such as random keys
        return _Itself(value)
    return (jax.Array, value.shape, value.dtype, value.weak_type, np.asarray(value).tobytes())


def _number(value: Any) -> bool:
    """Whether it is one of NumPy's own numbers."""
    return isinstance(value, np.number | np.bool_) and type(value).__module__ == "numpy"
