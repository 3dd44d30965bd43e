"""``calibrate``: data sets from the prior, the whole pipeline on each, and the ranks of the truth."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from tqdm.auto import tqdm

from fedbayes.calibration.fits import AtOnce, Fits, Fitter, OneByOne, Options, with_one_replicate
from fedbayes.calibration.result import Calibration
from fedbayes.calibration.rounds import why_not_at_once
from fedbayes.calibration.simulators import Clients, Simulate, check_simulated, flat_truth
from fedbayes.contract.algorithm import Method
from fedbayes.errors import FederatedError
from fedbayes.fit import DEFAULT_METHOD, check_arguments, method_of, problem_for
from fedbayes.problem.problem import Problem
from fedbayes.problem.program.program import Block, Model
from fedbayes.results.arviz import constrained
from fedbayes.runtime.keys import typed_key
from fedbayes.runtime.precision import computing

_SIMULATED, _FITTED = 0, 1  # folded into the key


def calibrate(
    model: Model,
    simulate: Simulate,
    method: str | Method = DEFAULT_METHOD,
    *,
    key: Array,
    num: int = 500,
    num_draws: int = 255,
    correction: bool = True,
    vectorised: bool | None = None,
    at_once: int = 50,
    num_rounds: int | None = None,
    local: Sequence[str] = (),
    dtype: Any = np.float64,
    progress: bool = True,
) -> Calibration:
    """Simulation-based calibration of a model, a method and everything between them.

    A truth is drawn from the prior and data are simulated given it; the method fits them, and the truth is ranked among
    the draws of its posterior. If the model, its simulator and the posterior belong together, ranks are uniform (Talts,
    Betancourt, Simpson, Vehtari and Gelman 2018). Ranks that are not tell of posteriors that are too narrow, too wide
    or shifted, whatever the reason: a mistake in the model, a prior that counts twice, or an approximation.

    Parameters
    ----------
    model, method, num_rounds, local, dtype
        As in :func:`fedbayes.fit_federated`; each data set is fitted by one replicate. With ``num_starts`` the rounds
        begin at the heaviest mode that was found, and the draws are of that one alone.
    simulate
        ``(key) -> (clients, truth)``: clients as in :func:`fedbayes.fit_federated`, of the same names and shapes each
        time, and the constrained globals by name, drawn from the model's own prior. See
        :func:`fedbayes.prior_simulator`.
    key
        ``jax.random.key(seed)``: all randomness comes from it.
    num
        Number of simulated data sets.
    num_draws
        Draws L of each posterior. A rank is one of L + 1 numbers, of which 256 divide evenly.
    correction
        Whether the posterior's draws are corrected by importance weights before the truth is ranked, which takes one
        exchange more. ``False`` calibrates the method's answer itself.
    vectorised
        ``True`` fits many data sets side by side in one compiled program; ``False`` one after the other by
        :func:`fedbayes.fit_federated`, which is slow. ``None``: side by side where the method allows it.
    at_once
        Data sets side by side: more take more memory.
    progress
        Show a bar.

    Returns
    -------
    Calibration
        Ranks, coverage, a test and a picture.

    Raises
    ------
    ClientDataError, ModelError
        As for :func:`fedbayes.fit_federated`, or the simulated data sets differ in clients or shapes.
    TypeError, ValueError
        An argument, or what ``simulate`` has returned, can't be used.
    FederatedError
        No data set has a posterior.

    See Also
    --------
    prior_simulator : Draws data from a model's own prior.
    Calibration : What is found.
    fit_federated : Fits a model by a method.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> calibration = fb.calibrate(linear.model, linear.simulate, key=jax.random.key(0), num=50, progress=False)
    >>> int(calibration.converged.sum())
    50
    """
    configured = with_one_replicate(method_of(method))
    _check_options(simulate, num, num_draws, at_once)
    key = typed_key(key)
    check_arguments(num_rounds)
    sources = jax.random.fold_in(key, _SIMULATED)

    def simulated(number: int) -> tuple[Clients, Mapping[str, Any]]:
        return check_simulated(simulate(jax.random.fold_in(sources, number)))

    first = simulated(0)  # simulators compute in the user's own precision
    with computing():
        problem = problem_for(configured, model, first[0], local, dtype)
        globals_ = _constrained_globals(problem)
        options = Options(configured, num_draws, correction, num_rounds, tuple(local), dtype)
        size = min(at_once, num)
        fitter = _fitter(problem, options, size, vectorised, model)
    parts, truths = [], []
    with tqdm(total=num, desc="calibration", unit=" fits", disable=not progress) as bar:
        for batch, begin in enumerate(range(0, num, size)):
            numbers = range(begin, min(begin + size, num))
            found = (simulated(number) if number else first for number in numbers)
            data_sets, true = zip(*found, strict=True)
            truths += [flat_truth(each, globals_) for each in true]
            fits = fitter(numbers, data_sets, jax.random.fold_in(jax.random.fold_in(key, _FITTED), batch))
            parts.append(_compared(problem, globals_, fits, np.stack(truths[begin:])))
            bar.update(len(numbers))
    return Calibration(_dataset(parts, np.stack(truths), globals_), num_draws, _words(configured, correction))


def _fitter(problem: Problem, options: Options, size: int, vectorised: bool | None, model: Model) -> Fitter:
    phases = options.method.phases(problem.roster)
    if options.correction and any(phase.recording is not None for phase in phases):
        raise ValueError(
            f"`correction` is True, but {type(options.method).__name__} ends with draws of Markov chains, which have "
            "no density to weight them by. Write `correction=False`."
        )
    if vectorised is None:
        vectorised = why_not_at_once(options.method, phases) is None
    return AtOnce(problem, options, size) if vectorised else OneByOne(model, options, problem.globals.size)


def _constrained_globals(problem: Problem) -> Block:
    """The globals with their constrained shapes."""
    program, data = problem.program(problem.names[0]), dict(problem.arrays[0].arrays)
    at = np.zeros(program.globals.size), np.zeros(program.locals.size)
    values = jax.eval_shape(program.values, *at, data)
    return Block(tuple((name, tuple(values[name].shape)) for name in program.globals.names))


def _compared(problem: Problem, globals_: Block, fits: Fits, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Ranks and moments of a batch, leading axis of data sets; NaN where a fit has no posterior."""
    program, data = problem.program(problem.names[0]), dict(problem.arrays[0].arrays)
    usable = np.isfinite(fits.theta).all(axis=(1, 2))
    theta = np.zeros((*fits.theta.shape[:2], program.globals.size + program.locals.size))
    theta[usable, :, : program.globals.size] = fits.theta[usable]
    with computing():
        values = constrained(program, data, theta)
    draws = np.concatenate([values[name].reshape(*theta.shape[:2], -1) for name in globals_.names], axis=2)
    with np.errstate(all="ignore"):  # heavy tails overflow
        mean, sd = draws.mean(axis=1), draws.std(axis=1, ddof=1)
        scores = (mean - truth) / sd
    found = {"rank": np.sum(draws < truth[:, None], axis=1), "mean": mean, "sd": sd, "z_score": scores}
    masked = {name: np.where(usable[:, None], leaf, np.nan) for name, leaf in found.items()}
    return masked | {"converged": fits.converged & usable, "rounds": fits.rounds, "k_hat": fits.k_hat}


def _dataset(parts: Sequence[Mapping[str, np.ndarray]], truth: np.ndarray, globals_: Block) -> Any:
    """All batches as one dataset."""
    import xarray as xr

    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if np.isnan(joined["rank"]).any(axis=1).all():
        raise FederatedError(
            "No simulated data set has a posterior: in none could the clients' replies be used. Fit one of them by "
            "`fit_federated`, which says why."
        )
    joined |= {"truth": truth, "contraction": 1.0 - joined["sd"] ** 2 / truth.var(axis=0, ddof=1)}
    dims = {1: ("simulation",), 2: ("simulation", "parameter")}
    coords = {"simulation": np.arange(len(truth)), "parameter": globals_.labels()}
    return xr.Dataset({name: (dims[leaf.ndim], leaf) for name, leaf in joined.items()}, coords=coords)


def _words(method: Method, correction: bool) -> str:
    return type(method).__name__ + (" with importance-corrected draws" if correction else "")


def _check_options(simulate: Any, num: int, num_draws: int, at_once: int) -> None:
    if not callable(simulate):
        raise TypeError(
            f"`simulate` is a {type(simulate).__name__}; write a function `(key) -> (clients, truth)`, such as "
            "`fedbayes.prior_simulator(model, clients)`."
        )
    least = {"num": (num, 10), "num_draws": (num_draws, 19), "at_once": (at_once, 1)}
    for name, (value, smallest) in least.items():
        if not isinstance(value, int) or value < smallest:
            raise ValueError(f"`{name}` is {value}; write a whole number from {smallest} on.")
