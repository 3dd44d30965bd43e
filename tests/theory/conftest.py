"""What holds for the tests of this folder."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _rounds_alone(rounds_alone: None) -> None:
    """What these tests are about ends with the rounds; the check of the answer has tests of its own."""
