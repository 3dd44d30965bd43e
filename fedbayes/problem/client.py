"""What an algorithm sees of a client: its factor, while its data stay inside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.numerics.batches import in_batches, in_batches_up_to
from fedbayes.numerics.columns import by_columns
from fedbayes.problem.program.program import Globals, Program

AT_ONCE = 1 << 21  # points, or tangents, times rows that a client computes side by side: 16 MiB for a number of a row


def length(data: Mapping[str, Array], axis: int = 0) -> int:
    """Rows, with those that pad them: the mask is no measure, since clients of one size have a single entry there."""
    return max((array.shape[axis] for array in data.values() if array.ndim > axis), default=1) or 1


@partial(
    jax.tree_util.register_dataclass, data_fields=["data", "mask", "index"], meta_fields=["program", "independent"]
)
@dataclass(frozen=True)
class Client:
    """What an algorithm sees of a client: its factor. The data stay inside.

    A pytree: many clients of one shape are one ``Client`` with a leading axis, under ``vmap``.

    Attributes
    ----------
    data
        The model's arrays, rows padded to the bucket's length.
    mask
        True for real rows, shape ``(rows,)``.
    index
        The client's place among all clients: its identity, from which its randomness is drawn.
    program
        The split program for this shape of data.
    independent
        Whether the locals' groups, the rows of their first axis, are independent given the globals.
    """

    data: dict[str, Array]
    mask: Array
    index: Array
    program: Program
    independent: bool = False

    def log_factor(self, position: Globals) -> Array:
        """Log factor at the joint position ``(theta, z)``, shape ``(d + m,)``; without locals also at named globals."""
        return self.program.log_factor(*self._split(position), self.data, self.mask)

    def given(self, theta: Array) -> Callable[[Array], Array]:
        """The log factor as a function of the locals alone, shape ``(m,)``, at the globals ``theta``, shape ``(d,)``.

        What depends on the globals alone is computed once, for many values of the locals and for all steps of a search
        among them. At joint positions it would be computed for each.
        """
        return lambda z: self.program.log_factor(theta, z, self.data, self.mask)

    def log_factor_of_rows(
        self, position: Globals, rows: Array, scale: Array | float, real: Array | None = None
    ) -> Array:
        """The same with the given rows alone, shape ``(batch,)``, their terms multiplied by ``scale``.

        ``real`` says which of them count; ``None``: all.
        """
        data = self.data | {name: self.data[name][rows] for name in self.program.row_arguments}
        real = jnp.ones(rows.shape, bool) if real is None else real
        return self.program.log_factor(*self._split(position), data, real, scale)

    def _split(self, position: Globals) -> tuple[Globals, Array]:
        """Globals and locals."""
        if isinstance(position, Mapping):
            return position, jnp.zeros(0)
        size = self.program.globals.size
        return position[:size], position[size:]

    def at_many(
        self,
        function: Callable[[Any], Any],
        points: Any,
        evaluations: int = 1,
        most: int | None = None,
        num: Array | None = None,
    ) -> Any:
        """``function`` of each row of ``points``, shape ``(n, ...)``: side by side, as many as fit into memory.

        One after the other where each point takes a matrix of rows by rows.

        Parameters
        ----------
        function
            Of one point.
        points
            A pytree of arrays with the same first axis.
        evaluations
            Of the log factor that the function makes side by side.
        most
            Points side by side, whatever the memory.
        num
            A whole number that is known only at run time: only the first so many rows are needed. What others are
            computed depends on the batches; the rest are zero.
        """
        at_once = 1 if self.program.rows_by_rows else max(1, self._at_once // evaluations)
        at_once = at_once if most is None else min(at_once, most)
        if num is not None:
            return in_batches_up_to(num, function, points, at_once)
        return in_batches(function, points, at_once)

    @property
    def _at_once(self) -> int:
        """Points, or tangents at one, that are computed side by side."""
        return max(1, AT_ONCE // length(self.data))

    @property
    def num_locals(self) -> int:
        """Number m of unconstrained local latents."""
        return self.program.locals.size

    @property
    def groups(self) -> np.ndarray:
        """Places of the locals of each group, shape ``(groups, size)``; one group where they are not independent."""
        return self.program.locals.groups() if self.independent else np.arange(self.num_locals)[None]

    @property
    def jacobian(self) -> Callable:
        """How the gradient is differentiated, see :attr:`~fedbayes.problem.program.program.Program.jacobian`.

        Forwards it is as many columns at once as there may be points.
        """
        if self.program.jacobian is not jax.jacfwd:
            return self.program.jacobian
        return partial(by_columns, at_once=self._at_once)

    def with_global(self, name: str) -> "Client":
        """The client with one of its local latents as the last of its globals, see :class:`Program`."""
        return replace(self, program=self.program.with_global(name), independent=False)
