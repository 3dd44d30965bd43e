"""Devices of two processes are one mesh: both find what one process finds, and what differs between them is refused."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fedbayes.rounds.executors import Batched
from fedbayes.runtime.precision import computing
from fedbayes.runtime.processes import copied

WORKER = Path(__file__).with_name("one_of_several.py")
LIMIT = 780  # seconds, less than pytest allows a test
ROUNDING = 1e-9  # each client is computed beside other ones

spec = importlib.util.spec_from_file_location("one_of_several", WORKER)
work = importlib.util.module_from_spec(spec)
spec.loader.exec_module(work)

pytestmark = pytest.mark.filterwarnings(
    "ignore::fedbayes.errors.NotConvergedWarning", "ignore::fedbayes.errors.UnreliableWarning"
)


def test_arrays_as_bytes_come_back_as_they_were():
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("clients",))
    integers = (np.int64, np.int32, np.uint32, np.int8, np.uint8)
    rng = np.random.default_rng(0)
    with computing():
        tree = {of.__name__: rng.integers(np.iinfo(of).min, np.iinfo(of).max, (4, 3), of) for of in integers}
        tree |= {"float32": rng.normal(size=(4, 3)).astype(np.float32), "bool": rng.normal(size=(4, 3)) > 0.0}
        tree |= {"none": np.zeros((4, 0)), "scalars": rng.normal(size=4), "matrices": rng.normal(size=(4, 2, 3))}
        tree["special"] = np.array([np.nan, np.inf, -np.inf, -0.0])
        halves = jax.device_put(tree, NamedSharding(mesh, PartitionSpec("clients")))
        back = jax.jit(lambda tree: copied(tree, mesh))(halves)
    for name, array in tree.items():
        assert not halves[name].sharding.is_fully_replicated
        assert back[name].sharding.is_fully_replicated
        assert back[name].dtype == array.dtype
        assert np.asarray(back[name]).tobytes() == array.tobytes()


def test_what_is_no_mesh_is_refused():
    with pytest.raises(TypeError, match=r"`mesh` is 2; write `jax.make_mesh\(\(jax.device_count\(\),\), \('clients',"):
        Batched(2)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes has found."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    logs = [folder / f"{rank}.log" for rank in range(work.NUM_PROCESSES)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("wb") as output:
            command = [sys.executable, WORKER, str(rank), str(port), folder]
            started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and {process.poll() for process in started} in ({None}, {None, 0}):
        time.sleep(0.2)  # until both have ended, or one has failed, which the other would notice minutes later
    codes = [process.poll() for process in started]
    for process in started:
        process.kill()
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(work.NUM_PROCESSES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", work.METHODS)
def test_they_find_what_one_finds(name, found):
    alone = work.found_by(name, None)
    first, second = (each[name] for each in found)
    assert second | first == second
    assert second.keys() == alone.keys()
    for each, value in second.items():
        np.testing.assert_allclose(value, alone[each], rtol=ROUNDING, atol=ROUNDING, err_msg=each)


@pytest.mark.slow
def test_the_first_writes_a_checkpoint_and_all_read_it(found):
    for each in found:
        assert each["devices"] == [4, 2]  # tests/conftest.py asks for two a process
        assert each["files"] == ["shared.npz"]
        assert each["in two parts"]["beta"] == each["many rounds in one program"]["beta"]
    first, second = (each["in two parts"] for each in found)
    assert first["written"] > 0
    assert second["written"] == 0
    assert second["seconds"][1] == first["seconds"][0]  # as the file says
    assert second["seconds"][1] != second["seconds"][0]


@pytest.mark.slow
def test_an_executor_serves_one_fit_of_several_processes(found):
    assert all("This executor has served a fit" in each["the same executor"] for each in found)


@pytest.mark.slow
def test_what_differs_between_them_is_refused_in_all(found):
    for each in found:
        assert "process 0 and the processes [1] differ in `key`. Run the same script" in each["another key"]
        assert "differ in the file of `checkpoint`." in each["another file"]
    assert "has devices of the processes [0] and none of [1]" in found[1]["left out"]
