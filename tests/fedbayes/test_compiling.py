"""How programs are compiled, and kept for other processes."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.runtime import compiling

_SEEN: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: _SEEN.append(event) if event.endswith("backend_compile_duration") else None
)

PROGRAM = """
import jax, fedbayes
print(fedbayes.cache_programs({folder}))
jax.jit(lambda x: 2.0 * x + 1.0)(3.0).block_until_ready()
"""


def cached(folder: object, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    program = PROGRAM.format(folder="" if folder is None else repr(str(folder)))
    result = subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=clean | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_programs_are_kept_in_the_folder(tmp_path):
    folder = tmp_path / "programs"
    assert cached(folder) == str(folder)
    assert list(folder.iterdir())


def test_the_default_is_the_users_cache_folder_unless_jax_has_one(tmp_path):
    user, given = tmp_path / "user", tmp_path / "given"
    assert cached(None, XDG_CACHE_HOME=str(user)) == str(user / "fedbayes" / "programs")
    assert list((user / "fedbayes" / "programs").iterdir())
    assert cached(None, XDG_CACHE_HOME=str(user), JAX_COMPILATION_CACHE_DIR=str(given)) == str(given)
    assert list(given.iterdir())


def test_bytes_of_a_tree():
    key = jax.random.split(jax.random.key(0), 3)
    tree = {"a": np.zeros((2, 3)), "b": (jnp.zeros(4, jnp.float32), np.True_), "key": key}
    assert compiling.num_bytes(tree) == 48 + 16 + 1 + 12
    assert compiling.num_bytes(()) == 0


def test_small_and_large_arguments_give_the_same_numbers():
    """One function, two programs: by the size of the arguments alone."""
    double = compiling.jit_by_size(lambda x: jnp.cumsum(x) * 2.0)
    small, large = np.arange(8.0), np.arange(float(1 << 16))
    for array in (small, large):
        np.testing.assert_allclose(double(array), np.cumsum(array) * 2.0, rtol=1e-6)


def test_another_thread_compiles_before_the_first_call():
    double = compiling.Compiled(compiling.jit_quickly(lambda x: 2.0 * jnp.cumsum(x)))
    shapes = double.ahead(jax.ShapeDtypeStruct((17,), np.float32))
    assert shapes.shape == (17,)
    compiling.wait([future for _, future in double._under_way.values()])
    x, before = np.arange(17, dtype=np.float32), len(_SEEN)
    np.testing.assert_array_equal(double(x), 2.0 * np.cumsum(x))
    assert len(_SEEN) == before
    double(x[:16])
    assert len(_SEEN) == before + 1  # the counter counts


class Stub:
    """A function by ``jax.jit``, as far as it is asked; ``compile`` is what another thread calls."""

    out_info = None

    def __init__(self, compile_):
        self.compile = compile_

    def lower(self, x):
        return self

    def __call__(self, x):
        return x + 1


def test_what_fails_in_another_thread_is_compiled_by_the_call():
    def compile_():
        raise MemoryError

    call = compiling.Compiled(Stub(compile_))
    call.ahead(1)
    assert call(1) == 2
    assert not call._under_way


def test_what_no_thread_has_begun_is_not_waited_for(monkeypatch):
    """Neither by the call, nor at the interpreter's end after a fit that failed."""
    done, compiled, begun = threading.Event(), [], threading.Event()
    pool = ThreadPoolExecutor(1)
    monkeypatch.setattr(compiling, "_compilers", cache(lambda: pool))
    compiling._compilers()
    first = compiling.Compiled(Stub(lambda: begun.set() or (done.wait(60) and compiled.append("first"))))
    called, left = (compiling.Compiled(Stub(lambda name=name: compiled.append(name))) for name in ("called", "left"))
    for each in (first, called, left):
        each.ahead(1)
    begun.wait(60)
    assert called(1) == 2
    compiling.stop_compiling()
    done.set()
    assert first(1) == 2
    pool.shutdown()
    assert compiled == ["first"]


def test_a_call_leaves_programs_of_other_shapes_to_their_threads():
    """As of several buckets of clients, which one function serves."""
    double = compiling.Compiled(compiling.jit_quickly(lambda x: 2.0 * jnp.cumsum(x)))
    for num in (5, 6):
        double.ahead(jax.ShapeDtypeStruct((num,), np.float32))
    double(np.arange(5, dtype=np.float32))
    assert [shapes for (_, shapes) in double._under_way] == [(((6,), "float32"),)]
    compiling.wait([future for _, future in double._under_way.values()])
    before = len(_SEEN)
    double(np.arange(6, dtype=np.float32))
    assert len(_SEEN) == before


def test_a_value_for_a_program_that_is_being_traced_is_one_program():
    """Operation by operation, as under ``ensure_compile_time_eval``, it would be three."""
    counts = []

    @jax.jit
    def outer(x):
        before = len(_SEEN)
        known = compiling.evaluated(lambda y: jnp.sum(jnp.sin(y) * y), np.arange(5.0, dtype=np.float32))
        counts.append(len(_SEEN) - before)
        assert isinstance(known, np.ndarray)
        return x * known

    y = np.arange(5.0)
    np.testing.assert_allclose(outer(1.0), np.sum(np.sin(y) * y), rtol=1e-5)
    assert counts == [1]


def test_waiting_for_a_program_counts_once_and_computing_never() -> None:
    call = compiling.Compiled(compiling.jit_cheaply(lambda x: jnp.sum(jnp.linalg.cholesky(jnp.eye(60) * (1.0 + x**2)))))
    before = compiling.waited()
    call(np.ones(()))
    first = compiling.waited()
    call(np.ones(()))
    assert first > before
    assert compiling.waited() == first


def test_programs_by_size_tell_of_their_number_too() -> None:
    call = compiling.Compiled(compiling.jit_by_size(lambda x: 2.0 * x))
    before = compiling.waited()
    call(np.ones(3))
    assert compiling.waited() > before


def test_what_a_fit_evaluates_seldom_is_not_optimised(monkeypatch) -> None:
    """The limits are of evaluations by all calls of a fit, and decide alone; an unknown number is no large one."""

    def jit(function, *, compiler_options):
        kind = tuple(sorted(name.removeprefix("xla_") for name in compiler_options))
        return lambda x: (kind, function(x))

    parts, older, cheaply = (
        "cpu_parallel_codegen_split_count",
        "cpu_use_fusion_emitters",
        "backend_optimization_level",
    )
    compiling._options()  # asks XLA what it knows
    monkeypatch.setattr(compiling.jax, "jit", jit)
    call = compiling.jit_by_work(lambda x: x + 1, float, newer=True)
    few, many = compiling._FEW, compiling._MANY
    assert [call(x)[0] for x in (1, few, few + 1)] == [(cheaply, parts, older)] * 2 + [(parts, older)]
    assert [call(x)[0] for x in (many, many + 1, np.inf)] == [(parts, older), (parts,), (parts, older)]
    assert compiling.jit_by_work(lambda x: x + 1, float)(many + 1)[0] == (parts, older)
    assert call(few)[1] == few + 1


def test_nothing_is_collected_while_a_program_is_traced() -> None:
    """Only while, and where it was off before it stays off."""
    seen = []

    def function(x):
        seen.append(gc.isenabled())
        return x + 1.0

    call = compiling.Compiled(compiling.jit_cheaply(function))
    call.ahead(jax.ShapeDtypeStruct((3,), np.float32))
    assert gc.isenabled()
    gc.disable()
    try:
        call.ahead(jax.ShapeDtypeStruct((4,), np.float32))
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False, False]
