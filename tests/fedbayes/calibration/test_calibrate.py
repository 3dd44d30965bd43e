"""Calibration of the whole pipeline: uniform where the posterior is right, not uniform where a bug is planted."""

from functools import partial

import jax
import numpy as np
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.calibration.calibrate import _dataset
from fedbayes.contract.answer import GaussianAnswer
from fedbayes.errors import FederatedError
from fedbayes.models import hierarchical_linear, linear
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import product_of
from fedbayes.problem.program.program import Block

KEY = jax.random.key(0)
LEVEL = 2e-4  # of the adjusted p-values, the least of which is 1.5e-4 for three of them
MANY = 2000  # data sets, for what is planted to be far below the level
SMALL = (4, 4, 4)  # rows of each client: so few that the prior counts
simulate = partial(linear.simulate, rows=SMALL)
calibrate = partial(fb.calibrate, linear.model, key=KEY, progress=False)


@pytest.fixture(scope="module")
def exact():
    return calibrate(simulate)


def smallest(calibration: fb.Calibration) -> float:
    return float(calibration.test()["adjusted"].min())


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, alarm=5.8e-4)  # LEVEL, and six numbers to four errors
def test_an_exact_posterior_is_calibrated(exact):
    assert smallest(exact) > LEVEL
    assert bool(exact.converged.all())
    assert exact.unreliable == 0.0
    held = exact.coverage((0.5, 0.9))
    # 500 simulations: four binomial standard errors
    assert bool((np.abs(held["observed"] - held["nominal"]) < 4.0 * held["se"]).all())


@pytest.mark.statistical(key=0, numbers=18, errors=5.0)
def test_moments_are_those_of_the_closed_form(exact):
    source = jax.random.fold_in(KEY, 0)
    for number in (0, 1, 499):
        clients, truth = simulate(jax.random.fold_in(source, number))
        mean, covariance = linear.exact_posterior(clients)
        found, sd = exact.dataset.isel(simulation=number), np.sqrt(np.diag(covariance))
        np.testing.assert_array_equal(found["truth"], truth["beta"])
        # 255 draws: five standard errors of a mean, and of an sd, 1 / sqrt(2 n)
        np.testing.assert_array_less(np.abs(found["mean"] - mean) / sd, 5.0 / np.sqrt(255))
        np.testing.assert_array_less(np.abs(found["sd"] / sd - 1.0), 5.0 / np.sqrt(2 * 255))


@pytest.mark.statistical(key=0, numbers=1, errors=4.9)
def test_scores_and_contraction_are_those_of_the_law(exact):
    """Over prior and data the z-score of an exact posterior is standard normal; contraction compares variances."""
    scores = exact.dataset["z_score"].values
    assert np.mean(scores**2) == pytest.approx(1.0 + 1.0 / 255, abs=5.0 * np.sqrt(2.0 / scores.size))
    data = exact.dataset
    expected = 1.0 - data["sd"] ** 2 / data["truth"].var("simulation", ddof=1)
    xr.testing.assert_allclose(data["contraction"], expected.rename("contraction"))


def test_a_batch_that_is_not_full_changes_nothing_of_the_others(exact):
    part = calibrate(simulate, num=70).dataset.drop_vars("contraction")
    xr.testing.assert_identical(exact.dataset.isel(simulation=slice(70)).drop_vars("contraction"), part)


class NarrowEP(fb.EP):
    """Standard deviations times 0.8."""

    def answer(self, roster, run):
        answer = super().answer(roster, run)
        narrow = Gaussian(answer.posterior.shift / 0.64, answer.posterior.precision / 0.64, answer.posterior.log_scale)
        return GaussianAnswer(narrow, answer.locals_from, run)


class PriorForEachClient(fb.EP):
    """The cavity is not divided out: each client's site holds the prior once more."""

    def answer(self, roster, run):
        answer = super().answer(roster, run)
        more = jax.tree.map(lambda leaf: roster.num_clients * np.asarray(leaf), run.state.prior)
        return GaussianAnswer(product_of(more, answer.posterior), answer.locals_from, run)


def one_client_twice(key):
    clients, truth = simulate(key)
    return {**clients, "client1": clients["client0"]}, truth


@pytest.mark.parametrize(
    ("method", "source"), [(NarrowEP(), simulate), (PriorForEachClient(), simulate), ("ep", one_client_twice)]
)
def test_planted_bugs_are_found(method, source):
    assert smallest(calibrate(source, method, num=MANY, correction=False)) < LEVEL


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, alarm=LEVEL)
def test_the_correction_mends_a_gaussian_that_is_too_narrow():
    mended = calibrate(simulate, NarrowEP())
    assert smallest(mended) > LEVEL
    assert mended.unreliable < 0.05


def test_a_simulator_of_another_prior_is_found():
    wide = partial(linear.simulate, rows=SMALL, prior_sd=3.0)
    assert smallest(calibrate(wide, num=MANY, correction=False)) < LEVEL


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, numbers=30, errors=5.0)
def test_one_after_the_other_gives_the_same_answers_to_monte_carlo_noise():
    both = [calibrate(simulate, num=10, vectorised=choice, num_draws=127) for choice in (True, False)]
    one, other = (each.dataset for each in both)
    np.testing.assert_array_equal(one["truth"], other["truth"])
    # means of 127 draws each: five standard errors of a difference
    np.testing.assert_array_less(np.abs(one["mean"] - other["mean"]) / one["sd"], 5.0 * np.sqrt(2.0 / 127))
    np.testing.assert_array_equal(one["converged"], other["converged"])


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.statistical(key=0, alarm=LEVEL)
def test_a_hierarchical_model_is_calibrated_after_correction():
    source = partial(hierarchical_linear.simulate, num_clients=6, rows=30, dim=1)
    found = fb.calibrate(hierarchical_linear.model, source, key=KEY, num=200, num_draws=63, progress=False)
    assert smallest(found) > LEVEL
    assert float(found.converged.mean()) > 0.95


def test_repr_plot_and_arviz_say_what_was_found(exact):
    words = repr(exact)
    for part in ("500 fits by EP with importance-corrected draws, 255", "500 converged", "no sign against", "of 90%"):
        assert part in words
    figure = exact.plot(level=0.9)
    assert [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()] == ["beta[0]", "beta[1]", "beta[2]"]
    places = exact.to_arviz()["prior_sbc"]["beta[1]"]
    np.testing.assert_allclose(places.values[0], (exact.ranks.values[:, 1] + 0.5) / 256)
    with pytest.raises(KeyError, match=r"no parameters \['gamma'\]; the parameters are \['beta\[0\]'"):
        exact.plot(["gamma"])
    with pytest.raises(ValueError, match=r"`levels` is .*between 0 and 1"):
        exact.coverage((0.5, 1.0))


def changed(change):
    """The simulator with its result changed from the second data set on."""
    calls = iter(range(100))

    def source(key):
        clients, truth = simulate(key)
        return change(clients, truth) if next(calls) else (clients, truth)

    return source


def longer(clients, truth):
    first = {name: np.concatenate([leaf, leaf[:1]]) for name, leaf in clients["client0"].items()}
    return {**clients, "client0": first}, truth


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (longer, r"data set 1, client 'client0': `x` has shape \(5, 3\), but \(4, 3\) in the first.*vectorised=False"),
        (lambda c, t: ({"a": c["client0"]}, t), r"data set 1 has the clients \['a'\], but the first one"),
        (lambda c, t: ({k: {**v, "w": v["y"]} for k, v in c.items()}, t), r"has the arguments \['w', 'x', 'y'\]"),
        (lambda c, t: ({k: {**v, "noise_sd": 2} for k, v in c.items()}, t), "has the arguments"),
        (lambda c, t: (c, {}), r"no true value of the globals \['beta'\]"),
        (lambda c, t: (c, {"beta": t["beta"][:2]}), r"`beta` of shape \(2,\), but the site has shape \(3,\)"),
        (lambda c, t: (c, {"beta": np.inf * t["beta"]}), "not finite"),
        (lambda c, t: c, "`simulate` returned a dict; it returns the clients and the true globals"),
    ],
)
def test_data_sets_that_differ_are_refused(change, words):
    with pytest.raises((ValueError, TypeError), match=words):
        calibrate(changed(change), num=10)


def test_sizes_that_differ_are_refused():
    source = changed(lambda c, t: ({k: {**v, "size": 3} for k, v in c.items()}, t))

    def sized(key):
        clients, truth = source(key)
        return {name: {"size": 2, **data} for name, data in clients.items()}, truth

    def model(x, y, size):
        return linear.model(x, y)

    with pytest.raises(fb.ClientDataError, match=r"has \{'size': 3\}, but \{'size': 2\} in the first"):
        fb.calibrate(model, sized, key=KEY, num=10, progress=False)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"simulate": 3}, TypeError, "`simulate` is a int; write a function"),
        ({"num": 5}, ValueError, "`num` is 5; write a whole number from 10 on"),
        ({"num_draws": 2.5}, ValueError, "`num_draws` is 2.5; write a whole number from 19 on"),
        ({"at_once": 0}, ValueError, "`at_once` is 0"),
        ({"key": 3}, TypeError, "`key` is 3; write a typed JAX key"),
        ({"method": "mcmc"}, ValueError, "`method` is 'mcmc'"),
        ({"method": "fald"}, ValueError, "FALD ends with draws of Markov chains.*correction=False"),
        ({"method": "fald", "correction": False, "vectorised": True}, ValueError, "side by side: its rounds are steps"),
    ],
)
def test_arguments_that_can_not_be_meant_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        fb.calibrate(linear.model, **{"simulate": simulate, "key": KEY, "progress": False, **arguments})


def test_without_any_posterior_there_is_no_calibration():
    part = {"rank": np.full((3, 1), np.nan), "sd": np.ones((3, 1))}
    with pytest.raises(FederatedError, match="No simulated data set has a posterior"):
        _dataset([part], np.zeros((3, 1)), Block((("mu", ()),)))
