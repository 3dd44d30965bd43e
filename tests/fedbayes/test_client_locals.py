"""Where a client's own posterior comes from: what is told, drawn and refused by each kind."""

from types import SimpleNamespace

import numpy as np
import pytest

import fedbayes as fb
from fedbayes.contract.client_locals import (
    FromCavity,
    FromOwnPoint,
    FromRecord,
    FromServer,
    FromStart,
    at_site,
    kind_of,
)
from fedbayes.contract.locals_from import LocalsFrom, Personal, Question, check
from fedbayes.numerics.gaussian import Gaussian

CHAINS, DRAWS, SIZE, CLIENTS, LOCALS = 2, 3, 2, 4, 1
THETA = np.arange(CHAINS * DRAWS * SIZE, dtype=float).reshape(CHAINS, DRAWS, SIZE)
POINT = THETA[:, :1]


def gaussian(*axes: int) -> Gaussian:
    precision = np.broadcast_to(np.eye(SIZE), (*axes, SIZE, SIZE))
    return Gaussian(np.ones((*axes, SIZE)), precision, np.zeros(axes))  # type: ignore[arg-type]


OTHERS = gaussian(CHAINS, CLIENTS)
KINDS = {
    "cavity": FromCavity.known(OTHERS, gaussian(CHAINS)),
    "point": FromStart(OTHERS),
    "points": FromStart(OTHERS, 7),
    "no locals": FromStart(None),
    "record": FromRecord(OTHERS),
    "server": FromServer({"theta": np.zeros((CLIENTS, CHAINS))}, {"omega": (POINT, ["draw"])}, {}, "Coupling"),
    "own point": FromOwnPoint(lambda private: private + 1.0),
}


class Client:
    """Answers what it is asked by numbers that tell where they come from, and remembers the questions."""

    update = "nuts"
    locals = LOCALS
    chain: np.ndarray | None = None  # of NUTS

    def __init__(self, k_hat: float = 0.1) -> None:
        self.asked: list[str] = []
        self.k_hat = np.full(CHAINS, k_hat)

    def reply(self, update, shared):
        self.asked.append(update)
        if update == "given":
            return np.full((*shared.shape[:2], LOCALS), 5.0)
        if update == "chained":
            return SimpleNamespace(draws=self.chain)
        num = shared.shape[1] if update == "given_coupled" else shared.slots.shape[1]
        return SimpleNamespace(draws=np.full((CHAINS, num, SIZE + self.locals), 7.0), k_hat=self.k_hat)

    def private(self):
        return np.zeros((CHAINS, 1, SIZE + LOCALS))

    def recorded(self, num):
        return np.full((num, CHAINS, LOCALS), 9.0)


@pytest.mark.parametrize("kind", ["cavity", "point", "record"])
def test_each_client_is_told_its_own_part_with_chains_behind(kind):
    told = KINDS[kind].told()
    assert told.shift.shape == (CLIENTS, CHAINS, SIZE)
    assert told.precision.shape == (CLIENTS, CHAINS, SIZE, SIZE)


def test_only_the_cavities_are_what_the_others_know():
    assert {name for name, each in KINDS.items() if each.has_cavities} == {"cavity"}
    assert {name for name, each in KINDS.items() if each.others is not None} == {"cavity"}
    assert KINDS["no locals"].told() == ()
    assert KINDS["server"].told()["theta"].shape == (CLIENTS, CHAINS)


@pytest.mark.parametrize(
    ("kind", "asked", "locals_"),
    [("cavity", ["resampled"], 7.0), ("record", [], 9.0), ("server", ["given_coupled"], 7.0), ("own point", [], 1.0)],
)
def test_a_client_draws_in_the_servers_process(kind, asked, locals_):
    client = Client()
    drawn = KINDS[kind].draws(client, THETA, num_draws=6)
    assert client.asked == asked
    assert np.all(drawn.draws[..., SIZE:] == locals_)
    if kind == "record":
        np.testing.assert_array_equal(drawn.draws[..., :SIZE], THETA)
        assert drawn.attrs == {"solver": "nuts"}


def test_at_a_point_the_locals_alone_are_drawn():
    drawn = KINDS["point"].draws(Client(), POINT, num_draws=6)
    np.testing.assert_array_equal(drawn.draws[..., :SIZE], np.repeat(POINT, 6, axis=1))
    assert np.all(drawn.draws[..., SIZE:] == 7.0)


@pytest.mark.parametrize(("kind", "theta"), [("cavity", THETA), ("point", POINT)])
def test_where_weights_can_t_be_trusted_locals_are_drawn_given_the_globals(kind, theta):
    client = Client(k_hat=0.9)
    drawn = KINDS[kind].draws(client, theta, num_draws=DRAWS)
    assert client.asked == ["resampled", "given"]
    assert drawn.attrs == {"k_hat": 0.9, "solver": "importance weights given the globals"}
    np.testing.assert_array_equal(drawn.draws[..., :SIZE], np.broadcast_to(theta, THETA.shape))
    assert np.all(drawn.draws[..., SIZE:] == 5.0)


@pytest.mark.parametrize("mixes", [True, False])
def test_without_locals_nuts_draws_and_says_whether_it_has_mixed(mixes):
    client = Client(k_hat=0.9)
    client.locals = 0
    client.chain = np.random.default_rng(0).normal(size=(CHAINS, 400, SIZE)) + (0.0 if mixes else [[[0.0]], [[9.0]]])
    draw = lambda: KINDS["cavity"].draws(client, np.zeros((CHAINS, 400, SIZE)), num_draws=400)  # noqa: E731
    if mixes:
        drawn = draw()
    else:
        with pytest.warns(fb.UnreliableWarning, match=r"NUTS has not mixed: R-hat is \d.* `correct=True` does without"):
            drawn = draw()
    assert client.asked == ["resampled", "chained"]
    assert drawn.attrs["solver"] == "nuts"
    assert (drawn.attrs["r_hat"] < 1.05) is mixes
    assert (drawn.attrs["effective_draws"] > 600) is mixes
    np.testing.assert_array_equal(drawn.draws, client.chain)


@pytest.mark.parametrize(
    ("kind", "num_locals", "name", "locals_"),
    [
        ("cavity", 1, "given", 5.0),
        ("cavity", 0, "globals", None),
        ("point", 1, "start", 5.0),
        ("points", 1, "globals", None),
        ("no locals", 0, "globals", None),
        ("record", 1, "recorded", 9.0),
        ("record", 0, "globals", None),
        ("server", 0, "given_coupled", 7.0),
        ("own point", 0, "own", 2.0),
    ],
)
def test_a_client_draws_at_its_own_site(kind, num_locals, name, locals_):
    assert kind_of(KINDS[kind], num_locals) == name
    drawn = at_site(name, Client(), THETA, lambda private: private + 2.0).draws
    if locals_ is None:
        np.testing.assert_array_equal(drawn, THETA)
    else:
        assert np.all(drawn[..., SIZE:] == locals_)


def test_a_kind_that_nobody_knows_is_refused_at_a_site():
    with pytest.raises(ValueError, match=r"kind 'givn'; known are .*'given'"):
        at_site("givn", Client(), THETA, lambda private: private)


def test_one_more_way_to_couple_clients_is_one_more_class(monkeypatch):
    monkeypatch.setattr(LocalsFrom, "kinds", dict(LocalsFrom.kinds))

    class FromNeighbour(LocalsFrom):
        kind = "neighbour"

        def told(self):
            return ()

        def draws(self, at, theta, num_draws):
            return self.draws_at_site(at, theta, None)

        @staticmethod
        def draws_at_site(at, theta, of):
            return Personal(np.full((*theta.shape[:2], SIZE + LOCALS), 3.0), {})

    assert kind_of(FromNeighbour(), 0) == "globals"
    assert kind_of(FromNeighbour(), 1) == "neighbour"
    assert np.all(at_site("neighbour", Client(), THETA, lambda private: private).draws == 3.0)
    with pytest.raises(TypeError, match="'given', as that of `FromCavity`"):
        type("FromTwin", (LocalsFrom,), {"kind": "given"})


def test_a_site_gets_a_point_as_often_as_draws_are_wanted():
    assert KINDS["point"].for_sites(POINT, 6).shape == (CHAINS, 6, SIZE)
    for kind in ("points", "no locals", "cavity", "record", "server", "own point"):
        assert KINDS[kind].for_sites(THETA, 6) is THETA


def test_a_client_without_locals_shares_the_point_of_all():
    shared = {name for name, each in KINDS.items() if not each.own_posterior(0)}
    assert shared == {"point", "points", "no locals"}
    assert all(each.own_posterior(1) for each in KINDS.values())


REFUSED = {
    ("points", Question.CLIENT_POSTERIOR): "This fit is an ensemble of 7 points",
    ("no locals", Question.CLIENT_POSTERIOR): "Without local latents a client's posterior is `fit.idata`",
    ("server", Question.NEW_CLIENT): "Coupling couples the clients by a covariance that has no entry for a client",
    ("server", Question.EXACT): "its clients depend on each other by more than the globals",
    ("server", Question.SENSITIVITY): "prior is not the whole prior. Fit by a method without it",
    ("server", Question.PRIOR_REPLICATES): "prior can't be checked in its place. Write `prior=False`",
    ("own point", Question.EXACT): "its clients depend on each other by more than the globals",
}


@pytest.mark.parametrize("question", Question)
@pytest.mark.parametrize("kind", KINDS)
def test_what_can_not_be_answered_is_refused_in_a_sentence(kind, question):
    told = REFUSED.get((kind, question))
    if told is None:
        check(KINDS[kind], question)
    else:
        with pytest.raises(ValueError, match=told):
            check(KINDS[kind], question)
