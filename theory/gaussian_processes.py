"""What theory says of federated Gaussian process regression with a known length scale: gradients and their roots.

Outcomes of n rows have the covariance ``C = s R + v I``, with ``R`` the kernel's correlations, ``s`` the variance of
the function and ``v`` that of the noise. With ``lambda_j`` the eigenvalues of ``R`` and the truth ``theta* = (s*, v*)``
the negative log marginal likelihood of ``theta = (s, v)`` has the expected gradient

    g*(theta) = A(theta) (theta - theta*),    A = 1/2 [[S11, S12], [S12, S22]],
    S11 = sum_j lambda_j^2 / c_j^2,    S12 = sum_j lambda_j / c_j^2,    S22 = sum_j 1 / c_j^2,    c_j = s lambda_j + v,

linear in the error, and ``A(theta)`` is the Fisher information at ``theta``. All this holds for variances, not for
standard deviations. Source: Yue and Al Kontar (2024), "Federated Gaussian Process: Convergence, Automatic
Personalization and Multi-fidelity Modeling", whose lemmas are given; what is marked "derived" is not in the paper.
Plain NumPy in float64, on the host.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

_STEPS = 500
_TOLERANCE = 1e-13


def spectrum(correlations: ArrayLike) -> np.ndarray:
    """Eigenvalues of correlation matrices ``(..., n, n)``, shape ``(..., n)``; negative ones are round-off, and zero.

    Every function of this module takes them in place of the matrices, and sums over their last axis.
    """
    return np.maximum(np.linalg.eigvalsh(np.asarray(correlations, float)), 0.0)


def sums(spectrum: ArrayLike, theta: ArrayLike) -> np.ndarray:
    """``S11``, ``S12`` and ``S22`` of lemmas 2 and 3, shape ``(..., 3)``.

    For the RBF kernel in one dimension the first two grow as ``log n`` (lemma 2); for a Matern kernel as a small power
    of ``n`` (lemma 3, whose power is far above that seen). The third grows as ``n / v^2`` for both.

    Parameters
    ----------
    spectrum
        See :func:`spectrum`, shape ``(..., n)``.
    theta
        Variances ``(s, v)`` of the function and of the noise.
    """
    values, (signal, noise) = np.asarray(spectrum, float), np.asarray(theta, float)
    weights = 1.0 / (signal * values + noise) ** 2
    return np.stack([np.sum(values**power * weights, axis=-1) for power in (2, 1, 0)], axis=-1)


def information(spectrum: ArrayLike, theta: ArrayLike) -> np.ndarray:
    """``A(theta)``, shape ``(..., 2, 2)``: the Fisher information of ``(s, v)`` in the rows.

    It is the covariance of the gradient at the truth given the inputs, ``1/2 tr(C^-1 dC_i C^-1 dC_j)``, and the
    expected Hessian there. Lemma 4 bounds its least eigenvalue, with components scaled by ``log n`` and ``n``, from
    below by constants that are positive for hardly any kernel; a grid of this function gives numbers.

    Parameters
    ----------
    spectrum, theta
        As for :func:`sums`.
    """
    first, cross, second = np.moveaxis(sums(spectrum, theta), -1, 0)
    return 0.5 * np.stack([np.stack([first, cross], axis=-1), np.stack([cross, second], axis=-1)], axis=-2)


def expected_gradient(spectrum: ArrayLike, theta: ArrayLike, truth: ArrayLike) -> np.ndarray:
    """``g*(theta) = A(theta) (theta - theta*)`` of the rows' sum, shape ``(..., 2)`` (proofs of theorems 1 to 4).

    Parameters
    ----------
    spectrum, theta
        As for :func:`sums`.
    truth
        ``theta*``.
    """
    return information(spectrum, theta) @ (np.asarray(theta, float) - np.asarray(truth, float))


def gradient_sds(spectrum: ArrayLike, truth: ArrayLike) -> np.ndarray:
    """Standard deviations of the gradient of a row's mean loss at the truth, given the inputs, shape ``(..., 2)``.

    ``sqrt(A_ii) / n`` (derived). Of the noise's variance it falls as ``1 / sqrt(n)``, to ``1 / (sqrt(2 n) v*)``; of the
    function's, in lemma 6's scaling by ``n / log n``, as ``1 / sqrt(log n)``.
    """
    found = information(spectrum, truth)
    return np.sqrt(np.diagonal(found, axis1=-2, axis2=-1)) / np.shape(spectrum)[-1]


def population_root(spectra: Sequence[ArrayLike], truths: ArrayLike, weights: ArrayLike | None = None) -> np.ndarray:
    """Where federated rounds with small steps end when clients differ: the root of the expected gradient, derived.

    It solves ``sum_k p_k A_k(theta) (theta - theta_k*) / n_k = 0``, with the loss of client k a mean over its ``n_k``
    rows. Where the clients' inputs have one law and their batches one size, all ``A_k`` are equal and the root is
    ``sum_k p_k theta_k*``, in variances. With several local steps a round, clients drift and the rounds end elsewhere.

    Parameters
    ----------
    spectra
        Of each client, shape ``(n_k,)``; or ``(draws, n_k)`` for inputs that are random, over which A is averaged.
    truths
        ``theta_k*``, shape ``(K, 2)``.
    weights
        ``p_k``, adding up to one; ``None``: equal.

    Returns
    -------
    ndarray
        ``(s, v)``.

    Raises
    ------
    ValueError
        The numbers of spectra, truths and weights differ, or Fisher's scoring from the truths' mean finds no root with
        positive variances.
    """
    targets = np.asarray(truths, float)
    shares = np.full(len(targets), 1.0 / len(targets)) if weights is None else np.asarray(weights, float)
    if not len(spectra) == len(targets) == len(shares):
        raise ValueError(
            f"There are {len(spectra)} spectra, {len(targets)} truths and {len(shares)} weights: give one of each for "
            "every client."
        )
    theta = shares @ targets
    for _ in range(_STEPS):
        mean = [_mean_information(each, theta) for each in spectra]
        total = np.einsum("k,kij->ij", shares, mean)
        after = np.linalg.solve(total, np.einsum("k,kij,kj->i", shares, mean, targets))
        if not np.all(after > 0.0):
            break
        if np.max(np.abs(after - theta)) < _TOLERANCE * np.max(theta):
            return after
        theta = after
    raise ValueError("Fisher's scoring finds no root with positive variances. Are the clients' truths far apart?")


def _mean_information(spectrum: ArrayLike, theta: np.ndarray) -> np.ndarray:
    """``A(theta) / n``, averaged over the inputs."""
    found = information(spectrum, theta) / np.shape(spectrum)[-1]
    return found.reshape(-1, 2, 2).mean(axis=0)


def sampled_mean_moments(points: ArrayLike, weights: ArrayLike, size: int) -> tuple[np.ndarray, float]:
    """Mean and mean squared distance from it of the average of ``size`` clients, drawn with replacement by weight.

    The mean is ``sum_k p_k theta_k``, without bias, and the distance ``sum_k p_k |theta_k - mean|^2 / size`` (proof of
    theorem 2). Drawn without replacement, the plain average of clients is biased unless their weights are equal.

    Parameters
    ----------
    points
        The clients' parameters, shape ``(K, d)``.
    weights
        ``p_k``, adding up to one.
    size
        Clients in a round.
    """
    theta, shares = np.asarray(points, float), np.asarray(weights, float)
    mean = shares @ theta
    return mean, float(shares @ np.sum((theta - mean) ** 2, axis=-1) / size)
