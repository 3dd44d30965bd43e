"""Federated Bayesian inference for NumPyro programs.

One client's model is a NumPyro function; :func:`fit_federated` fits it to the clients' data, which never leave them,
and ``fit.idata`` is the global posterior for ArviZ.
"""

from importlib.metadata import version

from fedbayes.compiling import cache_programs
from fedbayes.errors import ClientDataError, FederatedError, MergeWarning, ModelError, NotConvergedWarning, ResultCode
from fedbayes.fit import fit_federated, load_fit
from fedbayes.gaussian import Gaussian
from fedbayes.inference import EP, FALD, FedPA, Laplace, OneShot
from fedbayes.problem.clients import clients_from_dataframe
from fedbayes.problem.split import local
from fedbayes.results.fit import FederatedFit
from fedbayes.results.hypothesis import excludes, probability_of_direction

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
    "cache_programs",
    "clients_from_dataframe",
    "excludes",
    "fit_federated",
    "load_fit",
    "local",
    "probability_of_direction",
]
