"""Federated Bayesian inference for NumPyro programs.

One client's model is a NumPyro function; :func:`fit_federated` fits it to the clients' data, which never leave them,
and ``fit.idata`` is the global posterior for ArviZ.
"""

from importlib.metadata import version

from fedbayes.clients import clients_from_dataframe
from fedbayes.errors import ClientDataError, FederatedError, MergeWarning, ModelError, NotConvergedWarning, ResultCode
from fedbayes.fit import fit_federated, load_fit
from fedbayes.fitted import FederatedFit
from fedbayes.gaussian import Gaussian
from fedbayes.hypothesis import excludes, probability_of_direction
from fedbayes.inference.ep import EP
from fedbayes.inference.fald import FALD
from fedbayes.inference.mode import Laplace
from fedbayes.inference.one_shot import OneShot
from fedbayes.inference.posterior_averaging import FedPA
from fedbayes.sites import local

__version__ = version("fedbayes")

__all__ = [
    "EP",
    "FALD",
    "ClientDataError",
    "FedPA",
    "FederatedError",
    "FederatedFit",
    "Gaussian",
    "Laplace",
    "MergeWarning",
    "ModelError",
    "NotConvergedWarning",
    "OneShot",
    "ResultCode",
    "clients_from_dataframe",
    "excludes",
    "fit_federated",
    "load_fit",
    "local",
    "probability_of_direction",
]
