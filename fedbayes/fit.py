"""``fit_federated``: a NumPyro program and clients in, a global posterior out."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedbayes.inference as inference
from fedbayes import output
from fedbayes.algorithm import Method, replicated
from fedbayes.checkpoint import Checkpoint, fingerprint
from fedbayes.clients import Client
from fedbayes.errors import NotConvergedWarning, ResultCode
from fedbayes.executors import EXECUTORS, Batched, Executor, Round
from fedbayes.federation import Participation, Progressing, run_phases
from fedbayes.gaussian import Gaussian
from fedbayes.inference.local import sampling
from fedbayes.inference.local.tilted import Tilted
from fedbayes.model import Model
from fedbayes.problem import Problem, make_problem
from fedbayes.progress import Bar, Silent

if TYPE_CHECKING:
    import xarray as xr

_K_HAT_LIMIT = 0.7


def fit_federated(
    model: Model,
    clients: Mapping[str, Mapping[str, Any]],
    *,
    method: str | Method = "ep",
    key: Array,
    num_rounds: int | None = None,
    participation: Participation = 1.0,
    local: Sequence[str] = (),
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    num_draws: int = 1000,
    executor: str | Executor = "batched",
    mesh: jax.sharding.Mesh | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
    dtype: Any = np.float64,
) -> "FederatedFit":
    """Fit one model to many clients' data without moving the data.

    Parameters
    ----------
    model
        ONE client's NumPyro program; its keyword arguments are the client's data. Latents are global unless marked local.
    clients
        From client name to the model's keyword arguments (NumPy, JAX, pandas); see :func:`clients_from_dataframe`. Only the
        number of rows may differ.
    method
        ``"ep"``, ``"laplace"``, or a configured method such as ``fedbayes.EP(num_draws=1024)``.
    key
        ``jax.random.key(seed)``: all randomness comes from it.
    num_rounds
        Most rounds of the method's main phase; it stops earlier at its tolerance. ``None``: the method's own limit.
    participation
        Fraction of the clients that take part in each round, drawn afresh, or a function ``(round, key) -> mask``.
    local
        Names of client-local latents, for a model that does not use ``fedbayes.local()``.
    coords, dims
        For ArviZ, as usual: ``coords={"coefficient": [...]}, dims={"beta": ["coefficient"]}``. Plates name their dimensions by
        themselves.
    num_draws
        Posterior draws per chain.
    executor
        ``"batched"``, ``"sequential"`` (one by one: names the client in whatever goes wrong), ``"loopback"`` (everything through
        bytes), or an :class:`~fedbayes.executors.Executor`.
    mesh
        A one-dimensional device mesh to share the clients out over.
    progress
        Show a bar.
    checkpoint
        File that holds the state after each round; an interrupted fit started again with the same arguments resumes from it.
    dtype
        Precision in which the model runs; natural parameters are float64 whatever it is.

    Returns
    -------
    FederatedFit
        ``fit.idata`` for ArviZ, ``fit.rounds`` for the diagnostics.

    Raises
    ------
    ClientDataError, ModelError
        Before any work starts: what is wrong, the value seen, what to write instead.
    FederatedError
        No client could be used.

    Warns
    -----
    NotConvergedWarning
        The rounds were spent before the tolerance was met, or clients could not be used; it names them.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, truth = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> fit.converged
    True
    """
    configured = _method(method)
    _check_arguments(key, num_rounds, participation, num_draws, mesh, executor)
    runner = _executor(executor, mesh)
    with jax.enable_x64(True):
        problem = make_problem(model, clients, local=local, dtype=dtype)
        phases = configured.phases(problem)
        final = len(phases) - 1
        phases = [
            phase._replace(algorithm=replicated(phase.algorithm, configured.num_replicates if i == final else 1))
            for i, phase in enumerate(phases)
        ]
        text = f"{len(problem.names)} clients {_shortened(problem.names)}, globals {dict(problem.globals.shapes)}"
        saved = None if checkpoint is None else Checkpoint(checkpoint, fingerprint(text, configured, jax.random.key_data(key)))
        bar = Bar() if progress else Silent()
        try:
            current = run_phases(
                phases,
                problem,
                runner,
                key,
                num_rounds=num_rounds,
                participation=participation,
                progress=bar,
                checkpoint=saved,
            )
        finally:
            bar.close()
        posterior = phases[-1].algorithm.posterior(current.state)
        fit = FederatedFit(
            problem, configured, posterior, current, runner, key, num_draws, dict(coords or {}), dict(dims or {}), tuple(local)
        )
    if not fit.converged:
        warnings.warn(fit.trouble(), NotConvergedWarning, stacklevel=2)
    return fit


class FederatedFit:
    """A fitted federation: the global posterior, the clients' own, and how the rounds went.

    Attributes
    ----------
    posterior
        The Gaussian over the unconstrained globals, one per replicate (leading axis).
    converged
        Whether the tolerance was met with every client heard.
    num_draws
        Posterior draws per chain.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        posterior: Gaussian,
        current: Progressing,
        executor: Executor,
        key: Array,
        num_draws: int,
        coords: dict,
        dims: dict,
        local: tuple[str, ...],
    ) -> None:
        self.posterior = posterior
        self.converged = current.converged
        self.num_draws = num_draws
        self._problem, self._method, self._current, self._executor = problem, method, current, executor
        self._key, self._coords, self._dims, self._local = key, coords, dims, local

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients, in the order given."""
        return self._problem.names

    @property
    def method(self) -> Method:
        """The configured method, with its tolerance."""
        return self._method

    @cached_property
    def rounds(self) -> "xr.Dataset":
        """Diagnostics per round, client and replicate."""
        return output.rounds_dataset(self._current.history, self._problem.names)

    @property
    def log_evidence(self) -> np.ndarray:
        """Estimate of the log marginal likelihood per replicate; NaN under an improper prior."""
        with jax.enable_x64(True):
            return np.asarray(jax.vmap(Gaussian.log_integral)(self.posterior))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean ``(replicate, d)`` and covariance ``(replicate, d, d)`` of the unconstrained globals."""
        with jax.enable_x64(True):
            mean, covariance = jax.vmap(Gaussian.moments)(self.posterior)
            return np.asarray(mean), np.asarray(covariance)

    @property
    def monte_carlo_error(self) -> float:
        """Spread of the replicates' means, in posterior sds (root mean square); NaN with one replicate."""
        mean, covariance = self.moments()
        if len(mean) < 2:
            return float("nan")
        sd = np.sqrt(np.diagonal(covariance.mean(axis=0)))
        return float(np.sqrt(np.mean((mean.std(axis=0, ddof=1) / sd) ** 2)))

    @cached_property
    def _theta(self) -> Array:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(self._key, 1_000_001), np.arange(self.num_chains))
        return jax.vmap(lambda q, key: q.sample(key, self.num_draws))(self.posterior, keys)

    @property
    def num_chains(self) -> int:
        """Replicates of the fit, the chains of the posterior."""
        return self.posterior.shift.shape[0]

    @cached_property
    def idata(self) -> Any:
        """The global posterior for ArviZ: ``posterior``, ``sample_stats`` and ``log_likelihood`` (one value per client and draw).

        Draws are independent; chains are replicates of the whole fit. R-hat therefore compares replicates: it speaks about Monte
        Carlo error, and not about the error of the Gaussian approximation.
        """
        with jax.enable_x64(True):
            problem, theta = self._problem, self._theta
            bucket = problem.buckets[0]
            program, template = bucket.clients.program, problem.arrays[int(bucket.members[0])]
            joint = jnp.concatenate([theta, jnp.zeros((*theta.shape[:2], program.locals.size))], axis=-1)
            values = output.constrained(program, template, joint)
            values = {name: values[name] for name in output.global_sites(problem)}
            lp = jax.vmap(lambda q, draws: jax.vmap(q.normalised().log_value)(draws))(self.posterior, theta)
            groups = {
                "posterior": values,
                "sample_stats": {"lp": np.asarray(lp)},
                "log_likelihood": {"client": self._log_likelihood(theta)},
            }
        return self._to_arviz(groups, template, {"client": ["client_name"]}, {"client_name": list(problem.names)})

    def _log_likelihood(self, theta: Array) -> np.ndarray:
        """One more exchange: the draws go out, each client answers with its log-likelihood at them."""

        def reply(shared: Array, cavity: Gaussian, state: Any, client: Client, key: Array) -> tuple[Array, Any, dict]:
            values = jax.vmap(sampling.log_likelihoods, (None, 0, 0, None))(client, cavity, shared, key)
            return values, state, {}

        names = self._problem.names
        algorithm = _Exchange({"log_likelihood": reply})
        cavities = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), self._cavities())
        work = Round(theta, cavities, self._key, np.arange(len(names)), ["log_likelihood"] * len(names))
        replies, _ = self._executor.run(algorithm, self._problem, self._current.clients, work)
        return np.moveaxis(np.asarray(replies.messages), 0, -1)

    def _cavities(self) -> Gaussian:
        """Everybody's posterior without one client's site, leading axes replicate and client."""
        sites = self._current.state.sites
        return jax.vmap(lambda q, site: jax.vmap(lambda one: (q - one).symmetrised())(site))(self.posterior, sites)

    def client_posterior(self, name: str) -> Any:
        """One client's posterior: its local latents and the globals, given everybody's data.

        Draws of the tilted density with the client's cavity (equation 3.10 of Yue 2023; with the global posterior in its place the
        client's data would count twice).

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
        """
        with jax.enable_x64(True):
            client = self._problem.client(name)
            place = self.client_names.index(name)
            cavity = jax.tree.map(lambda leaf: leaf[:, place], self._cavities())
            return self._personal(client, self._problem, name, cavity)

    def adapt(self, new_client: Mapping[str, Any]) -> Any:
        """Posterior of a client that joins after the fit: the global posterior is its prior.

        Parameters
        ----------
        new_client
            The model's keyword arguments.

        Returns
        -------
        InferenceData or DataTree
            Group ``posterior``: its local latents, and the globals updated by its data.
        """
        name = "new client"
        dtype = self._problem.buckets[0].clients.program.dtype
        with jax.enable_x64(True):
            model = self._problem.buckets[0].clients.program.model
            problem = make_problem(model, {name: new_client}, local=self._local, dtype=dtype)
            return self._personal(problem.client(name), problem, name, self.posterior)

    def _personal(self, client: Client, problem: Problem, name: str, cavity: Gaussian) -> Any:
        arrays = problem.arrays[problem.names.index(name)]
        draws, k_hat, solver = self._personal_draws(client, cavity)
        values = output.constrained(client.program, arrays, draws)
        attrs = {"client": name, "k_hat": k_hat, "solver": solver}
        return self._to_arviz({"posterior": values}, arrays, {}, {}, attrs)

    def _personal_draws(self, client: Client, cavity: Gaussian) -> tuple[Array, float, str]:
        num = -(-self.num_draws // 4) * 4
        start = jnp.concatenate([self.moments()[0][0], jnp.zeros(client.num_locals)])
        keys = jax.random.split(jax.random.fold_in(client_seed(self._key), client.index), self.num_chains)
        resample = jax.jit(
            jax.vmap(lambda cavity, key: sampling.resampled(Tilted(client, cavity), start, key, num))
        )
        draws, k_hats = resample(cavity, keys)
        k_hat = float(jnp.max(k_hats))
        if k_hat <= _K_HAT_LIMIT:
            return draws[:, : self.num_draws], k_hat, "importance"
        chain = jax.jit(jax.vmap(lambda cavity, key: sampling.chained(Tilted(client, cavity), start, key, num)))
        return chain(cavity, keys)[:, : self.num_draws], k_hat, "nuts"

    def predict(self, client: str | None = None, *, key: Array | None = None, **arguments: Any) -> Any:
        """Posterior predictive draws of the observed sites.

        Parameters
        ----------
        client
            Predict for this client, with its local latents; ``None``: for a new client, whose locals come from the model.
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
        draws = {str(name): np.asarray(source.posterior[name]) for name in source.posterior.data_vars if name in latents}
        key = jax.random.fold_in(self._key, 1_000_003) if key is None else key
        with jax.enable_x64(True):
            predictive = Predictive(program.model, draws, batch_ndims=2)(key, **{**program.static, **arguments})
        predicted = {name: np.asarray(value) for name, value in predictive.items() if name not in draws}
        dims = {name: [f"{name}_dim_{i}" for i in range(value.ndim - 2)] for name, value in predicted.items()}
        return output.to_arviz({"posterior_predictive": predicted}, self._coords, dims | self._dims, self._attrs())

    def _to_arviz(self, groups: dict, client: Any, dims: dict, coords: dict, attrs: Mapping[str, Any] | None = None) -> Any:
        program = self._problem.buckets[0].clients.program
        with jax.enable_x64(True):
            known = output.site_dims(program, client, self._dims)
        defaults = output.plate_coords(known, groups["posterior"])
        return output.to_arviz(groups, defaults | self._coords | coords, known | dims, self._attrs() | dict(attrs or {}))

    def _attrs(self) -> dict[str, Any]:
        import fedbayes

        return {
            "inference_library": "fedbayes",
            "inference_library_version": fedbayes.__version__,
            "inference": "gaussian-sites",
            "method": repr(self._method),
            "draws": "independent draws of a Gaussian in unconstrained space",
            "chains": "replicates of the whole fit with other keys: R-hat and MCSE measure its Monte Carlo error, "
            "not the error of the Gaussian approximation",
            "converged": int(self.converged),
        }

    def save(self, path: str | os.PathLike) -> None:
        """Write the fit to a folder: ``posterior.nc`` and ``rounds.nc`` for everybody, ``state.npz`` for :func:`load_fit`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.idata.to_netcdf(str(folder / "posterior.nc"))
        self.rounds.to_netcdf(folder / "rounds.nc", engine="h5netcdf")
        mark = fingerprint("saved fit", self._method, jax.random.key_data(self._key))
        Checkpoint(folder / "state.npz", mark).write(self._current)

    def trouble(self) -> str:
        """What kept the fit from converging, in words, with the clients it concerns; empty if nothing did."""
        if self.converged:
            return ""
        last = self.rounds.isel(round=-1)
        parts = [
            f"The fit did not converge in {self.rounds.sizes['round']} rounds: the last one changed the global by "
            f"{float(last['change'].max()):.3g} posterior sds."
        ]
        codes = last["code"].max("replicate").to_series()
        for code in (ResultCode.NOT_FINITE, ResultCode.IMPROPER, ResultCode.NO_REPLY, ResultCode.UNRELIABLE):
            if clients := list(codes.index[codes == code]):
                parts.append(f"Clients {_shortened(clients)}: {code.meaning}.")
        if float(last["step"].min()) == 0.0:
            parts.append("No step kept the global and every cavity proper: try `EP(damping=0.2)` or proper priors.")
        parts.append("Raise `num_rounds`, or `EP(num_draws=...)` if `fit.rounds.monte_carlo_noise` is large.")
        return " ".join(parts)

    def __repr__(self) -> str:
        phases = self.rounds["phase"].to_series().value_counts(sort=False)
        rounds = " + ".join(f"{count} {name}" for name, count in phases.items())
        state = "converged" if self.converged else "NOT CONVERGED"
        sites = ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in self._problem.globals.shapes)
        lines = [
            f"FederatedFit by {type(self._method).__name__}: {state} after {rounds} rounds",
            f"  clients   {len(self.client_names)}: {_shortened(self.client_names)}",
            f"  globals   {self._problem.globals.size} unconstrained: {sites}",
            f"  last      changed the global by {float(self.rounds['change'][-1].max()):.2g} posterior sds",
        ]
        if self.num_chains > 1:
            lines.append(f"  error     Monte Carlo {self.monte_carlo_error:.2g} posterior sds, from {self.num_chains} replicates")
        if (k_hat := self.rounds["k_hat"][-1]).notnull().any():
            worst = str(k_hat.max("replicate").idxmax("client").item())
            lines.append(f"  k-hat     at most {float(k_hat.max()):.2f} (client '{worst}')")
        lines.append("  look at   fit.idata, fit.rounds, fit.client_posterior(name), fit.adapt(data), fit.predict(...)")
        return "\n".join(lines)


class _Exchange:
    """Local updates without a server's half, for an exchange outside the loop."""

    def __init__(self, local_updates: Mapping[str, Callable]) -> None:
        self.local_updates = local_updates


def client_seed(key: Array) -> Array:
    """Key of the personal posteriors' draws."""
    return jax.random.fold_in(key, 1_000_002)


def _shortened(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names) - most} more)"


def _method(method: str | Method) -> Method:
    if isinstance(method, str):
        if method not in inference.METHODS:
            raise ValueError(f"`method` is {method!r}; the methods are {sorted(inference.METHODS)}, or a configured `fedbayes.EP(...)`.")
        return inference.METHODS[method]()
    if not hasattr(method, "phases"):
        raise TypeError(f"`method` is {method!r}; write a name, {sorted(inference.METHODS)}, or a configured `fedbayes.EP(...)`.")
    return method


def _executor(executor: str | Executor, mesh: jax.sharding.Mesh | None) -> Executor:
    if mesh is not None:
        return Batched(mesh)
    if isinstance(executor, str):
        if executor not in EXECUTORS:
            raise ValueError(f"`executor` is {executor!r}; the executors are {sorted(EXECUTORS)}.")
        return EXECUTORS[executor]()
    return executor


def _check_arguments(
    key: Array, num_rounds: int | None, participation: Participation, num_draws: int, mesh: object, executor: object
) -> None:
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise TypeError(f"`key` is {key!r}; write a typed JAX key, such as `jax.random.key(0)`.")
    if num_rounds is not None and num_rounds < 1:
        raise ValueError(f"`num_rounds` is {num_rounds}; a fit needs at least one round.")
    if not callable(participation) and not 0.0 < participation <= 1.0:
        raise ValueError(f"`participation` is {participation}; it is the fraction of clients in a round and lies in (0, 1].")
    if num_draws < 1:
        raise ValueError(f"`num_draws` is {num_draws}; at least one posterior draw per chain is needed.")
    if mesh is not None and executor != "batched":
        raise ValueError(f"`mesh` shares the batched executor out over devices; `executor` is {executor!r}. Leave one of them out.")
