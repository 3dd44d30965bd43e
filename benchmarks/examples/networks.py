"""Programs with parameters instead of priors, and without data; the library refuses them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def vae(images: Any) -> None:
    from flax import linen
    from numpyro.contrib.module import flax_module

    decode = flax_module("decoder", linen.Dense(images.shape[1]), input_shape=(1, 2))
    with numpyro.plate("images", images.shape[0]):
        with fb.local():
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("obs", dist.Bernoulli(logits=decode(z)).to_event(1), obs=images)


def conditional_vae(images: Any, quarter: Any) -> None:
    from flax import linen
    from numpyro.contrib.module import flax_module

    baseline = flax_module("baseline", linen.Dense(images.shape[1]), input_shape=(1, quarter.shape[1]))
    generate = flax_module("generation", linen.Dense(images.shape[1]), input_shape=(1, 2))
    with numpyro.plate("images", images.shape[0]):
        with fb.local():
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        logits = baseline(quarter) + generate(z)
        numpyro.sample("obs", dist.Bernoulli(logits=logits).to_event(1), obs=images)


def bayesian_vae(images: Any) -> None:
    """The decoder's weights with a prior, so that they have a posterior."""
    from flax import linen
    from numpyro.contrib.module import random_flax_module

    decode = random_flax_module(
        "decoder", linen.Dense(images.shape[1]), prior=dist.Normal(0.0, 1.0), input_shape=(1, 2)
    )
    with numpyro.plate("images", images.shape[0]):
        with fb.local():
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("obs", dist.Bernoulli(logits=decode(z)).to_event(1), obs=images)


def image_clients(quarter: bool = False) -> Clients:
    random, clients = rng("images"), []
    for _ in range(3):
        images = (random.uniform(size=(10, 4)) < np.array([0.2, 0.5, 0.7, 0.5])).astype(int)
        clients.append(dict(images=images, quarter=images[:, :1].astype(float)) if quarter else dict(images=images))
    return named(*clients)


def topics(documents: Any, num_topics: int = 2) -> None:
    from flax import linen
    from numpyro.contrib.module import flax_module

    decode = flax_module("decoder", linen.Dense(documents.shape[1], use_bias=False), input_shape=(1, num_topics))
    with numpyro.plate("documents", documents.shape[0], subsample_size=4):
        batch = numpyro.subsample(documents, event_dim=1)
        with fb.local():
            theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(num_topics)))
        numpyro.sample("words", dist.Multinomial(batch.sum(-1), logits=decode(theta)), obs=batch)


def topic_clients() -> Clients:
    random = rng("topics")
    return named(*(dict(documents=random.multinomial(20, np.full(5, 0.2), size=8)) for _ in range(3)))


def markov_network(sequences: Any) -> None:
    weights = numpyro.param("weights", jnp.eye(2))
    start = numpyro.param("start", lambda key: dist.Normal(0.0, 1.0).sample(key, (2,)))
    number, steps, tones = sequences.shape
    with numpyro.plate("sequences", number):
        with fb.local():
            z = numpyro.sample("z", dist.Normal(0.0, jnp.ones((steps, 2))).mask(False).to_event(2))
        before = jnp.concatenate([jnp.broadcast_to(start, (number, 1, 2)), z[:, :-1]], axis=-2)
        numpyro.sample("transitions", dist.Normal(jnp.tanh(before @ weights), 1.0).to_event(2), obs=z)
        numpyro.sample("tones", dist.Bernoulli(logits=z @ jnp.ones((2, tones))).to_event(2), obs=sequences)


def tone_clients() -> Clients:
    random = rng("tones")
    return named(*(dict(sequences=random.integers(0, 2, (4, 5, 3))) for _ in range(3)))


class DualMoon(dist.Distribution):
    """A density of two arcs, with nothing observed."""

    support = dist.constraints.real_vector

    def __init__(self) -> None:
        super().__init__(event_shape=(2,))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        return jax.random.normal(key, (*sample_shape, 2))

    def log_prob(self, value: Any) -> Any:
        ring = 0.5 * ((jnp.linalg.norm(value, axis=-1) - 2.0) / 0.4) ** 2
        left, right = (-0.5 * ((value[..., 0] + side) / 0.6) ** 2 for side in (-2.0, 2.0))
        return jnp.logaddexp(left, right) - ring


def dual_moon(unused: Any) -> None:
    numpyro.sample("x", DualMoon())


def ideal_points(author: Any, counts: Any, rows: Any) -> None:
    """Authors' positions from words, a few documents at a time."""
    position = numpyro.sample("position", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("documents", counts.shape[0], subsample_size=3) as chosen:
        rate = jnp.exp(position[author[chosen]])
        numpyro.sample("counts", dist.Poisson(rate), obs=counts[chosen])


def author_clients() -> Clients:
    random = rng("authors")
    one = [dict(author=random.integers(0, 3, 9), counts=random.poisson(1.5, 9), rows=np.arange(9)) for _ in range(3)]
    return named(*one)


EXAMPLES = (
    Example("vae", "vae.py", vae, image_clients, "one layer"),
    Example("vae with a prior", "vae.py, `random_flax_module`", bayesian_vae, image_clients, "the rotation is free"),
    Example("cvae", "cvae.py", conditional_vae, lambda: image_clients(True), "one layer"),
    Example("prodlda", "prodlda.py", topics, topic_clients, "one layer"),
    Example("stein_dmm", "stein_dmm.py", markov_network, tone_clients, "one layer"),
    Example("neutra", "neutra.py", dual_moon, lambda: named(*(dict(unused=np.zeros(2)) for _ in range(3)))),
    Example("tbip", "tbip.ipynb", ideal_points, author_clients, "without words' own effects"),
)
