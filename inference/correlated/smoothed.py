"""Algorithm 3.1 of Yue (2023), as it stands: gradient steps at the clients, a smoothed Omega at the server.

A round, from ``A = Theta Omega^-1``:

    client k:   theta <- theta_k;   T times: theta <- theta + 2 eta_2 grad log p(batch | theta);
                theta_k <- theta - 2 eta_2 A_k
    server:     Omega <- (1 - alpha) Omega + (alpha / m) Theta'Theta

The gradient is that of the sum over the batch; where the program's noise sd is one, it is the source's
``X_b (Y_b - X_b' theta)``, and the step stands for the noise. What it goes down,
``L = -2 log likelihood + Tr(Theta Omega^-1 Theta') + m log|Omega|``, is unbounded below (``DESIGN.md``): it ends by
early stopping.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Algorithm, Info, Replies, Reply, Update
from fedbayes.answer import Verdict, bad_clients
from fedbayes.client_locals import FromServer
from fedbayes.errors import ResultCode
from fedbayes.inference.correlated.client import Told
from fedbayes.inference.correlated.options import Layout, Options, by_client
from fedbayes.inference.local.descent import make_batches
from fedbayes.numerics.gaussian import Gaussian, log_det, packed, whitener
from fedbayes.problem.clients import Client
from fedbayes.problem.roster import Roster
from fedbayes.rounds.state import RunState

if TYPE_CHECKING:
    import xarray as xr


class State(NamedTuple):
    """The clients' coefficients, shape ``(K, m)``, and Omega, shape ``(K, K)``."""

    theta: Array
    omega: Array


class Own(NamedTuple):
    """What is addressed to one client: its ``theta_k`` and its row of ``(Theta Omega^-1)'``, shapes ``(m,)``."""

    theta: Array
    pull: Array


class Message(NamedTuple):
    """What a client sends: its new coefficients, and its log likelihood at the old ones."""

    theta: Array
    log_likelihood: Array


def smoothed(config: Options, layout: Layout) -> Algorithm:
    """The algorithm."""
    return Algorithm(
        name="smoothed",
        init=partial(_init, layout),
        broadcast=_broadcast,
        init_client=lambda client, shared, key: (),
        updates={"steps": Update(partial(_steps, config, layout))},
        aggregate=partial(_aggregate, config, layout),
    )


def _init(layout: Layout, key: Array, previous: None) -> State:
    theta = jax.random.normal(key, (layout.num_clients, layout.size), jnp.float64)
    return State(theta, jnp.eye(layout.num_clients))


def _broadcast(state: State) -> tuple[tuple[()], Own]:
    white = whitener(state.omega)
    return (), Own(state.theta, white.T @ (white @ state.theta))


def _steps(
    config: Options, layout: Layout, shared: tuple[()], own: Own, private: tuple[()], client: Client, key: Array
) -> tuple[Reply, tuple[()]]:
    """T steps on the client's rows, and one towards the others'."""
    moved = client.with_global(layout.latent)
    if config.batch_size is None:
        slope = lambda i, theta: jax.grad(moved.log_factor)(theta)  # noqa: E731
    else:
        size = config.batch_size

        def slope(i: Array, theta: Array) -> Array:
            batches = make_batches(client.mask, jax.random.fold_in(key, i), size, 1)
            chosen = batches.orders[0, :size]
            return jax.grad(lambda at: moved.log_factor_of_rows(at, chosen, 1.0))(theta)

    def step(i: Array, theta: Array) -> Array:
        return theta + 2.0 * config.step_size * slope(i, theta)

    theta = jax.lax.fori_loop(0, config.local_steps, step, own.theta)
    theta = theta - 2.0 * config.step_size * own.pull
    usable = jnp.all(jnp.isfinite(theta))
    code = jnp.where(usable, ResultCode.OK, ResultCode.NOT_FINITE)
    return Reply(each=Message(theta, moved.log_factor(own.theta)), code=code), private


def _aggregate(config: Options, layout: Layout, state: State, replies: Replies, key: Array) -> tuple[State, Info]:
    sent: Message = replies.each
    theta = jnp.where(replies.used[:, None], sent.theta, state.theta)
    omega = (1.0 - config.smoothing) * state.omega + config.smoothing / layout.size * theta @ theta.T
    white = whitener(omega)
    fine = jnp.all(jnp.isfinite(white)) & jnp.all(jnp.isfinite(theta))
    moved = jax.tree.map(partial(jnp.where, fine), State(theta, omega), state)
    eigenvalue = 1.0 / _largest(white.T @ white)
    info = {
        "moved": jnp.where(fine, jnp.sqrt(jnp.mean((theta - state.theta) ** 2)), jnp.nan),
        "objective": jnp.where(jnp.all(replies.used), objective(state, sent.log_likelihood), jnp.nan),
        "smallest_eigenvalue": jnp.where(fine, eigenvalue, 0.0),
        "converged": jnp.zeros((), bool),
        "hopeless": ~fine,
        "proper": jnp.ones((), bool),
    }
    return moved, info


def _largest(matrix: Array) -> Array:
    """Largest eigenvalue of a positive definite matrix, by squaring."""

    def square(_: int, power: Array) -> Array:
        power = power @ power
        return power / jnp.trace(power)

    power = jax.lax.fori_loop(0, 12, square, matrix / jnp.trace(matrix))
    return jnp.sum(power * matrix) / jnp.trace(power)


def objective(state: State, log_likelihood: Array) -> Array:
    """``L(Theta, Omega)``, up to the likelihood's constants: what Algorithm 3.1 goes down."""
    white = whitener(state.omega)
    half = white @ state.theta
    return jnp.sum(half**2) + state.theta.shape[1] * log_det(white) - 2.0 * jnp.sum(log_likelihood)


class PointAnswer:
    """The coefficients and the Omega at which the rounds have stopped.

    Parameters
    ----------
    config, layout
        The method and its sizes.
    roster
        Of the clients.
    run
        How the rounds went.
    """

    posterior = None

    def __init__(self, config: Options, layout: Layout, roster: Roster, run: RunState) -> None:
        self._config, self._layout, self._roster, self._run = config, layout, roster, run

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.answer.Answer`: one, without globals."""
        return np.zeros((1, 1, 0))

    @property
    def locals_from(self) -> FromServer:
        """See :class:`~fedbayes.answer.Answer`."""
        state: State = self._run.state
        theta, num = np.asarray(state.theta), self._roster.num_clients
        neutral = jax.tree.map(np.asarray, packed(Gaussian.neutral(self._layout.size, (num, 1))))
        variables, coords = by_client(self._layout, self._roster, theta[:, None])
        variables["omega"] = (np.asarray(state.omega)[:, None], ["client_name", "other_client_name"])
        told = Told(np.moveaxis(theta, 1, 0)[:, :, None], neutral)  # type: ignore[arg-type]  # an array to NumPy
        return FromServer(told, variables, coords, type(self._config).__name__)

    def sample_stats(self, theta: np.ndarray, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """``lp``: the clients' log-likelihood."""
        return {"lp": log_likelihood.sum(axis=-1)}

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.answer.Answer`: a point has none."""
        return np.full(1, np.nan)

    def report(self) -> dict[str, float]:
        """``unstable_after``: rounds after which the step towards the others is longer than its way."""
        return {"unstable_after": self._unstable_after()}

    def _unstable_after(self) -> float:
        if self._layout.num_clients <= self._layout.size or self._config.smoothing == 1.0:
            return float("inf")
        return float(np.log(self._config.step_size) / np.log1p(-self._config.smoothing))

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether the rounds have gone as Algorithm 3.1 intends: it stops early, and has nothing to converge to."""
        failures, done = bad_clients(rounds.isel(round=-1)), int(rounds["round"][-1])
        if not np.isfinite(rounds["moved"][-1]).all():
            failures.append(
                f"Round {done}: Omega has become singular, or the coefficients infinite. Write a smaller `step_size` "
                "or `smoothing`, or mini-batches by `batch_size`; `update='bayes'` has no such bounds."
            )
        if done > self._unstable_after():
            failures.append(
                f"After {self._unstable_after():.0f} rounds Algorithm 3.1 is unstable with more clients than "
                f"coefficients, and {done} were done. Lower `num_rounds`, or write `update='bayes'`."
            )
        line = f"  objective {float(rounds['objective'][-1].max()):,.6g} before the last round, unbounded below"
        return Verdict(
            not failures,
            float("nan"),
            [line],
            " ".join(failures),
            ["a point of Algorithm 3.1, which stops early: no mode and no posterior"],
        )

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "point-estimate",
            "draws": "one: where Algorithm 3.1 has stopped. Intervals, R-hat and effective draws mean nothing",
            "chains": "one",
        }
