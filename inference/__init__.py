"""Federated methods, one folder each."""

if __name__ != "fedbayes.inference":
    raise ImportError(f"this is `fedbayes.inference`, not `{__name__}`: write `import fedbayes.inference`")

from collections.abc import Callable, Mapping

from fedbayes.contract.algorithm import Method
from fedbayes.inference.correlated.method import CorrelatedClients
from fedbayes.inference.ep.method import EP
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.fed_ensemble.method import FedEnsemble
from fedbayes.inference.fedavg.fairness import GIFAIR
from fedbayes.inference.fedavg.method import FedAvg, FedProx
from fedbayes.inference.fedpa.method import FedPA
from fedbayes.inference.laplace import Laplace
from fedbayes.inference.merging.method import OneShot

METHODS: Mapping[str, Callable[..., Method]] = {
    "correlated_clients": CorrelatedClients,
    "ep": EP,
    "fald": FALD,
    "fed_ensemble": FedEnsemble,
    "fedavg": FedAvg,
    "fedpa": FedPA,
    "fedprox": FedProx,
    "laplace": Laplace,
    "one_shot": OneShot,
}

__all__ = [
    "EP",
    "FALD",
    "GIFAIR",
    "METHODS",
    "CorrelatedClients",
    "FedAvg",
    "FedEnsemble",
    "FedPA",
    "FedProx",
    "Laplace",
    "OneShot",
]
