"""Fed-ensemble against closed forms: where modes end, how fast, what they are draws of; who trains what."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from scipy.stats import multivariate_normal

import fedbayes as fb
from fedbayes.inference.fed_ensemble import perturbation
from fedbayes.inference.fed_ensemble.teams import first_assignment, next_assignment
from fedbayes.models import heart_disease
from fedbayes.problem.problem import make_problem
from fedbayes.problem.program.prior import make_prior
from fedbayes.theory import ensemble as theory

KEY = jax.random.key(0)
STILL = {"schedule": lambda round: 0.0 * round}  # the modes stay at their starts
UNIFORM = 4.0 / 3.0  # variance of a start, uniform in (-2, 2)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def plane(x, y=None) -> None:
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (x.shape[1],)))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def wide(num_clients=12, rows=2, dim=100, seed=0) -> dict:
    """Fewer rows than features: every mode can interpolate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_clients, rows, dim)) / np.sqrt(dim)
    return {f"c{k}": {"x": x[k], "y": rng.normal(size=rows)} for k in range(num_clients)}


def pooled(clients) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate([client[name] for client in clients.values()]) for name in ("x", "y"))


def fitted(model, clients, num_rounds=None, *, method=fb.FedEnsemble, key=KEY, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configured = method(**{"max_rounds": num_rounds or 200, **options})
        return fb.fit_federated(model, clients, method=configured, key=key, num_rounds=num_rounds, progress=False)


def modes(fit, name="w") -> np.ndarray:
    return fit.idata.posterior[name].values[0]


@pytest.mark.parametrize("assignment", ["random", "latin", "all"])
@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 3},
        {"epochs": 2, "batch_size": 1, "optimizer": optax.sgd(0.05), "server_optimizer": optax.adam(0.1)},
    ],
    ids=["steps", "batches"],
)
def test_one_mode_is_fedavg_bit_for_bit(assignment, options) -> None:
    clients = wide(5, 3, 4)
    ensemble = fitted(plane, clients, 7, num_modes=1, assignment=assignment, **options)
    alone = fitted(plane, clients, 7, method=fb.FedAvg, laplace=False, init="random", **options)
    np.testing.assert_array_equal(modes(ensemble), modes(alone))
    np.testing.assert_array_equal(ensemble.rounds["objective"].values[:, 0], alone.rounds["objective"].values)


@pytest.mark.parametrize(
    "who",
    [
        {"num_strata": 4, "clients_per_stratum": 1},
        pytest.param({"assignment": "latin"}, marks=[pytest.mark.slow, pytest.mark.optimised]),
        pytest.param({"assignment": "all", "tolerance": 1e-12}, marks=[pytest.mark.slow, pytest.mark.optimised]),
    ],
    ids=["one of each stratum", "latin", "all"],
)
def test_modes_end_where_they_interpolate(who) -> None:
    """Exact for every assignment: 400 ages of five rounds, as in the notes, which reach 4e-8."""
    clients, options = wide(), {"local_steps": 7, "step_size": 0.8, "num_modes": 5}
    starts = modes(fitted(plane, clients, 1, **options, **STILL))
    ended = modes(fitted(plane, clients, 2000, **options, **who))
    expected = theory.interpolated(starts, *pooled(clients))
    assert np.abs(expected - starts).max() > 0.5
    np.testing.assert_allclose(ended, expected, atol=4e-8)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("num_modes", [1, 3, 5])
def test_training_error_falls_at_the_corrected_rate(num_modes) -> None:
    """Along the slowest direction, within ten percent; and by a third of it at least, from wherever it begins."""
    clients, options = wide(20 // num_modes * num_modes, 2, 80), {"local_steps": 5, "step_size": 0.1}
    x, y = pooled(clients)
    rate = theory.rate(x, 0.1, 5, len(y) / num_modes)
    slowest = np.linalg.svd(x)[2][len(y) - 1]
    start = theory.interpolated(np.zeros((1, 80)), x, y)[0] + slowest

    def error(ages: int, **more) -> float:
        method = {"num_modes": num_modes, "assignment": "latin", **options, **more}
        return np.linalg.norm(x @ modes(fitted(plane, clients, ages * num_modes, **method))[0] - y)

    at = {"init": {"w": start}}
    np.testing.assert_allclose(np.log(error(40, **at) / error(120, **at)) / 80.0, rate, rtol=0.1)
    begin = np.linalg.norm(x @ modes(fitted(plane, clients, 1, num_modes=num_modes, **STILL))[0] - y)
    for ages in (1, 10, 120):
        assert error(ages) <= np.exp(-rate * ages / 3.0) * begin


def test_gaussian_process_limit_has_its_special_case() -> None:
    """``K = s^2 Theta`` is the posterior of a Gaussian process without noise."""
    features = np.random.default_rng(1).normal(size=(9, 20))
    kernel, y = features @ features.T, np.arange(6.0)
    mean, covariance = theory.gaussian_process_limit(kernel, 0.7 * kernel, y)
    inside = np.linalg.solve(kernel[:6, :6], kernel[:6, 6:])
    np.testing.assert_allclose(mean, inside.T @ y, atol=1e-12)
    np.testing.assert_allclose(covariance, 0.7 * (kernel[6:, 6:] - kernel[6:, :6] @ inside), atol=1e-12)
    other = kernel + np.diag(np.arange(9.0))  # and the general case by its definition
    weights = np.hstack([-np.linalg.solve(kernel[:6, :6], kernel[:6, 6:]).T, np.eye(3)])
    general = theory.gaussian_process_limit(kernel, other, y)[1]
    np.testing.assert_allclose(general, weights @ other @ weights.T, atol=1e-11)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=9, errors=5.0)
def test_modes_are_draws_of_the_gaussian_process() -> None:
    """800 modes: mean and covariance at new points within five Monte Carlo errors; none at the training points."""
    clients, num = wide(4, 2, 20), 800
    x, y = pooled(clients)
    found = modes(fitted(plane, clients, 3000, num_modes=num, assignment="all", local_steps=5, step_size=0.8))
    np.testing.assert_allclose(found @ x.T, np.tile(y, (num, 1)), atol=5e-2)
    new = np.random.default_rng(5).normal(size=(3, 20)) / np.sqrt(20.0)
    both = np.concatenate([x, new])
    mean, covariance = theory.gaussian_process_limit(both @ both.T, UNIFORM * both @ both.T, y)
    predictions = found @ new.T
    variance = np.diagonal(covariance)
    np.testing.assert_allclose(predictions.mean(axis=0), mean, atol=5.0 * np.sqrt(variance.max() / num))
    error = 5.0 * np.sqrt((np.outer(variance, variance) + covariance**2) / num)
    assert np.all(np.abs(np.cov(predictions.T) - covariance) < error)


@pytest.mark.parametrize(
    ("separation", "sd", "gap"),
    [(6.0, 0.5, 0.25), (6.0, 0.2, 0.041), (6.0, 0.1, 0.011), (6.0, 0.02, -0.0002), (0.12, 0.2, 0.69)],
)
def test_divergence_of_narrow_mixtures(separation, sd, gap) -> None:
    """Two points of a standard normal in the plane, by quadrature; close together they lose the entropy log 2."""
    centres = np.array([[-separation / 2, 0.0], [separation / 2, 0.0]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / (2.0 * np.pi)

    def log_mixture(at: np.ndarray) -> np.ndarray:
        each = [multivariate_normal(centre, sd**2).logpdf(at) for centre in centres]
        return np.logaddexp(*each) - np.log(2.0)

    target = multivariate_normal(np.zeros(2))
    exact = np.mean([mass @ (log_mixture(c + sd * grid) - target.logpdf(c + sd * grid)) for c in centres])
    formula = theory.mixture_divergence(target.logpdf(centres), 2, sd)
    assert exact - formula == pytest.approx(gap, abs=0.02)


def assignments(num_ages=4, num_clients=12, **options):
    config = fb.FedEnsemble(**options)
    assert config.assignment == options.get("assignment", "latin")
    found = [first_assignment(config, num_clients, KEY)]
    for round_ in range(num_ages * config.num_modes - 1):
        found.append(next_assignment(config, found[-1], jax.random.key(round_ + 1)))
    return [jax.tree.map(np.asarray, each) for each in found]


@pytest.mark.parametrize("assignment", ["random", "latin"])
@pytest.mark.parametrize("num_strata", [None, 4])
def test_each_mode_visits_each_stratum_once_in_an_age(assignment, num_strata) -> None:
    found = assignments(assignment=assignment, num_strata=num_strata, num_modes=3)
    for age in range(4):
        teams = np.stack([each.team for each in found[3 * age : 3 * age + 3]])
        np.testing.assert_array_equal(np.sort(teams, axis=0), np.repeat(np.arange(3)[:, None], 12, axis=1))
    strata = [each.strata for each in found]
    assert all(np.array_equal(strata[0], each) for each in strata)
    counts = np.bincount(strata[0])
    assert counts.max() - counts.min() <= 1
    assert len(counts) == (num_strata or 12)
    assert len({each.plan.tobytes() for each in found}) > 1
    if assignment == "latin" and num_strata is None:
        assert all((np.bincount(each.team) == 4).all() for each in found)


def test_clients_of_each_stratum_are_drawn_afresh() -> None:
    found = assignments(num_strata=3, clients_per_stratum=2)
    for each in found:
        np.testing.assert_array_equal(np.bincount(each.strata, weights=each.drawn), 2)
    assert np.stack([each.drawn for each in found]).any(axis=0).all()
    fit = fitted(plane, wide(), 6, num_strata=3, clients_per_stratum=2, num_modes=2)
    np.testing.assert_array_equal(fit.rounds["active"].values[1:].sum(axis=1), 6)


def test_a_client_gets_one_mode_and_a_mode_without_clients_stays() -> None:
    clients, options = wide(2, 2, 30), {"local_steps": 2, "step_size": 0.5}
    fit = fitted(plane, clients, 1, num_modes=5, **options)
    starts = modes(fitted(plane, clients, 1, num_modes=5, **options, **STILL))
    team = fit.rounds["team"].values[-1, :, 0].astype(int)
    idle = np.setdiff1d(np.arange(5), team)
    np.testing.assert_array_equal(modes(fit)[idle], starts[idle])
    assert np.all(np.abs(modes(fit)[team] - starts[team]).max(axis=1) > 0.0)
    assert np.isnan(fit.rounds["objective"].values[-1, 0, idle]).all()
    alone = fitted(plane, clients, 1, method=fb.FedAvg, laplace=False, init="random", **options)
    sizes = [int(each.rounds[name].values[-1]) for each in (fit, alone) for name in ("bytes_down", "bytes_up")]
    assert sizes[:2] == sizes[2:]


def test_modes_that_idle_are_announced() -> None:
    method = fb.FedEnsemble(num_modes=5, max_rounds=1)
    roster = make_problem(plane, wide(2, 2, 30)).roster
    with pytest.warns(UserWarning, match="2 clients take part in a round: 3 or more modes idle"):
        method.phases(roster)


def normal(x, y) -> None:
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.array([0.5, -1.0, 0.0]), COVARIANCE))
    numpyro.sample("y", dist.Normal(x @ w, 1.5), obs=y)


COVARIANCE = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, -0.3], [0.0, -0.3, 0.5]])


def narrow() -> dict:
    """Clients that differ in rows and covariates; some know less than the prior."""
    rng = np.random.default_rng(3)
    clients = {}
    for k, rows in enumerate((1, 2, 5)):
        x = rng.normal(size=(rows, 3)) * np.array([1.0, 0.7, 1.5])
        clients[f"c{k}"] = {"x": x, "y": x @ np.array([1.0, 0.0, -1.0]) + 1.5 * rng.normal(size=rows)}
    return clients


def conjugate(clients) -> tuple[np.ndarray, np.ndarray]:
    x, y = pooled(clients)
    inverse = np.linalg.inv(COVARIANCE)
    covariance = np.linalg.inv(inverse + x.T @ x / 2.25)
    return covariance @ (inverse @ np.array([0.5, -1.0, 0.0]) + x.T @ y / 2.25), covariance


RANDOMISED = {"assignment": "all", "randomised": True, "local_steps": 1, "num_modes": 2500, "init": "zero"}


def misfit(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Of moments, in Monte Carlo errors: the largest over the entries."""
    variance, num = np.diagonal(covariance), len(draws)
    of_mean = (draws.mean(axis=0) - mean) / np.sqrt(variance / num)
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / num)
    return max(np.abs(of_mean).max(), (np.abs(np.cov(draws.T) - covariance) / error).max())


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=9, errors=5.0)
def test_randomised_modes_are_draws_of_the_conjugate_posterior() -> None:
    """Mean and covariance of 2,500 modes within five Monte Carlo errors."""
    clients = narrow()
    fit = fitted(normal, clients, 600, **RANDOMISED)
    assert fit.converged
    assert misfit(modes(fit), *conjugate(clients)) < 5.0
    assert "independent draws of the posterior" in fit.idata.posterior.attrs["draws"]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, alarm=1e-8)
def test_planted_bug_a_prior_without_noise_makes_too_narrow_draws(monkeypatch) -> None:
    monkeypatch.setattr(perturbation, "prior_noise", lambda prior, theta, key, *, independent: jnp.zeros_like(theta))
    clients = narrow()
    # by the draws' own law 10.8 and 10.1 for the two largest entries, with sds of 0.7
    assert misfit(modes(fitted(normal, clients, 600, **RANDOMISED)), *conjugate(clients)) > 6.0


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=28, errors=5.0)
def test_randomised_modes_of_logistic_regression_have_the_posterior_s_spread() -> None:
    """The hospitals: sds of 640 modes within 15 percent of Laplace's, five times their Monte Carlo error."""
    clients = heart_disease.clients()
    options = {"assignment": "all", "randomised": True, "local_steps": 1, "num_modes": 640, "init": "zero"}
    momentum = optax.sgd(1.0, momentum=0.9)
    fit = fitted(heart_disease.model, clients, 400, server_optimizer=momentum, **options)
    laplace = fb.fit_federated(heart_disease.model, clients, method="laplace", key=KEY, progress=False)
    mean, covariance = laplace.moments()
    draws = fit.theta[0]
    sd = np.sqrt(np.diagonal(covariance[0]))
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1.0, atol=0.15)
    np.testing.assert_allclose((draws.mean(axis=0) - mean[0]) / sd, 0.0, atol=0.3)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=9, errors=5.0)
def test_independent_priors_need_no_matrix() -> None:
    independent = make_prior(lambda w: dist.Normal(0.0, jnp.array([1.0, 2.0])).log_prob(w).sum(), 2)
    joint = make_prior(lambda w: dist.MultivariateNormal(jnp.zeros(3), COVARIANCE).log_prob(w), 3)
    assert perturbation.has_independent_globals(independent)
    assert not perturbation.has_independent_globals(joint)
    noise = lambda key: perturbation.prior_noise(joint, jnp.zeros(3), key, independent=False)  # noqa: E731
    draws = jax.vmap(noise)(jax.random.split(KEY, 6400))
    assert misfit(np.asarray(draws), np.zeros(3), np.linalg.inv(COVARIANCE)) < 5.0


def test_modes_of_a_log_concave_posterior_collapse_and_say_so() -> None:
    fit = fitted(normal, narrow(), 2000, num_modes=3, assignment="all", local_steps=1)
    assert fit.rounds.attrs["spread"] < 0.01
    assert "nearly one point" in repr(fit)
    assert "nearly one point" not in repr(fitted(normal, narrow(), 3, num_modes=3, assignment="all", init="zero"))
    wider = fitted(plane, wide(), 300, num_modes=3, assignment="all", local_steps=5)
    assert wider.rounds.attrs["spread"] > 0.5
    assert "3 point estimates" in repr(wider)


def classes(x, y=None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 3]).to_event(2))
    numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def of_numbers() -> fb.FederatedFit:
    """A small fit, whose outcomes are numbers."""
    return fitted(plane, wide(4, 2, 20), 10, num_modes=3, assignment="all")


def test_predictions_average_the_modes_probabilities() -> None:
    rng = np.random.default_rng(2)
    clients = {f"c{k}": {"x": rng.normal(size=(6, 4)), "y": rng.integers(0, 3, 6)} for k in range(3)}
    fit = fitted(classes, clients, 5, num_modes=3, optimizer=optax.sgd(0.5), batch_size=2, epochs=1)
    x = rng.normal(size=(5, 4))
    each = jax.nn.softmax(np.einsum("nd,kdc->knc", x, modes(fit)), axis=-1)
    found = fit.predict_probabilities(x=x)["y"]
    np.testing.assert_allclose(found, each.mean(axis=0), rtol=1e-10)
    y = np.array([0, 1, 2, 0, 1])
    density = fit.log_predictive_density("c0", x=x, y=y)["y"]
    np.testing.assert_allclose(density, np.log(found[np.arange(5), y]), rtol=1e-8)
    one_by_one = np.log(np.asarray(each)[:, np.arange(5), y]).mean(axis=0)
    assert np.all(density >= one_by_one)  # Jensen: the ensemble loses less than its modes do on average
    with pytest.raises(ValueError, match="no classes to give probabilities of"):
        of_numbers().predict_probabilities(x=np.ones((1, 20)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_modes": 0}, "`num_modes` is 0; it is a whole number"),
        ({"assignment": "some"}, "`assignment` is 'some'; it is one of"),
        ({"num_strata": 3, "assignment": "all"}, "`num_strata` is 3 with `assignment='all'`"),
        ({"randomised": True}, "`randomised` is True with `assignment='latin'`"),
        ({"scheme": "with_replacement", "num_active": 2}, "an ensemble draws its clients from strata"),
        ({"clients_per_stratum": 2}, "`clients_per_stratum` is 2 without `num_strata`"),
        ({"num_strata": 99}, "`num_strata` is 99, but there are 12 clients"),
        ({"num_strata": 5, "clients_per_stratum": 3}, "the smallest of the 5 strata has 2 of the 12"),
        ({"proximal": -1.0}, "`proximal` is -1.0; write a finite number, zero or more"),
        ({"randomised": True, "assignment": "all", "local_steps": 5}, "`local_steps` is 5 with `randomised=True`"),
        ({"randomised": True, "assignment": "all", "batch_size": 1}, "`batch_size` is 1 with `randomised=True`"),
        (
            {"randomised": True, "assignment": "all", "fairness": fb.GIFAIR()},
            "`fairness` is GIFAIR.* `randomised=True`",
        ),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(plane, wide(), 1, **options)


def test_an_optimiser_that_returns_nan_is_named_and_nothing_is_lost() -> None:
    broken = optax.GradientTransformation(lambda p: (), lambda g, s, p=None: (jnp.full_like(g, jnp.nan), s))
    clients, options = wide(3, 2, 10), {"num_modes": 2, "assignment": "all"}
    starts = modes(fitted(plane, clients, 1, optimizer=optax.sgd(0.1), **options, **STILL))
    fit = fitted(plane, clients, 4, optimizer=broken, **options)
    assert not fit.converged
    assert "c0" in fit.trouble()
    np.testing.assert_array_equal(modes(fit), starts)


def toy() -> tuple[dict, np.ndarray, np.ndarray]:
    """Table 1's regression: 50 clients with two noisy points of a sine each, and 100 radial basis functions."""
    rng = np.random.default_rng(0)
    centres, unit = rng.uniform(-1.0, 1.0, 100), np.sqrt(1.0 / UNIFORM)

    def basis(x: np.ndarray) -> np.ndarray:
        return unit * np.exp(-((x[:, None] - centres) ** 2) / (2.0 * 0.08**2))

    clients = {}
    for k in range(50):
        x, size = rng.uniform(-1.0, 1.0, 2), rng.normal(1.0, 0.2)
        clients[f"c{k}"] = {"x": basis(x), "y": size * np.sin(2.0 * np.pi * x) + 0.2 * rng.normal(size=2)}
    grid = np.linspace(-1.0, 1.0, 401)
    return clients, basis(grid), np.sin(2.0 * np.pi * grid)


def averaged(clients, num_rounds: int, num_steps: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Federated averaging of one mode is affine in its start: ``w -> matrix w + offset``."""
    maps, offsets = [], []
    for client in clients.values():
        x, y, moved, offset = client["x"], client["y"], np.eye(client["x"].shape[1]), np.zeros(client["x"].shape[1])
        one = np.eye(len(offset)) - step * x.T @ x / len(y)
        for _ in range(num_steps):
            moved, offset = one @ moved, one @ offset + step * x.T @ y / len(y)
        maps.append(moved)
        offsets.append(offset)
    once, added = np.mean(maps, axis=0), np.mean(offsets, axis=0)
    matrix, total = np.eye(len(added)), np.zeros(len(added))
    for _ in range(num_rounds):
        matrix, total = once @ matrix, once @ total + added
    return matrix, total


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key="0 to 59", alarm=2e-5)
def test_toy_table_bias_stays_and_variance_falls() -> None:
    """Many starts: bias within 15 percent over K, variance of about half at K = 2, and below a quarter at K = 40.

    At K = 1 both are known exactly: the mode is affine in its start.
    """
    clients, grid, truth = toy()
    options = {"local_steps": 20, "step_size": 0.1 * UNIFORM, "tolerance": 1e-12}
    matrix, offset = averaged(clients, 200, 20, options["step_size"])
    start = modes(fitted(plane, clients, 1, num_modes=1, **options, **STILL))[0]
    np.testing.assert_allclose(
        modes(fitted(plane, clients, 200, num_modes=1, **options))[0], matrix @ start + offset, atol=1e-8
    )
    variance = {1: UNIFORM * np.sum((grid @ matrix) ** 2) / len(grid)}
    bias = {1: np.sqrt(np.mean((grid @ offset - truth) ** 2))}
    for num_modes, num_starts in ((2, 60), (40, 10)):
        starts = [jax.random.key(seed) for seed in range(num_starts)]
        fits = [fitted(plane, clients, 200, num_modes=num_modes, key=key, **options) for key in starts]
        predictors = np.stack([grid @ modes(fit).mean(axis=0) for fit in fits])
        variance[num_modes] = predictors.var(axis=0, ddof=1).mean()
        bias[num_modes] = np.sqrt(np.mean((predictors.mean(axis=0) - truth) ** 2))
    print("bias", bias, "variance", variance)
    assert max(bias.values()) < 1.15 * min(bias.values())
    # of 60 starts in 5.5 independent directions: the ratio has an sd of 0.04
    assert 0.35 < variance[2] / variance[1] < 0.75
    assert variance[40] < variance[1] / 4.0


def test_randomised_draws_need_all_clients_and_say_so() -> None:
    method = fb.FedEnsemble(assignment="all", randomised=True, num_modes=3, max_rounds=5)
    some = lambda round_, key: np.array([True, True, round_ % 2 == 0])  # noqa: E731
    with pytest.warns(fb.NotConvergedWarning, match="Clients were missing from some rounds"):
        fit = fb.fit_federated(normal, narrow(), method=method, key=KEY, participation=some, progress=False)
    assert not fit.converged


def soft(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("soft", -0.5 * jnp.sum((y - mu) ** 2))


def scaled(y) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.handlers.scale(scale=0.25):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.parametrize("model", [soft, scaled])
def test_outcomes_that_cannot_be_drawn_anew_are_refused(model) -> None:
    """Before any round: their scores would be too small, or too large."""
    with pytest.raises(fb.ModelError, match="`randomised=True` draws the outcomes anew, and the site"):
        fitted(model, {"a": {"y": np.zeros(3)}}, 5, assignment="all", randomised=True)


def far_tails(y) -> None:
    rate = numpyro.sample("rate", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Cauchy(rate, 1.0), obs=y)


def test_draws_that_run_away_are_counted() -> None:
    """A Cauchy likelihood flattens out, and a constant slope leads on for ever."""
    clients = {"a": {"y": np.array([0.5, -0.4])}, "b": {"y": np.array([1.0])}}
    fit = fitted(far_tails, clients, 60, assignment="all", randomised=True, num_modes=40, init="zero")
    assert not fit.converged
    assert "of 40 modes have not arrived" in fit.trouble()


def counts(y) -> None:
    rate = numpyro.sample("rate", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(rate, jnp.where(jnp.abs(rate) < 1.0, 1.0, jnp.nan)), obs=y)


def test_a_mode_that_fails_leaves_the_others_alone() -> None:
    """Starts beyond one have no finite loss: those modes stay, and are named; the others go on to the mean."""
    clients = {"a": {"y": np.array([0.2])}, "b": {"y": np.array([0.4])}}
    options = {"assignment": "all", "num_modes": 8, "optimizer": optax.sgd(0.2), "local_steps": 2}
    starts = modes(fitted(counts, clients, 1, **options, **STILL), "rate")
    inside = np.abs(starts) < 1.0
    assert 0 < inside.sum() < 8
    fit = fitted(counts, clients, 60, **options)
    np.testing.assert_allclose(modes(fit, "rate")[inside], 0.3, atol=1e-3)
    np.testing.assert_array_equal(modes(fit, "rate")[~inside], starts[~inside])
    assert np.all(fit.rounds["code"] == fb.ResultCode.IN_PART)
    assert not fit.converged
    assert "could take no finite step" in fit.trouble()


def test_unequal_clients_in_teams_are_warned_of() -> None:
    rows = {"a": {"y": np.zeros(40)}, "b": {"y": np.zeros(2)}}
    with pytest.warns(UserWarning, match="weights differ by a factor of 20"):
        fb.FedEnsemble(num_modes=2).phases(make_problem(counts, rows).roster)


def test_gain_of_an_ensemble_with_strata() -> None:
    """Alone a client has no strata: it trains all modes."""
    rng = np.random.default_rng(6)
    halves = [{f"c{k}": {"x": rng.normal(size=(4, 2)), "y": rng.normal(size=4)} for k in range(4)} for _ in range(2)]
    fit = fitted(normal_plane, halves[0], 20, num_modes=2, num_strata=2, clients_per_stratum=1)
    gains = fb.federation_gain(fit, {"c0": halves[1]["c0"]})
    assert np.isfinite(gains["gain"]).all()


def normal_plane(x, y) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_picture_of_the_rounds() -> None:
    fit = of_numbers()
    assert fb.plots.plot_rounds(fit).lines


def chained(y=None, m=None) -> None:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", 30 if y is None else len(y)):
        m = numpyro.sample("m", dist.Bernoulli(p), obs=m)
        numpyro.sample("y", dist.Bernoulli(logits=6.0 * m - 3.0), obs=y)


def hidden(y=None) -> None:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    numpyro.sample("y", dist.Bernoulli(p).mask(np.array([True, False, True])).expand([3]), obs=y)


def test_probabilities_that_hang_on_other_draws_are_refused() -> None:
    bits = np.array([0, 1, 1])
    options = {"num_modes": 2, "assignment": "all"}
    fit = fitted(chained, {"a": {"y": bits, "m": bits}}, 3, **options)
    with pytest.raises(ValueError, match="depend on what else the model draws"):
        fit.predict_probabilities()
    masked = fitted(hidden, {"a": {"y": bits}}, 3, **options)
    found = masked.predict_probabilities()["y"]
    p = modes(masked, "p").mean()
    np.testing.assert_allclose(found, np.tile([1.0 - p, p], (3, 1)), rtol=1e-6)


def test_a_flax_network_is_a_program_like_any_other(tmp_path) -> None:
    """`random_flax_module`: an exclusive or, learned from starts of the prior by two modes that differ."""
    linen, module = pytest.importorskip("flax.linen"), pytest.importorskip("numpyro.contrib.module")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(2)(jnp.tanh(linen.Dense(8)(x)))

    def network(x, y=None) -> None:
        net = module.random_flax_module("net", Net(), dist.Normal(0.0, 1.0), input_shape=(1, 2))
        numpyro.sample("y", dist.Categorical(logits=net(x)), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30, 2))
    clients = {f"c{k}": {"x": x[k], "y": (x[k].prod(axis=1) > 0).astype(int)} for k in range(4)}
    options = {"optimizer": optax.adam(0.05), "epochs": 3, "batch_size": 10, "init": "prior", "num_modes": 2}
    fit = fitted(network, clients, 60, **options)
    y = np.concatenate([client["y"] for client in clients.values()])
    found = fit.predict_probabilities(x=x.reshape(-1, 2))["y"]
    assert np.mean(found.argmax(axis=-1) == y) > 0.8
    assert fit.rounds.attrs["spread"] > 0.1
    assert fit.idata.posterior["net.Dense_1.kernel"].shape == (1, 2, 2, 8)
    assert fit.predict("c0", x=x[0]).posterior_predictive["y"].shape == (1, 2, 30)
    assert "y" in fit.check(2).posterior_predictive.data_vars
    fit.idata.to_netcdf(str(tmp_path / "posterior.nc"))  # where a slash would be a path
