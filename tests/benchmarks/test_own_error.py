"""What a fit says of its own error is within a factor of two of the truth, or it calls itself unreliable."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "own_error.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="these tests run away from a checkout")

ZOO = (
    "normal mean",
    "rare counts",
    "rare events",
    "separated logistic",
    "square, two modes",
    "square, one flat mode",
    "two places",
    "two far places",
    "funnel",
    "banana",
    "mean and sd",
    "eight schools",
    "funnel of 8 means",
    "funnel of 24 means",
    "heart disease",
)


@pytest.fixture(scope="module")
def script(load):
    return load("own_error")


def test_the_zoo_is_whole(script) -> None:
    assert tuple(script.cases()) == ZOO


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.statistical(key=1, numbers=2, errors=4.0)
def test_a_fit_is_honest_about_its_error(script, name: str) -> None:
    found = script.measure(script.cases()[name])
    assert found.honest, found
    if found.reliable:  # and what is corrected is right
        assert found.corrected_mean < 4.0 * found.noise + 1e-9
        assert found.corrected_sd < 4.0 * found.noise + 1e-9
    assert found.reliable is ("funnel of" not in name)  # whose necks no draw has met


@pytest.mark.parametrize(("own", "true", "honest"), [(0.1, 0.19, True), (0.1, 0.3, False), (0.3, 0.1, False)])
def test_a_factor_of_two_is_what_is_asked_for(script, own: float, true: float, honest: bool) -> None:
    found = script.Found(True, own, true, 0.0, 0.0, 0.001, 0.0, 0.0, 1)
    assert found.honest is honest
    assert found._replace(reliable=False).honest
