"""A stored fit, what a report says of it, and the folder that it is saved to."""

import pytest

from fedbayes.report.facts import facts_of


@pytest.fixture(scope="session")
def fit(stored_fits):
    return stored_fits.read("ridge")


@pytest.fixture(scope="session")
def facts(fit):
    return facts_of(fit.fitted)


@pytest.fixture(scope="session")
def folder(fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "fit"
    fit.save(path)
    return path
