"""Gaussian process regression as a program: every client has a function of its own, all with one kernel."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from fedbayes.models._random import generator, rows_of_each
from fedbayes.models.gp.exact import GaussianProcess
from fedbayes.models.gp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, as_rows

KERNELS: Mapping[str, Callable[[Any, Any], Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
}


def model(
    x: ArrayLike, y: ArrayLike | None = None, kernel: str = "rbf", ard: bool = False, noise_floor: float = 1e-4
) -> None:
    """One client: ``y ~ N(0, kernel(x, x) + (noise + noise_floor) I)``, its own function integrated out.

    The clients' functions are independent draws of one prior, ``f_k ~ GP(0, kernel)``; the globals are the prior's
    parameters, three numbers and one more for each further length scale:

        length_scale ~ LogNormal(log .3, 1),    variance ~ LogNormal(0, 1),    noise ~ LogNormal(log .1, 1.5).

    No formula says it: the effects of a formula are coefficients of columns, and here rows are correlated by how far
    apart they are, with a length scale that is learned.

    ``variance`` and ``noise`` are variances, not standard deviations. The priors suit inputs in the unit cube and
    outcomes that each client has scaled to mean 0 and variance 1.

    Parameters
    ----------
    x
        Inputs, shape ``(n,)`` or ``(n, d)``.
    y
        Outcomes, shape ``(n,)``. None predicts.
    kernel
        ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``. Set it for all clients with
        ``functools.partial(model, kernel=...)``.
    ard
        One length scale for each column (automatic relevance determination), or one for all.
    noise_floor
        Added to the variance of the noise, which is then never zero.

    Raises
    ------
    ValueError
        There is no kernel of that name.
    """
    if kernel not in KERNELS:
        raise ValueError(f"`kernel` is {kernel!r}; it is one of {sorted(KERNELS)}.")
    rows = as_rows(x)
    scales = dist.LogNormal(np.log(0.3), 1.0)
    scales = scales.expand([rows.shape[1]]).to_event(1) if ard else scales
    length_scale = numpyro.sample("length_scale", scales)
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(np.log(0.1), 1.5))
    numpyro.sample("y", GaussianProcess(KERNELS[kernel](length_scale, variance), rows, noise + noise_floor), obs=y)


def simulate(
    key: jax.Array,
    num_clients: int = 20,
    rows: int | Sequence[int] = 60,
    *,
    dim: int = 1,
    kernel: str = "rbf",
    length_scale: float = 0.2,
    variance: float = 1.0,
    noise: float = 0.05,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Clients with inputs uniform in the unit cube, and each a function of its own drawn from `model`'s process.

    Parameters
    ----------
    key
        JAX random key.
    num_clients
        Number of clients K.
    rows
        Rows of every client, or K numbers.
    dim
        Number of columns of the inputs.
    kernel, length_scale, variance, noise
        As in `model`; ``noise`` is the whole variance of the noise.

    Returns
    -------
    clients
        ``{"client0": {"x": (n, d), "y": (n,)}, ...}``, float64.
    truth
        The parameters, and each client's function at its inputs, ``"f"``: ``(n,)`` by client's name.

    Raises
    ------
    ValueError
        If ``rows`` is not one number and not K numbers.
    """
    sizes = rows_of_each(num_clients, rows)
    covariance = KERNELS[kernel](length_scale, variance)
    clients, functions = {}, {}
    for k, num in enumerate(sizes):
        rng = generator(key, k)
        x = rng.uniform(size=(num, dim))
        with jax.enable_x64(True):
            matrix = np.asarray(covariance(jnp.asarray(x), jnp.asarray(x)))
        values, vectors = np.linalg.eigh(matrix)
        f = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(num))
        clients[f"client{k}"] = {"x": x, "y": f + np.sqrt(noise) * rng.standard_normal(num)}
        functions[f"client{k}"] = f
    truth = {"length_scale": length_scale, "variance": variance, "noise": noise, "f": functions}
    return clients, truth
