"""What a server knows of the clients before the first round."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from fedbayes.problem.program.local_latents import LocalLatents
from fedbayes.problem.program.prior import Prior
from fedbayes.problem.program.program import Block


class Roster(NamedTuple):
    """All that a server knows of its clients: no data, and nothing that depends on the data's values.

    Attributes
    ----------
    names
        The clients' names; a client's place in this tuple is its identity.
    rows
        Number of rows of each client, shape ``(K,)``.
    num_locals
        Number of unconstrained local latents of each client, shape ``(K,)``.
    globals
        Layout of the unconstrained globals.
    prior
        The global prior.
    template
        Shape and dtype of each of the model's arrays, for one client.
    locals
        Each client's local latents by name and shape, of which clients tell when they register.
    dependent
        Whether the rows of a client depend on each other, so that the gradients of mini-batches are biased.
    """

    names: tuple[str, ...]
    rows: np.ndarray
    num_locals: np.ndarray
    globals: Block
    prior: Prior
    template: Mapping[str, jax.ShapeDtypeStruct]
    locals: tuple[LocalLatents, ...] = ()
    dependent: bool = False

    @property
    def size(self) -> int:
        """Number d of unconstrained globals."""
        return self.globals.size

    @property
    def num_clients(self) -> int:
        """Number K of clients."""
        return len(self.names)
