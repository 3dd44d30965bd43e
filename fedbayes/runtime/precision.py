"""How a fit computes: in double precision, and with one thread for each call of BLAS and LAPACK."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import jax
from threadpoolctl import ThreadpoolController


@contextmanager
def computing() -> Iterator[None]:
    """JAX in float64 and BLAS with one thread, until the block ends.

    On the CPU JAX calls SciPy's LAPACK from threads of its own. OpenBLAS starts more threads for each of these calls,
    which wait for each other: many small matrices then take up to a hundred times longer, or for ever.
    """
    with jax.enable_x64(True), _blas().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries that this process has loaded; SciPy's is there as soon as JAX is."""
    return ThreadpoolController()
