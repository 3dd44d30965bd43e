"""``fit_federated``: a NumPyro program and clients in, a global posterior out."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from jax import Array

import fedbayes.inference as inference
from fedbayes.contract.algorithm import Method, Update
from fedbayes.contract.renamed import present_names
from fedbayes.contract.state import RunState
from fedbayes.correction.foretold import answer_so_far, forecast_of
from fedbayes.errors import NotConvergedWarning, SiteLeftOutWarning, UnreliableWarning
from fedbayes.inference.local.after import AFTER, forming_cavities, in_sum
from fedbayes.problem.checks import batches_stand_for_all_rows
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.duplicates import warn_of_twins
from fedbayes.problem.problem import Problem, make_problem
from fedbayes.problem.program.program import Model
from fedbayes.problem.roster import Roster
from fedbayes.questions.summary import of_put_out
from fedbayes.results.fit import FederatedFit
from fedbayes.results.fitted import Fitted, fitted_by, without_check
from fedbayes.results.personal import Clients
from fedbayes.results.presented import Presentation, check_names
from fedbayes.results.saved.fit import SavedFit
from fedbayes.results.saved.folder import Saved, SavedPosterior, about, check_same, fit_folder, read_meta, state_file
from fedbayes.results.saved.regression import carried_by
from fedbayes.rounds.ahead import tried_once
from fedbayes.rounds.checkpoint import Checkpoint, fingerprint
from fedbayes.rounds.description import described
from fedbayes.rounds.executors import EXECUTORS, Batched, Executor
from fedbayes.rounds.loop import Participation, Run
from fedbayes.rounds.programs import programs_for
from fedbayes.rounds.progress import show
from fedbayes.runtime.compiling import stop_compiling
from fedbayes.runtime.keys import typed_key
from fedbayes.runtime.precision import computing
from fedbayes.runtime.processes import check_alike, is_first, spans_processes, wait_for_all

DEFAULT_METHOD = "ep"


def fit_federated(
    model: Model,
    clients: Mapping[str, Mapping[str, Any]],
    *,
    method: str | Method = DEFAULT_METHOD,
    key: Array,
    num_rounds: int | None = None,
    participation: Participation = 1.0,
    local: Sequence[str] = (),
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    num_draws: int = 1000,
    correct: bool = True,
    executor: str | Executor = "batched",
    mesh: jax.sharding.Mesh | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
    dtype: Any = np.float64,
) -> FederatedFit:
    """Fit one model to many clients' data without moving the data.

    Parameters
    ----------
    model
        ONE client's NumPyro program; its keyword arguments are the client's data. Latents are global unless marked
        local. What it says of the globals alone (priors, a soft constraint by ``numpyro.factor``, an observed constant)
        counts once for all clients.
    clients
        From client name to the model's keyword arguments: arrays, tensors and tables of NumPy, JAX, pandas, polars,
        xarray or PyTorch, whose index is ignored; see :func:`clients_from_dataframe`. Only the number of rows may
        differ, and integers that fix shapes, such as a number of groups: clients that differ in them have different
        programs. Integers and true or false in one client become decimals where another has them.
    method
        ``"ep"``, ``"fald"``, ``"fedpa"``, ``"one_shot"``, ``"laplace"``, ``"fedavg"``, ``"fedprox"``,
        ``"fed_ensemble"``, ``"correlated_clients"``, or a configured method such as ``fedbayes.EP(num_samples=1024)``
        or ``fedbayes.OneShot(combine="consensus")``.
    key
        ``jax.random.key(seed)``, or ``jax.random.PRNGKey(seed)``: all randomness comes from it.
    num_rounds
        Most rounds of the method's main phase; it stops earlier at its tolerance. ``None``: the method's own limit.
    participation
        Fraction of the clients that take part in each round, drawn afresh, or a function ``(round, key) -> mask``. FALD
        draws its own, by ``scheme`` and ``num_active``.
    local
        Names of client-local latents, for a model that does not use ``fedbayes.local()``.
    coords, dims
        For ArviZ, as usual: ``coords={"coefficient": [...]}, dims={"beta": ["coefficient"]}``. Plates name their
        dimensions by themselves. Globals are then called by their labels, ``beta[age]``, wherever the fit names them.
    num_draws
        Posterior draws per chain.
    correct
        After the rounds of a method that ends with a Gaussian, ask the clients once more, at most three times, for
        their log-likelihoods at draws of it: ``fit.error`` is then known, and ``fit.idata`` corrected by importance
        weights where these can be trusted. ``fit.idata`` needs no exchange of its own then.
    executor
        ``"batched"``, ``"sequential"`` (one by one: names the client in whatever goes wrong), ``"loopback"``
        (everything through bytes), or an :class:`~fedbayes.rounds.executors.Executor`.
    mesh
        A one-dimensional device mesh to share the clients out over: ``jax.make_mesh((jax.device_count(),),
        ("clients",))``. Its devices may belong to several processes, of which each runs the same script: the page
        "Several machines" says how.
    progress
        Show a bar; where there is neither terminal nor notebook, a line every ten seconds. Of a fit that will take more
        than a minute it says how long, for what, and what takes less.
    checkpoint
        File that holds the state after each round, or after a block of rounds that are one program; an interrupted fit
        started again with the same arguments resumes from it.
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
        No client could be used, or before any work starts: matrices of locals by locals are larger than the memory.

    Warns
    -----
    SlowFitWarning
        It will take more than ten minutes: for what, and what takes less. From a minute on ``progress`` has a line.
    NotConvergedWarning
        The rounds were spent before the tolerance was met, or clients could not be used; it names them.
    UnreliableWarning
        The posterior is so far from Gaussian that the error of the answer is not known.
    UserWarning
        Two clients hold the same rows; the scale of a global's prior changes with another global, which is a funnel for
        EP; and other doubts about model and data that a fit can live with.

    See Also
    --------
    FederatedFit : What it returns.
    regression : Writes the model from a formula.
    EP : The method by default, and its options.
    load_fit : Reads a fit that was saved.
    calibrate : Whether such fits are right, by simulated data.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, truth = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> fit.converged
    True
    """
    configured = method_of(method)
    key = typed_key(key)
    seed = np.asarray(jax.random.key_data(key))
    check_arguments(num_rounds, participation, num_draws, mesh, executor)
    runner = _executor(executor, mesh)
    shown = Presentation(num_draws, dict(coords or {}), dict(dims or {}), tuple(local), bool(correct))
    devices = runner.mesh
    bar = show(progress and is_first(devices))
    with computing():
        problem = problem_for(configured, model, clients, local, dtype)
        check_names(problem, shown)
        warn_of_twins(model, clients, problem.arrays, stacklevel=2)
        after = updates_after(configured, problem.roster)
        programs = programs_for(configured, problem.roster, problem.programs, after)
        for warning in programs.warnings:
            warnings.warn(warning, stacklevel=2)
        if programs.phases[-1].recording is not None and participation != 1.0:
            raise ValueError(
                f"`participation` is {participation}, but {type(configured).__name__} draws its own participants: "
                f"write `{type(configured).__name__}(scheme='with_replacement', num_active=...)`."
            )
        saved = None
        if checkpoint is not None:
            mark = fingerprint(problem.description(), configured, seed)
            saved = Checkpoint(checkpoint, mark, writes=is_first(devices))
        if spans_processes(devices):
            arguments: dict[str, Any] = {"method": configured, "key": seed, "executor": runner.layout}
            arguments |= {"num_rounds": num_rounds, "participation": participation}
            _compare_processes(model, problem, saved, arguments | {"num_draws": num_draws, "correct": correct})

        roster = problem.roster
        forecast = forecast_of(configured, problem, programs, num_draws if correct else None)
        forecast.before_rounds(num_rounds)
        runner.connect(programs, problem, key)

        def check_ahead(current: RunState) -> None:
            def compile_() -> None:
                Clients(problem, answer_so_far(configured, roster, current), current, runner, key).compile_ahead(
                    num_draws
                )

            tried_once(programs, runner, ("check", num_draws), compile_)

        try:
            told = forecast if is_first(devices) else None
            run = Run(programs, roster, runner, key, participation, check_ahead if correct else None, told)
            current = run.run(num_rounds, bar, saved, num_draws)
        except BaseException:
            stop_compiling()
            programs.begun_ahead.clear()  # it may be unfinished
            raise
        finally:
            bar.close()
    carried = carried_by(model)
    fitted = fitted_by(configured, problem, current, programs, runner, key, shown, carried=carried)
    fit = concluded(fitted, stacklevel=3, together=spans_processes(devices))
    runner.work_alone()
    return fit


def _compare_processes(model: Model, problem: Problem, saved: Checkpoint | None, arguments: dict[str, Any]) -> None:
    """Refuse to fit where other processes were given something else."""
    wait_for_all()  # process 0 may still write the file of an earlier fit
    given = {f"`{name}`": value for name, value in arguments.items()} | {
        "the model": model,
        "`clients`": problem.description(),
        "the file of `checkpoint`": None if saved is None else [saved.digest()],
        "the versions of packages": [version(name) for name in ("fedbayes", "jax", "jaxlib", "numpyro", "numpy")],
    }
    check_alike({name: described(value) for name, value in given.items()})


def concluded(fitted: Fitted, stacklevel: int, *, together: bool = False) -> FederatedFit:
    """The fit after its check. A check that fails, as for lack of memory, does not lose what the rounds have found.

    Where processes fit together, one that went on without the check would leave the others waiting.
    """
    fit = FederatedFit(fitted)
    try:
        warn_of_trouble(fit, stacklevel + 1)
    except Warning:  # a warning that the user has made an error
        raise
    except Exception as error:
        if together:
            raise
        fit = FederatedFit(without_check(fitted, error))
        warn_of_trouble(fit, stacklevel + 1)
    return fit


def warn_of_trouble(fit: FederatedFit, stacklevel: int) -> None:
    """Warn of a fit that has not converged, or whose answer can't be trusted; and of one that lacks sites."""
    if not fit.converged:
        warnings.warn(fit.trouble(), NotConvergedWarning, stacklevel=stacklevel)
    elif fit.fitted.unchecked or (fit.correction is not None and not fit.correction.reliable):
        warnings.warn(fit.trouble(), UnreliableWarning, stacklevel=stacklevel)
    if fit.fitted.put_out:
        warnings.warn(of_put_out(fit.fitted.put_out), SiteLeftOutWarning, stacklevel=stacklevel)


@overload
def load_fit(path: str | os.PathLike) -> SavedFit: ...
@overload
def load_fit(path: str | os.PathLike, model: Model, clients: Mapping[str, Mapping[str, Any]]) -> FederatedFit: ...
def load_fit(
    path: str | os.PathLike, model: Model | None = None, clients: Mapping[str, Mapping[str, Any]] | None = None
) -> FederatedFit | SavedFit:
    """A fit from the folder that ``fit.save(path)``, or ``fedbayes fit --out path``, wrote.

    Parameters
    ----------
    path
        The folder. Its ``posterior.nc`` and ``rounds.nc`` can be read without this function, too.
    model, clients
        As in :func:`fit_federated`; neither was saved. Without them the fit has what it had found when it was saved.

    Returns
    -------
    FederatedFit or SavedFit
        With model and clients the whole fit, which can be asked anything. Without them its ``idata``, ``rounds``,
        ``error``, ``conflict()``, ``trouble()`` and ``repr``; so also a fit that was made over a network.

    Raises
    ------
    ValueError
        The folder holds a fit of other clients, other data or other globals, or a file in it is cut short.
    FileNotFoundError
        It is not the folder of a saved fit.

    See Also
    --------
    fit_federated : Fits a model by a method.
    FederatedFit.save : Writes what this reads.

    Examples
    --------
    >>> fit.save("heart")  # doctest: +SKIP
    >>> fb.load_fit("heart").idata  # doctest: +SKIP
    >>> fb.load_fit("heart", model, clients).predict("cleveland", x=new_rows)  # doctest: +SKIP
    """
    folder = fit_folder(Path(path))
    saved = read_meta(folder)
    if model is None and clients is None:
        return SavedFit(folder, saved)
    if model is None or clients is None:
        raise ValueError(
            f"`load_fit` has got {'the clients and no model' if model is None else 'the model and no clients'}. Give "
            "both, as to the fit, or neither, to read what was saved."
        )
    if saved.about.get("elsewhere"):
        raise ValueError(
            f"The fit in '{folder}' was made over a network, by clients whose data were elsewhere, and can't be asked "
            f"again. What was saved can be read: `fedbayes.load_fit('{folder}')`."
        )
    configured, runner = _configured(folder, saved), Batched()
    with computing():
        problem = problem_for(configured, model, clients, saved.shown.local, saved.dtype)
        check_same(folder, saved.about, about(problem.roster))
        after = updates_after(configured, problem.roster)
        programs = programs_for(configured, problem.roster, problem.programs, after)
        runner.connect(programs, problem, saved.key)
        run = Run(programs, problem.roster, runner, saved.key)
        current = state_file(folder, problem.description()).read(lambda phase: run.begin(phase, None), runner)
        if current is None:
            raise FileNotFoundError(f"'{folder}' holds no 'state.npz': it is not the folder of a saved fit.")
    posterior = SavedPosterior(folder, saved.cost, saved.checked)
    carried = carried_by(model)
    fitted = fitted_by(
        configured, problem, current, programs, runner, saved.key, saved.shown, posterior, carried=carried
    )
    regression = saved.regression or fitted.regression
    return FederatedFit(replace(fitted, unchecked=saved.unchecked, regression=regression, put_out=saved.put_out))


def _configured(folder: Path, saved: Saved) -> Method:
    """The saved fit's method, with its options."""
    known = {type(method()).__name__: method for method in inference.METHODS.values()}
    if saved.method not in known:
        raise ValueError(
            f"'{folder}' holds a fit by {saved.method}, which is none of fedbayes's methods, {sorted(known)}. Its "
            "draws can be read without it: `arviz.from_netcdf(...)` of its 'posterior.nc'."
        )
    try:
        return known[saved.method](**present_names(known[saved.method], saved.options))
    except TypeError as error:
        raise ValueError(
            f"'{folder}' holds a fit by {saved.method} with other options than this version of fedbayes knows "
            f"({error}). Load it with the version that saved it."
        ) from error


def problem_for(
    method: Method, model: Model, clients: Mapping[str, Mapping[str, Any]], local: Sequence[str], dtype: Any
) -> Problem:
    """The model and the clients, checked for what the method asks of them."""
    asked = {"rows": method.needs_rows, "only_locals": method.only_locals}
    with explaining(clients):
        problem = make_problem(model, clients, local=local, dtype=dtype, **asked)
    if method.needs_rows:
        batches_stand_for_all_rows(problem.programs)
    return problem


def updates_after(method: Method, roster: Roster) -> Mapping[str, Update]:
    """What clients can be asked once the rounds are over; a method that couples their locals adds its own."""
    told = method.told_at_end(roster)
    found = {**{name: forming_cavities(update, method, told) for name, update in AFTER.items()}, **method.after(roster)}
    sums = {f"{name}_sum": in_sum(found[name]) for name in ("log_likelihood", "log_likelihood_finer")}
    return {**found, **sums}


def method_of(method: str | Method) -> Method:
    """The configured method, by its name where one is given.

    Raises
    ------
    TypeError, ValueError
        It is neither.
    """
    if isinstance(method, str):
        if method not in inference.METHODS:
            raise ValueError(
                f"`method` is {method!r}; the methods are {sorted(inference.METHODS)}, or a configured one such as "
                "`fedbayes.EP(...)`."
            )
        return inference.METHODS[method]()
    if not isinstance(method, Method):
        raise TypeError(
            f"`method` is {method!r}; write a name, {sorted(inference.METHODS)}, or a configured one, "
            f"`{_written(method)}`."
        )
    return method


def _written(method: object) -> str:
    known = {type_.__name__ for type_ in inference.METHODS.values()}
    name = method.__name__ if isinstance(method, type) else ""
    return f"fedbayes.{name if name in known else 'EP'}(...)"


def _executor(executor: str | Executor, mesh: jax.sharding.Mesh | None) -> Executor:
    if mesh is not None:
        return Batched(mesh)
    if isinstance(executor, str):
        if executor not in EXECUTORS:
            raise ValueError(f"`executor` is {executor!r}; the executors are {sorted(EXECUTORS)}.")
        return EXECUTORS[executor]()
    if not isinstance(executor, Executor):
        raise TypeError(
            f"`executor` is {executor!r}; write one of {sorted(EXECUTORS)}, or an object such as "
            "`fedbayes.executors.Sequential(compiled=False)`."
        )
    return executor


def check_arguments(
    num_rounds: int | None,
    participation: Participation = 1.0,
    num_draws: int = 1,
    mesh: object = None,
    executor: object = "batched",
) -> None:
    """Refuse arguments of a fit that can't be meant.

    Raises
    ------
    TypeError, ValueError
        The argument, its value, and what to write instead.
    """
    if num_rounds is not None and (not isinstance(num_rounds, int) or num_rounds < 1):
        raise ValueError(f"`num_rounds` is {num_rounds}; a fit needs at least one round.")
    if not callable(participation) and not (isinstance(participation, int | float) and 0.0 < participation <= 1.0):
        raise ValueError(
            f"`participation` is {participation}; it is the fraction of clients in a round and lies in (0, 1]."
        )
    if not isinstance(num_draws, int) or num_draws < 1:
        raise ValueError(f"`num_draws` is {num_draws}; at least one posterior draw per chain is needed.")
    if mesh is not None and executor != "batched":
        raise ValueError(
            f"`mesh` shares the batched executor out over devices; `executor` is {executor!r}. Leave one of them out."
        )
