"""What a round holds at once: few clients with many rows, and few calls under way."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedbayes as fb
from fedbayes.contract.algorithm import Reply
from fedbayes.models import linear
from fedbayes.problem.problem import make_problem
from fedbayes.rounds import exchange, memory
from fedbayes.rounds.exchange import Collected, Round
from fedbayes.rounds.executors import Batched, batched
from fedbayes.runtime.precision import computing


def problem_of(*sizes: int):
    with computing():
        clients = {f"client{k}": {"x": np.ones((size, 2)), "y": np.ones(size)} for k, size in enumerate(sizes)}
        return make_problem(linear.model, clients)


@pytest.mark.parametrize("sizes", [(3000, 3000, 3000), (2999, 3000, 2998)])
def test_clients_with_many_rows_are_calls_of_their_own_whether_or_not_their_sizes_differ(sizes) -> None:
    problem, executor = problem_of(*sizes), Batched()
    executor._problem, executor._clients = problem, [bucket.clients for bucket in problem.buckets]
    assert len(problem.buckets) == 1
    assert executor._chunk_size(executor._whole(0), len(sizes)) == 1


def test_clients_with_few_rows_share_a_call() -> None:
    problem, executor = problem_of(20, 20, 20), Batched()
    executor._problem, executor._clients = problem, [bucket.clients for bucket in problem.buckets]
    assert len(problem.buckets) == 1
    assert executor._chunk_size(executor._whole(0), 3) == 3


def test_the_clients_states_are_sent_to_the_device_once_a_round(monkeypatch) -> None:
    """Not with each call: the time of a round would grow with the square of the number of clients."""
    sent: list[list[Any]] = []
    program = Batched._program

    def recorded(self: Batched, phase: int | None, name: str) -> Callable:
        call = program(self, phase, name)

        def noted(shared: Any, personal: Any, states: Any, *others: Any) -> Any:
            sent.append(jax.tree.leaves(states))
            return call(shared, personal, states, *others)

        return noted

    monkeypatch.setattr(Batched, "_program", recorded)
    monkeypatch.setattr(Batched, "compiles_ahead", False)
    clients = {f"c{k}": {"x": np.arange(8.0).reshape(4, 2) + k, "y": np.arange(4.0)} for k in range(3)}
    options = {"executor": Batched(chunk=1), "num_rounds": 3, "progress": False, "correct": False}
    fb.fit_federated(linear.model, clients, key=jax.random.key(0), **options)
    rounds = [sent[at : at + 3] for at in range(0, len(sent), 3)]
    assert len(rounds) >= 2  # the first one begins with states that are on the device
    for calls in rounds:
        assert calls[0]
        assert all(isinstance(leaf, jax.Array) for leaf in calls[0])
        assert all(one is other for call in calls[1:] for one, other in zip(call, calls[0], strict=True))


@pytest.mark.parametrize(("most", "waited_for"), [(1, [0, 1, 2, 3]), (2, [0, 1, 2]), (9, [])])
def test_a_call_begins_once_few_others_are_under_way(most: int, waited_for, monkeypatch) -> None:
    waited = []
    monkeypatch.setattr(exchange.jax, "block_until_ready", lambda part: waited.append(int(part[0][0])))
    heard = Collected(Round(0, (), (), None, np.arange(5), ["update"] * 5), 5)
    for place in range(5):
        heard.leave(most)
        heard.add(np.array([place]), Reply(total=1.0, each=np.array([place])))
    assert waited == waited_for


def test_at_least_two_calls_are_under_way() -> None:
    assert batched._UNDER_WAY >= 2


@pytest.mark.parametrize(
    ("written", "bytes_"), [({0: "1048576\n"}, 2.0**20), ({1: "2097152\n"}, 2.0**21), ({0: "max\n"}, None), ({}, None)]
)
def test_memory_is_that_of_the_machine_or_the_limit_of_its_container(written, bytes_, tmp_path, monkeypatch) -> None:
    """By either version of Linux's control groups."""
    limits = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(memory, "_LIMITS", limits)
    for place, words in written.items():
        limits[place].write_text(words)
    physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    assert memory.memory_here() == (physical if bytes_ is None else bytes_)
