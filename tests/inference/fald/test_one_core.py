"""On one core XLA compiles otherwise: what it refused there once."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import warnings
import jax, numpy as np
import numpyro, numpyro.distributions as dist
import fedbayes as fb

def model(x, y=None):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    kernel = scale * jax.numpy.exp(-((x - x.T) ** 2)) + 0.5 * np.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(np.zeros(len(x)), kernel), obs=y)

rng = np.random.default_rng(0)
clients = {name: {"x": rng.normal(size=(8, 1)), "y": rng.normal(size=8)} for name in "ab"}
warnings.simplefilter("ignore", fb.NotConvergedWarning)  # of so few draws
method = fb.FALD(num_chains=1, num_warmup=2, max_rounds=6, thinning=1)
fit = fb.fit_federated(model, clients, method=method, key=jax.random.key(0), progress=False, num_draws=4)
print(fit.idata.posterior["scale"].size, len(os.sched_getaffinity(0)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system can't give a process fewer cores")
def test_a_covariance_is_sampled_on_one_core(tmp_path):
    """Joining no locals to the globals lost the Cholesky factor's implementation (DESIGN.md, "Traps")."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["4", "1"]
