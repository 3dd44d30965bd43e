"""A site that lies, among two that do not: which lies do no harm, which are seen, and which are neither.

The lies are told where the site's numbers are made, and hidden in secure sums like any others.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from permissive import PERMISSIVE
from scipy import stats
from scipy.signal import lfilter

import fedbayes as fb
from fedbayes.network.agreement import are_enough, own_factor, own_test, without_factor
from fedbayes.network.answering import AnsweringSite
from fedbayes.network.client.journal import failures_told
from fedbayes.network.messages import pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.rounds.wire import arrays_of, encode

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedbayes.errors.UnreliableWarning"),
    pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning"),
]


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=b[0] + x * b[1]), obs=y)


@cache
def rows() -> dict:
    rng = np.random.default_rng(1)
    found = {}
    for name in ("ada", "bo", "mal"):
        x = rng.normal(size=60)
        found[name] = {"x": x, "y": (rng.uniform(size=60) < 1 / (1 + np.exp(-(0.2 + 0.8 * x)))).astype(int)}
    return found


class Liar(Site):
    """A site whose replies a lie changes: ``lie(order, reply)`` gives what it says instead."""

    lie = None

    def session(self, header, *more):
        session = super().session(header, *more)
        if self.lie is not None and "reply" not in vars(session.executor):
            honest = session.executor.reply
            session.executor.reply = lambda order, secret=None: self.lie(order, honest(order, secret))
        return session

    def _check_failures(self, failures, most):
        """Who lies keeps no account of what an honest site would tell no more."""


def log_likelihoods(change):
    """A lie about log-likelihoods: ``change(theta, values)``."""

    def lie(order, reply):
        if order.phase is not None or not order.updates[0].startswith("log_likelihood"):
            return reply
        values, info = reply.total
        return reply._replace(total=(change(np.asarray(order.shared), np.array(values)), info))

    return lie


def a_site(mean, precision):
    """A lie about the Gaussian site: that it has this mean and precision, told in the first round."""
    told = []

    def lie(order, reply):
        if order.phase is None:
            return reply
        change = reply.total
        number = 0.0 if told else precision
        told.append(number)
        triangle = (np.eye(2) * number)[np.tril_indices(2)]
        site = replace(
            change.site,
            shift=np.broadcast_to(number * np.asarray(mean), change.site.shift.shape).copy(),
            precision=np.broadcast_to(triangle, change.site.precision.shape).copy(),
        )
        return reply._replace(total=change._replace(site=site))

    return lie


def last(values, to):
    values[..., -1] = to(values[..., -1])
    return values


@pytest.fixture
def lied_to(federation):
    """``lied_to(lie, secure_sums=...)``: a checked fit of three sites, the last of which lies."""
    world = federation(fb.EP(solver="laplace", num_replicates=1), program=logistic)
    world.data = rows()

    def fitted(lie=None, **options):
        def site(name):
            config = {"site-id": name, "state-dir": str(world.folder / name), **PERMISSIVE}
            found = Liar(world.study, lambda config: world.data[config["site-id"]], config)
            found.lie = lie if name == "mal" else None
            return found

        network = Rehearsal(*map(site, rows()))
        return network, world.fit(network, correct=True, num_draws=500, **options)

    return fitted


def mean_of(fit) -> np.ndarray:
    return fit.idata.posterior["b"].mean(("chain", "draw")).values


SUMS = pytest.mark.parametrize("secure", [True, False], ids=["secure sums", "single messages"])
HONEST = np.array([0.147, 0.771])  # the posterior's means without a lie; its sds are .16 and .20
NEAR = 0.04  # posterior means of 1,300 effective draws lie within four of their errors, .02, of each other


@SUMS
def test_without_a_lie_all_agree(lied_to, secure):
    _, fit = lied_to(secure_sums=secure)
    np.testing.assert_allclose(mean_of(fit), HONEST, atol=1e-3)
    assert fit.fitted.agreement == dict.fromkeys(("ada", "bo", "mal"), True)
    assert "  agreement 3 of 3 sites find no conflict between their data and the others'" in repr(fit)


@SUMS
@pytest.mark.parametrize(
    "lie",
    [
        lambda: a_site((-1.0, -1.0), 1e29), lambda: a_site((-1.0, -1.0), 1e11), lambda: a_site((-1.0, -1.0), 1e4),
        lambda: a_site((-1.0, -1.0), 50.0), lambda: a_site((0.0, 0.0), -50.0),
        lambda: log_likelihoods(lambda theta, values: last(values, lambda one: one + 8.0)),
        lambda: log_likelihoods(lambda theta, values: values + 1e12),
    ],
    ids=["precision 1e29", "1e11", "1e4", "50", "negative definite", "a log-likelihood too large by 8", "all by 1e12"],
)  # fmt: skip
def test_lies_about_a_site_are_undone_by_the_log_likelihoods(lied_to, secure, lie):
    """The rounds end elsewhere, or not at all; their draws are weighed by what the clients say of them."""
    _, fit = lied_to(lie(), secure_sums=secure)
    np.testing.assert_allclose(mean_of(fit), HONEST, atol=NEAR)
    assert fit.correction.reliable


def test_a_precise_lie_is_seen_by_an_honest_site(lied_to, caplog):
    _, fit = lied_to(a_site((-1.0, -1.0), 1e4), secure_sums=True)
    assert not fit.fitted.agreement["ada"]
    assert "  CONFLICT  ada" in repr(fit)
    assert "This site's data disagree with what all other sites and the prior say about b[" in caplog.text


@SUMS
@pytest.mark.parametrize(
    "change",
    [
        lambda theta, values: np.full_like(values, 1e300),
        lambda theta, values: last(values, lambda one: one + 1e9),
        lambda theta, values: np.full_like(values, np.nan),
    ],
    ids=["1e300", "one larger by 1e9", "no numbers"],
)
def test_absurd_log_likelihoods_leave_the_posterior_unchecked_and_that_is_said(lied_to, secure, change, caplog):
    _, fit = lied_to(log_likelihoods(change), secure_sums=secure)
    assert not fit.correction.reliable
    assert "not to be trusted: its draws can't be weighed" in repr(fit)
    assert "a client's log-likelihoods are no numbers, or larger than any data make them" in fit.trouble()
    np.testing.assert_allclose(mean_of(fit), [0.149, 0.744], atol=1e-3)  # the Gaussian of the rounds
    beyond = not change(np.zeros((1, 2)), np.zeros((1, 2))).max() < 1e10
    named = "1500 numbers in the answer of site mal can't be meant" in caplog.text
    assert named == (beyond and not secure)


def test_a_site_that_keeps_its_account_of_failures_costs_the_check_alone(lied_to, monkeypatch):
    """As one whose log-likelihoods are too large in an honest fit: each refusal counts as one failure."""
    monkeypatch.setattr(Liar, "_check_failures", AnsweringSite._check_failures)
    network, fit = lied_to(log_likelihoods(lambda theta, values: np.full_like(values, 1e300)), secure_sums=True)
    assert "Site 'mal' would tell more often than its owner allows that a number is not finite" in fit.trouble()
    np.testing.assert_allclose(mean_of(fit), [0.149, 0.744], atol=1e-3)
    assert 1 <= failures_told(network.sites[3].journal.entries()) <= 3


@SUMS
def test_a_tilt_of_two_sds_is_seen_by_an_honest_site_and_one_of_less_by_nobody(lied_to, secure):
    """It moves the mean by as many posterior sds as nats are told for one: that is neither bounded nor undone."""
    _, fit = lied_to(log_likelihoods(lambda theta, values: values - 15.0 * theta[..., 1]), secure_sums=secure)
    assert (mean_of(fit)[1] - HONEST[1]) / 0.199 < -2.0
    assert fit.fitted.agreement == {"ada": False, "bo": True, "mal": True}
    _, fit = lied_to(log_likelihoods(lambda theta, values: values - 5.0 * theta[..., 1]), secure_sums=secure)
    assert -1.0 < (mean_of(fit)[1] - HONEST[1]) / 0.199 < -0.7
    assert all(fit.fitted.agreement.values())


def test_a_site_is_asked_for_one_bit_in_a_run(lied_to):
    """Asked again, of a posterior far away, it says what it has said before."""
    network, _ = lied_to(secure_sums=True)
    site = network.sites[1]
    (request,) = (unpack(each) for each in network.sent if unpack(each).header["kind"] == "conclude" and
                  unpack(each).header["seat"]["place"] == 0)  # fmt: skip
    arrays = arrays_of(request.body)
    assert {"posterior/shift", "posterior/precision"} <= arrays.keys()
    far = {**arrays, "posterior/shift": arrays["posterior/shift"] * 100.0}
    assert unpack(site.answer(pack(request.header, encode(far)))).header["told"] == {"agrees": True}
    (site.vault.run(request.header["run"]).folder / "agrees").unlink()
    draws = {name: array for name, array in far.items() if not name.startswith("recipes")}
    draws["shared"] = np.full((1, 10, 2), 9.0)
    assert unpack(site.answer(pack(request.header, encode(draws)))).header["told"] == {"agrees": False}  # control


def test_a_site_says_so_of_a_few_runs_on_the_same_data(lied_to, monkeypatch):
    """A server that made up the ends of 72 runs had the mean and the precision of one site's Gaussian to ten digits."""
    monkeypatch.setattr("fedbayes.network.site._MOST_AGREEMENTS", 2)
    network, _ = lied_to(secure_sums=True)
    site, sent = network.sites[1], [each for each in map(unpack, network.sent) if "seat" in each.header]
    mine = [each for each in sent if each.header["seat"]["place"] == 0 and each.header["kind"] in ("round", "conclude")]

    def end(run: str) -> bool | None:
        for each in mine:
            answer = unpack(site.answer(pack({**each.header, "run": run}, each.body)))
        return answer.header["told"]["agrees"]

    assert [end(run) for run in ("aa", "bb", "aa")] == [True, None, True]


def precise(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1e-6), obs=y)


def test_a_cavity_may_be_larger_than_a_log_likelihood(federation):
    """Its precision is in the units of the globals, and stands by itself."""
    world = federation(fb.Laplace(), program=precise)
    world.data = {name: {"y": 1.0 + 1e-6 * np.linspace(-1.0, 1.5, num)} for name, num in (("ada", 40), ("bo", 50))}
    fit = world.fit(Rehearsal(*map(world.site, world.data)), correct=False, secure_sums=False, num_clients=2)
    assert fit.conflict()["z"].notnull().all()


def test_an_owner_can_keep_the_bit(lied_to, tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text("[studies]\nany = true\n[answers]\nagreement = false\n")
    monkeypatch.setitem(PERMISSIVE, "policy", str(tmp_path / "own.toml"))
    _, fit = lied_to(secure_sums=True)
    assert fit.fitted.agreement == {}
    assert "agreement" not in repr(fit)


class Factors(NamedTuple):
    """Gaussian factors of clients in one federation, and the posterior that they make."""

    posterior: Gaussian
    shift: np.ndarray
    precision: np.ndarray
    prior: Gaussian

    def is_alarmed(self, compared):
        """By the clients' own tests of what ``compared(self, client)`` gives: whole, cavity, and mean of the draws."""
        parts = [min(n / 47.0, 1 / 3) for n in (5, 12, 30)]
        tests = [own_test(*compared(self, k), part, 3, self.prior) for k, part in enumerate(parts)]
        return any(test is not None and not test.agrees for test in tests)


def federations(num, moved=0.0):
    """Federations of three clients that obey the model, but for one client."""
    rng = np.random.default_rng(0)
    designs = [rng.normal(size=(n, 2)) for n in (5, 12, 30)]
    precision = np.array([x.T @ x for x in designs])
    prior = Gaussian(np.zeros(2), 0.25 * np.eye(2), np.zeros(()))
    total = prior.precision + precision.sum(axis=0)
    for _ in range(num):
        beta = 2.0 * rng.normal(size=2)
        betas = [beta, beta, beta + moved]
        shift = np.array([x.T @ (x @ b + rng.normal(size=len(x))) for x, b in zip(designs, betas, strict=True)])
        yield Factors(Gaussian(shift.sum(axis=0), total, np.zeros(())), shift, precision, prior)


def by_sites(world, k):
    """Each client less its own site."""
    whole = jax.tree.map(lambda leaf: leaf[None], world.posterior)
    cavity = replace(whole, shift=whole.shift - world.shift[k], precision=whole.precision - world.precision[k])
    return whole, cavity, np.linalg.solve(world.posterior.precision, world.posterior.shift)


def autoregressive(rng, posterior, correlation):
    """4 x 500 draws of chains that begin in their law and forget it slowly, each coordinate by the same factor."""
    root = np.linalg.cholesky(np.linalg.inv(posterior.precision))
    noise = np.sqrt(1.0 - correlation**2) * rng.normal(size=(4, 500, len(root)))
    noise[:, 0] /= np.sqrt(1.0 - correlation**2)
    white = lfilter([1.0], [1.0, -correlation], noise, axis=1)
    return np.linalg.solve(posterior.precision, posterior.shift) + white @ root.T


def by_chains(world, k, correlation=0.0):
    """Each client less the factor that its log-likelihood at draws of the posterior shows."""
    rng = np.random.default_rng(np.abs(world.shift).view(np.uint64).ravel())
    draws = autoregressive(rng, world.posterior, correlation)
    values = draws @ world.shift[k] - 0.5 * np.einsum("cni,ij,cnj->cn", draws, world.precision[k], draws) + 3.0
    return *without_factor(draws, values), draws.mean(axis=(0, 1))


def by_slow_chains(world, k):
    """Each of the 500 draws of a chain is worth a ninth of an independent one."""
    return by_chains(world, k, correlation=0.8)


COMPARED = pytest.mark.parametrize("compared", [by_sites, by_chains, by_slow_chains])


@COMPARED
@pytest.mark.statistical(key=0, alarm=1e-5)
def test_false_alarms_are_as_rare_as_is_said(compared):
    """Two families at 5 percent: at most 10 of 100 federations, 40 of 400; more than 67 has the chance 1e-5."""
    alarms = sum(world.is_alarmed(compared) for world in federations(400))
    assert 0 < alarms <= 67


@COMPARED
def test_a_client_that_differs_is_found(compared):
    assert sum(world.is_alarmed(compared) for world in federations(100, moved=3.0)) == 100


def test_a_factor_is_found_from_a_likelihood_at_draws():
    """Of a Gaussian factor to rounding, wherever the draws are; of any other none where it is not finite."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(3, 3))
    shift, precision = rng.normal(size=3), root @ root.T
    theta = 2.0 + rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3))
    values = theta @ shift - 0.5 * np.einsum("ni,ij,nj->n", theta, precision, theta) - 7.0
    found = own_factor(theta, values)
    np.testing.assert_allclose(found.precision, precision, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.shift, shift, rtol=1e-8, atol=1e-8)
    assert own_factor(theta[:19], values[:19]) is None  # ten coefficients
    assert own_factor(theta, np.where(theta[:, 0] > 3.0, -np.inf, values)) is None
    assert own_factor(np.ones((60, 3)), values) is None


def mean_alone(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 2.0)), 0.7), obs=y)


CHAINS = fb.FALD(num_chains=2, local_steps=1, thinning=3, num_warmup=20, step_size=0.35)


@pytest.mark.parametrize("moved", [0.0, 2.0], ids=["other data of one kind", "one site's data are of another"])
def test_sites_compare_the_draws_of_chains_with_their_own_rows(federation, moved):
    """FA-LD's sites have no Gaussian of their own; two of three are pulled by the third, and say so as well."""
    world = federation(CHAINS, program=mean_alone)
    world.data = {name: {"y": rows["y"] + moved * (name == "cy")} for name, rows in world.data.items()}
    fit = world.fit(network := world.network(), secure_sums=True, num_draws=100)
    assert fit.converged
    assert fit.fitted.agreement["cy"] == (not moved)
    assert all(fit.fitted.agreement.values()) == (not moved)
    assert ("  CONFLICT  " in repr(fit)) == bool(moved)
    told = [unpack(each).header["told"] for each in network.answered if unpack(each).header["kind"] == "conclude"]
    assert [each.keys() for each in told] == [{"agrees"}] * 3


@pytest.mark.parametrize("method", [fb.OneShot(), fb.FedPA(), fb.FedAvg()], ids=["a merge", "FedPA", "FedAvg"])
def test_sites_whose_method_ends_with_a_gaussian_compare_it_with_their_own(federation, method):
    world = federation(method, program=mean_alone)
    world.data = {name: {"y": rows["y"] + 2.0 * (name == "cy")} for name, rows in world.data.items()}
    assert not world.fit().fitted.agreement["cy"]


@pytest.mark.parametrize(
    "method",
    [
        CHAINS, replace(CHAINS, temperature=2.0), replace(CHAINS, temperature=0.0),
        replace(CHAINS, clip=5.0, control_variate=False), fb.EP(),
    ],
    ids=["chains", "of a temperature", "of none", "with clipping", "EP"],
)  # fmt: skip
def test_chains_of_another_density_than_the_posterior_are_not_compared(method):
    assert method.ends_in_chains == (method is CHAINS)


def test_how_far_chains_differ_is_noise_of_a_factor():
    """Of the second global the rows say nothing; what bends in the first, and slow chains, seem to tell of it."""
    alarms = []
    for seed in range(40):
        draws = autoregressive(np.random.default_rng(seed), Gaussian(np.zeros(2), np.eye(2), np.zeros(())), 0.8)
        whole, cavity = without_factor(draws, 10.0 * np.tanh(2.0 * draws[..., 0]))
        test = own_test(whole, cavity, draws.mean(axis=(0, 1)), 1 / 3, 3)
        alarms.append(test is not None and test.p[1] < 0.05)
    assert sum(alarms) == 0


def test_chains_have_two_effective_draws_at_least_for_each_coefficient():
    world = next(federations(1))
    rng = np.random.default_rng(0)
    slow, slower = (autoregressive(rng, world.posterior, correlation) for correlation in (0.8, 0.99))
    assert [are_enough(draws) for draws in (slow, slower, slow[:, :11], slow[:1], slow[..., :0])] == [True] + [
        False
    ] * 4


class Ends:
    """What a site answers to the last message of a fit where that was changed, as if it were the first such."""

    def __init__(self, network):
        self.site, mine = network.sites[1], [each for each in map(unpack, network.sent) if "seat" in each.header]
        (self.end,) = (each for each in mine if each.header["kind"] == "conclude" and each.header["seat"]["place"] == 0)
        self.arrays = {name: each for name, each in arrays_of(self.end.body).items() if not name.startswith("recipes")}

    def answer(self, header, **arrays):
        """The bit, and whether one of the site's runs was spent on it."""
        (self.site.vault.run(self.end.header["run"]).folder / "agrees").unlink()
        account = self.site.vault.folder / "agreements.json"
        account.unlink(missing_ok=True)
        answer = self.site.answer(pack({**self.end.header, **header}, encode({**self.arrays, **arrays})))
        return unpack(answer).header["told"]["agrees"], account.exists()


def test_a_site_compares_draws_only_where_it_would_answer(federation, caplog):
    """Where its rows find a draw implausible hangs on these, so that this answer is counted as well."""
    world = federation(replace(CHAINS, num_warmup=2, thinning=1), program=mean_alone)
    world.fit(network := world.network(), num_draws=8)
    ends = Ends(network)
    mean, asked = np.mean(np.concatenate([each["y"] for each in world.data.values()])), {"by_draws": True}
    draws = mean + 0.14 * np.random.default_rng(0).normal(size=(2, 100, 1))

    def moved(value):
        return np.where(np.arange(100)[:, None] == 7, value, draws)

    assert ends.answer(asked, shared=draws) == (True, True)  # control
    assert ends.answer(asked, shared=draws + 1.5) == (False, True)  # control
    assert ends.answer({"by_draws": False}, shared=draws) == (None, False)
    assert ends.answer(asked, shared=moved(101.0)) == (None, False)
    assert "more than 50 prior sds from the prior's centre" in caplog.text
    assert ends.answer(asked, shared=moved(np.nan)) == (None, False)
    assert ends.answer(asked, shared=draws[:, :5]) == (None, False)
    assert ends.answer(asked, shared=np.concatenate([draws, draws], axis=2)) == (None, False)
    assert ends.answer(asked, shared=moved(40.0)) == (None, True)
    assert "less likely than the likeliest by more than 2 nats a row" in caplog.text


def test_no_server_of_a_method_without_chains_has_rows_compared_with_draws(federation):
    world = federation(fb.Laplace(), program=mean_alone)
    world.fit(network := world.network())
    ends = Ends(network)
    mean = np.mean(np.concatenate([each["y"] for each in world.data.values()]))
    draws = mean + 0.14 * np.random.default_rng(0).normal(size=(1, 100, 1))
    assert ends.answer({}, shared=draws) == (True, True)  # control
    ends.arrays = {name: array for name, array in ends.arrays.items() if not name.startswith("posterior/")}
    assert ends.answer({"by_draws": True}, shared=draws) == (None, False)


def test_a_site_with_hardly_any_curvature_is_compared_within_the_prior_s_reach():
    """Also where the prior is not Gaussian, and the rest of the posterior's precision not known to be the prior's."""
    prior = Gaussian(np.zeros(1), np.eye(1), np.zeros(()))
    whole = Gaussian(np.array([[1.0]]), np.array([[[7.02]]]), np.zeros(1))
    cavity = Gaussian(np.array([[0.0]]), np.array([[[7.0]]]), np.zeros(1))
    mean = np.array([1.0 / 7.02])
    gaussian, other = (
        own_test(whole, cavity, mean, 1 / 3, 3, prior),
        own_test(whole, cavity, mean, 1 / 3, 3, None, np.ones(1)),
    )
    np.testing.assert_allclose(other.z, gaussian.z, rtol=1e-9)
    np.testing.assert_allclose(2.0 * stats.norm.sf(other.z), np.exp(-(5.0 - 0.02 * 25.0 / 2.0)), rtol=1e-6)
    assert own_test(whole, cavity, mean, 1 / 3, 3, None).z > 5.0  # without: the planted bug


def test_it_is_the_conflict_that_everybody_would_see(lied_to):
    """To the last digits, where the draws' mean is the Gaussian's; the comparisons are counted by Bonferroni."""
    fit = fb.fit_federated(
        logistic, rows(), method=fb.EP(solver="laplace", num_replicates=2), key=jax.random.key(0), correct=False,
        progress=False,
    )  # fmt: skip
    whole, cavities, roster = fit.posterior, fit.fitted.cavities(), fit.fitted.roster
    mean = np.linalg.solve(np.mean(whole.precision, 0), np.mean(whole.shift, 0))
    seen = fit.conflict()
    for place, name in enumerate(roster.names):
        mine = jax.tree.map(lambda leaf, place=place: leaf[:, place], cavities)
        found = own_test(whole, mine, mean, 1 / 3, 3, roster.prior.gaussian)
        np.testing.assert_allclose(found.z, seen["z"].sel(client=name), rtol=1e-6)
        np.testing.assert_allclose(found.p, np.minimum(6.0 * seen["p"].sel(client=name), 1.0), rtol=1e-6)
        overall = min(3.0 * float(seen["p_overall"].sel(client=name)), 1.0)
        np.testing.assert_allclose(found.p_overall, overall, rtol=1e-6)
