"""Time series, Gaussian processes and differential equations."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.experimental.ode import odeint
from numpyro.contrib.control_flow import scan
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.handlers import condition, reparam
from numpyro.infer.reparam import TransformReparam

import fedbayes as fb
from examples.example import Clients, Example, named, rng


def ar2_scan(y: Any) -> None:
    a1, a2, const, sigma = _ar2_latents()

    def step(carry: Any, _: Any) -> Any:
        before, earlier = carry
        value = numpyro.sample("y", dist.Normal(const + a1 * before + a2 * earlier, sigma))
        return (value, before), None

    with condition(data={"y": y[2:]}):
        scan(step, (y[1], y[0]), jnp.arange(y.shape[0] - 2))


def ar2_loop(y: Any) -> None:
    a1, a2, const, sigma = _ar2_latents()
    for t in range(2, len(y)):
        numpyro.sample(f"y_{t}", dist.Normal(const + a1 * y[t - 1] + a2 * y[t - 2], sigma), obs=y[t])


def _ar2_latents() -> Any:
    a1, a2, const = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("a1", "a2", "const"))
    return a1, a2, const, numpyro.sample("sigma", dist.HalfNormal(1.0))


def ar2_clients(steps: tuple[int, ...]) -> Clients:
    random, clients = rng("ar2"), []
    for size in steps:
        y = [0.0, 0.3]
        for _ in range(size - 2):
            y.append(0.3 + 0.5 * y[-1] - 0.3 * y[-2] + 0.5 * random.normal())
        clients.append(dict(y=np.array(y)))
    return named(*clients)


def var2(y: Any) -> None:
    size = y.shape[1]
    const = numpyro.sample("const", dist.Normal(0.0, 1.0).expand([size]))
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([size, size]).to_event(2))
    second = numpyro.sample("second", dist.Normal(0.0, 1.0).expand([size, size]).to_event(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0).expand([size]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(size, concentration=1.0))
    scale = sigma[..., None] * factor

    def step(carry: Any, value: Any) -> Any:
        before, earlier = carry
        mean = const + first @ before + second @ earlier
        value = numpyro.sample("y", dist.MultivariateNormal(mean, scale_tril=scale), obs=value)
        return (value, before), mean

    _, mean = scan(step, (y[1], y[0]), y[2:])
    numpyro.deterministic("mean", mean)


def var2_clients() -> Clients:
    random, clients = rng("var2"), []
    first, second = np.array([[0.5, 0.1], [-0.2, 0.4]]), np.array([[-0.2, 0.0], [0.1, -0.1]])
    noise = np.array([[0.5, 0.0], [0.3, 0.4]])
    for size in (40, 50, 45):
        y = [np.zeros(2), np.zeros(2)]
        for _ in range(size - 2):
            y.append(0.1 + first @ y[-1] + second @ y[-2] + noise @ random.normal(size=2))
        clients.append(dict(y=np.array(y)))
    return named(*clients)


def holt_winters(y: Any, seasons: int = 4) -> None:
    """A shop's sales: smoothing is everybody's; level, trend and season at the beginning are the shop's."""
    of_level, of_trend, of_season = (numpyro.sample(f"of_{name}", dist.Beta(1.0, 1.0)) for name in _PARTS)
    of_season = of_season * (1.0 - of_level)
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with fb.local():
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        trend = numpyro.sample("trend", dist.Normal(0.0, 1.0))
        with numpyro.plate("seasons", seasons):
            season = numpyro.sample("season", dist.Normal(0.0, 1.0))

    def step(carry: Any, t: Any) -> Any:
        level, trend, season = carry
        new_level = of_level * (y[t] - season[0]) + (1.0 - of_level) * (level + trend)
        new_trend = of_trend * (new_level - level) + (1.0 - of_trend) * trend
        new_season = of_season * (y[t] - (level + trend)) + (1.0 - of_season) * season[0]
        numpyro.sample("sales", dist.Normal(level + trend + season[0], noise))
        return (new_level, new_trend, jnp.concatenate([season[1:], new_season[None]])), None

    with condition(data={"sales": y}):
        scan(step, (level, trend, season), jnp.arange(y.shape[0]))


_PARTS = ("level", "trend", "season")


def sales_clients() -> Clients:
    random, clients = rng("sales"), []
    for _ in range(4):
        level = 0.5 + np.cumsum(0.05 + 0.2 * random.normal(size=40))
        season = np.tile([0.5, -0.3, 0.2, -0.4], 10)
        clients.append(dict(y=level + season + 0.2 * random.normal(size=40)))
    return named(*clients)


def volatility(returns: Any) -> None:
    step = numpyro.sample("step", dist.Exponential(10.0))
    with fb.local():
        s = numpyro.sample("s", dist.GaussianRandomWalk(scale=step, num_steps=returns.shape[0]))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    numpyro.sample("returns", dist.StudentT(df=nu, loc=0.0, scale=jnp.exp(s)), obs=returns)


def return_clients() -> Clients:
    random, clients = rng("returns"), []
    for _ in range(4):
        s = np.cumsum(0.25 * random.normal(size=25))
        clients.append(dict(returns=np.exp(s) * random.standard_t(6.0, size=25)))
    return named(*clients)


def seasonal_trend(y: Any, seasons: int = 4) -> None:
    """The beginning of SGT, whose priors are as wide as the series says."""
    width = jnp.max(y) / 150.0
    sigma = numpyro.sample("sigma", dist.HalfCauchy(width))
    coefficient = numpyro.sample("coefficient", dist.Cauchy(0.0, width))
    power = numpyro.sample("power", dist.Beta(1.0, 1.0))
    numpyro.sample("y", dist.Normal(y[:-1] + coefficient * y[:-1] ** power, sigma), obs=y[1:])


def growth_clients() -> Clients:
    random = rng("growth")
    return named(*(dict(y=50.0 + np.cumsum(1.0 + random.normal(size=40))) for _ in range(3)))


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


def _predator_and_prey(z: Any, t: Any, theta: Any) -> Any:
    prey, predator = z
    return jnp.stack([(theta[0] - theta[1] * predator) * prey, (-theta[2] + theta[3] * prey) * predator])


def lotka_volterra(y: Any) -> None:
    with fb.local():
        start = numpyro.sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
    theta = _rates()
    times = jnp.arange(float(y.shape[0]))
    z = odeint(_predator_and_prey, start, times, theta, rtol=1e-6, atol=1e-5, mxstep=1000)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)


def lotka_volterra_missing(y: Any, seen: Any) -> None:
    with fb.local():
        start = numpyro.sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
    theta = _rates()
    times = jnp.arange(float(y.shape[0]))
    z = odeint(_predator_and_prey, start, times, theta, rtol=1e-6, atol=1e-5, mxstep=1000)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma).mask(seen), obs=y)


def lotka_volterra_steps(y: Any) -> None:
    """The same by Runge-Kutta with fixed steps, which can be differentiated twice."""
    with fb.local():
        start = numpyro.sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
    theta = _rates()

    def step(z: Any) -> Any:
        h = 0.25
        k1 = _predator_and_prey(z, 0.0, theta)
        k2 = _predator_and_prey(z + 0.5 * h * k1, 0.0, theta)
        k3 = _predator_and_prey(z + 0.5 * h * k2, 0.0, theta)
        k4 = _predator_and_prey(z + h * k3, 0.0, theta)
        return z + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    def year(z: Any, _: Any) -> Any:
        after = step(step(step(step(z))))
        return after, z

    _, z = lax.scan(year, start, None, y.shape[0])
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)


def _rates() -> Any:
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    return numpyro.sample("theta", dist.TruncatedNormal(low=0.0, loc=loc, scale=scale))


def population_clients(missing: bool = False) -> Clients:
    from scipy.integrate import solve_ivp

    random, clients = rng("populations"), []
    for start in ((30.0, 6.0), (20.0, 10.0), (40.0, 8.0)):
        solved = solve_ivp(
            lambda t, z: [(0.55 - 0.028 * z[1]) * z[0], (-0.8 + 0.026 * z[0]) * z[1]],
            (0.0, 14.0),
            start,
            t_eval=np.arange(15.0),
            rtol=1e-8,
        )
        y = solved.y.T * np.exp(0.25 * random.normal(size=(15, 2)))
        if missing:
            seen = random.uniform(size=(15, 2)) < 0.8
            clients.append(dict(y=np.where(seen, y, 1.0), seen=seen))
        else:
            clients.append(dict(y=y))
    return named(*clients)


EXAMPLES = (
    Example("ar2 scan", "ar2.py, scan", ar2_scan, lambda: ar2_clients((40, 60, 50))),
    Example("ar2 loop", "ar2.py, loop", ar2_loop, lambda: ar2_clients((20, 20, 20)), "one site a step"),
    Example(
        "ar2 loop ragged", "ar2.py, loop", ar2_loop, lambda: ar2_clients((16, 20, 18)), "series of different lengths"
    ),
    Example("var2", "var2.py", var2, var2_clients),
    Example("holt_winters", "holt_winters.py", holt_winters, sales_clients),
    Example("stochastic_volatility", "stochastic_volatility.py", volatility, return_clients, "25 days a client"),
    Example("time series forecasting", "time_series_forecasting.ipynb", seasonal_trend, growth_clients, "its priors"),
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
    Example("ode", "ode.py", lotka_volterra, population_clients, "by `odeint`"),
    Example("ode by fixed steps", "ode.py", lotka_volterra_steps, population_clients, "by Runge-Kutta"),
    Example(
        "lotka_volterra_multiple",
        "lotka_volterra_multiple.ipynb",
        lotka_volterra_missing,
        lambda: population_clients(True),
        "missing values masked",
    ),
)
