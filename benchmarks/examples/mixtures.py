"""Mixtures and missing binary covariates, which are summed out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import mask
from numpyro.ops.indexing import Vindex

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def toy_mixture(a: Any, c: Any) -> None:
    p_a = numpyro.sample("p_a", dist.Beta(1.0, 1.0))
    p_b = numpyro.sample("p_b", dist.Beta(jnp.array([10.0, 1.0]), jnp.array([1.0, 10.0])).to_event(1))
    p_c = numpyro.sample("p_c", dist.Beta(jnp.array([10.0, 1.0]), jnp.array([1.0, 10.0])).to_event(1))
    with numpyro.plate("rows", a.shape[0]):
        a = numpyro.sample("a", dist.Bernoulli(p_a), obs=a)
        with fb.local():
            b = numpyro.sample("b", dist.Bernoulli(Vindex(p_b)[a]), infer={"enumerate": "parallel"})
        numpyro.sample("c", dist.Bernoulli(Vindex(p_c)[b]), obs=c)


def toy_clients() -> Clients:
    random, clients = rng("toy"), []
    for size in (60, 40, 80):
        a = random.integers(0, 2, size)
        b = random.uniform(size=size) < np.array([0.85, 0.2])[a]
        c = (random.uniform(size=size) < np.array([0.9, 0.15])[b.astype(int)]).astype(int)
        clients.append(dict(a=a, c=c))
    return named(*clients)


def mixture(y: Any) -> None:
    """Two Gaussian components whose means are ordered, so that they can't be exchanged."""
    weights = numpyro.sample("weights", dist.Dirichlet(2.0 * jnp.ones(2)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    base = dist.Normal(0.0, 10.0).expand([2]).to_event(1)
    locs = numpyro.sample("locs", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    with numpyro.plate("rows", y.shape[0]):
        with fb.local():
            which = numpyro.sample("which", dist.Categorical(weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(locs[which], scale), obs=y)


def mixture_clients() -> Clients:
    random, clients = rng("mixture"), []
    for size in (40, 60, 50):
        which = (random.uniform(size=size) < 0.6).astype(int)
        clients.append(dict(y=np.array([-2.0, 1.5])[which] + random.normal(size=size)))
    return named(*clients)


def angles(phi_psi: Any, components: int = 2) -> None:
    """A mixture of sine-skewed bivariate von Mises distributions; locations set the components apart."""
    weights = numpyro.sample("weights", dist.Dirichlet(2.0 * jnp.ones(components)))
    with numpyro.plate("components", components):
        phi_loc = numpyro.sample("phi_loc", dist.VonMises(jnp.array([-1.5, 1.5])[:components], 4.0))
        psi_loc = numpyro.sample("psi_loc", dist.VonMises(0.0, 0.5))
        phi_conc = numpyro.sample("phi_conc", dist.Beta(2.0, 5.0))
        psi_conc = numpyro.sample("psi_conc", dist.Beta(2.0, 5.0))
        corr = numpyro.sample("corr", dist.Beta(2.0, 10.0))
        skewness = numpyro.sample("skewness", dist.Normal(0.0, 0.5).expand((2,)).to_event(1))
        skewness = dist.transforms.L1BallTransform()(skewness)
    with numpyro.plate("rows", phi_psi.shape[0], dim=-1):
        with fb.local():
            which = numpyro.sample("which", dist.Categorical(weights), infer={"enumerate": "parallel"})
        sine = dist.SineBivariateVonMises(
            phi_loc=phi_loc[which],
            psi_loc=psi_loc[which],
            phi_concentration=20.0 * phi_conc[which],
            psi_concentration=20.0 * psi_conc[which],
            weighted_correlation=corr[which],
        )
        numpyro.sample("phi_psi", dist.SineSkewed(sine, skewness[which]), obs=phi_psi)


def angle_clients() -> Clients:
    random, clients = rng("angles"), []
    for size in (40, 40, 40):
        which = (random.uniform(size=size) < 0.5).astype(int)
        centre = np.array([[-1.3, 0.8], [1.4, -0.6]])[which]
        clients.append(dict(phi_psi=centre + random.normal(0.0, 0.4, size=(size, 2))))
    return named(*clients)


def discrete_imputation(a: Any, seen: Any, b: Any) -> None:
    """A binary covariate that some rows lack; it is summed out there."""
    p_a = numpyro.sample("p_a", dist.Beta(1.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", a.shape[0]):
        with mask(mask=seen):
            numpyro.sample("a", dist.Bernoulli(p_a), obs=a)
        with fb.local(), mask(mask=~seen):
            imputed = numpyro.sample("imputed", dist.Bernoulli(p_a).mask(~seen), infer={"enumerate": "parallel"})
        value = jnp.where(seen, a, imputed)
        numpyro.sample("b", dist.Normal(intercept + slope * value, 0.7), obs=b)


def discrete_imputation_clients() -> Clients:
    random, clients = rng("discrete imputation"), []
    for size in (40, 60, 50):
        a, seen = random.integers(0, 2, size), random.uniform(size=size) < 0.7
        clients.append(dict(a=np.where(seen, a, 0), seen=seen, b=1.2 * a + 0.7 * random.normal(size=size)))
    return named(*clients)


EXAMPLES = (
    Example("toy_mixture", "toy_mixture_model_discrete_enumeration.py", toy_mixture, toy_clients),
    Example("gmm", "gmm.ipynb", mixture, mixture_clients, "ordered means"),
    Example("ssbvm_mixture", "ssbvm_mixture.py", angles, angle_clients, "simpler priors of the concentrations"),
    Example("discrete imputation", "discrete_imputation.ipynb", discrete_imputation, discrete_imputation_clients),
)
