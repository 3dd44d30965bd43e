"""Federated algorithms, one file each."""

if __name__ != "fedbayes.inference":
    raise ImportError(f"this is `fedbayes.inference`, not `{__name__}`: write `import fedbayes.inference`")

from fedbayes.inference.ep import EP
from fedbayes.inference.fald import FALD
from fedbayes.inference.mode import Laplace
from fedbayes.inference.one_shot import OneShot
from fedbayes.inference.posterior_averaging import FedPA

METHODS = {"ep": EP, "fald": FALD, "laplace": Laplace, "one_shot": OneShot, "posterior_averaging": FedPA}

__all__ = ["EP", "FALD", "METHODS", "FedPA", "Laplace", "OneShot"]
