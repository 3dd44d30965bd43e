"""Independent locals integrated out one by one: exact where Gaussian, near numerical integrals elsewhere, or told."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from scipy.special import erfcx, ndtri
from scipy.stats import gamma

import fedbayes as fb
from fedbayes.inference.local.density import quadrature
from fedbayes.inference.local.density.conditional import find_singles
from fedbayes.inference.local.log_factors import locals_given, log_factors
from fedbayes.problem.problem import make_problem

LEVELS = np.array([0.001, 0.03, 0.4, 0.5, 0.9, 0.999])
FINE = np.linspace(-40.0, 40.0, 160_001)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def integrated(log_density, start=0.5) -> tuple[float, float, quadrature.Reference]:
    """The log integral of a density of one local, what half of the nodes change, and the reference."""
    total = lambda z: log_density(z[0])  # noqa: E731
    known = quadrature.reference(total, jnp.array([start]))
    value, halved = quadrature.log_integral(total, known)
    return float(value), float(halved), known


def exact(log_density) -> tuple[float, np.ndarray]:
    """The same by 160,000 trapezes, and the quantiles at the levels."""
    logs = np.asarray(jax.vmap(log_density)(jnp.asarray(FINE)))
    density = np.exp(logs - logs.max())
    ends = np.cumsum(density) - 0.5 * density
    return logs.max() + np.log(np.sum(density) * (FINE[1] - FINE[0])), np.interp(LEVELS, ends / density.sum(), FINE)


def binomial(successes: float, trials: float, sd: float):
    return lambda z: successes * z - trials * jnp.logaddexp(0.0, z) - 0.5 * (z / sd) ** 2


def count(number: float, sd: float):
    return lambda z: number * z - jnp.exp(z) - 0.5 * (z / sd) ** 2


def test_gaussian_locals_are_exact_from_anywhere() -> None:
    mean, sd = np.array([-3.0, 0.2, 50.0]), np.array([0.1, 1.0, 7.0])
    known = quadrature.reference(lambda z: -0.5 * jnp.sum(((z - mean) / sd) ** 2), jnp.array([-4.0, 5.0, 0.0]))
    value, halved = quadrature.log_integral(lambda z: -0.5 * jnp.sum(((z - mean) / sd) ** 2), known)
    np.testing.assert_allclose(value, np.sum(np.log(sd)) + 1.5 * np.log(2 * np.pi), rtol=1e-12)
    assert abs(halved) < 1e-12
    assert known.found
    for level in LEVELS:
        np.testing.assert_allclose((quadrature.drawn(known, jnp.full(3, level)) - mean) / sd, ndtri(level), atol=3e-3)


@pytest.mark.parametrize(
    ("log_density", "error"),
    [
        (binomial(1.0, 1.0, 1.0), 5e-5),
        (binomial(9.0, 10.0, 1.0), 5e-5),
        (binomial(20.0, 20.0, 1.5), 2e-4),
        (lambda z: binomial(1.0, 2.0, 1e9)(8.0 * z) - 0.5 * (z - 0.3) ** 2, 1e-2),  # an item that parts sharply
        (count(0.0, 1.0), 1e-4),
        (count(40.0, 3.0), 1e-5),
        (lambda z: -2.5 * jnp.log1p(z**2 / 4.0) - 0.5 * (z - 3.0) ** 2, 1e-3),
        # tails of the prior, several times as wide as the density at its mode: cut there, they are 1e-3 and more
        (binomial(3.0, 3.0, 6.0), 2e-5),
        (binomial(10.0, 10.0, 5.0), 1e-4),
        # cliffs: no events, whose mean is all but unknown
        (count(0.0, 3.0), 1e-3),
        (count(0.0, 7.0), 2e-2),
    ],
)
def test_skewed_locals_are_near_their_numerical_integral_and_know_how_near(log_density, error: float) -> None:
    value, halved, known = integrated(log_density)
    expected, quantiles = exact(log_density)
    assert abs(value - expected) < error
    assert abs(value - expected) <= 3.0 * abs(halved) + 1e-6
    drawn = [float(quadrature.drawn(known, jnp.array([level]))[0]) for level in LEVELS]
    np.testing.assert_allclose(drawn, quantiles, atol=0.06 * float(known.scale[0]))
    both = quadrature.integrated_and_drawn(lambda z: log_density(z[0]), known, jnp.asarray(LEVELS)[:, None])
    np.testing.assert_allclose([both.value, both.halved], [value, halved], rtol=1e-12)
    off = np.abs(both.drawn[:, 0] - quantiles) / float(known.scale[0])
    assert np.max(off[1:-1]) < 0.06
    levels = np.linspace(0.02, 0.98, 97)
    many = quadrature.integrated_and_drawn(lambda z: log_density(z[0]), known, jnp.asarray(levels)[:, None]).drawn
    fine = [float(quadrature.drawn(known, jnp.array([level]))[0]) for level in levels[::8]]
    assert np.max(np.abs(many[::8, 0] - np.array(fine))) < 0.06 * float(known.scale[0])
    assert np.max(off) < 0.4  # beyond the grid, where the tail is taken as exponential


def test_quantiles_from_the_wide_grid_are_within_a_thousandth_where_locals_are_nearly_gaussian() -> None:
    mean, sd = np.array([-3.0, 0.2]), np.array([0.1, 7.0])
    gaussian = lambda z: -0.5 * jnp.sum(((z - mean) / sd) ** 2)  # noqa: E731
    known = quadrature.reference(gaussian, jnp.array([-3.0, 0.0]))
    drawn = quadrature.integrated_and_drawn(gaussian, known, jnp.asarray(LEVELS)[:, None] * jnp.ones(2)).drawn
    np.testing.assert_allclose((drawn - mean) / sd, ndtri(LEVELS)[:, None] * np.ones(2), atol=1e-3)


def test_a_tail_that_falls_exponentially_is_not_cut() -> None:
    """A gamma frailty of shape 1/2 without events, on the logarithmic scale: `exp(z / 2)` to the left of its mode."""
    frailty = lambda z: 0.5 * z - 2.0 * jnp.exp(z)  # noqa: E731
    value, halved, known = integrated(frailty)
    exactly = np.log(np.pi / 2.0) / 2.0  # log Gamma(1/2) - log(2) / 2
    assert abs(value - exactly) < 1e-3
    assert abs(value - exactly) < abs(halved)
    drawn = [float(quadrature.drawn(known, jnp.array([level]))[0]) for level in LEVELS]
    np.testing.assert_allclose(drawn, np.log(gamma(0.5, scale=0.5).ppf(LEVELS)), atol=0.1 * float(known.scale[0]))


@pytest.mark.parametrize("slope", [1e-3, 0.3, 2.0, 40.0, 1e4])
@pytest.mark.parametrize("curvature", [0.0, 1e-9, 0.02, 1.0, 30.0])
def test_the_mass_of_a_tail_is_its_integral(slope: float, curvature: float) -> None:
    """Also where a curvature is next to nothing, and the tail an exponential; with its derivative by the slope."""
    both = lambda slope: quadrature._Ends(jnp.full((2, 1), slope), jnp.full((2, 1), curvature)).mass()[0, 0]  # noqa: E731
    value, derivative = jax.value_and_grad(both)(slope)
    z = slope / np.sqrt(2.0 * curvature) if curvature else np.inf
    exactly = np.sqrt(np.pi / (2.0 * curvature)) * erfcx(z) if z < 1e6 else 1.0 / slope
    np.testing.assert_allclose(value, exactly, rtol=1e-6)
    # R' = x R - 1 for Mills' ratio, which cancels in the far tail: there it is 1 / slope^2
    by_slope = (slope * exactly - 1.0) / curvature if z < 10.0 else -1.0 / (slope**2 + 3.0 * curvature)
    np.testing.assert_allclose(derivative, by_slope, rtol=1e-2)
    if curvature:
        sd, x = np.sqrt(curvature), slope / np.sqrt(curvature)
        mass = lambda sd: quadrature._Ends(jnp.full((2, 1), slope), jnp.full((2, 1), sd**2)).mass()[0, 0]  # noqa: E731
        # R(x) / sd by sd; for large x it is that of 1 / slope - sd^2 / slope^3
        by_sd = -(slope * (slope * exactly - 1.0) + curvature * exactly) / sd**3 if x < 30.0 else -2.0 * sd / slope**3
        np.testing.assert_allclose(jax.grad(mass)(sd), by_sd, rtol=2e-2, atol=1e-9 / slope)


@pytest.mark.parametrize(
    "log_density",
    [binomial(1.0, 1.0, 1.0), binomial(20.0, 20.0, 1.5), binomial(3.0, 3.0, 6.0), count(0.0, 1.0), count(40.0, 3.0)],
)
def test_a_wide_grid_adds_little_to_the_error_of_the_nodes(log_density) -> None:
    total = lambda z: log_density(z[0])  # noqa: E731
    known = quadrature.reference(total, jnp.array([0.5]), nodes=11)
    fine, halved = quadrature.log_integral(total, known, 0.1)
    wide, _ = quadrature.log_integral(total, known, quadrature.WIDE_STEP)
    assert abs(wide - fine) < 0.05 * abs(halved) + 1e-6


@pytest.mark.parametrize("start", [-8.0, -5.0, 6.0])
def test_modes_are_found_from_far_away(start: float) -> None:
    """Where a scale is small a start is hundreds of sds off; steep responses and rates make a step go too far."""
    sharp, rate = binomial(1.0, 2.0, 1e9), count(40.0, 3.0)
    for log_density in (lambda z: -0.5 * (z / 0.01) ** 2, rate, lambda z: sharp(20.0 * z) - 0.5 * z**2):
        assert integrated(log_density, start)[2].found


@pytest.mark.parametrize("start", [-6.0, 2.0, 8.0, 12.0])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_modes_are_found_from_beyond_a_cliff(start: float, scale: float) -> None:
    """Each Newton step down `exp(scale z)` gains a factor of e: from `z = 12` that would be a hundred steps."""
    cliff = lambda z: 300.0 * scale * z[0] - 40.0 * jnp.exp(scale * z[0]) - 0.5 * z[0] ** 2  # noqa: E731
    mode, sd, found = find_singles(cliff, jnp.array([start]))
    assert found
    exactly = brentq(lambda z: float(jax.grad(cliff)(jnp.array([z]))[0]), -5.0, 5.0)
    assert abs(mode[0] - exactly) < 0.1 * sd[0]


def test_the_way_back_from_where_a_density_is_not_finite() -> None:
    """A step from the flat side ends beyond the largest number there is; `log(1 - exp(-exp(z)))` is flat there, too."""
    event = lambda z: 8.0 * jnp.log(-jnp.expm1(-jnp.exp(z[0]))) - 0.5 * jnp.exp(3.0 * z[0]) - 1e-6 * z[0] ** 2  # noqa: E731
    for start in (-300.0, -30.0, 200.0, 400.0):
        mode, sd, found = find_singles(event, jnp.array([start]))
        assert found, start
        exactly = brentq(lambda z: float(jax.grad(event)(jnp.array([z]))[0]), -5.0, 5.0)
        assert abs(mode[0] - exactly) < 0.1 * sd[0]


def test_what_a_spline_can_not_follow_is_told() -> None:
    """A kink; and a density that grows for ever has no mode."""
    _, halved, _ = integrated(lambda z: -6.0 * jnp.abs(z - 0.7) - 0.5 * z**2)
    assert abs(halved) > 0.1
    assert not integrated(lambda z: z)[2].found


def persons(y, number: int) -> None:
    """A rating scale: persons answer items of unknown difficulty, each by an ability of its own."""
    with numpyro.plate("items", 3):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with fb.local(), numpyro.plate("persons", number):
        ability = numpyro.sample("ability", dist.Normal(0.0, tau))
    numpyro.sample("y", dist.Bernoulli(logits=ability[:, None] - difficulty).to_event(2), obs=y)


@pytest.fixture(scope="module")
def school():
    rng = np.random.default_rng(3)
    y = (rng.normal(size=(40, 1)) > 0.5 * rng.logistic(size=(40, 3))).astype(float)
    with jax.enable_x64(True):
        return make_problem(persons, {"a": {"y": y, "number": 40}}).client("a"), y


THETA = np.array([[0.3, -0.4, 0.1, -0.2], [0.0, 0.0, 0.5, 0.4], [1.0, -1.0, 0.0, -1.0]])


def by_trapezes(y: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each person's log marginal, and its mean ability given the globals, on a grid."""
    tau, grid = np.exp(theta[3]), np.linspace(-12.0, 12.0, 4001)
    logits = grid[:, None] - theta[:3]
    logs = logits @ y.T - np.logaddexp(0.0, logits).sum(axis=1)[:, None]
    density = np.exp(logs - 0.5 * (grid[:, None] / tau) ** 2) / (tau * np.sqrt(2 * np.pi))
    return np.log(density.sum(axis=0) * (grid[1] - grid[0])), grid @ density / density.sum(axis=0)


def test_persons_of_a_client_are_integrated_out_together(school) -> None:
    client, y = school
    found = log_factors(client, jnp.asarray(THETA), jnp.zeros(40))
    expected = [by_trapezes(y, theta)[0].sum() for theta in THETA]
    np.testing.assert_allclose(found.values, expected, atol=1e-3)  # 3e-5 a person
    np.testing.assert_array_equal(found.noise, np.zeros(3))
    assert np.all(np.abs(found.values - np.array(expected)) <= np.abs(found.halved) + 1e-6)
    assert np.max(np.abs(found.halved)) < 0.05


@pytest.mark.statistical(key=2, numbers=40, errors=5.0)
def test_their_draws_have_the_law_given_the_globals(school) -> None:
    client, y = school
    num, theta = 2000, THETA[0]
    levels = jax.random.uniform(jax.random.key(2), (num, 40), dtype=jnp.float64)
    z = locals_given(client, jnp.broadcast_to(theta, (num, 4)), jnp.zeros(40), jnp.zeros(num), levels)
    _, mean = by_trapezes(y, theta)
    np.testing.assert_array_less(np.abs(z.mean(axis=0) - mean), 5.0 * np.asarray(z).std(axis=0) / np.sqrt(num))


def test_locals_that_depend_on_each_other_are_drawn() -> None:
    def dependent(y) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with fb.local(), numpyro.plate("two", 2):
            z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=z[0] + 0.5 * z[1]), obs=y)

    client = make_problem(dependent, {"a": {"y": np.array([1.0, 0.0, 1.0])}}).client("a")
    found = log_factors(client, jnp.zeros((2, 1)), jnp.zeros(2))
    assert np.all(np.asarray(found.noise) > 0.0)
