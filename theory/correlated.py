"""Algorithm 3.1 of Yue (2023) for correlated clients as it stands, and why it has nothing to converge to.

K clients have coefficients ``theta_k``, the rows of Theta, and ``(theta_1 ... theta_K) ~ MN(0, I_m, Omega)``. A round,
from ``A = Omega^-1 Theta``:

    client k:   theta <- theta_k;   T times:  theta <- theta + 2 eta X_b'(y_b - X_b theta);
                theta_k <- theta - 2 eta A_k
    server:     Omega <- (1 - alpha) Omega + (alpha / m) Theta Theta'

The method of the library samples the posterior instead (``inference/correlated/DESIGN.md``). Plain NumPy in float64, on
the host.
"""

from collections.abc import Iterable

import numpy as np


def source_algorithm(
    clients: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    rounds: int = 30,
    local_steps: int = 20,
    batch_size: int | None = 8,
    step_size: float = 0.01,
    smoothing: float = 0.1,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients ``(K, m)`` and Omega ``(K, K)`` at which the rounds stop, from standard normal coefficients.

    Parameters
    ----------
    clients
        Each client's ``x``, shape ``(n_k, m)``, and ``y``, shape ``(n_k,)``.
    rounds, local_steps
        Of the server, and T of a client in each.
    batch_size
        Rows of a gradient, drawn without replacement; ``None``: all. The source gives none; 8 reproduces its table
        best.
    step_size, smoothing
        ``eta`` and ``alpha``.
    seed
        Of the start and the batches.
    """
    rng, data = np.random.default_rng(seed), list(clients)
    num, size = len(data), data[0][0].shape[1]
    theta, omega = rng.normal(size=(num, size)), np.eye(num)
    for _ in range(rounds):
        pull, theta = np.linalg.solve(omega, theta), theta.copy()
        for k, (x, y) in enumerate(data):
            for _ in range(local_steps):
                rows = slice(None) if batch_size is None else rng.permutation(len(y))[:batch_size]
                theta[k] += 2.0 * step_size * x[rows].T @ (y[rows] - x[rows] @ theta[k])
        theta -= 2.0 * step_size * pull
        omega = (1.0 - smoothing) * omega + smoothing / size * theta @ theta.T
    return theta, omega


def objective(theta: np.ndarray, omega: np.ndarray, log_likelihood: float) -> float:
    """``-2 log likelihood + Tr(Theta' Omega^-1 Theta) + m log |Omega|``, which the rounds go down: unbounded below.

    For a unit vector v with ``v' Theta = 0`` and Omega's eigenvalue e along v it falls as ``m log e``.

    Parameters
    ----------
    theta, omega
        Shapes ``(K, m)`` and ``(K, K)``.
    log_likelihood
        Of all clients' rows.
    """
    _, log_determinant = np.linalg.slogdet(omega)
    return float(
        np.sum(theta * np.linalg.solve(omega, theta)) + theta.shape[1] * log_determinant - 2.0 * log_likelihood
    )


def stable_rounds(step_size: float, smoothing: float) -> float:
    """Rounds after which the step towards the others is longer than its way, with more clients than coefficients.

    Omega's smallest eigenvalue is about ``(1 - alpha)^c`` after c rounds, and the step diverges once that is below
    ``eta``.
    """
    return float(np.log(step_size) / np.log1p(-smoothing))
