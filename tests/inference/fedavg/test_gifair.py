"""GIFAIR: the identity of its objective, the path of two quadratic clients, groups, bounds, and the report."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.inference.fedavg.curvature import LaplaceState
from fedbayes.inference.fedavg.fairness import Fairness
from fedbayes.inference.fedavg.optimum import MOST_GROUPS, distances_from_optimum
from fedbayes.models import linear
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.problem.problem import make_problem

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def centre(y) -> None:
    t = numpyro.sample("t", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(t, 1.0), obs=y)


PAIR = {"a": {"y": np.zeros(3)}, "b": {"y": np.ones(7)}}
SHRINKING = {"local_steps": 1, "step_size": 0.1, "schedule": lambda round: 1.0 / (1.0 + round / 50.0)}


def fitted(clients, fairness, num_rounds=3000, *, model=centre, method=fb.FedAvg, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)
        configured = method(fairness=fairness, **{**SHRINKING, **options})
        return fb.fit_federated(model, clients, method=configured, key=KEY, num_rounds=num_rounds, progress=False)


def roster_of(names):
    return make_problem(centre, {name: {"y": np.zeros(1)} for name in names}).roster


@pytest.mark.parametrize("seed", range(20))
def test_factors_add_up_to_the_penalised_objective(seed) -> None:
    """Lemma 3 to 1e-13: weights of single clients in place of differences between groups."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(3, 9))
    names = [f"c{k}" for k in range(num)]
    homes = np.concatenate([np.arange(2), rng.integers(0, 3, num - 2)])
    groups = {f"g{i}": [names[k] for k in np.flatnonzero(homes == i)] for i in np.unique(homes)}
    shares, losses = rng.dirichlet(np.ones(num)), rng.gamma(2.0, size=num)
    fairness = Fairness(fb.GIFAIR(groups=groups), roster_of(names), shares)
    means = np.array([losses[homes == i].mean() for i in np.unique(homes)])
    direct = shares @ losses + fairness.weight * np.abs(means[:, None] - means)[np.triu_indices(len(means), 1)].sum()
    factors = np.asarray(fairness.factors(jnp.asarray(means)))
    np.testing.assert_allclose(shares @ (factors * losses), direct, rtol=1e-13)
    assert np.all(factors > 0.0)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (0.0, 0.7),
        (0.1, 0.6),
        (0.25, 0.5),
        *(
            pytest.param(*pair, marks=[pytest.mark.slow, pytest.mark.optimised])
            for pair in ((0.05, 0.65), (0.15, 0.55), (0.2, 0.5), (0.29, 0.5))
        ),
    ],
)
def test_two_quadratic_clients_meet_halfway(weight, expected) -> None:
    """``.7 - lambda`` until the losses are equal, and no further; the steps that are left end within 0.005."""
    fit = fitted(PAIR, fb.GIFAIR(weight=weight), tolerance=1e-6)
    np.testing.assert_allclose(fit.idata.posterior["t"].values, expected, atol=5e-3)


def test_no_weight_is_fedavg_bit_for_bit() -> None:
    clients, _ = linear.simulate(jax.random.key(1))
    options = {"local_steps": 4, "step_size": None, "schedule": None, "model": linear.model}
    fair = fitted(clients, fb.GIFAIR(weight=0.0), 9, **options)
    plain = fitted(clients, None, 9, laplace=False, **options)
    for name in plain.idata.posterior.data_vars:
        np.testing.assert_array_equal(fair.idata.posterior[name], plain.idata.posterior[name])


@pytest.mark.parametrize(
    "relative",
    [{"method": fb.FedProx, "proximal": 0.5}, {"method": fb.FedEnsemble, "num_modes": 2, "assignment": "all"}],
)
def test_relatives_take_the_same_policy(relative) -> None:
    """The fixed point where ranks don't change, ``.7 - .1``: FedProx's steps are hindered, and end there too."""
    fit = fitted(PAIR, fb.GIFAIR(weight=0.1), 2000, schedule=None, **relative)
    np.testing.assert_allclose(fit.idata.posterior["t"].values, 0.6, atol=5e-3)
    ranks = fit.rounds["group_rank"].dropna("round", how="all").values  # not of the round that measures the distance
    np.testing.assert_array_equal(ranks[-1].reshape(-1, 2)[0], [1.0, -1.0])


def test_a_fair_fit_is_no_mode_and_says_so() -> None:
    fit = fitted(PAIR, fb.GIFAIR(weight=0.1), 2000)
    assert fit.converged
    assert "no mode of the posterior" in repr(fit)
    zigzag = fitted(PAIR, fb.GIFAIR(weight=0.25), 100, schedule=None)
    assert not zigzag.converged
    assert "Groups take turns in faring worst" in zigzag.trouble()


OPTIMUM = 0.6  # of `PAIR` with the weight 0.1; under any factors the objective has the curvature 10 there


@pytest.mark.parametrize(("steps", "step_size"), [(1, 0.1), (10, 0.1), (10, None)])
def test_the_distance_from_its_own_optimum_is_measured_and_told(steps, step_size) -> None:
    """Exact for quadratic clients; many local steps lead back to plain averaging, as if no group weighed more."""
    fit = fitted(PAIR, fb.GIFAIR(weight=0.1), 200, local_steps=steps, step_size=step_size, schedule=None)
    distance = np.sqrt(10.0) * abs(fit.idata.posterior["t"].values.item() - OPTIMUM)
    np.testing.assert_allclose(fit.rounds.attrs["distance_from_optimum"], distance, atol=1e-9)
    assert f"  optimum   {distance:.2g} posterior sds away" in repr(fit)
    assert fit.converged is bool(distance <= 0.1) is (steps == 1)
    if steps > 1:
        told = "from the optimum of their own objective (the limit is 0.1), at rest"
        assert told in fit.trouble()
        assert "NOT CONVERGED, a point estimate" in repr(fit)


def test_where_losses_meet_the_optimum_is_on_the_edge() -> None:
    """``.7 - lambda`` lies beyond ``.5``, where the losses meet: the gradient by the ranks is far from zero there."""
    fit = fitted(PAIR, fb.GIFAIR(weight=0.25), 1, init={"t": 0.55}, step_size=1e-3, schedule=None)
    distance = np.sqrt(10.0) * abs(fit.idata.posterior["t"].values.item() - 0.5)
    np.testing.assert_allclose(fit.rounds.attrs["distance_from_optimum"], distance, rtol=1e-5)


def test_a_point_whose_curvature_was_not_asked_for_has_no_distance() -> None:
    fit = fitted(PAIR, fb.GIFAIR(weight=0.1), 200, laplace=False)
    assert "distance_from_optimum" not in fit.rounds.attrs
    assert "optimum" not in repr(fit)


def test_a_distance_that_can_not_be_known_is_not_told() -> None:
    sites = Gaussian(np.ones((1, 2, 1)), -np.ones((1, 2, 1, 1)), np.zeros((1, 2)))
    heard = np.ones((1, 2), bool)
    state = LaplaceState(np.zeros((1, 1)), sites, Gaussian.neutral(1, (1,)), np.zeros((1, 1)), heard)
    fairness = Fairness(fb.GIFAIR(), roster_of("ab"), np.full(2, 0.5))
    assert np.isnan(distances_from_optimum(state, fairness))
    proper = state._replace(sites=Gaussian(sites.shift, -sites.precision, sites.log_scale))
    np.testing.assert_allclose(distances_from_optimum(proper, fairness), np.sqrt(2.0))
    fairness.names = [f"c{k}" for k in range(MOST_GROUPS + 1)]
    assert np.isnan(distances_from_optimum(proper, fairness))


@pytest.mark.parametrize("losses", ["start", "end"])
def test_groups_are_ranked_by_the_losses_where_it_is_asked_for(losses) -> None:
    """Mean losses ``(t - a)^2 / 2`` and a constant, at the server's position or three steps on."""
    fit = fitted(PAIR, fb.GIFAIR(weight=0.1, losses=losses), 1, local_steps=3, schedule=None, init={"t": 2.0})
    ahead = {"start": 1.0, "end": 0.9**3}[losses]
    expected = 0.5 * (ahead * np.array([2.0, 1.0])) ** 2 + 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(fit.rounds["group_loss"].dropna("round").values[-1, 0], expected, rtol=1e-12)


def test_a_group_that_is_not_heard_keeps_its_loss() -> None:
    method = fb.FedAvg(fairness=fb.GIFAIR(weight=0.1), step_size=0.1, local_steps=1, laplace=False)
    only = lambda round_, key: np.array([True, round_ == 0])  # noqa: E731
    with pytest.warns(fb.NotConvergedWarning):
        fit = fb.fit_federated(centre, PAIR, method=method, key=KEY, num_rounds=5, participation=only, progress=False)
    losses = fit.rounds["group_loss"].values[1:, 0]
    assert np.ptp(losses[:, 1]) == 0.0
    assert np.ptp(losses[:, 0]) > 0.0


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"g": ["a"]}, "'b' is in none of them"),
        ({"g": ["a"], "h": ["a", "b"]}, r"'a' is in \['g', 'h'\]"),
        ({"g": ["a", "b"]}, r"has the group \['g'\] alone"),
        ({"g": ["a", "z"], "h": ["b"]}, "has the client 'z'; the clients are"),
        ({"g": ["a", "b"], "h": []}, r"Group 'h' of `groups` is \[\]; write the names"),
        ({"g": 5, "h": ["a", "b"]}, "Group 'g' of `groups` is 5; write the names"),
    ],
)
def test_groups_that_are_no_partition_are_refused(groups, message) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(PAIR, fb.GIFAIR(groups=groups), 1)


def test_bounds_and_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"`weight` is 0.3, at or beyond 0.3, where a client's loss"):
        fitted(PAIR, fb.GIFAIR(weight=0.3), 1)
    with pytest.raises(ValueError, match="`weight` is -1; write a number, zero or more"):
        fb.GIFAIR(weight=-1)
    with pytest.raises(ValueError, match="`losses` is 'middle'; it is one of"):
        fb.GIFAIR(losses="middle")
    with pytest.raises(ValueError, match="`groups` is 'a'; write a mapping"):
        fb.GIFAIR(groups="a")
    with pytest.raises(ValueError, match="`laplace` is True with `fairness`"):
        fb.FedAvg(fairness=fb.GIFAIR(), laplace=True)
    with pytest.raises(ValueError, match="`weights` is 'equal' with `fairness`"):
        fb.FedAvg(fairness=fb.GIFAIR(), weights="equal")
    with pytest.raises(ValueError, match=r"`fairness` is 'gifair'; write `fedbayes.GIFAIR"):
        fb.FedAvg(fairness="gifair")


def varied() -> tuple[dict, dict]:
    """A large group that agrees, and a small one that does not."""
    rng = np.random.default_rng(4)
    clients = {f"c{k}": {"y": (3.0 if k < 2 else 0.0) + rng.normal(size=40)} for k in range(8)}
    halves = [{name: {"y": client["y"][at]} for name, client in clients.items()} for at in (slice(20), slice(20, 40))]
    return halves[0], halves[1]


GROUPS = {"few": ["c0", "c1"], "many": [f"c{k}" for k in range(2, 8)]}


def test_fairness_is_ordered() -> None:
    """The gap between groups and the spread over clients fall as the weight grows, by held-out densities."""
    train, test = varied()
    reports = []
    for weight in (0.0, 0.1, 0.2):
        fit = fitted(train, fb.GIFAIR(groups=GROUPS, weight=weight), 500, step_size=0.3)
        reports.append(fb.fairness_report(fit, test, GROUPS).attrs)
    for name in ("gap", "sd"):
        values = [report[name] for report in reports]
        assert values == sorted(values, reverse=True)
        assert values[-1] < 0.8 * values[0]


def test_report_is_exact() -> None:
    train, test = varied()
    fit = fitted(train, None, 500, step_size=0.3, laplace=False)
    report = fb.fairness_report(fit, test, GROUPS)
    point = fit.idata.posterior["t"].values.item()
    each = {name: dist.Normal(point, 1.0).log_prob(client["y"]).mean() for name, client in test.items()}
    np.testing.assert_allclose(report["score"], list(each.values()), rtol=1e-10)
    spread = {name: dist.Normal(point, 1.0).log_prob(client["y"]).std(ddof=1) for name, client in test.items()}
    errors = np.array(list(spread.values())) / np.sqrt(20)
    np.testing.assert_allclose(report["score_error"], errors, rtol=1e-10)
    few = np.sqrt(spread["c0"] ** 2 + spread["c1"] ** 2) / np.sqrt(20) / 2
    np.testing.assert_allclose(report["group_error"].sel(group="few"), few, rtol=1e-10)
    single = fb.fairness_report(fit, {"c0": {"y": test["c0"]["y"][:1]}})
    assert np.isnan(single["score_error"].item())
    few = np.mean([each["c0"], each["c1"]])
    np.testing.assert_allclose(report["group_score"].sel(group="few"), few, rtol=1e-10)
    many = np.mean([each[name] for name in GROUPS["many"]])
    assert report.attrs["gap"] == pytest.approx(abs(many - few))
    np.testing.assert_array_equal(report["outcomes"], 20)
    with pytest.raises(ValueError, match="`held_out` is empty"):
        fb.fairness_report(fit, {})
    with pytest.raises(ValueError, match="`held_out` is a list; write a mapping"):
        fb.fairness_report(fit, [1])


def test_picture_shows_a_point_for_each_client_and_a_bar_for_each_group() -> None:
    train, test = varied()
    fit = fitted(train, None, 50, step_size=0.3, laplace=False)
    report = fb.fairness_report(fit, test, GROUPS)
    ax = fb.plots.plot_fairness({"FedAvg": report, "again": report})
    assert [len(line.get_xdata()) for line in ax.lines] == [8, 8]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["few", "many"]
    assert ax.get_legend() is not None
    ax.figure.clear()
    with pytest.raises(ValueError, match="`reports` is no mapping from names to reports"):
        fb.plots.plot_fairness(report)
    with pytest.raises(ValueError, match="not all of the same clients and groups"):
        fb.plots.plot_fairness({"one": report, "other": fb.fairness_report(fit, test)})


def test_personalised_clients_keep_where_their_steps_end(tmp_path) -> None:
    """``a + (1 - eta f)^3 (theta - a)`` of quadratic clients, from the fixed point; predictions go by it."""
    fair = fb.GIFAIR(weight=0.1, personalised=True)
    fit = fitted(PAIR, fair, 3000, local_steps=3, schedule=None, tolerance=1e-8)
    theta = fit.idata.posterior["t"].values.item()
    factors = {"a": 1.0 + 0.1 / 0.3, "b": 1.0 - 0.1 / 0.7}
    for name, optimum in (("a", 0.0), ("b", 1.0)):
        expected = optimum + (1.0 - 0.1 * factors[name]) ** 3 * (theta - optimum)
        np.testing.assert_allclose(fit.client_posterior(name).posterior["t"].values, expected, atol=1e-6)
        density = fit.log_predictive_density(name, y=np.array([2.0]))["y"]
        np.testing.assert_allclose(density, dist.Normal(expected, 1.0).log_prob(2.0), atol=1e-5)
    fit.save(tmp_path / "fit")
    again = fb.load_fit(tmp_path / "fit", centre, PAIR)
    np.testing.assert_array_equal(
        again.client_posterior("a").posterior["t"].values, fit.client_posterior("a").posterior["t"].values
    )
    with pytest.raises(ValueError, match="`fairness` is personalised, but a client of an ensemble"):
        fb.FedEnsemble(fairness=fair)
