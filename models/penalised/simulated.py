"""Clients with sparse coefficients, and the three simulated cases of Yue (2023), section 3.5.2."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from fedbayes.models._random import generator, rows_of_each

Clients = dict[str, dict[str, np.ndarray]]


class Case(NamedTuple):
    """A simulated case: the same ``theta`` for all clients, with so many training rows each, and test rows."""

    theta: tuple[float, ...]
    rows: tuple[int, ...]
    test_rows: int


_FEW = (3.0, 1.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0)
YUE_CASES: Mapping[str, Case] = {
    "I": Case(_FEW, (100,) * 10, 1000),
    "II": Case(_FEW, (20,) * 2 + (200,) * 8, 1000),
    "III": Case((3.0,) * 10 + (0.0,) * 10 + (3.0,) * 10, (40,) * 20, 400),
}
"""Table 3.2 of Yue (2023): standard normal predictors; the noise, printed as 0.05, behaves as a standard deviation."""


def simulate(
    key: jax.Array,
    num_clients: int = 10,
    rows: int | Sequence[int] = 100,
    *,
    theta: ArrayLike | tuple[float, ...] = _FEW,
    spread: float = 0.0,
    noise_sd: float = 1.0,
) -> tuple[Clients, dict[str, Any]]:
    """Clients with standard normal predictors, and coefficients that are zero or scatter about a common value.

    Parameters
    ----------
    key
        JAX random key.
    num_clients
        Number of clients K.
    rows
        Rows of every client, or K numbers.
    theta
        Common coefficients, shape ``(d,)``.
    spread
        Standard deviation, over clients, of the coefficients that are not zero.
    noise_sd
        Standard deviation of the errors.

    Returns
    -------
    clients
        ``{"client0": {"x": (n, d), "y": (n,)}, ...}``, float64.
    truth
        ``{"theta": (K, d), "sigma2": ()}``.

    Raises
    ------
    ValueError
        If ``rows`` is not one number and not K numbers.
    """
    sizes = rows_of_each(num_clients, rows)
    common, clients, found = np.asarray(theta, float), {}, []
    for k, num in enumerate(sizes):
        rng = generator(key, k)
        mine = common + spread * (common != 0.0) * rng.standard_normal(common.shape)
        x = rng.standard_normal((num, len(common)))
        clients[f"client{k}"] = {"x": x, "y": x @ mine + noise_sd * rng.standard_normal(num)}
        found.append(mine)
    return clients, {"theta": np.stack(found), "sigma2": np.asarray(noise_sd**2)}


def simulate_case(key: jax.Array, case: str, noise_sd: float = 0.05) -> tuple[Clients, Clients, np.ndarray]:
    """Training rows, test rows, and the true coefficients ``(d,)`` of case ``"I"``, ``"II"`` or ``"III"``.

    Raises
    ------
    ValueError
        There is no such case.
    """
    if case not in YUE_CASES:
        raise ValueError(f"case is {case!r}; it is one of {sorted(YUE_CASES)}")
    theta, rows, test_rows = YUE_CASES[case]
    longer = [num + test_rows for num in rows]
    clients, _ = simulate(key, len(rows), longer, theta=theta, noise_sd=noise_sd)
    parts: tuple[Clients, Clients] = {}, {}
    for (name, client), num in zip(clients.items(), rows, strict=True):
        parts[0][name] = {argument: array[:num] for argument, array in client.items()}
        parts[1][name] = {argument: array[num:] for argument, array in client.items()}
    return *parts, np.asarray(theta)
