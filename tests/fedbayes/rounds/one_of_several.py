"""What `test_processes.py` has each of several processes do: the same fits over all devices, and what is refused.

python one_of_several.py RANK PORT FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import fedbayes as fb
from fedbayes.rounds.executors import Batched
from fedbayes.runtime import files

NUM_PROCESSES = 2
KEY = jax.random.PRNGKey  # made where it is used: a key made here would start JAX before the processes know each other
FEW = fb.FedAvg(step_size=0.05, local_steps=2, laplace=False, max_rounds=5)
METHODS: dict[str, dict[str, Any]] = {
    "sites": {"method": fb.EP(num_samples=64, num_replicates=2, solver="importance"), "num_draws": 50},
    "many rounds in one program": {
        "method": fb.FedAvg(step_size=0.02, batch_size=4, local_steps=3, laplace=False, max_rounds=110)
    },
    "few rounds": {"method": FEW},
    "with some of the clients": {"method": FEW, "participation": 0.4},  # the same programs, for fewer at a time
    "chains": {"method": fb.FALD(num_chains=2), "num_draws": 30},
    "teams": {"method": fb.FedEnsemble(num_modes=2, weights="equal", step_size=0.02, local_steps=2, max_rounds=5)},
}


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with fb.local():
        level = numpyro.sample("level", dist.Normal(beta[0], 0.5))
    numpyro.sample("y", dist.Normal(x @ beta + level, 0.5), obs=y)


def globals_only(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def clients() -> dict[str, dict[str, np.ndarray]]:
    """Of several lengths, and nine, which four devices can't share out evenly."""
    rng, found = np.random.default_rng(3), {}
    rows_of = {
        "north": 8,
        "south": 30,
        "east": 8,
        "west": 7,
        "centre": 5,
        "coast": 8,
        "hills": 6,
        "lakes": 7,
        "isles": 8,
    }
    for name, rows in rows_of.items():
        x = rng.normal(size=(rows, 2))
        found[name] = {"x": x, "y": x @ [1.0, -0.5] + 0.5 * rng.normal(size=rows)}
    return found


def fitted(name: str, mesh: Any, seed: int = 5, **options: Any) -> fb.FederatedFit:
    of = model if name in ("sites", "chains") else globals_only
    options = {"progress": False, "key": KEY(seed), "mesh": mesh} | METHODS[name] | options
    return fb.fit_federated(of, clients(), **options)


def found_by(name: str, mesh: Any, **options: Any) -> dict[str, list]:
    """What a fit says, by the names of what it says."""
    fit = fitted(name, mesh, **options)
    found = {
        "beta": fit.idata.posterior["beta"].values.tolist(),
        "codes": fit.rounds["code"].values.tolist(),
        "rounds": [fit.rounds.sizes["round"]],
    }
    if name == "sites" and (mesh is None or jax.process_index() == 1):  # one asks alone
        found["of a client"] = fit.client_posterior("west").posterior["level"].values.tolist()
    return found


def in_two_parts(mesh: Any, path: Path) -> dict[str, Any]:
    """A fit that goes on from the checkpoint of a shorter one; how often this process has written it."""
    written = []

    def replace_file(*arguments: Any) -> None:
        written.append(arguments)
        files.replace_file(*arguments)

    name = "many rounds in one program"
    with patch("fedbayes.rounds.checkpoint.replace_file", replace_file):
        first = fitted(name, mesh, checkpoint=path, num_rounds=105)
        second = fitted(name, mesh, checkpoint=path)
    seconds = [fit.rounds["seconds"].values[:105].tolist() for fit in (first, second)]
    return {"seconds": seconds, "beta": second.idata.posterior["beta"].values.tolist(), "written": len(written)}


def refused(**options: Any) -> str:
    try:
        fitted("many rounds in one program", **options)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def main(rank: int, port: str, folder: Path) -> None:
    jax.distributed.initialize(f"localhost:{port}", NUM_PROCESSES, rank)
    mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    saved = folder / "shared.npz"
    found: dict[str, Any] = {name: found_by(name, mesh) for name in METHODS}
    found["devices"] = [jax.device_count(), jax.local_device_count()]
    found["in two parts"] = in_two_parts(mesh, saved)
    executor = Batched(mesh)
    fitted("few rounds", None, executor=executor)
    found["the same executor"] = refused(mesh=None, executor=executor)
    found["another key"] = refused(mesh=mesh, seed=rank)
    found["another file"] = refused(mesh=mesh, checkpoint=saved if rank == 0 else folder / "own.npz")
    found["files"] = sorted(path.name for path in folder.glob("*.npz"))
    if rank == 1:
        try:
            Batched(jax.sharding.Mesh(np.array([each for each in jax.devices() if each.process_index == 0]), ("c",)))
        except ValueError as error:
            found["left out"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
