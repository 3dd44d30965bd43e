"""One fit by the library, with whatever comes of it in words, and how far it is from NUTS."""

import re
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedbayes
from examples.example import Example

_FILES = Path(fedbayes.__file__).resolve().parent


Told = Callable[[fedbayes.FederatedFit], dict[str, Any]]


def fit(example: Example, more: Told = lambda fitted: {}) -> dict[str, Any]:
    """Fit with defaults, and ask for what a user asks for first, and for more; an error is part of the result."""
    stage, began, cpu, found = "fit", time.perf_counter(), time.process_time(), {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            clients = example.clients()
            fitted = fedbayes.fit_federated(example.model, clients, key=jax.random.key(0), progress=False)
            spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
            found = {**spent, **described(fitted), **more(fitted)}
            stage = "idata"
            found["draws"] = sorted(str(name) for name in fitted.idata.posterior.data_vars)
            stage = "client_posterior"
            fitted.client_posterior(next(iter(clients)))
        except Exception as error:
            found["error"] = failure(error, stage)
    found.setdefault("seconds", time.perf_counter() - began)
    # others' deprecations are no news about the fit
    ours = [str(each.message) for each in heard if issubclass(each.category, UserWarning)]
    return {**found, "warnings": list(dict.fromkeys(first_sentence(text) for text in ours))}


def described(fitted: fedbayes.FederatedFit) -> dict[str, Any]:
    """What the fit says of itself; moments are those of the replicates' mixture."""
    means, covariances = fitted.moments()
    mean = means.mean(axis=0)
    variance = (np.diagonal(covariances, axis1=1, axis2=2) + (means - mean) ** 2).mean(axis=0)
    rounds = fitted.rounds
    return {
        "labels": list(fitted.global_labels),
        "mean": mean.tolist(),
        "sd": np.sqrt(variance).tolist(),
        "converged": bool(fitted.converged),
        "rounds": int(rounds.sizes["round"]),
        "repr": repr(fitted),
        "trouble": first_sentence(fitted.trouble()) if not fitted.converged else "",
        "monte_carlo_error": float(fitted.monte_carlo_error),
        "solvers": sorted({str(name) for name in np.ravel(rounds["solver"][-1].values)}),
        "k_hat": float(rounds["k_hat"][-1].max()) if "k_hat" in rounds else None,
    }


def failure(error: Exception, stage: str) -> dict[str, Any]:
    """An error's class and first sentence; one of ours is a refusal, any other a raw traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _FILES in Path(frame.filename).resolve().parents or _ours(frame.filename)]
    last = inside[-1] if inside else None
    return {
        "kind": _kind(error),
        "class": type(error).__name__,
        "message": first_sentence(without_paths(str(error))),
        "stage": stage,
        "where": f"{_short(last.filename)}:{last.lineno} {last.name}" if last else "",
        "deepest": f"{_short(frames[-1].filename)}:{frames[-1].lineno} {frames[-1].name}" if frames else "",
    }


def _kind(error: Exception) -> str:
    """Refused before work starts, given up in a round, or an error of anybody else."""
    if isinstance(error, fedbayes.FederatedError):
        return "gives up"
    return "refused" if isinstance(error, fedbayes.ClientDataError | fedbayes.ModelError) else "RAW"


def _ours(filename: str) -> bool:
    """Whether a file belongs to the library, installed or run from its sources."""
    parts = Path(filename).parts
    return "fedbayes" in parts or "inference" in parts


def _short(filename: str) -> str:
    return "/".join(Path(filename).parts[-3:])


def without_paths(text: str) -> str:
    """The last two parts of every path, so that results don't name a machine's folders."""
    return re.sub(r"/(?:[^\s/'\"]+/)+([^\s/'\"]+/[^\s/'\"]+)", r"\1", text)


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    line = " ".join(text.split())
    end = min((at for mark in (". ", ": tracing", "\n") if (at := line.find(mark)) >= 0), default=len(line))
    return line[: min(end + 1, 260)]
