"""Many rounds in one program are the same rounds one by one, end where these end, and can be interrupted."""

from itertools import pairwise
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import fedbayes as fb
from fedbayes.errors import ResultCode
from fedbayes.inference.fedavg.fairness import GIFAIR
from fedbayes.problem.problem import make_problem
from fedbayes.rounds.executors import MOST_ROUNDS, Batched
from fedbayes.rounds.executors.fused import several_rounds
from fedbayes.rounds.programs import Programs
from fedbayes.runtime.precision import computing

pytestmark = pytest.mark.filterwarnings("ignore::fedbayes.errors.NotConvergedWarning")  # most rounds end at a limit

KEY = jax.random.key(5)
ROUNDING = 1e-10  # sums over clients are taken in another order


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def clients() -> dict[str, dict[str, np.ndarray]]:
    """Of two lengths, so that there are two buckets."""
    rng, found = np.random.default_rng(3), {}
    for name, rows in (("north", 8), ("south", 30), ("east", 8)):
        x = rng.normal(size=(rows, 2))
        found[name] = {"x": x, "y": x @ [1.0, -0.5] + rng.normal(size=2) @ x.T + 0.5 * rng.normal(size=rows)}
    return found


class OneByOne(Batched):
    """Makes each round by itself."""

    def several(self, phase, rounds):
        return None


class Watched(Batched):
    """Notes how many rounds it was asked for at a time; dies at one of these times."""

    def __init__(self, dies: int | None = None) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.dies = dies

    def several(self, phase, rounds):
        program = super().several(phase, rounds)
        if program is None:
            return None

        def run(state, key, first, size):
            if len(self.sizes) == self.dies:
                raise KeyboardInterrupt
            self.sizes.append(size)
            return program(state, key, first, size)

        return run


def fitted(method: Any, executor: Batched, **options: Any) -> fb.FederatedFit:
    options = {"key": KEY, "progress": False} | options
    return fb.fit_federated(model, clients(), method=method, executor=executor, **options)


def main_rounds(fit: fb.FederatedFit) -> int:
    """Without the one that asks for curvatures at the start."""
    return int((fit.rounds["phase"] != "probe").sum())


EXACT = fb.FedProx(proximal=4.0, solver="newton", laplace=False, tolerance=1e-6, max_rounds=200)
METHODS = {
    "until it has arrived": EXACT,
    "mini-batches": fb.FedAvg(step_size=0.02, batch_size=4, local_steps=3, laplace=False, max_rounds=110),
    "groups": fb.FedAvg(
        step_size=0.05,
        local_steps=2,
        fairness=GIFAIR(groups={"a": ["north", "east"], "b": ["south"]}),
        laplace=False,
        max_rounds=120,
    ),
    "teams": fb.FedEnsemble(num_modes=2, weights="equal", step_size=0.02, local_steps=2, max_rounds=101),
}


@pytest.mark.parametrize("name", METHODS)
def test_they_are_the_rounds_one_by_one(name):
    executor = Watched()
    ours, theirs = fitted(METHODS[name], executor), fitted(METHODS[name], OneByOne())
    assert len(executor.sizes) > 1
    assert sum(executor.sizes) >= main_rounds(ours)
    np.testing.assert_allclose(
        ours.idata.posterior["beta"], theirs.idata.posterior["beta"], rtol=ROUNDING, atol=ROUNDING
    )
    assert set(ours.rounds) == set(theirs.rounds)
    assert ours.rounds.sizes == theirs.rounds.sizes
    for each in set(ours.rounds) - {"seconds"}:
        one, other = ours.rounds[each].values, theirs.rounds[each].values
        if one.dtype.kind == "f":  # lengths of moves shrink to rounding
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7, err_msg=each)
        else:
            np.testing.assert_array_equal(one, other, err_msg=each)


def test_they_end_as_soon_as_they_have_arrived(monkeypatch):
    monkeypatch.setattr("fedbayes.rounds.loop._MOMENT", 1e9)  # on a busy machine too
    executor = Watched()
    fit = fitted(EXACT, executor)
    assert fit.converged
    assert executor.sizes[:2] == [1, 8]
    assert main_rounds(fit) < sum(executor.sizes)


def toy(state, states, clients, secrets, key):
    """A round that counts, and reports whatever its client has for the number of the round."""
    number = state["round"] + 1
    record = {name: values[number] for name, values in clients[0].items()}
    return {"round": number, "sum": state["sum"] + 0.5}, [states[0] + 1.0], record


ENDS = {
    "arrived": ({"converged": [5]}, 5),
    "hopeless": ({"hopeless": [4]}, 4),
    "nobody heard, and not proper": ({"code": [6], "proper": [6]}, 6),
    "nobody heard, but proper": ({"code": [3]}, 12),
    "not proper, but heard": ({"proper": [3]}, 12),
    "all rounds": ({}, 12),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_round_after_which_they_end(name):
    happens, last = ENDS[name]
    usual = {"converged": False, "hopeless": False, "proper": True, "code": int(ResultCode.OK)}
    reports = {each: np.full((20, 1), value) for each, value in usual.items()}
    unusual = {"converged": True, "hopeless": True, "proper": False, "code": int(ResultCode.NOT_FINITE)}
    for each, rounds in happens.items():
        reports[each][rounds] = unusual[each]
    state = {"round": np.asarray(0), "sum": np.zeros((), np.float32)}  # which the first round makes wider
    with computing():
        done = jax.jit(several_rounds(toy, 16))(state, [np.zeros(())], [reports], KEY, KEY, 0, 12)
    assert int(done.done) == int(done.state["round"]) == last
    assert float(done.states[0]) == last
    assert float(done.state["sum"]) == 0.5 * last
    for each, values in reports.items():
        np.testing.assert_array_equal(done.records[each][:last], values[1 : last + 1])


def test_where_they_begin_does_not_change_them(monkeypatch):
    """However long a round takes: only the clock decides how many are one program."""
    every = fitted(METHODS["mini-batches"], Watched())
    monkeypatch.setattr("fedbayes.rounds.loop._MOMENT", 0.0)  # each round takes too long
    executor = Watched()
    single = fitted(METHODS["mini-batches"], executor)
    assert set(executor.sizes) == {1}
    np.testing.assert_array_equal(every.idata.posterior["beta"], single.idata.posterior["beta"])


def test_sizes_grow_step_by_step_up_to_the_limit(monkeypatch):
    monkeypatch.setattr("fedbayes.rounds.loop._MOMENT", 1e9)
    executor = Watched()
    fitted(fb.FedAvg(step_size=0.01, local_steps=1, laplace=False, tolerance=1e-15, max_rounds=700), executor)
    assert executor.sizes[:4] == [1, 8, 64, MOST_ROUNDS]
    assert all(after <= 8 * before for before, after in pairwise(executor.sizes))


def test_where_nothing_can_be_computed_they_stop():
    """Momentum leads plain steps to numbers that are not finite, long before the limit."""
    method = fb.FedAvg(optimizer=optax.sgd(1.5, momentum=0.9), local_steps=20, laplace=False, max_rounds=3000)
    ours, theirs = fitted(method, Watched()), fitted(method, OneByOne())
    assert not ours.converged
    assert 1 < ours.rounds.sizes["round"] == theirs.rounds.sizes["round"] < 3000


def test_an_interrupted_fit_goes_on_where_it_was(tmp_path):
    whole = fitted(METHODS["mini-batches"], Watched())
    path = tmp_path / "fit.npz"
    with pytest.raises(KeyboardInterrupt):
        fitted(METHODS["mini-batches"], Watched(dies=2), checkpoint=path)
    assert path.exists()
    executor = Watched()
    resumed = fitted(METHODS["mini-batches"], executor, checkpoint=path)
    assert sum(executor.sizes) < whole.rounds.sizes["round"]
    np.testing.assert_array_equal(whole.idata.posterior["beta"], resumed.idata.posterior["beta"])
    assert whole.rounds.sizes == resumed.rounds.sizes


NOT_FUSED = {
    "few rounds": ({"max_rounds": 100}, {}),
    "a part of the clients": ({"max_rounds": 101}, {"participation": 0.67}),
    "clients drawn by the method": ({"max_rounds": 101, "scheme": "with_replacement", "num_active": 2}, {}),
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_rounds_of_which_each_asks_others_stay_single(name):
    options, of_fit = NOT_FUSED[name]
    executor = Watched()
    method = fb.FedAvg(step_size=0.05, local_steps=1, laplace=False, **options)
    fit = fitted(method, executor, **of_fit)
    assert executor.sizes == []
    assert fit.rounds.sizes["round"] > 1
    assert (fit.rounds["code"] == ResultCode.OK).any()


@pytest.mark.parametrize("own_data", [False, True])
def test_data_sets_side_by_side_stay_single(own_data):
    """Each of them stops by itself, which a program of rounds does not."""
    with computing():
        problem = make_problem(model, clients())
        programs = Programs(EXACT.phases(problem.roster), {}, 2, own_data=own_data)
        executor = Batched()
        executor.connect(programs, problem, KEY)
        assert (executor.several(0, 200) is None) == own_data
