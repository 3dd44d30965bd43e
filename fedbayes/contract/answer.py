"""What a fit ends with: the posterior of the globals, whether it can be trusted, and what diagnostics mean."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from jax import Array
from jaxtyping import Float, Key

from fedbayes.contract.locals_from import LocalsFrom
from fedbayes.contract.modes import Modes
from fedbayes.contract.state import RunState
from fedbayes.errors import K_HAT_LIMIT, ResultCode
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_draws, gaussian_log_density, log_integrals, spread_of_means
from fedbayes.numerics.low_rank import LowRankGaussian

if TYPE_CHECKING:
    import xarray as xr

CLIENT, REPLICATE, COORDINATE = "client", "replicate", "coordinate"

# What no converged fit may be off by, as far as it knows: of the means in posterior sds, of the sds relatively. An
# interval that should hold 95 percent holds 94.9 with means off by a tenth of an sd, and 92 to 97 with sds off by a
# tenth; twice as much would be seen. DESIGN.md has the table of what each method compares with it.
ERROR_LIMIT = 0.1
R_HAT_LIMIT = 1.01  # of Markov chains (Vehtari et al. 2021)
ESS_LIMIT = 400.0  # effective draws below which R-hat itself is not known (the same)


class Diagnostic(NamedTuple):
    """What a number in ``fit.rounds`` is.

    Attributes
    ----------
    dims
        Its dimensions, in the order of the arrays: of ``"client"``, ``"replicate"``, ``"coordinate"``, or the method's
        own.
    meaning
        In words.
    unit
        Such as ``"posterior sds"``.
    """

    dims: tuple[str, ...]
    meaning: str
    unit: str = ""


class Verdict(NamedTuple):
    """Whether an answer can be trusted.

    Attributes
    ----------
    converged
        See :attr:`fedbayes.FederatedFit.converged`, and the table in ``DESIGN.md``.
    error
        Monte Carlo error of the means, in posterior sds (root mean square over the globals); NaN where it is not known.
    headline
        Lines for ``repr``.
    trouble
        What kept the fit from converging, with the clients it concerns and what to try; empty if nothing did.
    remarks
        What qualifies a fit that has converged, such as importance weights that can't be trusted; short, without a full
        stop.
    ask_who_disagrees
        Whether a client that is far from all the others may be what kept the fit from converging.
    """

    converged: bool
    error: float
    headline: Sequence[str]
    trouble: str
    remarks: Sequence[str] = ()
    ask_who_disagrees: bool = False


class Answer(Protocol):
    """What a method has found out about the unconstrained globals."""

    @property
    def locals_from(self) -> LocalsFrom:
        """Where a client's own posterior comes from."""
        ...

    @property
    def posterior(self) -> Gaussian | LowRankGaussian | None:
        """The Gaussian, or the one with the draws' moments; leading axis of replicates or chains."""
        ...

    def draws(self, key: Key[Array, ""], num: int) -> Float[np.ndarray, "chain draw d"]:
        """Draws of the globals."""
        ...

    def sample_stats(
        self, theta: Float[np.ndarray, "chain draw d"], log_likelihood: Float[np.ndarray, "chain draw client"]
    ) -> dict[str, np.ndarray]:
        """ArviZ's group of that name."""
        ...

    def log_evidence(self) -> Float[np.ndarray, " replicate"]:
        """Estimates of the log marginal likelihood; NaN where there is none."""
        ...

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether it can be trusted; ``rounds`` are the fit's diagnostics."""
        ...

    def report(self) -> dict[str, float]:
        """Numbers for the attributes of ``fit.rounds``: what the method has chosen, and what theory predicts."""
        ...

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are, for every ArviZ object."""
        ...


class GaussianAnswer:
    """One Gaussian per replicate of the fit.

    The rounds have the diagnostic ``change``; ``k_hat`` and ``solver`` are shown where there are any.

    Parameters
    ----------
    posterior
        Over the unconstrained globals, leading axis of replicates.
    locals_from
        See :class:`Answer`.
    run
        How the rounds went.
    modes
        Modes that searches from several starts have found, leading axes replicate and search; ``()`` without searches.
    """

    def __init__(
        self, posterior: Gaussian, locals_from: LocalsFrom, run: RunState, modes: Modes | tuple[()] = ()
    ) -> None:
        self._posterior, self._locals_from, self._run = posterior, locals_from, run
        # the replicates of a fit share one run of the searches
        self.modes = Modes(*(np.asarray(leaf)[0] for leaf in modes)) if modes else None

    @property
    def posterior(self) -> Gaussian:
        """See :class:`Answer`."""
        return self._posterior

    def draws(self, key: Key[Array, ""], num: int) -> Float[np.ndarray, "replicate {num} d"]:
        """See :class:`Answer`."""
        return gaussian_draws(self.posterior, key, num)

    @property
    def locals_from(self) -> LocalsFrom:
        """See :class:`Answer`."""
        return self._locals_from

    def sample_stats(
        self, theta: Float[np.ndarray, "replicate draw d"], log_likelihood: Float[np.ndarray, "replicate draw client"]
    ) -> dict[str, Float[np.ndarray, "replicate draw"]]:
        """``lp``: log density of the Gaussian."""
        return {"lp": gaussian_log_density(self.posterior, theta)}

    def log_evidence(self) -> Float[np.ndarray, " replicate"]:
        """See :class:`Answer`."""
        return log_integrals(self.posterior)

    def report(self) -> dict[str, float]:
        """See :class:`Answer`."""
        return {}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether the rounds have converged with every client heard, and what qualifies that."""
        error = spread_of_means(self.posterior)
        trouble = "" if self._run.converged else self._trouble(rounds)
        remarks = self._remarks(rounds) if self._run.converged else []
        return Verdict(self._run.converged, error, self._headline(rounds, error), trouble, remarks)

    def _remarks(self, rounds: "xr.Dataset") -> list[str]:
        """Whose importance weights can't be trusted."""
        unreliable = (rounds["code"][-1] == ResultCode.UNRELIABLE).mean("replicate").to_series()
        bad = list(unreliable.index[unreliable > 0.5])  # in most replicates; a single one tells of chance
        return [f"but not to be trusted: k-hat above 0.7 for {shortened(bad)}"] if bad else []

    def _headline(self, rounds: "xr.Dataset", error: float) -> list[str]:
        """The last change, the error, the clients' updates."""
        change = float(rounds["change"][-1].max())
        moved = f"changed the global by {change:.2g} posterior sds" if np.isfinite(change) else "could take no step"
        lines = [f"  rounds    the last {moved}"]
        if (num := self.posterior.shift.shape[0]) > 1:
            lines.append(f"  error     Monte Carlo {error:.2g} posterior sds, from {num} replicates of the fit")
        if "k_hat" in rounds and (k_hat := rounds["k_hat"][-1]).notnull().any():
            worst = str(k_hat.max("replicate").idxmax("client").item())
            solvers, counts = np.unique(rounds["solver"][-1].values, return_counts=True)
            used = ", ".join(f"{name} at {count}" for name, count in zip(solvers, counts, strict=True))
            top = float(k_hat.max())
            largest = f"k-hat at most {top:.2f}" if np.isfinite(top) else "k-hat beyond all limits"
            largest += f" (client '{worst}'; good below {K_HAT_LIMIT})"
            clients = "client" if counts[-1] == 1 else "clients"
            lines.append(f"  solvers   {used} {clients}; {largest}")
        return lines

    def _trouble(self, rounds: "xr.Dataset") -> str:
        """The last round's change, and the clients whose messages were no good."""
        changes = rounds["change"].max("replicate").dropna("round")
        if not changes.size:
            return "The fit did not converge: no client took part in any round. Check `participation`."
        last = rounds.sel(round=changes["round"][-1])
        change = float(last["change"].max())
        moved = f"changed the global by {change:.3g} posterior sds" if np.isfinite(change) else "could take no step"
        parts = [
            f"The fit did not converge in {rounds.sizes['round']} rounds: the last one {moved}.",
            *bad_clients(last),
            *self._advice(last),
        ]
        return " ".join(parts)

    def _advice(self, last: "xr.Dataset") -> list[str]:
        """What to try, from the last round's diagnostics."""
        return ["Raise `num_rounds`."]

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "gaussian-sites",
            "draws": "independent draws of a Gaussian in unconstrained space",
            "chains": "replicates of the whole fit with other keys: R-hat and MCSE measure its Monte Carlo error, "
            "not the error of the Gaussian approximation",
        }


_WORTH_NAMING = (
    ResultCode.NOT_FINITE,
    ResultCode.IMPROPER,
    ResultCode.UNRELIABLE,
    ResultCode.LOST,
)


def bad_clients(last: "xr.Dataset") -> list[str]:
    """The clients with other codes than OK in the last round, in words."""
    parts = []
    for code in _WORTH_NAMING:
        if clients := _clients_with(code, last):
            who = f"Client '{clients[0]}'" if len(clients) == 1 else f"Clients {shortened(clients)}"
            parts.append(f"{who}: {code.meaning}.")
    return parts


def _clients_with(code: ResultCode, last: "xr.Dataset") -> list[str]:
    """The clients whose worst code in the last round is this one."""
    codes = last["code"].max("replicate").to_series()
    return list(codes.index[codes == code])


def shortened(names: Sequence[str], most: int = 6) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names) - most} more)"
