"""What FA-LD computes from the clients' records and shows to others, in the numbers that its privacy depends on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

_SCHEMES = ("full", "with_replacement", "without_replacement")


def ratio(step_size: float, *, sensitivity: float, private: float, weight: float, fraction: float) -> float:
    """``s_c / sigma_c`` of one local step of a client.

    Parameters
    ----------
    step_size
        ``eta``.
    sensitivity
        ``Delta``.
    private
        ``tau (1 - rho^2)``: the temperature of the noise that the client has for itself.
    weight, fraction
        ``p_c`` and ``gamma_c``, the part of its records that a step uses.
    """
    return sensitivity * math.sqrt(step_size / (2.0 * private * weight)) / fraction


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What FA-LD computes from the clients' records and shows to others.

    Parameters
    ----------
    step_size
        ``eta``, the largest of the run.
    local_steps, num_rounds
        K and R: a chain takes ``K R`` local steps.
    num_chains
        Each is a run of its own on the same records.
    num_clients, num_active
        N, and the number S of clients drawn in a round.
    scheme
        ``"full"``, ``"with_replacement"`` (scheme I) or ``"without_replacement"`` (scheme II).
    weights, num_rows
        ``p_c``, which sum to one, and ``n_c``, for each client.
    batch_size
        Records B in a step's gradient, drawn without replacement; ``None``: all.
    noise_correlation
        ``rho``: the part of the noise that all clients share hides nothing.
    temperature
        ``tau``.
    sensitivity
        ``Delta``, the largest distance of two records' gradients: twice the norm they are clipped to.

    Raises
    ------
    ValueError
        Nothing can be guaranteed; the message names the argument.
    """

    step_size: float
    local_steps: int
    num_rounds: int
    num_clients: int
    num_active: int
    scheme: Literal["full", "with_replacement", "without_replacement"]
    weights: Sequence[float]
    num_rows: Sequence[int]
    batch_size: int | None
    noise_correlation: float
    temperature: float
    sensitivity: float
    num_chains: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        object.__setattr__(self, "num_rows", tuple(self.num_rows))
        for name in ("local_steps", "num_rounds", "num_clients", "num_active", "num_chains"):
            value = getattr(self, name)
            check(is_count(value), f"`{name}` is {value}; it is a whole number, at least one.")
        self._check_noise()
        self._check_clients()

    def _check_noise(self) -> None:
        step, tau, rho, delta = self.step_size, self.temperature, self.noise_correlation, self.sensitivity
        check(0.0 < step < math.inf, f"`step_size` is {step}; it is positive and finite, such as 1e-6.")
        check(0.0 < tau < math.inf, f"`temperature` is {tau}; it scales the noise, without which nothing is private.")
        check(rho != 1.0, "`noise_correlation` is 1: all noise is shared and public, so nothing is private. Write 0.")
        check(0.0 <= rho < 1.0, f"`noise_correlation` is {rho}; it lies in [0, 1), and 0 is the most private.")
        bounded = delta is not None and 0.0 < delta < math.inf
        message = f"`sensitivity` is {delta}, but only a finite one can be hidden: clip each record's gradient"
        check(bounded, f"{message}, `FALD(clip=...)`, and write twice the clipping norm.")

    def _check_clients(self) -> None:
        clients, active, batch = self.num_clients, self.num_active, self.batch_size
        check(self.scheme in _SCHEMES, f"`scheme` is {self.scheme!r}; it is one of {list(_SCHEMES)}.")
        check(active <= clients, f"`num_active` is {active} of {clients} clients: write at most {clients}.")
        everybody = self.scheme != "full" or active == clients
        check(
            everybody, f"`num_active` is {active}, but the scheme 'full' takes all {clients} clients: write {clients}."
        )
        for name in ("weights", "num_rows"):
            length = len(getattr(self, name))
            check(length == clients, f"`{name}` has {length} entries for {clients} clients: write one for each.")
        total, least, fewest = sum(self.weights), min(self.weights), min(self.num_rows)
        shares = least > 0.0 and math.isclose(total, 1.0, rel_tol=1e-6)
        check(shares, f"`weights` sum to {total:.6g} and go down to {least:.6g}; they are positive and sum to one.")
        check(all(map(is_count, self.num_rows)), f"`num_rows` is {self.num_rows}; write whole numbers, at least one.")
        fits = batch is None or (is_count(batch) and batch <= fewest)
        check(fits, f"`batch_size` is {batch}; write a whole number up to {fewest}, the rows of the smallest client.")

    @property
    def fractions(self) -> tuple[float, ...]:
        """The share ``gamma_c = B / n_c`` of its records that a client's step uses."""
        return tuple(1.0 if self.batch_size is None else self.batch_size / rows for rows in self.num_rows)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Each client's ``s_c / sigma_c = Delta sqrt(eta / (2 tau (1 - rho^2) p_c)) / gamma_c``."""
        private = self.temperature * (1.0 - self.noise_correlation**2)
        of = partial(ratio, self.step_size, sensitivity=self.sensitivity, private=private)
        shares = zip(self.weights, self.fractions, strict=True)
        return tuple(of(weight=weight, fraction=gamma) for weight, gamma in shares)


def is_count(value: float) -> bool:
    """Whether this is a whole number, at least one."""
    return value >= 1 and value % 1 == 0


def check(holds: bool, complaint: str) -> None:
    """Raises ``ValueError`` unless it holds."""
    if not holds:
        raise ValueError(complaint)
