"""posteriordb's posteriors as federations: where its files are, Stan's programs for one client, tables of rows."""

import io
import json
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import typer
from numpyro.distributions import constraints

import fedbayes as fb

NUM_CLIENTS = 5
SPLITS = ("random", "covariate", "outcome")

Columns = Mapping[str, np.ndarray]


class Database:
    """A clone of posteriordb.

    Parameters
    ----------
    path
        Its work tree, or its git directory alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_files = (path / "posterior_database").is_dir()
        known = self.has_files or self._git("cat-file", "-e", "HEAD:posterior_database").returncode == 0
        if not known:
            raise typer.BadParameter(
                f"`--database` is '{path}', which holds no posteriordb. Clone github.com/stan-dev/posteriordb and give "
                "the path of the clone."
            )

    def read(self, name: str) -> Any:
        """The content of one zipped JSON file, such as ``data/data/earnings.json.zip``."""
        within = f"posterior_database/{name}"
        if self.has_files:
            content = (self.path / within).read_bytes()
        else:
            content = self._git("show", f"HEAD:{within}", check=True).stdout
        archive = zipfile.ZipFile(io.BytesIO(content))
        return json.loads(archive.read(archive.namelist()[0]))

    def commit(self) -> str:
        """Which version it is."""
        return self._git("rev-parse", "--short", "HEAD").stdout.decode().strip() or "of unknown version"

    def _git(self, *arguments: str, check: bool = False) -> subprocess.CompletedProcess:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, check=check)  # noqa: S603


class Posterior(NamedTuple):
    """One posterior of posteriordb as a federation.

    Attributes
    ----------
    name
        In posteriordb; its data are named by what stands before the hyphen.
    model
        One client's program; its sites have Stan's names.
    table
        From the data to the model's arguments, of which row i belongs together.
    covariate, outcome
        What the rows are sorted by, in words, and the values by which; ``None`` where there is no such split.
    reference
        Posterior whose reference draws apply, where it is another one.
    """

    name: str
    model: Callable[..., None]
    table: Callable[[Columns], dict[str, np.ndarray]]
    covariate: tuple[str, Callable[[Columns], np.ndarray]] | None
    outcome: tuple[str, Callable[[Columns], np.ndarray]]
    reference: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are."""
        return tuple(split for split in SPLITS if split != "covariate" or self.covariate is not None)

    def words(self, split: str) -> str:
        """The split, as in the table."""
        if split == "random":
            return "random"
        chosen = self.covariate if split == "covariate" else self.outcome
        assert chosen is not None
        return f"by {chosen[0]}" + (" (outcome)" if split == "outcome" else "")

    def order(self, split: str, data: Columns, num_rows: int) -> np.ndarray:
        """The rows, in the order in which they are dealt out to the clients in equal shares."""
        if split == "random":
            return np.random.default_rng(0).permutation(num_rows)
        chosen = self.covariate if split == "covariate" else self.outcome
        assert chosen is not None
        return np.argsort(chosen[1](data), kind="stable")


# ----------------------------------------------------------------------------------------------------------- programs


def _coefficients(size: int) -> jax.Array:
    return numpyro.sample("beta", dist.ImproperUniform(constraints.real_vector, (), (size,)))


def flat_regression(x: Any, y: Any = None) -> None:
    """Linear regression without priors: flat on the coefficients, and on ``sigma > 0`` itself."""
    beta = _coefficients(x.shape[1])
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def cauchy_regression(x: Any, y: Any = None) -> None:
    """``sigma ~ cauchy(0, 2.5)``, the coefficients flat."""
    beta = _coefficients(x.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def normal_regression(x: Any, y: Any = None) -> None:
    """``blr``: ``beta ~ normal(0, 10)``, ``sigma ~ normal(0, 10)``."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def kilpisjarvi(x: Any, y: Any = None) -> None:
    """The priors' constants are part of posteriordb's data. The years are not centred."""
    alpha = numpyro.sample("alpha", dist.Normal(9.31290322580645, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.0333333333333333))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def diamonds(x: Any, y: Any = None) -> None:
    """``x`` is centred over all rows, as in the Stan program."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.TruncatedDistribution(dist.StudentT(3.0, 0.0, 10.0), low=0.0))
    numpyro.sample("y", dist.Normal(intercept + x @ b, sigma), obs=y)


def autoregression(lags: Any, y: Any = None) -> None:
    """``arK``: given the five values before it a value is a row like any other."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


class OrderedNormal(dist.Distribution):
    """Independent normals, given that they are in increasing order, up to a constant: Stan's ``ordered[2] mu``."""

    support = constraints.ordered_vector

    def __init__(self, scale: float, size: int) -> None:
        self.scale = scale
        super().__init__(event_shape=(size,))

    def log_prob(self, value: jax.Array) -> jax.Array:
        """The normalising constant is left out."""
        return jnp.sum(dist.Normal(0.0, self.scale).log_prob(value), axis=-1)


def mixture_of_two(y: Any = None) -> None:
    """``low_dim_gauss_mix``."""
    mu = numpyro.sample("mu", OrderedNormal(2.0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    shares = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(mu, sigma)), obs=y)


def schools_noncentered(error: Any, y: Any = None) -> None:
    """Some of the eight schools; their effects are local."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with fb.local():
        theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([error.shape[0]]).to_event(1))
    numpyro.sample("y", dist.Normal(theta_trans * tau + mu, error), obs=y)


def schools_centered(error: Any, y: Any = None) -> None:
    """The same posterior of ``mu`` and ``tau``, centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([error.shape[0]]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, error), obs=y)


# ------------------------------------------------------------------------------------------------------------- tables


def _column(data: Columns, name: str) -> np.ndarray:
    return np.asarray(data[name], float)


def _design(*columns: np.ndarray) -> np.ndarray:
    """An intercept and columns."""
    return np.column_stack([np.ones(len(columns[0])), *columns])


def _standardised(values: np.ndarray, sds: float = 1.0) -> np.ndarray:
    """Stan's ``sd`` divides by n - 1."""
    return (values - values.mean()) / (sds * values.std(ddof=1))


def _interacting(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return _design(first, second, first * second)


def _earnings(data: Columns, kind: str) -> dict[str, np.ndarray]:
    earn, height, male = (_column(data, name) for name in ("earn", "height", "male"))
    y = {"earn_height": earn, "log10earn_height": np.log10(earn)}.get(kind, np.log(earn))
    designs = {
        "logearn_height_male": lambda: _design(height, male),
        "logearn_interaction": lambda: _interacting(height, male),
        "logearn_interaction_z": lambda: _interacting(_standardised(height), male),
        "logearn_logheight_male": lambda: _design(np.log(height), male),
    }
    return {"x": designs.get(kind, lambda: _design(height))(), "y": y}


def _kidiq(data: Columns, kind: str) -> dict[str, np.ndarray]:
    iq, hs = (_column(data, name) if name in data else np.zeros(0) for name in ("mom_iq", "mom_hs"))
    work = np.asarray(data.get("mom_work", ()))
    designs = {
        "kidscore_momhs": lambda: _design(hs),
        "kidscore_momiq": lambda: _design(iq),
        "kidscore_momhsiq": lambda: _design(hs, iq),
        "kidscore_interaction": lambda: _interacting(hs, iq),
        "kidscore_interaction_c": lambda: _interacting(hs - hs.mean(), iq - iq.mean()),
        "kidscore_interaction_c2": lambda: _interacting(hs - 0.5, iq - 100.0),
        "kidscore_interaction_z": lambda: _interacting(_standardised(hs, 2.0), _standardised(iq, 2.0)),
        "kidscore_mom_work": lambda: _design(*(work == level for level in (2, 3, 4))),
    }
    return {"x": designs[kind](), "y": _column(data, "kid_score")}


def _mesquite(data: Columns, kind: str) -> dict[str, np.ndarray]:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    if kind == "mesquite":
        return {"x": _design(*(_column(data, name) for name in names)), "y": _column(data, "weight")}
    first, second, canopy, total, density = (np.log(_column(data, name)) for name in names[:5])
    volume, area, shape, group = first + second + canopy, first + second, first - second, _column(data, "group")
    designs = {
        "logmesquite": (first, second, canopy, total, density, group),
        "logmesquite_logva": (volume, area, group),
        "logmesquite_logvas": (volume, area, shape, total, density, group),
        "logmesquite_logvash": (volume, area, shape, total, group),
        "logmesquite_logvolume": (volume,),
    }
    return {"x": _design(*designs[kind]), "y": np.log(_column(data, "weight"))}


def _nes(data: Columns) -> dict[str, np.ndarray]:
    age = np.asarray(data["age_discrete"])
    before, after = (
        [_column(data, name) for name in names] for names in (("real_ideo", "race_adj"), ("educ1", "gender", "income"))
    )
    return {"x": _design(*before, *(age == level for level in (2, 3, 4)), *after), "y": _column(data, "partyid7")}


def _blr(data: Columns) -> dict[str, np.ndarray]:
    return {"x": np.asarray(data["X"], float), "y": _column(data, "y")}


def _diamonds(data: Columns) -> dict[str, np.ndarray]:
    x = np.asarray(data["X"], float)[:, 1:]
    return {"x": x - x.mean(axis=0), "y": _column(data, "Y")}


def _autoregression(data: Columns) -> dict[str, np.ndarray]:
    y, order = _column(data, "y"), int(data["K"])
    lags = np.column_stack([y[order - lag : -lag] for lag in range(1, order + 1)])
    return {"lags": lags, "y": y[order:]}


def _schools(data: Columns) -> dict[str, np.ndarray]:
    return {"error": _column(data, "sigma"), "y": _column(data, "y")}


def _sorted_by(words: str, name: str | None = None) -> tuple[str, Callable[[Columns], np.ndarray]]:
    return words, partial(_column, name=name or words)


def _posteriors() -> list[Posterior]:
    earnings = [
        Posterior(
            f"earnings-{kind}", flat_regression, partial(_earnings, kind=kind), _sorted_by("height"), _sorted_by("earn")
        )
        for kind in (
            "earn_height",
            "log10earn_height",
            "logearn_height",
            "logearn_height_male",
            "logearn_interaction",
            "logearn_interaction_z",
            "logearn_logheight_male",
        )
    ]
    score_ = _sorted_by("kid_score")
    kidiq = [
        Posterior(f"kidiq-{kind}", cauchy_regression, partial(_kidiq, kind=kind), _sorted_by(covariate), score_)
        for kind, covariate in (
            ("kidscore_momhs", "mom_hs"),
            ("kidscore_momiq", "mom_iq"),
            ("kidscore_momhsiq", "mom_iq"),
            ("kidscore_interaction", "mom_iq"),
        )
    ]
    kidiq += [
        Posterior(
            f"kidiq_with_mom_work-{kind}", flat_regression, partial(_kidiq, kind=kind), _sorted_by(covariate), score_
        )
        for kind, covariate in (
            ("kidscore_interaction_c", "mom_iq"),
            ("kidscore_interaction_c2", "mom_iq"),
            ("kidscore_interaction_z", "mom_iq"),
            ("kidscore_mom_work", "mom_work"),
        )
    ]
    mesquite = [
        Posterior(
            f"mesquite-{kind}",
            flat_regression,
            partial(_mesquite, kind=kind),
            _sorted_by("diam1"),
            _sorted_by("weight"),
        )
        for kind in (
            "logmesquite",
            "logmesquite_logva",
            "logmesquite_logvas",
            "logmesquite_logvash",
            "logmesquite_logvolume",
            "mesquite",
        )
    ]
    nes = [
        Posterior(f"nes{year}-nes", flat_regression, _nes, _sorted_by("age", "age_discrete"), _sorted_by("partyid7"))
        for year in range(1972, 2001, 4)
    ]
    first = ("X[1]", lambda data: np.asarray(data["X"], float)[:, 0])
    blr = [Posterior(f"{name}-blr", normal_regression, _blr, first, _sorted_by("y")) for name in ("sblri", "sblrc")]
    carat = ("carat", lambda data: np.asarray(data["X"], float)[:, 1])
    after_lags = lambda data: _autoregression(data)["y"]  # noqa: E731
    schools = "eight_schools-eight_schools_noncentered"
    return [
        *earnings,
        *kidiq,
        *mesquite,
        *nes,
        *blr,
        Posterior("kilpisjarvi_mod-kilpisjarvi", kilpisjarvi, _year, _sorted_by("year", "x"), _sorted_by("y")),
        Posterior("diamonds-diamonds", diamonds, _diamonds, carat, _sorted_by("log price", "Y")),
        Posterior(
            "arK-arK",
            autoregression,
            _autoregression,
            ("time", lambda data: np.arange(len(after_lags(data)))),
            ("y", after_lags),
        ),
        Posterior("low_dim_gauss_mix-low_dim_gauss_mix", mixture_of_two, _values, None, _sorted_by("y")),
        Posterior(schools, schools_noncentered, _schools, _sorted_by("standard error", "sigma"), _sorted_by("y")),
        Posterior(
            "eight_schools-eight_schools_centered",
            schools_centered,
            _schools,
            _sorted_by("standard error", "sigma"),
            _sorted_by("y"),
            reference=schools,
        ),
    ]


def _year(data: Columns) -> dict[str, np.ndarray]:
    return {"x": _column(data, "x"), "y": _column(data, "y")}


def _values(data: Columns) -> dict[str, np.ndarray]:
    return {"y": _column(data, "y")}


POSTERIORS: Mapping[str, Posterior] = {posterior.name: posterior for posterior in _posteriors()}
