"""Federated averaging (McMahan, Moore, Ramage, Hampson and Aguera y Arcas 2017) and FedProx (Li et al. 2020).

With ``U_c(theta) = -log f_c(theta) - p_c log p(theta)`` the energy of client c, whose weights ``p_c`` sum to one, and
``n`` rows in all, a client goes down its loss from the server's position,

    theta_c <- theta_c - eta grad [ U_c(theta_c) / (p_c n) + proximal / 2 |theta_c - theta|^2 ],    K times,
    theta   <- sum_c p_c theta_c,

or by other optimisers in place of both steps (Reddi et al. 2021: FedAdam, FedYogi). The energies' sum is minus the log
joint density with the prior counted once, in unconstrained space. Its minimum, the mode, is the rounds' fixed point for
``K = 1``. For more steps, or with the proximal term, it is not where clients differ (Su, Xu and Yang 2023): a linear
model's rounds end at ``(sum_c p_c C_c)^-1 sum_c p_c C_c optimum_c`` with ``C_c = I - (I - eta H_c)^K``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedbayes.contract.algorithm import Method, Phase, Private
from fedbayes.contract.answer import Diagnostic
from fedbayes.contract.renamed import refused_names
from fedbayes.contract.state import RunState
from fedbayes.inference.fedavg.answer import DIAGNOSTICS, LaplaceAnswer, PointAnswer, own_point
from fedbayes.inference.fedavg.client import is_personalised
from fedbayes.inference.fedavg.curvature import ENDED, Ended, Expanded, cavity_of, expanding
from fedbayes.inference.fedavg.fairness import Fairness
from fedbayes.inference.fedavg.options import Options, check_dense, check_roster
from fedbayes.inference.fedavg.probe import probed
from fedbayes.inference.fedavg.server import averaging
from fedbayes.inference.options import DENSE_LIMIT, check_choices, check_whole, client_weights
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.roster import Roster


@refused_names(num_chains="num_replicates")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Options, Method):
    """Federated averaging: the mode of the posterior by clients' gradient steps, and a Laplace posterior around it.

    Client c takes K steps down its loss from the server's position, and the server takes the mean of where they end::

        theta_c <- theta_c - eta grad [U_c(theta_c) / (p_c n) + proximal / 2 |theta_c - theta|^2],
        theta   <- sum_c p_c theta_c,

    where ``U_c(theta) = -log f_c(theta) - p_c log p(theta)`` (McMahan et al. 2017). With ``local_steps=1`` the rounds
    end at the mode; with more of them, beside it where clients differ, and ``repr(fit)`` says how far.

    The mode is that of the density in unconstrained space, with the Jacobian of the transforms: it moves with the
    parametrisation, and for a scale lies above the mode of the density of the scale itself.

    Parameters
    ----------
    optimizer
        An optax optimiser of the clients, which starts anew in each round; ``None``: plain gradient steps. It
        receives all globals as one vector; where there are more than 512 of them and no locals, it receives a
        dictionary with one array for each site. A fit with an optimiser or a schedule can't be saved by ``fit.save``,
        as these are functions.
    step_size
        Of plain gradient steps, on the mean loss of a row; ``None``: half of the inverse of the clients' largest
        curvature at the start, asked for in one exchange, or less where a round shows a larger one. A step size of two
        over that curvature, or more, is refused.
    schedule
        A function of the round, from 0 on, that multiplies the clients' steps, such as ``lambda round: 0.99 ** (round
        // 10)``; the round is traced, as by ``jax.jit``.
    local_steps
        Steps K of a client in a round; ``None``: 10, or as ``epochs`` say.
    epochs
        Passes over a client's rows in a round, with ``batch_size``.
    batch_size
        Rows per gradient, cut from a fresh random order of the client's rows in each pass; ``None``: all rows.
    proximal
        Weight ``mu`` of FedProx's term ``mu / 2 |theta - server|^2``, on the scale of the mean loss; 0 is FedAvg.
    solver
        ``"steps"``, or ``"newton"``: the exact minimum of the client's proximal loss, for models without locals.
    server_optimizer
        An optax optimiser of the server, which takes the clients' mean way, reversed, for a gradient; ``None``:
        ``optax.sgd(1.0)``, the mean. ``optax.adam(0.1)`` is FedAdam, ``optax.yogi(0.1)`` FedYogi.
    weights
        ``p_c`` of the mean: ``"rows"``, ``"equal"``, or one number per client name, summing to one. Whatever they are,
        the objective is ``sum_c p_c [U_c / (p_c n)] = -log(p(theta) prod_c f_c(theta)) / n``: a client's loss, and so
        its steps, are divided by its weight. By rows this is the sources' ``sum_c p_c F_c``, with ``F_c`` the mean loss
        of the client's rows; for other weights the sources' objective counts each row of client c ``p_c n / n_c``
        times, which is another posterior. With several local steps the weights move the point where rounds end.
    scheme
        ``"full"``; ``"with_replacement"``: each round draws ``num_active`` clients by their weights, and moves to the
        plain mean of where they end, one that is drawn twice counting twice (scheme I of Li, Huang, Yang, Wang and
        Zhang 2020, "On the convergence of FedAvg on non-IID data"). A random part of the clients, their mean taken by
        their weights, is ``participation`` of :func:`fit_federated`.
    num_active
        Clients S per round of ``scheme="with_replacement"``.
    fairness
        ``fb.GIFAIR(groups=...)``: clients of groups that fare worse weigh more. The answer is then a point, which is no
        mode of the posterior; up to 512 globals its distance from the optimum of its own objective is measured.
    locals
        Local latents are integrated out (``"marginal"``, by importance sampling) or put at their mode given the globals
        (``"joint"``, whose mode may lie at a scale of zero). They stay with the client.
    num_samples
        Draws that integrate them out.
    init
        ``"zero"`` in unconstrained space; ``"random"`` (uniform in (-2, 2), as NumPyro's samplers); ``"prior"`` (a draw
        of the prior, as networks need whose prior scales with their width); or arrays by global site, in unconstrained
        space.
    laplace
        End with a round of Hessians, which makes a Laplace posterior; ``None``: up to 512 globals. Without it
        ``fit.idata`` holds one draw, the point. With ``fairness`` the Hessians only measure the distance from its
        optimum, and ``False`` leaves them out.
    tolerance
        The rounds end when they are nearer to their fixed point than this, in posterior sds; the distance is estimated
        from how fast moves shrink, beyond what smaller steps make of them. With mini-batches, partial participation or
        more than 512 globals they end at their limit. Rounds that the clients' drift keeps farther than 0.1 posterior
        sds from the mode have not converged, if the answer is the Laplace posterior.
    max_rounds
        Limit of the rounds.
    num_replicates
        Independent runs, which differ by a random ``init`` and mini-batches alone.

    See Also
    --------
    FedProx : With a term that holds clients near the server.
    FedPA : A posterior by rounds of this kind.
    FedEnsemble : Several modes in one run.
    GIFAIR : Equal losses among clients.

    Examples
    --------
    >>> import optax
    >>> import fedbayes as fb
    >>> method = fb.FedAvg(local_steps=1)  # ends at the mode
    >>> adam = fb.FedAvg(server_optimizer=optax.adam(0.1), local_steps=5, batch_size=32)  # FedAdam
    >>> adam.proximal
    0.0
    """

    laplace: bool | None = None
    num_replicates: int = 1
    progress: ClassVar[tuple[str, ...]] = ("left", "objective")
    judged_by: ClassVar[str] = "the distance from the mode or the optimum at the end, if known"
    diagnostics: ClassVar[Mapping[str, Diagnostic]] = DIAGNOSTICS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"laplace": (None, True, False)})
        check_whole(self, {"num_replicates": 1})
        if self.laplace and self.fairness is not None:
            raise ValueError(
                "`laplace` is True with `fairness`: under other weights of the clients the point is no mode of the "
                "posterior, which a Laplace approximation could stand for. Leave one of them out."
            )

    @property
    def single_messages(self) -> str:
        """With ``fairness`` the last round asks for single expansions."""
        if self.fairness is None or self.laplace is False:
            return ""
        return (
            "With `fairness` each client's expansion at the end is sent by itself, as the distance from the optimum "
            "weighs each. Without that, `laplace=False`, sums are enough."
        )

    def phases(self, roster: Roster) -> list[Phase]:
        """The largest curvature at the start where steps need it, the rounds, and the curvature at the end."""
        check_roster(self, roster)
        if self.laplace:
            check_dense(self, "laplace", roster)
        weights = client_weights(self.weights, roster)
        phases = probed(self, averaging(self, roster, weights), roster, weights)
        if self._asks_for_curvature(roster):
            last = expanding(self, roster, weights)
            phases.append(Phase(algorithm=last, max_rounds=1, full_participation=True, main=False))
        return phases

    def answer(self, roster: Roster, run: RunState) -> LaplaceAnswer | PointAnswer:
        """The Laplace posterior, or the point."""
        steady, fairness = self.scheme == "full", None
        if self.fairness is None and self._asks_for_curvature(roster):
            return LaplaceAnswer(run, self.tolerance, steady=steady)
        if self.fairness is not None and self._asks_for_curvature(roster):
            fairness = Fairness(self.fairness, roster, client_weights(self.weights, roster))
        personalised = is_personalised(self)
        return PointAnswer(roster, run, self.tolerance, steady=steady, personalised=personalised, fairness=fairness)

    def told_at_end(self, roster: Roster) -> Any:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        centred = self.fairness is None and self._asks_for_curvature(roster)
        return ENDED if centred else super().told_at_end(roster)

    def own_cavity(self, told: Ended, private: Expanded) -> Gaussian:
        """See :class:`~fedbayes.contract.algorithm.Method`."""
        return cavity_of(told, private)

    def own_draws(self, private: Private) -> np.ndarray:
        """A client's own point as its only draw, see :class:`GIFAIR`."""
        return own_point(private)

    def _asks_for_curvature(self, roster: Roster) -> bool:
        return roster.size <= DENSE_LIMIT if self.laplace is None else self.laplace


@refused_names(num_chains="num_replicates")
@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Federated averaging with a proximal term: clients are held near the server (Li et al. 2020).

    A client goes down ``U_c(theta_c) / (p_c n) + proximal / 2 |theta_c - theta|^2``, and has all options of
    :class:`FedAvg`. The term lets clients take many steps, or exact minima by ``solver="newton"``, without going far;
    like many local steps it moves the point where the rounds end.

    See Also
    --------
    FedAvg : All its options.

    Examples
    --------
    >>> import fedbayes as fb
    >>> method = fb.FedProx(proximal=1.0, solver="newton")  # for `fb.fit_federated(model, clients, method=method, ...)`
    >>> method.proximal
    1.0
    """

    proximal: float = 0.1
