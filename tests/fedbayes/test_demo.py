import numpy as np
import pytest

from fedbayes.cli import demo
from fedbayes.models import heart_disease
from fedbayes.questions.comparison import compare, flat_draws
from fedbayes.results.arviz import to_arviz

PNG = b"\x89PNG"


def fake_posterior(seed):
    rng = np.random.default_rng(seed)
    draws = {"intercept": rng.normal(size=(2, 100)), "beta": rng.normal(size=(2, 100, 13))}
    return to_arviz({"posterior": draws}, heart_disease.COORDS, heart_disease.DIMS, {})


def test_every_coefficient_and_hospital_has_words():
    assert list(demo.LABELS) == list(flat_draws(fake_posterior(0)))
    assert tuple(demo.HOSPITALS) == heart_disease.HOSPITALS


def test_pooled_stacks_the_rows_in_order():
    clients = heart_disease.clients()
    pooled = demo.pooled(clients)
    assert {name: value.shape for name, value in pooled.items()} == {"x": (740, 13), "y": (740,)}
    np.testing.assert_array_equal(pooled["x"][303 : 303 + 261], clients["hungarian"]["x"])


def test_save_writes_posterior_and_pictures(small_fit, tmp_path):
    import arviz as az

    files = demo.save(small_fit, tmp_path / "new" / "folder")
    assert [path.name for path in files.values()] == ["posterior.nc", "rounds.nc", "rounds.png", "influence.png"]
    assert all(path.read_bytes()[:4] == PNG for path in files.values() if path.suffix == ".png")
    loaded = az.from_netcdf(str(files["posterior, for ArviZ"]))
    for name, draws in flat_draws(small_fit.idata).items():
        np.testing.assert_array_equal(flat_draws(loaded)[name], draws)


def test_save_draws_the_comparison_with_a_reference(small_fit, tmp_path):
    files = demo.save(small_fit, tmp_path, small_fit.idata)
    assert files["federated against pooled NUTS"] == tmp_path / "comparison.png"
    assert (tmp_path / "comparison.png").read_bytes()[:4] == PNG


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.timeout(600)
def test_the_comparison_notices_a_hospital_left_out(monkeypatch):
    """With all four it agrees: `test_cli.py` runs the whole demo."""
    clients = heart_disease.clients()
    reference = demo.pooled_nuts(3)
    del clients["switzerland"]
    monkeypatch.setattr(heart_disease, "clients", lambda: clients)
    comparison = compare(demo.fit(3).idata, reference)
    assert comparison.rms_difference > 0.2
