"""All errors of fedbayes have one base, beside those of Python that they had."""

import pytest

import fedbayes as fb
from fedbayes.correction.recipe import OtherDraws
from fedbayes.errors import did_you_mean


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (fb.ClientDataError, ValueError),
        (fb.ModelError, ValueError),
        (fb.FederatedError, RuntimeError),
        (OtherDraws, ValueError),
    ],
)
def test_errors_keep_the_bases_of_python(error, base) -> None:
    assert issubclass(error, fb.FedbayesError)
    assert issubclass(error, base)


def test_a_name_that_is_near_is_asked_for() -> None:
    assert did_you_mean("Betta", ["alpha", "beta"]) == " Did you mean 'beta'?"
    assert did_you_mean("x", ["X"]) == " Did you mean 'X'?"
    assert did_you_mean("sigma", ["alpha", "beta"]) == ""
