"""Ensembles of point estimates."""

from fedbayes.inference.fed_ensemble.method import FedEnsemble

__all__ = ["FedEnsemble"]
