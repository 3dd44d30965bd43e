"""What a fit can be asked about its clients and its prior: who disagrees, what the prior does, what does not fit."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedbayes.answer import Answer
from fedbayes.computing import computing
from fedbayes.problem.roster import Roster
from fedbayes.results.conflict import conflict_of, disagreeing
from fedbayes.results.personal import Clients
from fedbayes.results.predictive_check import predictive_check_of
from fedbayes.results.sensitivity import sensitivity_of

if TYPE_CHECKING:
    import xarray as xr


class Questions:
    """Methods of :class:`fedbayes.FederatedFit`."""

    _answer: Answer
    _clients: Clients
    roster: Roster

    def conflict(self) -> "xr.Dataset":
        """Whether what each client says of the globals agrees with what all the others say.

        With the posterior ``N(m, V)`` and the cavity ``N(m_k, V_k)``, that is the prior and all the others, ``m - m_k``
        has mean zero and variance ``V_k - V`` where the client's data obey the model: ``z_ki = (m_i - m_ki) /
        sqrt(V_k,ii - V_ii)`` is standard normal. It is exact for Gaussian sites (:mod:`fedbayes.results.conflict` has
        the proof and the sources), and as good as the Gaussian form of the posterior otherwise: a fit that ends beside
        the mode, as federated averaging with many local steps does, has sites and z that are off as well.

        With locals, a client's site speaks of the globals only, its locals integrated out: a client whose locals are
        unusual, but not what they say of the globals, is not found. A client that knows nothing of a global by itself
        may still move it, by way of globals that are correlated with it in the cavity, and is then compared there,
        too. A client that is far off also pulls the cavities of all others, so that in a
        small federation these can seem to disagree, too; with two clients nothing tells which of them is off. Single
        and overall tests are two families, each of which raises a false alarm in at most 5 of 100 federations with
        Gaussian sites. Sites of few rows for a scale raise some more: DESIGN.md has measurements.

        The replicates' natural parameters are averaged before anything is computed from them. Nothing is exchanged.

        Returns
        -------
        xarray.Dataset
            Over ``client`` and ``coordinate`` (:attr:`global_labels`, in unconstrained space): ``difference`` (``m -
            m_k``), ``share`` (what the client removes of the variance that the others leave), ``z`` (positive where the
            client pulls the global up), ``z_mcse`` (its Monte Carlo standard error, from the replicates), ``p``
            (two-sided), ``p_adjusted`` (Holm, over all clients and globals). Over ``client``: ``chi2`` and its
            ``rank``, of all directions together in which the client has at least a quarter of the information that is
            usual for its rows, ``p_overall``, ``p_overall_adjusted`` (Holm, over clients).

            NaN where there is nothing to compare: where the client says almost nothing of a global (``share`` below
            1e-6 or three Monte Carlo errors, or negative), and where the cavity is improper, because nobody else says
            anything of it (then ``share`` is NaN, too). ``attrs["disagreement"]`` names in words who disagrees about
            what at an adjusted p-value below 0.05 and is empty if nobody does; ``attrs["remarks"]`` says what could not
            be compared.

        Raises
        ------
        ValueError
            The answer is no Gaussian, or not the product of the prior and the clients' sites.

        Examples
        --------
        >>> found = fit.conflict()  # doctest: +SKIP
        >>> found.attrs["disagreement"]  # doctest: +SKIP
        "client 'x' disagrees with all the others about beta[3] (z = 4.1, adjusted p = 0.002)"
        """
        with computing():
            return conflict_of(self._answer, self._clients.cavities(), self.roster)

    def _disagreement_lines(self) -> list[str]:
        """Who disagrees, for ``repr``; nothing where nobody does, or that can't be told."""
        if not self._clients.cavities_at_hand():
            return []
        try:
            found = self.conflict()
        except ValueError:
            return []
        if not (names := disagreeing(found)):
            return []
        verb = "disagrees" if len(names) == 1 else "disagree"
        return [f"  conflict  {', '.join(names)} {verb} with the others; see fit.conflict()"]

    def sensitivity(self, alphas: tuple[float, float] = (0.99, 1.01), *, by_client: bool = False) -> "xr.Dataset":
        """How much the posterior would change with a slightly stronger or weaker prior, or likelihood.

        The prior is raised to the power ``alpha``, or the likelihood is, and the draws are weighted accordingly, by
        ``p(theta)^(alpha - 1)``, Pareto-smoothed. The sensitivity is the cumulative Jensen-Shannon distance between the
        weighted and the plain draws of a parameter, per unit of ``log2(alpha)``, the mean of both sides (Kallioinen,
        Paananen, Bürkner and Vehtari 2024; R package priorsense). Above 0.05 it is taken for sensitive: to both, the
        prior and the data pull in different directions ("prior-data conflict"); to the prior alone, the data say
        little against it ("strong prior / weak likelihood").

        The likelihood is that of all clients, with their locals integrated out, so that the priors of the locals belong
        to it. The log prior is the density of the constrained globals; it is added to :attr:`idata` as the group
        ``log_prior``, where ArviZ's own ``psens`` (0.x) or ``psense_summary`` (1.x) find it. The draws are those of
        ``fit.idata``: where these are of a Gaussian form of the posterior, it is the sensitivity of that form.

        Parameters
        ----------
        alphas
            The powers, one below and one above 1.
        by_client
            Also raise each client's likelihood by itself, which is to count its rows ``alpha`` times.

        Returns
        -------
        xarray.Dataset
            Over ``component`` (``"prior"``, ``"likelihood"``) and ``parameter`` (every number in ``idata.posterior``):
            ``sensitivity``; over ``parameter``: ``diagnosis``, ``"-"`` or one of the above; over ``component`` and
            ``alpha``: ``k_hat`` of the weights, to be trusted below 0.7. With ``by_client`` also
            ``client_sensitivity``, over ``client_name`` and ``parameter``, and ``client_k_hat``.

        Raises
        ------
        ValueError
            The fit is a point, couples the clients by a prior of its own, or ``alphas`` are no such powers.

        Examples
        --------
        >>> fit.sensitivity()["sensitivity"].to_pandas().T  # doctest: +SKIP
        """
        return sensitivity_of(self, alphas, by_client)

    def predictive_check(
        self,
        statistics: Mapping[str, Callable[[np.ndarray], float]] | None = None,
        *,
        prior: bool = False,
        num_draws: int | None = None,
        observed: bool = False,
    ) -> "xr.Dataset":
        """Where each client's outcomes lie among replicates of them, computed at the client.

        Replicates are drawn with the client's own posterior, locals included, as for :meth:`check`, or from the prior
        (Box 1980; Gelman, Meng and Stern 1996). Of each statistic ``T`` of an outcome three numbers leave the client:
        the mid-tail probability ``P(T(rep) < T(obs)) + P(T(rep) = T(obs)) / 2``, and mean and standard deviation of
        ``T(rep)``. With ``observed=True`` a fourth does, ``T(obs)``, which is a summary of the client's data (its
        smallest value is the value of some row). No row and no replicate leaves it. Of the first three, too, somebody
        who knows the law of ``T(rep)`` can infer about where ``T(obs)`` lies.

        Posterior predictive checks use the data twice, for the posterior and for the check: their tail probabilities
        lie closer to 1/2 than uniform ones (they are conservative), most of all for statistics that the parameters
        fit, such as the mean. Those of the prior are uniform where the data obey the model, and as sensitive to the
        prior as it is wide.

        Parameters
        ----------
        statistics
            From names to functions of a client's outcomes of one site, an array as the model observes it, without the
            missing ones (then flat); ``None``: ``mean``, ``sd``, ``min``, ``max``, and of binary outcomes and counts
            the share of ``zeros``.
        prior
            Replicates of the prior: the globals and all clients' locals are drawn from it.
        num_draws
            Replicates: of each chain of the posterior (``None``: at most 250), or of the prior (``None``: 1,000).
        observed
            Also return the statistics of the observed outcomes.

        Returns
        -------
        xarray.Dataset
            Over ``client_name``, ``site`` and ``statistic``: ``tail_probability``, ``predictive_mean``,
            ``predictive_sd``, and ``observed`` if asked for; NaN where a client has no such outcomes, or the statistic
            is none of theirs. ``attrs["outside"]`` names those below 1 or above 99 percent, of which two in a hundred
            are expected of uniform ones; ``attrs["caveat"]`` repeats what to keep in mind.

        Raises
        ------
        ValueError
            A statistic is no number, ``num_draws`` is out of range, the fit is a point, or the prior can't be drawn
            from.

        Examples
        --------
        >>> fit.predictive_check({"range": np.ptp})  # doctest: +SKIP
        """
        return predictive_check_of(self, statistics, prior, num_draws, observed)
