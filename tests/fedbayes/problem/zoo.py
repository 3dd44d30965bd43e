"""NumPyro programs of many kinds, each with the clients' data and what is known about how it splits."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, OrderedTransform
from numpyro.handlers import mask, reparam, scale
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import fedbayes as fb

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Program:
    """A client program, and how it has to split.

    ``rows`` are the clients' numbers of rows; ``paddable`` says that clients of different numbers of rows may share one
    compiled program; ``keywords`` go to ``make_problem``.
    """

    model: Callable
    data: Callable[[np.random.Generator, int], Data]
    globals: tuple[str, ...]
    locals: tuple[str, ...] = ()
    paddable: bool = True
    enumerated: bool = False
    rows: tuple[int, ...] = (1, 5)
    keywords: dict | None = None

    def clients(self) -> dict[str, Data]:
        """The same data at every call."""
        rng = np.random.default_rng(5)
        return {f"client {k}": self.data(rng, n) for k, n in enumerate(self.rows)}


def real(rng: np.random.Generator, n: int) -> Data:
    return {"y": rng.normal(size=n)}


def positive(rng: np.random.Generator, n: int) -> Data:
    return {"y": np.exp(rng.normal(size=n))}


def regression(rng: np.random.Generator, n: int) -> Data:
    return {"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)}


def binary(rng: np.random.Generator, n: int) -> Data:
    return {"x": rng.normal(size=(n, 2)), "y": rng.integers(0, 2, n)}


def counts(rng: np.random.Generator, n: int) -> Data:
    return {"x": rng.normal(size=(n, 2)), "y": rng.poisson(2.0, n)}


def classes(rng: np.random.Generator, n: int) -> Data:
    return {"x": rng.normal(size=n), "y": rng.integers(0, 3, n)}


def linear(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def logistic(x, y=None):
    alpha = numpyro.sample("alpha", dist.Cauchy(0.0, 2.5))
    beta = numpyro.sample("beta", dist.Laplace(0.0, 1.0).expand([2]))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def poisson(x, y=None):
    width = numpyro.sample("width", dist.LogNormal(0.0, 0.5))
    beta = numpyro.sample("beta", dist.Normal(0.0, width).expand([2]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)


def negative_binomial(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ beta), spread), obs=y)


def scales(y=None):
    a = numpyro.sample("a", dist.HalfCauchy(1.0))
    b = numpyro.sample("b", dist.LogNormal(0.3, 0.7))
    c = numpyro.sample("c", dist.InverseGamma(3.0, 2.0))
    d = numpyro.sample("d", dist.Exponential(0.5).expand([2]))
    numpyro.sample("y", dist.Normal(0.0, a + b * c + d.sum()), obs=y)


def interval(y=None):
    share = numpyro.sample("share", dist.Beta(2.0, 3.0))
    edge = numpyro.sample("edge", dist.Uniform(-1.0, 2.0))
    numpyro.sample("y", dist.Normal(edge, 0.1 + share), obs=y)


def dynamic_support(y=None):
    top = numpyro.sample("top", dist.LogNormal(0.0, 1.0))
    inside = numpyro.sample("inside", dist.Uniform(0.0, top))
    numpyro.sample("y", dist.Normal(inside, 1.0), obs=y)


def simplex(y=None):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    numpyro.sample("y", dist.Categorical(p), obs=y)


def softmax_regression(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    design = jnp.stack([jnp.ones_like(x), x], axis=1)
    numpyro.sample("y", dist.Categorical(logits=design @ weights), obs=y)


def multinomial(y=None):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Multinomial(total_count=4, probs=p), obs=y)


def ordered_logistic(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    base = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, OrderedTransform()))
    numpyro.sample("y", dist.OrderedLogistic(beta * x, cuts), obs=y)


def ordered_improper(x, y=None):
    cuts = numpyro.sample("cuts", dist.ImproperUniform(constraints.ordered_vector, (), event_shape=(2,)))
    numpyro.factor("weak", dist.Normal(0.0, 5.0).log_prob(cuts).sum())
    numpyro.sample("y", dist.OrderedLogistic(x, cuts), obs=y)


def correlated(y=None):
    chol = numpyro.sample("chol", dist.LKJCholesky(3, 2.0))
    sds = numpyro.sample("sds", dist.HalfNormal(1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(3), scale_tril=sds[:, None] * chol), obs=y)


def flat(y=None):
    mean = numpyro.sample("mean", dist.ImproperUniform(constraints.real, (), (2,)))
    numpyro.sample("y", dist.Normal(mean[0] + mean[1] ** 3, 1.0), obs=y)


def centred(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(theta, noise), obs=y)


def non_centred(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    theta = numpyro.deterministic("theta", mu + tau * z)
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def effect_per_row(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", y.shape[0]), fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def nested_plates(y=None):
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("columns", 3, dim=-1):
        beta = numpyro.sample("beta", dist.Normal(0.0, tau))
        with numpyro.plate("rows", y.shape[0], dim=-2):
            numpyro.sample("y", dist.Normal(beta, 0.7), obs=y)


def factor_only(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    sd = numpyro.deterministic("sd", jnp.exp(mu))
    numpyro.factor("likelihood", -0.5 * ((y - mu) / sd) ** 2 - jnp.log(sd))


@reparam(config={"theta": LocScaleReparam(0.3)})
def loc_scale_reparam(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


@reparam(config={"theta": TransformReparam()})
def transform_reparam(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    moved = dist.TransformedDistribution(dist.Normal(0.0, 1.0), AffineTransform(mu, 2.0))
    theta = numpyro.sample("theta", moved)
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def unmarked(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(theta.sum(), 1.0), obs=y)


def state_space(y=None):
    decay = numpyro.sample("decay", dist.Uniform(-1.0, 1.0))

    def step(before, value):
        state = numpyro.sample("state", dist.Normal(decay * before, 0.5))
        numpyro.sample("y", dist.Normal(state, 0.3), obs=value)
        return state, None

    scan(step, 0.0, y)


def lagged(y):
    """An autoregression without its first row: the outcomes are fewer than the rows."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * y[:-1], 1.0), obs=y[1:])


def autoregression(y=None):
    decay = numpyro.sample("decay", dist.Uniform(-1.0, 1.0))

    def step(before, value):
        numpyro.sample("y", dist.Normal(decay * before, 0.5), obs=value)
        return value, None

    scan(step, 0.0, y)


def network(x, y=None):
    from flax import linen
    from numpyro.contrib.module import random_flax_module

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(jnp.tanh(linen.Dense(3)(x)))[:, 0]

    net = random_flax_module("net", Net(), dist.Normal(0.0, 1.0), input_shape=(1, 2))
    numpyro.sample("y", dist.Normal(net(x), 0.5), obs=y)


def mixture_member(y=None):
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 2.0]), 1.0).to_event(1))
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with fb.local():
        kind = numpyro.sample("kind", dist.Bernoulli(share))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)


def mixture_rows(y=None):
    means = numpyro.sample("means", dist.Normal(jnp.array([-2.0, 2.0]), 1.0).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        with fb.local():
            kind = numpyro.sample("kind", dist.Categorical(jnp.array([0.3, 0.7])))
        numpyro.sample("y", dist.Normal(means[kind], 1.0), obs=y)


def masked(x, y=None):
    beta = numpyro.sample("beta", dist.StudentT(4.0, 0.0, 1.0))
    with mask(mask=x[:, 0] > 0):
        numpyro.sample("y", dist.StudentT(3.0, beta, 1.0), obs=y)
    numpyro.sample("again", dist.Normal(beta, 1.0).mask(x[:, 1] > 0), obs=y)


def scaled(y=None):
    mu = numpyro.sample("mu", dist.LogNormal(0.0, 1.0))
    with scale(scale=2.5):
        numpyro.sample("y", dist.Gamma(mu, 1.0), obs=y)


def random_walk(y=None):
    path = numpyro.sample("path", dist.GaussianRandomWalk(0.5, 4))
    numpyro.sample("y", dist.Normal(path[-1], 1.0), obs=y)


def multivariate(y=None):
    cov = jnp.array([[1.0, 0.6], [0.6, 2.0]])
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(2), covariance_matrix=cov))
    numpyro.sample("y", dist.MultivariateNormal(mu, jnp.eye(2)), obs=y)


def log_normal_outcome(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    angle = numpyro.sample("angle", dist.VonMises(0.0, 2.0))
    numpyro.sample("y", dist.LogNormal(mu + jnp.sin(angle), 0.5), obs=y)


def joint_over_rows(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand([y.shape[0]]).to_event(1), obs=y)


NETWORK = ("net/Dense_0.bias", "net/Dense_0.kernel", "net/Dense_1.bias", "net/Dense_1.kernel")
PROGRAMS = {
    "linear": Program(linear, regression, ("beta", "sigma")),
    "logistic": Program(logistic, binary, ("alpha", "beta")),
    "poisson": Program(poisson, counts, ("width", "beta")),
    "negative_binomial": Program(negative_binomial, counts, ("beta", "spread")),
    "scales": Program(scales, real, ("a", "b", "c", "d")),
    "interval": Program(interval, real, ("share", "edge")),
    "dynamic_support": Program(dynamic_support, real, ("top", "inside")),
    "lagged": Program(lagged, real, ("slope",), paddable=False, rows=(4, 9)),
    "simplex": Program(simplex, lambda rng, n: {"y": rng.integers(0, 3, n)}, ("p",)),
    "softmax_regression": Program(softmax_regression, classes, ("weights",)),
    "multinomial": Program(multinomial, lambda rng, n: {"y": rng.multinomial(4, [0.2, 0.3, 0.5], n)}, ("p",)),
    "ordered_logistic": Program(ordered_logistic, classes, ("beta", "cuts")),
    "ordered_improper": Program(ordered_improper, classes, ("cuts",)),
    "correlated": Program(correlated, lambda rng, n: {"y": rng.normal(size=(n, 3))}, ("chol", "sds")),
    "flat": Program(flat, real, ("mean",)),
    "centred": Program(centred, real, ("mu", "tau"), ("theta", "noise")),
    "non_centred": Program(non_centred, real, ("mu", "tau"), ("z",), keywords={"local": ("z",)}),
    "effect_per_row": Program(effect_per_row, real, ("mu",), ("theta",), rows=(1, 3)),
    "nested_plates": Program(nested_plates, lambda rng, n: {"y": rng.normal(size=(n, 3))}, ("tau", "beta")),
    "factor_only": Program(factor_only, real, ("mu",)),
    "loc_scale_reparam": Program(loc_scale_reparam, real, ("mu", "tau"), ("theta_decentered",)),
    "transform_reparam": Program(transform_reparam, real, ("mu",), ("theta_base",), keywords={"local": ("theta",)}),
    "unmarked": Program(unmarked, real, ("mu",), ("theta",), keywords={"local": ("theta",)}),
    "state_space": Program(state_space, real, ("decay",), ("state",), rows=(2, 3), keywords={"local": ("state",)}),
    "autoregression": Program(autoregression, real, ("decay",)),
    "network": Program(network, regression, NETWORK),
    "mixture_member": Program(mixture_member, real, ("means", "share"), enumerated=True, paddable=False),
    "mixture_rows": Program(mixture_rows, real, ("means",), enumerated=True, paddable=False),
    "masked": Program(masked, regression, ("beta",)),
    "scaled": Program(scaled, positive, ("mu",)),
    "random_walk": Program(random_walk, real, ("path",)),
    "multivariate": Program(multivariate, lambda rng, n: {"y": rng.normal(size=(n, 2))}, ("mu",)),
    "log_normal_outcome": Program(log_normal_outcome, positive, ("mu", "angle")),
    "joint_over_rows": Program(joint_over_rows, real, ("mu",), paddable=False),
}
