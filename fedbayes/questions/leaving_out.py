"""Leave-one-out: clients given all other clients, and rows given all other rows, in ArviZ's form where it has one."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.contract.answer import shortened
from fedbayes.correction.left_out import by_normalisers, cavity_pool, left_out
from fedbayes.errors import K_HAT_LIMIT
from fedbayes.numerics.importance import pareto_smooth
from fedbayes.questions.clients import latents
from fedbayes.results.arviz import CLIENTS
from fedbayes.results.corrected import single_correction, single_log_likelihood
from fedbayes.results.fitted import Fitted, once
from fedbayes.results.posterior import single_idata
from fedbayes.results.predictive import log_densities_of_draws
from fedbayes.runtime.compiling import jit_cheaply
from fedbayes.runtime.keys import Purpose, key_for
from fedbayes.runtime.precision import computing

if TYPE_CHECKING:
    import xarray as xr

_AT_ONCE = 64  # rows of one compiled call
_MEANINGS = {
    "elpd": "expected log predictive density of the client given all others",
    "mcse": "its Monte Carlo error",
    "k_hat": "Pareto tail shape of the weights behind it",
    "reliable": "whether the weights can be trusted",
    "gaussian": "the same by the normalisers of the Gaussians alone",
    "psis": "the same by importance sampling from the posterior",
    "psis_k_hat": "Pareto tail shape of its weights",
}


def leave_one_out(fitted: Fitted) -> "xr.Dataset":
    """How well each client is predicted by all the others, without another fit.

    ``elpd_k = log p(y_k | y_-k)``: the log density of all of a client's outcomes together, its locals integrated
    out, given all other clients and the prior. A Gaussian answer knows the posterior without client k, its cavity;
    in one exchange all clients answer at draws of all cavities, and importance weights make the result exact up to
    ``mcse`` (:mod:`fedbayes.correction.left_out`). Of Markov chains it is importance sampling from the posterior,
    which takes no exchange and often fails for a client that says much.

    Returns
    -------
    xarray.Dataset
        Over ``client_name``, in nats: ``elpd``, ``mcse``, ``k_hat``, ``reliable``; ``gaussian``, by the normalisers
        of the Gaussians alone; ``psis`` and ``psis_k_hat``, by importance sampling from the posterior. The
        attributes have the sum ``elpd``, its ``mcse``, and remarks.

    Raises
    ------
    ValueError
        The fit is a point.
    """
    _check_posterior(fitted, "leave_one_out")
    return _left_out(fitted)


@once
def _left_out(fitted: Fitted) -> "xr.Dataset":
    roster = fitted.roster
    at_posterior = single_log_likelihood(fitted).reshape(-1, roster.num_clients)
    with computing():
        cavities = fitted.cavities()
        psis = left_out(np.zeros(len(at_posterior)), at_posterior)
        columns = {"psis": psis.elpd, "psis_k_hat": psis.k_hat}
        weighed = single_correction(fitted)
        if cavities is None or weighed is None:
            found, exchanges = psis, 0
        else:
            prior = roster.prior.log_densities
            ask = partial(fitted.clients.log_likelihood, what="leave_one_out", finer=weighed.finer, single=True)
            # at least as many as in the first exchange: the clients have its program
            num = max(fitted.shown.num_draws, weighed.exchanges[0])
            key = key_for(fitted.key, Purpose.LEFT_OUT)
            pool = cavity_pool(weighed.pool, cavities, num, prior, ask, key)
            flat = pool.log_likelihood.reshape(-1, roster.num_clients)
            found, exchanges = left_out(pool.log_weights.reshape(-1), flat), 1
            columns["gaussian"] = by_normalisers(fitted.dense("loo"), cavities).mean(axis=0)
    return clients_dataset(roster.names, {**found._asdict(), **columns}, exchanges)


def loo(fitted: Fitted) -> Any:
    """:meth:`leave_one_out` in ArviZ's form, with the client as the unit, for ``az.compare``.

    To be preferred to ``az.loo(fit.idata, var_name="client")``, which knows draws of the whole posterior alone: leaving
    out a client that says much changes it too much for weights to follow, and a k-hat above 0.7 says so. Here draws are
    those of the posterior without the client, and fewer k-hats are large. :meth:`leave_one_out` has both, side by side
    (``elpd`` and ``psis``).

    Returns
    -------
    ELPDData
        Pointwise. ``pareto_k`` is 0.7 at most for clients whose weights can be trusted since none of them has a share
        that counts, so that ArviZ does not warn of them; ``leave_one_out().k_hat`` is what was found. Fits of different
        models to the same clients are compared by
        ``az.compare({"one": one.loo(), "other": other.loo()})``.

    Raises
    ------
    ValueError
        The fit is a point.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> elpd = fit.loo()  # the density of each client's outcomes, given all the others'
    >>> int(elpd.n_data_points) == len(clients)
    True
    """
    _check_posterior(fitted, "loo")
    return elpd_data(single_idata(fitted), _left_out(fitted))


def loo_rows(fitted: Fitted) -> "xr.Dataset":
    """Leave-one-out over single rows, by importance sampling from each client's own posterior, at the client.

    A client sends sums over its rows, and the worst k-hat: no row's number leaves it.

    Returns
    -------
    xarray.Dataset
        Over ``client_name``: ``elpd``, ``se``, ``p_loo``, ``rows``, ``worst_k_hat`` and ``rows_above_limit`` (0.7).
        The attributes have ``elpd``, ``se`` and ``p_loo`` of all rows together.

    Raises
    ------
    ValueError
        The fit is a point, or rows depend on each other.
    ClientDataError
        Outcomes are missing.
    """
    _check_posterior(fitted, "loo_rows")
    if fitted.roster.dependent:
        raise ValueError(
            "`fit.loo_rows()` is for rows that are independent given the latents, and in this model they depend on "
            "each other. `fit.loo()` leaves out whole clients."
        )
    found = {}
    for name in fitted.roster.names:
        program, own = fitted.problem.program(name), fitted.problem.held(name)
        draws = latents(fitted, name, program)
        with computing():
            found[name] = Rows(log_densities_of_draws(program, draws, {**own.static, **own.arrays}))
    return rows_dataset(found)


def _check_posterior(fitted: Fitted, question: str) -> None:
    if fitted.posterior is None:
        raise ValueError(f"`fit.{question}()` needs draws of a posterior, and this fit ends with points.")


def clients_dataset(names: tuple[str, ...], found: Mapping[str, np.ndarray], exchanges: int) -> "xr.Dataset":
    """Each client given all others, see ``FederatedFit.leave_one_out``."""
    import xarray as xr

    dataset = xr.Dataset({name: (CLIENTS, value) for name, value in found.items()}, coords={CLIENTS: list(names)})
    for name, values in dataset.data_vars.items():
        unit = "1" if name in ("reliable", "k_hat", "psis_k_hat") else "nats"
        values.attrs |= {"long_name": _MEANINGS[str(name)], "units": unit}
    bad = [str(name) for name, fine in zip(names, found["reliable"], strict=True) if not fine]
    return dataset.assign_attrs(
        elpd=float(np.sum(found["elpd"])),
        mcse=float(np.sqrt(np.sum(found["mcse"] ** 2))),
        exchanges=exchanges,
        remarks=f"not to be trusted for {shortened(bad)}: k-hat above {K_HAT_LIMIT}" if bad else "",
    )


def elpd_data(idata: Any, found: "xr.Dataset") -> Any:
    """ArviZ's ``ELPDData`` with the client as the unit, made of ``az.loo``'s by putting our numbers in it.

    ArviZ warns of every k-hat above 0.7: of clients whose weights can be trusted none is put in that is larger.
    """
    import arviz as az

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the k-hats of the numbers that are replaced
        made = az.loo(idata, var_name="client", pointwise=True)
    num, k_hat = found.sizes[CLIENTS], found["k_hat"].where(~found["reliable"], found["k_hat"].clip(max=K_HAT_LIMIT))
    elpd, spread = found["elpd"], float(np.sqrt(num * np.var(found["elpd"].values)))
    old = int(az.__version__.split(".")[0]) < 1
    total, pointwise, p_loo = ("elpd_loo", "loo_i", "p_loo") if old else ("elpd", "elpd_i", "p")
    lppd = float(made[total]) + float(made[p_loo])  # of the log scale
    values = {
        total: float(elpd.sum()),
        "se": spread,
        p_loo: lppd - float(elpd.sum()),
        pointwise: elpd.rename(pointwise),
        "pareto_k": k_hat.rename("pareto_k"),
        "warning": not bool(found["reliable"].all()),
        "scale": "log",
    }
    for name, value in values.items():
        made[name] = value
    return made


def _rows(log_density: Array) -> tuple[Array, Array]:
    """Leave-one-out densities ``(rows,)`` and their k-hats, from the densities ``(rows, draws)``."""
    weights, k_hat = jax.vmap(lambda one: pareto_smooth(-one))(log_density)
    return jax.scipy.special.logsumexp(jnp.log(weights) + log_density, axis=1), k_hat


@cache
def _compiled_rows() -> Callable:
    return jit_cheaply(_rows)


class Rows:
    """What a client computes of its own rows: sums, and the worst k-hat, are all that leaves it.

    Parameters
    ----------
    log_densities
        Of each outcome, by site, at each draw of the client's own posterior, ``(chain, draw, ...)``.
    """

    def __init__(self, log_densities: Mapping[str, Any]) -> None:
        parts = [np.moveaxis(np.asarray(each).reshape(-1, *each.shape[2:]), 0, -1) for each in log_densities.values()]
        flat = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
        found = [_compiled_rows()(_filled(flat[at : at + _AT_ONCE])) for at in range(0, len(flat), _AT_ONCE)]
        elpd, k_hat = (
            np.concatenate([np.asarray(part) for part in each])[: len(flat)] for each in zip(*found, strict=True)
        )
        top = flat.max(axis=1)
        lppd = np.log(np.mean(np.exp(flat - top[:, None]), axis=1)) + top
        self.rows, self.elpd, self.squares = len(flat), float(elpd.sum()), float(np.sum(elpd**2))
        self.p_loo = float(lppd.sum()) - self.elpd
        self.worst, self.bad = float(k_hat.max()), int(np.sum(~(k_hat <= K_HAT_LIMIT)))


def _filled(rows: np.ndarray) -> np.ndarray:
    """As many rows as one compiled call takes, the first ones repeated."""
    return np.resize(rows, (_AT_ONCE, rows.shape[1]))


def rows_dataset(found: Mapping[str, Rows]) -> "xr.Dataset":
    """All clients' sums side by side, see ``FederatedFit.loo_rows``."""
    import xarray as xr

    columns = {
        "elpd": [each.elpd for each in found.values()],
        "se": [np.sqrt(max(each.squares - each.elpd**2 / each.rows, 0.0)) for each in found.values()],
        "p_loo": [each.p_loo for each in found.values()],
        "rows": [each.rows for each in found.values()],
        "worst_k_hat": [each.worst for each in found.values()],
        "rows_above_limit": [each.bad for each in found.values()],
    }
    dataset = xr.Dataset({name: (CLIENTS, value) for name, value in columns.items()}, coords={CLIENTS: list(found)})
    rows, elpd = sum(columns["rows"]), sum(columns["elpd"])
    squares = sum(each.squares for each in found.values())
    return dataset.assign_attrs(
        elpd=float(elpd), se=float(np.sqrt(max(squares - elpd**2 / rows, 0.0))), p_loo=float(sum(columns["p_loo"]))
    )
