"""How programs are compiled, and kept for other processes."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from fedbayes.runtime import compiling

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
