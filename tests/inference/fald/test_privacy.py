"""Differential privacy of FA-LD: the paper's numbers, where they are wrong, and a bound that holds."""

import math
import sys
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fedbayes as fb
from fedbayes.inference.fald import client as fald_client
from fedbayes.inference.fald.mechanism import Mechanism
from fedbayes.inference.fald.privacy import (
    Guarantee,
    deng_2024,
    gaussian_profile,
    largest_step_size,
    mechanism_of,
    renyi,
)

DELTAS = {"delta0": 1e-8, "delta1": 1e-6, "delta2": 1e-6}
PLAIN = {"delta0": 1e-8, "delta1": 0.0, "delta2": 0.0}


def mechanism(num_clients=10, **changes) -> Mechanism:
    """The setting of the reference values: T = 1000 local steps, five of ten equal clients, a tenth of their rows."""
    setting = {
        "step_size": 1e-9,
        "local_steps": 10,
        "num_rounds": 100,
        "num_clients": num_clients,
        "num_active": 5,
        "scheme": "without_replacement",
        "weights": np.ones(num_clients) / max(num_clients, 1),
        "num_rows": [100] * num_clients,
        "batch_size": 10,
        "noise_correlation": 0.0,
        "temperature": 1.0,
        "sensitivity": 1.0,
    }
    return Mechanism(**setting | changes)


def everybody(**changes) -> Mechanism:
    """All clients, all of their rows: every step is a plain Gaussian mechanism."""
    return mechanism(**{"num_active": 10, "scheme": "full", "batch_size": None} | changes)


def exact_epsilon(ratio: float, delta: float) -> float:
    return brentq(lambda epsilon: gaussian_profile(epsilon, ratio) - delta, 0.0, 100.0, xtol=1e-14, rtol=1e-14)


# the theorem's numbers


@pytest.mark.parametrize(
    ("changes", "deltas", "epsilon", "delta"),
    [
        ({}, DELTAS, 0.229335, 5.15e-5),
        ({}, PLAIN, 0.432717, 5e-7),
        ({"noise_correlation": 0.9}, DELTAS, 0.533240, 5.15e-5),
        ({"scheme": "with_replacement"}, DELTAS, 0.187625, 0.63),
        ({"num_active": 1}, DELTAS, 0.0456457, 1.11e-5),
        ({"num_active": 1, "scheme": "with_replacement"}, DELTAS, 0.0456457, 1.11e-5),
    ],
)
def test_reference_values_of_the_theorem(changes, deltas, epsilon, delta):
    ours = deng_2024(mechanism(**changes), **deltas)
    assert ours.epsilon == pytest.approx(epsilon, rel=3e-6)
    assert ours.delta == pytest.approx(delta, rel=1e-4)


def test_reference_values_of_the_theorems_lines():
    one_round = {"num_rounds": 1}
    one_step = one_round | {"local_steps": 1}
    assert largest_step_size(mechanism(), delta0=1e-8) == pytest.approx(5.36371e-5, rel=1e-6)
    assert deng_2024(everybody(batch_size=10, **one_step), **PLAIN).epsilon == pytest.approx(8.635699e-4, rel=1e-6)
    assert deng_2024(everybody(batch_size=10, **one_round), **DELTAS).epsilon == pytest.approx(8.635699e-3, rel=1e-6)
    assert deng_2024(mechanism(**one_round), **DELTAS).epsilon == pytest.approx(4.327171e-3, rel=1e-6)
    common = deng_2024(everybody(batch_size=10, noise_correlation=0.9, **one_step), **PLAIN)
    assert common.epsilon == pytest.approx(1.981165e-3, rel=1e-6)


def test_one_step_against_the_exact_profile():
    step = everybody(step_size=1e-6, local_steps=1, num_rounds=1, batch_size=10)
    before_subsampling = math.sqrt(2.0 * math.log(1.25 / 1e-6)) * step.ratios[0]
    assert before_subsampling == pytest.approx(0.118485, rel=4e-6)
    assert gaussian_profile(before_subsampling, step.ratios[0]) == pytest.approx(2.45e-10, rel=2e-3)
    theorem = deng_2024(step, delta0=1e-6, delta1=0.0, delta2=0.0)
    assert theorem.epsilon == pytest.approx(2.0 * 0.1 * before_subsampling)  # the theorem's bound on amplification
    assert theorem.epsilon >= math.log1p(0.1 * math.expm1(before_subsampling))
    assert theorem.delta == pytest.approx(0.1 * 1e-6)


def test_all_clients_without_replacement_are_all_clients():
    all_drawn = deng_2024(mechanism(num_active=10), **DELTAS)
    full = deng_2024(everybody(batch_size=10), **DELTAS)
    assert (all_drawn.epsilon, all_drawn.delta) == (full.epsilon, full.delta)
    one_round = everybody(num_rounds=1, batch_size=10)
    assert deng_2024(one_round, **DELTAS).epsilon == pytest.approx(
        10 * deng_2024(replace(one_round, local_steps=1), **PLAIN).epsilon
    )


def test_small_steps_obey_the_theorems_asymptotic_form():
    # (71): once eta is below its limit, the advanced compositions are the smaller ones
    small, c = mechanism(step_size=1e-14, local_steps=1000, num_rounds=1000), math.sqrt(2.0 * math.log(1.25 / 1e-8))
    logs = math.log(1e6)
    first = math.log(1.0 + math.sqrt(2.0 * logs / 1000)) ** 2
    second = math.log(1.0 + 2.0 * math.sqrt(2.0 * logs / 1000)) ** 2 / (8 * 1000 * logs)
    assert small.step_size <= 0.1 / (2.0 * c**2) * min(first, second)
    inner = math.expm1(4.0 * c * math.sqrt(small.step_size * 1000 * logs / 0.1))
    bound = 2.0 * math.sqrt(2.0 * 1000 * logs) * math.log1p(0.5 * inner)
    assert deng_2024(small, **DELTAS).epsilon <= bound
    assert deng_2024(small, **DELTAS).epsilon < 0.1 * deng_2024(small, **PLAIN).epsilon


LESS_PRIVATE = [
    {"step_size": 2e-9},
    {"num_active": 6},
    {"num_rounds": 200},
    {"local_steps": 20},
    {"noise_correlation": 0.5},
    {"temperature": 0.5},
    {"sensitivity": 2.0},
    {"num_clients": 8},
]


@pytest.mark.parametrize("changes", LESS_PRIVATE, ids=lambda changes: next(iter(changes)))
@pytest.mark.parametrize("scheme", ["without_replacement", "with_replacement"])
def test_the_theorem_is_monotone(scheme, changes):
    before, after = (deng_2024(mechanism(scheme=scheme, **some), **DELTAS) for some in ({}, changes))
    assert after.epsilon > before.epsilon
    assert after.delta >= before.delta


def test_delta_grows_with_the_batch_and_epsilon_does_not():
    small, large = (deng_2024(mechanism(batch_size=size), **DELTAS) for size in (10, 20))
    assert large.delta > small.delta
    assert large.epsilon == pytest.approx(small.epsilon)


def test_the_worst_client_counts():
    uneven = {"num_clients": 2, "num_active": 2, "weights": [0.1, 0.9]}
    alike = mechanism(**uneven, num_rows=[100, 100])
    assert largest_step_size(alike, delta0=1e-8) == pytest.approx(5.36371e-5, rel=1e-6)
    assert deng_2024(alike, **DELTAS).epsilon == deng_2024(mechanism(num_active=10), **DELTAS).epsilon
    proportional = mechanism(**uneven, num_rows=[100, 900])  # p_c (B / n_c)^2 is smallest at the larger client
    assert largest_step_size(proportional, delta0=1e-8) == pytest.approx(5.36371e-5 / 9.0, rel=1e-6)


def test_largest_step_size_is_where_a_step_has_epsilon_one():
    limit = largest_step_size(mechanism(), delta0=1e-8)
    at_limit = mechanism(step_size=limit)
    assert math.sqrt(2.0 * math.log(1.25 / 1e-8)) * max(at_limit.ratios) == pytest.approx(1.0)
    assert deng_2024(at_limit, **DELTAS).epsilon > 1.0
    with pytest.raises(ValueError, match=r"`step_size` is 5\.36907e-05, .* eta_max = 5\.36371e-05.*`renyi`"):
        deng_2024(mechanism(step_size=1.001 * limit), **DELTAS)


def test_long_runs_of_many_clients_do_not_overflow():
    for scheme in ("without_replacement", "with_replacement"):
        many = {"num_active": 1400, "scheme": scheme, "local_steps": 1000, "batch_size": None}
        hopeless = mechanism(1500, step_size=1e-4, **many)
        guarantee = deng_2024(hopeless, delta0=1e-2, delta1=0.0, delta2=0.0)
        assert math.isfinite(guarantee.epsilon)
        assert guarantee.delta == 1.0
        assert "which is vacuous" in repr(guarantee)


# where the theorem is wrong


@pytest.mark.parametrize(
    ("ratio", "round_epsilon", "claim", "truth"), [(1.0, 1.0, 0.0635, 0.1040), (0.1, 0.3, 2.2e-5, 1.22e-3)]
)
def test_amplification_by_clients_is_not_sound(ratio, round_epsilon, claim, truth):
    # One of two clients is drawn. The uploads are so far apart that one sees which: the record's client, half the time.
    claimed_epsilon = math.log1p(0.5 * math.expm1(round_epsilon))
    claimed_delta = 0.5 * gaussian_profile(round_epsilon, ratio)
    true_delta = 0.5 * gaussian_profile(claimed_epsilon, ratio)
    assert claimed_delta == pytest.approx(claim, rel=1e-2)
    assert true_delta == pytest.approx(truth, rel=1e-2)
    assert true_delta > claimed_delta


@pytest.mark.statistical(key=1, numbers=1, errors=5.0)
def test_the_true_delta_of_the_counter_example_by_simulation():
    # Uploads near 0 (the other client) or near 10^6 + 1, with the other record 10^6 (the record's): 5 standard errors.
    rng, epsilon, size = np.random.default_rng(1), math.log1p(0.5 * math.expm1(1.0)), 640_000
    upload = np.where(rng.random(size) < 0.5, 0.0, 1e6 + 1.0) + rng.normal(size=size)
    log_ratio = np.where(upload > 1e5, norm.logpdf(upload - 1e6 - 1.0) - norm.logpdf(upload - 1e6), 0.0)
    gain = np.maximum(0.0, 1.0 - np.exp(epsilon - log_ratio))
    assert gain.mean() == pytest.approx(0.1040, abs=5.0 * gain.std() / math.sqrt(size) + 5e-5)


@pytest.fixture
def one_of_ten() -> Mechanism:
    """A run of one step in which one of ten clients moves, on all of its rows: who moved can be seen."""
    return everybody(num_active=1, scheme="without_replacement", local_steps=1, num_rounds=1, step_size=1e-3)


def test_the_theorems_own_number_is_wrong_for_one_of_ten_clients(one_of_ten):
    claim = deng_2024(one_of_ten, delta0=1e-5, delta1=0.0, delta2=0.0)
    truth = 0.1 * gaussian_profile(claim.epsilon, one_of_ten.ratios[0])
    assert truth > 10.0 * claim.delta
    assert any("NOT SOUND" in assumption for assumption in claim.assumptions)


@pytest.mark.parametrize("num_rounds", [1, 30])
def test_the_theorem_is_not_contradicted_where_all_clients_take_part(num_rounds):
    run = everybody(step_size=1e-6, num_rounds=num_rounds)
    claim = deng_2024(run, **DELTAS)
    assert not any("NOT SOUND" in assumption for assumption in claim.assumptions)
    assert gaussian_profile(claim.epsilon, math.sqrt(10 * num_rounds) * run.ratios[0]) <= claim.delta


# the bound that holds


@pytest.mark.parametrize("num_steps", [1, 50])
@pytest.mark.parametrize("step_size", [1e-6, 1e-3, 0.1])
def test_without_subsampling_the_bound_is_just_above_the_exact_epsilon(step_size, num_steps):
    pytest.importorskip("dp_accounting")
    run = everybody(local_steps=num_steps, num_rounds=1, step_size=step_size)
    ours, exact = renyi(run, delta=1e-6).epsilon, exact_epsilon(math.sqrt(num_steps) * run.ratios[0], 1e-6)
    assert exact < ours < 1.3 * exact  # the accountant's orders end at 1024, which is felt at the smallest epsilon


def test_each_chain_is_a_run_on_the_same_records():
    one = everybody(step_size=1e-4)
    four, longer = replace(one, num_chains=4), replace(one, num_rounds=400)
    assert renyi(four, delta=1e-6).epsilon == renyi(longer, delta=1e-6).epsilon > renyi(one, delta=1e-6).epsilon
    assert deng_2024(four, **PLAIN).epsilon == deng_2024(longer, **PLAIN).epsilon
    assert mechanism_of(private_fit()).num_chains == 4


def test_a_bound_without_batches_needs_no_package(monkeypatch):
    """The divergence of a Gaussian step has a closed form; dp-accounting gives the same number."""
    accounting = pytest.importorskip("dp_accounting")
    run = everybody(step_size=1e-4)
    event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(1.0 / run.ratios[0]), 1000)
    theirs = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
    expected = theirs.compose(event).get_epsilon(1e-6)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert renyi(run, delta=1e-6).epsilon == pytest.approx(expected, rel=1e-12)


def test_a_sensitivity_wrong_by_two_is_seen():
    pytest.importorskip("dp_accounting")
    run = everybody(local_steps=1, num_rounds=1, step_size=1e-3)
    too_small = renyi(replace(run, sensitivity=0.5), delta=1e-6)
    assert gaussian_profile(too_small.epsilon, run.ratios[0]) > 1e-6


@pytest.mark.parametrize(("step_size", "batch_size"), [(1e-6, 1), (1e-4, 10), (1e-3, 50), (1e-3, 99)])
def test_of_one_subsampled_step_the_bound_is_above_the_exact_epsilon(step_size, batch_size):
    # exact for the worst data set (Balle, Barthe and Gaboardi 2018, theorems 9 and 10)
    pytest.importorskip("dp_accounting")
    run = everybody(local_steps=1, num_rounds=1, step_size=step_size, batch_size=batch_size)
    epsilon, part = renyi(run, delta=1e-6).epsilon, batch_size / 100
    assert part * gaussian_profile(math.log1p(math.expm1(epsilon) / part), run.ratios[0]) <= 1e-6


def test_of_many_subsampled_steps_the_bound_is_above_the_epsilon_of_one_data_set():
    # All gradients are zero, but the record's is zero or one: N(0, 1) against its mixture with N(s / sigma, 1).
    accounting = pytest.importorskip("dp_accounting")
    run = everybody(local_steps=10, num_rounds=20, step_size=1e-4, batch_size=10)
    step = accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        1.0 / run.ratios[0], pessimistic_estimate=False, sampling_prob=0.1
    )
    lower = step.self_compose(200).get_epsilon_for_delta(1e-6)
    assert lower < renyi(run, delta=1e-6).epsilon < 3.0 * lower


@pytest.mark.parametrize("changes", LESS_PRIVATE, ids=lambda changes: next(iter(changes)))
def test_the_bound_is_monotone(changes):
    pytest.importorskip("dp_accounting")
    before, after = (renyi(mechanism(**some), delta=1e-6).epsilon for some in ({}, changes))
    if "num_active" in changes:
        assert after == before
    elif "num_clients" in changes:
        assert after < before  # larger weights, smaller gradients; the theorem counts on others to hide among
    else:
        assert after > before


def test_a_smaller_batch_hides_at_least_as_much_relative_to_its_noise():
    # at fixed s / sigma; at half of the rows and more the formula for batches alone would exceed that without batches
    pytest.importorskip("dp_accounting")
    full = everybody(step_size=1e-3, local_steps=1, num_rounds=1)
    sizes = (10, 50, 90, 100)
    bounds = [renyi(replace(full, batch_size=size, sensitivity=size / 100), delta=1e-6).epsilon for size in sizes]
    assert bounds[0] < 0.5 * bounds[1]
    assert bounds == pytest.approx(sorted(bounds))
    assert bounds[-1] == pytest.approx(renyi(full, delta=1e-6).epsilon)


def test_the_bound_is_that_of_the_worst_client():
    pytest.importorskip("dp_accounting")
    uneven = everybody(num_clients=2, num_active=2, weights=[0.1, 0.9], num_rows=[100, 900])
    alone = everybody(num_clients=10)
    assert renyi(uneven, delta=1e-6).epsilon == pytest.approx(renyi(alone, delta=1e-6).epsilon)


def test_the_bound_claims_no_amplification_by_clients(one_of_ten):
    pytest.importorskip("dp_accounting")
    few, many = renyi(one_of_ten, delta=1e-6), renyi(replace(one_of_ten, num_active=10), delta=1e-6)
    assert few.epsilon == many.epsilon
    assert few.epsilon > math.log1p(0.1 * math.expm1(few.epsilon))  # what the theorem's line would make of it
    assert 0.1 * gaussian_profile(few.epsilon, one_of_ten.ratios[0]) < 1e-6
    claim = deng_2024(one_of_ten, delta0=1e-5, delta1=0.0, delta2=0.0)
    assert few.epsilon > claim.epsilon


def test_noise_beyond_the_accountants_precision_still_gives_a_bound():
    pytest.importorskip("dp_accounting")
    for size in (None, 10):
        guarantee = renyi(everybody(step_size=1e-30, batch_size=size), delta=1e-6)
        assert 0.0 <= guarantee.epsilon < 1e-2


def test_the_bound_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'fedbayes\[privacy\]'"):
        renyi(mechanism(), delta=1e-6)


# the exact profile


def test_the_profile_is_the_largest_gap_over_events():
    for epsilon, ratio in ((0.0, 0.5), (1.0, 1.0), (2.0, 0.7), (-0.3, 1.0)):
        x = np.linspace(-30.0, 30.0, 600_001)
        gap = np.maximum(0.0, norm.pdf(x, ratio) - math.exp(epsilon) * norm.pdf(x))
        assert gaussian_profile(epsilon, ratio) == pytest.approx(gap.sum() * (x[1] - x[0]), rel=1e-6)


def test_the_profile_far_out():
    assert gaussian_profile(1e4, 1.0) == 0.0
    assert min(gaussian_profile(half * 5e-16, 1e-15) for half in range(60)) >= 0.0  # next to no privacy loss: rounding
    assert gaussian_profile(800.0, 60.0) == pytest.approx(1.0)
    assert 0.0 < gaussian_profile(1.0, 0.05) < 1e-80


def test_the_profile_of_no_noise_is_refused():
    with pytest.raises(ValueError, match=r"`ratio` is 0\.0; it is sensitivity over noise"):
        gaussian_profile(1.0, 0.0)


# what is said, and what is refused


def test_a_guarantee_says_whose_it_is_and_what_it_rests_on():
    text = repr(deng_2024(mechanism(scheme="with_replacement"), **DELTAS))
    assert text.startswith("(0.1876, 0.63)-differential privacy by Theorem G.3 of Deng et al. (2024). It rests on:")
    for part in ("NOT SOUND", "0.1040", "`renyi`", "scheme I", "vacuous for more than two", "one record of one client"):
        assert part in text
    assert repr(Guarantee(1.0, 1e-6, "Nobody", ("nothing",))) == (
        "(1, 1e-06)-differential privacy by Nobody. It rests on:\n  - nothing"
    )


def test_a_mechanism_can_be_compared_and_hashed():
    assert mechanism(weights=np.full(10, 0.1), num_rows=np.full(10, 100)) == mechanism()
    assert len({mechanism(), mechanism(), mechanism(num_active=4)}) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"noise_correlation": 1.0}, "`noise_correlation` is 1: all noise is shared and public"),
        ({"noise_correlation": 1.5}, r"`noise_correlation` is 1.5; it lies in \[0, 1\)"),
        ({"noise_correlation": -0.1}, r"`noise_correlation` is -0.1; it lies in \[0, 1\)"),
        ({"noise_correlation": math.nan}, r"`noise_correlation` is nan; it lies in \[0, 1\)"),
        ({"sensitivity": None}, r"`sensitivity` is None, .* clip each record's gradient, `FALD\(clip=...\)`"),
        ({"sensitivity": math.inf}, r"`sensitivity` is inf, .* `FALD\(clip=...\)`, and write twice"),
        ({"sensitivity": 0.0}, "`sensitivity` is 0.0, "),
        ({"sensitivity": math.nan}, "`sensitivity` is nan, "),
        ({"step_size": 0.0}, "`step_size` is 0.0; it is positive and finite"),
        ({"step_size": math.inf}, "`step_size` is inf; it is positive and finite"),
        ({"temperature": 0.0}, "`temperature` is 0.0; it scales the noise, without which nothing is private"),
        ({"local_steps": 0}, "`local_steps` is 0; it is a whole number, at least one"),
        ({"num_rounds": 1.5}, "`num_rounds` is 1.5; it is a whole number"),
        ({"num_clients": 0}, "`num_clients` is 0; it is a whole number"),
        ({"num_active": 0}, "`num_active` is 0; it is a whole number"),
        ({"num_active": 11}, "`num_active` is 11 of 10 clients: write at most 10"),
        ({"scheme": "poisson"}, "`scheme` is 'poisson'; it is one of"),
        ({"scheme": "full"}, "`num_active` is 5, but the scheme 'full' takes all 10 clients: write 10"),
        ({"weights": [0.5, 0.5]}, "`weights` has 2 entries for 10 clients"),
        ({"num_rows": [100] * 9}, "`num_rows` has 9 entries for 10 clients"),
        ({"weights": [0.2] * 10}, "`weights` sum to 2 and go down to 0.2; they are positive and sum to one"),
        ({"weights": [0.0] + [1 / 9] * 9}, "`weights` sum to 1 and go down to 0; "),
        ({"num_rows": [0] + [100] * 9}, r"`num_rows` is \(0, 100, .*; write whole numbers, at least one"),
        ({"batch_size": 101}, "`batch_size` is 101; write a whole number up to 100, the rows of the smallest client"),
        ({"batch_size": 0}, "`batch_size` is 0; write a whole number up to 100"),
    ],
)
def test_what_nothing_can_be_guaranteed_for(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        mechanism(**changes)


@pytest.mark.parametrize(("name", "value"), [("delta0", 0.0), ("delta0", 1.0), ("delta1", -0.1), ("delta2", 1.0)])
def test_deltas_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` is {value}; it lies in"):
        deng_2024(mechanism(), **DELTAS | {name: value})


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_the_bound_needs_a_delta(delta):
    with pytest.raises(ValueError, match=rf"`delta` is {delta}; it lies in \(0, 1\)"):
        renyi(mechanism(), delta=delta)


def coin(y):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=theta), obs=y)


def private_fit(**options):
    clients = {name: {"y": np.arange(n) % 2} for name, n in (("a", 8), ("b", 12))}
    plain = {"init": "zero", "preconditioner": "none", "control_variate": False, "step_size": 1e-4, "num_warmup": 2}
    method = fb.FALD(**(plain | {"local_steps": 5, "noise_correlation": 0.0, "clip": 1.0, "batch_size": 4} | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fb.NotConvergedWarning)  # ten rounds don't mix
        return fb.fit_federated(coin, clients, method=method, key=jax.random.key(0), num_draws=8, progress=False)


def test_a_fit_says_what_it_released():
    found = mechanism_of(private_fit(step_size=lambda k: 1e-4 / (1.0 + k)))
    assert (found.step_size, found.local_steps, found.num_rounds) == (1e-4, 5, 10)
    assert (found.num_rows, found.batch_size, found.sensitivity) == ((8, 12), 4, 2.0)
    np.testing.assert_allclose(found.weights, (0.4, 0.6))
    assert found.scheme == "full"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": None}, "clip"),
        ({"noise_correlation": 1.0}, "shared"),
        ({"init": "mode", "step_size": None}, "without noise"),
        ({"clip": None, "batch_size": None, "control_variate": True, "refresh": 1}, "without noise"),
    ],
)
def test_a_fit_without_privacy_gives_no_number(options, message):
    with pytest.raises(ValueError, match=message):
        mechanism_of(private_fit(**options))


def test_another_method_has_no_noise_to_account_for():
    fit = fb.fit_federated(
        coin, {"a": {"y": np.array([0, 1, 1])}}, method="laplace", key=jax.random.key(0), progress=False
    )
    with pytest.raises(TypeError, match="by Laplace; only FALD's steps have noise"):
        mechanism_of(fit)


def test_private_noise_is_of_two_draws():
    """One draw of 52 bits has few values in its tails, fewer than places to which steps are rounded (Mironov 2012)."""
    key, weight = jax.random.key(2), jnp.asarray(0.25)
    with jax.enable_x64(True):
        found, _ = fald_client._noise(0.0, weight, 3, 0, key, key, fine=True)
        one, two = jax.random.normal(key, (2, 3))
        np.testing.assert_allclose(found, 2.0 * (one + two) / np.sqrt(2.0), rtol=1e-12)
        plain, _ = fald_client._noise(0.0, weight, 3, 0, key, key, fine=False)
        np.testing.assert_array_equal(plain, 2.0 * jax.random.normal(key, (3,)))
