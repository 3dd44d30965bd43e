"""Tables of real data: as many rows as in the sources, and numbers that were published about them."""

import numpy as np
import pytest

from fedbayes.models import heart_disease, tables


def test_hospitals_are_those_of_the_program():
    clients = heart_disease.clients()
    for name, table in tables.hospitals().items():
        np.testing.assert_array_equal(table["sick"], clients[name]["y"])
        assert {len(column) for column in table.values()} == {len(table["sick"])}
    raw = np.concatenate([table["age"] for table in tables.hospitals().values()])
    ours = np.concatenate([client["x"][:, 0] for client in clients.values()])
    np.testing.assert_allclose((raw - raw.mean()) / raw.std(), ours)


def test_survival_by_sex_is_the_published_one():
    """Median survival 270 days of men and 426 of women (R's `survfit`), both groups with all 228 patients but two."""
    together = [np.concatenate([table[name] for table in tables.lung().values()]) for name in ("days", "died", "sex")]
    for sex, published in (("male", 270.0), ("female", 426.0)):
        days, died = (column[together[2] == sex] for column in together[:2])
        order = np.argsort(days)
        days, died = days[order], died[order]
        survival = np.cumprod(1.0 - died / np.arange(len(days), 0, -1))
        assert days[np.argmax(survival <= 0.5)] == pytest.approx(published, abs=20.0)


def test_the_vaccine_s_mean_is_the_published_one():
    """Restricted maximum likelihood: a mean of -0.7145 (0.1798) with a variance between trials of 0.3132."""
    ratio, se = (np.concatenate([trial[name] for trial in tables.bcg().values()]) for name in ("log_ratio", "se"))
    weights = 1.0 / (se**2 + 0.3132)
    assert len(ratio) == 13
    assert np.average(ratio, weights=weights) == pytest.approx(-0.7145, abs=1e-4)
    assert weights.sum() ** -0.5 == pytest.approx(0.1798, abs=1e-4)


def test_students_have_three_grades():
    schools = tables.students()
    assert {name: len(table["grade1"]) for name, table in schools.items()} == {"GP": 423, "MS": 226}
    grades = np.concatenate([[table[f"grade{i}"] for i in (1, 2, 3)] for table in schools.values()], axis=1)
    np.testing.assert_allclose(grades.mean(axis=1), [11.399, 11.570, 11.906], atol=5e-4)
