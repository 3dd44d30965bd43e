"""Differential privacy of federated averaging Langevin dynamics (FA-LD): the paper's theorem, and a bound that holds.

A local step of client c adds to its copy of the globals a gradient over a batch of B of its ``n_c`` records and noise,
of which the private part has standard deviation ``sigma_c``. Replacing one record moves the step by at most ``s_c``:

    s_c = eta n_c Delta / (B p_c),   sigma_c = sqrt(2 eta tau (1 - rho^2) / p_c),   Delta = sup ||grad l - grad l'||.

So each of the ``T = K R`` steps, K in each of R rounds of each chain, is a Gaussian mechanism on a subsample.
Neighbours differ in one record of one client; uploads, broadcasts and the shared noise are public. ``deng_2024`` is the
paper's theorem, which is not sound when only some clients take part; ``renyi`` is sound.

Sources: Deng, Zhang, Ma, Song, Lin (UAI 2024, arXiv:2112.05120), section 6 and appendix G. Balle, Barthe, Gaboardi
(NeurIPS 2018): amplification by subsampling. Balle, Wang (ICML 2018): the exact profile of the Gaussian mechanism.
Mironov (CSF 2017): Renyi differential privacy. Wang, Balle, Kasiviswanathan (AISTATS 2019): the same, subsampled.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr
from scipy.stats import binom

from fedbayes.inference.fald.mechanism import Mechanism, check
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.options import client_weights
from fedbayes.numerics.accounting import Release, divergences, epsilon_of

if TYPE_CHECKING:
    from fedbayes.results.fit import FederatedFit


_BASIC = (
    "neighbours differ in one record of one client; uploads, broadcasts and the shared noise are public",
    "`sensitivity` holds at every value of the globals, as it does where each record's gradient is clipped",
    "a client draws its private noise, and a fresh batch in every step, from a key that nobody else knows: so it is "
    "where each client keeps a secret of its own, as over a network, but not in the executors of one process (batched, "
    "sequential, loopback), which make all secrets from the fit's key, so that whoever knows it can redraw the noise",
    "nothing else computed from the records is released, such as a start at their mode, or a step size tuned on them",
)
_UNSOUND = (
    "NOT SOUND: the theorem amplifies by the sampling of clients as if an upload hid the client's whole data set; it "
    "hides one record. If one of two clients is drawn, the uploads show which, and s / sigma = 1 and eps_K = 1, the "
    "theorem claims delta = 0.0635 at epsilon = 0.620, but the true one is 0.1040. Use `renyi`"
)
_SCHEME_I = (
    "scheme I: the theorem draws clients uniformly, the algorithm by their weights; its delta, by group privacy, is "
    "vacuous for more than two active clients"
)
_EVERY_STEP = "no amplification by the sampling of clients is claimed: a client takes every step"


def mechanism_of(fit: "FederatedFit") -> Mechanism:
    """What a fit by :class:`~fedbayes.FALD` has released.

    Raises
    ------
    TypeError
        Another method.
    ValueError
        Something else than noisy steps was computed from the records, or their sensitivity is not bounded.
    """
    config = fit.method
    if not isinstance(config, FALD):
        raise TypeError(f"The fit is by {type(config).__name__}; only FALD's steps have noise to account for.")
    if config.init != "zero" or config.control_variate:
        raise ValueError(
            f"The fit has `init={config.init!r}` and `control_variate={config.control_variate}`: a mode, curvatures "
            "or gradients were sent without noise. Write `FALD(init='zero', step_size=..., clip=...)`."
        )
    roster, rounds = fit.roster, int(fit.rounds["rounds"].sum())
    steps, largest = int(fit.rounds.attrs["local_steps"]), config.step_size
    if callable(largest):
        largest = float(np.max(np.asarray(largest(np.arange(rounds * steps)))))
    return Mechanism(
        step_size=float(largest),  # type: ignore[arg-type]  # a number where the start is zero
        local_steps=steps,
        num_rounds=rounds,
        num_clients=roster.num_clients,
        num_active=config.num_active or roster.num_clients,
        scheme=config.scheme,
        weights=client_weights(config.weights, roster).tolist(),
        num_rows=roster.rows.astype(int).tolist(),
        batch_size=config.batch_size,
        noise_correlation=config.noise_correlation,
        temperature=config.temperature,
        sensitivity=math.inf if config.clip is None else 2.0 * config.clip,
        num_chains=config.num_chains,
    )


@dataclass(frozen=True)
class Guarantee:
    """A claim of differential privacy: ``P(A) <= exp(epsilon) P'(A) + delta`` for neighbouring data and every event A.

    Parameters
    ----------
    epsilon, delta
        The two numbers of the claim.
    name
        Whose claim it is.
    assumptions
        What it rests on.
    """

    epsilon: float
    delta: float
    name: str
    assumptions: tuple[str, ...]

    def __repr__(self) -> str:
        vacuous = ", which is vacuous," if self.delta >= 1.0 else ""
        claim = f"({self.epsilon:.4g}, {self.delta:.3g})-differential privacy{vacuous} by {self.name}. It rests on:"
        return "\n  - ".join([claim, *self.assumptions])


def gaussian_profile(epsilon: float, ratio: float) -> float:
    """The exact delta of the Gaussian mechanism (Balle and Wang 2018, theorem 8).

    ``delta = Phi(r / 2 - epsilon / r) - exp(epsilon) Phi(-r / 2 - epsilon / r)``.

    Parameters
    ----------
    epsilon
        Where the profile is taken.
    ratio
        ``r``, sensitivity over the noise's standard deviation; ``sqrt(T) r`` for T releases.

    Raises
    ------
    ValueError
        ``ratio`` is not positive.

    Examples
    --------
    >>> from fedbayes.inference.fald.privacy import gaussian_profile
    >>> round(gaussian_profile(1.0, 1.0), 4)
    0.1269
    """
    check(ratio > 0.0, f"`ratio` is {ratio}; it is sensitivity over noise, and positive.")
    above, below = (float(log_ndtr(half - epsilon / ratio)) for half in (ratio / 2.0, -ratio / 2.0))
    return max(0.0, -math.exp(above) * math.expm1(epsilon + below - above))


def largest_step_size(mechanism: Mechanism, *, delta0: float) -> float:
    """The largest step size for which Theorem G.3 holds, whatever that of the mechanism: ``eps_0 <= 1``.

    ``eta_max = tau (1 - rho^2) min_c gamma_c^2 p_c / (Delta^2 log(1.25 / delta0))``; the paper has one ``gamma``.

    Parameters
    ----------
    mechanism, delta0
        As in ``deng_2024``.

    Raises
    ------
    ValueError
        ``delta0`` outside (0, 1).
    """
    check(0.0 < delta0 < 1.0, f"`delta0` is {delta0}; it lies in (0, 1), such as 1e-8.")
    return mechanism.step_size / (2.0 * math.log(1.25 / delta0) * max(mechanism.ratios) ** 2)


def deng_2024(mechanism: Mechanism, *, delta0: float, delta1: float, delta2: float) -> Guarantee:
    """Theorem G.3 of Deng et al. (2024), as it stands; not sound where only some clients take part (see Notes).

    With ``m(eps, n, delta) = eps min(sqrt(2 n log(1 / delta)) + n (exp(eps) - 1), n)`` and ``gamma = max_c gamma_c``:

        step     eps_0 = sqrt(2 log(1.25 / delta0)) max_c s_c / sigma_c <= 1
        batch    eps_1 = 2 Delta sqrt(eta log(1.25 / delta0) / (tau (1 - rho^2) min_c p_c))
        round    eps_K = m(eps_1, K, delta1),                delta_K = K gamma delta0 + delta1
        clients  eps = log(1 + q (exp(eps_K) - 1))
                 II  q = S / N,                              delta = q delta_K              (full: S = N)
                 I   q = 1 - (1 - 1/N)^S,                    delta = sum_{s=1..S} Bin(s; S, 1/N) delta_{K,s}
                     delta_{K,s} = (1.25 K gamma (delta0 / 1.25)^(1 / s^2) + delta1) (e^{eps_K} - 1) / (e^{eps_K/s} - 1)
        rounds   m(eps, R, delta2),                          R delta + delta2

    Parameters
    ----------
    mechanism
        What is released.
    delta0
        Of a step, in (0, 1).
    delta1, delta2
        Of the compositions within and over rounds, in [0, 1); zero means plain composition.

    Raises
    ------
    ValueError
        A delta out of its range, or a step size above ``largest_step_size``.

    Notes
    -----
    The line ``clients`` uses theorems 9 and 10 of Balle, Barthe and Gaboardi (2018), for which an upload would have to
    be private against replacing the client's whole data set; it is so against replacing one record. Counter-example:
    one of two clients is drawn, and their uploads are so far apart that one sees which. At ``s / sigma = 1`` and
    ``eps_K = 1`` (``delta_K = 0.1269``) the line claims ``(0.620, 0.0635)``, but the true delta at 0.620 is 0.1040. At
    ``s / sigma = 0.1`` and ``eps_K = 0.3`` it claims 2.2e-5, and the truth is 1.22e-3. Where ``q = 1`` the line does
    nothing, and the theorem is sound.

    The delta of scheme I, by group privacy, is vacuous for ``S > 2`` unless ``delta0^(1 / S^2)`` is tiny.
    """
    limit = largest_step_size(mechanism, delta0=delta0)
    for name, value in (("delta1", delta1), ("delta2", delta2)):
        check(0.0 <= value < 1.0, f"`{name}` is {value}; it lies in [0, 1), such as 1e-6, or 0 for plain composition.")
    step = mechanism.step_size
    message = f"`step_size` is {step:.6g}, but the theorem needs eta <= eta_max = {limit:.6g}: write at most that"
    check(step <= limit * (1.0 + 1e-9), f"{message}, or use `renyi`, which has no limit.")
    hidden = max(gamma * ratio for gamma, ratio in zip(mechanism.fractions, mechanism.ratios, strict=True))
    of_step = 2.0 * math.sqrt(2.0 * math.log(1.25 / delta0)) * hidden
    of_round = _composed(of_step, mechanism.local_steps, delta1)
    epsilon, delta, caveats = _sampled(mechanism, of_round, delta0, delta1)
    num_rounds = mechanism.num_rounds * mechanism.num_chains
    return Guarantee(
        _composed(epsilon, num_rounds, delta2),
        min(1.0, num_rounds * delta + delta2),
        "Theorem G.3 of Deng et al. (2024)",
        (*caveats, *_BASIC),
    )


def renyi(mechanism: Mechanism, *, delta: float) -> Guarantee:
    """A sound bound: the Renyi divergences of all ``T = K R`` steps, added, for the worst client.

    At order alpha a step on all records has ``alpha (s_c / sigma_c)^2 / 2`` (Mironov 2017), and one on a batch less
    (Wang, Balle and Kasiviswanathan 2019, theorem 27). The sampling of clients is taken to hide nothing. A site over a
    network keeps account by the same formulas (:mod:`fedbayes.numerics.accounting`).

    Parameters
    ----------
    mechanism
        What is released.
    delta
        In (0, 1), well below one over the number of records.

    Raises
    ------
    ImportError
        The mechanism has mini-batches, and dp-accounting is not installed.
    ValueError
        ``delta`` outside (0, 1).
    """
    check(0.0 < delta < 1.0, f"`delta` is {delta}; it lies in (0, 1), such as 1e-6.")
    batch, num_steps = mechanism.batch_size, mechanism.local_steps * mechanism.num_rounds * mechanism.num_chains
    clients = set(zip(mechanism.ratios, mechanism.num_rows, strict=True))
    each = [divergences(Release(ratio, rows, batch or rows, num_steps)) for ratio, rows in clients]
    epsilon = max(epsilon_of(spent, delta) for spent in each)
    return Guarantee(epsilon, delta, "Renyi accounting", (_EVERY_STEP, *_BASIC))


def _sampled(
    mechanism: Mechanism, epsilon: float, delta0: float, delta1: float
) -> tuple[float, float, tuple[str, ...]]:
    """The line ``clients`` of ``deng_2024``: epsilon, delta, and what to know about them."""
    clients, active = mechanism.num_clients, mechanism.num_active
    rate = mechanism.local_steps * max(mechanism.fractions)
    caveats: tuple[str, ...] = ()
    if mechanism.scheme == "with_replacement":
        sizes = np.arange(1, active + 1)
        chance, caveats = 1.0 - (1.0 - 1.0 / clients) ** active, (_SCHEME_I,)
        growth = np.exp(np.minimum(epsilon - epsilon / sizes, 500.0)) * np.expm1(-epsilon) / np.expm1(-epsilon / sizes)
        groups = growth * (1.25 * rate * (delta0 / 1.25) ** (1.0 / sizes**2) + delta1)
        delta = float(binom.pmf(sizes, active, 1.0 / clients) @ groups)
    else:
        chance = active / clients
        delta = chance * (rate * delta0 + delta1)
    if chance < 1.0:
        caveats = (_UNSOUND, *caveats)
    return epsilon + math.log1p((1.0 - chance) * math.expm1(-epsilon)), delta, caveats


def _composed(epsilon: float, times: int, delta: float) -> float:
    """Advanced or plain composition, whichever is better: plain from ``epsilon = 1`` on."""
    root = math.sqrt(-2.0 * times * math.log(delta)) if delta > 0.0 else math.inf
    return epsilon * min(root + times * math.expm1(min(epsilon, 1.0)), times)
