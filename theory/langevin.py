"""What theory says of federated averaging Langevin dynamics: exact laws for quadratic clients, bounds for convex ones.

Client c holds ``f_c``, the target is ``exp(-sum_c p_c f_c / tau)``. In a round every client starts at the server's
``theta``, makes K local steps

    theta <- theta - eta grad f_c(theta) + sqrt(2 eta tau) (rho shared + sqrt((1 - rho^2) / p_c) private),

and the server averages. Source: Deng, Zhang, Ma, Song and Lin, UAI 2024, arXiv 2112.05120, whose theorems bound the
distance to the target. What is marked "derived" is not in the paper: the laws of quadratic clients and what follows
from them. Plain NumPy in float64, on the host; N clients, d dimensions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_continuous_lyapunov


class Moments(NamedTuple):
    """Mean ``(d,)`` and covariance ``(d, d)``; if all clients take part the law is Gaussian, and they determine it."""

    mean: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the theorems know of a problem (assumptions 5.1 to 5.3, definition A.4).

    Parameters
    ----------
    smoothness, convexity
        L and m: the Hessian of every ``f_c`` lies between ``m I`` and ``L I``.
    size, weights, temperature
        The dimension d; p, shape ``(N,)``, sum one; tau.
    heterogeneity, distance
        gamma, the largest ``||grad f_c(theta*)||``; the paper's script D, ``||theta_0 - theta*|| / sqrt(d)``.
    gradient_sd
        sigma: the squared error of a client's stochastic gradient is at most ``sigma^2 d`` in expectation.
    """

    smoothness: float
    convexity: float
    size: int
    weights: np.ndarray
    temperature: float = 1.0
    heterogeneity: float = 0.0
    distance: float = 0.0
    gradient_sd: float = 0.0

    @property
    def kappa(self) -> float:
        """Condition number ``L / m``."""
        return self.smoothness / self.convexity

    @property
    def largest_step(self) -> float:
        """``1 / (2 L)``: the theorems say nothing of larger steps."""
        return 0.5 / self.smoothness

    def h(self, rho: float = 0.0) -> float:
        """``H_rho = D^2 + max_c T_c / m + gamma^2 / (m^2 d) + sigma^2 / m^2``."""
        heat = np.max(local_temperature(self.weights, rho, self.temperature)) / self.convexity
        noise = self.heterogeneity**2 / self.size + self.gradient_sd**2
        return float(self.distance**2 + heat + noise / self.convexity**2)


@dataclass(frozen=True, eq=False)
class QuadraticClients:
    """Clients with ``f_c = (theta - minimum_c)' hessian_c (theta - minimum_c) / 2``.

    Parameters
    ----------
    hessians, minima, weights, temperature
        Positive definite, shape ``(N, d, d)``; ``(N, d)``; p, shape ``(N,)``, sum one; tau.
    gradient_noise
        Covariance of the noise in each client's gradient, the same everywhere, shape ``(N, d, d)``; none by default.
    """

    hessians: np.ndarray
    minima: np.ndarray
    weights: np.ndarray
    temperature: float = 1.0
    gradient_noise: np.ndarray | None = None

    @cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues ``(N, d)`` and eigenvectors ``(N, d, d)`` of the Hessians."""
        values, axes = np.linalg.eigh(self.hessians)
        return values, axes

    @property
    def target(self) -> Moments:
        """``N(theta*, tau Hbar^-1)``, with ``Hbar = sum_c p_c H_c`` the Hessian of f and theta* its minimum."""
        covariance = np.linalg.inv(np.tensordot(self.weights, self.hessians, 1))
        pull = np.einsum("c,cij,cj->i", self.weights, self.hessians, self.minima)
        return Moments(covariance @ pull, self.temperature * covariance)

    @property
    def gradients(self) -> np.ndarray:
        """Each ``grad f_c(theta*)``, shape ``(N, d)``; weighted by p they add up to zero."""
        return np.einsum("cij,cj->ci", self.hessians, self.target.mean - self.minima)

    @property
    def noise(self) -> np.ndarray:
        """The covariances of the gradient noise, shape ``(N, d, d)``."""
        return np.zeros_like(self.hessians) if self.gradient_noise is None else self.gradient_noise

    def constants(self, start: np.ndarray) -> Constants:
        """The tightest constants of a run from ``start``, shape ``(d,)``."""
        values, size = self.spectrum[0], self.minima.shape[1]
        return Constants(
            smoothness=float(np.max(values)),
            convexity=float(np.min(values)),
            size=size,
            weights=self.weights,
            temperature=self.temperature,
            heterogeneity=float(np.max(np.linalg.norm(self.gradients, axis=1))),
            distance=float(np.linalg.norm(start - self.target.mean) / np.sqrt(size)),
            gradient_sd=float(np.sqrt(np.max(np.trace(self.noise, axis1=1, axis2=2)) / size)),
        )


@dataclass(frozen=True, eq=False)
class Round:
    """One round as a mixture of affine Gaussian maps ``theta -> maps_b theta + offsets_b + N(0, noises_b)`` (derived).

    If everybody takes part there is one branch, the law itself. Under partial participation the first two moments,
    though not the law, are those of a mixture: the average of all clients with probability ``1 - share``, otherwise a
    single client drawn by the weights.

    Attributes
    ----------
    weights, maps, offsets, noises
        Shapes ``(B,)``, ``(B, d, d)``, ``(B, d)`` and ``(B, d, d)`` for B branches.
    """

    weights: np.ndarray
    maps: np.ndarray
    offsets: np.ndarray
    noises: np.ndarray

    def after(self, moments: Moments) -> Moments:
        """The moments after the round of those before it."""
        centres = self.maps @ moments.mean + self.offsets
        mean = self.weights @ centres
        spread = self.maps @ moments.covariance @ self.maps.mT + self._fresh(centres - mean)
        return Moments(mean, np.tensordot(self.weights, spread, 1))

    def stationary(self) -> Moments:
        """The moments that a round leaves as they are: ``d^2`` linear equations for the covariance."""
        size = self.offsets.shape[1]
        mean = np.linalg.solve(np.eye(size) - np.tensordot(self.weights, self.maps, 1), self.weights @ self.offsets)
        fresh = np.tensordot(self.weights, self._fresh(self.maps @ mean + self.offsets - mean), 1)
        kept = np.einsum("b,bij,bkl->ikjl", self.weights, self.maps, self.maps).reshape(size**2, size**2)
        return Moments(mean, np.linalg.solve(np.eye(size**2) - kept, fresh.ravel()).reshape(size, size))

    def _fresh(self, gaps: np.ndarray) -> np.ndarray:
        return self.noises + gaps[:, :, None] * gaps[:, None, :]


def round_law(clients: QuadraticClients, steps: np.ndarray, *, rho: float = 0.0, share: float = 0.0) -> Round:
    """The exact round of quadratic clients (derived).

    With ``F_ck = prod_(j > k) (I - eta_j H_c)``, what the rest of the round makes of noise that enters client c at step
    k, the shared noise reaches the average through ``sum_c p_c F_ck`` and the private noises through each ``p_c F_ck``.

    Parameters
    ----------
    clients, rho
        The problem, and the weight of the shared noise.
    steps
        The round's step sizes, shape ``(K,)``: ``np.full(K, eta)`` or :func:`varying_steps`.
    share
        ``C_S / S`` of lemma C.1, by :func:`fedbayes.inference.fald.participation.participation_share`; zero where
        everybody takes part.
    """
    weights, heat, (values, axes) = clients.weights, 2.0 * clients.temperature, clients.spectrum
    factors = np.concatenate([np.ones_like(values)[None], 1.0 - steps[::-1, None, None] * values])
    powers = (axes * np.cumprod(factors, axis=0)[:, :, None, :]) @ axes.mT  # what the last 0, 1, ..., K steps do
    maps, onward = powers[-1], powers[-2::-1]
    offsets = clients.minima - np.einsum("cij,cj->ci", maps, clients.minima)

    passed = np.tensordot(steps, onward @ onward, 1)
    private = (heat * (1.0 - rho**2) / weights)[:, None, None] * passed
    private += np.tensordot(steps**2, onward @ clients.noise @ onward, 1)
    mixed = np.einsum("c,kcij->kij", weights, onward)
    shared = heat * rho**2 * np.tensordot(steps, mixed @ mixed, 1)
    average = np.tensordot(weights, maps, 1), weights @ offsets, shared + np.tensordot(weights**2, private, 1)
    if share == 0.0:
        return Round(np.ones(1), *(part[None] for part in average))
    single = maps, offsets, heat * rho**2 * passed + private
    branches = (np.concatenate([everybody[None], one]) for everybody, one in zip(average, single, strict=True))
    return Round(np.append(1.0 - share, share * weights), *branches)


def trajectory(rounds: Iterable[Round], start: np.ndarray) -> Iterator[Moments]:
    """The moments at ``start``, shape ``(d,)``, and after each round; for R equal ones ``itertools.repeat(law, R)``."""
    begin = Moments(start, np.zeros((start.size, start.size)))
    return accumulate(rounds, lambda moments, law: law.after(moments), initial=begin)


def varying_steps(constants: Constants, first: int, num: int) -> np.ndarray:
    """``eta_k = 1 / (2 L + m k / 12)`` for the local iterations ``k = first, ..., first + num - 1`` (theorem 5.8)."""
    return 1.0 / (2.0 * constants.smoothness + constants.convexity * np.arange(first, first + num) / 12.0)


def local_temperature(weights: np.ndarray, rho: float, temperature: float = 1.0) -> np.ndarray:
    """``T_c = tau (rho^2 + (1 - rho^2) / p_c)``, shape ``(N,)`` (definition A.4)."""
    return temperature * (rho**2 + (1.0 - rho**2) / weights)


def noise_correlation(weights: np.ndarray, rho: float) -> np.ndarray:
    """Correlations of the clients' noises at one step, shape ``(N, N)`` (derived); less than rho."""
    scale = np.sqrt(local_temperature(weights, rho))
    return rho**2 / np.outer(scale, scale) + np.diag((1.0 - rho**2) / weights / scale**2)


def drift(clients: QuadraticClients, steps: np.ndarray, start: Moments, *, rho: float = 0.0) -> float:
    """``sum_c p_c E ||theta_c - average||^2`` after these local steps from a common start, exactly (derived).

    A single client, drawn by the weights, is spread more than the average by just this much.
    """
    single, average = (round_law(clients, steps, rho=rho, share=share).after(start) for share in (1.0, 0.0))
    return float(np.trace(single.covariance - average.covariance))


def first_order(clients: QuadraticClients, step: float, local_steps: int) -> Moments:
    """The stationary moments to first order in ``eta K``, everybody taking part (derived); no matter which rho.

    The mean is ``theta* + eta (K - 1) / 2 Hbar^-1 sum_c p_c H_c grad f_c(theta*)``, exact where all Hessians or all
    minima agree. The covariance is ``tau (Hbar^-1 + eta X)`` with ``Hbar X + X Hbar = (2 - K) Hbar + (K - 1) / 2 (S
    Hbar^-1 + Hbar^-1 S) + G / tau``, ``S = sum_c p_c H_c^2``, and ``G = sum_c p_c^2 C_c`` from the gradient noises. In
    coordinates where ``Hbar = I`` and without G, ``X = (I + (K - 1) (S - I)) / 2``: local steps widen the posterior by
    the spread of the Hessians.
    """
    weights, hessians, (mean, covariance) = clients.weights, clients.hessians, clients.target
    inverse, more = covariance / clients.temperature, local_steps - 1
    pull = np.einsum("c,cij,cj->i", weights, hessians, clients.gradients)
    squares = np.tensordot(weights, hessians @ hessians, 1) @ inverse
    average = np.tensordot(weights, hessians, 1)
    noise = np.tensordot(weights**2, clients.noise, 1)
    wider = clients.temperature * ((1 - more) * average + more / 2.0 * (squares + squares.T)) + noise
    return Moments(
        mean + step * more / 2.0 * inverse @ pull, covariance + step * solve_continuous_lyapunov(average, wider)
    )


def w2(first: Moments, second: Moments) -> float:
    """2-Wasserstein distance of two Gaussians; of other laws with these moments a lower bound (Gelbrich).

    ``W2^2 = ||a - b||^2 + min_R ||A^(1/2) - B^(1/2) R||_F^2`` over rotations R: no digits are lost where A is near B.
    """
    root, other = (_square_root(moments.covariance) for moments in (first, second))
    left, _, right = np.linalg.svd(other.T @ root)
    return float(np.hypot(np.linalg.norm(first.mean - second.mean), np.linalg.norm(root - other @ left @ right)))


def _square_root(covariance: np.ndarray) -> np.ndarray:
    values, axes = np.linalg.eigh(covariance)
    return axes * np.sqrt(np.maximum(values, 0.0))


def w2_bound(
    constants: Constants, step: float, local_steps: int, iteration: int, *, rho: float = 0.0, share: float = 0.0
) -> float:
    """Bound on W2 to the target after k local iterations: theorems 5.7 and 5.9; with a ``share`` 5.10.

    ``(1 - eta m / 4)^k sqrt(2 d) (D + sqrt(tau / m)) + 30 kappa sqrt(eta m d H_rho (j^2 + kappa))`` with ``j = K - 1``.
    Partial participation has ``j = K``, as in the proof of theorem C.3, and the term ``2 sqrt(C_K d tau share (rho^2 +
    N (1 - rho^2)) / m)``, ``C_K = eta m K / (1 - exp(-eta m K / 2))``, which does not vanish with the step. Infinite
    for steps above :attr:`Constants.largest_step`. Loose by factors of tens to thousands.
    """
    if step > constants.largest_step:
        return float("inf")
    decay = step * constants.convexity
    heat = constants.size * constants.temperature / constants.convexity * _mean_heat(constants, rho)
    absence = np.sqrt(heat * share * decay * local_steps / -np.expm1(-decay * local_steps / 2.0))
    floor = np.sqrt(decay * _floor(constants, local_steps - (share == 0.0), rho))
    return float(np.exp(iteration * np.log1p(-decay / 4.0)) * _start(constants) + floor + 2.0 * absence)


def varying_w2_bound(constants: Constants, local_steps: int, iteration: int) -> float:
    """``45 kappa sqrt(((K - 1)^2 + kappa) H_0 eta_k m d)`` with :func:`varying_steps` and rho zero (theorem 5.8).

    The proof needs ``K <= 24 kappa + 1``, which the statement leaves out: the step must not halve within a round.
    """
    decay = varying_steps(constants, iteration, 1)[0] * constants.convexity
    return float(1.5 * np.sqrt(decay * _floor(constants, local_steps - 1, 0.0)))


def drift_bound(constants: Constants, step: float, local_steps: int, *, rho: float = 0.0) -> float:
    """``112 (K-1)^2 eta^2 d L^2 H_rho + 8 (K-1) eta d tau (rho^2 + N (1 - rho^2))``: bounds the drift (lemma 5.5)."""
    lag, heat = (local_steps - 1) * step, constants.temperature * _mean_heat(constants, rho)
    return constants.size * (112.0 * (lag * constants.smoothness) ** 2 * constants.h(rho) + 8.0 * lag * heat)


def _mean_heat(constants: Constants, rho: float) -> float:
    return rho**2 + len(constants.weights) * (1.0 - rho**2)


def _start(constants: Constants) -> float:
    """Bound on W2 from the start to the target (lemma F.1)."""
    return float(
        np.sqrt(2.0 * constants.size) * (constants.distance + np.sqrt(constants.temperature / constants.convexity))
    )


def _floor(constants: Constants, lag: int, rho: float) -> float:
    """The square of what stays in the bound, over ``eta m``."""
    return 900.0 * constants.kappa**2 * constants.size * constants.h(rho) * (lag**2 + constants.kappa)


def plan(constants: Constants, accuracy: float, local_steps: int, *, rho: float = 0.0) -> tuple[float, int]:
    """The largest step, and local iterations enough, for which theorem 5.9 promises W2 up to ``accuracy`` (derived).

    Each of the bound's two terms gets half. It is as safe as the theorem, and as conservative.
    """
    floor = constants.convexity * _floor(constants, local_steps - 1, rho)
    step = min(constants.largest_step, accuracy**2 / (4.0 * floor))
    logarithm = np.log(2.0 * _start(constants) / accuracy)
    return step, max(0, int(np.ceil(4.0 * logarithm / (step * constants.convexity))))


def optimal_local_steps(kappa: float) -> float:
    """``sqrt(1 + kappa)``: the K that minimises the rounds ``((K - 1)^2 + kappa) / K`` theorem 5.9 asks for (derived).

    The rounds really needed at a given step fall with K until the bias exceeds the accuracy.
    """
    return float(np.sqrt(1.0 + kappa))
