"""Where a client's own posterior comes from once the rounds are over.

Every answer holds one of the final classes below, or one in its method's own folder. Nobody asks which one: all other
modules read its fields, tell the clients what it has for them, draw through it, and show its refusals. One more way to
couple clients is one more class.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from fedbayes.contract.locals_from import GLOBALS, AtClient, LocalsFrom, Personal, Private, Question, Variables, Wanted
from fedbayes.errors import K_HAT_LIMIT, UnreliableWarning
from fedbayes.numerics.chains import worst_mixing
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments

# Of NUTS for one client. The chains start anew at each question, and are shorter than those that are a fit's answer.
_R_HAT, _ENOUGH = 1.05, 100


class FromCavity(LocalsFrom):
    """Clients are independent given the globals, and what all others know of these is a Gaussian, the cavity.

    A client samples ``p(y_k | theta, z) p(z | theta)`` times its cavity, which it forms itself where it has kept its
    own site. It does so by importance weights; where these can't be trusted, it draws its locals given the draws of the
    globals.

    Parameters
    ----------
    told
        What each client is told of the others, leading axes client and replicate: what
        :meth:`fedbayes.contract.algorithm.Method.own_cavity` reads.
    posterior
        Of the globals, leading axis of replicates.
    others
        The cavities, leading axes replicate and client, where the server knows them; they are then what clients are
        told.
    """

    kind = "given"
    has_cavities = True

    def __init__(self, told: Any, posterior: Gaussian, others: Gaussian | None = None) -> None:
        self._told, self._posterior, self.others = told, posterior, others

    @classmethod
    def known(cls, others: Gaussian, posterior: Gaussian) -> "FromCavity":
        """Of a server that knows all sites."""
        return cls(_clients_first(others), posterior, others)

    def told(self) -> Any:
        """See :class:`LocalsFrom`."""
        return self._told

    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """See :class:`LocalsFrom`."""
        mean = gaussian_moments(self._posterior)[0]
        return sampled(at.reply, mean, theta.shape[:2], lambda: _given(at, theta))

    @staticmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """See :class:`LocalsFrom`."""
        return _given(at, theta)


class FromStart(LocalsFrom):
    """The answer says nothing of what the others know: points, and posteriors of low rank.

    A client samples its locals given the point.

    Parameters
    ----------
    start
        A Gaussian around the points, where locals are looked for, leading axes replicate and client; ``None``: the
        clients have no locals.
    num_points
        In a chain.
    """

    kind = "start"

    def __init__(self, start: Gaussian | None, num_points: int = 1) -> None:
        self._start, self._num_points = start, num_points

    def told(self) -> Any:
        """See :class:`LocalsFrom`."""
        return () if self._start is None else _clients_first(self._start)

    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """See :class:`LocalsFrom`: the point itself, with draws of the locals."""
        point = np.broadcast_to(theta, (len(theta), num_draws, theta.shape[-1]))
        drawn = sampled(at.reply, theta[:, 0], (len(theta), num_draws), lambda: _given(at, point))
        return drawn._replace(draws=np.concatenate([point, drawn.draws[..., theta.shape[-1] :]], axis=-1))

    @staticmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """See :class:`LocalsFrom`."""
        return _given(at, theta)

    def for_sites(self, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Float[np.ndarray, "chain place d"]:
        """See :class:`LocalsFrom`: the point, as often as draws are wanted."""
        return np.repeat(theta, num_draws, axis=1) if self._num_points == 1 and self._start is not None else theta

    def own_posterior(self, num_locals: int) -> bool:
        """See :class:`LocalsFrom`: it has the globals of all."""
        return num_locals > 0

    def refuses(self, question: Question) -> str:
        """See :class:`LocalsFrom`."""
        if question is not Question.CLIENT_POSTERIOR:
            return ""
        if self._start is None:
            return no_matrix("client_posterior")
        if self._num_points > 1:
            return (
                f"This fit is an ensemble of {self._num_points} points, and a client's local latents differ from "
                "point to point: it has no posterior of its own. Fit by a method that ends with one point, or with a "
                "posterior."
            )
        return ""


class FromRecord(LocalsFrom):
    """The clients have kept a draw of their locals for each draw of the globals, as Markov chains do.

    Parameters
    ----------
    start
        A Gaussian that is wide enough to look for locals in, leading axes replicate and client.
    """

    kind = "recorded"

    def __init__(self, start: Gaussian) -> None:
        self._start = start

    def told(self) -> Any:
        """See :class:`LocalsFrom`."""
        return _clients_first(self._start)

    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """See :class:`LocalsFrom`."""
        return _recorded(at, theta)

    @staticmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """See :class:`LocalsFrom`."""
        return _recorded(at, theta)


class FromServer(LocalsFrom):
    """The server has draws of the locals by which the method couples the clients.

    Parameters
    ----------
    told
        What each client is told of them, leading axes client and chain; the draws among it.
    variables, coords
        See :class:`LocalsFrom`.
    method
        Its name, for messages.
    """

    kind = "given_coupled"
    by_locals = False

    def __init__(self, told: Any, variables: Variables, coords: Mapping[str, Sequence], method: str) -> None:
        self._told, self.variables, self.coords, self._method = told, variables, coords, method

    def told(self) -> Any:
        """See :class:`LocalsFrom`."""
        return self._told

    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """See :class:`LocalsFrom`."""
        return _coupled(at, theta)

    @staticmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """See :class:`LocalsFrom`."""
        return _coupled(at, theta)

    def refuses(self, question: Question) -> str:
        """See :class:`LocalsFrom`."""
        prior = f"{self._method} couples the clients by a prior that is no part of the program, so that the program's"
        sentences = {
            Question.NEW_CLIENT: f"{self._method} couples the clients by a covariance that has no entry for a client "
            "that was no part of the fit. Name one of the clients, or fit with the new client among them.",
            Question.EXACT: _DEPENDENT,
            Question.SENSITIVITY: f"{prior} prior is not the whole prior. Fit by a method without it.",
            Question.PRIOR_REPLICATES: f"{prior} prior can't be checked in its place. Write `prior=False`.",
        }
        return sentences.get(question, "")


class FromOwnPoint(LocalsFrom):
    """Each client has ended at globals and locals of its own, in its private state.

    Parameters
    ----------
    of
        ``(private) -> (chain, draw, d + m)``: the points in a client's private state.
    start
        As for :class:`FromStart`, at the globals of all.
    """

    kind = "own"
    by_locals = False

    def __init__(self, of: Callable[[Private], np.ndarray], start: Gaussian | None = None) -> None:
        self._of, self._start = of, start

    def told(self) -> Any:
        """See :class:`LocalsFrom`: where locals are looked for at the common point."""
        return () if self._start is None else _clients_first(self._start)

    def draws(self, at: AtClient, theta: Float[np.ndarray, "chain draw d"], num_draws: int) -> Personal:
        """See :class:`LocalsFrom`."""
        return _own(at, self._of)

    @staticmethod
    def draws_at_site(
        at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
    ) -> Personal:
        """See :class:`LocalsFrom`."""
        return _own(at, of)

    def refuses(self, question: Question) -> str:
        """See :class:`LocalsFrom`."""
        return _DEPENDENT if question is Question.EXACT else ""


def no_matrix(what: str) -> str:
    """Why a question by this name can't be answered without a dense Gaussian."""
    return (
        f"`fit.{what}` needs the precision of all globals as a matrix, which this posterior does not have: it has low "
        "rank, or is a point. Without local latents a client's posterior is `fit.idata`."
    )


_DEPENDENT = (
    "`fit.exact()` is not to be had from this method: its clients depend on each other by more than the globals, so "
    "that their likelihoods given the globals do not multiply. `fit.idata` has the method's own draws."
)


def at_site(
    kind: str, at: AtClient, theta: Float[np.ndarray, "chain draw d"], of: Callable[[Private], np.ndarray]
) -> Personal:
    """A client's own posterior, computed and kept at its own site.

    Parameters
    ----------
    kind
        From the last message, :func:`kind_of`.
    at, theta, of
        See :meth:`LocalsFrom.draws_at_site`.

    Raises
    ------
    ValueError
        No class has this kind.
    """
    if kind == GLOBALS:
        return Personal(theta, {"solver": "none: the client has no latents of its own"})
    if kind not in LocalsFrom.kinds:
        raise ValueError(f"The run's end tells of draws of the kind '{kind}'; known are {sorted(LocalsFrom.kinds)}.")
    return LocalsFrom.kinds[kind].draws_at_site(at, theta, of)


def kind_of(source: LocalsFrom, num_locals: int) -> str:
    """What a client with so many locals does by itself at the end, for :func:`at_site`."""
    alone = bool(source.refuses(Question.CLIENT_POSTERIOR))
    return GLOBALS if source.by_locals and (alone or not num_locals) else source.kind


def sampled(
    reply: Callable[[str, Any], Any],
    mean: Float[np.ndarray, "chain d"],
    shape: tuple[int, ...],
    given: Callable[[], Personal | None] | None = None,
) -> Personal:
    """Draws of one client's own posterior, by importance resampling or in another way where that can't be trusted.

    Parameters
    ----------
    reply
        See :class:`AtClient`.
    mean
        Of the globals.
    shape
        Number of chains, and of draws in each.
    given
        Draws the client's locals given draws of the globals. NUTS is run where this is ``None``, or gives ``None``, and
        for a client that has no locals.

    Warns
    -----
    UnreliableWarning
        The chains of NUTS have not mixed.
    """
    chains, num_draws = shape
    wanted = Wanted(mean, np.zeros((chains, -(-num_draws // 4) * 4)))
    found = reply("resampled", wanted)
    k_hat = float(np.max(found.k_hat))
    attrs = {"k_hat": k_hat, "solver": "importance"}
    if not k_hat <= K_HAT_LIMIT:
        if given is not None and found.draws.shape[-1] > mean.shape[-1]:
            drawn = given()
            if drawn is not None:
                return drawn._replace(attrs={"k_hat": k_hat, **drawn.attrs})
        found = reply("chained", wanted)
        attrs |= {"solver": "nuts", **_mixing(np.asarray(found.draws))}
    return Personal(np.asarray(found.draws)[:, :num_draws], attrs)


def _mixing(draws: Float[np.ndarray, "chain draw p"]) -> dict[str, float]:
    """The worst R-hat, and the smallest effective number of draws; a warning where they say that chains did not mix."""
    half = draws.shape[1] // 2  # of each chain, so that one alone can be judged as well
    r_hat, effective = worst_mixing(draws[:, : 2 * half].reshape(-1, half, draws.shape[-1]))
    enough = min(_ENOUGH, draws.shape[0] * draws.shape[1] // 4)
    if not (r_hat < _R_HAT and effective >= enough):
        warnings.warn(
            f"The client's own posterior is too far from Gaussian for importance weights, and NUTS has not mixed: "
            f"R-hat is {r_hat:.3g} (good below {_R_HAT}), with {effective:.0f} effective draws (at least {enough} are "
            "needed). Don't rely on these draws. Write the model in another parametrisation, nearer to Gaussian in "
            "unconstrained space; for a client of the fit, `correct=True` does without these chains.",
            UnreliableWarning,
            stacklevel=2,
        )
    return {"r_hat": r_hat, "effective_draws": effective}


def _given(at: AtClient, theta: np.ndarray) -> Personal:
    locals_ = np.asarray(at.reply("given", theta))
    return Personal(np.concatenate([theta, locals_], axis=-1), {"solver": "importance weights given the globals"})


def _recorded(at: AtClient, theta: np.ndarray) -> Personal:
    mine = np.swapaxes(at.recorded(theta.shape[1]), 0, 1)
    return Personal(np.concatenate([theta, mine], axis=-1), {"solver": at.update})


def _coupled(at: AtClient, theta: np.ndarray) -> Personal:
    found = at.reply("given_coupled", theta)
    return Personal(np.asarray(found.draws), {"solver": "server", "k_hat": float(np.max(found.k_hat))})


def _own(at: AtClient, of: Callable[[Private], np.ndarray]) -> Personal:
    return Personal(np.asarray(of(at.private())), {"solver": "own steps"})


def _clients_first(gaussian: Gaussian | None) -> Any:
    return jax.tree.map(lambda leaf: np.swapaxes(np.asarray(leaf), 0, 1), gaussian)
