"""What a client's delta of federated posterior averaging costs at a million dimensions: time and memory.

``python benchmarks/fedpa_memory.py`` prints a table; half a minute. The unit of memory is that of the client's draws,
l x d numbers. XLA's account has the arguments (draws and position) and what the program needs beside them; the growth
of the process' peak is measured, in a fresh process for each type, with draws and program in place before.
"""

import multiprocessing
import resource
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from fedbayes.inference.fedpa.shrinkage import shrunk_delta

NUM, SIZE, RHO = 32, 1_000_000, 0.4


class Cost(NamedTuple):
    """Seconds, the least of three; bytes by XLA's account and as the growth of the peak."""

    seconds: float
    argument: int
    temporary: int
    growth: int


def peak() -> int:
    """Bytes the process has had resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(dtype: str) -> Cost:
    """In this process, which should have done nothing else."""
    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def draws() -> jax.Array:  # made element by element, so that making them needs no more memory than they do
        row, column = (jax.lax.broadcasted_iota(dtype, (NUM, SIZE), axis) for axis in (0, 1))
        return jnp.sin((1.0 + row) * (1.0 + column))

    samples, position = draws(), jnp.ones(SIZE, dtype)
    program = jax.jit(lambda position, samples: shrunk_delta(position, samples, RHO)).lower(position, samples).compile()
    usage, before, times = program.memory_analysis(), peak(), []
    for _ in range(3):
        started = time.perf_counter()
        jax.block_until_ready(program(position, jax.block_until_ready(samples)))
        times.append(time.perf_counter() - started)
    return Cost(min(times), usage.argument_size_in_bytes, usage.temp_size_in_bytes, peak() - before)


def main() -> None:
    """Measure and print."""
    shown = Table(title=f"delta of one client, l = {NUM}, d = {SIZE:,}; memory as multiples of l d numbers")
    for column in ("", "l d numbers", "s", "XLA: arguments", "XLA: temporary", "peak RSS growth", "a d x d matrix"):
        shown.add_column(column, justify="right" if column else "left")
    for dtype in ("float32", "float64"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, (dtype,))
        unit = NUM * SIZE * jnp.dtype(dtype).itemsize
        multiples = (f"{value / unit:.2f}" for value in cost[1:])
        matrix = f"{SIZE**2 * jnp.dtype(dtype).itemsize / 1e12:.0f} TB, {SIZE / NUM:,.0f} times"
        shown.add_row(dtype, f"{unit / 1e6:.0f} MB", f"{cost.seconds:.2f}", *multiples, matrix)
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
