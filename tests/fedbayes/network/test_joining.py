"""A run whose sites contradict each other ends when all who can be reached have answered, and says how they differ."""

import logging
import time

import numpy as np
import pytest
import xarray as xr

import fedbayes as fb
from fedbayes.errors import ClientDataError, FederatedError, MissingColumnsError
from fedbayes.network.charter import ArrayKind, Hello
from fedbayes.network.messages import Refusal, pack, unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.alike import differences
from fedbayes.network.server.register import Register
from fedbayes.network.server.terminal import Terminal
from fedbayes.network.transport import Failure, NodeKey

CY = 3
LONG = 60.0  # seconds of a join timeout that no test may wait for
SOON = 20.0  # seconds within which a site has traced the model on a slow machine


def hello(site, columns=("age", "sex"), **more):
    labels = tuple(columns)
    return Hello(
        site, {"x": ArrayKind((20, len(labels)), "<f8", labels), "y": ArrayKind((20,), "<i8", None), **more}, {}
    )


def at_once(world, network, **options):
    """What a run says that ends long before its join timeout."""
    began = time.monotonic()
    with pytest.raises(fb.FedbayesError) as told:
        world.fit(network, join_timeout=LONG, **options)
    assert time.monotonic() - began < SOON
    return told


def test_a_site_whose_data_can_not_be_used_ends_a_run_that_needs_it(federation):
    world = federation()
    network = world.network()
    network.sites[CY] = world.site("cy", load=lambda config: 1 / 0)
    told = at_once(world, network)
    assert told.type is FederatedError
    assert "The run can't begin: ['ada', 'bo'] have joined, and 3 in all are needed." in str(told.value)
    assert "Site 'cy' takes no part: it has data that can't be used; its own log says why." in str(told.value)
    assert "That log is `worker.log` in the site's state folder (`state-dir` of its node)." in str(told.value)
    assert "start the run again; the nodes need not be started anew." in str(told.value)


def test_the_columns_that_a_file_lacks_are_named_and_nothing_else_of_it(federation, caplog):
    world = federation()
    network = world.network()

    def load(config):
        raise MissingColumnsError("The file has no column 'chol'; it has ['secret'].", ["chol"])

    network.sites[CY] = world.site("cy", load=load)
    told = at_once(world, network)
    assert "its own log says why (its file lacks 'chol', which the study reads)." in str(told.value)
    assert not any(b"secret" in answer for answer in network.answered)
    assert "it has ['secret']" in caplog.text  # at the site


def test_what_a_site_calls_missing_is_shown_as_plain_text_and_briefly(federation, caplog):
    register = Register(Rehearsal(), federation().study, 1.0)
    told = {"kind": "refusal", "site": "cy", "reason": "DATA", "study": {}, "found": {}}
    for missing in (["\x1b[31m" + "x" * 10_000] * 1000, "chol", [1, None], {"a": 1}):
        assert register._understood(7, pack({**told, "missing": missing})) is None
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 10_000


def test_another_study_ends_the_run_with_the_difference(federation):
    world, other = federation(), federation(fb.EP(solver="laplace", damping=0.25, num_replicates=1))
    network = world.network()
    network.sites[CY] = other.site("cy")
    told = str(at_once(world, network).value)
    assert "Site 'cy' takes no part: it was built for another model, method or version of fedbayes." in told
    assert "The method differs:" in told
    assert "damping=0.25" in told


def test_sites_that_differ_end_a_run_while_others_are_absent(federation):
    world = federation()
    two = lambda names: xr.DataArray(np.ones((6, 2)), dims=("row", "column"), coords={"column": names})  # noqa: E731
    loads = {"ada": two(["age", "sex"]), "bo": two(["age", "chol"])}

    sites = [world.site(name, load=lambda config: {"y": loads[config["site-id"]]}) for name in loads]
    network = Rehearsal(*sites)
    told = at_once(world, network)
    assert told.type is ClientDataError
    expected = "Site 'bo': of the columns of `y` it lacks 'sex' and has 'chol', which site 'ada' has not."
    assert f"{expected} Site 'ada' has 'age', 'sex', and all sites need the same ones in one order" in str(told.value)


def test_a_site_that_is_not_asked_for_does_not_matter(small_federation):
    world = small_federation()
    network = world.network()
    network.sites[CY] = world.site("cy", load=lambda config: 1 / 0)
    with pytest.raises(FederatedError, match=r"After 0\.5 s \['ada', 'bo'\] have joined, and the sites .* are needed"):
        world.fit(network, num_clients=None, sites=["ada", "dee"], join_timeout=0.5)
    fit = world.fit(network, num_clients=None, sites=["ada", "bo"], join_timeout=LONG)
    assert fit.client_names == ("ada", "bo")


def test_absent_sites_are_waited_for_while_nothing_contradicts(federation, caplog):
    caplog.set_level(logging.INFO)
    world = federation()
    network = world.network()
    del network.sites[CY]
    with pytest.raises(
        FederatedError, match=r"After 0\.5 s \['ada', 'bo'\] have joined, and 3 in all are needed"
    ) as told:
        world.fit(network, join_timeout=0.5)
    for cause in (
        "its clock is wrong",
        "its key is not registered",
        "an earlier node of its site still counts as alive",
    ):
        assert cause in str(told.value)
    assert "The run begins as soon as 3 sites have joined." in caplog.text


def test_a_named_node_whose_program_fails_twice_ends_the_run(federation):
    world = federation()
    network = world.network(disturb=lambda count, address, answer: Failure.FAILED if address == CY else answer)
    network.keys = {1: NodeKey("a", "ada"), 2: NodeKey("b", "bo"), CY: NodeKey("c", "cy")}
    told = str(at_once(world, network).value)
    assert "Site 'cy' takes no part: it has a program that failed; its own log says why." in told


def test_a_program_that_has_failed_once_is_asked_again(federation, caplog):
    world = federation()
    network = world.network(disturb=lambda n, address, answer: Failure.FAILED if (n, address) == (1, CY) else answer)
    network.keys = {1: NodeKey("a", "ada"), 2: NodeKey("b", "bo"), CY: NodeKey("c", "cy")}
    assert set(world.fit(network).client_names) == {"ada", "bo", "cy"}
    assert "The node of site 'cy' has a program that failed." in caplog.text


def test_a_refusal_says_what_is_missing_only_where_something_is(federation):
    world = federation()
    (site, *_) = world.sites()
    answer = unpack(site.answer(pack({"kind": "hello", "study": "another"}))).header
    assert (answer["reason"], "missing" in answer) == (Refusal.STUDY.name, False)


@pytest.mark.parametrize(
    ("hellos", "told"),
    [
        ([], ""),
        ([hello("ada")], ""),
        ([hello("ada"), hello("bo"), hello("cy")], ""),
        (
            [hello("ada", ["age"]), hello("bo"), hello("cy")],
            "Site 'ada': of the columns of `x` it lacks 'sex'. Site 'bo' has 'age', 'sex', and",
        ),
        (
            [hello("ada"), hello("bo", ["age", "sex", "bmi"])],
            "Site 'bo': of the columns of `x` it has 'bmi', which site 'ada' has not. Site",
        ),
        (
            [hello("ada"), hello("bo", ["sex", "age"])],
            "Client 'bo': `x` has the columns ['sex', 'age'], but client 'ada'",
        ),
        ([hello("ada"), hello("bo", z=ArrayKind((20,), "<f8"))], "Client 'bo' has the arguments ['x', 'y', 'z']"),
    ],
)
def test_the_odd_one_out_is_named(hellos, told):
    assert differences(hellos).startswith(told)
    assert bool(differences(hellos)) == bool(told)


def test_the_terminal_says_that_sites_compile(caplog):
    caplog.set_level(logging.INFO)
    Terminal().start("EP", 40)
    assert (
        "Phase EP begins: 40 rounds. The sites are compiling its first one, which takes about a minute." in caplog.text
    )


@pytest.mark.parametrize("name", ["mal", ""])
def test_a_node_can_not_refuse_for_another_site(federation, name):
    """A named key says who it is; without names, who has joined stays."""
    world = federation()
    network = world.network()
    told = {"kind": "refusal", "site": "ada", "reason": "DATA", "study": {}, "found": {}}
    network.disturb = lambda count, address, answer: pack(told) if address == 9 else answer
    network.sites[9] = world.site("mal", load=lambda config: 1 / 0)
    network.keys = {1: NodeKey("a", "ada"), 2: NodeKey("b", "bo"), CY: NodeKey("c", "cy"), 9: NodeKey("m", "mal")}
    if not name:
        network.keys = {}
    register = Register(network, world.study, 5.0)
    register.look()
    register.look()
    assert set(register.hellos) == {"ada", "bo", "cy"}
    assert set(register.refused) == ({"mal"} if name else set())
