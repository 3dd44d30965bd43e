"""`fedbayes new`, the project that it writes, and `fedbayes client-posterior`."""

import csv
import os
import re
import stat
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")
pytest.importorskip("pandas")

import fedbayes as fb
from fedbayes.cli.main import app
from fedbayes.errors import ClientDataError
from fedbayes.flower.settings import Settings
from fedbayes.flower.sites import read_config
from fedbayes.models import heart_disease
from fedbayes.network.conclusion import client_posterior
from fedbayes.network.fit import fit_over
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study

SITES = {"budapest": "hungarian", "cleveland": "cleveland", "long-beach": "va"}


def run(*words):
    """A command; all that it says as one line."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "1000", "TERM": "dumb"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def forget_app():
    """Projects have a package of one name: a test must not find another's, whoever has imported it."""

    def forget():
        for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
            del sys.modules[name]

    before = list(sys.path)
    forget()
    yield
    sys.path[:] = before
    forget()


@pytest.fixture
def project(tmp_path, forget_app):
    folder = tmp_path / "heart-study"
    code, told = run("new", folder)
    assert code == 0, told
    return folder


def test_a_new_project_is_complete(project):
    names = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert names >= {
        ".gitignore", "README.md", "pyproject.toml", "flower.env", "certificates.sh", "server.sh", "node.sh",
        "app/__init__.py", "app/study.py", "app/client_app.py", "app/server_app.py", "services/nginx.conf",
        "services/fedbayes-node.service", "services/fedbayes-server.service", *(f"data/{site}.csv" for site in SITES),
    }  # fmt: skip
    assert all(os.access(path, os.X_OK) for path in project.glob("*.sh"))
    assert stat.S_IMODE((project / "data").stat().st_mode) == 0o700


def test_the_data_are_those_of_the_hospitals_to_the_last_digit(project):
    clients = heart_disease.coarse_clients()
    for site, hospital in {**SITES, "zurich": "switzerland"}.items():
        with (project / "data" / f"{site}.csv").open() as file:
            rows = [list(map(float, row)) for row in list(csv.reader(file))[1:]]
        np.testing.assert_array_equal([row[:-1] for row in rows], clients[hospital]["x"])
        np.testing.assert_array_equal([row[-1] for row in rows], clients[hospital]["y"])


def test_the_settings_of_the_project_are_all_settings_at_their_defaults(project):
    told = tomllib.loads((project / "pyproject.toml").read_text())
    settings = told["tool"]["flwr"]["app"]["config"]
    assert list(settings) == [field.name.replace("_", "-") for field in fields(Settings)]
    own = {"num-clients": 3, "min-clients": 2, "output": "result"}
    expected = {field.name.replace("_", "-"): field.default for field in fields(Settings)} | own
    assert settings == expected
    assert {name: type(value) for name, value in settings.items()} == {n: type(v) for n, v in expected.items()}
    assert Settings.of(settings).min_clients == 2
    assert told["project"]["name"] == "heart-study"
    assert told["project"]["dependencies"] == []


def test_flower_takes_the_project_and_sends_its_code_alone(project, tmp_path):
    flwr = Path(sys.executable).with_name("flwr")
    environment = {**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    (project / "app" / "patients.csv").write_text("secret")
    (project / "notes.json").write_text("{}")
    built = subprocess.run(
        [flwr, "build", "--app", project], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stdout + built.stderr
    import zipfile

    (bundle,) = tmp_path.glob("*.fab")
    names = {name for name in zipfile.ZipFile(bundle).namelist() if not name.startswith(".info")}
    assert names == {
        "pyproject.toml",
        *(f"app/{name}.py" for name in ("__init__", "study", "client_app", "server_app")),
    }


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    code, told = run("new", tmp_path)
    assert code == 1
    assert f"'{tmp_path}' is not empty. Name a folder that is empty or not there yet: nothing is overwritten." in told
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    code, told = run("new", tmp_path / "mine")
    assert code == 1
    assert "is a file" in told


@pytest.mark.parametrize(
    ("folder", "name"), [("Heart study", "heart-study"), ("2026", "study-2026"), ("x" * 40, "x" * 32), ("é", "study")]
)
def test_the_project_is_named_after_its_folder(folder, name, tmp_path):
    (tmp_path / folder).mkdir()  # empty
    assert run("new", tmp_path / folder)[0] == 0
    told = tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())
    assert told["project"]["name"] == name


@pytest.mark.parametrize("words", [("new", "folder"), ("client-posterior", "--config", 'site-id="north"')])
def test_without_flower_the_commands_say_what_to_install(words, tmp_path):
    """In a process of its own: here Flower is imported already."""
    program = (
        "import sys, importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'flwr' else find(name, *rest)\n"
        "from fedbayes.cli.main import app; app()"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fedbayes.flower needs Flower: pip install 'fedbayes[flower]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [["server", "127.0.0.1", "18000"], ["server", "study.example.org"]])
def test_certificates_are_good_for_their_host(kind, project):
    script = [project / "certificates.sh"]
    environment = {name: value for name, value in os.environ.items() if name != "FLWR_HOME"}
    done = subprocess.run([*script, *kind], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    folder = project / "certificates"
    option = "-verify_ip" if kind[1][0].isdigit() else "-verify_hostname"
    words = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver"]
    for host, fits in ((kind[1], True), ("127.0.0.2" if option == "-verify_ip" else "other.example.org", False)):
        checked = subprocess.run(
            [*words, option, host, "-CAfile", folder / "ca.crt", folder / "server.pem"], capture_output=True, text=True
        )
        assert (checked.returncode == 0) == fits, checked.stderr
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")} == {0o600}
    connection = tomllib.loads((project / ".flwr" / "config.toml").read_text())["superlink"]["server"]
    assert connection["address"] == f"127.0.0.1:{'18000' if len(kind) > 2 else '8000'}"
    assert Path(connection["root-certificates"]).is_file()
    again = subprocess.run([*script, *kind], env=environment, capture_output=True, text=True)
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_a_site_makes_its_key_once(project):
    script = [project / "certificates.sh", "node", "cleveland"]
    assert subprocess.run(script, capture_output=True).returncode == 0
    key = project / "certificates" / "cleveland"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.with_suffix(".pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert subprocess.run(script, capture_output=True).returncode == 1


@pytest.mark.parametrize("words", [["certificates.sh"], ["certificates.sh", "node"], ["node.sh", "cleveland"]])
def test_scripts_say_how_they_are_called(words, project):
    done = subprocess.run([project / words[0], *words[1:]], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"./{words[0]}" in done.stderr


@pytest.mark.parametrize("text", ["", "north", "site-id=north", 'site-id="north" and more'])
def test_a_configuration_that_can_not_be_read(text):
    with pytest.raises(
        ClientDataError, match=r"can't be read\. Write what the node was started with: --config 'site-id"
    ):
        read_config(text)


def config_of(site, project):
    values = {"site-id": site, "data-path": project / "data" / f"{site}.csv", "state-dir": project / "sites" / site}
    return {name: str(value) for name, value in values.items()}


def as_text(config):
    return " ".join(f'{name}="{value}"' for name, value in config.items())


def load(project):
    sys.path.insert(0, str(project))
    import app.study

    return app.study


LOCAL_STUDY = """
import numpyro
import numpyro.distributions as dist

import fedbayes as fb
from fedbayes.flower.data import columns


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mu, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=own + 0.5 * x), obs=y)


method = fb.EP(solver="laplace", num_replicates=2)
load_data = columns(x="age", y="disease")
"""


@pytest.mark.slow
@pytest.mark.statistical(key="0, and the sites' own secrets", numbers=2, errors=4.0)
def test_a_site_s_own_latents_are_in_its_posterior(project, tmp_path, monkeypatch):
    """They are those that the site itself computes, and agree with a fit of all data in one process.

    A study without locals is the page's (`test_flower_page.py`), whose file it names.
    """
    (project / "app" / "study.py").write_text(LOCAL_STUDY)
    study = load(project)
    whole = Study(study.model, study.method)
    sites = [Site(whole, study.load_data, config_of(site, project)) for site in SITES]
    fit_over(Rehearsal(*sites), whole, key=jax.random.key(0), num_clients=3, num_draws=400, progress=False)
    monkeypatch.chdir(tmp_path)
    config = as_text(config_of("budapest", project))
    code, told = run("client-posterior", "--project", project, "--config", config)
    assert code == 0, told
    assert "The posterior of site budapest, given all sites' data, is in budapest.nc" in told
    assert "own: mean" in told
    assert stat.S_IMODE((tmp_path / "budapest.nc").stat().st_mode) == 0o600
    from fedbayes.results.arviz import from_netcdf

    written = from_netcdf(tmp_path / "budapest.nc")["posterior"]
    clients = {site: study.load_data(config_of(site, project)) for site in SITES}
    alone = fb.fit_federated(
        study.model, clients, method=study.method, key=jax.random.key(0), num_draws=400, progress=False
    ).client_posterior("budapest")["posterior"]
    for name in ("mu", "own"):
        ours, theirs = written[name].to_numpy(), alone[name].to_numpy()
        # both have 800 draws, nearly independent: four standard errors of the difference of two means
        assert abs(ours.mean() - theirs.mean()) < 4 * theirs.std() * np.sqrt(2 / theirs.size)
    (project / "data" / "budapest.csv").unlink()
    code, told = run("client-posterior", "--project", project, "--config", config)
    assert code == 1
    assert "budapest.csv', which is not there" in told


REGRESSION_STUDY = """
from pathlib import Path

import numpyro.distributions as dist

import fedbayes as fb

KNOWN = {"1|site_sigma": dist.LogNormal(0.0, 1e-3), "sigma": dist.LogNormal(0.0, 1e-3)}
reg = fb.regression("disease ~ age + (1 | site)", agreed=Path(__file__).with_name("agreed.json"), priors=KNOWN)
model, method = reg.model, fb.Laplace()


def load_data(config):
    import pandas as pd

    return reg.arguments(config["site-id"], pd.read_csv(config["data-path"]), outcome=True)
"""


@pytest.mark.statistical(key="0, and the sites' own secrets", numbers=4, errors=6.0)
def test_a_site_predicts_new_rows_with_its_own_effects(project, tmp_path):
    """As `fb.predictions` does with its draws, and, up to these, as whoever has all rows.

    With sds that are known the posterior is normal, in one process and over a network.
    """
    import pandas as pd

    known = {"1|site_sigma": dist.LogNormal(0.0, 1e-3), "sigma": dist.LogNormal(0.0, 1e-3)}
    tables = {site: pd.read_csv(project / "data" / f"{site}.csv") for site in SITES}
    reg = fb.regression("disease ~ age + (1 | site)", clients=tables, priors=known)
    reg.agreed.save(project / "app" / "agreed.json")
    (project / "app" / "study.py").write_text(REGRESSION_STUDY)
    study = load(project)
    both = Study(study.model, study.method)
    sites = [Site(both, study.load_data, config_of(site, project)) for site in SITES]
    options = {"key": jax.random.key(0), "num_draws": 1000, "correct": False, "progress": False}
    there = fit_over(Rehearsal(*sites), both, num_clients=3, **options)
    with pytest.raises(ClientDataError, match=r"of 'budapest', 'cleveland', 'long-beach' are not known: They are comp"):
        there.random_effects()

    rows, written = pd.DataFrame({"age": [40.0, 60.0]}), tmp_path / "new" / "found.csv"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    written.parent.mkdir()
    written.write_text("an older file, which everybody may read")
    written.chmod(0o644)
    words = ["predict", tmp_path / "rows.csv", "--project", project, "--output", written]
    code, told = run(*words, "--config", as_text(config_of("budapest", project)), "--level", "0.8")
    assert code == 0, told
    assert "Mean of `disease` at 'budapest', 80% intervals" in told
    assert "A new `disease` at 'budapest', 80% intervals" in told
    assert re.search(r"row mean sd median lower upper 1 \S+ \S+ \S+ \S+ \S+ 2 ", told)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert list(written.parent.iterdir()) == [written]
    found = pd.read_csv(written)
    draws = SimpleNamespace(
        idata=there.idata, client_names=tuple(SITES), client_posterior=lambda _: client_posterior(sites[0])
    )
    expected = fb.predictions(reg, draws, rows, where="budapest", level=0.8).to_pandas()
    for name in ("mean", "sd", "median", "lower", "upper"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert found["row"].tolist() == [1, 2]

    alone = reg.fit(method=study.method, **options)
    mean = fb.predictions(reg, alone, rows, where="budapest").summary
    sd = mean["sd"].to_numpy()
    assert (np.abs(found["mean"] - mean["mean"].to_numpy()) < 6.0 * sd * np.sqrt(2 / 1000)).all()
    assert (np.abs(found["new_sd"] / np.hypot(sd, 1.0) - 1.0) < 6.0 / np.sqrt(2 * 1000)).all()

    config = as_text(config_of("budapest", project))
    code, told = run(*words, "--config", config, "--scale", "link", "--seed", "1")
    assert code == 0, told
    assert "Linear predictor of `disease` at 'budapest'" in told
    assert "There are no new outcomes on the scale of the link." in told
    assert "new_mean" not in written.read_text()

    before = written.read_text()
    pd.DataFrame({"years": [40.0]}).to_csv(tmp_path / "rows.csv", index=False)
    code, told = run(*words, "--config", config)
    assert code == 1
    assert "age" in told
    assert written.read_text() == before


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("rows.csv", "the rows to predict"),
        ("own.csv", "`--own`"),
        ("data/cleveland.csv", "the site's data"),
        ("link.csv", "the rows to predict"),
    ],
)
def test_predictions_replace_no_file_that_is_read(output, what, project):
    for name in ("rows.csv", "own.csv"):
        (project / name).write_text("age\n50\n")
    (project / "link.csv").symlink_to(project / "rows.csv")
    before = (project / output).read_bytes()
    words = ["predict", project / "rows.csv", "--own", project / "own.csv", "--output", project / output]
    code, told = run(*words, "--project", project, "--config", as_text(config_of("cleveland", project)))
    assert code == 1
    assert f"is the file of {what}. Name another file." in told
    assert (project / output).read_bytes() == before


def test_a_client_posterior_does_not_replace_the_sites_data(project):
    data = project / "data" / "cleveland.csv"
    before, config = data.read_bytes(), as_text(config_of("cleveland", project))
    code, told = run("client-posterior", "--output", data, "--project", project, "--config", config)
    assert code == 1
    assert "is the file of the site's data. Name another file." in told
    assert data.read_bytes() == before


def test_a_study_with_a_model_of_its_own_has_no_regression_to_predict_by(project, tmp_path):
    (project / "sites" / "cleveland").mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("age\n50\n")
    config = as_text(config_of("cleveland", project))
    code, told = run("predict", tmp_path / "rows.csv", "--project", project, "--config", config)
    assert code == 1
    assert "The study's model is no regression by a formula, `model = reg.model`. `fedbayes client-posterior`" in told


@pytest.mark.parametrize("site", [*SITES, "zurich"])
def test_a_site_can_ask_its_disclosure_rules_before_it_takes_part(project, site):
    config = config_of(site, project)
    code, told = run("disclosure", "--project", project, "--config", as_text(config))
    if site != "zurich":
        assert code == 0
        assert told.startswith("Disclosure: these rules find nothing in this client. looked at: outcome y; columns")
        assert told.endswith("policy.toml, which is not there: the limits are the defaults")
        return
    assert code == 1
    assert "zurich 46 small cell x[sex] 3 rows" in told
    assert "zurich 46 rare outcome y 1 row" in told
    (project / "sites" / "zurich" / "policy.toml").write_text("[disclosure]\nsmallest_cell = 1\nseparation = false\n")
    assert run("disclosure", "--project", project, "--config", as_text(config))[0] == 0


def test_a_site_shows_its_key_for_secure_sums(project):
    config = config_of("cleveland", project)
    told = [run("keys", "--config", as_text(config)) for _ in range(2)]
    assert told[0] == told[1]
    code, text = told[0]
    assert code == 0
    assert re.fullmatch(r"site key for secure sums cleveland (SHA256:\S{43}) this site", text)
    new, other = f"SHA256:{'a' * 43}", f"SHA256:{'b' * 43}"
    assert f"zurich {new} seen first" in run("keys", "--trust", f"zurich={new}", "--config", as_text(config))[1]
    assert f"zurich {new} seen first" in run("keys", "--config", as_text(config))[1]
    assert "zurich" not in run("keys", "--forget", "zurich", "--config", as_text(config))[1]
    code, text = run("keys", "--forget", "basel", "--config", as_text(config))
    assert (code, "`--forget` names 'basel', and the site knows []" in text) == (1, True)
    code, text = run("keys", "--trust", "zurich=SHA256:abc", "--config", as_text(config))
    assert code == 1
    assert "`--trust` is 'zurich=SHA256:abc'. Write a site's name and the fingerprint" in text
    (project / "sites" / "cleveland" / "policy.toml").write_text(f'[sums.partners]\nzurich = "{other}"\n')
    assert f"zurich {other} in the policy" in run("keys", "--config", as_text(config))[1]
    code, text = run("keys", "--trust", f"zurich={new}", "--config", as_text(config))
    assert code == 1
    assert "change them there, under [sums.partners]" in text


def test_a_site_that_has_kept_nothing(project):
    code, told = run("client-posterior", "--project", project, "--config", as_text(config_of("cleveland", project)))
    assert code == 1
    assert "Site 'cleveland' has kept nothing on this machine" in told
    assert not (project / "sites").exists()


def test_a_site_without_a_run_that_has_ended(project):
    (project / "sites" / "cleveland").mkdir(parents=True)
    code, told = run("client-posterior", "--project", project, "--config", as_text(config_of("cleveland", project)))
    assert code == 1
    assert "Site 'cleveland' has been in no run that has ended" in told


def test_a_folder_that_is_no_project(tmp_path):
    config = as_text({"site-id": "north", "state-dir": tmp_path})
    code, told = run("client-posterior", "--project", tmp_path, "--config", config)
    assert code == 1
    assert "is no project for a fit over a network" in told
    assert "`fedbayes new` makes one" in told


def test_a_project_whose_code_fails(project):
    (project / "app" / "client_app.py").write_text("1 / 0\n")
    (project / "sites" / "cleveland").mkdir(parents=True)
    code, told = run("client-posterior", "--project", project, "--config", as_text(config_of("cleveland", project)))
    assert code == 1
    assert "can't be loaded: ZeroDivisionError: division by zero" in told


def test_a_configuration_without_a_site(project):
    code, told = run("client-posterior", "--project", project, "--config", 'state-dir="/nowhere"')
    assert code == 1
    assert "has kept nothing" in told or "does not say whose data it holds" in told
