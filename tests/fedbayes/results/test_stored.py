"""Stored fits are what the code gives today."""

import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", ["linear", "groups", "scale", "ridge"])
def test_a_stored_fit_is_current(stored_fits, name) -> None:
    """Where it is not, `python tests/fedbayes/stored/fits.py` makes it anew. Other machines differ by rounding."""
    stored, made = stored_fits.read(name), stored_fits.RECIPES[name].fit(stored_fits.read_clients(name))
    assert repr(stored.method) == repr(made.method)
    for ours, theirs in zip(stored.moments(), made.moments(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    for variable, draws in made.idata.posterior.items():
        np.testing.assert_allclose(stored.idata.posterior[variable], draws, rtol=1e-5, atol=1e-8)
    assert stored.rounds.attrs.keys() == made.rounds.attrs.keys()
    assert set(stored.rounds.data_vars) == set(made.rounds.data_vars)
    assert str(stored.idata.posterior.attrs["correction"]) == str(made.idata.posterior.attrs["correction"])


def test_every_recipe_is_stored_and_small(stored_fits) -> None:
    folders = {path.name: path for path in stored_fits.HERE.iterdir() if (path / "fit.json").exists()}
    assert folders.keys() == stored_fits.RECIPES.keys()
    for folder in folders.values():
        assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
