"""The theory of FedAvg and FedProx under its public name; the code is in :mod:`fedbayes.inference.fedavg.theory`."""

from fedbayes.inference.fedavg.theory import KernelClients, LinearClients, Rounds, gain, least_squares_risk

__all__ = ["KernelClients", "LinearClients", "Rounds", "gain", "least_squares_risk"]
