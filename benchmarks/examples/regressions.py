"""Programs whose latents are all global: regressions, truncated and censored outcomes, networks."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit

from examples.example import Clients, Example, named, rng


def minipyro(y: Any = None) -> None:
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)


def minipyro_clients() -> Clients:
    random = rng("minipyro")
    return named(*(dict(y=random.normal(1.0, 1.0, size=rows)) for rows in (20, 35, 50)))


def proportion_test(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.MultivariateNormal(0.0, jnp.eye(x.shape[1])))
    with numpyro.plate("customers", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def logistic_data(name: str, beta: list[float], rows: tuple[int, ...]) -> Clients:
    """Covariates with an intercept, binary outcomes."""
    random, clients = rng(name), []
    for size in rows:
        x = np.column_stack([np.ones(size), random.integers(0, 2, size), random.normal(size=(size, len(beta) - 2))])
        clients.append(dict(x=x, y=(random.uniform(size=size) < expit(x @ np.asarray(beta))).astype(int)))
    return named(*clients)


def subsampled(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), 1.0))
    with numpyro.plate("rows", x.shape[0], subsample_size=16) as chosen:
        numpyro.sample("y", dist.Bernoulli(logits=x[chosen] @ beta), obs=y[chosen])


def all_rows(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), 1.0))
    with numpyro.plate("rows", x.shape[0]) as chosen:
        numpyro.sample("y", dist.Bernoulli(logits=x[chosen] @ beta), obs=y[chosen])


def energy_conserving(x: Any, y: Any = None) -> None:
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(x.shape[1]), 0.5))
    with numpyro.plate("rows", x.shape[0], subsample_size=10):
        batch, outcome = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=batch @ theta), obs=outcome)


def zero_inflated_poisson(x: Any, y: Any = None) -> None:
    gate = numpyro.sample("gate", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    rate = numpyro.sample("rate", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("parties", x.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate=expit(x @ gate), rate=jnp.exp(x @ rate)), obs=y)


def zero_inflated_clients() -> Clients:
    random, clients = rng("zero inflated"), []
    for size in (60, 80, 50, 70):
        x = np.column_stack([np.ones(size), random.integers(0, 2, size), random.normal(size=size)])
        catches = random.poisson(np.exp(x @ [0.5, 0.6, 0.3]))
        clients.append(dict(x=x, y=np.where(random.uniform(size=size) < expit(x @ [-0.5, 0.5, -0.4]), 0, catches)))
    return named(*clients)


def horseshoe(x: Any, y: Any = None, binary: bool = False) -> None:
    size = x.shape[1]
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(size)))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    raw = numpyro.sample("raw", dist.Normal(0.0, jnp.ones(size)))
    beta = numpyro.deterministic("beta", tau * lambdas * raw)
    if binary:
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)
        return
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0 / jnp.sqrt(precision)), obs=y)


def horseshoe_clients(binary: bool) -> Clients:
    random, clients, beta = rng("horseshoe"), [], np.array([1.5, 0.0, 0.0, -1.0])
    for size in (40, 60, 50):
        x = random.normal(size=(size, 4))
        y = (random.logistic(size=size) < x @ beta).astype(int) if binary else x @ beta + 0.7 * random.normal(size=size)
        clients.append(dict(x=x, y=y, binary=binary))
    return named(*clients)


def network(x: Any, y: Any = None, width: int = 2) -> None:
    columns = x.shape[1]
    first = numpyro.sample("first", dist.Normal(jnp.zeros((columns, width)), 1.0))
    second = numpyro.sample("second", dist.Normal(jnp.zeros((width, width)), 1.0))
    last = numpyro.sample("last", dist.Normal(jnp.zeros((width, 1)), 1.0))
    mean = jnp.tanh(jnp.tanh(x @ first) @ second) @ last
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0 / jnp.sqrt(precision)).to_event(1), obs=y)


def one_layer(x: Any, y: Any = None, width: int = 3) -> None:
    scale = numpyro.sample("scale", dist.Gamma(1.0, 0.1))
    precision = numpyro.sample("precision", dist.Gamma(1.0, 0.1))
    sd = 1.0 / jnp.sqrt(scale)
    first = numpyro.sample("first", dist.Normal(0.0, sd).expand([x.shape[1], width]).to_event(2))
    offset = numpyro.sample("offset", dist.Normal(0.0, sd).expand([width]).to_event(1))
    last = numpyro.sample("last", dist.Normal(0.0, sd).expand([width]).to_event(1))
    mean = jnp.maximum(x @ first + offset, 0.0) @ last
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0 / jnp.sqrt(precision)), obs=y)


def network_clients(column: bool) -> Clients:
    random, clients = rng("network"), []
    for size in (30, 40, 30):
        x = np.column_stack([random.uniform(-1.5, 1.5, size), np.ones(size)])
        y = np.tanh(2.0 * x[:, 0]) + 0.2 * random.normal(size=size)
        clients.append(dict(x=x, y=y[:, None] if column else y))
    return named(*clients)


def ordinal(x: Any, y: Any = None) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    base = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    numpyro.sample("y", dist.OrderedLogistic(beta * x, cuts), obs=y)


def ordinal_clients() -> Clients:
    random, clients = rng("ordinal"), []
    for size in (50, 70, 60):
        x = random.normal(size=size)
        latent = 1.2 * x + random.logistic(size=size)
        clients.append(dict(x=x, y=np.searchsorted([-1.0, 0.3, 1.5], latent)))
    return named(*clients)


def truncated_normal(y: Any = None) -> None:
    loc = numpyro.sample("loc", dist.Normal())
    scale = numpyro.sample("scale", dist.LogNormal())
    with numpyro.plate("rows", 40 if y is None else y.shape[0]):
        numpyro.sample("y", dist.TruncatedNormal(loc, scale, high=1.2), obs=y)


def unknown_bound(y: Any = None) -> None:
    loc = numpyro.sample("loc", dist.Normal())
    scale = numpyro.sample("scale", dist.LogNormal())
    high = numpyro.sample("high", dist.Normal(3.0, 1.0))
    with numpyro.plate("rows", 40 if y is None else y.shape[0]):
        numpyro.sample("y", dist.TruncatedNormal(loc, scale, high=high), obs=y)


def bound_from_data(y: Any = None) -> None:
    loc = numpyro.sample("loc", dist.Normal())
    scale = numpyro.sample("scale", dist.LogNormal())
    delta = numpyro.sample("delta", dist.HalfNormal())
    high = numpyro.deterministic("high", delta + y.max())
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.TruncatedNormal(loc, scale, high=high), obs=y)


def folded_student(y: Any = None) -> None:
    df = numpyro.sample("df", dist.Gamma(6.0, 2.0))
    loc = numpyro.sample("loc", dist.Normal())
    scale = numpyro.sample("scale", dist.LogNormal())
    with numpyro.plate("rows", 40 if y is None else y.shape[0]):
        numpyro.sample("y", dist.FoldedDistribution(dist.StudentT(df, loc, scale)), obs=y)


def truncated_poisson(y: Any = None) -> None:
    low = numpyro.sample("low", dist.Categorical(0.2 * jnp.ones(5)))
    rate = numpyro.sample("rate", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        below = jnp.sum(jnp.exp(dist.Poisson(rate).log_prob(jnp.arange(5))) * (jnp.arange(5) < low))
        numpyro.factor("truncated", -jnp.log1p(-below) * jnp.ones(y.shape[0]))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def truncated_clients(kind: str) -> Clients:
    random, clients = rng(f"truncated {kind}"), []
    for size in (40, 60, 50):
        y = random.normal(0.5, 1.0, size=6 * size)
        if kind == "folded":
            y = np.abs(0.5 + random.standard_t(4.0, size=size))
        elif kind == "poisson":
            y = random.poisson(3.0, size=6 * size)
            y = y[y >= 1]
        else:
            y = y[y < 1.2]
        clients.append(dict(y=y[:size]))
    return named(*clients)


def censored(x: Any, time: Any, event: Any) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    rate = jnp.exp(x @ beta)
    with numpyro.plate("patients", x.shape[0]):
        numpyro.factor("survival", event * jnp.log(rate) - rate * time)


def censored_clients() -> Clients:
    random, clients = rng("censored"), []
    for size in (40, 55, 70):
        x = np.column_stack([np.ones(size), random.normal(size=size)])
        time = random.exponential(1.0 / np.exp(x @ [-0.5, 0.6]))
        clients.append(dict(x=x, time=np.minimum(time, 2.0), event=(time < 2.0).astype(float)))
    return named(*clients)


def cuped(before: Any, treated: Any, after: Any) -> None:
    centre = numpyro.sample("centre", dist.Normal(0.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.0))
    with numpyro.plate("first", before.shape[0]):
        numpyro.sample("after", dist.Normal(centre + theta * before, spread), obs=after)
    adjusted = numpyro.deterministic("adjusted", after - theta * (before - jnp.mean(before)))
    with numpyro.plate("second", before.shape[0]):
        numpyro.sample("effect", dist.Normal(intercept + beta * treated, sigma), obs=adjusted)


def cuped_clients() -> Clients:
    random, clients = rng("cuped"), []
    for size in (50, 70, 60):
        before, treated = random.normal(size=size), random.integers(0, 2, size).astype(float)
        after = 0.3 + 0.8 * before + 0.5 * treated + 0.5 * random.normal(size=size)
        clients.append(dict(before=before, treated=treated, after=after))
    return named(*clients)


def gaussian_shell(y: Any) -> None:
    x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([2]).to_event(1))
    distance = jnp.linalg.norm(x - y, axis=-1)
    numpyro.factor("shell", -0.5 * ((distance - 2.0) / 0.3) ** 2)


def two_shells(y: Any) -> None:
    which = numpyro.sample("which", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([2]).to_event(1))
    distance = jnp.linalg.norm(x - y[which], axis=-1)
    numpyro.factor("shell", -0.5 * ((distance - 2.0) / 0.1) ** 2)


def shell_clients() -> Clients:
    point = np.array([0.5, -0.3])
    angles = (0.3, 2.2, 4.4)
    return named(*(dict(y=(point + 2.0 * np.array([np.cos(a), np.sin(a)]))[None]) for a in angles))


def two_shell_clients() -> Clients:
    centres = np.array([[-3.5, 0.0], [3.5, 0.0]])
    return named(*(dict(y=centres + shift) for shift in (0.0, 0.1, -0.1)))


EXAMPLES = (
    Example("minipyro", "minipyro.py", minipyro, minipyro_clients),
    Example(
        "proportion_test",
        "proportion_test.py",
        proportion_test,
        lambda: logistic_data("proportion", [-1.5, 0.6, 0.1], (150, 100, 200)),
    ),
    Example(
        "covtype subsampled",
        "covtype.py",
        subsampled,
        lambda: logistic_data("covtype", [0.5, -0.5, 1.0, 0.3], (40, 40, 40)),
    ),
    Example(
        "covtype",
        "covtype.py, all rows",
        all_rows,
        lambda: logistic_data("covtype", [0.5, -0.5, 1.0, 0.3], (40, 60, 50)),
    ),
    Example("hmcecs", "hmcecs.py", energy_conserving, lambda: logistic_data("hmcecs", [0.5, -0.5, 1.0], (40, 40, 40))),
    Example("zero_inflated_poisson", "zero_inflated_poisson.py", zero_inflated_poisson, zero_inflated_clients),
    Example("horseshoe normal", "horseshoe_regression.py, normal", horseshoe, lambda: horseshoe_clients(False)),
    Example("horseshoe bernoulli", "horseshoe_regression.py, Bernoulli", horseshoe, lambda: horseshoe_clients(True)),
    Example("bnn", "bnn.py", network, lambda: network_clients(True), "width 2; NUTS may not mix: signs and order"),
    Example("stein_bnn", "stein_bnn.py", one_layer, lambda: network_clients(False), "width 3; as above"),
    Example("ordinal", "ordinal_regression.ipynb", ordinal, ordinal_clients),
    Example("truncated normal", "truncated_distributions.ipynb", truncated_normal, lambda: truncated_clients("normal")),
    Example(
        "truncated, bound unknown",
        "truncated_distributions.ipynb",
        unknown_bound,
        lambda: truncated_clients("bound"),
    ),
    Example(
        "truncated, bound by data",
        "truncated_distributions.ipynb",
        bound_from_data,
        lambda: truncated_clients("bound"),
        "each client's bound begins at its own largest value",
    ),
    Example("folded student", "truncated_distributions.ipynb", folded_student, lambda: truncated_clients("folded")),
    Example(
        "truncated poisson", "truncated_distributions.ipynb", truncated_poisson, lambda: truncated_clients("poisson")
    ),
    Example("censoring", "censoring.ipynb", censored, censored_clients, "by `numpyro.factor`"),
    Example("cuped", "bayesian_cuped.ipynb", cuped, cuped_clients),
    Example(
        "gaussian_shells",
        "gaussian_shells.py, one shell a client",
        gaussian_shell,
        shell_clients,
        "width 0.3; the third shell tells the two points apart at which the others meet",
    ),
    Example("gaussian_shells enum", "gaussian_shells.py, which shell enumerated", two_shells, two_shell_clients),
)
