"""Fits over real processes with TLS and node keys, each hospital's file at its own node.

The tests use one federation in turn. It is as good after each as before: what a test kills, it starts again.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from echoes import assert_one_worker_answers_each_site
from fits import EP, LONG, app_with, assert_same_file, careful, draws, draws_in, here, hospitals, nodes, settings
from permissive import PERMISSIVE
from recording import Recording, assert_nothing_of_a_site, expansions, forget, numbers_in, record, seen_in

import fedbayes as fb
from fedbayes.models import heart_disease
from fedbayes.network.client.journal import Journal
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.owner.rules import DisclosureRules

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning"),
]
_NUMBERS = ("round", "after")  # requests whose answers hold numbers
THREE = 3  # sites, whose terms are hidden where sums are enough
LAPLACE = "'laplace'"
CAREFUL = {LAPLACE: "careful-path"}  # of these methods' apps: the columns that owners send by default


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """The file of all owners, which a test may write anew."""
    return tmp_path_factory.mktemp("owners") / "policy.toml"


@pytest.fixture
def secure(shared, policy, tmp_path_factory):
    def options():
        configs = nodes(tmp_path_factory.mktemp("secure") / "data", THREE)
        return {
            "sites": {name: {**config, "policy": str(policy)} for name, config in configs.items()},
            "tls": True,
            "keys": True,
        }

    policy.write_text(Path(PERMISSIVE["policy"]).read_text())
    return shared(options)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A method's app and where its server writes down what it is sent: empty for each test, which has both in turn.

    Tests of one method have one app, and so one worker at each site, which has compiled for the first of them.
    """
    made = {}

    def of(method):
        if method not in made:
            target = tmp_path_factory.mktemp("recorded") / "app"
            app = app_with(method, target, CAREFUL.get(method, "data-path"))
            made[method] = app, record(app)
        forget(made[method][1])
        return made[method]

    return of


@pytest.fixture(scope="module")
def summaries():
    """What is looked for in recordings: the sites' own Gaussian summaries."""
    return expansions(heart_disease.model, hospitals(THREE))


def forms(secure) -> set[str]:
    """How the sites have answered the rounds of the last run, by their own logs."""
    found = set()
    for name in secure.names:
        entries = list(Journal(secure.folder / "state" / name).entries())
        found |= {entry.result for entry in entries if entry.kind in _NUMBERS and entry.run == entries[-1].run}
    return found


@pytest.mark.parametrize(
    "method",
    [pytest.param(EP, marks=pytest.mark.versions), "fb.FedAvg(max_rounds=5)"],
    ids=["EP", "FedAvg"],
)
def test_whole_fits_give_the_answer_of_one_process(method, secure, recorded, tmp_path, summaries):
    """Of other methods only the messages differ: those are asked in one process (`test_laws.py`, `test_secure.py`)."""
    app, folder = recorded(method)
    run = secure.run(app, settings(THREE, tmp_path / "fit"))
    assert run.wait(LONG) == "finished:completed", run.log()
    assert_same_file(tmp_path / "fit", here(method, THREE), rtol=1e-10, atol=1e-10)
    assert "round 1: 3 of 3 clients" in run.log()
    assert forms(secure) == {"hidden"}
    assert_nothing_of_a_site(Recording(folder), hospitals(THREE), summaries)


@pytest.fixture(scope="module")
def careful_summaries():
    return expansions(heart_disease.model, careful(THREE))


def assert_same_as_here(folder):
    assert_same_file(folder, here(LAPLACE, THREE, careful(THREE)), rtol=1e-10, atol=1e-10)


def test_owners_who_have_approved_a_study_and_written_nothing(secure, policy, recorded, tmp_path, careful_summaries):
    """The Laplace approximation by an empty policy: disclosure rules, limits and secure sums as they are by default."""
    policy.write_text("")
    assert read_policy(secure.configs[0]) == Policy(policy, DisclosureRules())
    app, folder = recorded(LAPLACE)
    secure.approve(app)
    run = secure.run(app, settings(THREE, tmp_path / "fit"))
    assert run.wait(LONG) == "finished:completed", run.log()
    assert_same_as_here(tmp_path / "fit")
    assert forms(secure) == {"hidden"}
    assert_nothing_of_a_site(Recording(folder), careful(THREE), careful_summaries)


def test_without_secure_sums_a_recording_holds_each_sites_summary(secure, recorded, tmp_path, careful_summaries):
    """The attack works where there is something: the first answers are the sites' Gaussians, to the last digits."""
    app, folder = recorded(LAPLACE)
    run = secure.run(app, settings(THREE, tmp_path / "fit", **{"secure-sums": False}))
    assert run.wait(LONG) == "finished:completed", run.log()
    assert_same_as_here(tmp_path / "fit")
    found = Recording(folder)
    for name, summary in careful_summaries.items():
        assert seen_in(numbers_in(found.of(name)[0]), summary) == 1.0
    with pytest.raises(AssertionError):
        assert_nothing_of_a_site(found, careful(THREE), careful_summaries)


@pytest.mark.statistical(key="the sites' own secrets", numbers=112, errors=5.0)  # chains are up to 1.2 times as wide
def test_chains_run_over_real_processes(secure, recorded, tmp_path, summaries):
    """FA-LD: clients' noise is their own, so that the chains are other ones, about the same mode."""
    method = "fb.FALD(num_chains=2, local_steps=5, num_warmup=0, thinning=1)"
    few = {"num-rounds": 4, "num-draws": 4}
    app, folder = recorded(method)
    run = secure.run(app, settings(THREE, tmp_path / "fit", **few))
    assert run.wait(LONG) == "finished:completed", run.log()
    assert forms(secure) == {"hidden"}
    assert_nothing_of_a_site(Recording(folder), hospitals(THREE), summaries)
    mode = draws(here(LAPLACE, THREE).idata)
    for name, values in draws_in(tmp_path / "fit").items():
        assert values.shape[:2] == (2, 4)
        centre, sd = mode[name].mean((0, 1)), mode[name].std((0, 1))
        assert np.all(np.abs(values - centre) < 6.0 * sd)
        assert np.ptp(values) > 0.0


def test_every_site_answers_every_round_by_one_worker(secure, echo, rounds, output):
    assert_one_worker_answers_each_site(secure, echo, rounds, output | {"node-keys": "named"})
    for answers in rounds():
        assert len({answer["key"] for answer in answers} - {None}) == THREE


def test_a_node_killed_in_mid_run_and_restarted(secure, recorded, tmp_path):
    """With its key it comes back under the same address. See the faults for one without."""
    run = secure.run(recorded(EP)[0], settings(THREE, tmp_path / "fit", **{"round-timeout": 40.0}))
    run.wait_for("Phase EP, round 1", LONG)
    worker = secure.workers()["site-1"]
    secure.kill(1)
    assert "Phase EP, round 3" not in run.log()  # it goes on for longer
    secure.restart(1)
    assert run.wait(LONG) == "finished:completed", run.log()
    assert "is back as another node" not in run.log()
    assert secure.workers()["site-1"] == worker  # it has outlived the node
    assert_same_file(tmp_path / "fit", here(EP, THREE), rtol=1e-10, atol=1e-10)


def test_a_server_killed_in_mid_run_and_started_again(secure, recorded, tmp_path):
    """The run goes on from its checkpoint."""
    folder, told = recorded(EP)[0], settings(THREE, tmp_path / "fit")
    run = secure.run(folder, told)
    run.wait_for("Phase EP, round 2", LONG)
    secure.kill_server()
    run.leave()
    secure.start_server()
    again = secure.run(folder, told)
    assert again.wait(LONG) == "finished:completed", again.log()
    assert "Phase EP, round 1:" not in again.log()
    assert_same_file(tmp_path / "fit", here(EP, THREE), rtol=1e-10, atol=1e-10)


AGREEMENT = """import numpy as np
from fedbayes.network.agreeing.study import FormulaStudy

agreement = FormulaStudy("sick ~ scale(age) + sex + (1 | site)", "bernoulli", {"sex": ["f", "m"]})


def load_data(config):
    with np.load(config["data-path"]) as file:
        return {"sick": file["y"], "age": file["x"][:, 0], "sex": np.where(file["x"][:, 1] > 0, "m", "f")}
"""
REGRESSION = """
from pathlib import Path
import fedbayes as fb

reg = fb.regression(agreement.formula, family="bernoulli", levels=agreement.levels,
                    agreed=Path(__file__).parent / "agreed.json")
model, method = reg.model, fb.Laplace()
table = load_data


def load_data(config):
    return reg.arguments(config["site-id"], table(config), outcome=True)
"""


def test_sites_agree_on_a_regression_and_fit_it(secure, tmp_path):
    """Two runs: one tells sums, under masks, and the other is the fit that one process makes of all tables."""
    app = app_with(EP, tmp_path / "app")
    study = app / "hospitals" / "study.py"
    study.write_text(AGREEMENT)
    run = secure.run(app, settings(THREE, tmp_path / "agreed"))
    assert run.wait(LONG) == "finished:completed", run.log()
    agreed = fb.Agreed.load(tmp_path / "agreed" / "agreed.json")
    sums = [entry for entry in Journal(secure.folder / "state" / "site-0").entries() if entry.kind == "sum"]
    assert {entry.result for entry in sums} == {"hidden"}

    clients = {
        name: {"sick": data["y"], "age": data["x"][:, 0], "sex": np.where(data["x"][:, 1] > 0, "m", "f")}
        for name, data in hospitals(THREE).items()
    }
    formula, options = "sick ~ scale(age) + sex + (1 | site)", {"family": "bernoulli", "levels": {"sex": ["f", "m"]}}
    reg = fb.regression(formula, clients=clients, **options)
    assert fb.regression(formula, agreed=agreed, **options).source == reg.source

    (study.parent / "agreed.json").write_text((tmp_path / "agreed" / "agreed.json").read_text())
    study.write_text(AGREEMENT + REGRESSION)
    run = secure.run(app, settings(THREE, tmp_path / "fit", correct=False))
    assert run.wait(LONG) == "finished:completed", run.log()
    fit = reg.fit(key=jax.random.key(2), method=fb.Laplace(), num_draws=100, correct=False, progress=False)
    ours, theirs = draws_in(tmp_path / "fit"), draws(fit.idata)
    for name in ("Intercept", "sex", "1|site_sigma"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-8)
