"""Fits in files and in memory: read again, and refused in words that say what differs."""

import json
import pickle
from copy import copy
from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import fedbayes as fb

RNG = np.random.default_rng(0)


def model(x, y=None, scale=1.0):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


def table(rows):
    frame = pd.DataFrame({"u": RNG.normal(size=rows), "v": RNG.integers(0, 3, rows)}, index=RNG.permutation(rows))
    return {"x": frame, "y": frame["u"] + RNG.normal(size=rows)}


CLIENTS = {"north": table(8), "south": table(12), "west": table(5)}


@pytest.fixture(scope="module")
def fit():
    return fb.fit_federated(
        model,
        CLIENTS,
        method="laplace",
        key=jax.random.key(0),
        num_draws=100,
        progress=False,
        dims={"beta": ["column"]},
    )


@pytest.fixture
def folder(fit, tmp_path):
    fit.save(tmp_path / "fit")
    return tmp_path / "fit"


def datasets(idata):
    groups = ("posterior", "sample_stats", "log_likelihood")
    return [group.to_dataset() if hasattr(group, "to_dataset") else group for group in (idata[name] for name in groups)]


def test_the_folder_of_the_command_holds_the_fit_in_a_folder_of_its_own(fit, folder):
    """`fedbayes fit --out result` writes result/fit, beside tables and the program."""
    (folder.parent / "summary.csv").touch()
    assert repr(fb.load_fit(folder.parent)) == repr(fb.load_fit(folder))
    assert repr(fb.load_fit(folder.parent, model, CLIENTS)) == repr(fit)


def test_a_loaded_fit_reads_its_draws(fit, folder):
    """They are not computed again, nor is what was found about their error: nothing is asked of the clients."""
    loaded = fb.load_fit(folder, model, CLIENTS)
    assert "  Gaussian  exact to" in repr(loaded)
    assert repr(loaded) == repr(fit)
    assert loaded.trouble() == fit.trouble()
    assert loaded.fitted.ledger == []
    for ours, theirs in zip(datasets(loaded.idata), datasets(fit.idata), strict=True):
        xr.testing.assert_identical(ours.drop_attrs(), theirs.drop_attrs())
        assert {name: str(value) for name, value in ours.attrs.items()}.items() >= {
            name: str(value) for name, value in theirs.attrs.items() if name in ("method", "converged", "draws")
        }.items()
    assert loaded.fitted.ledger == []
    assert loaded.communication == fit.communication
    assert loaded.communication.exchanges == fit.rounds.attrs["exchanges"] + 1
    np.testing.assert_array_equal(
        loaded.predict("north", x=CLIENTS["north"]["x"]).posterior_predictive["y"].values,
        fit.predict("north", x=CLIENTS["north"]["x"]).posterior_predictive["y"].values,
    )


def test_a_fit_is_read_without_its_model_and_data(fit, folder):
    """It has what was found when it was saved, under the same names."""
    read = fb.load_fit(folder)
    for ours, theirs in zip(datasets(read.idata), datasets(fit.idata), strict=True):
        xr.testing.assert_identical(ours.drop_attrs(), theirs.drop_attrs())
    for ours, theirs in ((read.rounds, fit.rounds), (read.error, fit.error), (read.conflict(), fit.conflict())):
        xr.testing.assert_equal(ours, theirs)
    assert read.conflict().attrs == fit.conflict().attrs
    assert (read.converged, read.trouble()) == (fit.converged, fit.trouble())
    assert (read.client_names, read.global_labels) == (fit.client_names, fit.global_labels)
    assert read.communication == fit.communication
    ours, theirs = ([line for line in repr(each).splitlines() if "look at" not in line] for each in (read, fit))
    assert ours == theirs
    assert "  look at   fit.idata, fit.rounds, fit.error, fit.conflict(); read without model and data" in repr(read)


@pytest.mark.parametrize("question", ["predict", "client_posterior", "fitted"])
def test_what_needs_the_model_is_not_answered_without_it(question, folder):
    read = fb.load_fit(folder)
    assert not hasattr(read, question)
    with pytest.raises(
        AttributeError, match=rf"no `{question}`; it has idata, .* `fedbayes.load_fit\('.*', model, cli"
    ):
        getattr(read, question)
    with pytest.raises(ValueError, match=r"has got the model and no clients. Give both, as to the fit, or neither"):
        fb.load_fit(folder, model)


def test_what_was_not_known_when_a_fit_was_saved_is_said(fit, folder):
    (folder / "error.nc").unlink()
    with pytest.raises(ValueError, match=r"holds no 'error.nc': the fit had none when it was saved. Load it with its"):
        fb.load_fit(folder).error  # noqa: B018
    assert "fit.rounds, fit.conflict(); read" in repr(fb.load_fit(folder))
    (folder / "posterior.nc").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no 'posterior.nc'. Load it with its model and data"):
        fb.load_fit(folder).idata  # noqa: B018


def test_what_an_earlier_version_has_not_saved(folder):
    file = folder / "fit.json"
    meta = json.loads(file.read_text())
    del meta["said"]
    file.write_text(json.dumps(meta))
    read = fb.load_fit(folder)
    assert repr(read).startswith("FederatedFit by Laplace, saved by an earlier version in '")
    assert read.converged
    with pytest.raises(ValueError, match=r"was saved by an earlier version. Load it with its model and data"):
        read.trouble()


def test_a_folder_keeps_nothing_of_another_fit(folder):
    whole = fb.load_fit(folder, model, CLIENTS)
    whole.save(folder)
    assert (folder / "error.nc").exists()
    shown = whole.fitted.shown._replace(correct=False)
    fb.FederatedFit(replace(whole.fitted, shown=shown, saved=None, answers={})).save(folder)
    assert not (folder / "error.nc").exists()


def test_a_loaded_fit_can_be_saved_in_its_own_place(folder):
    loaded = fb.load_fit(folder, model, CLIENTS)
    draws = loaded.idata.posterior["beta"].values
    loaded.save(folder)
    np.testing.assert_array_equal(fb.load_fit(folder, model, CLIENTS).idata.posterior["beta"].values, draws)


def test_without_its_file_the_posterior_is_computed(fit, folder):
    (folder / "posterior.nc").unlink()
    loaded = fb.load_fit(folder, model, CLIENTS)
    np.testing.assert_array_equal(loaded.idata.posterior["beta"].values, fit.idata.posterior["beta"].values)
    assert loaded.communication.exchanges == fit.communication.exchanges + 1


def changed(change):
    return {name: change(name, dict(data)) for name, data in CLIENTS.items()}


def first_rows(name, data):
    return {key: value[:4] for key, value in data.items()} if name == "south" else data


OTHERS = {
    "fewer": ({name: CLIENTS[name] for name in ("north", "west")}, "lacking: south"),
    "other names": ({name.upper(): data for name, data in CLIENTS.items()}, "lacking: north, south, west; new: NORTH"),
    "one more": (CLIENTS | {"east": table(6)}, "saved in '.*': new: east"),
    "rows": (changed(first_rows), "'south' had 12 rows, and has 4"),
    "order": (dict(reversed(CLIENTS.items())), "the clients' order was north, south, west"),
    "columns": (changed(lambda _, data: data | {"x": data["x"][["u"]]}), r"the globals were {'beta': \[2\]}, and are"),
    "values": (changed(lambda _, data: data | {"y": data["y"] + 1.0}), "not the data of the fit .* the values differ"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_clients_are_said_to_differ_and_nothing_is_changed(case, folder):
    clients, message = OTHERS[case]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=rf"(?s)These are .*{message}.* Nothing was changed\.$") as error:
        fb.load_fit(folder, model, clients)
    assert "delete" not in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kept", [0, 100, 0.5])
@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "state.npz",
            r"state of the saved fit, '.*state.npz', can't be read: .* Fit again.*'posterior.nc' can be read",
        ),
        ("fit.json", r"'.*fit.json' can't be read \(JSONDecodeError: .* cut short, or from another version"),
        ("posterior.nc", r"'.*posterior.nc' can't be read \(.* Move it away: without it `fit.idata` is computed"),
    ],
)
def test_files_that_are_cut_short_are_named(file, message, kept, folder):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(kept * len(content)) if kept == 0.5 else kept])
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        fb.load_fit(folder, model, CLIENTS).idata  # noqa: B018


def test_what_is_no_saved_fit(fit, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'.*nosuch' holds no 'fit.json': it is not the folder of a saved fit"):
        fb.load_fit(tmp_path / "nosuch", model, CLIENTS)
    with pytest.raises(FileNotFoundError, match=r"holds no 'fit.json'"):
        fb.load_fit(folder / "fit.json", model, CLIENTS)
    with pytest.raises(ValueError, match=r"'.*fit.json' is a file; name a folder"):
        fit.save(folder / "fit.json")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Laplace"', '"Gibbs"', r"holds a fit by Gibbs, which is none of fedbayes's methods, \["),
        (
            '"tolerance"',
            '"patience"',
            r"a fit by Laplace with other options than this version of fedbayes knows \(.*pati",
        ),
        ('"key"', '"lock"', r"fit.json' can't be read \(KeyError: 'key'\)"),
    ],
)
def test_fits_of_other_versions(old, new, message, folder):
    file = folder / "fit.json"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        fb.load_fit(folder, model, CLIENTS)


def test_fits_saved_before_the_clients_were_described_can_be_loaded(fit, folder):
    file = folder / "fit.json"
    meta = json.loads(file.read_text())
    del meta["about"], meta["cost"]
    file.write_text(json.dumps(meta))
    loaded = fb.load_fit(folder, model, CLIENTS)
    np.testing.assert_array_equal(loaded.moments()[0], fit.moments()[0])


@pytest.mark.parametrize("attempt", [pickle.dumps, copy])
def test_a_fit_is_saved_not_pickled(attempt, fit):
    with pytest.raises(
        TypeError, match=r"A fit can't be pickled .*`fit.save\(path\)`, and .*`fedbayes.load_fit\(path, mod"
    ):
        attempt(fit)
    assert list(pickle.loads(pickle.dumps(datasets(fit.idata)[0])).data_vars) == ["beta"]


# predictions


def predicted(fit, client="north", **arguments):
    return fit.predict(client, **arguments).posterior_predictive["y"].values


def test_predictions_take_what_the_fit_took(fit):
    data = CLIENTS["north"]
    expected = predicted(fit, x=data["x"].to_numpy(float))
    np.testing.assert_array_equal(predicted(fit, x=data["x"]), expected)
    np.testing.assert_array_equal(predicted(fit, **data), expected)
    np.testing.assert_array_equal(predicted(fit, x=data["x"].astype(object)), expected)
    np.testing.assert_array_equal(predicted(fit, x=data["x"].to_numpy(float).tolist()), expected)
    np.testing.assert_array_equal(predicted(fit, x=data["x"], y=None), expected)
    assert predicted(fit, None, x=data["x"][:3]).shape == (1, 100, 3)
    wide = predicted(fit, x=data["x"], scale=1000.0)
    assert wide.std() > 100 * expected.std()


@pytest.mark.parametrize("unknown", [np.full(8, np.nan), pd.Series([1.0] * 7 + [None]), pd.array([1.0] * 7 + [None])])
def test_outcomes_may_be_missing_in_a_prediction(fit, unknown):
    x = CLIENTS["north"]["x"]
    np.testing.assert_array_equal(predicted(fit, x=x, y=unknown), predicted(fit, x=x))


BAD_ROWS = {
    "missing": ({"x": pd.DataFrame({"u": [1.0, None], "v": [1, 2]})}, fb.ClientDataError, "column 'u' of `x` holds 1"),
    "text": ({"x": [["u", "v"]]}, fb.ClientDataError, "Client 'new rows': `x` holds text"),
    "columns": ({"x": np.ones((2, 3))}, fb.ClientDataError, r"`x` has shape \(2, 3\), but client 'north' has \(8, 2\)"),
    "more axes": (
        {"x": np.ones((9, 3, 2))},
        fb.ClientDataError,
        r"`x` has shape \(9, 3, 2\), but client 'north' has \(8, 2\). Write an array of shape \(rows, 2\).$",
    ),
    "one row": ({"x": np.ones(2)}, fb.ClientDataError, r"shape \(rows, 2\): `numpy.reshape\(x, \(-1, 2\)\)`.$"),
    "one number": ({"x": 1.0}, fb.ClientDataError, r"`x` has shape \(\), but client 'north' has \(8, 2\). Write an"),
    "outcomes as a column": (
        {"x": np.ones((2, 2)), "y": np.ones((2, 1))},
        fb.ClientDataError,
        r"`y` has shape \(2, 1\), but client 'north' has \(8,\). .* \(rows,\): `numpy.reshape\(y, \(-1,\)\)`",
    ),
    "their order": ({"x": CLIENTS["north"]["x"][["v", "u"]]}, fb.ClientDataError, r"`x` has the columns \['v', 'u'\]"),
    "none": ({}, TypeError, r"with the arguments \[\]. It needs `x`; it is `model\(x, y=None.*\)`. What a prediction"),
    "unknown": (
        {"x": np.ones((2, 2)), "Y": 1},
        TypeError,
        r"\['Y', 'x'\]. It takes no argument `Y`; it is `model\(x, .*`. Did you mean 'y'\? What",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_for_a_prediction(case, fit):
    arguments, error, message = BAD_ROWS[case]
    with pytest.raises(error, match=message):
        fit.predict("north", **arguments)


def test_a_new_client_may_have_other_kinds_of_numbers(fit):
    data = table(7)
    whole = {"x": data["x"].round().astype(int), "y": data["y"]}
    expected = fit.adapt({name: value.to_numpy(float) for name, value in whole.items()})
    np.testing.assert_array_equal(fit.adapt(whole).posterior["beta"].values, expected.posterior["beta"].values)
    with pytest.raises(fb.ClientDataError, match=r"'new client': `x` has the columns \['v', 'u'\], but client 'north'"):
        fit.adapt({"x": data["x"][["v", "u"]], "y": data["y"]})


def test_a_new_client_may_have_another_number_where_the_others_differ():
    """In the fit the number is data, because it differs; one client alone could not tell."""

    def binomial(n, y=None):
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
        numpyro.sample("y", dist.Binomial(n, rate), obs=y)

    clients = {"a": {"y": 3, "n": 10}, "b": {"y": 5, "n": 12}}
    fit = fb.fit_federated(binomial, clients, method="laplace", key=jax.random.key(0), progress=False, correct=False)
    assert fit.adapt({"y": 4, "n": 11}).posterior["rate"].shape == (1, 1000)
    assert predicted(fit, None, n=1000).max() > 100


def test_a_new_client_may_have_another_size():
    """A size that NumPy counted is one like Python's."""

    def groups(n, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with fb.local():
            level = numpyro.sample("level", dist.Normal(mu, 1.0).expand([n]).to_event(1))
        numpyro.sample("y", dist.Normal(level.sum(), 1.0), obs=y)

    clients = {name: {"y": RNG.normal(size=4), "n": np.int64(n)} for name, n in (("a", 2), ("b", 3))}
    fit = fb.fit_federated(
        groups, clients, method="laplace", key=jax.random.key(0), num_draws=40, progress=False, correct=False
    )
    assert fit.adapt({"y": RNG.normal(size=4), "n": np.int64(5)}).posterior["level"].shape == (1, 40, 5)
    assert predicted(fit, "a", y=clients["a"]["y"], n=np.int64(2)).shape == (1, 40)
