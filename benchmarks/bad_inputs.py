"""What fedbayes says to bad input: data, tables, models, options, files, and questions to a fit.

    python benchmarks/bad_inputs.py        # half a minute; writes BAD_INPUTS.md

Each row gives the class and the words of what a user gets. RAW marks an error that is not fedbayes's own: one that no
`raise` of fedbayes raised. Errors of the user's own model stay the model's; fedbayes only adds the client's name.
"""

import linecache
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import xarray as xr
from pages import row

import fedbayes as fb

RAW, NOTHING, MODELS = "RAW", "NOTHING", "the model's own"
PACKAGE = str(Path(fb.__file__).parent)
FOLDER = Path(tempfile.gettempdir()) / "fedbayes-bad-inputs"


class Row(NamedTuple):
    """One bad input, and what came of it."""

    group: str
    given: str
    kind: str
    words: str


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=6)
FRAME = pd.DataFrame(X, columns=["age", "bmi"], index=[f"p{i}" for i in range(6)]).assign(
    town=list("nnnsss"), sick=[0, 1, 0, 1, 1, 0], sex=list("fmfmfm"), since=pd.date_range("2020-03-01", periods=6)
)


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def binary(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def grouped(x, g, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(beta[g], 1.0), obs=y)


def looking(x, y=None):
    if x.sum() > 0:
        model(x, y)


def wrong(x, y=None):
    raise LookupError("no such thing")


def unobserved(x, y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0))


def prior_of_data(x, y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(x.mean(), 1.0)), 1.0), obs=y)


def parameter(x, y=None):
    slope = numpyro.param("slope", 1.0)
    numpyro.sample("y", dist.Normal(slope * numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def discrete(x, y=None):
    kind = numpyro.sample("kind", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)) + kind, 1.0), obs=y)


def all_local(x, y=None):
    with fb.local():
        model(x, y)


def subsampled(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y), subsample_size=2):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=numpyro.subsample(y, event_dim=0))


def truncated(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.TruncatedDistribution(dist.StudentT(3.0, mu, 1.0), low=-9.0).expand([len(x)]), obs=y)


MODEL_FUNCTIONS = {model, binary, looking, wrong, unobserved, prior_of_data, parameter, discrete, all_local, subsampled}


def two(**change: object) -> dict:
    """Two good clients, but for what changes in the second."""
    return {"north": {"x": X, "y": Y}, "south": {"x": X[::-1] + 1.0, "y": Y + 1.0} | change}


def fit(clients: object = None, model: Callable = model, **options: object) -> object:
    given = {"method": "laplace", "key": jax.random.key(0), "progress": False, "num_draws": 50} | options
    return fb.fit_federated(model, two() if clients is None else clients, **given)


@cache
def good() -> fb.FederatedFit:
    return fit()


def split(**arguments: object) -> object:
    frame = arguments.pop("frame", FRAME)
    return fb.clients_from_dataframe(frame, **({"by": "town"} | arguments))


def saved(change: Callable[[Path], object], clients: dict | None = None, model: Callable = model) -> object:
    """Load a saved fit after something has happened to its folder."""
    good().save(FOLDER)
    change(FOLDER)
    return fb.load_fit(FOLDER, model, clients or two()).idata


def read() -> object:
    """A fit from its folder alone."""
    good().save(FOLDER)
    return fb.load_fit(FOLDER)


def checkpointed(content: Callable[[bytes], bytes]) -> object:
    """Fit again from a checkpoint to which something has happened."""
    path = FOLDER / "checkpoint.npz"
    path.unlink(missing_ok=True)
    fit(checkpoint=path)
    path.write_bytes(content(path.read_bytes()))
    return fit(checkpoint=path)


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:100])


MASKED = np.ma.array(Y, mask=[False] * 5 + [True])
CASES: dict[str, dict[str, Callable[[], object]]] = {
    "data": {
        "a list for the clients": lambda: fit([{"x": X, "y": Y}]),
        "no clients": lambda: fit({}),
        "a table for a client": lambda: fit({"north": FRAME}),
        "a client without rows": lambda: fit(two(x=X[:0], y=Y[:0])),
        "NaN among the outcomes": lambda: fit(two(y=np.array([np.nan, *Y[1:]]))),
        "a masked array": lambda: fit(two(y=MASKED)),
        "a missing value in a nullable column": lambda: fit(two(y=pd.array([1, 2, 3, 4, 5, None]))),
        "a missing value in a table": lambda: fit(two(x=FRAME[["age", "bmi"]].mask(FRAME["age"] > 0.5))),
        "text": lambda: fit(two(y=np.array(list("uvuvuv")))),
        "a categorical column in a table": lambda: fit(two(x=FRAME[["age", "sex"]].astype({"sex": "category"}))),
        "dates": lambda: fit(two(y=FRAME["since"])),
        "complex numbers": lambda: fit(two(y=Y + 1j)),
        "rows of different length": lambda: fit(two(x=[[1.0], [1.0, 2.0]])),
        "a dictionary for an array": lambda: fit(two(x={"age": X[:, 0]})),
        "an xarray dataset for an array": lambda: fit(two(x=xr.Dataset({"age": ("row", X[:, 0])}))),
        "other arguments": lambda: fit({"north": {"x": X, "y": Y}, "south": {"x": X, "z": Y}}),
        "other columns": lambda: fit(two(x=X[:, :1])),
        "columns in another order": lambda: fit(
            {"north": {"x": FRAME[["age", "bmi"]], "y": Y}, "south": {"x": FRAME[["bmi", "age"]] + 1.0, "y": Y}}
        ),
        "an array for one client, None for the other": lambda: fit(two(y=None)),
        "an outcome one row short": lambda: fit(two(y=Y[:5])),
        "an index as decimals": lambda: fit(
            {
                name: {"x": X, "y": Y + i, "g": np.zeros(6, kind)}
                for i, (name, kind) in enumerate({"a": int, "b": float}.items())
            },
            grouped,
        ),
        "outcomes coded 1 and 2": lambda: fit(
            {name: {"x": X + i, "y": np.array([1, 2, 1, 1, 2, i])} for i, name in enumerate("ab")}, binary
        ),
        "a value too large for the precision": lambda: fit(two(y=Y * 1e300), dtype=np.float32),
        "arguments that the model does not take": lambda: fit(
            {"north": {"X": X, "y": Y}, "south": {"X": X + 1.0, "y": Y}}
        ),
        "outcomes in a column": lambda: fit(
            {"north": {"x": X, "y": Y[:, None]}, "south": {"x": X + 1.0, "y": Y[:, None]}}
        ),
        "the same rows under two names": lambda: fit(two(x=X[::-1], y=Y[::-1])),
        "the same name twice": lambda: fit({1: {"x": X, "y": Y}, "1": {"x": X, "y": Y}}),
    },
    "tables": {
        "no table": lambda: split(frame=[1, 2], x="age"),
        "an unknown column": lambda: split(x=["age", "weight"]),
        "a missing client": lambda: split(frame=FRAME.assign(town=[None, *"nnsss"]), x="age"),
        "a missing value": lambda: split(frame=FRAME.assign(age=pd.array([1, None, 3, 4, 5, 6])), x=["age"]),
        "an infinite value": lambda: split(frame=FRAME.assign(age=np.inf), x=["age"]),
        "text as a covariate": lambda: split(x=["age", "sex"]),
        "dates in a column": lambda: split(x=["since"]),
        "numbers as text": lambda: split(frame=FRAME.assign(age=["1.5"] * 6), x="age"),
        "two columns of one name": lambda: split(frame=pd.concat([FRAME, FRAME[["age"]]], axis=1), x="age"),
    },
    "model": {
        "no observed site": lambda: fit(model=unobserved),
        "a prior that reads the data": lambda: fit(model=prior_of_data),
        "`numpyro.param`": lambda: fit(model=parameter),
        "a discrete global": lambda: fit(model=discrete),
        "everything local": lambda: fit(model=all_local),
        "a subsampling plate": lambda: fit(model=subsampled),
        "an unknown local site": lambda: fit(local=("theta",)),
        "an error of its own": lambda: fit(model=wrong),
        "a branch on a value": lambda: fit(model=looking),
    },
    "options": {
        "an unknown method": lambda: fit(method="epp"),
        "a seed for the key": lambda: fit(key=0),
        "no rounds": lambda: fit(num_rounds=0),
        "too much participation": lambda: fit(participation=1.5),
        "integers for the precision": lambda: fit(dtype=np.int32),
        "`local` as text": lambda: fit(local="beta"),
        "too many labels": lambda: fit(coords={"c": ["age", "bmi", "sex"]}, dims={"beta": ["c"]}),
        "dimensions of an unknown site": lambda: fit(dims={"betta": ["c"]}),
        "labels of an unknown dimension": lambda: fit(coords={"k": ["age", "bmi"]}, dims={"beta": ["c"]}),
        "a bad option of EP": lambda: fit(method=fb.EP(num_samples=100)),
        "a folder for the checkpoint": lambda: fit(checkpoint=FOLDER),
    },
    "files": {
        "a checkpoint cut short": lambda: checkpointed(lambda content: content[:100]),
        "an empty checkpoint": lambda: checkpointed(lambda content: b""),
        "a saved fit of other clients": lambda: saved(lambda folder: None, {"north": two()["north"]}),
        "a saved fit of other data": lambda: saved(lambda folder: None, two(y=Y + 2.0)),
        "a state cut short": lambda: saved(cut("state.npz")),
        "draws cut short": lambda: saved(cut("posterior.nc")),
        "a description cut short": lambda: saved(cut("fit.json")),
        "no saved fit": lambda: fb.load_fit(FOLDER / "nosuch", model, two()),
    },
    "a fit": {
        "pickled": lambda: pickle.dumps(good()),
        "an unknown client": lambda: good().client_posterior("east"),
        "a prediction without covariates": lambda: good().predict("north"),
        "a prediction with other columns": lambda: good().predict("north", x=np.ones((2, 3))),
        "a prediction with other axes": lambda: good().predict("north", x=np.ones((4, 3, 2))),
        "a prediction that can't be drawn": lambda: fit(model=truncated).predict("north", x=X),
        "a prediction of a fit read without its model": lambda: read().predict("north", x=X),
        "a new client with other arguments": lambda: good().adapt({"x": X}),
        "a hypothesis about a fit": lambda: fb.excludes(good(), 0),
        "a hypothesis about an array": lambda: fb.excludes(np.zeros((4, 100)), 0),
    },
}


def run(call: Callable[[], object]) -> tuple[str, str]:
    """The class and the words of what a user gets."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            return _class(error), "\n".join([_words(error), *_notes(error)])
    said = [warning for warning in caught if warning.filename == __file__]
    return (said[0].category.__name__, str(said[0].message)) if said else (NOTHING, "")


def _class(error: Exception) -> str:
    frames = list(_frames(error))
    name = type(error).__name__
    file, line, _ = frames[-1]
    if file.startswith(PACKAGE) and linecache.getline(file, line).strip().startswith("raise"):
        return name
    codes = {function.__code__.co_name for function in MODEL_FUNCTIONS}
    if any(file == __file__ and function in codes for file, _, function in frames) and _notes(error):
        return f"{name}, {MODELS}"
    return f"{name}, {RAW}"


def _frames(error: Exception) -> Iterator[tuple[str, int, str]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name
        trace = trace.tb_next


def _words(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text if list(_frames(error))[-1][0].startswith(PACKAGE) else text.splitlines()[0]


def _notes(error: Exception) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("fedbayes:")]


def is_raw(row: Row) -> bool:
    """Whether a user would get an error of something inside, or no answer at all."""
    return RAW in row.kind or row.kind == NOTHING


def rows(groups: object = None) -> list[Row]:
    """All rows, or those of some groups."""
    FOLDER.mkdir(exist_ok=True)
    return [
        Row(group, given, *run(call))
        for group, cases in CASES.items()
        if groups is None or group in groups
        for given, call in cases.items()
    ]


def table(found: list[Row]) -> str:
    """The page."""
    raw = sum(map(is_raw, found))
    lines = [
        "# What fedbayes says to bad input",
        "",
        f"Made by `python benchmarks/bad_inputs.py`: {len(found)} bad inputs, {raw} of them RAW, that is, answered by",
        "an error that is not fedbayes's own, or by nothing.",
        "",
        "| | given | class | message |",
        "|---|---|---|---|",
    ]
    lines += [row(each.group, each.given, each.kind, _cell(each.words)) for each in found]
    return "\n".join([*lines, ""])


def _cell(words: str) -> str:
    return re.sub(r"\s*\n\s*", "<br>", words.replace(str(FOLDER), "FOLDER")).replace("|", "\\|")


if __name__ == "__main__":
    found = rows(sys.argv[1:] or None)
    if len(sys.argv) == 1:
        Path(__file__).with_name("BAD_INPUTS.md").write_text(table(found))
    for each in found:
        print(f"{each.group}: {each.given}\n    {each.kind}: {each.words}")
