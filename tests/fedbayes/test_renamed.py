"""Names of earlier versions, and another method's name of the same idea, are refused with the one to write."""

import inspect
import json
import shutil
from dataclasses import fields

import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.contract.renamed import present_names, refused_names

DRAWS = xr.DataArray([[0.0, 1.0]], dims=("chain", "draw"))


@pytest.mark.parametrize(
    ("called", "given", "written"),
    [
        (fb.EP, {"covariance": "sample"}, "`EP(estimator='sample')`"),
        (fb.EP, {"num_chains": 2}, "`EP(num_replicates=2)`"),
        (fb.OneShot, {"covariance": "score"}, "`OneShot(estimator='score')`"),
        (fb.FedPA, {"covariance": "score"}, "`FedPA(estimator='score')`"),
        (fb.FALD, {"bias": 0.01}, "`FALD(max_bias=0.01)`"),
        (fb.FALD, {"num_replicates": 2}, "`FALD(num_chains=2)`"),
        (fb.FedAvg, {"num_chains": 2}, "`FedAvg(num_replicates=2)`"),
        (fb.FedProx, {"num_chains": 2}, "`FedProx(num_replicates=2)`"),
        (fb.CorrelatedClients, {"num_replicates": 2}, "`CorrelatedClients(num_chains=2)`"),
        (lambda **given: fb.excludes(DRAWS, **given), {"prob": 0.8}, "`excludes(level=0.8)`"),
    ],
)
def test_the_name_to_write_is_told(called, given, written) -> None:
    with pytest.raises(TypeError) as refused:
        called(**given)
    assert str(refused.value).endswith(f"has no argument `{next(iter(given))}`: write {written}.")


@pytest.mark.parametrize("method", [fb.EP, fb.OneShot, fb.FedPA, fb.FALD, fb.FedAvg, fb.FedProx, fb.CorrelatedClients])
def test_a_refused_name_stands_for_an_option_and_is_none(method) -> None:
    known = {field.name for field in fields(method)}
    assert method.__refused_names__.keys().isdisjoint(known)
    assert set(method.__refused_names__.values()) <= known
    assert set(inspect.signature(method).parameters) == known  # what an editor shows


def test_a_fit_of_an_earlier_version_is_read(stored_fits, tmp_path) -> None:
    """Its options have the names of then."""
    shutil.copytree(stored_fits.HERE / "linear", tmp_path / "fit")
    file = tmp_path / "fit" / "fit.json"
    meta = json.loads(file.read_text())
    options = present_names(fb.EP, meta["options"])
    meta["options"] = {"covariance": options.pop("estimator"), **options}
    file.write_text(json.dumps(meta))
    recipe = stored_fits.RECIPES["linear"]
    assert (
        fb.load_fit(tmp_path / "fit", recipe.model, stored_fits.read_clients("linear")).method
        == recipe.options["method"]
    )


def test_two_names_of_one_class_do_not_reach_another() -> None:
    @refused_names(old="new")
    class Named:
        def __init__(self, new: int = 0) -> None:
            self.new = new

    class Other:
        pass

    assert present_names(Named, {"old": 3}) == {"new": 3}
    assert present_names(Other, {"old": 3}) == {"old": 3}
    assert Named(new=2).new == 2
