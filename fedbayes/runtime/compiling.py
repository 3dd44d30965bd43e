"""Compilation: as much optimisation as a program is worth, and a folder that keeps programs for later processes."""

import gc
import os
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import jax
import numpy as np

# At the lowest level LLVM takes half the time, and a tenth of it for vmapped random generators.
CHEAPLY = {"xla_backend_optimization_level": 0}
_LITTLE = 1 << 18  # bytes of arguments
# Evaluations of a row's log density by all rounds of a fit. As many take a tenth of a second longer without
# optimisation, or a second where a row costs much, and optimisation takes one to three seconds.
_FEW = 1 << 24
# After the rounds, evaluations from which XLA's newer code generator, which takes a second longer, may save several: up
# to half of the time.
_MANY = 3 << 26
_MOST_THREADS = 8  # that compile: each takes some hundred MiB


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
def _options() -> tuple[dict[str, bool | int], dict[str, bool | int]]:
    """Options of XLA for CPUs, where it has them: a part of a program for each four cores, the older code generator.

    XLA splits a program for up to 32 threads, which costs a tenth of its time where the cores compile other programs
    already. A client's update compiles in two thirds of the time by the older generator, and most run as fast. Long
    loops of small steps run faster by the newer one, and so does what takes single entries from arrays.
    """
    if jax.default_backend() != "cpu":
        return {}, {}
    parts: dict[str, bool | int] = {"xla_cpu_parallel_codegen_split_count": max(1, num_cores() // 4)}
    older: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
    return parts if _is_known(parts) else {}, older if _is_known(older) else {}


def _is_known(option: dict[str, bool | int]) -> bool:
    """Whether this version of XLA knows an option."""
    try:
        jax.jit(lambda: 0, compiler_options=option).lower().compile()
    except Exception:
        return False
    return True


def _generator() -> dict[str, bool | int]:
    """The code generator that compiles sooner."""
    parts, older = _options()
    return parts | older


def jit_quickly(function: Callable) -> Callable:
    """``jax.jit`` with the code generator that compiles sooner; it starts JAX, as :func:`jit_cheaply` does."""
    return jax.jit(function, compiler_options=_generator())


def jit_cheaply(function: Callable) -> Callable:
    """``jax.jit`` for a program that runs once or does little.

    It asks for JAX's platform, which starts JAX: not for a module to do while it is imported.
    """
    return jax.jit(function, compiler_options=_generator() | CHEAPLY)


def evaluated(function: Callable, *arguments: Any) -> Any:
    """``function(*arguments)`` as NumPy arrays, by a program that runs once, even while another one is being traced.

    Neither becomes a part of the other program, as a call of ``jax.jit`` would, nor is it computed operation by
    operation, each a program of its own, as by :func:`jax.ensure_compile_time_eval`.
    """
    jitted: Any = jit_cheaply(function)
    return jax.tree.map(np.asarray, jitted.lower(*arguments).compile()(*arguments))


def jit_by_size(function: Callable) -> Callable:
    """``jax.jit`` that optimises only where the arguments are large: the same arguments get the same program."""
    little, much = jit_cheaply(function), jit_quickly(function)
    return _jit_by(function, (little, much), lambda *arguments: much if num_bytes(arguments) > _LITTLE else little)


def jit_by_work(function: Callable, evaluations: Callable[..., float], *, newer: bool = False) -> Callable:
    """``jax.jit`` that optimises only where a fit computes much by this program, and always for accelerators.

    Parameters
    ----------
    function
        Whatever it returns, its arguments' shapes decide which program it gets.
    evaluations
        Of the same arguments: evaluations of a row's log density by all calls of a fit; infinite where it is not known.
    newer
        Whether the newer code generator is used where they are very many.
    """
    parts, _ = _options()
    little, much = jit_cheaply(function), jit_quickly(function)
    very_much = jax.jit(function, compiler_options=parts)

    def fitting(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return much
        number = evaluations(*arguments)
        return little if number <= _FEW else very_much if newer and _MANY < number < np.inf else much

    return _jit_by(function, (little, much, very_much), fitting)


def _jit_by(function: Callable, kinds: tuple[Any, ...], fitting: Callable[..., Any]) -> Callable:
    """One of several kinds of programs of a function, chosen by its arguments."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return fitting(*arguments)(*arguments)

    call.trace = lambda *arguments: fitting(*arguments).trace(*arguments)  # type: ignore[attr-defined]
    call.lower = lambda *arguments: fitting(*arguments).lower(*arguments)  # type: ignore[attr-defined]
    call._cache_size = lambda: sum(each._cache_size() for each in kinds)  # type: ignore[attr-defined]
    return call


class Compiled:
    """A function by ``jax.jit``, or by a relative of it, which another thread can compile before its first call.

    Parameters
    ----------
    jitted
        The function.
    """

    def __init__(self, jitted: Any) -> None:
        self._jitted = jitted
        self._num_programs = getattr(jitted, "_cache_size", int)  # a relative may not tell
        self._under_way: dict[Hashable, tuple[int, Future]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The function's value; what fails to compile in another thread is compiled, and fails, once more here."""
        if self._under_way:
            process, future = self._under_way.pop(_described(arguments), (0, None))
            # what no thread has begun is begun here, and threads don't outlive a fork
            if process == os.getpid() and future is not None and not future.cancel():
                started = time.perf_counter()
                wait([future])
                _waited.seconds += time.perf_counter() - started
        started, known = time.perf_counter(), self._num_programs()
        value = self._jitted(*arguments)
        if self._num_programs() > known:  # what it computes is only begun here
            _waited.seconds += time.perf_counter() - started
        return value

    def ahead(self, *shapes: Any) -> Any:
        """Trace it here for arguments of these shapes, and let another thread compile it.

        Tracing runs the user's program, whose effect handlers NumPyro keeps in one list for all threads. Compilation
        does not, and XLA lets go of the interpreter.

        Returns
        -------
        Any
            The shapes of the value.
        """
        with _no_collection():
            lowered = self._jitted.lower(*shapes)
        self._under_way[_described(shapes)] = os.getpid(), _compilers().submit(lowered.compile)
        return lowered.out_info


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which takes a tenth of the time to trace a program and finds next to none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Waited:
    """For programs to be compiled."""

    seconds = 0.0


_waited = _Waited()


def waited() -> float:
    """Seconds that calls of :class:`Compiled` have waited for their programs, in this process so far."""
    return _waited.seconds


def _described(arguments: Any) -> Hashable:
    """What tells programs of one function apart: structure, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)


def num_cores() -> int:
    """Cores that this process may use, as far as its affinity tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(num_cores(), _MOST_THREADS), thread_name_prefix="compiling")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compilers.cache_clear)


def stop_compiling() -> None:
    """Let go of all that other threads have not begun to compile, for which the interpreter would wait at its end."""
    if _compilers.cache_info().currsize:
        _compilers().shutdown(wait=False, cancel_futures=True)
        _compilers.cache_clear()


def shapes_of(tree: Any) -> Any:
    """The shapes of a pytree's arrays, as those that come from the host have them: without JAX's weak types."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def num_bytes(tree: Any) -> int:
    """Size of a pytree's arrays, without the few bytes of their names and headers."""
    return sum(np.size(leaf) * np.dtype(_dtype(leaf)).itemsize for leaf in jax.tree.leaves(tree))


def _dtype(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", np.float64)
    return np.uint32 if jax.numpy.issubdtype(dtype, jax.dtypes.extended) else dtype
