"""How far rounds with GIFAIR have ended from the optimum of their own objective, by a Newton step.

With quadratic expansions of the clients' energies ``U_k`` where the rounds have ended, the objective is

    sum_k U_k + sum_(i<j) max_(-1 <= s_ij <= 1) s_ij lambda n (L_i - L_j)  =  max_s sum_k c_k(s) U_k,

``c_k = 1 + scale_k sum_j s_(i j)`` for client k of group i (:mod:`fedbayes.inference.fedavg.fairness`). So its minimum
is that of ``sum_k c_k(s) U_k`` at the s where this minimum is largest, a concave function of s on a box. Where losses
of groups meet, s lies inside the box: there the gradient by the groups' ranks is not zero at the optimum.
"""

import numpy as np
from scipy.optimize import minimize

from fedbayes.inference.fedavg.curvature import LaplaceState
from fedbayes.inference.fedavg.fairness import Fairness

MOST_GROUPS = 64  # beyond which there are too many pairs


def distances_from_optimum(state: LaplaceState, fairness: Fairness) -> np.ndarray:
    """In sds of the posterior with the clients' factors, root mean square over the globals, by replicate.

    NaN where the curvature is no precision matrix, or there are more than 64 groups.

    Parameters
    ----------
    state
        The clients' expansions, with an axis of replicates.
    fairness
        Whose objective it is.
    """
    num = len(state.position)
    if fairness.num_groups > MOST_GROUPS:
        return np.full(num, np.nan)
    shares = fairness.shares[:, None]
    precisions = state.sites.precision + shares[..., None] * state.prior.precision[:, None]
    shifts = state.sites.shift + shares * state.prior.shift[:, None]
    levels = state.sites.log_scale + fairness.shares * state.prior.log_scale[:, None]
    each = zip(state.position, *map(np.asarray, (precisions, shifts, levels)), strict=True)
    return np.array([_distance(fairness, *one) for one in each])


def _distance(
    fairness: Fairness, position: np.ndarray, precisions: np.ndarray, shifts: np.ndarray, levels: np.ndarray
) -> float:
    first, second = np.triu_indices(fairness.num_groups, 1)

    def factors(signs: np.ndarray) -> np.ndarray:
        ranks = np.zeros(fairness.num_groups)
        np.add.at(ranks, first, signs)
        np.add.at(ranks, second, -signs)
        return 1.0 + fairness.scale * ranks[fairness.group]

    def energies(theta: np.ndarray) -> np.ndarray:
        return 0.5 * precisions @ theta @ theta - shifts @ theta - levels

    def apart(theta: np.ndarray) -> np.ndarray:
        """Differences between groups, times lambda."""
        losses = np.bincount(fairness.group, fairness.scale * energies(theta), fairness.num_groups)
        return losses[first] - losses[second]

    def lowest(signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = factors(signs)
        precision = np.tensordot(weights, precisions, 1)
        return np.linalg.solve(precision, weights @ shifts), precision

    def descended(signs: np.ndarray) -> tuple[float, np.ndarray]:
        theta, _ = lowest(signs)
        return -float(factors(signs) @ energies(theta)), -apart(theta)

    start = np.sign(apart(position))
    if not _is_precision(lowest(start)[1]):
        return float("nan")
    tight = {"ftol": 1e-15, "gtol": 1e-9}
    best = minimize(descended, start, jac=True, method="L-BFGS-B", bounds=[(-1.0, 1.0)] * len(start), options=tight)
    theta, precision = lowest(best.x)
    gap = theta - position
    return float(np.sqrt(gap @ precision @ gap / len(gap))) if _is_precision(precision) else float("nan")


def _is_precision(matrix: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix).min() > 0.0)
