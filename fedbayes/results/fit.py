"""``FederatedFit``: what a fit returns."""

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax import Array

from fedbayes.algorithm import Method
from fedbayes.answer import Answer, Verdict, shortened
from fedbayes.client_locals import Personal, Question, check, no_matrix
from fedbayes.computing import computing
from fedbayes.keys import Purpose, fingerprint, key_for
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import gaussian_moments
from fedbayes.numerics.low_rank import LowRankGaussian
from fedbayes.problem.problem import Problem
from fedbayes.problem.program import Program
from fedbayes.results import arviz
from fedbayes.results.conditional import Rows, rows_of, rows_of_newcomer
from fedbayes.results.leaving_out import LeavingOut
from fedbayes.results.personal import Clients, like_first, newcomer
from fedbayes.results.predictive import check_call, class_probabilities, log_densities, predictive_draws, read_arguments
from fedbayes.results.presented import presented, presented_client
from fedbayes.results.questions import Questions
from fedbayes.results.replicates import Replicates, observed_outcomes, replicated, row_labels, side_by_side, stacked
from fedbayes.results.rounds import Communication, communication, rounds_dataset, unheard
from fedbayes.results.saved import Presentation, Saved, SavedPosterior, about, check_savable, write_fit
from fedbayes.results.selection import Rule, selection_of
from fedbayes.rounds.executors import Executor
from fedbayes.rounds.programs import Programs
from fedbayes.rounds.state import RunState

if TYPE_CHECKING:
    import xarray as xr


class FederatedFit(LeavingOut, Questions):
    """A fitted federation: the global posterior, the clients' own, and how the rounds went.

    Attributes
    ----------
    posterior
        The Gaussian over the unconstrained globals, one per replicate (leading axis), or the Gaussians with the chains'
        moments; for FedPA with very many globals a :class:`~fedbayes.numerics.low_rank.LowRankGaussian`.
    roster
        What the server knows of the clients: names, rows, globals, prior.
    problem
        The model and the clients as they were read: for a process that may hold the clients' data.
    num_draws
        Posterior draws per chain.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        run: RunState,
        programs: Programs,
        executor: Executor,
        key: Array,
        shown: Presentation,
        saved: SavedPosterior | None = None,
    ) -> None:
        self.problem, self._method, self._run, self._programs = problem, method, run, programs
        self._executor, self._key, self._shown, self._saved = executor, key, shown, saved
        self.roster = problem.roster
        with computing():
            self._answer: Answer = method.answer(self.roster, run)
            self.posterior: Gaussian | LowRankGaussian | None = self._answer.posterior
            self._clients = Clients(problem, self._answer, run, executor, key)

    @cached_property
    def _verdict(self) -> Verdict:
        with computing():
            return self._answer.verdict(self.rounds)

    @property
    def converged(self) -> bool:
        """Whether the fit has converged with every client heard; for Markov chains, whether R-hat is below 1.01.

        A method may also stop at its Monte Carlo noise, above the tolerance; ``repr(fit)`` then says so.
        """
        return self._verdict.converged

    @property
    def num_draws(self) -> int:
        """Posterior draws per chain."""
        return self._theta.shape[1]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients, in the order given."""
        return self.roster.names

    @property
    def global_labels(self) -> list[str]:
        """Names of the unconstrained globals, ``beta[0]`` style: the coordinates of ``moments()`` and ``rounds``."""
        return self.roster.globals.labels()

    @property
    def method(self) -> Method:
        """The configured method, with its tolerance."""
        return self._method

    @cached_property
    def rounds(self) -> "xr.Dataset":
        """Diagnostics per round, client and replicate; for Markov chains, means over blocks of rounds.

        The attributes hold what the rounds have cost (``exchanges``, ``bytes_down``, ``bytes_up``, see
        :attr:`communication`), and what the method has chosen and theory predicts of it.
        """
        dataset = rounds_dataset(self._run.history, self.roster, self._method.diagnostics)
        return dataset.assign_attrs({**communication(self._run.history)._asdict(), **self._answer.report()})

    @property
    def communication(self) -> Communication:
        """Exchanges and bytes per client of all rounds and checks, and of all that the fit was asked since."""
        parts = (communication(self._run.history), self._cost(), self._cost_of_questions())
        return Communication(*np.sum([part for part in parts if part is not None], axis=0).tolist())

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean ``(replicate, d)`` and covariance ``(replicate, d, d)`` of the unconstrained globals."""
        if isinstance(self.posterior, LowRankGaussian):
            with computing():
                mean, covariance = jax.vmap(LowRankGaussian.moments)(self.posterior)
            return np.asarray(mean), np.asarray(covariance)
        return gaussian_moments(self._dense("moments"))

    @property
    def monte_carlo_error(self) -> float:
        """Monte Carlo error of the means, in posterior sds (root mean square over the globals).

        The replicates' spread (NaN with one replicate); for Markov chains ``1 / sqrt(effective sample size)``.
        """
        return self._verdict.error

    @property
    def num_chains(self) -> int:
        """Replicates of the fit or Markov chains: the chains of the posterior."""
        return self._theta.shape[0]

    def client_posterior(self, name: str) -> Any:
        """One client's posterior: its local latents and the globals, given everybody's data.

        Draws of the tilted density with the client's cavity (equation 3.10 of Yue 2023; with the global posterior in
        its place the client's data would count twice). With Markov chains: the draws of the globals, and the client's
        own draws of its locals. Where clients keep points of their own: the client's point.

        Parameters
        ----------
        name
            The client.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior``.

        Raises
        ------
        KeyError
            Unknown client.
        ValueError
            The posterior has low rank, or the fit is an ensemble of points of a model with local latents.
        """
        check(self._answer.locals_from, Question.CLIENT_POSTERIOR)
        place = self.problem.place(name)
        with computing():
            mine = self._clients.posterior(place, self._theta, self._shown.num_draws, self.correction)
        return self._personal(self.problem, place, mine)

    def client_posteriors(self) -> Any:
        """All clients' local latents in one ArviZ object, for ``az.plot_forest`` and its like.

        The dimension ``client_name`` comes before those of the site. Where clients have different numbers of groups,
        the entries that a client does not have are NaN.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior``: what differs between clients, see :meth:`client_posterior`.

        Raises
        ------
        ValueError
            The model has no local latents, or as for :meth:`client_posterior`.
        """
        if not self.roster.num_locals.any() and not self.problem.integrated:
            raise ValueError("The model has no local latents: every client's posterior is the global one, `fit.idata`.")
        groups = {name: self.client_posterior(name).posterior for name in self.client_names}
        values, dims, coords = stacked(groups, {str(name) for name in self.idata.posterior.data_vars})
        return arviz.to_arviz({"posterior": values}, coords, dims, self._attrs())

    def select(
        self,
        coefficients: str | None = None,
        *,
        level: float = 0.9,
        interval: str = "equal-tailed",
        rope: float = 0.0,
        fdr: float | None = None,
        population: str | None = None,
        vote: float | None = None,
    ) -> "xr.Dataset":
        """Which coefficients are included: by each client, for the population, and by vote.

        A coefficient is included where its credible interval excludes zero (Yue 2023, section 3.4.3), or lies wholly
        outside ``[-rope, rope]``. With ``fdr``: as many as keep the expected share of false inclusions below it, those
        of the largest probability ``outside`` first (Mueller, Parmigiani, Robert and Rousseau 2004).

        What multiplicity does is said by the expected number of false inclusions. Under these priors no coefficient is
        exactly zero, so that false means practically zero, inside the rope, with probability ``1 - outside``. Without a
        rope it is the number of wrong signs, with probability ``1 - direction`` each, which says nothing of irrelevant
        coefficients: of these an interval of 90 percent includes up to one in ten.

        A client's selection is computed from its own posterior, where its coefficients are; for it no client sends
        anything beyond the messages of the fit. The population's is computed from the globals. ``vote`` alone needs
        more: one bit from each client for each coefficient, whether it is included there.

        Parameters
        ----------
        coefficients
            The variable of :meth:`client_posterior` that holds them; ``None``: the only array of the client's own, or
            the only one that was integrated out, such as ``theta`` of :mod:`fedbayes.models.penalised`.
        level
            Probability of the credible interval.
        interval
            ``"equal-tailed"``, or ``"hdi"``: the shortest interval that has this share of the draws.
        rope
            Largest absolute value that is practically zero (region of practical equivalence), in the coefficients'
            units.
        fdr
            Expected share of false inclusions, for each client by itself; needs a ``rope``.
        population
            A global that holds the coefficients' mean over clients, such as ``mu``.
        vote
            Share of the clients that must include a coefficient.

        Returns
        -------
        xarray.Dataset
            Over ``client_name`` and the coefficients, with their names from ``coords``: ``mean``, ``sd``, ``lower``,
            ``upper``, ``direction`` (the probability of the likelier sign), ``outside`` (of lying outside the rope),
            ``included``; over clients ``expected_false`` or, without a rope, ``expected_wrong_signs``. With
            ``population`` the same called ``population_...``; with ``vote`` also ``votes`` and ``voted``. Its ``attrs``
            hold the rule in words, and remarks.

        Raises
        ------
        ValueError
            A parameter is out of its range; no variable, or several, may be meant; the fit is a point.

        Warns
        -----
        fedbayes.errors.NotConvergedWarning
            The fit has not converged.
        """
        rule = Rule(level=level, interval=interval, rope=rope, fdr=fdr)
        return selection_of(self, coefficients, rule, population, vote)

    def check(self, num_draws: int | None = None) -> Any:
        """Posterior predictive replicates of the clients' own outcomes, added to :attr:`idata` for ``az.plot_ppc``.

        Each client's outcomes are drawn anew with its own posterior, locals included, such as its function of a
        Gaussian process. The outcomes themselves go into the group ``observed_data``, so this is for a process that may
        hold the clients' data.

        Parameters
        ----------
        num_draws
            Replicates of each chain.

        Returns
        -------
        InferenceData or DataTree
            :attr:`idata`, with the groups ``posterior_predictive`` and ``observed_data``: the clients' values one after
            the other, labelled ``client[i]``.

        Raises
        ------
        ValueError
            ``num_draws`` is no number from 1 to that of the draws of a chain.
        """
        num_draws = min(100, self.num_draws) if num_draws is None else num_draws
        if not isinstance(num_draws, int) or not 1 <= num_draws <= self.num_draws:
            raise ValueError(f"`num_draws` is {num_draws}; write a number from 1 to {self.num_draws}, a chain's draws.")
        found = list(self._replicates(num_draws))
        seen, drawn = {each.name: each.seen for each in found}, {each.name: each.drawn for each in found}
        labels = {f"{site}_row": rows for site, rows in row_labels(seen).items()}
        groups = {"posterior_predictive": side_by_side(drawn, 2), "observed_data": side_by_side(seen, 0)}
        dims = {site: [f"{site}_row"] for site in groups["observed_data"]}
        arviz.extend(self.idata, arviz.to_arviz(groups, labels, dims, self._attrs()))
        return self.idata

    def _replicates(self, num_draws: int) -> Iterator[Replicates]:
        """Each client's outcomes, and replicates of them with draws of its own posterior."""
        for place, name in enumerate(self.client_names):
            program, data = self.problem.client(name).program, self.problem.held(name).arrays
            key = key_for(self._key, Purpose.REPLICATES, place)
            posterior = self._posterior_of(name, program).posterior
            with computing():
                seen = observed_outcomes(program, data)
                found = replicated(program, data, posterior, key, num_draws, self._own_rows(name, program))
            yield Replicates(name, seen, {site: np.asarray(found[site]) for site in seen})

    def adapt(self, new_client: Mapping[str, Any]) -> Any:
        """Posterior of a client that joins after the fit: the global posterior, as a Gaussian, is its prior.

        Parameters
        ----------
        new_client
            The model's keyword arguments.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior``: its local latents, and the globals updated by its data.

        Raises
        ------
        ClientDataError
            Its data are no data of the model, or have other arguments or columns than the fit's clients.
        ModelError
            The program has other globals for it than for them.
        ValueError
            The posterior has low rank, or the method couples its own clients and knows nothing of others.
        """
        self._needs_no_client("adapt")
        posterior, shown = self._dense("adapt"), self._shown
        with computing():
            problem, mine = newcomer(
                self.problem,
                new_client,
                posterior,
                self._programs,
                self._key,
                local=shown.local,
                num_draws=self.num_draws,
            )
        return self._personal(problem, 0, mine)

    def _needs_no_client(self, what: str) -> None:
        """Whether a client that was no part of the fit can be spoken of."""
        if reason := self._answer.locals_from.refuses(Question.NEW_CLIENT):
            raise ValueError(f"`fit.{what}` can't be answered: {reason} They are {shortened(self.client_names)}.")

    def _dense(self, what: str) -> Gaussian:
        if not isinstance(self.posterior, Gaussian):
            raise ValueError(no_matrix(what))
        return self.posterior

    def _personal(self, problem: Problem, place: int, mine: Personal) -> Any:
        return presented_client(problem, problem.names[place], mine, self._shown, self._key, self._attrs())

    def predict(
        self, client: str | Mapping[str, Any] | None = None, *, key: Array | None = None, **arguments: Any
    ) -> Any:
        """Posterior predictive draws of the observed sites.

        Where the rows of an outcome depend on each other, as by a Gaussian process, new rows are predicted given the
        client's own, at the client.

        Parameters
        ----------
        client
            Predict for this client, with its local latents; the arguments of a client that was no part of the fit, as
            for :meth:`adapt`; ``None``: for a new client without data, whose locals come from the model.
        key
            Defaults to one derived from the fit's and the client, so that the noise of two clients is not the same.
        **arguments
            The model's keyword arguments, such as ``x=new_rows``, in all forms that the fit takes; sizes, flags and
            names that are left out are those of the client, or of the first one. An outcome among them is not
            conditioned on: ``fit.predict(name, **clients[name])`` draws replicates of the client's own outcomes, for a
            posterior predictive check.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior_predictive``. Of dependent rows it also has ``y_mean`` and ``y_sd``, by the name of the
            outcome: mean and standard deviation of each, its noise included, at each draw of the latents.

        Raises
        ------
        KeyError
            Unknown client.
        TypeError
            The model does not take these arguments, or needs more.
        ClientDataError
            An argument holds no numbers, missing values, or other columns than in the fit; outcomes may be missing.
        ValueError
            A client that was no part of the fit would need local latents, which this posterior can't give.
        """
        like = self.client_names[0] if client is None or isinstance(client, Mapping) else client
        program, arguments, draws = self._asked(client, like, arguments)
        key = self._key_of_predictions(client) if key is None else key
        with computing():
            predictive = predictive_draws(program, draws, key, arguments, self._own_rows(client, program))
        predicted = {name: np.asarray(value) for name, value in predictive.items() if name not in draws}
        dims = {name: [f"{name}_dim_{i}" for i in range(value.ndim - 2)] for name, value in predicted.items()}
        dims |= self._shown.dims
        for site in program.processes:
            dims |= {name: dims[site] for name in (f"{site}_mean", f"{site}_sd") if name in predicted}
        return arviz.to_arviz({"posterior_predictive": predicted}, self._shown.coords, dims, self._attrs())

    def predict_probabilities(self, client: str | None = None, **arguments: Any) -> dict[str, np.ndarray]:
        """Probability of each value that an outcome can take, averaged over the draws: the prediction of a classifier.

        ``p(y = v) = mean_s p(y = v | theta_s, z_s)``; for the modes of an ensemble that is their average prediction.

        Parameters
        ----------
        client, **arguments
            As in :meth:`predict`.

        Returns
        -------
        dict
            By observed site; the last axis runs over the values, in the order of the distribution's support, such as
            0 and 1.

        Raises
        ------
        KeyError, TypeError, ClientDataError
            As in :meth:`predict`.
        ValueError
            No outcome has finitely many values, or their probabilities depend on what else is drawn.
        """
        like = self.client_names[0] if client is None else client
        program, arguments, draws = self._asked(client, like, arguments)
        with computing():
            return class_probabilities(program, draws, arguments, self.problem.outcomes(like))

    def log_predictive_density(self, client: str | Mapping[str, Any], **arguments: Any) -> dict[str, np.ndarray]:
        """Log density of a client's new outcomes, each by itself, under the posterior given everybody's data.

        ``log mean_s p(y_i | theta_s, z_s)`` over the draws, by NumPyro's ``log_likelihood``. Sums of it over
        held-out rows compare fits (:func:`fedbayes.federation_gain`).

        Parameters
        ----------
        client
            Whose rows they are; its local latents are those of the fit. Or the arguments of a client that was no part
            of the fit, as in :meth:`predict`.
        **arguments
            The model's keyword arguments with the outcomes, in all forms that the fit takes.

        Returns
        -------
        dict
            By observed site, in the shape of its outcomes.

        Raises
        ------
        KeyError, TypeError
            As in :meth:`predict`.
        ClientDataError
            As there, or outcomes are missing.
        """
        like = self.client_names[0] if isinstance(client, Mapping) else client
        program, arguments, draws = self._asked(client, like, arguments)
        with computing():
            return log_densities(program, draws, arguments, self._own_rows(client, program))

    def arguments_of(self, client: str) -> dict[str, Any]:
        """What :func:`fedbayes.fit_federated` was called with, for one client alone; without the method."""
        program, mine = self.problem.client(client).program, self.problem.held(client)
        return {
            "model": program.model,
            "clients": {client: {**program.static, **mine.arrays}},
            "key": self._key,
            "local": self._shown.local,
            "num_draws": self._shown.num_draws,
            "dtype": program.dtype,
        }

    def _asked(
        self, client: str | Mapping[str, Any] | None, like: str, arguments: Mapping[str, Any]
    ) -> tuple[Program, dict, dict]:
        """The program, its arguments read as those of the client ``like``, and draws of the latents of ``client``."""
        program, read = self.problem.client(like).program, read_arguments(self.problem, like, arguments)
        check_call(program.model, read)
        return program, read, self._latents(client, program)

    def _own_rows(self, client: str | Mapping[str, Any] | None, program: Program) -> Rows | None:
        """The rows on which a client's new ones are conditioned; ``None`` where rows do not depend on each other."""
        if client is None or not program.processes:
            return None
        if isinstance(client, str):
            return rows_of(self.problem, client)
        return rows_of_newcomer(program, like_first(self.problem, client))

    def _key_of_predictions(self, client: str | Mapping[str, Any] | None) -> Array:
        """A key of its own for each client, for a new one, and for each data set of one that was no part of the fit."""
        if isinstance(client, Mapping):
            data = like_first(self.problem, client).arrays
            return key_for(self._key, Purpose.PREDICTIONS, self.roster.num_clients + 1, fingerprint(data))
        place = self.roster.num_clients if client is None else self.problem.place(client)
        return key_for(self._key, Purpose.PREDICTIONS, place)

    def _latents(self, client: str | Mapping[str, Any] | None, program: Program) -> dict[str, np.ndarray]:
        """Draws of the globals, or of a client's globals and locals, constrained."""
        source = self._posterior_of(client, program)
        named = {arviz.shown(name): name for name in (*program.globals.names, *program.locals.names)}
        known = source.posterior.data_vars
        return {named[str(name)]: np.asarray(known[name]) for name in known if name in named}

    def _posterior_of(self, client: str | Mapping[str, Any] | None, program: Program) -> Any:
        """The client's own posterior, or the global posterior for a new client or a client without locals."""
        if client is None:
            self._needs_no_client("predict(client=None)")
        shared = not self._answer.locals_from.own_posterior(program.locals.size)
        if isinstance(client, Mapping):
            return self.idata if not program.locals.size and self.posterior is None else self.adapt(client)
        return self.idata if client is None or shared else self.client_posterior(client)

    def _to_arviz(
        self,
        groups: dict,
        program: Program,
        data: Mapping[str, Any],
        dims: dict,
        coords: dict,
        attrs: Mapping[str, Any] | None = None,
    ) -> Any:
        return presented(groups, program, data, self._shown, self._attrs() | dict(attrs or {}), dims, coords)

    def _attrs(self) -> dict[str, Any]:
        return {
            "inference_library": "fedbayes",
            "inference_library_version": version("fedbayes"),
            "method": repr(self._method),
            "converged": int(self.converged),
            "remarks": "; ".join(self._verdict.remarks),
            **self._answer.attrs(),
        }

    def save(self, path: str | os.PathLike) -> None:
        """Write the fit to a folder: ``posterior.nc``, ``rounds.nc``, and the rest for :func:`fedbayes.load_fit`.

        The clients' data and the model are not in it.

        Raises
        ------
        ValueError
            An option of the method is or holds a function, which can't be written to a file.
        """
        options = check_savable(self._method)
        dtype = str(self.problem.programs[0].dtype)
        idata, name = self.idata, type(self._method).__name__
        clients = {**about(self.roster), **({"elsewhere": True} if self.problem.elsewhere else {})}
        saved = Saved(name, options, self._key, dtype, self._shown, clients, self._cost(), self._checked)
        write_fit(Path(path), idata, self.rounds, saved, self.problem.description(), self._run, self._executor)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A fit can't be pickled or copied: it holds compiled programs, the model and the clients' data. Write "
            "`fit.save(path)`, and elsewhere `fedbayes.load_fit(path, model, clients)`; `fit.idata` can be pickled."
        )

    def trouble(self) -> str:
        """What is wrong with the fit, in words, and what to try; empty if nothing is.

        What kept the rounds from converging, with the clients it concerns, and why the answer can't be trusted.
        """
        absent = unheard(self.rounds) if not self.converged else ""
        return " ".join(filter(None, (self._verdict.trouble, absent, self._checked.trouble() if self._checked else "")))

    def __repr__(self) -> str:
        phases = self.rounds["rounds"].to_series().groupby(self.rounds["phase"].values, sort=False).sum()
        rounds = " + ".join(f"{count:,} {name}" for name, count in phases.items())
        state = ", ".join(["converged", *self._verdict.remarks]) if self.converged else "NOT CONVERGED"
        globals_ = self.roster.globals
        sites = ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in globals_.shapes)
        checked = self._checked
        asked = ", fit.idata included" if self._cost() else "; fit.idata takes one more"
        lines = [
            f"FederatedFit by {type(self._method).__name__}: {state} after {rounds} rounds",
            f"  clients   {len(self.client_names)}: {shortened(self.client_names)}",
            f"  globals   {globals_.size} unconstrained: {sites}",
            *self._verdict.headline,
            *(checked.lines() if checked else []),
            *(self._disagreement_lines() if not checked or checked.gaussian_enough else []),
            f"  network   {self.communication}{asked}",
            f"  look at   {', '.join(self._worth_a_look())}",
        ]
        return "\n".join(lines)

    def _worth_a_look(self) -> list[str]:
        """What this kind of answer can be asked."""
        source = self._answer.locals_from
        own = [] if source.refuses(Question.CLIENT_POSTERIOR) else ["fit.client_posterior(name)"]
        dense = isinstance(self.posterior, Gaussian) and not source.refuses(Question.NEW_CLIENT)
        return ["fit.idata", "fit.rounds", *own, *(["fit.adapt(data)"] if dense else []), "fit.predict(...)"]
