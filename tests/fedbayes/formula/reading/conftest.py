"""Fits with draws made by hand, and what regressions are made of."""

from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import pytest
import xarray as xr
from numpyro.handlers import seed, substitute, trace

from fedbayes.problem.program.sites import LOCAL

CHAINS, DRAWS, ROWS = 2, 4, 40


class MadeFit:
    """Draws of the prior, the coefficients pulled to zero, that say to be a fit; each client has its own effects."""

    def __init__(self, reg, number=0):
        self._reg, self._number = reg, number
        self.client_names = tuple(reg.clients)
        own = {name: self._posterior(name) for name in reg.clients}
        local = self._local(next(iter(reg.clients)))
        shared = next(iter(own.values()))
        self.idata = SimpleNamespace(posterior=shared[[name for name in shared if name not in local]])
        self._own = own

    def client_posterior(self, name):
        return SimpleNamespace(posterior=self._own[name])

    def _traced(self, client, key, values=None):
        with jax.enable_x64(True), numpyro.validation_enabled(False):
            model = seed(self._reg.model, key)
            model = model if values is None else substitute(model, data=values)
            return trace(model).get_trace(**self._reg.clients[client])

    def _local(self, client):
        sites = self._traced(client, jax.random.key(0))
        local = {name for name, site in sites.items() if site.get("infer", {}).get(LOCAL)}
        return local | {name.removesuffix("_offset") for name in local}

    def _posterior(self, client):
        found = {}
        for draw in range(CHAINS * DRAWS):
            key = jax.random.fold_in(jax.random.key(self._number), draw)
            place = 1 + self.client_names.index(client)
            sites = self._traced(client, key)
            own = self._traced(client, jax.random.fold_in(key, place))
            values = {}
            for name, site in sites.items():
                if site["type"] != "sample" or site["is_observed"]:
                    continue
                value = np.asarray((own if site["infer"].get(LOCAL) else sites)[name]["value"], float)
                coefficient = name in self._reg.terms or name.endswith("Intercept") or name.endswith("_centred")
                values[name] = value * (0.3 if coefficient else 1.0)
            again = self._traced(client, key, values)
            for name, site in again.items():
                if site["type"] == "deterministic" or name in values:
                    found.setdefault(name, []).append(np.asarray(site["value"], float))
        return xr.Dataset({name: self._array(name, np.stack(values)) for name, values in found.items()})

    def _array(self, name, values):
        values = values.reshape(CHAINS, DRAWS, *values.shape[1:])
        dims = self._reg.dims.get(name) or [f"{name}_dim_{axis}" for axis in range(values.ndim - 2)]
        coords = {dim: self._reg.coords[dim] for dim in dims if dim in self._reg.coords}
        return xr.DataArray(values, dims=["chain", "draw", *dims], coords=coords)


@pytest.fixture(scope="session")
def made():
    """From a regression to a fit with draws made by hand."""
    return MadeFit


@pytest.fixture(scope="session")
def outcomes():
    """From a family to outcomes inside of its support, further columns, and the left side of a formula."""

    def of(family):
        rng = np.random.default_rng(4)
        counts, times = rng.poisson(1.5, ROWS), rng.exponential(3.0, ROWS) + 0.1
        trials = rng.integers(1, 9, ROWS)
        censored = ({"c": (rng.random(ROWS) < 0.3).astype(int)}, "y | cens(c)")
        return {
            "gaussian": (rng.normal(size=ROWS), {}, "y"),
            "student": (rng.normal(size=ROWS), {}, "y"),
            "bernoulli": (rng.integers(0, 2, ROWS), {}, "y"),
            "binomial": (rng.binomial(trials, 0.4), {"n": trials}, "y | trials(n)"),
            "beta_binomial": (rng.binomial(trials, 0.4), {"n": trials}, "y | trials(n)"),
            "gamma": (times, {}, "y"),
            "lognormal": (times, {}, "y"),
            "beta": (rng.beta(2.0, 3.0, ROWS), {}, "y"),
            "cumulative": (rng.integers(0, 4, ROWS), {}, "y"),
            "categorical": (rng.integers(0, 3, ROWS), {}, "y"),
            "weibull": (times, *censored),
            "loglogistic": (times, *censored),
            "piecewise_exponential": (times, *censored),
            "cox": (times, *censored),
        }.get(family, (counts, {}, "y"))

    return of


@pytest.fixture(scope="session")
def tables():
    """Two clients' tables with a number, levels, a group within the client, and the outcome."""

    def of(outcome, **columns):
        rng = np.random.default_rng(3)
        every = {
            "x": rng.normal(1.0, 0.7, ROWS),
            "sex": rng.choice(["f", "m"], ROWS),
            "ward": rng.choice(["1", "2"], ROWS),
            "y": outcome,
            **columns,
        }
        return {
            "a": {name: values[:25] for name, values in every.items()},
            "b": {name: values[25:] for name, values in every.items()},
        }

    return of


@pytest.fixture(scope="session")
def predictor_by_hand():
    """``eta`` of ``x + sex`` at rows, from draws, with the means of all clients' columns."""

    def of(fit, tables, rows):
        x = np.concatenate([np.asarray(table["x"]) for table in tables.values()])
        male = np.concatenate([np.asarray(table["sex"]) == "m" for table in tables.values()])
        posterior = fit.idata.posterior
        level = posterior["Intercept_centred"].values[..., None] if "Intercept_centred" in posterior else 0.0
        slope, of_m = posterior["x"].values, posterior["sex"].values[:, :, 0]
        centred_x = np.asarray(rows["x"]) - x.mean()
        centred_m = (np.asarray(rows["sex"]) == "m") - male.mean()
        return level + slope[..., None] * centred_x + of_m[..., None] * centred_m

    return of
