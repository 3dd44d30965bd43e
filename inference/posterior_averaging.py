"""``FedPA`` under its public name; the code is in :mod:`fedbayes.inference.fedpa`."""

from fedbayes.inference.fedpa.method import FedPA

__all__ = ["FedPA"]
