"""Groups of clients, and what is said of a mapping that is none."""

import pytest

from fedbayes.problem.data.groups import partition


def test_groups_become_places() -> None:
    names, places = partition({"cities": ["south", "north"], "villages": "west"}, ("north", "south", "west"))
    assert names == ("cities", "villages")
    assert places.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"north": "cities", "south": ["cities"], "west": ["villages"]},
            r"write `groups=\{'cities': \['north', 'south'\], 'villages': \['west'\]\}`",
        ),
        ({"cities": ["nort", "south"], "villages": ["west"]}, r"has the client 'nort'; .* Did you mean 'north'\?"),
    ],
)
def test_a_mapping_that_can_be_mended_is_said_anew(groups, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(groups, ("north", "south", "west"))
