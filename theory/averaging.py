"""What theory says of FedAvg and FedProx with squared losses: iterates, fixed points, bounds, and federation gain.

M clients hold ``(x_i, y_i)`` with ``n_i`` rows, ``N`` in all, and go down ``l_i(f) = 1/(2 n_i) sum_j (f(x_ij) -
y_ij)^2`` in the reproducing kernel Hilbert space of a kernel k. Stacked over the clients, the server's predictions
follow

    f_t(x) = L f_(t-1)(x) + eta K P y,    L = I - eta K P,    K = k(x, x) / N,

with P block-diagonal: ``P_i = sum_(r<s) (I - eta K_i)^r`` for FedAvg with s local steps, ``(I + eta K_i)^-1`` for
FedProx solved exactly with the weight ``1 / eta``, and ``K_i = k(x_i, x_i) / n_i``. For features ``Phi`` the rounds end
at generalised least squares with the weights P. Source: Su, Xu and Yang (2023), "A Non-parametric View of FedAvg and
FedProx: Beyond Stationary Points", whose numbers of equations are given; what is marked "derived" is not in the paper.
Plain NumPy in float64, on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How clients work in a round.

    Parameters
    ----------
    step_size
        ``eta``; with a Gaussian likelihood of noise ``sigma`` that of :class:`~fedbayes.FedAvg` times ``sigma^2``.
    local_steps
        s; ``None``: FedProx, each client's proximal loss solved exactly, with the weight ``1 / step_size``.
    """

    step_size: float
    local_steps: int | None = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.step_size) and self.step_size > 0.0):
            raise ValueError(f"`step_size` is {self.step_size}; write a positive number.")
        if self.local_steps is not None and (type(self.local_steps) is not int or self.local_steps < 1):
            raise ValueError(
                f"`local_steps` is {self.local_steps!r}; write a whole number from 1 on, or None for FedProx."
            )

    @property
    def work(self) -> int:
        """S in the bounds: one for FedProx."""
        return self.local_steps or 1


class KernelClients:
    """Clients with squared losses, seen through a kernel.

    Parameters
    ----------
    gram
        ``k(x, x)`` of all clients' covariates, stacked client by client, shape ``(N, N)``, not normalised.
    sizes
        Rows of each client, adding up to N.
    rounds
        How they work.

    Raises
    ------
    ValueError
        The shapes don't fit, or gradient steps diverge: the step size times the largest eigenvalue of a ``K_i`` is two
        or more.
    """

    def __init__(self, gram: np.ndarray, sizes: Sequence[int], rounds: Rounds) -> None:
        self.gram, self.sizes, self.rounds = np.asarray(gram, float), np.asarray(sizes, int), rounds
        total = int(self.sizes.sum())
        if self.gram.shape != (total, total):
            raise ValueError(
                f"`gram` has shape {self.gram.shape}, but the clients have {total} rows in all: write ({total}, "
                f"{total})."
            )
        self._check_steps()

    def _check_steps(self) -> None:
        step, gamma = self.rounds.step_size, self.gamma
        if self.rounds.local_steps is not None and gamma >= 2.0:
            raise ValueError(
                f"`step_size` is {step}, and times the largest curvature of a client {gamma:.3g}: from 2 on gradient "
                f"steps diverge. Write less than {step / gamma:.2g}, as the theory assumes."
            )

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.sizes.sum())

    @property
    def _cuts(self) -> list[slice]:
        """Each client's rows."""
        ends = np.cumsum(self.sizes)
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    @cached_property
    def _blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Eigenvalues and eigenvectors of each ``K_i``; negative ones are round-off."""
        found = [np.linalg.eigh(self.gram[cut, cut] / size) for cut, size in zip(self._cuts, self.sizes, strict=True)]
        return [(np.maximum(values, 0.0), vectors) for values, vectors in found]

    @cached_property
    def gamma(self) -> float:
        """``eta max_i |K_i|``; the theory of FedAvg assumes less than one."""
        return self.rounds.step_size * max(float(values[-1]) for values, _ in self._blocks)

    @property
    def kappa(self) -> float:
        """Bounds P's condition number: ``gamma s / (1 - (1 - gamma)^s)``; for FedProx ``1 + gamma`` (lemma 3)."""
        if self.rounds.local_steps is None:
            return 1.0 + self.gamma
        if self.gamma == 0.0:
            return 1.0
        return self.gamma * self.rounds.work / -np.expm1(self.rounds.work * np.log1p(-self.gamma))

    @cached_property
    def weights(self) -> np.ndarray:
        """P, block-diagonal, shape ``(N, N)`` (equation 10)."""
        return block_diag(*((vectors * self._filtered(values)) @ vectors.T for values, vectors in self._blocks))

    def _filtered(self, values: np.ndarray) -> np.ndarray:
        """Eigenvalues of P's block from those of ``K_i``."""
        x = self.rounds.step_size * values
        if self.rounds.local_steps is None:
            return 1.0 / (1.0 + x)
        s, some = self.rounds.work, np.where(x > 0.0, x, 1.0)
        small = -np.expm1(s * np.log1p(-np.minimum(x, 0.5)))  # without cancellation
        return np.where(x > 0.0, np.where(x < 0.5, small, 1.0 - (1.0 - x) ** s) / some, float(s))

    @cached_property
    def operator(self) -> np.ndarray:
        """``L``, shape ``(N, N)``."""
        return np.eye(self.num_rows) - self.rounds.step_size / self.num_rows * self.gram @ self.weights

    @cached_property
    def eigenvalues(self) -> np.ndarray:
        """Lambda, the eigenvalues of ``K P``, real, the largest first: those of the symmetric ``P^1/2 K P^1/2``."""
        values, vectors = np.linalg.eigh(self.weights)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        return np.maximum(np.linalg.eigvalsh(root @ self.gram @ root / self.num_rows)[::-1], 0.0)

    @cached_property
    def spectrum(self) -> np.ndarray:
        """lambda, the eigenvalues of ``K``, the largest first."""
        return np.maximum(np.linalg.eigvalsh(self.gram / self.num_rows)[::-1], 0.0)

    def values(self, y: np.ndarray, num_rounds: int, start: np.ndarray | float = 0.0) -> np.ndarray:
        """``f_t(x) = L^t f_0(x) + (I - L^t) y`` (equation 11), shape ``(N,)``."""
        power = np.linalg.matrix_power(self.operator, num_rounds)
        return y + power @ (np.broadcast_to(start, y.shape) - y)

    def dual(self, y: np.ndarray, num_rounds: int, start: np.ndarray | float = 0.0) -> np.ndarray:
        """``alpha`` with ``f_t = f_0 + sum_a alpha_a k(., x_a)``, to predict elsewhere, shape ``(N,)`` (derived)."""
        alpha, values = np.zeros(self.num_rows), np.broadcast_to(start, y.shape).astype(float)
        for _ in range(num_rounds):
            step = self.rounds.step_size / self.num_rows * self.weights @ (y - values)
            alpha, values = alpha + step, values + self.gram @ step
        return alpha

    def complexity(self, radius: float) -> float:
        """Local empirical Rademacher complexity ``sqrt(1/N sum_i min(lambda_i, radius^2))`` (equation 20)."""
        return float(np.sqrt(np.minimum(self.spectrum, radius**2).mean()))

    def stopping_time(self, noise: float, most: int = 1_000_000) -> int:
        """The last round T with ``R(1 / sqrt(eta t s)) <= 1 / (sqrt(2 e) noise eta t s)`` (equation 21); 0: none.

        Parameters
        ----------
        noise
            Standard deviation of the noise in y.
        most
            Where the search ends: with a kernel of finite rank there may be no last round.
        """

        def holds(t: int) -> bool:
            time = self.rounds.step_size * t * self.rounds.work
            return self.complexity(1.0 / np.sqrt(time)) <= 1.0 / (np.sqrt(2.0 * np.e) * noise * time)

        if not holds(1):
            return 0
        low, high = 1, 2  # the condition is monotone in t
        while high < most and holds(high):
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def prediction_error(
        self, num_rounds: int, noise: float, gap: np.ndarray, start: np.ndarray | float = 0.0
    ) -> float:
        """``E |f_t - f|^2 / N`` over the noise, exactly (derived).

        Parameters
        ----------
        num_rounds
            t.
        noise
            Standard deviation of the noise in y.
        gap
            ``Delta_f``: the clients' true functions minus f, at their covariates, shape ``(N,)``.
        start
            ``(f_0 - f)(x)``, shape ``(N,)``.
        """
        power = np.linalg.matrix_power(self.operator, num_rounds)
        rest = np.eye(self.num_rows) - power
        bias = power @ np.broadcast_to(start, gap.shape) + rest @ gap
        return float((bias @ bias + noise**2 * np.sum(rest**2)) / self.num_rows)

    def prediction_bound(self, num_rounds: int, noise: float, gap: np.ndarray, norm: float) -> float:
        """Proposition 3: ``3 kappa (delta1 norm^2 + delta2 noise^2 + |gap|^2 / N)`` bounds :meth:`prediction_error`.

        ``norm`` is that of ``f_0 - f`` in the Hilbert space.
        """
        shrunk = 1.0 - self.rounds.step_size * self.eigenvalues
        first = np.max(shrunk ** (2 * num_rounds) * self.eigenvalues) / self.rounds.work
        second = np.mean((1.0 - shrunk**num_rounds) ** 2)
        return float(3.0 * self.kappa * (first * norm**2 + second * noise**2 + gap @ gap / self.num_rows))

    def early_bound(self, num_rounds: int, gap: np.ndarray, norm: float) -> float:
        """Theorem 1, for rounds up to :meth:`stopping_time`."""
        time = self.rounds.step_size * num_rounds * self.rounds.work
        return float(3.0 * self.kappa * ((norm**2 + 1.0) / (2.0 * np.e * time) + gap @ gap / self.num_rows))

    def finite_rank_bound(self, num_rounds: int, noise: float, gap: np.ndarray, norm: float, rank: int) -> float:
        """Theorem 3, for a kernel matrix of rank d, at any time."""
        rate = self.rounds.step_size * self.rounds.work / self.kappa
        first = norm**2 / rate * np.exp(-2.0 * rate * self.spectrum[rank - 1] * num_rounds)
        return float(3.0 * (first + self.kappa * (noise**2 * rank + gap @ gap) / self.num_rows))


class LinearClients(KernelClients):
    """Clients of a linear model in features, whose coefficients have a fixed point.

    Parameters
    ----------
    features
        ``Phi``, stacked client by client, shape ``(N, d)``.
    sizes, rounds
        As for :class:`KernelClients`.
    """

    def __init__(self, features: np.ndarray, sizes: Sequence[int], rounds: Rounds) -> None:
        self.features, self.sizes, self.rounds = np.asarray(features, float), np.asarray(sizes, int), rounds
        if self.features.ndim != 2 or len(self.features) != self.sizes.sum():
            raise ValueError(
                f"`features` has shape {self.features.shape}, but the clients have {self.sizes.sum()} rows in all: "
                f"write ({self.sizes.sum()}, number of features)."
            )
        self._check_steps()

    @cached_property
    def gram(self) -> np.ndarray:  # type: ignore[override]  # made when it is asked for: it is large
        """``Phi Phi'``, shape ``(N, N)``."""
        return self.features @ self.features.T

    @cached_property
    def _curvatures(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Eigenvalues and eigenvectors of each ``H_i = Phi_i' Phi_i / n_i``, which has those of ``K_i``."""
        parts = [self.features[cut] for cut in self._cuts]
        found = [np.linalg.eigh(part.T @ part / len(part)) for part in parts]
        return [(np.maximum(values, 0.0), vectors) for values, vectors in found]

    @cached_property
    def gamma(self) -> float:
        """See :class:`KernelClients`."""
        return self.rounds.step_size * max(float(values[-1]) for values, _ in self._curvatures)

    @cached_property
    def _weighted(self) -> np.ndarray:
        """``P Phi``, shape ``(N, d)``, client by client: ``p(K_i) Phi_i = Phi_i p(H_i)`` for any function p."""
        parts = zip(self._cuts, self._curvatures, strict=True)
        return np.concatenate(
            [self.features[cut] @ ((vectors * self._filtered(values)) @ vectors.T) for cut, (values, vectors) in parts]
        )

    @cached_property
    def _normal(self) -> np.ndarray:
        """``Phi' P Phi``, shape ``(d, d)``."""
        return self.features.T @ self._weighted

    @cached_property
    def _solver(self) -> np.ndarray:
        """``(Phi' P Phi)^+ Phi' P``, shape ``(d, N)``; directions that no client sees stay at their start, zero."""
        symmetric = 0.5 * (self._normal + self._normal.T)
        return np.linalg.pinv(symmetric, hermitian=True) @ self._weighted.T

    def fixed_point(self, y: np.ndarray) -> np.ndarray:
        """``(Phi' P Phi)^-1 Phi' P y``: generalised least squares with the weights P, shape ``(d,)`` (derived).

        With the noiseless values in place of y it is the point around which the coefficients end.
        """
        return self._solver @ y

    def covariance(self, noise: float) -> np.ndarray:
        """Of the fixed point over the noise, shape ``(d, d)`` (derived)."""
        return noise**2 * self._solver @ self._solver.T

    def coefficients(self, y: np.ndarray, num_rounds: int, start: np.ndarray | float = 0.0) -> np.ndarray:
        """After t rounds from ``start``, shape ``(d,)``."""
        size = self.features.shape[1]
        scale = self.rounds.step_size / self.num_rows
        power = np.linalg.matrix_power(np.eye(size) - scale * self._normal, num_rounds)
        end = self.fixed_point(y)
        return end + power @ (np.broadcast_to(start, (size,)) - end)

    @property
    def information(self) -> float:
        """``rho_N``, the smallest eigenvalue of ``Phi' Phi / N``."""
        return float(np.linalg.eigvalsh(self.features.T @ self.features / self.num_rows)[0])

    def coefficient_error(self, num_rounds: int, noise: float, start: np.ndarray) -> float:
        """``E |theta_t - theta_bar|^2`` exactly, from ``start - theta_bar``, shape ``(d,)`` (derived)."""
        size, scale = self.features.shape[1], self.rounds.step_size / self.num_rows
        shrink = np.eye(size) - scale * self._normal
        total, power = np.zeros((size, size)), np.eye(size)
        for _ in range(num_rounds):
            total, power = total + power, power @ shrink
        spread = total @ (scale * self._weighted.T)
        return float(np.sum((power @ start) ** 2) + noise**2 * np.sum(spread**2))

    def coefficient_bound(self, num_rounds: int, noise: float, start: np.ndarray) -> float:
        """Theorem 4 (equation 23)."""
        rate = self.rounds.work * self.rounds.step_size * self.information / self.kappa
        variance = noise**2 * self.kappa * len(start) / (self.num_rows * self.information)
        return float((1.0 - rate) ** (2 * num_rounds) * (start @ start) + variance)

    def bias_bound(self, gap: np.ndarray) -> float:
        """Theorem 4 (equation 24): bounds ``|theta_bar - theta_j|`` where ``gap`` is ``Delta`` of client j's truth."""
        return float(np.linalg.norm(gap) * np.sqrt(self.kappa / (self.num_rows * self.information)))


def gain(local_error: np.ndarray | float, federated_error: np.ndarray | float, *, squared: bool = True) -> np.ndarray:
    """Federation gain ``E |local - truth|^2 / E |federated - truth|^2``: above one, joining helps (definition 1).

    Parameters
    ----------
    local_error, federated_error
        Squared errors of a client's own estimate and of the federation's.
    squared
        The ratio of the squares, as in the definition; else its root, which is what the paper's figures show.
    """
    ratio = np.asarray(local_error, float) / np.asarray(federated_error, float)
    return ratio if squared else np.sqrt(ratio)


def least_squares_risk(rows: int, size: int, noise: float, norm: float = np.inf) -> float:
    """``E |theta_hat - theta|^2`` of least squares of minimum norm on standard normal covariates.

    Parameters
    ----------
    rows, size
        n and d; infinite within one of each other.
    noise
        Standard deviation of the noise.
    norm
        ``|theta|``, which counts with fewer rows than coefficients.
    """
    if abs(rows - size) <= 1:
        return float("inf")
    if rows > size:
        return noise**2 * size / (rows - size - 1)
    return (1.0 - rows / size) * norm**2 + noise**2 * rows / (size - rows - 1)
