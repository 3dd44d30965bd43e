"""What partial participation does to FA-LD's posterior: the clients' spread enters the server's average.

With ``p_c`` the clients' weights, N clients of which S take part in a round, and ``rho`` the weight of the noise that
they share, the stationary covariance is ``r`` times that of full participation, however small the step is, if clients
are alike; if they are not, it is larger (:mod:`fedbayes.inference.fald.law`). Plain NumPy, on the host.
"""

from typing import Literal

import numpy as np

from fedbayes.inference.fald.options import Options


def participation_share(
    weights: np.ndarray, num_active: int, scheme: Literal["with_replacement", "without_replacement"]
) -> float:
    """``C_S / S``, the part of the spread among clients that enters the server's average (lemma C.1).

    Clients drawn by their weights (scheme I): ``1 / S``. A uniform subset of clients of equal weights (scheme II):
    ``(N - S) / (S (N - 1))``, zero where everybody takes part.
    """
    num = len(weights)
    if scheme == "with_replacement":
        return 1.0 / num_active
    if not np.allclose(weights, 1.0 / num):
        raise ValueError(f"scheme 'without_replacement' needs equal weights, not {weights}: write 'with_replacement'")
    return (num - num_active) / (num_active * max(num - 1, 1))


def covariance_inflation(num_clients: int, share: float, rho: float = 0.0) -> float:
    """``r = 1 + (1 - rho^2) share (N - 1)``: of clients that are alike, however small the step (derived)."""
    return 1.0 + (1.0 - rho**2) * share * (num_clients - 1)


def share_of(config: Options, weights: np.ndarray) -> float:
    """``C_S / S`` of the configured scheme; zero where everybody takes part."""
    if config.scheme == "full" or config.num_active is None:
        return 0.0
    averaged = average_weights(config, weights)
    return participation_share(averaged, config.num_active, config.scheme)


def average_weights(config: Options, weights: np.ndarray) -> np.ndarray:
    """By which positions are averaged in expectation, shape ``(N,)``: scheme II takes the drawn clients alike."""
    return np.full(len(weights), 1.0 / len(weights)) if config.scheme == "without_replacement" else weights
