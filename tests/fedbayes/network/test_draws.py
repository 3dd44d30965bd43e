"""Sites make the draws of the check and of the end themselves; who can't is sent them, and the answer is the same."""

import numpy as np
import pytest

from fedbayes.correction.proposal import Law, Proposal
from fedbayes.correction.recipe import Counts, OtherDraws, draw
from fedbayes.network import site
from fedbayes.network.client import session
from fedbayes.network.draws import by_recipe, with_draws
from fedbayes.network.messages import unpack
from fedbayes.rounds.wire import arrays_of, encode


@pytest.fixture
def checked(federation):
    """A checked fit, and what the sites were sent after its rounds: names of the arrays by kind of message."""
    here = federation()

    def fitted():
        network = here.network()
        fit = here.fit(network, correct=True, num_draws=500)
        sent = {"after": [], "conclude": []}
        for message in map(unpack, network.sent):
            if message.header["kind"] in sent:
                names = {name.split("/")[0] for name in arrays_of(message.body)}
                sent[message.header["kind"]].append(names & {"recipes", "shared"})
        ended = next(iter(network.sites[1].vault.runs())).conclusion()
        return fit.idata.posterior, sent, arrays_of(unpack(ended).body)["shared"]

    return fitted


def test_the_server_sends_no_draw_and_sites_have_them(checked) -> None:
    posterior, sent, kept = checked()
    assert sent == {"after": [{"recipes"}] * 3, "conclude": [{"recipes"}] * 3}
    np.testing.assert_allclose(kept[..., 0], posterior["mu"], rtol=1e-12)
    np.testing.assert_allclose(kept[..., 1], np.log(posterior["tau"]), rtol=1e-12, atol=1e-12)


def test_a_site_with_other_random_numbers_is_sent_the_draws(checked, monkeypatch, caplog) -> None:
    def unlike(arrays):
        if any(name.startswith("recipes") for name in arrays):
            raise OtherDraws
        return with_draws(arrays)

    before, _, kept_before = checked()
    for module in (session, site):
        monkeypatch.setattr(module, "with_draws", unlike)
    posterior, sent, kept = checked()
    assert sent == {"after": [{"recipes"}] * 3 + [{"shared"}] * 3, "conclude": [{"shared"}] * 3}  # known by then
    np.testing.assert_array_equal(kept[..., 0], posterior["mu"])
    assert kept.shape == kept_before.shape
    assert set(posterior) == set(before)
    assert "NumPy or SciPy is of another version" in caplog.text


def test_some_of_the_draws_are_named_by_their_places() -> None:
    proposal = Proposal([Law(np.zeros(2), np.eye(2))], [1.0])
    drawn = draw(Counts(even=300), np.random.default_rng([0]), mixtures=[proposal])
    told = by_recipe([drawn.recipe, drawn.recipe], np.array([[2, 302, 0]]))
    found = with_draws(arrays_of(encode(told | {"key": np.zeros(2, np.uint32)})))
    assert found.keys() == {"key", "shared"}
    np.testing.assert_array_equal(found["shared"], drawn.theta[:, [2, 2, 0]])
