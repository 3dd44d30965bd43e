"""How well clients are predicted by all the others, and rows by all other rows."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbayes.computing import computing
from fedbayes.correction.left_out import by_normalisers, cavity_pool, left_out
from fedbayes.keys import Purpose, key_for
from fedbayes.results.corrected import Corrected
from fedbayes.results.loo import Rows, clients_dataset, elpd_data, rows_dataset
from fedbayes.results.predictive import log_densities_of_draws

if TYPE_CHECKING:
    import xarray as xr


class LeavingOut(Corrected):
    """The part of :class:`~fedbayes.FederatedFit` that leaves out clients and rows."""

    @cached_property
    def _left_out(self) -> "xr.Dataset":
        log_likelihood = self._log_likelihood.reshape(-1, self.roster.num_clients)
        with computing():
            cavities = self._clients.cavities()
            psis = left_out(np.zeros(len(log_likelihood)), log_likelihood)
            columns = {"psis": psis.elpd, "psis_k_hat": psis.k_hat}
            if cavities is None or self.correction is None:
                found, exchanges = psis, 0
            else:
                prior, ask = self.roster.prior.log_densities, self._clients.log_likelihood
                key = key_for(self._key, Purpose.LEFT_OUT)
                pool = cavity_pool(self.correction.pool, cavities, self._shown.num_draws, prior, ask, key)
                flat = pool.log_likelihood.reshape(-1, self.roster.num_clients)
                found, exchanges = left_out(pool.log_weights.reshape(-1), flat), 1
                columns["gaussian"] = by_normalisers(self._dense("loo"), cavities).mean(axis=0)
        columns = {**found._asdict(), **columns}
        return clients_dataset(self.roster.names, columns, exchanges)

    def leave_one_out(self) -> "xr.Dataset":
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
        self._check_posterior("leave_one_out")
        return self._left_out

    def loo(self) -> Any:
        """:meth:`leave_one_out` in ArviZ's form, with the client as the unit, for ``az.compare``.

        Returns
        -------
        ELPDData
            Pointwise. Fits of different models to the same clients are compared by
            ``az.compare({"one": one.loo(), "other": other.loo()})``.
        """
        self._check_posterior("loo")
        return elpd_data(self.idata, self._left_out)

    def loo_rows(self) -> "xr.Dataset":
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
        self._check_posterior("loo_rows")
        if self.roster.dependent:
            raise ValueError(
                "`fit.loo_rows()` is for rows that are independent given the latents, and in this model they depend on "
                "each other. `fit.loo()` leaves out whole clients."
            )
        found = {}
        for name in self.roster.names:
            program, own = self.problem.client(name).program, self.problem.held(name)
            draws = self._latents(name, program)
            with computing():
                found[name] = Rows(log_densities_of_draws(program, draws, {**own.static, **own.arrays}))
        return rows_dataset(found)

    def _check_posterior(self, what: str) -> None:
        if self._answer.posterior is None:
            raise ValueError(f"`fit.{what}()` needs draws of a posterior, and this fit ends with points.")

    if TYPE_CHECKING:  # what the fit itself has

        def _latents(self, client: Any, program: Any) -> dict[str, np.ndarray]: ...
