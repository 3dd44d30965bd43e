"""What is known in closed form of the methods: exact laws, fixed points and bounds, to compare their fits with.

No fit needs any of it. All is plain NumPy in float64, on the host, and imports neither JAX nor the methods.

====================  =================================================================================================
`langevin`            FA-LD: the exact law of quadratic clients' rounds, and the paper's bounds for convex ones
`averaging`           FedAvg and FedProx with squared losses: iterates, fixed points, bounds, federation gain
`correlated`          correlated clients: the source's Algorithm 3.1, and why it has nothing to converge to
`ensemble`            Fed-ensemble with linear models: where modes end, how fast, and what they are draws of
`gaussian_processes`  FGPR with a known length scale: expected gradients, their roots, mini-batches
====================  =================================================================================================
"""

if __name__ != "fedbayes.theory":
    raise ImportError(f"this is `fedbayes.theory`, not `{__name__}`: write `import fedbayes.theory`")

from fedbayes.theory import averaging, correlated, ensemble, gaussian_processes, langevin

__all__ = ["averaging", "correlated", "ensemble", "gaussian_processes", "langevin"]
