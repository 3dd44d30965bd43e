"""What theory says of Fed-ensemble: where the modes of a linear model end, how fast, and what they are draws of.

For ``f_w(x) = phi(x)' w`` with ``Phi`` the features of all clients' rows, of full row rank, every mode ends where it
interpolates the outcomes, nearest to its start: ``w + Phi^+ (y - Phi w)``, for all local work and every assignment that
visits all clients. Source: Shi, Lai, Al Kontar and Chowdhury (2021), whose numbers of equations are given; what is
marked "derived" corrects or sharpens them. Plain NumPy in float64, on the host.
"""

import numpy as np


def interpolated(start: np.ndarray, features: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Where modes end (16, sharpened: exact for linear models, derived).

    Parameters
    ----------
    start
        Of the modes, shape ``(K, d)``.
    features, outcomes
        ``Phi``, shape ``(n, d)``, and y, shape ``(n,)``.

    Returns
    -------
    numpy.ndarray
        Shape ``(K, d)``.
    """
    return start + (np.linalg.pinv(features) @ (outcomes[:, None] - features @ start.T)).T


def gaussian_process_limit(
    tangent: np.ndarray, initial: np.ndarray, outcomes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the modes' predictions after many rounds (theorem 4.2).

    With ``Theta`` the neural tangent kernel and ``K`` the covariance of predictions at the start they are

        m = Theta_*x Theta^-1 y,    k = K_** + A K_xx A' - A K_x* - K_*x A',    A = Theta_*x Theta^-1.

    For ``K = s^2 Theta``, a linear model, that is the posterior of a Gaussian process without observation noise; for a
    network it is the law of trained networks, and no posterior.

    Parameters
    ----------
    tangent, initial
        ``Theta`` and ``K`` over the training inputs and then the new ones, shape ``(n + m, n + m)``.
    outcomes
        y, shape ``(n,)``.

    Returns
    -------
    tuple of numpy.ndarray
        m, shape ``(m,)``, and k, shape ``(m, m)``.
    """
    n = len(outcomes)
    hat = np.linalg.solve(tangent[:n, :n], tangent[:n, n:]).T
    cross = hat @ initial[:n, n:]
    return hat @ outcomes, initial[n:, n:] + hat @ initial[:n, :n] @ hat.T - cross - cross.T


def rate(features: np.ndarray, step_size: float, local_steps: int, rows_per_round: float) -> float:
    """Rate per age at which a mode's training error falls to leading order, ``eta tau lambda / n`` (derived).

    The error after t ages is at most ``exp(-rate t / 3)`` times that at the start. The paper prints three exponents
    that disagree; the one of theorem 9.1 is exceeded from K = 5 on.

    Parameters
    ----------
    features
        ``Phi``, shape ``(n, d)``; lambda is the smallest eigenvalue of ``Phi Phi'``.
    step_size, local_steps
        eta on the mean loss of a row, and tau.
    rows_per_round
        Rows n that one mode sees in a round, the same in all.
    """
    smallest = np.linalg.eigvalsh(features @ features.T)[0]
    return float(step_size * local_steps * smallest / rows_per_round)


def mixture_divergence(log_densities: np.ndarray, size: int, sd: float) -> float:
    """``KL[q | p]`` of ``q = mean_k N(w_k, sd^2 I)`` from a density p as sd goes to zero (8, with its signs repaired).

    ``-mean_k log p(w_k) - log K - d / 2 log(2 pi e sd^2)``: least where the ``w_k`` are modes, and no term keeps them
    apart.

    Parameters
    ----------
    log_densities
        ``log p(w_k)``, shape ``(K,)``.
    size
        d.
    sd
        Small beside what separates the modes.
    """
    entropy = np.log(len(log_densities)) + 0.5 * size * (np.log(2.0 * np.pi) + 1.0 + 2.0 * np.log(sd))
    return float(-np.mean(log_densities) - entropy)
