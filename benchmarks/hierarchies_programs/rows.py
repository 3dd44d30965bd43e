"""Memory and time of a fit without locals where clients have many rows: a logistic regression of 20 predictors."""

import resource
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pages
from examples.example import Clients, named
from first_fit import Clock

import fedbayes as fb

SIZES = (20_000, 200_000, 1_000_000)
_NUM = 3  # clients
_GIB = 2**20  # `ru_maxrss` counts KiB
_WORDS = """\
A logistic regression of 20 predictors without locals, {num} clients, `fit_federated` with its defaults and `fit.idata`,
each in a fresh process. *peak* is the largest resident memory of the process, of it *before* what Python, the packages
and the data took before the fit; *data* are the clients' arrays, of which a fit makes a copy.
"""


def logistic(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def clients(rows: int) -> Clients:
    random = np.random.default_rng(0)
    beta, data = 0.3 * random.normal(size=20), []
    for _ in range(_NUM):
        x = random.normal(size=(rows, 20))
        data.append(dict(x=x, y=(random.uniform(size=rows) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(int)))
    return named(*data)


def measure(rows: int) -> dict[str, Any]:
    """One fit in this process, which must be fresh: a process keeps its peak."""
    data, clock = clients(rows), Clock()
    before = _peak()
    fitted = clock.time("fit", lambda: fb.fit_federated(logistic, data, key=jax.random.key(0), progress=False))
    clock.time("idata", lambda: fitted.idata)
    held = sum(array.nbytes for one in data.values() for array in one.values()) / 2**30
    spent = {name: clock.steps["fit"][name] + clock.steps["idata"][name] for name in ("seconds", "cpu")}
    return {**spent, "before": before, "peak": _peak(), "data": held, "machine": pages.machine()}


def section(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of the page; ``results`` by label and rows."""
    columns = ("", "rows a client", "data, GiB", "before, GiB", "peak, GiB", "seconds", "CPU s")
    lines = [
        _line(label, rows, found)
        for label, each in results.items()
        for rows, found in sorted(each.items(), key=lambda one: int(one[0]))
    ]
    if not lines:
        return []
    return ["## Many rows", "", _WORDS.format(num=_NUM), *pages.table(columns, lines)]


def _line(label: str, rows: str, found: Mapping[str, Any]) -> list[str]:
    if "peak" not in found:
        return [label, f"{int(rows):,}", "", "", "", f"over {found['slow']:.0f}" if "slow" in found else "", ""]
    memory = (f"{found[name]:.2f}" for name in ("data", "before", "peak"))
    return [label, f"{int(rows):,}", *memory, f"{found['seconds']:.0f}", f"{found['cpu']:.0f}"]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _GIB
