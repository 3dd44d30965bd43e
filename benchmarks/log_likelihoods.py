"""What log-likelihoods at draws of the posterior hold of single rows, and what rounding them costs.

A server that follows the protocol has the values of a fit's check: one log-likelihood of all rows together at each of
some thousand draws. To first order these are linear in the rows' entries. With errors of sd ``s`` and entries that are
known beforehand to 1 sd, their posterior covariance is ``(I + J'J / s^2)^-1``, where ``J`` has the derivatives of each
value by each entry. An entry counts as known where this leaves an sd below .1.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedbayes.models import heart_disease

DRAWS = 3_000
KNOWN = 0.1
EXACT = 1e-6  # nats: more than double precision leaves, and as fine as the matrices below can tell
Data = Mapping[str, Mapping[str, np.ndarray]]


class Held(NamedTuple):
    """What the answers of some sites hold.

    Attributes
    ----------
    sites
        In words.
    rows, entries
        How many there are.
    known
        Share of the entries that are known, by the error of a log-likelihood.
    """

    sites: str
    rows: int
    entries: int
    known: tuple[float, ...]


def draws_of(data: Data, rng: np.random.Generator) -> np.ndarray:
    """Draws of the posterior's Gaussian at its mode."""
    rows, outcomes = design(data)
    precision = np.diag([1.0 / 25.0] + [1.0] * (rows.shape[1] - 1))
    theta = np.zeros(rows.shape[1])
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-rows @ theta))
        hessian = precision + (rows.T * (p * (1.0 - p))) @ rows
        theta = theta + np.linalg.solve(hessian, rows.T @ (outcomes - p) - precision @ theta)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    return theta + rng.normal(size=(DRAWS, len(theta))) @ root.T


def design(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """All rows with a one for the intercept, and their outcomes."""
    x = np.concatenate([np.asarray(each["x"]) for each in data.values()])
    return np.column_stack([np.ones(len(x)), x]), np.concatenate([np.asarray(each["y"]) for each in data.values()])


def log_likelihoods(data: Data, theta: np.ndarray) -> np.ndarray:
    """Of each site at each draw, shape ``(K, draws)``."""
    found = []
    for name in data:
        rows, outcomes = design({name: data[name]})
        eta = theta @ rows.T
        found.append(eta @ outcomes - np.logaddexp(0.0, eta).sum(axis=1))
    return np.stack(found)


def known(data: Data, theta: np.ndarray, errors: tuple[float, ...]) -> tuple[float, ...]:
    """Share of the sites' entries that are known from the sum of their log-likelihoods."""
    rows, outcomes = design(data)
    residual = outcomes - 1.0 / (1.0 + np.exp(-theta @ rows.T))
    slopes = (residual[:, :, None] * theta[:, None, 1:]).reshape(len(theta), -1)
    slopes -= slopes.mean(axis=0)  # what all values share tells nothing
    shares = []
    for error in errors:
        shares.append(float(np.mean(left_of(slopes / error) < KNOWN**2)))
    return tuple(shares)


def left_of(slopes: np.ndarray) -> np.ndarray:
    """The diagonal of ``(I + J'J)^-1``."""
    draws, entries = slopes.shape
    if entries <= draws:
        return np.diag(np.linalg.inv(np.eye(entries) + slopes.T @ slopes))
    white = np.linalg.solve(np.linalg.cholesky(np.eye(draws) + slopes @ slopes.T), slopes)
    return 1.0 - np.sum(white**2, axis=0)


def cost_of_rounding(nats: float) -> tuple[float, float]:
    """What rounding does to the weights: the share of effective draws left, and the most that a mean moves, in sds."""
    data = heart_disease.clients()
    theta = draws_of(data, np.random.default_rng(1))
    exact = log_likelihoods(data, theta)
    centred = (theta - theta.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(theta.T))).T
    others = -0.5 * (theta[:, 0] ** 2 / 25.0 + np.sum(theta[:, 1:] ** 2, axis=1)) + 0.5 * np.sum(centred**2, axis=1)
    found = []
    for values in (exact, np.round(exact / nats) * nats):
        weights = np.exp((total := values.sum(axis=0) + others) - total.max())
        weights /= weights.sum()
        found.append((1.0 / np.sum(weights**2), weights @ theta))
    (before, mean), (after, moved) = found
    return after / before, float(np.max(np.abs(moved - mean) / theta.std(axis=0)))


def held(nats: tuple[float, ...]) -> list[Held]:
    """What exact values hold, and values rounded to some nats, of single sites and of sums."""
    everybody, found = heart_disease.clients(), []
    for names in (("switzerland",), ("va",), ("switzerland", "va", "hungarian"), tuple(everybody)):
        data = {name: everybody[name] for name in names}
        theta = draws_of(everybody, np.random.default_rng(0))
        errors = (EXACT, *(step / np.sqrt(12.0 / len(names)) for step in nats))
        count = len(design(data)[0])
        label = names[0] if len(names) == 1 else f"the sum of {len(names)}"
        found.append(Held(label, count, 13 * count, known(data, theta, errors)))
    return found
