"""A fit over real processes: TLS, node keys, each hospital's file at its own node."""

import arviz as az
import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

import fedbayes as fb
from fedbayes.models import heart_disease

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning"),
]
HOSPITALS = ("cleveland", "hungarian", "switzerland")
EP = 'fb.EP(solver="laplace", num_replicates=1)'
SETTINGS = {"seed": 2, "num-draws": 100, "round-timeout": 300.0, "join-timeout": 600.0, "min-clients": 3}
LONG = 1200  # seconds for a run, on a slow machine


def hospitals():
    return {name: data for name, data in heart_disease.clients().items() if name in HOSPITALS}


def here(method, **options):
    """The same fit in one process."""
    given = {"key": jax.random.key(SETTINGS["seed"]), "num_draws": SETTINGS["num-draws"], "progress": False}
    return fb.fit_federated(heart_disease.model, hospitals(), method=method, **(given | options))


def files(folder):
    """Each hospital's file, for the configuration of its node."""
    folder.mkdir()
    for name, data in hospitals().items():
        np.savez(folder / f"{name}.npz", **data)
    return {name: {"data-path": str(folder / f"{name}.npz")} for name in HOSPITALS}


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """Three nodes that stay for the tests that disturb nothing; these come last, as idle nodes cost time, too."""
    from federation import Federation

    folder = tmp_path_factory.mktemp("secure")
    with Federation(folder / "federation", files(folder / "data"), tls=True, keys=True) as federation:
        yield federation.start()
        print(federation.logs())


@pytest.fixture
def app(tmp_path):
    """The app's folder with another method in its study."""
    from pathlib import Path

    from federation import copy_app

    def make(method):
        folder = copy_app(Path(__file__).parent / "hospitals", tmp_path / "hospitals")
        study = folder / "hospitals" / "study.py"
        text = study.read_text()
        assert text.count(EP) == 1
        study.write_text(text.replace(EP, method))
        return folder

    return make


def draws(idata):
    return {name: np.asarray(idata.posterior[name]) for name in idata.posterior.data_vars}


def assert_same_file(folder, expected, **tolerance):
    """The posterior file of the run has the draws of the fit in one process."""
    found = draws(az.from_netcdf(str(folder / "posterior.nc")))
    assert found.keys() == draws(expected.idata).keys()
    for name, values in draws(expected.idata).items():
        np.testing.assert_allclose(found[name], values, err_msg=name, **tolerance)


@pytest.mark.parametrize("secured", [False, True], ids=["without keys", "with keys"])
def test_a_node_killed_in_mid_run_and_restarted(secured, federate, app, tmp_path):
    """Without keys it comes back under another address; its data count once all the same."""
    federation = federate(sites=files(tmp_path / "data"), tls=secured, keys=secured).start()
    run = federation.run(app(EP), SETTINGS | {"round-timeout": 40.0, "output": str(tmp_path / "fit")})
    run.wait_for("Phase EP, round 1", LONG)
    federation.kill(1)
    federation.restart(1)
    assert run.wait(LONG) == "finished:completed", run.log()
    assert ("Site hungarian is back as another node" in run.log()) != secured
    assert_same_file(tmp_path / "fit", here(eval(EP)), rtol=1e-10, atol=1e-10)


def test_a_server_killed_in_mid_run_and_started_again(federate, app, tmp_path):
    """The run goes on from its checkpoint."""
    federation = federate(sites=files(tmp_path / "data"), tls=True, keys=True).start()
    folder, settings = app(EP), SETTINGS | {"output": str(tmp_path / "fit")}
    run = federation.run(folder, settings)
    run.wait_for("Phase EP, round 2", LONG)
    federation.kill_server()
    run.stop()
    federation.start_server()
    again = federation.run(folder, settings)
    assert again.wait(LONG) == "finished:completed", again.log()
    assert "Phase EP, round 1:" not in again.log()
    assert_same_file(tmp_path / "fit", here(eval(EP)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "method",
    [EP, 'fb.OneShot(combine="laplace", num_replicates=1)', "fb.FedAvg(max_rounds=4)"],
    ids=["EP", "a merge", "FedAvg"],
)
def test_real_processes_give_the_answer_of_one_process(method, secure, app, tmp_path):
    run = secure.run(app(method), SETTINGS | {"output": str(tmp_path / "fit")})
    assert run.wait(LONG) == "finished:completed", run.log()
    assert_same_file(tmp_path / "fit", here(eval(method)), rtol=1e-10, atol=1e-10)
    assert "round 1: 3 of 3 clients" in run.log()


@pytest.mark.statistical(key="the sites' own secrets", numbers=112, errors=5.0)  # chains are up to 1.2 times as wide
def test_chains_run_over_real_processes(secure, app, tmp_path):
    """FA-LD: clients' noise is their own, so that the chains are other ones, about the same mode."""
    method = "fb.FALD(num_chains=2, local_steps=5, num_warmup=0, thinning=1)"
    run = secure.run(app(method), SETTINGS | {"num-rounds": 4, "num-draws": 4, "output": str(tmp_path / "fit")})
    assert run.wait(LONG) == "finished:completed", run.log()
    found = draws(az.from_netcdf(str(tmp_path / "fit" / "posterior.nc")))
    mode = here("laplace").idata.posterior
    for name, values in found.items():
        assert values.shape[:2] == (2, 4)
        centre, sd = np.asarray(mode[name].mean(("chain", "draw"))), np.asarray(mode[name].std(("chain", "draw")))
        assert np.all(np.abs(values - centre) < 6.0 * sd)
        assert np.ptp(values) > 0.0
