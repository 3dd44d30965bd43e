"""Compilation: as much optimisation as a program is worth, and a folder that keeps programs for later processes."""

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jax
import numpy as np

# At the lowest level LLVM takes half the time, and a tenth of it for vmapped random generators.
CHEAPLY = {"xla_backend_optimization_level": 0}
_LITTLE = 1 << 18  # bytes of arguments


def cache_programs(folder: str | os.PathLike | None = None) -> str:
    """Keep compiled programs on disk: the next process that needs one reads it instead of compiling it.

    This switches on JAX's persistent compilation cache for the whole process. Call it before the first fit; the command
    line does. ``JAX_COMPILATION_CACHE_DIR``, or a folder that JAX was given before, has precedence over the default.

    Parameters
    ----------
    folder
        Where to keep them; ``None``: the user's cache folder.

    Returns
    -------
    str
        The folder in use.

    See Also
    --------
    fit_federated : Fits a model by a method.

    Examples
    --------
    >>> import fedbayes as fb
    >>> folder = fb.cache_programs("/tmp/programs")  # doctest: +SKIP
    """
    from platformdirs import user_cache_path

    if folder is None:
        folder = jax.config.values["jax_compilation_cache_dir"] or user_cache_path("fedbayes") / "programs"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # most of a first fit's programs compile in less than JAX's second, and all of them together take several
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return str(folder)


@cache
def _generator() -> dict[str, bool]:
    """XLA's older code generator for CPUs, where there is one.

    A client's update compiles in two thirds of the time by it, and runs as fast. Long loops of small steps run faster
    by the newer one.
    """
    options = {"xla_cpu_use_fusion_emitters": False}
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # a version of XLA that does not know the option
        return {}
    return options


def jit_quickly(function: Callable) -> Callable:
    """``jax.jit`` with the code generator that compiles sooner."""
    return jax.jit(function, compiler_options=_generator())


def jit_cheaply(function: Callable) -> Callable:
    """``jax.jit`` for a program that runs once or does little."""
    return jax.jit(function, compiler_options=_generator() | CHEAPLY)


def jit_by_size(function: Callable) -> Callable:
    """``jax.jit`` that optimises only where the arguments are large: the same arguments get the same program."""
    little, much = jit_cheaply(function), jit_quickly(function)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return (little if num_bytes(arguments) <= _LITTLE else much)(*arguments)

    return call


def num_bytes(tree: Any) -> int:
    """Size of a pytree's arrays, without the few bytes of their names and headers."""
    return sum(np.size(leaf) * np.dtype(_dtype(leaf)).itemsize for leaf in jax.tree.leaves(tree))


def _dtype(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", np.float64)
    return np.uint32 if jax.numpy.issubdtype(dtype, jax.dtypes.extended) else dtype
