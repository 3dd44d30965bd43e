"""What is kept for the process is bounded, and checked before it is used again."""

import pytest

from fedbayes.runtime.lru import Kept


class Builder:
    """Counts what it makes."""

    def __init__(self):
        self.made = []

    def __call__(self, key):
        def build():
            self.made.append(key)
            return f"value of {key}"

        return build


@pytest.fixture
def build():
    return Builder()


def test_a_value_is_made_once(build):
    kept = Kept(2)
    assert [kept.get("a", build("a")) for _ in range(3)] == ["value of a"] * 3
    assert build.made == ["a"]


def test_the_least_recently_used_goes_first(build):
    kept = Kept(2)
    for key in ("a", "b", "a", "c"):
        kept.get(key, build(key))
    assert build.made == ["a", "b", "c"]
    kept.get("a", build("a"))  # was used after b
    assert build.made == ["a", "b", "c"]
    kept.get("b", build("b"))
    assert build.made == ["a", "b", "c", "b"]


def test_never_more_than_so_many(build):
    kept = Kept(3)
    for number in range(10):
        assert kept.get(number, build(number)) == f"value of {number}"
        assert len(kept._values) <= 3
    assert list(kept._values) == [7, 8, 9]


def test_a_value_that_is_no_longer_valid_is_made_again():
    kept, answers = Kept(2), iter(("old", "new"))
    assert kept.get("a", lambda: next(answers)) == "old"
    assert kept.get("a", lambda: next(answers), valid=lambda value: value == "old") == "old"
    assert kept.get("a", lambda: next(answers), valid=lambda value: value == "new") == "new"
    assert kept.get("a", lambda: next(answers), valid=lambda value: value == "new") == "new"


def test_a_key_that_cannot_be_hashed_is_never_kept(build):
    kept = Kept(2)
    for _ in range(2):
        assert kept.get(["a"], build("a")) == "value of a"
    assert build.made == ["a", "a"]
    assert len(kept._values) == 0


def test_what_could_not_be_made_is_not_kept(build):
    kept = Kept(2)

    def broken():
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        kept.get("a", broken)
    assert kept.get("a", build("a")) == "value of a"


def test_forgetting(build):
    kept = Kept(2)
    kept.get("a", build("a"))
    kept.forget()
    kept.get("a", build("a"))
    assert build.made == ["a", "a"]
