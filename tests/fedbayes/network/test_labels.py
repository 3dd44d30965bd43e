"""Tables of labels: their sum tells all labels and how many sites have each, and nothing else is taken for it."""

from functools import reduce

import numpy as np
import pytest

from fedbayes.network.agreeing.labels import labels_in, table_of
from fedbayes.network.fixed_point import fits, plus, to_integers, to_numbers

WORDS = [
    "",
    "f",
    "m",
    "I",
    "II",
    "III",
    "3",
    "3.5",
    "True",
    "a/b",
    "Zürich",
    "女",
    "πr²",
    "é",
    "e\u0301",
    "\0",
    "x" * 60,
]


def sites_of(rng, number, sites, alphabet="abcdefghij"):
    """Random labels, and which of them each site has."""
    words = {"".join(rng.choice(list(alphabet), rng.integers(1, 12))) for _ in range(number)}
    return [[word for word in sorted(words) if rng.random() < 0.6] for _ in range(sites)]


def summed(sites, salt="sex 1"):
    return sum(table_of(labels, salt) for labels in sites)


def counted(sites):
    every = [label for labels in sites for label in labels]
    return {label: every.count(label) for label in every}


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_tells_all_labels_and_how_many_sites_have_each(seed):
    sites = sites_of(np.random.default_rng(seed), 2 * seed, 7)
    found = labels_in(summed(sites), "sex 1", len(sites))
    found = labels_in(summed(sites, "sex 2"), "sex 2", len(sites)) if found is None else found
    assert found == counted(sites)


def test_labels_of_all_scripts_and_up_to_the_longest():
    sites = [WORDS, WORDS[::2], WORDS[::3]]
    assert labels_in(summed(sites), "sex 1", len(sites)) == counted(sites)


def test_a_site_that_has_a_label_in_many_rows_tells_it_once():
    np.testing.assert_array_equal(table_of(["f", "m", "f"], "s"), table_of(["m", "f"], "s"))


def test_no_labels_are_an_empty_table():
    assert not table_of([], "s").any()
    assert labels_in(table_of([], "s"), "s", 1) == {}


def test_forty_labels_fail_once_in_hundreds_of_salts():
    """Where two labels share all three cells, which another salt tells apart."""
    labels = [f"ward {number}" for number in range(40)]
    failed = sum(labels_in(table_of(labels, f"ward {salt}"), f"ward {salt}", 1) is None for salt in range(300))
    assert failed <= 6  # 0.9 are expected


def test_labels_that_share_all_cells_are_not_told_apart():
    salt, seen, pair = "s", {}, None
    for number in range(3000):
        cells = np.flatnonzero(table_of([str(number)], salt)[..., 0]).tobytes()
        pair = pair or ((seen[cells], str(number)) if cells in seen else None)
        seen[cells] = str(number)
    assert labels_in(table_of(pair, salt), salt, 1) is None
    assert labels_in(table_of(pair, "another"), "another", 1) == dict.fromkeys(pair, 1)


def test_more_sites_than_there_are_have_no_label():
    """Planted: what a server makes up may say of any number of them."""
    made_up = 4.0 * table_of(["f"], "s")
    assert labels_in(made_up, "s", 4) == {"f": 4}
    assert labels_in(made_up, "s", 3) is None


def test_far_too_many_labels_are_none():
    assert labels_in(table_of(map(str, range(500)), "s"), "s", 1) is None


def test_a_word_of_another_salt_is_none():
    assert labels_in(summed([["f", "m"]] * 3, "age 1"), "sex 1", 3) is None


CORRUPTED = {
    "a count": lambda table: table[..., 0],
    "a letter": lambda table: table[..., 1],
    "a digest": lambda table: table[..., -1],
}


@pytest.mark.parametrize("change", [1.0, -1.0, 0.5, np.nan, np.inf, 2.0**24, 1e300])
@pytest.mark.parametrize("case", CORRUPTED)
def test_a_planted_change_is_noticed(case, change):
    table = summed([["f", "m"], ["f"], ["f", "d"]])
    place = np.argwhere(table[..., 0])[0]
    CORRUPTED[case](table)[tuple(place)] += change
    assert labels_in(table, "sex 1", 3) is None


def test_a_label_in_too_few_cells_is_noticed():
    table = summed([["f", "m"]])
    place = tuple(np.argwhere(table_of(["f"], "sex 1")[..., 0])[1])
    table[place] -= table_of(["f"], "sex 1")[place]
    assert labels_in(table, "sex 1", 3) is None


def test_tables_of_all_sites_are_exact_in_a_secure_sum():
    labels, sites = [f"{chr(0x10FFFF)} {number}" for number in range(40)], 255
    table = table_of(labels, "s")
    assert np.all(fits(table.ravel(), sites))
    words = reduce(plus, [to_integers(table.ravel())] * sites)
    assert labels_in(to_numbers(words).reshape(table.shape), "s", sites) == dict.fromkeys(labels, sites)
