"""Federated Gaussian processes: each client has a function of its own, and all functions have one kernel.

A client's factor is the marginal likelihood of its outcomes, its function integrated out: nothing but the kernel's
parameters, a few numbers, is shared. Any method fits them. ``fb.FedAvg(optimizer=optax.adam(0.1), local_steps=5,
batch_size=32)`` is the federated Gaussian process regression (FGPR) of Yue and Al Kontar (2024), a point; EP and FA-LD
give their posterior through the very same program. ``fit.predict(client, x=...)`` conditions on the client's own rows,
at the client.

`GaussianProcess` and `SparseGaussianProcess` are distributions for programs of one's own; `RBF`, `Matern12`,
`Matern32`, `Matern52` and `Periodic` are their kernels, and tinygp's can be used as well. `model` is a ready program.
`fidelity` has test functions of several fidelities, one client a level.
`fedbayes.theory.gaussian_processes` has what is known in closed form of gradients and of where rounds end.
"""

from fedbayes.models.gp import fidelity
from fedbayes.models.gp.conditioned import Conditioned
from fedbayes.models.gp.exact import GaussianProcess
from fedbayes.models.gp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Periodic
from fedbayes.models.gp.program import model, simulate
from fedbayes.models.gp.sparse import SparseGaussianProcess

__all__ = [
    "RBF",
    "Conditioned",
    "GaussianProcess",
    "Kernel",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "SparseGaussianProcess",
    "fidelity",
    "model",
    "simulate",
]
