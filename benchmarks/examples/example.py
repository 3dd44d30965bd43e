"""What an entry of the table is: a program for one client, and the clients' data."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpyro.infer import init_to_uniform

Clients = Mapping[str, Mapping[str, Any]]


class Example(NamedTuple):
    """A program of NumPyro's, said anew for one client's data.

    Attributes
    ----------
    name
        On the command line and in the table.
    source
        The file under NumPyro's `examples/`, or the tutorial under its `notebooks/source/`, and the model in it.
    model
        One client's program.
    clients
        Makes the clients' data; called in the process that fits them.
    note
        What differs from NumPyro's program beside the clients.
    pooled
        Makes one program of everybody's data, and the arguments that it takes, from the clients' data; the default is
        the product of the clients' own programs.
    init
        NumPyro's strategy for where NUTS starts; the default is near zero in unconstrained space.
    """

    name: str
    source: str
    model: Callable[..., Any]
    clients: Callable[[], Clients]
    note: str = ""
    pooled: Callable[[Clients], tuple[Callable[..., Any], Mapping[str, Any]]] | None = None
    init: Callable[..., Any] = init_to_uniform(radius=0.3)


def rng(name: str) -> np.random.Generator:
    """Every example has random numbers of its own, which don't change when another example does."""
    return np.random.default_rng([20261122, *name.encode()])


def named(*data: Mapping[str, Any]) -> Clients:
    """The clients' data under names."""
    return {f"client{k}": one for k, one in enumerate(data)}
