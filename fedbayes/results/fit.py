"""``FederatedFit``: what a fit returns."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedbayes.algorithm import Method, Phase
from fedbayes.answer import GaussianAnswer, shortened
from fedbayes.gaussian import Gaussian
from fedbayes.inference.fald.answer import SampledAnswer
from fedbayes.inference.local import sampling
from fedbayes.inference.local.importance import K_HAT_LIMIT
from fedbayes.inference.local.tilted import Tilted
from fedbayes.inference.merging.answer import MergedAnswer
from fedbayes.low_rank import LowRankGaussian
from fedbayes.problem.clients import Client
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.results import arviz as output
from fedbayes.rounds.checkpoint import Checkpoint, fingerprint
from fedbayes.rounds.executors import Executor, Round
from fedbayes.rounds.loop import Progressing

if TYPE_CHECKING:
    import xarray as xr


class Presentation(NamedTuple):
    """How the posterior is shown.

    Attributes
    ----------
    num_draws
        Posterior draws per chain.
    coords, dims
        ArviZ's.
    local
        Names of local latents that the model itself does not mark.
    """

    num_draws: int
    coords: dict[str, Any]
    dims: dict[str, Any]
    local: tuple[str, ...]


class FederatedFit:
    """A fitted federation: the global posterior, the clients' own, and how the rounds went.

    Attributes
    ----------
    posterior
        The Gaussian over the unconstrained globals, one per replicate (leading axis); of a sampler, the Gaussians with
        the chains' moments; of FedPA with very many globals a :class:`~fedbayes.low_rank.LowRankGaussian`.
    num_draws
        Posterior draws per chain.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        phase: Phase,
        current: Progressing,
        executor: Executor,
        key: Array,
        shown: Presentation,
    ) -> None:
        self._problem, self._method, self._current, self._executor = problem, method, current, executor
        self._key, self._shown, self._phase = key, shown, phase
        with jax.enable_x64(True):
            self._answer = _answer(problem, phase, current)
            self.posterior: Gaussian | LowRankGaussian = self._answer.gaussian

    @cached_property
    def converged(self) -> bool:
        """Whether the tolerance was met with every client heard; of a sampler, whether R-hat is below 1.01."""
        return self._answer.converged

    @property
    def num_draws(self) -> int:
        """Posterior draws per chain."""
        return self._theta.shape[1]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients, in the order given."""
        return self._problem.names

    @property
    def global_labels(self) -> list[str]:
        """Names of the unconstrained globals, ``beta[0]`` style: the coordinates of ``moments()`` and ``rounds``."""
        return self._problem.globals.labels()

    @property
    def method(self) -> Method:
        """The configured method, with its tolerance."""
        return self._method

    @cached_property
    def rounds(self) -> "xr.Dataset":
        """Diagnostics per round, client and replicate; of a sampler, means over blocks of rounds.

        A sampler's attributes say what it has chosen and what theory predicts of the bias.
        """
        size, report = self._problem.globals.size, {}
        if self._phase.sampling is not None:
            report = self._phase.sampling.report(self._current.state)
            num_draws = sum(len(block.theta) for block in self._current.draws)
            report["rounds_per_draw"] = self._current.rounds_in_phase / num_draws
        return output.rounds_dataset(self._current.history, self._problem.names, size).assign_attrs(report)

    @property
    def log_evidence(self) -> np.ndarray:
        """Estimate of the log marginal likelihood per replicate; NaN under an improper prior, and of a sampler."""
        if isinstance(self._answer, SampledAnswer) or not isinstance(self.posterior, Gaussian):
            return np.full(self.num_chains, np.nan)
        with jax.enable_x64(True):
            return np.asarray(jax.vmap(Gaussian.log_integral)(self.posterior))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean ``(replicate, d)`` and covariance ``(replicate, d, d)`` of the unconstrained globals."""
        with jax.enable_x64(True):
            mean, covariance = jax.vmap(lambda gaussian: gaussian.moments())(self.posterior)
            return np.asarray(mean), np.asarray(covariance)

    @property
    def monte_carlo_error(self) -> float:
        """Monte Carlo error of the means, in posterior sds (root mean square over the globals).

        The replicates' spread (NaN with one replicate), or of a sampler ``1 / sqrt(effective sample size)``.
        """
        return self._answer.monte_carlo_error

    @cached_property
    def _theta(self) -> Array:
        with jax.enable_x64(True):
            return self._answer.draws(jax.random.fold_in(self._key, 1_000_001), self._shown.num_draws)

    @property
    def num_chains(self) -> int:
        """Replicates of the fit or Markov chains: the chains of the posterior."""
        return jax.tree.leaves(self.posterior)[0].shape[0]

    @cached_property
    def idata(self) -> Any:
        """The global posterior for ArviZ, with ``sample_stats`` and one log-likelihood per client and draw.

        With a Gaussian answer draws are independent and chains are replicates of the whole fit: R-hat compares
        replicates, and speaks about Monte Carlo error, not about the error of the Gaussian approximation. A sampler's
        chains are Markov chains.
        """
        with jax.enable_x64(True):
            problem, theta = self._problem, self._theta
            bucket = problem.buckets[0]
            program, template = bucket.clients.program, problem.arrays[int(bucket.members[0])]
            joint = jnp.concatenate([theta, jnp.zeros((*theta.shape[:2], program.locals.size))], axis=-1)
            values = output.constrained(program, template, joint)
            values = {name: values[name] for name in output.global_sites(problem)}
            log_likelihood = self._log_likelihood(theta)
            groups = {
                "posterior": values,
                "sample_stats": self._answer.sample_stats(theta, log_likelihood, problem),
                "log_likelihood": {"client": log_likelihood},
            }
        return self._to_arviz(groups, template, {"client": ["client_name"]}, {"client_name": list(problem.names)})

    def _log_likelihood(self, theta: Array) -> np.ndarray:
        """One more exchange: the draws go out, each client answers with its log-likelihood at them."""

        def reply(shared: Array, cavity: Gaussian, state: Any, client: Client, key: Array) -> tuple[Array, Any, dict]:
            values = jax.vmap(sampling.log_likelihoods, (None, 0, 0, None))(client, cavity, shared, key)
            return values, state, {}

        names = self._problem.names
        cavities = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), self._answer.others(len(names)))
        work = Round(theta, cavities, self._key, np.arange(len(names)), ["log_likelihood"] * len(names))
        replies, _ = self._executor.run({"log_likelihood": reply}, self._problem, self._current.clients, work)
        return np.moveaxis(np.asarray(replies.messages), 0, -1)

    def client_posterior(self, name: str) -> Any:
        """One client's posterior: its local latents and the globals, given everybody's data.

        Draws of the tilted density with the client's cavity (equation 3.10 of Yue 2023; with the global posterior in
        its place the client's data would count twice). Of a sampler, the client's own chains beside the globals'.

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
            The posterior has low rank.
        """
        self._dense("client_posterior")
        with jax.enable_x64(True):
            client = self._problem.client(name)
            place = self.client_names.index(name)
            if isinstance(self._answer, SampledAnswer):
                return self._personal(client, self._problem, name, self._answer.joint(place), {"solver": "langevin"})
            cavity = jax.tree.map(lambda leaf: leaf[:, place], self._answer.others(len(self.client_names)))
            return self._personal(client, self._problem, name, *self._personal_draws(client, cavity))

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
        ValueError
            The posterior has low rank.
        """
        posterior = self._dense("adapt")
        name = "new client"
        dtype = self._problem.buckets[0].clients.program.dtype
        with jax.enable_x64(True):
            model = self._problem.buckets[0].clients.program.model
            problem = make_problem(model, {name: new_client}, local=self._shown.local, dtype=dtype)
            client = problem.client(name)
            draws, attrs = self._personal_draws(client, posterior)
            return self._personal(client, problem, name, draws, attrs | {"draws": f"by {attrs['solver']}"})

    def _dense(self, what: str) -> Gaussian:
        if isinstance(self.posterior, LowRankGaussian):
            raise ValueError(
                f"`fit.{what}` needs the precision of all {self._problem.globals.size} globals as a matrix, but this "
                "posterior has low rank. Without local latents a client's posterior is `fit.idata`."
            )
        return self.posterior

    def _personal(
        self, client: Client, problem: Problem, name: str, draws: Array, attrs: Mapping[str, float | str]
    ) -> Any:
        arrays = problem.arrays[problem.names.index(name)]
        values = output.constrained(client.program, arrays, draws)
        return self._to_arviz({"posterior": values}, arrays, {}, {}, {"client": name, **attrs})

    def _personal_draws(self, client: Client, cavity: Gaussian) -> tuple[Array, dict[str, float | str]]:
        num = -(-self.num_draws // 4) * 4
        start = jnp.concatenate([self.moments()[0][0], jnp.zeros(client.num_locals)])
        keys = jax.random.split(jax.random.fold_in(client_seed(self._key), client.index), self.num_chains)
        draws, k_hats = _resample(client, cavity, start, keys, num)
        k_hat = float(jnp.max(k_hats))
        if k_hat <= K_HAT_LIMIT:
            return draws[:, : self.num_draws], {"k_hat": k_hat, "solver": "importance"}
        chains = _chain(client, cavity, start, keys, num)[:, : self.num_draws]
        return chains, {"k_hat": k_hat, "solver": "nuts"}

    def predict(self, client: str | None = None, *, key: Array | None = None, **arguments: Any) -> Any:
        """Posterior predictive draws of the observed sites.

        Parameters
        ----------
        client
            Predict for this client, with its local latents; ``None``: for a new client, whose locals come from the
            model.
        key
            Defaults to one derived from the fit's.
        **arguments
            The model's keyword arguments with the outcome left out, such as ``x=new_rows``.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior_predictive``.
        """
        from numpyro.infer import Predictive

        program = self._problem.buckets[0].clients.program
        source = self.idata if client is None else self.client_posterior(client)
        latents = {*program.globals.names, *program.locals.names}
        draws = {
            str(name): np.asarray(source.posterior[name]) for name in source.posterior.data_vars if name in latents
        }
        key = jax.random.fold_in(self._key, 1_000_003) if key is None else key
        with jax.enable_x64(True):
            predictive = Predictive(program.model, draws, batch_ndims=2)(key, **{**program.static, **arguments})
        predicted = {name: np.asarray(value) for name, value in predictive.items() if name not in draws}
        dims = {name: [f"{name}_dim_{i}" for i in range(value.ndim - 2)] for name, value in predicted.items()}
        return output.to_arviz(
            {"posterior_predictive": predicted}, self._shown.coords, dims | self._shown.dims, self._attrs()
        )

    def _to_arviz(
        self, groups: dict, client: Any, dims: dict, coords: dict, attrs: Mapping[str, Any] | None = None
    ) -> Any:
        program = self._problem.buckets[0].clients.program
        with jax.enable_x64(True):
            known = output.site_dims(program, client, self._shown.dims)
        defaults = output.plate_coords(known, groups["posterior"])
        return output.to_arviz(
            groups, defaults | self._shown.coords | coords, known | dims, self._attrs() | dict(attrs or {})
        )

    def _attrs(self) -> dict[str, Any]:
        import fedbayes

        return {
            "inference_library": "fedbayes",
            "inference_library_version": fedbayes.__version__,
            "method": repr(self._method),
            "converged": int(self.converged),
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
        options = asdict(self._method)  # type: ignore[call-overload]  # methods are dataclasses of plain values
        if functions := [name for name, value in options.items() if any(map(callable, jax.tree.leaves(value)))]:
            raise ValueError(
                f"`{functions[0]}` of the method is or holds a function, which can't be saved. Write the parts that "
                "you need: `fit.idata.to_netcdf(path)`, `fit.rounds.to_netcdf(path)`."
            )
        options = jax.tree.map(_plain, options)
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.idata.to_netcdf(str(folder / "posterior.nc"))
        self.rounds.to_netcdf(folder / "rounds.nc", engine="h5netcdf")
        meta = {
            "method": type(self._method).__name__,
            "options": options,
            "key": np.asarray(jax.random.key_data(self._key)).tolist(),
            "key_impl": jax.random.key_impl(self._key),
            "dtype": str(self._problem.buckets[0].clients.program.dtype),
            "shown": self._shown._asdict(),
        }
        (folder / "fit.json").write_text(json.dumps(meta, indent=1, default=list))
        Checkpoint(folder / "state.npz", saved_fingerprint(self._problem)).write(self._current)

    def trouble(self) -> str:
        """What kept the fit from converging, in words, with the clients it concerns; empty if nothing did."""
        return "" if self.converged else self._answer.trouble(self.rounds)

    def __repr__(self) -> str:
        phases = self.rounds["rounds"].to_series().groupby(self.rounds["phase"].values, sort=False).sum()
        rounds = " + ".join(f"{count:,} {name}" for name, count in phases.items())
        state = "converged" if self.converged else "NOT CONVERGED"
        sites = ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in self._problem.globals.shapes)
        lines = [
            f"FederatedFit by {type(self._method).__name__}: {state} after {rounds} rounds",
            f"  clients   {len(self.client_names)}: {shortened(self.client_names)}",
            f"  globals   {self._problem.globals.size} unconstrained: {sites}",
            *self._answer.headline(self.rounds),
            "  look at   fit.idata, fit.rounds, fit.client_posterior(name), fit.adapt(data), fit.predict(...)",
        ]
        return "\n".join(lines)


def _answer(problem: Problem, phase: Phase, current: Progressing) -> GaussianAnswer | SampledAnswer:
    """The answer of a fit's last phase."""
    algorithm = phase.algorithm
    if phase.sampling is not None:
        return SampledAnswer(problem, current, phase.sampling)
    if algorithm.sample is not None:
        return MergedAnswer(algorithm, problem, current)
    if algorithm.posterior is None:
        raise TypeError(f"The algorithm '{algorithm.name}' has neither a `posterior` nor draws.")
    return GaussianAnswer(algorithm.posterior(current.state), current)


@partial(jax.jit, static_argnames="num")
def _resample(client: Client, cavity: Gaussian, start: Array, keys: Array, num: int) -> tuple[Array, Array]:
    """One compilation per shape of client: the data are arguments."""
    return jax.vmap(lambda cavity, key: sampling.resampled(Tilted(client, cavity), start, key, num))(cavity, keys)


@partial(jax.jit, static_argnames="num")
def _chain(client: Client, cavity: Gaussian, start: Array, keys: Array, num: int) -> Array:
    return jax.vmap(lambda cavity, key: sampling.chained(Tilted(client, cavity), start, key, num))(cavity, keys)


def _plain(value: Any) -> Any:
    """An option as JSON knows it: numbers and arrays as numbers and lists."""
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def client_seed(key: Array) -> Array:
    """Key of the personal posteriors' draws."""
    return jax.random.fold_in(key, 1_000_002)


def saved_fingerprint(problem: Problem) -> str:
    """What a saved fit must be loaded with: the same clients and globals."""
    return fingerprint(problem.description(), "saved", np.zeros(0))
