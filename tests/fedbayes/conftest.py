"""One small fit, for whatever is drawn or printed."""

import jax
import pytest

import fedbayes
from fedbayes.models import linear


@pytest.fixture(scope="session")
def small_fit():
    clients, _ = linear.simulate(jax.random.key(0), rows=(5, 20, 60))
    return fedbayes.fit_federated(
        linear.model,
        clients,
        method=fedbayes.EP(num_replicates=2),
        key=jax.random.key(1),
        num_draws=200,
        progress=False,
    )
