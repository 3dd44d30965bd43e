"""The study: edit this file. It must be the same at the server and at every site."""

import jax
import numpyro
import numpyro.distributions as dist

import fedbayes as fb
from fedbayes.flower.data import columns

# The covariates, by the names of their columns in each site's file. Values that few patients have are merged: a site
# whose data have a small cell takes no part, unless its owner's policy says so.
COLUMNS = ["age", "sex", "asymptomatic", "trestbps", "chol", "fbs", "ecg", "thalach", "exang", "depression"]


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Logistic regression of heart disease, as one hospital sees it: the program of ONE site."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)


# Deterministic, so that a fit over a network can be compared with one in a single process to the last digits.
# `fb.EP()` chooses a solver for each site by itself, which is better where sites are small or the model is not smooth.
method = fb.EP(solver="laplace")

# A site's data: the columns of the file that `data-path` of the node's configuration names. Anything else is read by a
# function of your own, `def load_data(config): ...`, which returns the model's arguments as a dict of arrays.
load_data = columns(x=COLUMNS, y="disease")

# What the posterior calls the coefficients, for ArviZ. Leave both out, and they have numbers.
coords = {"coefficient": COLUMNS}
dims = {"beta": ["coefficient"]}
