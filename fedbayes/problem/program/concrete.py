"""Values that a model needs before it runs: sizes and branches, which JAX has to know when it traces a program.

Clients of one shape share one compiled program, so that a program knows shapes, Python numbers and flags, but not the
values in a client's arrays.
"""

import inspect
import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace

import jax

from fedbayes.errors import ModelError
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Model
from fedbayes.problem.program.sites import trace_sites

_MANY = 8  # programs that compile without a warning
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def needs_value(error: BaseException) -> bool:
    """Whether an exception says that a value was needed which is only known when the program runs."""
    return isinstance(error, _NEEDS_VALUE) or "concrete value" in str(error)


def mixes_precisions(error: BaseException) -> bool:
    """Whether an exception says that 32-bit numbers met 64-bit ones, as in the carry of a scan."""
    text = str(error)
    return isinstance(error, TypeError) and any(
        f"{kind}32" in text and f"{kind}64" in text for kind in ("int", "float")
    )


def precision_refusal(error: BaseException, model: Model, client: str) -> ModelError:
    """What to say of a model in which 32-bit numbers meet 64-bit ones."""
    line = _line(error, model)
    where = f" (`{line}`)" if line else ""
    return ModelError(
        f"The model mixes 32-bit and 64-bit numbers for client '{client}'{where}: fedbayes works in 64 bits, where a "
        "scan's carry has to stay of one type. Write `dtype=int` for `jnp.int32`, and `dtype=float` for `jnp.float32`, "
        "as in `jnp.ones(n, dtype=int)`."
    )


def with_sizes(model: Model, clients: Mapping[str, ClientArrays]) -> dict[str, ClientArrays]:
    """The clients, with the integers that fix shapes or branches of the model as Python numbers.

    An integer that differs between clients is data, unless the model can't be traced so. Then it is a size, and the
    clients have one program for each of its values.
    """
    first = next(iter(clients.values()))
    numbers = [name for name, array in first.arrays.items() if array.ndim == 0 and array.dtype.kind in "iub"]
    if not numbers:
        return dict(clients)
    try:
        trace_sites(model, first.static, first.arrays)
        return dict(clients)
    except Exception as error:
        named = _argument(error)
    for sizes in ([named], numbers):
        if set(sizes) <= set(numbers) and _traces(model, _moved(first, sizes)):
            _warn_of_many(sizes, clients)
            return {name: _moved(client, sizes) for name, client in clients.items()}
    return dict(clients)


def _argument(error: BaseException) -> str | None:
    """The model's argument on whose value a program depends, by JAX's message."""
    found = re.search(r"argument data\['(\w+)'\]", str(error))
    return found.group(1) if found else None


def _traces(model: Model, client: ClientArrays) -> bool:
    try:
        trace_sites(model, client.static, client.arrays)
    except Exception:
        return False
    return True


def _moved(client: ClientArrays, sizes: list) -> ClientArrays:
    """A client with some of its arrays, single integers, as Python numbers."""
    arrays = {name: array for name, array in client.arrays.items() if name not in sizes}
    return replace(client, arrays=arrays, static=client.static | {name: client.arrays[name].item() for name in sizes})


def _warn_of_many(sizes: list, clients: Mapping[str, ClientArrays]) -> None:
    values = {tuple(client.arrays[name].item() for name in sizes) for client in clients.values()}
    if len(values) > _MANY:
        warnings.warn(
            f"The model needs the value of {' and '.join(f'`{name}`' for name in sizes)} while it is compiled, and the "
            f"{len(clients)} clients have {len(values)} different ones: each takes a program of its own. Where that "
            "takes too long, give all clients the same size.",
            stacklevel=2,
        )


def refusal(error: BaseException, model: Model, client: str) -> ModelError:
    """What to say of a model that needs a value which is only known when it runs."""
    argument, line = _argument(error), _line(error, model)
    where = f" (`{line}`)" if line else ""
    if argument is None:
        return ModelError(
            f"The model needs the values of data or latents while it is compiled{where}, but then only shapes are "
            "known. Write a choice between values as `jnp.where(condition, a, b)`, and select rows before the fit."
        )
    return ModelError(
        f"The model needs the values of `{argument}` of client '{client}' while it is compiled{where}, but then only "
        "the shapes of the clients' arrays are known. Compute a number of groups or a flag before the fit and pass it "
        f"as an argument of its own, `dict({argument}=..., num_groups=int({argument}.max()) + 1)`; write a choice "
        "between values as `jnp.where(condition, a, b)`."
    )


def _line(error: BaseException, model: Model) -> str | None:
    """The last line of the model's file that was running."""
    code = getattr(inspect.unwrap(model), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if code is not None and frame.filename == code.co_filename]
    return lines[-1] if lines else None
