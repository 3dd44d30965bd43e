"""Rows that a dishonest server reads off where a site answers anywhere, and not where it answers by default."""

from functools import cache

import numpy as np
import pytest
from row_attacks import (
    ANYWHERE,
    NEAR_THE_PRIOR,
    PLAUSIBLE,
    SINGLE,
    Attacked,
    bends,
    kernels,
    num_found,
    rows_of,
    undecided,
)

import fedbayes as fb

SIZE = 3  # globals
EXACT = 1e-3  # error of a row that counts: of some thousand pairs of a candidate and a row none is so near by chance
METHODS = {"Laplace": fb.Laplace(), "EP": fb.EP(solver="laplace", num_replicates=1)}
# at wide points: bends of the log-likelihood, and places at which one row alone is undecided
ATTACKS = {
    "bends": ("Laplace", lambda sites, rng: bends(sites.log_likelihood, SIZE, 1e6, rng)),
    "Newton rounds": ("Laplace", lambda sites, rng: undecided(sites.newton, SIZE, 1e3, 30, rng)),
    "narrow cavities": ("EP", lambda sites, rng: undecided(sites.narrow, SIZE, 1e3, 30, rng)),
}
# within the prior's limit, along the intercept
LINES = {
    "Newton rounds": ("Laplace", lambda sites, rng: kernels(sites.newton, SIZE, 50.0, 81, rng, width=2.5)),
    "narrow cavities": ("EP", lambda sites, rng: kernels(sites.narrow, SIZE, 50.0, 81, rng, width=2.5)),
}
FIFTY = "[points]\nimplausible_answers = 50\n"


@cache
def data():
    """Three sites of 15 rows, which pass the disclosure rules."""
    rng, clients = np.random.default_rng(3), {}
    for name in ("ada", "bo", "cy"):
        x = rng.normal(size=(15, SIZE - 1))
        clients[name] = {"x": x, "y": (rng.random(15) < 0.5).astype(np.int32)}
    return clients


@pytest.fixture(scope="module")
def attacked():
    """The sites of a method that answer by no limit of theirs; one fit for all attacks."""
    return cache(lambda method: Attacked(PLAUSIBLE, data(), METHODS[method], single=False))


def found(sites, attack, policy, *, single):
    """How many rows an attack finds, of the first site or of all, which go on answering where a fit asks."""
    method, search = attack
    sites.allow((SINGLE if single else "") + policy)
    sites.single = single
    rows = rows_of({"ada": data()["ada"]} if single else data())
    known = num_found(search(sites, np.random.default_rng(1)), rows, EXACT)
    expansion = sites.newton if method == "Laplace" else sites.narrow
    assert all(np.all(np.isfinite(each)) for each in expansion(np.zeros(SIZE)))
    return known


def found_by_default(attack, policy=PLAUSIBLE, *, single):
    """The same of sites whose accounts are empty."""
    return found(Attacked(PLAUSIBLE, data(), METHODS[attack[0]], single=False), attack, policy, single=single)


@pytest.mark.parametrize("single", [False, True], ids=["sums", "single messages"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_far_away_a_server_finds_rows_and_by_default_none(attacked, attack, single):
    assert found(attacked(ATTACKS[attack][0]), ATTACKS[attack], ANYWHERE, single=single) > 0
    assert found_by_default(ATTACKS[attack], single=single) == 0


@pytest.mark.parametrize("attack", LINES)
def test_where_most_rows_are_decided_a_server_finds_the_others(attacked, attack):
    """The prior's limit does not keep them, and that of a site's own rows does."""
    assert found(attacked(LINES[attack][0]), LINES[attack], NEAR_THE_PRIOR, single=False) > 2
    assert found_by_default(LINES[attack], single=False) == 0


def test_fifty_answers_at_implausible_values_give_some_rows_of_small_sites_away():
    """Which is why there are none by default."""
    assert found_by_default(LINES["Newton rounds"], FIFTY, single=False) > 0
