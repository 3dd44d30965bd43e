"""The exact laws and the bounds of federated averaging Langevin dynamics against golden numbers and brute force."""

from decimal import Decimal
from itertools import combinations, pairwise, product, repeat

import numpy as np
import pytest
from scipy.linalg import block_diag, solve_discrete_lyapunov, sqrtm

from fedbayes.inference.fald.participation import covariance_inflation, participation_share
from fedbayes.theory import langevin as theory
from fedbayes.theory.langevin import Moments, QuadraticClients, round_law, w2

SCHEMES = ("with_replacement", "without_replacement")
PAIR = QuadraticClients(np.array([[[1.0]], [[9.0]]]), np.array([[-1.0], [1.0]]), np.array([0.5, 0.5]))
FAR = np.array([5.0])


def random_clients(seed, size=2, num=3, *, balanced=False, noisy=True) -> QuadraticClients:
    rng = np.random.default_rng(seed)
    roots, noise = rng.normal(size=(2, num, size, size))
    weights = np.full(num, 1.0 / num) if balanced else rng.dirichlet(np.full(num, 4.0))
    return QuadraticClients(
        roots @ roots.mT + rng.uniform(0.2, 2.0) * np.eye(size),
        rng.normal(scale=2.0, size=(num, size)),
        weights,
        temperature=rng.uniform(0.3, 2.0),
        gradient_noise=noise @ noise.mT if noisy else None,
    )


def alike(*, balanced: bool, spread=1.0) -> QuadraticClients:
    """Clients with the same Hessian."""
    hessian = np.array([[3.0, 1.0], [1.0, 2.0]])
    minima = spread * np.random.default_rng(5).normal(size=(3, 2))
    return QuadraticClients(
        np.array([hessian] * 3), minima, np.full(3, 1 / 3) if balanced else np.array([0.2, 0.3, 0.5])
    )


def largest_step(clients: QuadraticClients) -> float:
    return clients.constants(clients.target.mean).largest_step


def share(clients: QuadraticClients, scheme: str | None, num_active: int) -> float:
    return 0.0 if scheme is None else participation_share(clients.weights, num_active, scheme)


def pair_weights(weights, scheme, num_active) -> np.ndarray:
    """``E[r_c r_c'] / S^2``, with r_c how often c is drawn, by listing all draws."""
    num = len(weights)
    if scheme is None:
        return np.outer(weights, weights)
    if scheme == "with_replacement":
        draws = [(draw, np.prod(weights[list(draw)])) for draw in product(range(num), repeat=num_active)]
    else:
        subsets = list(combinations(range(num), num_active))
        draws = [(draw, 1.0 / len(subsets)) for draw in subsets]
    counts = [(np.bincount(draw, minlength=num) / num_active, chance) for draw, chance in draws]
    return sum(chance * np.outer(count, count) for count, chance in counts)


def by_brute_force(clients, steps, before, rho=0.0, pairs=None, *, exponent=1.0, server_weights=None) -> Moments:
    """One round on the joint state of all clients; private noise of variance ``1 / p_c^exponent``."""
    num, size = clients.minima.shape
    weights = clients.weights if server_weights is None else server_weights
    hessian, noise = block_diag(*clients.hessians), block_diag(*clients.noise)
    heat = rho**2 * np.ones((num, num)) + (1 - rho**2) * np.diag(clients.weights**-exponent)
    mean, covariance = np.tile(before.mean, num), np.kron(np.ones((num, num)), before.covariance)
    for step in steps:
        move = np.eye(num * size) - step * hessian
        mean = move @ mean + step * hessian @ clients.minima.ravel()
        fresh = 2 * step * clients.temperature * np.kron(heat, np.eye(size)) + step**2 * noise
        covariance = move @ covariance @ move + fresh
    pairs = np.outer(weights, weights) if pairs is None else pairs
    blocks = (covariance + np.outer(mean, mean)).reshape(num, size, num, size)
    average = weights @ mean.reshape(num, size)
    return Moments(average, np.einsum("ab,aibj->ij", pairs, blocks) - np.outer(average, average))


def assert_same(one: Moments, other: Moments, tolerance=1e-12) -> None:
    np.testing.assert_allclose(one.mean, other.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=tolerance, atol=tolerance)


def rounding(text) -> float:
    """Half a unit of the last digit of a printed number."""
    return 0.501 * 10.0 ** Decimal(text).as_tuple().exponent


# the round


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("scheme", [None, *SCHEMES])
def test_a_round_is_what_brute_force_over_all_clients_and_draws_gives(scheme, rho) -> None:
    clients = random_clients(1, num=4, balanced=scheme == "without_replacement")
    for num_active, num_steps in [(1, 1), (2, 3), (3, 7), (4, 5)]:
        pairs = pair_weights(clients.weights, scheme, num_active)
        steps = np.random.default_rng(num_steps).uniform(0.1, 1.0, num_steps) * largest_step(clients)
        law = round_law(clients, steps, rho=rho, share=share(clients, scheme, num_active))
        before = Moments(np.array([3.0, -1.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))
        assert_same(law.after(before), by_brute_force(clients, steps, before, rho, pairs))
        assert_same(law.after(law.stationary()), law.stationary())


BUGS = {
    "noise not divided by p": {"exponent": 0.0},
    "noise divided by p twice": {"exponent": 2.0},
    "average not weighted": {"server_weights": np.full(3, 1 / 3)},
}


@pytest.mark.parametrize("bug", BUGS)
def test_brute_force_with_a_planted_bug_differs(bug) -> None:
    clients = random_clients(2)
    steps = np.full(5, 0.5 * largest_step(clients))
    before = clients.target
    wrong = by_brute_force(clients, steps, before, **BUGS[bug])
    assert w2(wrong, round_law(clients, steps).after(before)) > 1e-2 * np.sqrt(np.trace(before.covariance))


def test_the_stationary_covariance_solves_the_lyapunov_equation() -> None:
    law = round_law(random_clients(3, size=4), np.full(6, 0.02), rho=0.3)
    expected = solve_discrete_lyapunov(law.maps[0], law.noises[0])
    np.testing.assert_allclose(law.stationary().covariance, expected, rtol=1e-11)


def test_one_local_step_is_the_unadjusted_langevin_algorithm() -> None:
    clients = random_clients(4, noisy=False)
    step = largest_step(clients)
    mean, covariance = clients.target
    ula = covariance @ np.linalg.inv(np.eye(2) - step / 2 * clients.temperature * np.linalg.inv(covariance))
    for rho in (0.0, 0.5, 1.0):
        assert_same(round_law(clients, np.array([step]), rho=rho).stationary(), Moments(mean, ula))


def test_gradient_noise_widens_a_scalar_chain_as_the_formula_says() -> None:
    clients = random_clients(6, size=1)
    step, tau = largest_step(clients), clients.temperature
    hessian, noise = tau / clients.target.covariance[0, 0], clients.weights**2 @ clients.gradient_noise[:, 0, 0]
    expected = (2 * tau + step * noise) / (hessian * (2 - step * hessian))
    law = round_law(clients, np.array([step]), rho=0.4)
    np.testing.assert_allclose(law.stationary().covariance, [[expected]], rtol=1e-12)


# golden numbers of two scalar clients (method notes, 3.B): eta, K, mean, variance at rho 0, .5, 1, W2 at rho 0, 1

GOLDEN = [
    (0.01, 1, 0.800000, 0.205128, 0.205128, 0.205128, 0.005697, 0.005697),
    (0.01, 2, 0.792492, 0.208551, 0.208507, 0.208375, 0.012077, 0.011927),
    (0.01, 5, 0.769353, 0.220019, 0.219519, 0.218018, 0.037637, 0.036438),
    (0.01, 10, 0.729205, 0.242219, 0.240045, 0.233522, 0.083856, 0.079435),
    (0.01, 50, 0.430039, 0.415943, 0.391651, 0.318775, 0.419482, 0.388138),
    (0.01, 100, 0.223976, 0.510465, 0.472758, 0.359636, 0.635003, 0.595864),
    (0.01, 1000, 0.000022, 0.560686, 0.515827, 0.381251, 0.854935, 0.817892),
    (0.001, 10, 0.793454, 0.203475, 0.203452, 0.203384, 0.007603, 0.007552),
    (0.001, 100, 0.724152, 0.240522, 0.238216, 0.231298, 0.087296, 0.083006),
]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row[0]}-{row[1]}")
def test_golden_stationary_laws(row) -> None:
    step, num = row[:2]
    laws = [round_law(PAIR, np.full(num, step), rho=rho).stationary() for rho in (0.0, 0.5, 1.0)]
    distances = [w2(laws[0], PAIR.target), w2(laws[2], PAIR.target)]
    found = [laws[0].mean[0], *(law.covariance[0, 0] for law in laws), *distances]
    np.testing.assert_allclose(found, row[2:], rtol=0, atol=5.01e-7)
    assert all(law.mean[0] == laws[0].mean[0] for law in laws)


@pytest.mark.parametrize("exponent", [0.0, 2.0])
def test_wrong_private_noise_misses_the_golden_variance(exponent) -> None:
    law = PAIR.target
    for _ in range(60):
        law = by_brute_force(PAIR, np.full(10, 0.01), law, exponent=exponent)
    assert abs(law.covariance[0, 0] - 0.242219) > 0.05


def test_golden_constants() -> None:
    np.testing.assert_allclose(PAIR.target.mean, [0.8], rtol=1e-15)
    np.testing.assert_allclose(PAIR.target.covariance, [[0.2]], rtol=1e-15)
    constants = PAIR.constants(np.zeros(1))
    assert constants.kappa == 9.0
    assert constants.largest_step == 1 / 18
    found = [constants.heterogeneity, constants.h(0.0), constants.h(1.0)]
    np.testing.assert_allclose(found, [1.8, 5.88, 4.88], rtol=1e-14)
    noisy = QuadraticClients(PAIR.hessians, PAIR.minima, PAIR.weights, gradient_noise=np.array([[[1.0]], [[4.0]]]))
    assert noisy.constants(FAR).gradient_sd == 2.0
    floors = [theory.w2_bound(constants, 0.01, num, 10**9) for num in (1, 10)]
    np.testing.assert_allclose(floors, [196.41, 621.12], atol=5e-3)


def first_round_within(accuracy, step, num) -> int | None:
    """Rounds from 5 until W2 is at most ``accuracy``; none in six times the time in which the slower client forgets."""
    rounds = repeat(round_law(PAIR, np.full(num, step)), 10 + int(6 / (step * num)))
    reached = (t for t, law in enumerate(theory.trajectory(rounds, FAR)) if w2(law, PAIR.target) <= accuracy)
    return next(reached, None)


@pytest.mark.parametrize(
    ("step", "golden"),
    [
        (1e-2, [87, 43, 17, 9, None, None, None, None, None, None]),
        (1e-3, [884, 442, 176, 88, 44, 18, 9, None, None, None]),
        (1e-4, [8860, 4429, 1771, 885, 442, 176, 88, 44, 18, 9]),
    ],
)
def test_rounds_fall_with_local_steps_until_the_bias_is_too_large(step, golden) -> None:
    assert [first_round_within(0.05, step, num) for num in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)] == golden


@pytest.mark.parametrize(
    ("num", "golden"),
    [
        (10, {100: "0.350743", 1000: "0.0842240", 10_000: "0.00908797", 100_000: "0.000913046"}),
        (1, {100: "0.0230994", 1000: "0.00567018", 10_000: "6.636e-4"}),  # 6.75e-5 at 100,000 takes seconds
    ],
)
def test_golden_distances_with_varying_steps(num, golden) -> None:
    constants = PAIR.constants(FAR)
    rounds = (round_law(PAIR, theory.varying_steps(constants, k, num)) for k in range(0, max(golden), num))
    for t, law in enumerate(theory.trajectory(rounds, FAR)):
        if t * num in golden:
            text = golden[t * num]
            np.testing.assert_allclose(w2(law, PAIR.target), float(text), rtol=0, atol=rounding(text))


def test_the_fixed_step_that_varying_steps_start_from_stays_far_away() -> None:
    law = round_law(PAIR, np.full(10, PAIR.constants(FAR).largest_step)).stationary()
    np.testing.assert_allclose(w2(law, PAIR.target), 0.468504, atol=5e-7)


# what depends on K and rho, and what doesn't


def after_fifty_steps(clients, num, rho) -> Moments:
    *_, law = theory.trajectory(
        repeat(round_law(clients, np.full(num, 0.05), rho=rho), 50 // num), np.array([4.0, -3.0])
    )
    return law


def test_with_equal_hessians_neither_local_steps_nor_rho_nor_heterogeneity_matter() -> None:
    for spread in (1.0, 5.0):
        clients = alike(balanced=False, spread=spread)
        reference = after_fifty_steps(clients, 1, 0.0)
        stationary = round_law(clients, np.array([0.05])).stationary()
        for num, rho in product((1, 10, 50), (0.0, 0.7, 1.0)):
            assert_same(after_fifty_steps(clients, num, rho), reference, 4e-15)
            assert_same(round_law(clients, np.full(num, 0.05), rho=rho).stationary(), stationary, 1e-13)


def test_with_equal_hessians_wrong_private_noise_would_matter() -> None:
    clients = alike(balanced=False)
    laws = [by_brute_force(clients, np.full(10, 0.05), clients.target, rho, exponent=2.0) for rho in (0.0, 1.0)]
    assert w2(*laws) > 0.1


def test_variance_is_linear_in_squared_rho_and_least_at_one() -> None:
    variance = [round_law(PAIR, np.full(20, 0.02), rho=rho).stationary().covariance[0, 0] for rho in (0.0, 0.6, 1.0)]
    assert variance[0] > variance[1] > variance[2] > PAIR.target.covariance[0, 0]
    np.testing.assert_allclose(variance[1], 0.64 * variance[0] + 0.36 * variance[2], rtol=1e-13)


def test_many_local_steps_average_the_clients_own_posteriors() -> None:
    hessians = PAIR.hessians.ravel()
    own, both = np.mean(1 / hessians), np.mean(2 / np.add.outer(hessians, hessians))
    for rho in (0.0, 0.5, 1.0):
        gaps = []
        for step in (2e-3, 1e-3):
            law = round_law(PAIR, np.full(int(40 / step), step), rho=rho).stationary()
            gaps.append(law.covariance[0, 0] - (1 - rho**2) * own - rho**2 * both)
            assert abs(law.mean[0]) < 1e-12
        np.testing.assert_allclose(gaps[1], gaps[0] / 2, rtol=1e-2)  # what is left is of the order of the step


def test_distances_scale_with_the_unit() -> None:
    clients, unit, steps = random_clients(7, noisy=False), 3.0, np.full(4, 0.02)
    scaled = QuadraticClients(clients.hessians / unit**2, unit * clients.minima, clients.weights, clients.temperature)
    one, other = round_law(clients, steps).stationary(), round_law(scaled, unit**2 * steps).stationary()
    np.testing.assert_allclose(w2(other, scaled.target), unit * w2(one, clients.target), rtol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_first_order_moments_leave_an_error_of_second_order(rho) -> None:
    clients = random_clients(8, size=3)

    def error(step) -> np.ndarray:
        exact, near = round_law(clients, np.full(6, step), rho=rho).stationary(), theory.first_order(clients, step, 6)
        return np.concatenate([exact.mean - near.mean, (exact.covariance - near.covariance).ravel()])

    steps = largest_step(clients) * 0.5 ** np.arange(8, 11)
    for one, half in pairwise(map(error, steps)):
        np.testing.assert_allclose(half, one / 4, rtol=0.1, atol=0.02 * np.max(np.abs(half)))


def test_first_order_covariance_where_the_mean_hessian_is_the_identity() -> None:
    clients = random_clients(9, noisy=False)
    mean = np.tensordot(clients.weights, clients.hessians, 1)
    root = np.linalg.inv(np.real(sqrtm(mean)))
    white = QuadraticClients(root @ clients.hessians @ root, clients.minima, clients.weights)
    squares = np.tensordot(clients.weights, white.hessians @ white.hessians, 1)
    expected = np.eye(2) + 0.01 / 2 * (np.eye(2) + 4 * (squares - np.eye(2)))
    np.testing.assert_allclose(theory.first_order(white, 0.01, 5).covariance, expected, rtol=1e-12, atol=1e-15)


# the prior, once


def conjugate_clients(share_of_prior) -> tuple[QuadraticClients, Moments]:
    """Clients of unequal size with Gaussian factors and a strong prior; the exact posterior."""
    rng = np.random.default_rng(11)
    counts, prior = np.array([2.0, 5.0, 13.0]), np.array([[6.0, 1.0], [1.0, 4.0]])
    roots, means, weights = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2)), counts / 20
    factors = counts[:, None, None] * (roots @ roots.mT + np.eye(2))
    hessians = factors / weights[:, None, None] + share_of_prior(weights)[:, None, None] * prior
    pulls = np.einsum("cij,cj->ci", factors, means)
    minima = np.linalg.solve(hessians, pulls[:, :, None] / weights[:, None, None])[:, :, 0]
    covariance = np.linalg.inv(prior + np.sum(factors, axis=0))
    return QuadraticClients(hessians, minima, weights), Moments(covariance @ np.sum(pulls, axis=0), covariance)


def distance_in_sds(share_of_prior) -> float:
    clients, posterior = conjugate_clients(share_of_prior)
    law = round_law(clients, np.full(3, 1e-4 * largest_step(clients))).stationary()
    return w2(law, posterior) / np.sqrt(np.trace(posterior.covariance))


def test_the_prior_counted_once_gives_the_posterior() -> None:
    assert distance_in_sds(np.ones_like) < 2e-3
    assert distance_in_sds(lambda weights: 1 / (3 * weights)) < 2e-3  # the same sum, split evenly


@pytest.mark.parametrize(
    "bug", [lambda weights: 1 / weights, lambda weights: np.full(3, 1 / 3)], ids=["N times", "1/N"]
)
def test_the_prior_counted_wrongly_does_not(bug) -> None:
    assert distance_in_sds(bug) > 0.05


# partial participation


def test_golden_inflation() -> None:
    golden = {
        "with_replacement": [[10, 7.75, 1], [2.8, 2.35, 1], [1.9, 1.675, 1]],
        "without_replacement": [[10, 7.75, 1], [2.0, 1.75, 1], [1, 1, 1]],
    }
    for scheme, table in golden.items():
        shares = [participation_share(np.full(10, 0.1), num, scheme) for num in (1, 5, 10)]
        found = [[covariance_inflation(10, share, rho) for rho in (0.0, 0.5, 1.0)] for share in shares]
        np.testing.assert_allclose(found, table, rtol=1e-14)
    assert participation_share(np.ones(1), 1, "without_replacement") == 0.0


def test_subsets_need_equal_weights() -> None:
    with pytest.raises(ValueError, match=r"needs equal weights, not \[0.2 0.8\]: write 'with_replacement'"):
        participation_share(np.array([0.2, 0.8]), 1, "without_replacement")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_with_equal_hessians_partial_participation_inflates_and_adds_the_spread_of_the_minima(scheme, rho) -> None:
    clients, step, num, eye = alike(balanced=True), 0.05, 4, np.eye(2)
    portion, hessian = participation_share(clients.weights, 2, scheme), clients.hessians[0]
    law = round_law(clients, np.full(num, step), rho=rho, share=portion).stationary()
    ula = np.linalg.inv(hessian @ (eye - step / 2 * hessian))
    kept = np.linalg.matrix_power(eye - step * hessian, num)
    scatter = np.cov(clients.minima.T, bias=True)
    spread = solve_discrete_lyapunov(kept, portion * (eye - kept) @ scatter @ (eye - kept))
    expected = covariance_inflation(3, portion, rho) * ula + spread
    assert_same(law, Moments(clients.target.mean, expected))


def test_the_inflation_outlives_the_step_and_the_spread_does_not() -> None:
    clients = alike(balanced=True)
    portion = participation_share(clients.weights, 2, "without_replacement")
    sd = np.sqrt(np.trace(clients.target.covariance))
    for rho, factor in ((0.0, covariance_inflation(3, portion)), (1.0, 1.0)):
        law = round_law(clients, np.full(2, 1e-7), rho=rho, share=portion).stationary()
        np.testing.assert_allclose(w2(law, clients.target), (np.sqrt(factor) - 1) * sd, atol=1e-6)


def test_the_inflation_is_the_same_for_unequal_hessians_and_weights() -> None:
    clients = random_clients(14)
    portion = participation_share(clients.weights, 2, "with_replacement")
    covariance = round_law(clients, np.full(3, 1e-7), rho=0.4, share=portion).stationary().covariance
    expected = covariance_inflation(3, portion, 0.4) * clients.target.covariance
    np.testing.assert_allclose(covariance, expected, atol=1e-4 * np.max(expected))


def gaussian_bed(seed) -> QuadraticClients:
    """The paper's simulation: 50 clients of 1,000 points each from one Gaussian."""
    covariance = np.array([[5.0, -2.0], [-2.0, 1.0]])
    minima = np.random.default_rng(seed).multivariate_normal(np.zeros(2), covariance / 1000, size=50)
    return QuadraticClients(np.array([50_000 * np.linalg.inv(covariance)] * 50), minima, np.full(50, 0.02))


# stationary W2 at eta 1e-7, 1e-8, 1e-9 with 100 local steps (method notes, 4.1)
BED = {
    (None, 50, 0.0): ("1.38e-5", "1.37e-6", "1.4e-7"),
    ("with_replacement", 40, 0.0): ("5.68e-3", "5.42e-3", "5.39e-3"),
    ("without_replacement", 40, 0.0): ("1.38e-3", "1.30e-3", "1.29e-3"),
    ("with_replacement", 30, 0.0): ("7.18e-3", "6.86e-3", "6.83e-3"),
    ("without_replacement", 30, 0.0): ("3.38e-3", "3.21e-3", "3.19e-3"),
    ("with_replacement", 40, 1.0): ("8.4e-4", "1.5e-4", "1.6e-5"),
    ("without_replacement", 40, 1.0): ("2.1e-4", "3.3e-5", "3.3e-6"),
}


@pytest.fixture(scope="module")
def beds() -> list[QuadraticClients]:
    return [gaussian_bed(seed) for seed in range(12)]


@pytest.mark.parametrize("case", BED, ids=str)
def test_golden_distances_in_the_paper_simulation(case, beds) -> None:
    scheme, num_active, rho = case

    def distance(clients, step) -> float:
        portion = share(clients, scheme, num_active)
        return w2(round_law(clients, np.full(100, step), rho=rho, share=portion).stationary(), clients.target)

    for step, text in zip((1e-7, 1e-8, 1e-9), BED[case], strict=True):
        found = [distance(clients, step) for clients in beds]
        # golden is one simulation; the seed moves only the spread of the minima, and so nothing if everybody takes part
        sds = 0.0 if scheme is None else 4 * np.std(found, ddof=1)
        np.testing.assert_allclose(np.mean(found), float(text), rtol=0, atol=sds + rounding(text))
        np.testing.assert_allclose(found, np.mean(found), rtol=1e-6 if scheme is None else 0.5)


def test_golden_constants_of_the_paper_simulation(beds) -> None:
    constants = beds[0].constants(np.zeros(2))
    np.testing.assert_allclose(constants.smoothness, 2.914e5, rtol=1e-3)
    np.testing.assert_allclose(constants.convexity, 8.579e3, rtol=1e-4)
    np.testing.assert_allclose(constants.kappa, 33.97, rtol=1e-4)
    for rho, golden in ((0.0, (0.0483, 0.0558, 0.0218, 0.0356)), (1.0, (0.0068, 0.0079, 0.0031, 0.0050))):
        shares = [participation_share(beds[0].weights, num, scheme) for scheme in SCHEMES for num in (40, 30)]
        ends = [theory.w2_bound(constants, 1e-24, 100, 10**30, rho=rho, share=share) for share in shares]
        np.testing.assert_allclose(ends, golden, rtol=0, atol=6.5e-5)  # rounding, and 1e-5 of the other term


# bounds


def never_exceeded(exact, bound) -> None:
    """The exact distance is below the bound, and positive, so that something is compared."""
    assert 0.0 < exact <= bound


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@pytest.mark.parametrize("seed", range(20))
def test_distances_stay_below_the_bounds_at_a_fixed_step(seed, scheme) -> None:
    rng = np.random.default_rng(seed)
    num, size, local = rng.integers(2, 6), rng.integers(1, 4), rng.integers(1, 21)
    clients = random_clients(seed, size, num, balanced=scheme == "without_replacement", noisy=bool(seed % 2))
    start, rho = clients.target.mean + rng.normal(scale=3.0, size=size), rng.choice([0.0, rng.uniform(), 1.0])
    constants, portion = clients.constants(start), share(clients, scheme, rng.integers(1, num + 1))
    step = constants.largest_step * 10 ** rng.uniform(-2, 0)
    law = round_law(clients, np.full(local, step), rho=rho, share=portion)
    for t, moments in enumerate(theory.trajectory(repeat(law, 39), start)):
        bound = theory.w2_bound(constants, step, local, t * local, rho=rho, share=portion)
        never_exceeded(w2(moments, clients.target), bound)


@pytest.mark.parametrize("seed", range(10))
def test_drift_and_distance_within_a_round_stay_below_the_bounds(seed) -> None:
    clients, rng = random_clients(seed, noisy=False), np.random.default_rng(seed)
    start, rho, local = clients.target.mean + rng.normal(size=2), rng.uniform(), 12
    constants = clients.constants(start)
    step = constants.largest_step * rng.uniform()
    for t, before in enumerate(theory.trajectory(repeat(round_law(clients, np.full(local, step), rho=rho), 4), start)):
        for k in range(1, local):
            steps = np.full(k, step)
            drift = theory.drift(clients, steps, before, rho=rho)
            never_exceeded(drift, theory.drift_bound(constants, step, local, rho=rho))
            distance = w2(round_law(clients, steps, rho=rho).after(before), clients.target)
            never_exceeded(distance, theory.w2_bound(constants, step, local, t * local + k, rho=rho))


def test_drift_of_one_local_step() -> None:
    clients, start, step, rho = random_clients(12, noisy=False), np.array([2.0, -1.0]), 0.03, 0.6
    pulls = np.einsum("cij,cj->ci", clients.hessians, start - clients.minima)
    spread = clients.weights @ np.sum((pulls - clients.weights @ pulls) ** 2, axis=1)
    expected = step**2 * spread + 2 * step * clients.temperature * 2 * (1 - rho**2) * (3 - 1)
    found = theory.drift(clients, np.array([step]), Moments(start, np.zeros((2, 2))), rho=rho)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_distances_stay_below_the_bound_with_varying_steps(seed) -> None:
    rng = np.random.default_rng(seed)
    local, size = rng.integers(1, 21), rng.integers(1, 4)
    clients = random_clients(seed, size, noisy=bool(seed % 2))
    start = clients.target.mean + rng.normal(scale=3.0, size=size)
    constants = clients.constants(start)
    rounds = (round_law(clients, theory.varying_steps(constants, k, local)) for k in range(0, 400, local))
    for t, moments in enumerate(theory.trajectory(rounds, start)):
        never_exceeded(w2(moments, clients.target), theory.varying_w2_bound(constants, local, t * local))


def test_bounds_are_the_formulas_of_the_paper() -> None:
    big, small, size, tau, gamma, distance, sigma = 8.0, 2.0, 3, 1.5, 2.0, 0.5, 0.7
    constants = theory.Constants(
        smoothness=big,
        convexity=small,
        size=size,
        weights=np.array([0.25, 0.75]),
        temperature=tau,
        heterogeneity=gamma,
        distance=distance,
        gradient_sd=sigma,
    )
    eta, num, k, rho, kappa, num_clients = 0.01, 4, 20, 0.6, 4.0, 2
    h = distance**2 + tau * (0.36 + 0.64 / 0.25) / small + gamma**2 / (small**2 * size) + sigma**2 / small**2
    h_zero = distance**2 + tau * 4 / small + gamma**2 / (small**2 * size) + sigma**2 / small**2
    heat = rho**2 + num_clients * (1 - rho**2)
    head = (1 - eta * small / 4) ** k * np.sqrt(2 * size) * (distance + np.sqrt(tau / small))
    full = head + 30 * kappa * np.sqrt(eta * small * size) * np.sqrt(((num - 1) ** 2 + kappa) * h)
    per_round = eta * small * num / (1 - np.exp(-eta * small * num / 2))
    absence = 2 * np.sqrt(per_round * size * tau / (1 * small) * heat)
    partial = head + 30 * kappa * np.sqrt(eta * small * size * h * (num**2 + kappa)) + absence
    step = 1 / (2 * big + small * k / 12)
    varying = 45 * kappa * np.sqrt(((num - 1) ** 2 + kappa) * h_zero) * np.sqrt(step * small * size)
    drift = 112 * (num - 1) ** 2 * eta**2 * size * big**2 * h + 8 * (num - 1) * eta * size * tau * heat
    found = [
        theory.w2_bound(constants, eta, num, k, rho=rho),
        theory.w2_bound(constants, eta, num, k, rho=rho, share=1.0),
        theory.varying_w2_bound(constants, num, k),
        theory.drift_bound(constants, eta, num, rho=rho),
    ]
    np.testing.assert_allclose(found, [full, partial, varying, drift], rtol=1e-12)


def test_steps_above_the_limit_have_no_bound() -> None:
    constants = PAIR.constants(FAR)
    assert theory.w2_bound(constants, 1.01 * constants.largest_step, 1, 10**6) == np.inf


@pytest.mark.parametrize(("accuracy", "local", "rho"), [(0.1, 1, 0.0), (0.1, 10, 0.0), (0.5, 3, 1.0), (1e4, 2, 0.5)])
def test_a_plan_just_reaches_its_accuracy(accuracy, local, rho) -> None:
    constants = PAIR.constants(FAR)
    step, iterations = theory.plan(constants, accuracy, local, rho=rho)
    assert theory.w2_bound(constants, step, local, iterations, rho=rho) <= accuracy * (1 + 1e-12)
    if step < constants.largest_step:
        assert theory.w2_bound(constants, step, local, iterations - 2, rho=rho) > accuracy * (1 - 1e-6)
        assert theory.w2_bound(constants, 4.01 * step, local, 10**15, rho=rho) > accuracy


def test_a_plan_for_an_easy_accuracy_takes_the_largest_step() -> None:
    constants = PAIR.constants(FAR)
    assert theory.plan(constants, 1e5, 1) == (constants.largest_step, 0)


@pytest.mark.parametrize(("kappa", "golden", "integer"), [(9.0, 3.16, 3), (33.97, 5.91, 6)])
def test_golden_local_steps(kappa, golden, integer) -> None:
    num = np.arange(1, 100)
    assert num[np.argmin(((num - 1) ** 2 + kappa) / num)] == integer
    assert round(theory.optimal_local_steps(kappa)) == integer
    np.testing.assert_allclose(theory.optimal_local_steps(kappa), golden, atol=5e-3)


# noise, and the distance itself


@pytest.mark.parametrize(("num", "golden"), [(10, ("0.032", "0.299", "0.831")), (50, ("0.0066", "0.079", "0.496"))])
def test_golden_noise_correlations(num, golden) -> None:
    for rho, text in zip((0.5, 0.9, 0.99), golden, strict=True):
        correlation = theory.noise_correlation(np.full(num, 1 / num), rho)
        np.testing.assert_allclose(correlation[0, 1], float(text), rtol=0, atol=rounding(text))
        np.testing.assert_allclose(np.diagonal(correlation), 1.0, rtol=1e-14)


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_noise_averages_to_the_temperature_and_correlates_as_stated(rho) -> None:
    weights = np.array([0.1, 0.3, 0.6])
    covariance = rho**2 * np.ones((3, 3)) + (1 - rho**2) * np.diag(1 / weights)
    np.testing.assert_allclose(weights @ covariance @ weights, 1.0, rtol=1e-14)
    sd = np.sqrt(theory.local_temperature(weights, rho))
    np.testing.assert_allclose(theory.noise_correlation(weights, rho) * np.outer(sd, sd), covariance, rtol=1e-13)


def test_w2_is_the_distance_of_gaussians() -> None:
    rng = np.random.default_rng(13)
    (mean, other_mean), roots = rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 3))
    covariance, other = roots @ roots.mT
    root = np.real(sqrtm(other))
    cross = np.trace(np.real(sqrtm(root @ covariance @ root)))
    expected = np.sqrt(np.sum((mean - other_mean) ** 2) + np.trace(covariance + other) - 2 * cross)
    one, two = Moments(mean, covariance), Moments(other_mean, other)
    np.testing.assert_allclose([w2(one, two), w2(two, one)], expected, rtol=1e-7)
    point = Moments(mean, np.zeros((3, 3)))
    np.testing.assert_allclose(w2(point, one), np.sqrt(np.trace(covariance)), rtol=1e-12)
    flat = Moments(mean, np.outer(mean, mean))
    np.testing.assert_allclose(w2(point, flat), np.linalg.norm(mean), rtol=1e-12)
    assert w2(one, one) < 1e-14
    near = Moments(mean, covariance * (1 + 1e-12))
    np.testing.assert_allclose(w2(one, near), 0.5e-12 * np.sqrt(np.trace(covariance)), rtol=0.01)
