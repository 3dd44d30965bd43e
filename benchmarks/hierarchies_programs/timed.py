"""The first fit of a process, with all its compilation, and a second one with another key; each with a time limit."""

import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from examples.example import Example
from examples.measure import failure, fit
from examples.verdicts import answered
from first_fit import Clock

import fedbayes as fb
import fedbayes.fit


def fit_twice(example: Example, output: Path, seconds: float) -> None:
    """Both fits, each with its ``idata``; the result is written when the first is done, and when both are."""
    clock = Clock()

    def first(fitted: fb.FederatedFit) -> dict[str, Any]:
        clock.time("idata", lambda: fitted.idata)
        programs = int(clock.now["programs"])
        roster = fitted.fitted.roster
        found = {"programs": programs, "locals": int(np.sum(roster.num_locals)), "idata": clock.steps["idata"]}
        return {**found, "of_rounds": _of_rounds(fitted), **answered(fitted)}

    with _checks_timed(clock), _limited(output, seconds, {"slow": seconds}):
        found = fit(example, first)
        found["of_check"] = clock.steps.get("check", {}).get("seconds")
    output.write_text(json.dumps(found))
    if "error" in found:
        return
    with _limited(output, seconds, {**found, "second": {"slow": seconds}}):
        found["second"] = _second(example)
    output.write_text(json.dumps(found))


def _second(example: Example) -> dict[str, Any]:
    """Times of a fit whose programs are there."""
    clock = Clock()

    def whole() -> fb.FederatedFit:
        fitted = fb.fit_federated(example.model, example.clients(), key=jax.random.key(1), progress=False)
        assert fitted.idata is not None
        return fitted

    with warnings.catch_warnings(), _checks_timed(clock):
        warnings.simplefilter("ignore")
        try:
            fitted = clock.time("whole", whole)
        except Exception as error:
            return {"error": failure(error, "second fit")}
    check = clock.steps.get("check", {}).get("seconds")
    return {**clock.steps["whole"], "of_rounds": _of_rounds(fitted), "of_check": check}


def _of_rounds(fitted: fb.FederatedFit) -> float:
    return round(float(fitted.rounds["seconds"].sum()), 2)


@contextmanager
def _checks_timed(clock: Clock) -> Iterator[None]:
    """The exchanges after the rounds are a step of their own: they are asked for by the warnings of a fit."""
    module = sys.modules["fedbayes.fit"]
    warn = module.warn_of_trouble
    module.warn_of_trouble = lambda fitted, stacklevel: clock.time("check", lambda: warn(fitted, stacklevel))
    try:
        yield
    finally:
        module.warn_of_trouble = warn


@contextmanager
def _limited(output: Path, seconds: float, otherwise: dict[str, Any]) -> Iterator[None]:
    """End the process after so many seconds, with another result: compiled code hears no signal."""

    def end() -> None:
        output.write_text(json.dumps(otherwise))
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def rows_of_all(example: Example) -> list[int]:
    """Rows of each client."""
    return [max(np.shape(value)[0] for value in data.values() if np.ndim(value)) for data in example.clients().values()]
