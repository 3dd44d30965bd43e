"""Fits of hospitals' data over real processes, and the same ones here."""

from pathlib import Path

import arviz as az
import jax
import numpy as np
from federation import copy_app
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.models import heart_disease

HOSPITALS = ("cleveland", "hungarian", "switzerland")
CAREFUL = ("cleveland", "hungarian", "va")  # whose coarse columns pass the default disclosure rules
EP = 'fb.EP(solver="laplace", num_replicates=1)'  # the method of the app, as it is written there
SETTINGS = {"seed": 2, "num-draws": 100, "round-timeout": 300.0, "join-timeout": 600.0}
LONG = 1200  # seconds for a run, on a slow machine


def hospitals(num):
    """The data of so many sites, by the names that a federation gives them."""
    clients = heart_disease.clients()
    return {f"site-{i}": clients[HOSPITALS[i]] for i in range(num)}


def careful(num):
    """The data of so many sites that take part under the policy that an owner has by default."""
    clients = heart_disease.coarse_clients()
    return {f"site-{i}": clients[CAREFUL[i]] for i in range(num)}


def nodes(folder, num):
    """Each site's files, for the configuration of its node."""
    folder.mkdir()
    configs = {name: dict(PERMISSIVE) for name in hospitals(num)}
    for kind, clients in {"data-path": hospitals(num), "careful-path": careful(num)}.items():
        for name, data in clients.items():
            path = folder / f"{name}-{kind}.npz"
            np.savez(path, **data)
            configs[name][kind] = str(path)
    return configs


def settings(num, folder, **more):
    """Of a run with so many sites, which all must answer."""
    return SETTINGS | {"num-clients": num, "min-clients": num, "output": str(folder)} | more


def app_with(method, target, data="data-path"):
    """The hospitals' app with another method in its study, and perhaps other files of its nodes."""
    folder = copy_app(Path(__file__).parent / "hospitals", target)
    study = folder / "hospitals" / "study.py"
    text = study.read_text()
    assert text.count(EP) == 1
    study.write_text(text.replace(EP, method).replace("data-path", data))
    return folder


def here(method, num, clients=None, **options):
    """The same fit in one process; the method is told as in an app's study."""
    given = {"key": jax.random.key(SETTINGS["seed"]), "num_draws": SETTINGS["num-draws"], "progress": False}
    return fb.fit_federated(heart_disease.model, clients or hospitals(num), method=eval(method), **(given | options))


def draws(idata):
    return {name: np.asarray(idata.posterior[name]) for name in idata.posterior.data_vars}


def draws_in(folder):
    """Those in the posterior file of a run."""
    return draws(az.from_netcdf(str(folder / "posterior.nc")))


def assert_same_file(folder, expected, **tolerance):
    """The posterior file of the run has the draws of the fit in one process."""
    found = draws_in(folder)
    assert found.keys() == draws(expected.idata).keys()
    for name, values in draws(expected.idata).items():
        np.testing.assert_allclose(found[name], values, err_msg=name, **tolerance)
