"""Conflict between clients: closed forms, uniform p-values, a planted outlier, what can't be compared, refusals."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import linalg, stats

import fedbayes as fb
from fedbayes.contract.answer import GaussianAnswer
from fedbayes.contract.client_locals import FromCavity, FromRecord, FromServer
from fedbayes.models import heart_disease, linear
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.numerics.host import cavities_of, product_of
from fedbayes.numerics.p_values import holm
from fedbayes.problem.program.program import Block
from fedbayes.questions.conflict import agreement as formulas
from fedbayes.questions.conflict import likelihood, question
from fedbayes.questions.conflict.agreement import agreement
from fedbayes.questions.conflict.question import conflict_of, gaussians_of
from fedbayes.questions.conflict.words import left_out
from fedbayes.runtime.precision import computing


def roster_of(names, size, prior) -> SimpleNamespace:
    return SimpleNamespace(
        names=tuple(names),
        rows=np.ones(len(names)),
        globals=Block((("beta", (size,)),)),
        num_clients=len(names),
        prior=SimpleNamespace(gaussian=prior, is_proper=np.linalg.eigvalsh(prior.precision)[0] > 0.0),
    )


def sites_of(clients, noise_sd=1.0) -> Gaussian:
    """Exact sites of linear models, leading axis of one replicate."""
    shift = [client["x"].T @ client["y"] / noise_sd**2 for client in clients.values()]
    precision = [client["x"].T @ client["x"] / noise_sd**2 for client in clients.values()]
    return Gaussian(np.array([shift]), np.array([precision]), np.zeros((1, len(clients))))


def normal(size, sd=1.0) -> Gaussian:
    return Gaussian(np.zeros(size), np.eye(size) / sd**2, np.zeros(()))


def answer_of(prior, sites) -> GaussianAnswer:
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf[None], len(sites.shift), axis=0), prior)
    posterior = product_of(repeated, jax.tree.map(lambda leaf: leaf.sum(axis=1), sites))
    return GaussianAnswer(posterior, FromCavity.known(cavities_of(repeated, sites), posterior), None)


def conflict_in(answer, roster):
    return conflict_of(
        *gaussians_of(answer.posterior, answer.locals_from.others, roster), roster, roster.globals.labels()
    )


def found(clients, prior=None):
    size = next(iter(clients.values()))["x"].shape[1]
    prior = normal(size) if prior is None else prior
    return conflict_in(answer_of(prior, sites_of(clients)), roster_of(clients, size, prior))


@pytest.fixture(scope="module")
def drawn():
    return linear.simulate(jax.random.key(0), rows=(5, 20, 60))[0]


def test_a_fit_against_the_closed_form(small_fit, drawn) -> None:
    """The posterior of everybody's data against that of all others' data, both by linear algebra."""
    ours = small_fit.conflict()
    mean, covariance = linear.exact_posterior(drawn)
    tests = []
    for name in drawn:
        others = {other: data for other, data in drawn.items() if other != name}
        m_k, v_k = linear.exact_posterior(others)
        mine, expected = ours.sel(client=name), v_k - covariance
        z = (mean - m_k) / np.sqrt(np.diag(expected))
        np.testing.assert_allclose(mine["z"], z, rtol=1e-6)
        np.testing.assert_allclose(mine["difference"], mean - m_k, rtol=1e-6)
        np.testing.assert_allclose(mine["share"], np.diag(expected) / np.diag(v_k), rtol=1e-6)
        information, along = linalg.eigh(drawn[name]["x"].T @ drawn[name]["x"], np.linalg.inv(covariance))
        everybody = 1.0 - np.sum(along**2, axis=0)  # all sites together: the posterior's precision less the prior's
        part = min(len(drawn[name]["y"]) / 85.0, 1.0 / 3.0)
        assert int(mine["rank"]) == np.count_nonzero(information > 0.25 * part * everybody)
        if mine["rank"] == 3:
            chi2 = (mean - m_k) @ np.linalg.solve(expected, mean - m_k)
            np.testing.assert_allclose(mine["chi2"], chi2, rtol=1e-6)
            np.testing.assert_allclose(mine["p_overall"], stats.chi2.sf(chi2, 3), rtol=1e-6)
        tests.append(2.0 * stats.norm.sf(np.abs(z)))
    np.testing.assert_allclose(ours["p"], tests, rtol=1e-6)
    np.testing.assert_allclose(ours["p_adjusted"], holm(np.array(tests)), rtol=1e-6)
    assert ours["rank"].values[1:].tolist() == [3, 3]
    assert ours["coordinate"].values.tolist() == small_fit.global_labels
    assert float(ours["z_mcse"].max()) < 1e-6


def test_the_overall_test_compares_site_and_cavity(drawn) -> None:
    """Where the site is proper: ``(s - m_k)' (V_k + S)^-1 (s - m_k)``."""
    answer = answer_of(normal(3), sites_of(drawn))
    ours = agreement(*jax.tree.map(lambda leaf: leaf[0], (answer.posterior, answer.locals_from.others)))
    for k, (name, data) in enumerate(drawn.items()):
        m_k, v_k = linear.exact_posterior({other: rest for other, rest in drawn.items() if other != name})
        spread = np.linalg.inv(data["x"].T @ data["x"])
        gap = spread @ data["x"].T @ data["y"] - m_k
        np.testing.assert_allclose(ours.chi2[k], gap @ np.linalg.solve(v_k + spread, gap), rtol=1e-9)


def p_values(num=2000) -> tuple[np.ndarray, np.ndarray]:
    """Of data sets that obey the model: single ``(num, 3, 2)``, overall ``(num, 3)``.

    The last client sees one column only.
    """
    rng = np.random.default_rng(0)
    designs = [rng.normal(size=(rows, 2)) for rows in (4, 10, 6)]
    designs[2][:, 1] = 0.0
    precision = np.array([x.T @ x for x in designs])
    total = np.eye(2) + precision.sum(axis=0)
    single, overall = np.full((num, 3, 2), np.nan), np.empty((num, 3))
    for i in range(num):
        beta = rng.normal(size=2)
        shift = np.array([x.T @ (x @ beta + rng.normal(size=len(x))) for x in designs])
        posterior = Gaussian(shift.sum(axis=0), total, np.zeros(()))
        cavities = Gaussian(shift.sum(axis=0) - shift, total - precision, np.zeros(3))
        each = agreement(posterior, cavities)
        assert each.rank.tolist() == [2, 2, 1]
        single[i], overall[i] = 2.0 * stats.norm.sf(np.abs(each.z)), stats.chi2.sf(each.chi2, each.rank)
    return single, overall


@pytest.mark.statistical(key=0, alarm=7e-5)  # seven different tests at 1e-5; two more repeat one of them
def test_p_values_are_uniform_where_the_model_holds() -> None:
    """Kolmogorov and Smirnov's test of 2,000 data sets, nine of them: the planted bug is far below the level."""
    single, overall = p_values()
    for values in (*single.reshape(2000, -1).T, *overall.T):
        assert stats.kstest(values, "uniform").pvalue > 1e-5


def test_a_variance_that_adds_instead_is_noticed(monkeypatch) -> None:
    """Planted bug: ``V_k + V``, the variance of a difference of independent estimates, which these are not."""
    monkeypatch.setattr(formulas, "_expected", lambda share: (1.0 + share) / share)
    single, overall = p_values(500)
    assert stats.kstest(single[:, 0, 0], "uniform").pvalue < 1e-50
    assert stats.kstest(overall[:, 1], "uniform").pvalue < 1e-6


def test_an_outlier_is_named_and_nobody_else() -> None:
    clients, _ = linear.simulate(jax.random.key(3), rows=(40,) * 8, beta=[1.0, -1.0, 0.5, 0.0])
    calm = found(clients)
    assert calm.attrs == {"disagreement": "", "remarks": ""}
    assert float(calm["p_adjusted"].min()) > 0.05
    odd = clients | {
        "client2": {**clients["client2"], "y": clients["client2"]["y"] + 1.2 * clients["client2"]["x"][:, 3]}
    }
    ours = found(odd)
    assert ours.attrs["disagreement"].startswith("client 'client2' disagrees with all the others about beta[3] (z = ")
    assert ours.attrs["disagreement"].count("client '") == 1
    rows, columns = np.nonzero(ours["p_adjusted"].values < 0.05)
    assert (rows.tolist(), columns.tolist()) == ([2], [3])
    assert float(ours["z"].sel(client="client2", coordinate="beta[3]")) > 0.0
    assert (np.flatnonzero(ours["p_overall_adjusted"] < 0.05)).tolist() == [2]


def test_the_report_names_who_disagrees(caplog) -> None:
    clients, _ = linear.simulate(jax.random.key(3), rows=(40,) * 8, beta=[1.0, -1.0, 0.5, 0.0])
    odd = clients["client2"]["y"] + 1.2 * clients["client2"]["x"][:, 3]
    clients["client2"] = {**clients["client2"], "y": odd}
    names = ["age", "bmi", "sex", "dose"]
    fit = fb.fit_federated(
        linear.model,
        clients,
        method=fb.EP(num_replicates=2),
        key=jax.random.key(0),
        num_draws=500,
        progress=False,
        coords={"column": names},
        dims={"beta": ["column"]},
    )
    assert "  conflict  client2 (beta[dose]) disagrees with the others; see fit.conflict()" in repr(fit)
    assert "about beta[dose] (z = " in fit.conflict().attrs["disagreement"]
    assert caplog.text == ""  # it was asked
    points = np.random.default_rng(0).normal(size=(5, 4))
    with computing():
        values, noise = fit.fitted.clients.own_log_likelihood(2, points)
    means = points @ clients["client2"]["x"].T
    np.testing.assert_allclose(values, stats.norm.logpdf(odd, means).sum(axis=1), rtol=1e-9)
    np.testing.assert_array_equal(noise, np.zeros(5))
    assert fit.error["coordinate"].values.tolist() == fit.global_labels == [f"beta[{name}]" for name in names]


@pytest.mark.slow
def test_the_hospital_that_recorded_no_cholesterol_is_found() -> None:
    clients = heart_disease.clients()
    fit = fb.fit_federated(heart_disease.model, clients, key=jax.random.key(0), progress=False)
    ours = fit.conflict()
    column = heart_disease.COORDS["coefficient"].index("chol")
    assert np.ptp(clients["switzerland"]["x"][:, column]) == 0.0
    assert ours.attrs["disagreement"].startswith(
        f"client 'switzerland' disagrees with all the others about beta[{column}]"
    )
    clients.pop("switzerland")
    rest = fb.fit_federated(heart_disease.model, clients, key=jax.random.key(0), progress=False).conflict()
    assert f"beta[{column}]" not in rest.attrs["disagreement"]


def test_what_is_off_in_no_single_global_is_found_in_all_together() -> None:
    """A small shift in each of 12 globals; the outcomes have no noise, so that chance adds nothing."""
    clients, truth = linear.simulate(jax.random.key(4), rows=(60,) * 6, dim=12)
    clients = {name: {"x": data["x"], "y": data["x"] @ truth["beta"]} for name, data in clients.items()}
    shifted = clients["client0"]["x"] @ (truth["beta"] + 0.25)
    ours = found(clients | {"client0": {**clients["client0"], "y": shifted}})
    assert float(ours["p_overall_adjusted"].sel(client="client0")) < 0.05
    assert float(ours["p_adjusted"].min()) > 0.05
    told = "client 'client0' disagrees with all the others about several globals together (chi-squared "
    assert ours.attrs["disagreement"].startswith(told)


@pytest.mark.parametrize("converged", [True, False])
def test_sites_of_a_fit_that_has_not_converged_are_no_evidence_against_anybody(small_fit, monkeypatch, converged):
    monkeypatch.setattr(question, "verdict", lambda fitted: SimpleNamespace(converged=converged))
    told = small_fit.conflict().attrs["remarks"]
    assert told.startswith("the rounds have not converged, so that their sites are not yet") is not converged


def test_what_one_client_alone_knows_can_not_be_compared() -> None:
    """Under a flat prior; the other global of that client can."""
    rng = np.random.default_rng(0)
    clients = {name: {"x": rng.normal(size=(20, 2)), "y": rng.normal(size=20)} for name in "abc"}
    clients["a"]["x"][:, 1] = clients["b"]["x"][:, 1] = 0.0
    clients["c"]["x"][:10, 1] = clients["c"]["x"][10:, 0] = 0.0  # orthogonal: beta[0] tells nothing of beta[1]
    flat = Gaussian(np.zeros(2), np.zeros((2, 2)), np.zeros(()))
    ours = found(clients, flat)
    assert np.isnan(ours["z"].values).tolist() == [[False, True], [False, True], [False, True]]
    assert np.isnan(ours["share"].values).tolist() == [[False, False], [False, False], [False, True]]
    assert ours["rank"].values.tolist() == [1, 1, 1]
    assert ours.attrs["remarks"] == (
        "nobody but client 'c' knows anything of beta[1]; too little to compare is said of beta[1] by a, b"
    )
    column = {name: {"x": data["x"][:, :1], "y": data["y"]} for name, data in clients.items()}
    alone = found({name: column[name] for name in "ab"}, Gaussian(np.zeros(1), np.zeros((1, 1)), np.zeros(())))
    m_b, v_b = 1.0 / np.sum(column["b"]["x"] ** 2), 1.0 / np.sum(column["a"]["x"] ** 2)
    estimates = [(data["x"][:, 0] @ data["y"]) / np.sum(data["x"] ** 2) for data in (column["a"], column["b"])]
    z = (estimates[0] - estimates[1]) / np.sqrt(m_b + v_b)  # two clients and a flat prior: two independent estimates
    np.testing.assert_allclose(alone["z"].values[:, 0], [z, -z])


def test_an_improper_cavity_under_a_proper_prior_is_no_knowledge_of_one_client_alone() -> None:
    """The others' sites, of a fit that has not converged, have taken more of beta[1] than the prior gives."""
    precision = np.array([[np.diag([3.0, 9.0]), np.diag([3.0, -1.5]), np.diag([3.0, 0.2])]])
    sites = Gaussian(np.ones((1, 3, 2)), precision, np.zeros((1, 3)))
    ours = conflict_in(answer_of(normal(2), sites), roster_of("abc", 2, normal(2)))
    assert left_out(ours) == ["a"]
    assert ours.attrs["remarks"].startswith("client 'a' can't be compared about beta[1]: the others' sites leave it an")
    assert "nobody but" not in ours.attrs["remarks"]


def test_a_client_without_a_word_has_no_p_value(drawn) -> None:
    silent = drawn | {"mute": {"x": np.zeros((3, 3)), "y": np.ones(3)}}
    ours = found(silent)
    assert np.isnan(ours["z"].sel(client="mute")).all()
    assert np.isnan(ours["p_overall"].sel(client="mute"))
    assert ours.attrs["remarks"] == "too little to compare is said by mute"
    before = found(drawn)  # and does not count among the comparisons
    np.testing.assert_allclose(ours["p_adjusted"].values[:3], before["p_adjusted"], rtol=1e-9)


@pytest.mark.statistical(key=1, alarm=2.5e-5)  # Student's t of 99 degrees of freedom beyond 5, nine times
def test_monte_carlo_noise_is_no_information(drawn) -> None:
    """A hundred noisy replicates: their spread is the error of z, and a site of noise alone does not count."""
    rng = np.random.default_rng(1)
    exact = sites_of(drawn | {"mute": {"x": np.eye(3)[:2] * 5.0, "y": np.ones(2)}})
    noise = rng.normal(size=(100, *exact.precision.shape[1:])) * 1e-3
    precision = exact.precision + noise + np.swapaxes(noise, -1, -2)
    shift = exact.shift + rng.normal(size=(100, *exact.shift.shape[1:])) * 1e-3
    sites = Gaussian(shift, precision, np.zeros((100, 4)))
    names = (*drawn, "mute")
    ours = conflict_in(answer_of(normal(3), sites), roster_of(names, 3, normal(3)))
    assert int(ours["rank"].sel(client="mute")) == 2
    noiseless = conflict_in(answer_of(normal(3), exact), roster_of(names, 3, normal(3)))
    gap = np.abs(ours["z"] - noiseless["z"]).values[:3]
    assert (gap < 5.0 * ours["z_mcse"].values[:3]).all()
    assert 0.0 < float(ours["z_mcse"].max()) < 0.1


def test_directions_of_unusually_little_information_are_left_out() -> None:
    """Of four clients each has a quarter; the last has a hundredth of that in its second direction."""
    precision = np.array([np.eye(2)] * 3 + [np.diag([1.0, 0.01])])
    shift = np.zeros((4, 2))
    shift[3] = 0.5, 0.4
    posterior = Gaussian(shift.sum(axis=0), precision.sum(axis=0) + np.eye(2), np.zeros(()))
    cavities = Gaussian(shift.sum(axis=0) - shift, posterior.precision - precision, np.zeros(4))
    assert agreement(posterior, cavities).rank.tolist() == [2, 2, 2, 2]
    found = agreement(posterior, cavities, np.full(4, 0.25))
    assert found.rank.tolist() == [2, 2, 2, 1]
    np.testing.assert_allclose(found.chi2[3], found.z[3, 0] ** 2)  # the other direction alone
    np.testing.assert_allclose(found.z, agreement(posterior, cavities).z)


def test_a_factor_that_is_highest_nowhere_the_prior_knows_counts_by_what_it_gains_there() -> None:
    """A Laplace factor of a scale has a slope, and by chance hardly any curvature: z would be as large as one likes.

    Along one global the slope 1 gains 5 - .02 * 25 / 2 nats on the way to five prior sds, whatever the others say.
    """
    precision = np.array([np.diag([0.02]), np.diag([3.0]), np.diag([3.0])])
    prior = Gaussian(np.zeros(1), np.eye(1), np.zeros(()))
    sites = Gaussian(np.array([[[1.0], [0.0], [0.0]]]), precision[None], np.zeros((1, 3)))
    ours = conflict_in(answer_of(prior, sites), roster_of("abc", 1, prior))
    careless = (1.0 / 7.02) / np.sqrt(1.0 / 7.0 - 1.0 / 7.02)
    assert careless > 5.0
    np.testing.assert_allclose(ours["p"].values[0, 0], np.exp(-(5.0 - 0.02 * 25.0 / 2.0)), rtol=1e-9)
    assert ours.attrs["disagreement"] != ""  # five nats, of three comparisons
    halved = Gaussian(0.5 * sites.shift, sites.precision, sites.log_scale)
    assert conflict_in(answer_of(prior, halved), roster_of("abc", 1, prior)).attrs["disagreement"] == ""


def test_no_factor_of_a_usual_site_is_limited() -> None:
    """Sites whose own mean is within five prior sds have the z of the closed form, however far the others are."""
    precision = np.array([np.eye(1)] * 3)
    prior = Gaussian(np.zeros(1), np.eye(1) / 100.0, np.zeros(()))
    sites = Gaussian(np.array([[[25.0], [-2.0], [2.0]]]), precision[None], np.zeros((1, 3)))
    ours = conflict_in(answer_of(prior, sites), roster_of("abc", 1, prior))
    expected = (25.0 / 3.01) / np.sqrt(1.0 / 2.01 - 1.0 / 3.01)
    np.testing.assert_allclose(ours["z"].values[0, 0], expected, rtol=1e-9)


@pytest.mark.slow
# 4 errors; the planted rate, 0.15, is 5 of its own above the limit
@pytest.mark.statistical(key="0 to 119", alarm=3.3e-5)
def test_few_false_alarms_where_information_depends_on_the_data() -> None:
    """A normal law with unknown scale, 6 clients of 10 rows: p-values below 0.05 in at most 0.05 + 4 standard errors.

    Planted bug: without regard to how much information is usual, there are three times as many.
    """

    def model(y) -> None:
        mu, sigma = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    rng, careful, careless = np.random.default_rng(0), [], []
    for i in range(120):
        clients = {f"c{k}": {"y": rng.normal(size=10)} for k in range(6)}
        fit = fb.fit_federated(model, clients, key=jax.random.key(i), progress=False)
        careful.append(fit.conflict()["p_overall"].values)
        both = gaussians_of(fit.posterior, fit.fitted.cavities(), fit.roster)
        mean, others = (jax.tree.map(lambda leaf: np.mean(leaf, axis=0), of) for of in both)
        each = agreement(mean, others)
        careless.append(stats.chi2.sf(each.chi2, each.rank))
    limit = 0.05 + 4.0 * np.sqrt(0.05 * 0.95 / 720)
    assert np.mean(np.array(careful) < 0.05) < limit
    assert np.mean(np.array(careless) < 0.05) > limit


@pytest.mark.slow
# 4 errors above the 0.1 that two families of tests allow; the planted rate, 0.7, is 7 of its own above the limit
@pytest.mark.statistical(key="0 to 59", alarm=3.3e-5)
def test_few_false_alarms_about_the_scale_of_locals_by_laplace() -> None:
    """Ten clients of 9 rows with a mean each: Laplace factors say by chance next to nothing of the means' scale.

    Planted bug: with z that nothing limits, somebody is named in two of three federations.
    """

    def model(y) -> None:
        mu, tau = numpyro.sample("mu", dist.Normal(0.0, 2.0)), numpyro.sample("tau", dist.LogNormal(0.0, 0.7))
        with fb.local():
            own = numpyro.sample("own", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(own, 0.7), obs=y)

    rng, careful, careless = np.random.default_rng(1), [], []
    method = fb.EP(solver="laplace", num_replicates=1)
    for i in range(60):
        mu, tau = rng.normal(0.0, 2.0), np.exp(0.7 * rng.normal())
        clients = {f"c{k}": {"y": rng.normal(rng.normal(mu, tau), 0.7, 9)} for k in range(10)}
        fit = fb.fit_federated(model, clients, method=method, key=jax.random.key(i), correct=False, progress=False)
        found = fit.conflict()
        careful.append(bool(found.attrs["disagreement"]))
        mean, others = (
            jax.tree.map(lambda leaf: leaf[0], of)
            for of in gaussians_of(fit.posterior, fit.fitted.cavities(), fit.roster)
        )
        each = agreement(mean, others)
        z = each.difference / np.sqrt(np.where(each.variance > 0.0, each.variance, np.nan))
        careless.append(bool((holm(2.0 * stats.norm.sf(np.abs(z))) < 0.05).any()))
    limit = 0.1 + 4.0 * np.sqrt(0.1 * 0.9 / 60)
    assert np.mean(careful) < limit
    assert np.mean(careless) > limit


def events_in_ten(events) -> tuple[Gaussian, Gaussian, SimpleNamespace, Callable]:
    """Clients with so many events in ten rows, ``theta ~ N(0, 4)`` the log odds: Laplace's answer, and who is asked."""
    prior, mode = normal(1, 2.0), 0.0
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-mode))
        slope, bend = events - 10.0 * chance, 10.0 * chance * (1.0 - chance)
        mode += (slope.sum() - mode / 4.0) / (bend * len(events) + 0.25)
    bends = np.full((1, len(events), 1, 1), bend)
    sites = Gaussian((slope + bend * mode)[None, :, None], bends, np.zeros((1, len(events))))
    asked = []

    def ask(place: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(place)
        return events[place] * points[:, 0] - 10.0 * np.logaddexp(0.0, points[:, 0]), np.zeros(len(points))

    ask.asked = asked
    answer = answer_of(prior, sites)
    roster = roster_of([f"c{k}" for k in range(len(events))], 1, prior)
    return *gaussians_of(answer.posterior, answer.locals_from.others, roster), roster, ask


def by_events(events, *, asked: bool = True):
    *gaussians, roster, ask = events_in_ten(np.asarray(events, float))
    return conflict_of(*gaussians, roster, roster.globals.labels(), ask if asked else None), ask


USUAL = np.random.default_rng(0).binomial(10, 0.2, 500)


def test_who_is_only_extreme_is_asked_for_its_likelihood_and_not_named() -> None:
    """Eight of ten at a chance of .2: one of 13,000 such clients, by the normal law one of 500,000."""
    ours, ask = by_events([*USUAL, 8])
    assert ask.asked == [500, 500]  # for the one global, and for all together; nobody else
    assert ours.attrs["disagreement"] == ""
    careless, _ = by_events([*USUAL, 8], asked=False)
    assert careless.attrs["disagreement"].count("client '") == 1  # planted: the Gaussian form alone
    chance = np.mean(USUAL) / 10.0
    gained = 8.0 * np.log(0.8 / chance) + 2.0 * np.log(0.2 / (1.0 - chance))
    p = ours["p"].values[-1, 0]
    np.testing.assert_allclose(p, np.exp(-gained), rtol=0.15)  # one of the points is near the peak
    np.testing.assert_allclose(ours["p_overall"].values[-1], p, rtol=1e-6)
    assert p > 1.0 / 13_000
    np.testing.assert_allclose(ours["z"].values[:-1], careless["z"].values[:-1])


def test_who_disagrees_by_its_likelihood_is_named() -> None:
    ours, _ = by_events([*USUAL, 10])
    assert ours.attrs["disagreement"].startswith("client 'c500' disagrees with all the others about beta[0] (z = 5.")


def test_the_likelihood_of_a_linear_model_changes_nothing(drawn) -> None:
    """Its Gaussian form is the likelihood, and z and chi-squared are those of the closed form."""
    far = drawn | {"client1": {**drawn["client1"], "y": drawn["client1"]["y"] + 3.0 * drawn["client1"]["x"][:, 2]}}
    answer, roster = answer_of(normal(3), sites_of(far)), roster_of(far, 3, normal(3))
    gaussians, asked = gaussians_of(answer.posterior, answer.locals_from.others, roster), []

    def ask(place: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(place)
        data = list(far.values())[place]
        return -0.5 * np.sum((data["y"] - points @ data["x"].T) ** 2, axis=1), np.zeros(len(points))

    ours = conflict_of(*gaussians, roster, roster.globals.labels(), ask)
    assert asked.count(1) > 1
    xr.testing.assert_identical(ours, conflict_of(*gaussians, roster, roster.globals.labels()))


@pytest.mark.parametrize(("lost", "noise"), [(np.nan, 0.0), (-np.inf, 0.0), (None, 0.2)])
def test_a_likelihood_that_is_not_known_takes_nothing_back(lost: float | None, noise: float) -> None:
    """Where it is not finite at the cavity, and where the locals are integrated out too roughly."""
    *gaussians, roster, ask = events_in_ten(np.array([*USUAL, 8.0]))

    def roughly(place: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, _ = ask(place, points)
        known = lost is None or points[:, 0] != points[0, 0]
        return np.where(known, values, lost), np.full(len(points), noise)

    ours = conflict_of(*gaussians, roster, roster.globals.labels(), roughly)
    xr.testing.assert_identical(ours, conflict_of(*gaussians, roster, roster.globals.labels()))


def test_a_way_on_which_the_form_gains_nothing_says_nothing() -> None:
    """A client that is far off in both globals, one of which is no further off than their correlation says.

    Along the cavity's regression on either of them its form gains next to nothing, and its likelihood nothing.
    """
    flat = normal(2)
    own = np.array([[505.0, -495.0], [-495.0, 505.0]])
    sites = Gaussian(np.array([[own @ [5.0, 5.1], [0.0, 0.0]]]), np.array([[own, np.eye(2) * 1e-3]]), np.zeros((1, 2)))
    answer, roster = answer_of(flat, sites), roster_of("ab", 2, flat)
    gaussians = gaussians_of(answer.posterior, answer.locals_from.others, roster)
    silent = conflict_of(*gaussians, roster, roster.globals.labels(), lambda _, points: (np.zeros(len(points)),) * 2)
    plain = conflict_of(*gaussians, roster, roster.globals.labels())
    assert float(plain["z"].isel(client=0).min()) > 4.0
    np.testing.assert_allclose(silent["z"], plain["z"])
    assert float(silent["p_overall"].isel(client=0)) == 1.0  # whose way is where the form is highest


def test_questions_have_an_end(monkeypatch) -> None:
    """The clearest cases come first; who is beyond them keeps what its form says."""
    monkeypatch.setattr(likelihood, "_MOST", 3)
    ours, ask = by_events([*USUAL, 8, 9])
    assert ask.asked == [501, 501]
    assert "client 'c500'" in ours.attrs["disagreement"]


def test_a_question_that_fails_leaves_what_the_forms_say(small_fit, monkeypatch, caplog) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    expected = question._found.__wrapped__(small_fit.fitted)
    monkeypatch.setattr(question, "by_likelihood", fails)
    xr.testing.assert_identical(question._found.__wrapped__(small_fit.fitted), expected)
    assert "could not be asked for their likelihood" in caplog.text


@pytest.mark.statistical(key=2, alarm=3.3e-5)  # 4 errors above the 0.1 that two families of tests allow
def test_few_false_alarms_among_many_clients_with_few_rows() -> None:
    """Planted bug: by their Gaussian forms alone somebody is named in 23 of 60 federations."""
    rng, careful, careless = np.random.default_rng(2), [], []
    for _ in range(60):
        events = rng.binomial(10, 0.15, 500)
        careful.append(bool(by_events(events)[0].attrs["disagreement"]))
        careless.append(bool(by_events(events, asked=False)[0].attrs["disagreement"]))
    limit = 0.1 + 4.0 * np.sqrt(0.1 * 0.9 / 60)
    assert np.mean(careful) < limit < np.mean(careless)


def test_a_fit_asks_its_clients(caplog) -> None:
    """The same by a fit, its locals integrated out: nobody disagrees, whom the Gaussian forms would name."""

    def model(y) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
        with fb.local():
            own = numpyro.sample("own", dist.Normal(0.0, 0.1))
        numpyro.sample("y", dist.Bernoulli(logits=theta + own), obs=y)

    clients = {f"c{k}": {"y": np.arange(10) < events} for k, events in enumerate([*USUAL[:400], 8])}
    fit = fb.fit_federated(model, clients, method="laplace", key=jax.random.key(0), correct=False, progress=False)
    assert fit.conflict().attrs["disagreement"] == ""
    assert caplog.text == ""
    gaussians = gaussians_of(fit.posterior, fit.fitted.cavities(), fit.roster)
    assert "client 'c400'" in conflict_of(*gaussians, fit.roster, fit.global_labels).attrs["disagreement"]


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, np.nan, 0.03, 0.005])), [0.03, 0.06, np.nan, 0.06, 0.02])


@pytest.mark.parametrize("changed", ["point", "chains", "coupled"])
def test_answers_without_sites_are_refused(changed: str, drawn) -> None:
    kind = {
        "point": {"posterior": None},
        "chains": {"locals_from": FromRecord(normal(3))},
        "coupled": {"locals_from": FromServer((), {}, {}, "Coupling")},
    }[changed]
    other = type("Other", (GaussianAnswer,), kind)
    good = answer_of(normal(3), sites_of(drawn))
    bad = other(None if changed == "point" else good.posterior, good.locals_from, None)
    with pytest.raises(
        ValueError, match=r"needs the Gaussian that each of them says of the globals\. This fit has none"
    ):
        conflict_in(bad, roster_of(drawn, 3, normal(3)))


def test_a_posterior_that_is_no_product_is_refused(drawn) -> None:
    good = answer_of(normal(3), sites_of(drawn))
    barycentre = GaussianAnswer(jax.tree.map(lambda leaf: leaf / 3.0, good.posterior), good.locals_from, None)
    with pytest.raises(ValueError, match="product of the prior and the clients' sites, and this one is combined"):
        conflict_in(barycentre, roster_of(drawn, 3, normal(3)))
    improper = GaussianAnswer(jax.tree.map(lambda leaf: -leaf, good.posterior), good.locals_from, None)
    with pytest.raises(ValueError, match=r"positive definite precision matrix.* `fit.trouble\(\)`"):
        conflict_in(improper, roster_of(drawn, 3, normal(3)))


def test_the_picture_marks_who_disagrees(drawn) -> None:
    far = drawn | {"client1": {**drawn["client1"], "y": drawn["client1"]["y"] + 3.0 * drawn["client1"]["x"][:, 2]}}
    ours = found(far)
    ax = fb.plots.plot_conflict(ours, labels={"beta[2]": "dose"})
    assert [label.get_text() for label in ax.get_yticklabels()] == list(drawn)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["beta[0]", "beta[1]", "dose"]
    rows, columns = np.nonzero(ours["p_adjusted"].values < 0.05)
    assert len(rows)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), columns)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), rows)
    low, high = ax.images[0].get_clim()
    assert low == -high
    plt.close("all")


def test_the_picture_of_a_fit(small_fit) -> None:
    ax = fb.plots.plot_conflict(small_fit)
    np.testing.assert_allclose(ax.images[0].get_array(), small_fit.conflict()["z"])
    plt.close("all")
