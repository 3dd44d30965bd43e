"""What is said of a fit's time: by shapes before its rounds, and by the clock after each."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import fedbayes as fb
from fedbayes.contract.state import RunState
from fedbayes.correction.foretold import forecast_of as forecast_for
from fedbayes.fit import problem_for, updates_after
from fedbayes.models import linear
from fedbayes.rounds import forecast as module
from fedbayes.rounds.forecast import Forecast, spoken
from fedbayes.rounds.programs import programs_for
from fedbayes.rounds.progress import Silent
from fedbayes.runtime.precision import computing

MANY = 10_000


def walk(num, y):
    scale, level = numpyro.sample("scale", dist.HalfNormal(1.0)), numpyro.sample("level", dist.Normal(0.0, 5.0))
    with fb.local():
        steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([num]).to_event(1))
    numpyro.sample("y", dist.Normal(level + scale * jnp.cumsum(steps), 1.0).to_event(1), obs=y)


def persons(num, y):
    scale, level = numpyro.sample("scale", dist.HalfNormal(1.0)), numpyro.sample("level", dist.Normal(0.0, 5.0))
    with fb.local(), numpyro.plate("persons", num):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level + scale * ability, 1.0), obs=y)


def clients_of(num: int) -> dict:
    random = np.random.default_rng(0)
    return {name: {"num": num, "y": random.normal(size=num)} for name in ("north", "south")}


def forecast_of(model, clients, method, *, checked: bool = True) -> Forecast:
    with computing():
        problem = problem_for(method, model, clients, (), np.float64)
        programs = programs_for(method, problem.roster, problem.programs, updates_after(method, problem.roster))
    forecast = forecast_for(method, problem, programs, 1000 if checked else None)
    forecast._is_checked = lambda current: checked
    return forecast


def after_round(update: str, *, seconds: float, phase: int = 0, done: int = 1, num: int = 2, settled=False) -> RunState:
    record = {"solver": np.asarray([update] * num), "active": np.ones(num, bool), "rounds": np.asarray(1)}
    record["seconds"] = np.asarray(seconds)
    return RunState(phase, done, None, [update] * num, np.full(num, settled), settled, [record])


class Log(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, words: str) -> None:
        self.said.append(words)


def test_locals_that_no_memory_holds_are_refused_before_the_fit(monkeypatch) -> None:
    monkeypatch.setattr(module, "memory_here", lambda: 2.0**34)
    words = (
        r"locals of client 'north' \(10,000 rows, 10,000 locals that depend on each other\) ask for .* GiB .*"
        r"for draws of all of them in the phase 'mode' by the solver 'newton', .*first axis"
    )
    with pytest.raises(fb.FederatedError, match=words):
        fb.fit_federated(walk, clients_of(MANY), key=jax.random.key(0), progress=False)


def test_matrices_that_take_long_are_told_before_the_fit(monkeypatch) -> None:
    monkeypatch.setattr(module, "memory_here", lambda: np.inf)
    forecast = forecast_of(walk, clients_of(MANY), fb.EP())
    with pytest.warns(fb.SlowFitWarning, match=r"weeks or more, for matrices .*10,000 locals.*`method=\"laplace\"`"):
        forecast.before_rounds(None)
    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")  # whose speed is not known
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecast.before_rounds(None)


def test_a_dense_solver_of_single_locals_is_told_of_the_default(monkeypatch) -> None:
    monkeypatch.setattr(module, "memory_here", lambda: 2.0**32)
    words = (
        r"for matrices of locals by locals in the phase 'EP' by the solver 'laplace', .* Locals can be fewer, .*"
        r"asks for less: `solver=\"auto\"` of EP \(the default solver takes memory in proportion to the locals\);"
    )
    with pytest.raises(fb.FederatedError, match=words) as refused:
        forecast_of(persons, clients_of(MANY), fb.EP(solver="laplace")).before_rounds(None)
    assert "num_replicates" not in str(refused.value)


def test_only_what_counts_less_is_offered() -> None:
    """Of many single locals nested draws are linear, and joint searches dense; of a few the search is less."""
    for num, is_offered in ((MANY, False), (10, True)):
        advice = forecast_of(persons, clients_of(num), fb.EP(num_replicates=2), checked=False)._advice(())
        assert ('`solver="laplace"` of EP' in advice) == is_offered
        assert "`num_replicates=1` of EP" in advice
    assert forecast_of(persons, clients_of(20), fb.Laplace(), checked=False)._advice(()) == ""


@pytest.mark.parametrize(("model", "num"), [(persons, MANY), (walk, 60)])
def test_single_locals_and_a_few_that_are_not_need_no_words(model, num, monkeypatch) -> None:
    monkeypatch.setattr(module, "memory_here", lambda: 2.0**32)
    forecast = forecast_of(model, clients_of(num), fb.EP())
    forecast.before_rounds(None)
    assert not forecast._warned


def test_what_is_left_is_rounds_and_check_by_their_evaluations() -> None:
    """A Newton round of 2 globals takes 1 + 3 + 2/2 evaluations, the check one a draw: 1,500 of one chain."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50), dim=2)
    forecast = forecast_of(linear.model, clients, fb.Laplace())
    size = forecast._roster.size
    forecast.begin(0, 50)
    rounds, check = forecast.left(after_round("newton", seconds=8.0), 8.0)
    assert rounds.words == "5 rounds of mode"
    assert rounds.seconds == pytest.approx(5 * 8.0)
    assert check.words == "the check of the answer at 1,500 draws"
    assert check.seconds == pytest.approx(8.0 * 1500 / (4.0 + 0.5 * size))
    rounds, check = forecast.left(after_round("newton", seconds=8.0, settled=True), 8.0)
    assert rounds.seconds == 0.0
    assert check.seconds > 0.0


def test_a_better_solver_is_counted_where_clients_change_to_it() -> None:
    """Eight times the draws, which take 256 gradients of three evaluations beside the search for the mode."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50), dim=2)
    forecast = forecast_of(linear.model, clients, fb.EP(), checked=False)
    forecast.begin(0, 30)
    current = after_round("importance", seconds=2.0)
    current.updates = ["importance_more"] * 2
    [rounds] = forecast.left(current, 2.0)
    search = 2 * (5 + 0.5 * forecast._roster.size)
    assert rounds.seconds == pytest.approx(3 * 2.0 * (8 * 768 + search) / (768 + search))


def test_it_is_told_once_and_again_only_if_it_gets_worse() -> None:
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50), dim=2)
    forecast, log = forecast_of(linear.model, clients, fb.EP(), checked=False), Log()
    forecast.begin(0, 30)
    clock = [(0.5, 0.0), (99.0, 80.0), (89.0, 1.0), (30.0, 40.0), (170.0, 0.0), *[(60.0, 0.0)] * 24]
    for done, (seconds, waited) in enumerate(clock, 1):
        forecast.after_round(after_round("importance", seconds=seconds, done=done), waited, log)
    assert [words.split(".")[0] for words in log.said] == [
        "This fit will go on for about a minute: a minute for 1 round of EP",
        "This fit will go on for at most an hour: an hour for 25 rounds of EP, if it takes them all",
    ]


def test_a_budget_is_no_warning() -> None:
    """Of FedAvg nobody knows how many rounds it takes."""
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50), dim=2)
    forecast, log = forecast_of(linear.model, clients, fb.FedAvg(), checked=False), Log()
    [update, *_] = forecast._programs.phases[0].algorithm.updates
    forecast.begin(0, 100)
    for done in (1, 2, 3):
        forecast.after_round(after_round(update, seconds=60.0, done=done), 0.0, log)
    [words] = log.said
    assert words.startswith("This fit will go on for at most a few hours: a few hours for 99 rounds of ")
    assert "about" not in words


def test_a_warning_is_at_the_line_that_began_the_fit(monkeypatch) -> None:
    monkeypatch.setattr(module, "_VERY_LONG", 0.0)
    monkeypatch.setattr(module, "_LONG", 0.0)
    monkeypatch.setattr(module, "_LEAST", 0.0)
    monkeypatch.setattr("fedbayes.rounds.loop.waited", lambda: 0.0)
    clients, _ = linear.simulate(jax.random.key(0))
    with pytest.warns(fb.SlowFitWarning, match="go on") as found:
        fb.fit_federated(linear.model, clients, method="laplace", key=jax.random.key(1), progress=False)
    assert {each.filename for each in found} == {__file__}


def test_more_than_ten_minutes_are_a_warning_and_once() -> None:
    clients, _ = linear.simulate(jax.random.key(0), rows=(20, 50), dim=2)
    forecast, log = forecast_of(linear.model, clients, fb.Laplace()), Log()
    forecast.begin(0, 50)
    check = r"check of the answer at 1,500 draws\. .* client '.*' \(50 rows\)\. What takes less: `correct=False`"
    with pytest.warns(fb.SlowFitWarning, match=check):
        forecast.after_round(after_round("newton", seconds=20.0), 0.0, log)
    forecast.after_round(after_round("newton", seconds=90.0, done=2), 0.0, log)
    assert len(log.said) == 1


def test_a_search_before_the_rounds_foretells_and_warns_of_nothing() -> None:
    """What it says of rounds of another kind was off by a factor of four; the first of these warns, however little."""
    clients = {name: {"y": data["y"][:5], "num": 5} for name, data in clients_of(5).items()}
    forecast, log = forecast_of(persons, clients, fb.EP(num_replicates=2)), Log()
    [mode, rounds] = [next(iter(phase.algorithm.updates)) for phase in forecast._programs.phases]
    forecast.begin(0, 50)
    forecast.after_round(after_round(mode, seconds=500.0), 0.0, log)
    assert len(log.said) == 1
    forecast.begin(1, 30)
    with pytest.warns(fb.SlowFitWarning, match="go on"):
        forecast.after_round(after_round(rounds, seconds=400.0, phase=1), 0.0, log)


def test_a_fit_tells_by_its_progress_and_in_silence_does_not(monkeypatch, capsys) -> None:
    """The same fit, with a clock by which each of its rounds takes long."""
    monkeypatch.setattr(module, "_LEAST", 0.0)
    monkeypatch.setattr(module, "_LONG", 0.0)
    monkeypatch.setattr(module, "_VERY_LONG", np.inf)
    monkeypatch.setattr("fedbayes.rounds.loop.waited", lambda: 0.0)
    clients, _ = linear.simulate(jax.random.key(0))
    for progress in (True, False):
        fb.fit_federated(linear.model, clients, method="laplace", key=jax.random.key(1), progress=progress)
        assert ("This fit will go on for" in capsys.readouterr().err) == progress


@pytest.mark.parametrize(
    ("seconds", "words"), [(61.0, "a minute"), (600.0, "ten minutes"), (9e3, "a few hours"), (1e9, "weeks")]
)
def test_times_are_spoken(seconds: float, words: str) -> None:
    assert spoken(seconds) == words
