"""What is known of the ridge in closed form, in float64."""

from collections.abc import Mapping

import numpy as np


def ridge_log_factor(client: Mapping[str, np.ndarray], lam: np.ndarray, sigma2: np.ndarray) -> np.ndarray:
    """A client's log factor ``log N(y; 0, sigma2 (I + X X' / lam))``, its coefficients integrated out.

    With eigenvalues ``e`` of ``X'X`` and ``b = U'X'y``,

        -(y'y - sum b^2 / (e + lam)) / (2 sigma2) - n/2 log(2 pi sigma2) - 1/2 sum log(1 + e / lam).

    Parameters
    ----------
    client
        ``x``, shape ``(n, d)``, and ``y``, shape ``(n,)``.
    lam, sigma2
        Penalties and error variances, of shapes that broadcast.
    """
    x, y = np.asarray(client["x"], float), np.asarray(client["y"], float)
    e, u = np.linalg.eigh(x.T @ x)
    b = u.T @ (x.T @ y)
    lam, sigma2 = np.asarray(lam, float), np.asarray(sigma2, float)
    rest = y @ y - np.sum(b**2 / (e + lam[..., None]), axis=-1)
    log_det = np.sum(np.log1p(e / lam[..., None]), axis=-1)
    return -0.5 * (rest / sigma2 + len(y) * np.log(2.0 * np.pi * sigma2) + log_det)


def ridge_coefficients(client: Mapping[str, np.ndarray], lam: float, sigma2: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean ``(X'X + lam I)^-1 X'y`` and covariance ``sigma2 (X'X + lam I)^-1`` of a client's coefficients."""
    x, y = np.asarray(client["x"], float), np.asarray(client["y"], float)
    inverse = np.linalg.inv(x.T @ x + lam * np.eye(x.shape[1]))
    return inverse @ (x.T @ y), sigma2 * inverse
