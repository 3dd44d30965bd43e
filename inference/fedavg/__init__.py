"""Federated averaging of point estimates, and its proximal relative."""

from fedbayes.inference.fedavg.method import FedAvg, FedProx

__all__ = ["FedAvg", "FedProx"]
