"""Gaussian processes, exact and in a Hilbert space."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.handlers import reparam
from numpyro.infer.reparam import TransformReparam

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def kernel(x: Any, variance: Any, length: Any) -> Any:
    return variance * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2)


def gp(x: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 10.0))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 10.0))
    length = numpyro.sample("length", dist.LogNormal(0.0, 10.0))
    covariance = kernel(x, variance, length) + (noise + 1e-6) * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance_matrix=covariance), obs=y)


def thompson(x: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
    distance = jnp.sqrt(5.0 * ((x[:, None] - x) / length) ** 2 + 1e-12)
    matern = variance * (1.0 + distance + distance**2 / 3.0) * jnp.exp(-distance) + 1e-4 * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance_matrix=matern), obs=y)


def curve_clients(name: str, noise: float, sizes: tuple[int, ...]) -> Clients:
    """Draws of a Gaussian process, one for each client."""
    random, clients = rng(name), []
    for size in sizes:
        x = np.sort(random.uniform(-2.0, 2.0, size))
        covariance = np.exp(-0.5 * ((x[:, None] - x) / 0.6) ** 2) + (noise**2 + 1e-8) * np.eye(size)
        clients.append(dict(x=x, y=np.linalg.cholesky(covariance) @ random.normal(size=size)))
    return named(*clients)


def sparse_kernel(x: Any, y: Any, rows: int | None = None) -> None:
    """The kernel interaction trick; `rows`: what the prior of `eta` knows of the number of rows."""
    size, number = x.shape[1], x.shape[0] if rows is None else rows
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    eta = numpyro.sample("eta", dist.HalfCauchy(sigma / jnp.sqrt(number) / (size - 1.0)))
    msq = numpyro.sample("msq", dist.InverseGamma(3.0, 1.0))
    xisq = numpyro.sample("xisq", dist.InverseGamma(3.0, 1.0))
    lam = numpyro.sample("lam", dist.HalfCauchy(jnp.ones(size)))
    second = eta**2 * jnp.sqrt(xisq) / msq
    scaled = x * jnp.sqrt(msq) * lam / jnp.sqrt(msq + (eta * lam) ** 2)
    inner = scaled @ scaled.T
    covariance = (
        0.5 * second**2 * (1.0 + inner) ** 2
        - 0.5 * second**2 * (scaled**2) @ (scaled**2).T
        + (eta**2 - second**2) * inner
        + 1.0
        - 0.5 * second**2
    )
    noisy = covariance + (sigma**2 + 1e-4) * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance_matrix=noisy), obs=y)


def sparse_clients(sizes: tuple[int, ...], told: bool) -> Clients:
    random, clients = rng("sparse"), []
    for size in sizes:
        x = random.normal(size=(size, 3))
        y = 1.2 * x[:, 0] + x[:, 0] * x[:, 1] + 0.3 * random.normal(size=size)
        clients.append(dict(x=x, y=(y - y.mean()) / y.std(), rows=sum(sizes) if told else None))
    return named(*clients)


def latent_gp(x: Any, y: Any) -> None:
    with fb.local():
        f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel(x, 1.0, 0.4) + _jitter(x)))
    numpyro.sample("y", dist.Bernoulli(logits=f**3), obs=y)


def latent_gp_length(x: Any, y: Any) -> None:
    length = numpyro.sample("length", dist.LogNormal(-1.0, 0.5))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(jnp.zeros(x.shape[0]), 1.0))
    f = jnp.linalg.cholesky(kernel(x, 1.0, length) + _jitter(x)) @ z
    numpyro.sample("y", dist.Bernoulli(logits=f**3), obs=y)


def _jitter(x: Any) -> Any:
    return 1e-4 * jnp.eye(x.shape[0])


def class_clients() -> Clients:
    random, clients = rng("classes"), []
    for _ in range(3):
        x = np.linspace(-1.0, 1.0, 16)
        f = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.4) ** 2) + 1e-4 * np.eye(16)) @ random.normal(
            size=16
        )
        clients.append(dict(x=x, y=(random.logistic(size=16) < f**3).astype(int)))
    return named(*clients)


def hsgp_shared(x: Any, y: Any) -> None:
    """One curve for everybody, by eight eigenfunctions."""
    alpha = numpyro.sample("alpha", dist.HalfNormal(1.0))
    length = numpyro.sample("length", dist.InverseGamma(10.0, 6.0))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    f = hsgp_squared_exponential(x[:, None], alpha, length, ell=3.0, m=8)
    with numpyro.plate("days", x.shape[0]):
        numpyro.sample("y", dist.Normal(f, noise), obs=y)


def hsgp_weekdays(x: Any, weekday: Any, y: Any) -> None:
    """A curve for every client, with everybody's kernel and everybody's effects of the weekdays."""
    alpha = numpyro.sample("alpha", dist.HalfNormal(1.0))
    length = numpyro.sample("length", dist.InverseGamma(10.0, 6.0))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("weekdays", 6), reparam(config={"effect": TransformReparam()}):
        effect = numpyro.sample(
            "effect",
            dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(0.0, sigma)),
        )
    effect = jnp.pad(effect, (1, 0))
    with fb.local():
        f = hsgp_squared_exponential(x[:, None], alpha, length, ell=3.0, m=6)
    with numpyro.plate("days", x.shape[0]):
        numpyro.sample("y", dist.Normal(f + effect[weekday], noise), obs=y)


def birthday_clients(shared: bool) -> Clients:
    random, clients = rng("birthdays"), []
    for _ in range(4):
        x, weekday = np.linspace(-2.0, 2.0, 42), np.arange(42) % 7
        phase = 0.0 if shared else random.uniform(0.0, 3.0)
        y = np.sin(1.5 * x + phase) + 0.3 * random.normal(size=42)
        if shared:
            keep = np.sort(random.choice(42, 30, replace=False))
            clients.append(dict(x=x[keep], y=y[keep]))
        else:
            effect = np.array([0.0, 0.3, 0.4, 0.3, 0.2, -0.5, -0.7])
            clients.append(dict(x=x, weekday=weekday, y=y + effect[weekday]))
    return named(*clients)


EXAMPLES = (
    Example("gp", "gp.py", gp, lambda: curve_clients("gp", 0.3, (20, 25, 15, 20))),
    Example(
        "thompson_sampling", "thompson_sampling.py", thompson, lambda: curve_clients("thompson", 0.01, (10, 8, 12))
    ),
    Example(
        "sparse_regression as written",
        "sparse_regression.py, prior by rows",
        sparse_kernel,
        lambda: sparse_clients((16, 20, 18), False),
    ),
    Example(
        "sparse_regression",
        "sparse_regression.py, all rows told",
        sparse_kernel,
        lambda: sparse_clients((16, 20, 18), True),
    ),
    Example("dais_demo", "dais_demo.py", latent_gp, class_clients),
    Example("dais_demo length", "dais_demo.py, length unknown", latent_gp_length, class_clients),
    Example("hsgp shared", "hsgp_example.ipynb", hsgp_shared, lambda: birthday_clients(True)),
    Example("hsgp", "hsgp.py, trend and weekdays", hsgp_weekdays, lambda: birthday_clients(False)),
)
