"""Programs with continuous latents of each client: players, departments, regions, patients."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import fedbayes as fb
from examples.example import Clients, Example, named, rng

# hits of 18 players in their first 45 at bats of 1970 (Efron and Morris, 1975, table 1), shuffled into clubs of three
_HITS = np.array([[18, 13, 10], [17, 12, 10], [16, 11, 9], [15, 11, 8], [14, 10, 7], [14, 10, 10]])


def baseball_clients() -> Clients:
    return named(*(dict(at_bats=np.full(3, 45), hits=hits) for hits in _HITS))


def fully_pooled(at_bats: Any, hits: Any = None) -> None:
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    with numpyro.plate("players", at_bats.shape[0]):
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


def not_pooled(at_bats: Any, hits: Any = None) -> None:
    with numpyro.plate("players", at_bats.shape[0]):
        with fb.local():
            phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


def partially_pooled(at_bats: Any, hits: Any = None) -> None:
    m = numpyro.sample("m", dist.Uniform(0.0, 1.0))
    kappa = numpyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with numpyro.plate("players", at_bats.shape[0]):
        with fb.local():
            phi = numpyro.sample("phi", dist.Beta(m * kappa, (1.0 - m) * kappa))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


def partially_pooled_logit(at_bats: Any, hits: Any = None) -> None:
    loc = numpyro.sample("loc", dist.Normal(-1.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("players", at_bats.shape[0]):
        with fb.local():
            alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
        numpyro.sample("hits", dist.Binomial(at_bats, logits=alpha), obs=hits)


# UCBAdmissions, fall 1973 (Bickel, Hammel and O'Connell, 1975): men's and women's applications and admissions
_APPLIED = np.array([[825, 108], [560, 25], [325, 593], [417, 375], [191, 393], [373, 341]])
_ADMITTED = np.array([[512, 89], [353, 17], [120, 202], [138, 131], [53, 94], [22, 24]])


def ucbadmit(male: Any, applied: Any, admitted: Any = None) -> None:
    means = numpyro.sample("means", dist.Normal(0.0, jnp.array([4.0, 1.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0))
    own = (sigma[..., None] * factor) @ z
    logits = means[0] + own[0] + (means[1] + own[1]) * male
    numpyro.sample("admitted", dist.Binomial(applied, logits=logits), obs=admitted)


def ucbadmit_counted(dept: Any, male: Any, applied: Any, admitted: Any = None) -> None:
    means = numpyro.sample("means", dist.Normal(0.0, jnp.array([4.0, 1.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(jnp.zeros((len(np.unique(dept)), 2)), 1.0))
    own = ((sigma[..., None] * factor) @ z.T).T
    logits = means[0] + own[dept, 0] + (means[1] + own[dept, 1]) * male
    numpyro.sample("admitted", dist.Binomial(applied, logits=logits), obs=admitted)


def ucbadmit_sized(dept: Any, male: Any, applied: Any, num_dept: int, admitted: Any = None) -> None:
    means = numpyro.sample("means", dist.Normal(0.0, jnp.array([4.0, 1.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with fb.local():
        z = numpyro.sample("z", dist.Normal(jnp.zeros((num_dept, 2)), 1.0))
    own = ((sigma[..., None] * factor) @ z.T).T
    logits = means[0] + own[dept, 0] + (means[1] + own[dept, 1]) * male
    numpyro.sample("admitted", dist.Binomial(applied, logits=logits), obs=admitted)


def department_clients() -> Clients:
    male = np.array([1.0, 0.0])
    pairs = zip(_APPLIED, _ADMITTED, strict=True)
    return named(*(dict(male=male, applied=applied, admitted=admitted) for applied, admitted in pairs))


def faculty_clients(sized: bool) -> Clients:
    dept, male = np.repeat([0, 1], 2), np.tile([1.0, 0.0], 2)
    clients = []
    for first in (0, 2, 4):
        rows = slice(first, first + 2)
        data = dict(dept=dept, male=male, applied=_APPLIED[rows].ravel(), admitted=_ADMITTED[rows].ravel())
        clients.append({**data, "num_dept": 2} if sized else data)
    return named(*clients)


def mortality(age: Any, area: Any, year: Any, population: Any, areas: int, deaths: Any = None) -> None:
    _mortality(age, area, year, population, deaths, 3, areas, 4)


def mortality_counted(age: Any, area: Any, year: Any, population: Any, deaths: Any = None) -> None:
    sizes = (len(np.unique(age)), len(np.unique(area)), len(np.unique(year)))
    _mortality(age, area, year, population, deaths, *sizes)


def _mortality(age: Any, area: Any, year: Any, population: Any, deaths: Any, ages: int, areas: int, years: int) -> None:
    """A region is a client; age, its slope over the years and the years' drift are everybody's."""
    of_region = numpyro.sample("sigma_region", dist.HalfNormal(1.0))
    of_area = numpyro.sample("sigma_area", dist.HalfNormal(1.0))
    of_age = numpyro.sample("sigma_age", dist.HalfNormal(1.0))
    of_year = numpyro.sample("sigma_year", dist.HalfNormal(1.0))
    with fb.local():
        region = numpyro.sample("region", dist.Normal(0.0, of_region))
        with numpyro.plate("areas", areas, dim=-2):
            level = numpyro.sample("level", dist.Normal(region, of_area))
    with numpyro.plate("ages", ages, dim=-3):
        scale = jnp.pad(jnp.broadcast_to(of_age, ages - 1), (1, 0), constant_values=10.0)[:, None, None]
        by_age = jnp.cumsum(numpyro.sample("age_drift", dist.Normal(0.0, scale)), -3)
    with numpyro.plate("years", years - 1, dim=-1):
        by_year = jnp.pad(jnp.cumsum(numpyro.sample("year_drift", dist.Normal(0.0, of_year)), -1), (1, 0))
    logits = (by_age + level + by_year)[age, area, year]
    with numpyro.plate("cells", population.shape[0]):
        numpyro.sample("deaths", dist.Binomial(population, logits=logits), obs=deaths)


def mortality_clients(sized: bool) -> Clients:
    random, clients = rng("mortality"), []
    for _ in range(5):
        age, area, year = (grid.ravel() for grid in np.meshgrid(range(3), range(2), range(4), indexing="ij"))
        level = -3.0 + 0.4 * random.normal() + 0.3 * random.normal(size=2)
        logits = level[area] + np.array([0.0, 0.7, 1.6])[age] - 0.1 * year
        population = random.integers(200, 500, len(age))
        deaths = random.binomial(population, expit(logits))
        data = dict(age=age, area=area, year=year, population=population, deaths=deaths)
        clients.append({**data, "areas": 2} if sized else data)
    return named(*clients)


def funnel(dim: int = 10) -> None:
    y = numpyro.sample("y", dist.Normal(0.0, 3.0))
    with fb.local():
        numpyro.sample("x", dist.Normal(jnp.zeros(dim - 1), jnp.exp(y / 2.0)))


def observed_funnel(outcome: Any) -> None:
    y = numpyro.sample("y", dist.Normal(0.0, 3.0))
    with fb.local():
        x = numpyro.sample("x", dist.Normal(jnp.zeros(outcome.shape[0]), jnp.exp(y / 2.0)))
    numpyro.sample("outcome", dist.Normal(x, 1.0), obs=outcome)


def funnel_clients() -> Clients:
    random = rng("funnel")
    return named(*(dict(outcome=random.normal(0.0, np.sqrt(1.0 + np.exp(0.5)), size=9)) for _ in range(5)))


def patients(patient: Any, week: Any, num_patients: int, volume: Any = None) -> None:
    """Lung function of a hospital's patients over the weeks, standardised."""
    mean_level = numpyro.sample("mean_level", dist.Normal(0.0, 5.0))
    spread_level = numpyro.sample("spread_level", dist.HalfNormal(2.0))
    mean_slope = numpyro.sample("mean_slope", dist.Normal(0.0, 1.0))
    spread_slope = numpyro.sample("spread_slope", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with fb.local(), numpyro.plate("patients", num_patients):
        level = numpyro.sample("level", dist.Normal(mean_level, spread_level))
        slope = numpyro.sample("slope", dist.Normal(mean_slope, spread_slope))
    with numpyro.plate("rows", week.shape[0]):
        numpyro.sample("volume", dist.Normal(level[patient] + slope[patient] * week, sigma), obs=volume)


def patient_clients() -> Clients:
    random, clients = rng("patients"), []
    for _ in range(4):
        patient, week = np.repeat(np.arange(6), 5), np.tile(np.linspace(-1.0, 1.0, 5), 6)
        level, slope = 2.0 + random.normal(size=6), -0.5 + 0.4 * random.normal(size=6)
        volume = level[patient] + slope[patient] * week + 0.3 * random.normal(size=30)
        clients.append(dict(patient=patient, week=week, num_patients=6, volume=volume))
    return named(*clients)


def imputation(title: Any, age: Any, missing: Any, survived: Any = None) -> None:
    """Ages that are missing are latents of the client, one for every row that has none."""
    by_title = numpyro.sample("by_title", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5).expand([3]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with fb.local():
        imputed = numpyro.sample("imputed", dist.Normal(mean[title[missing]], sigma[title[missing]]).mask(False))
    age = age.at[missing].set(imputed)
    numpyro.sample("age", dist.Normal(mean[title], sigma[title]), obs=age)
    numpyro.sample("survived", dist.Bernoulli(logits=by_title[title] + slope * age), obs=survived)


def imputation_as_written(title: Any, age: Any, survived: Any = None) -> None:
    by_title = numpyro.sample("by_title", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    missing = np.nonzero(np.isnan(age))[0]
    with fb.local():
        imputed = numpyro.sample("imputed", dist.Normal(mean[title[missing]], 1.0).mask(False))
    age = jnp.asarray(age).at[missing].set(imputed)
    numpyro.sample("age", dist.Normal(mean[title], 1.0), obs=age)
    numpyro.sample("survived", dist.Bernoulli(logits=by_title[title] + slope * age), obs=survived)


def imputation_clients(as_written: bool) -> Clients:
    random, clients = rng("imputation"), []
    for size in (40, 40, 40, 40):
        title = random.integers(0, 3, size)
        age = np.array([-0.5, 0.2, 0.8])[title] + np.array([0.5, 0.8, 1.0])[title] * random.normal(size=size)
        survived = (random.logistic(size=size) < np.array([0.5, -0.5, 0.2])[title] - 0.6 * age).astype(int)
        missing = np.sort(random.choice(size, 8, replace=False))
        age[missing] = np.nan if as_written else 0.0
        data = dict(title=title, age=age, survived=survived)
        clients.append(data if as_written else {**data, "missing": missing})
    return named(*clients)


def stacking(expected: Any, x: Any) -> None:
    """Weights of three models, by a client's own intercept and common slopes; log scores of the models are data."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mean, spread).to_event(1))
    logits = jnp.pad(own + x[:, None] * slope, ((0, 0), (0, 1)))
    weights = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=1, keepdims=True))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.factor("score", jnp.log(jnp.sum(jnp.exp(expected + weights), axis=1)))


def stacking_clients() -> Clients:
    random, clients = rng("stacking"), []
    for size in (60, 60, 60, 60, 60):
        x = random.normal(size=size)
        better = random.integers(0, 3, size)
        expected = random.normal(-1.5, 0.3, size=(size, 3)) + 1.5 * (np.arange(3) == better[:, None])
        clients.append(dict(expected=expected, x=x))
    return named(*clients)


EXAMPLES = (
    Example("baseball fully pooled", "baseball.py, fully pooled", fully_pooled, baseball_clients),
    Example("baseball not pooled", "baseball.py, not pooled", not_pooled, baseball_clients),
    Example("baseball partially pooled", "baseball.py, partially pooled", partially_pooled, baseball_clients),
    Example(
        "baseball logit", "baseball.py, partially pooled, logit", partially_pooled_logit, baseball_clients, "centred"
    ),
    Example("ucbadmit", "ucbadmit.py", ucbadmit, department_clients, "a department is a client"),
    Example(
        "ucbadmit counted",
        "ucbadmit.py, `np.unique` of data",
        ucbadmit_counted,
        lambda: faculty_clients(False),
        "two departments a client",
    ),
    Example(
        "ucbadmit sized",
        "ucbadmit.py, the number as argument",
        ucbadmit_sized,
        lambda: faculty_clients(True),
        "two departments a client",
    ),
    Example("mortality", "mortality.py, sizes as arguments", mortality, lambda: mortality_clients(True)),
    Example(
        "mortality counted", "mortality.py, `np.unique` of data", mortality_counted, lambda: mortality_clients(False)
    ),
    Example("funnel", "funnel.py, without data", funnel, lambda: named(dict(dim=10), dict(dim=10), dict(dim=10))),
    Example("funnel centred", "funnel.py, observed with noise", observed_funnel, funnel_clients),
    Example(
        "funnel reparameterised",
        "funnel.py, `LocScaleReparam`",
        reparam(observed_funnel, config={"x": LocScaleReparam(0)}),
        funnel_clients,
        "observed with noise",
    ),
    Example("patients", "bayesian_hierarchical_linear_regression.ipynb", patients, patient_clients),
    Example("imputation", "bayesian_imputation.ipynb, rows as data", imputation, lambda: imputation_clients(False)),
    Example(
        "imputation as written",
        "bayesian_imputation.ipynb, NaN in the data",
        imputation_as_written,
        lambda: imputation_clients(True),
    ),
    Example("stacking", "bayesian_hierarchical_stacking.ipynb", stacking, stacking_clients),
)
