"""Federated algorithms, one file each."""

if __name__ != "fedbayes.inference":
    raise ImportError(f"this is `fedbayes.inference`, not `{__name__}`: write `import fedbayes.inference`")

from fedbayes.inference.ep.ep import EP
from fedbayes.inference.fald.method import FALD
from fedbayes.inference.fedpa.method import FedPA
from fedbayes.inference.merging.one_shot import OneShot
from fedbayes.inference.mode import Laplace

METHODS = {"ep": EP, "fald": FALD, "laplace": Laplace, "one_shot": OneShot, "posterior_averaging": FedPA}

__all__ = ["EP", "FALD", "METHODS", "FedPA", "Laplace", "OneShot"]
