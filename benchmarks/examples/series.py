"""Time series and differential equations."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.experimental.ode import odeint
from numpyro.contrib.control_flow import scan
from numpyro.handlers import condition

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
