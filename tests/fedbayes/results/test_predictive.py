"""Programs of predictions are kept by their operations and their names."""

import numpy as np

from fedbayes.results.predictive import _by_kept_program


def test_programs_that_differ_in_a_name_alone_are_two():
    """Two models whose outcomes have other names do the same operations."""
    draws, arrays = {"slope": np.ones((2, 3))}, {"x": np.arange(4.0)}
    for name in ("y", "outcome"):
        found = _by_kept_program(lambda d, a, name=name: {name: d["slope"][..., None] * a["x"]}, draws, arrays)
        assert list(found) == [name]
    found = _by_kept_program(
        lambda d, a: {"y": d["other"][..., None] * a["x"]}, {"other": 2.0 * draws["slope"]}, arrays
    )
    np.testing.assert_allclose(found["y"][0, 0], 2.0 * np.arange(4.0))
