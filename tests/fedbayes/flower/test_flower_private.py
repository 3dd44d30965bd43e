"""A private fit over real processes: each site's own noise and account, until a budget is spent."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fits import LONG, app_with, draws_in, hospitals, nodes, settings
from permissive import PERMISSIVE
from recording import Recording, assert_nothing_of_a_site, expansions, record

from fedbayes.models import heart_disease
from fedbayes.network.client.journal import Journal
from fedbayes.network.client.ledger import Ledger

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning"),
]
THREE = 3
METHOD = (
    'fb.FALD(init="zero", preconditioner="none", step_size=1e-4, local_steps=5, clip=2.0, noise_correlation=0.0, '
    "num_chains=2, num_warmup=0, thinning=1)"
)


def test_private_chains_run_until_a_budget_is_spent(shared, tmp_path):
    """The sites hide their noisy positions in sums, and are asked nothing after the rounds."""
    policy = tmp_path / "policy.toml"
    configs = {name: {**config, "policy": str(policy)} for name, config in nodes(tmp_path / "data", THREE).items()}
    allowed = Path(PERMISSIVE["policy"]).read_text() + "[privacy]\ndelta = 1e-5\nepsilon = "
    policy.write_text(f"{allowed}1e9\n")
    federation = shared(lambda: {"sites": configs, "tls": True, "keys": True})
    app, few = app_with(METHOD, tmp_path / "app"), {"num-rounds": 4, "num-draws": 4}
    recorded = record(app)

    run = federation.run(app, settings(THREE, tmp_path / "fit", **few))
    assert run.wait(LONG) == "finished:completed", run.log()
    assert draws_in(tmp_path / "fit")["beta"].shape[:2] == (2, 4)
    clients = hospitals(THREE)
    assert_nothing_of_a_site(Recording(recorded), clients, expansions(heart_disease.model, clients))
    folders = [federation.folder / "state" / name for name in federation.names]
    entries = [entry for folder in folders for entry in Journal(folder).entries()]
    assert {entry.result for entry in entries if entry.kind in ("round", "after")} == {"noisy and hidden"}
    ledgers = [Ledger(folder) for folder in folders]
    assert [(each.read().answers, each.read().steps) for each in ledgers] == [(4, 40)] * THREE

    policy.write_text(f"{allowed}{min(each.read().bound(1e-5) for each in ledgers)!r}\n")
    run = federation.run(app, settings(THREE, tmp_path / "again", **few))
    assert run.wait(LONG) != "finished:completed"
    assert "has spent its owner's privacy budget" in run.log()
    assert [each.read().answers for each in ledgers] == [4] * THREE
