"""What a fit ends with: what all kinds of answer have in common, and a Gaussian over the unconstrained globals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax import Array

from fedbayes.errors import ResultCode
from fedbayes.gaussian import Gaussian
from fedbayes.problem.problem import Problem
from fedbayes.rounds.loop import Progressing

if TYPE_CHECKING:
    import xarray as xr


class Answer(Protocol):
    """What a fit found out about the unconstrained globals."""

    gaussian: Gaussian
    """The Gaussian, or the one with the draws' moments; leading axis of replicates or chains."""

    def draws(self, key: Array, num: int) -> Array:
        """Draws of the globals, shape ``(chain, draw, d)``."""
        ...

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """ArviZ's group of that name; ``log_likelihood`` has the shape ``(chain, draw, client)``."""
        ...

    def others(self, num_clients: int) -> Gaussian:
        """What everybody but one client knows, leading axes replicate and client: where its locals are looked for."""
        ...

    @property
    def converged(self) -> bool:
        """Whether the answer can be trusted, as far as the fit can tell."""
        ...

    @property
    def monte_carlo_error(self) -> float:
        """Of the means, in posterior sds (root mean square over coordinates)."""
        ...

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """Lines for ``repr``."""
        ...

    def trouble(self, rounds: "xr.Dataset") -> str:
        """What to say where the fit did not converge."""
        ...

    def attrs(self) -> dict[str, Any]:
        """For every ArviZ object."""
        ...


class GaussianAnswer:
    """One Gaussian per replicate of the fit: what EP and Laplace end with."""

    def __init__(self, gaussian: Any, current: Progressing) -> None:
        self.gaussian = gaussian
        self._current = current

    def draws(self, key: Array, num: int) -> Array:
        """See :class:`Answer`."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(self.gaussian.shift.shape[0]))
        return jax.vmap(lambda q, key: q.sample(key, num))(self.gaussian, keys)

    def sample_stats(self, theta: Array, log_likelihood: np.ndarray, problem: Problem) -> dict[str, np.ndarray]:
        """``lp``: log density of the Gaussian."""
        lp = jax.vmap(lambda q, draws: jax.vmap(q.normalised().log_value)(draws))(self.gaussian, theta)
        return {"lp": np.asarray(lp)}

    def others(self, num_clients: int) -> Gaussian:
        """The cavities."""

        def of_one(state: Any) -> Gaussian:
            everybody = state.prior + state.sites.summed()
            return jax.vmap(lambda site: (everybody - site).symmetrised())(state.sites)

        return jax.vmap(of_one)(self._current.state)

    @property
    def converged(self) -> bool:
        """Whether the tolerance was met with every client heard."""
        return self._current.converged

    @property
    def monte_carlo_error(self) -> float:
        """Spread of the replicates' means; NaN with one replicate."""
        with jax.enable_x64(True):
            mean, covariance = jax.tree.map(np.asarray, jax.vmap(Gaussian.moments)(self.gaussian))
        if len(mean) < 2:
            return float("nan")
        sd = np.sqrt(np.diagonal(covariance.mean(axis=0)))
        return float(np.sqrt(np.mean((mean.std(axis=0, ddof=1) / sd) ** 2)))

    def headline(self, rounds: "xr.Dataset") -> list[str]:
        """The last change, the error, the solvers."""
        lines = [f"  last      changed the global by {float(rounds['change'][-1].max()):.2g} posterior sds"]
        if (num := self.gaussian.shift.shape[0]) > 1:
            lines.append(f"  error     Monte Carlo {self.monte_carlo_error:.2g} posterior sds, from {num} replicates")
        if (k_hat := rounds["k_hat"][-1]).notnull().any():
            worst = str(k_hat.max("replicate").idxmax("client").item())
            solvers, counts = np.unique(rounds["solver"][-1].values, return_counts=True)
            used = ", ".join(f"{count} {name}" for name, count in zip(solvers, counts, strict=True))
            unreliable = (rounds["code"][-1] == ResultCode.UNRELIABLE).any()
            warning = "; above 0.7, so not to be trusted" if unreliable else ""
            lines.append(f"  solvers   {used}; k-hat at most {float(k_hat.max()):.2f} (client '{worst}'){warning}")
        return lines

    def trouble(self, rounds: "xr.Dataset") -> str:
        """The last round's change, and the clients whose messages were no good."""
        changes = rounds["change"].max("replicate").dropna("round")
        if not changes.size:
            return "The fit did not converge: no client took part in any round. Check `participation`."
        last = rounds.sel(round=changes["round"][-1])
        parts = [
            f"The fit did not converge in {rounds.sizes['round']} rounds: the last one changed the global by "
            f"{float(last['change'].max()):.3g} posterior sds.",
            *bad_clients(last),
        ]
        if float(last["step"].min()) == 0.0:
            parts.append("No step kept the global and every cavity proper: try `EP(damping=0.2)` or proper priors.")
        parts.append("Raise `num_rounds`, or `EP(num_draws=...)` if `fit.rounds.monte_carlo_noise` is large.")
        return " ".join(parts)

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "gaussian-sites",
            "draws": "independent draws of a Gaussian in unconstrained space",
            "chains": "replicates of the whole fit with other keys: R-hat and MCSE measure its Monte Carlo error, "
            "not the error of the Gaussian approximation",
        }


def bad_clients(last: "xr.Dataset") -> list[str]:
    """The clients with other codes than OK in the last round, in words."""
    codes = last["code"].max("replicate").to_series()
    parts = []
    for code in (ResultCode.NOT_FINITE, ResultCode.IMPROPER, ResultCode.UNRELIABLE):
        if clients := list(codes.index[codes == code]):
            parts.append(f"Clients {shortened(clients)}: {code.meaning}.")
    return parts


def shortened(names: Sequence[str], most: int = 6) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names) - most} more)"
