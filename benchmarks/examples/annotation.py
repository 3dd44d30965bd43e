"""Programs of raters whose labels differ; the true classes are summed out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer import init_to_sample
from numpyro.infer.reparam import LocScaleReparam
from numpyro.ops.indexing import Vindex

import fedbayes as fb
from examples.example import Clients, Example, named, rng

_CLASSES, _ANNOTATORS = 2, 3
_FAVOURS = 1.0 + 3.0 * np.eye(_CLASSES)  # a prior under which labels can't be exchanged


def _true_class(items: int, pi: Any) -> Any:
    with fb.local():
        return numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})


def multinomial(labels: Any) -> None:
    items, positions = labels.shape
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Dirichlet(_FAVOURS))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(zeta[c]), obs=labels)


def dawid_skene(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        beta = numpyro.sample("beta", dist.Dirichlet(_FAVOURS))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(Vindex(beta)[who, c, :]), obs=labels)


def mace(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("annotator", _ANNOTATORS):
        epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.full(_CLASSES, 10.0)))
        theta = numpyro.sample("theta", dist.Beta(0.5, 0.5))
    with numpyro.plate("item", items, dim=-2):
        with fb.local():
            c = numpyro.sample("c", dist.DiscreteUniform(0, _CLASSES - 1), infer={"enumerate": "parallel"})
        with numpyro.plate("position", positions):
            with fb.local():
                spam = numpyro.sample("spam", dist.Bernoulli(1.0 - theta[who]), infer={"enumerate": "parallel"})
            probs = jnp.where(spam[..., None] == 0, jax.nn.one_hot(c, _CLASSES), epsilon[who])
            numpyro.sample("y", dist.Categorical(probs), obs=labels)


def hierarchical_dawid_skene(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        omega = numpyro.sample("omega", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        with reparam(config={"beta": LocScaleReparam(0)}):
            beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=Vindex(beta)[who, c, :]), obs=labels)


def item_difficulty(labels: Any) -> None:
    items, positions = labels.shape
    with numpyro.plate("class", _CLASSES):
        eta = numpyro.sample("eta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        chi = numpyro.sample("chi", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with fb.local(), reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(eta[c], chi[c]).to_event(1))
        theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=theta), obs=labels)


def logistic_random_effects(labels: Any) -> None:
    items, positions = labels.shape
    who = jnp.arange(positions)
    with numpyro.plate("class", _CLASSES):
        zeta = numpyro.sample("zeta", dist.Normal(jnp.array([[1.5], [-1.5]]), 1.0).to_event(1))
        omega = numpyro.sample("omega", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
        chi = numpyro.sample("chi", dist.HalfNormal(1.0).expand([_CLASSES - 1]).to_event(1))
    with numpyro.plate("annotator", _ANNOTATORS, dim=-2), numpyro.plate("class", _CLASSES):
        with reparam(config={"beta": LocScaleReparam(0)}):
            beta = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(beta, [(0, 0)] * (jnp.ndim(beta) - 1) + [(0, 1)])
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(_CLASSES)))
    with numpyro.plate("item", items, dim=-2):
        c = _true_class(items, pi)
        with fb.local(), reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(0.0, chi[c]).to_event(1))
        theta = jnp.pad(theta, [(0, 0)] * (jnp.ndim(theta) - 1) + [(0, 1)])
        with numpyro.plate("position", positions):
            numpyro.sample("y", dist.Categorical(logits=Vindex(beta)[who, c, :] - theta), obs=labels)


def annotation_clients(items: int = 30) -> Clients:
    """Each client has items of its own, the annotators are the same."""
    random, clients = rng("annotation"), []
    right = np.array([[0.9, 0.8], [0.8, 0.85], [0.7, 0.9]])
    for _ in range(3):
        c = random.integers(0, 2, items)
        flip = random.uniform(size=(items, _ANNOTATORS)) > right[:, c].T
        clients.append(dict(labels=np.where(flip, 1 - c[:, None], c[:, None])))
    return named(*clients)


_LABELS = "simulated; two classes, their prior set apart"
EXAMPLES = (
    Example(
        "annotation multinomial", "annotation.py, mn", multinomial, annotation_clients, _LABELS, init=init_to_sample
    ),
    Example("annotation dawid-skene", "annotation.py, ds", dawid_skene, annotation_clients, _LABELS),
    Example("annotation mace", "annotation.py, mace", mace, annotation_clients, _LABELS),
    Example(
        "annotation hierarchical",
        "annotation.py, hds",
        hierarchical_dawid_skene,
        annotation_clients,
        f"{_LABELS}. NUTS starts at a draw from the prior: near zero all four chains end where the classes are "
        "exchanged, with R-hat 1.00, and two to three sds of the prior off",
        init=init_to_sample,
    ),
    Example(
        "annotation item difficulty", "annotation.py, id", item_difficulty, lambda: annotation_clients(12), _LABELS
    ),
    Example(
        "annotation random effects",
        "annotation.py, lre",
        logistic_random_effects,
        lambda: annotation_clients(12),
        _LABELS,
    ),
)
