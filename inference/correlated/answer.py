"""What correlated clients end with: draws of globals, coefficients and their covariance."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from fedbayes.contract.answer import (
    CLIENT,
    ESS_LIMIT,
    R_HAT_LIMIT,
    REPLICATE,
    Diagnostic,
    Verdict,
    bad_clients,
    shortened,
)
from fedbayes.contract.client_locals import FromServer
from fedbayes.contract.state import RunState
from fedbayes.errors import ResultCode
from fedbayes.inference.correlated.client import Told
from fedbayes.inference.correlated.gibbs import Draws, first_position, long_chain, turned
from fedbayes.inference.correlated.options import Layout, Options, by_client
from fedbayes.inference.correlated.server import State, chain_key, convex
from fedbayes.numerics.chains import chain_diagnostics
from fedbayes.numerics.gaussian import Gaussian, packed
from fedbayes.numerics.host import normal_from_moments
from fedbayes.problem.roster import Roster
from fedbayes.runtime.lru import Kept

if TYPE_CHECKING:
    import xarray as xr

DIAGNOSTICS: Mapping[str, Diagnostic] = {
    "change": Diagnostic(
        (REPLICATE,), "what the clients' new sites change of their posteriors, root mean square", "posterior sds"
    ),
    "monte_carlo_noise": Diagnostic(
        (REPLICATE,), "Monte Carlo error of the clients' posteriors from their draws, root mean square", "posterior sds"
    ),
    "step": Diagnostic((REPLICATE,), "step taken towards the clients' new sites"),
    "k_hat": Diagnostic((CLIENT, REPLICATE), "Pareto tail shape of the importance weights"),
    "heavy_tailed": Diagnostic((CLIENT, REPLICATE), "1 where the importance weights can't be trusted"),
    "effective_draws": Diagnostic((CLIENT, REPLICATE), "effective number of draws"),
    "influence": Diagnostic(
        (CLIENT, REPLICATE),
        "how far the client's own data move what the others know of it, root mean square",
        "their sds",
    ),
    "noise": Diagnostic((CLIENT, REPLICATE), "expected squared Monte Carlo error of the client's posterior, summed"),
}

_WARMUP = 500  # sweeps of the long chains
_FEWEST = 1000  # draws that every answer's moments rest on
_MOST_NUMBERS = 20_000_000  # of Omega's draws together
_FEW_DRAWS = 250  # below which Omega's draws are not worth having
_LONGER = (1, 4)  # times the thinning, until the chains have mixed
_SEEN = 60  # clients whose covariances R-hat looks at
_CHAINS: Kept[Any] = Kept(32)


def _long(layout: Layout, num_draws: int, thinning: int) -> Any:
    """Long chains of all replicates, compiled once for their sizes."""

    def one(prior: Gaussian, sites: Gaussian, means: Array, words: Array) -> Draws:
        start_key, sweep_key = jax.random.split(jax.random.fold_in(chain_key(words), 1))
        told = turned(prior, jax.vmap(convex)(sites, means))
        start = first_position(told, means[:, : prior.size].mean(axis=0), layout.rank, start_key)
        return long_chain(told, start, sweep_key, num_warmup=_WARMUP, num_draws=num_draws, thinning=thinning)

    return _CHAINS.get((layout, num_draws, thinning), lambda: jax.jit(jax.vmap(one)))


class BayesAnswer:
    """Draws of the server's long chains.

    Parameters
    ----------
    config, layout
        The method and its sizes.
    roster
        Of the clients.
    run
        How the rounds went.
    """

    def __init__(self, config: Options, layout: Layout, roster: Roster, run: RunState) -> None:
        self._config, self._layout, self._roster, self._run = config, layout, roster, run
        self._found: dict[tuple[int, int], Any] = {}
        self._shown = _FEWEST

    def chains(self, num: int, thinning: int | None = None) -> Any:
        """So many draws of each chain, :class:`Draws` as NumPy arrays with leading axes chain and draw.

        ``thinning`` sweeps lie between two draws; ``None``: as many as the chains took to mix.
        """
        thinning = self.thinning if thinning is None else thinning
        if (num, thinning) not in self._found:
            state: State = self._run.state
            run = _long(self._layout, num, thinning)
            with jax.enable_x64(True):
                found = run(state.prior, state.sites, state.means, state.key)
            self._found = {(num, thinning): jax.tree.map(np.asarray, found)}
        return self._found[num, thinning]

    def _drawn(self) -> Any:
        """The draws that are shown: evenly spaced ones of the chains."""
        every = self.chains(max(self._shown, _FEWEST))
        chosen = np.linspace(0, every.phi.shape[1] - 1, self._shown).round().astype(int)
        return jax.tree.map(lambda leaf: leaf[:, chosen], every)

    @property
    def _with_omega(self) -> bool:
        """Whether draws of all of Omega fit into memory."""
        return _MOST_NUMBERS // (self._config.num_chains * self._layout.num_clients**2) >= _FEW_DRAWS

    def draws(self, key: Array, num: int) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`; fewer than ``num`` where Omega would fill the memory."""
        most = _MOST_NUMBERS // (self._config.num_chains * self._layout.num_clients**2)
        self._shown = min(num, most) if self._with_omega else num
        return self._drawn().phi

    @cached_property
    def posterior(self) -> Gaussian:
        """With the draws' moments."""
        phi = self.chains(_FEWEST).phi
        size = phi.shape[2]
        if size == 0:
            zeros = np.zeros((len(phi), 0))
            return Gaussian(zeros, np.zeros((len(phi), 0, 0)), np.zeros(len(phi)))  # type: ignore[arg-type]
        covariances = np.stack([np.cov(each.T).reshape(size, size) for each in phi])
        return normal_from_moments(phi.mean(axis=1), covariances)

    @property
    def locals_from(self) -> FromServer:
        """See :class:`~fedbayes.contract.answer.Answer`."""
        drawn, state = self._drawn(), self._run.state
        sites = packed(jax.tree.map(lambda leaf: np.swapaxes(np.asarray(leaf), 0, 1), state.sites))
        told = Told(np.moveaxis(drawn.theta, 2, 0), sites)
        variables, coords = by_client(self._layout, self._roster, drawn.theta)
        if self._with_omega:
            variables["omega"] = (omega_of(drawn.loadings, drawn.psi), ["client_name", "other_client_name"])
        else:
            variables["loadings"] = (drawn.loadings, ["client_name", "factor"])
            variables["own_variance"] = (drawn.psi, ["client_name"])
        coords["factor"] = list(range(self._layout.rank))
        return FromServer(told, variables, coords, type(self._config).__name__)

    def sample_stats(self, theta: np.ndarray, log_likelihood: np.ndarray) -> dict[str, np.ndarray]:
        """``lp``: the clients' log-likelihood given globals and coefficients."""
        return {"lp": log_likelihood.sum(axis=-1)}

    def log_evidence(self) -> np.ndarray:
        """See :class:`~fedbayes.contract.answer.Answer`: the chains give none."""
        return np.full(self._config.num_chains, np.nan)

    @property
    def thinning(self) -> int:
        """Sweeps between two draws: the method's, or four times as many where its chains had not mixed."""
        return self._judged[0]

    @property
    def mixing(self) -> tuple[float, float]:
        """Largest R-hat and smallest effective sample size of the globals and of Omega."""
        return self._judged[1:]

    @property
    def _mixed(self) -> bool:
        return is_mixed(*self.mixing)

    @cached_property
    def _judged(self) -> tuple[int, float, float]:
        """The thinning, R-hat and effective draws of the first chains that have mixed, or of the last ones."""
        found = (0, float("nan"), float("nan"))
        for times in _LONGER:
            thinning = times * self._config.thinning
            found = (thinning, *self._mixing_of(self.chains(_FEWEST, thinning)))
            if self._config.num_chains == 1 or is_mixed(*found[1:]):
                break
        return found

    def _mixing_of(self, drawn: Any) -> tuple[float, float]:
        seen = np.unique(np.linspace(0, self._layout.num_clients - 1, _SEEN).round().astype(int))
        loadings, psi = drawn.loadings[:, :, seen], drawn.psi[:, :, seen]
        rows, columns = np.tril_indices(len(seen))
        across = np.linspace(0, len(rows) - 1, min(len(rows), 500)).round().astype(int)
        rows, columns = rows[across], columns[across]
        products = np.einsum("csir,csir->csi", loadings[:, :, rows], loadings[:, :, columns])
        variances = np.log(np.sum(loadings**2, axis=-1) + psi)
        watched = np.concatenate([drawn.phi, variances, products], axis=-1)
        found = chain_diagnostics(watched)
        return float(found["r_hat"].max()), float(found["ess"].min())

    def report(self) -> dict[str, float]:
        """``r_hat`` and ``ess`` of the server's chains, the ``thinning`` that they took, and the ``rank``."""
        r_hat, ess = self.mixing
        return {"r_hat": r_hat, "ess": ess, "thinning": float(self.thinning), "rank": float(self._layout.rank)}

    def verdict(self, rounds: "xr.Dataset") -> Verdict:
        """Whether the sites have settled with every client heard, and the chains have mixed."""
        r_hat, ess = self.mixing
        settled, mixed = self._run.converged, self._mixed
        trouble = []
        if not settled:
            trouble += self._unsettled(rounds)
        if not mixed:
            trouble.append(self._unmixed())
        num, change = self._config.num_chains, float(rounds["change"][-1].max())
        lines = [
            f"  rounds    the last changed the clients' posteriors by {change:.2g} posterior sds",
            f"  chains    {num} at the server: R-hat {r_hat:.3f}, {ess:.0f} effective draws at least",
            f"  coupled   '{self._layout.latent}', {self._layout.size} numbers a client, {self._layout.rank} factors",
        ]
        error = 1.0 / np.sqrt(ess) if ess > 0 else float("nan")
        fine = settled and mixed
        return Verdict(fine, float(error), lines, " ".join(trouble), self._remarks(rounds) if fine else [])

    def _unmixed(self) -> str:
        if self._config.num_chains == 1:
            return "R-hat needs two chains at least: write `CorrelatedClients(num_chains=4)`."
        r_hat, ess = self.mixing
        return (
            f"The server's chains have not mixed: R-hat is {r_hat:.3f} (below {R_HAT_LIMIT} is wanted), with {ess:.0f} "
            f"effective draws of the globals or of Omega (at least {ESS_LIMIT:.0f} are wanted). Write "
            f"`CorrelatedClients(thinning={4 * self.thinning})`, or a smaller `rank`."
        )

    def _unsettled(self, rounds: "xr.Dataset") -> list[str]:
        last = rounds.isel(round=-1)
        change = float(last["change"].max())
        moved = (
            f"changed the clients' posteriors by {change:.3g} posterior sds" if np.isfinite(change) else "moved none"
        )
        return [
            f"The fit did not converge in {rounds.sizes['round']} rounds: the last one {moved}.",
            *bad_clients(last),
            "Raise `num_rounds`.",
        ]

    def _remarks(self, rounds: "xr.Dataset") -> list[str]:
        code = (rounds["code"][-1] == ResultCode.UNRELIABLE).mean("replicate").to_series()
        bad = list(code.index[code > 0.5])
        return [f"but not to be trusted: k-hat above 0.7 for {shortened(bad)}"] if bad else []

    def attrs(self) -> dict[str, Any]:
        """What draws and chains are."""
        return {
            "inference": "correlated-clients",
            "draws": "of the server's Markov chains, which know each client by its Gaussian site",
            "chains": "Markov chains, each given rounds of its own",
        }


def is_mixed(r_hat: float, ess: float) -> bool:
    """Whether chains can be trusted by R-hat and their effective draws; false where these are not known."""
    return r_hat < R_HAT_LIMIT and ess >= ESS_LIMIT


def omega_of(loadings: np.ndarray, psi: np.ndarray) -> np.ndarray:
    """``A A' + diag(psi)``, shape ``(..., K, K)``."""
    omega = loadings @ np.swapaxes(loadings, -1, -2)
    places = np.arange(psi.shape[-1])
    omega[..., places, places] += psi
    return omega
