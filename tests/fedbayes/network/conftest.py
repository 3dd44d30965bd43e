"""A federation of three sites in one process, whose messages go through bytes, and ways to disturb it."""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.network.fit import fit_over
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.server.remote import Patience
from fedbayes.network.site import Site
from fedbayes.network.study import Study

sys.path.append(str(Path(__file__).parent))  # for the helpers beside this file
BRIEF = Patience(round_timeout=1.0, min_clients=1, give_up_after=0.5)


def model(y):
    """Groups whose own means are local, so that clients have private states, and draws of their own."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.3))
    with fb.local():
        own = numpyro.sample("own", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(own, 0.7), obs=y)


def shared_mean(y):
    """Nothing local."""
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 2.0)), 0.7), obs=y)


def make_data(rows=(9, 9, 9)) -> dict:
    """Sites with equally many rows share in one process what they trace and compile; with others each has its own."""
    rng = np.random.default_rng(5)
    names = ("ada", "bo", "cy", "di")[: len(rows)]
    return {name: {"y": rng.normal(0.5, 1.0, size=n)} for name, n in zip(names, rows, strict=True)}


class Disturbed(Rehearsal):
    """A network on which things go wrong: ``disturb(round, address, answer)`` changes answers, or loses them."""

    def __init__(self, *sites: Site | None, disturb: Callable | None = None, before: Callable | None = None):
        super().__init__(*sites)
        self.disturb, self.before, self.count = disturb, before, 0

    def send(self, requests, timeout):
        self.count += 1
        if self.before:
            self.before(self.count)
        for address, answer in super().send(requests, timeout):
            found = self.disturb(self.count, address, answer) if self.disturb else answer
            yield from ([(address, each) for each in found] if isinstance(found, list) else [(address, found)])


class Federation:
    """Three sites with folders of their own, and fits over them."""

    def __init__(self, folder, method, program=model, **data):
        self.folder, self.data, self.method, self.model = folder, make_data(**data), method, program
        self.study = Study(program, method)

    def site(self, name, folder=None, load=None) -> Site:
        """A site as a new process would make it."""
        load = load or (lambda config: self.data[config["site-id"]])
        state = str(folder or self.folder / name)
        return Site(self.study, load, {"site-id": name, "state-dir": state, **PERMISSIVE})

    def sites(self) -> list[Site]:
        return [self.site(name) for name in self.data]

    def network(self, **options) -> Disturbed:
        return Disturbed(*self.sites(), **options)

    def same_secrets(self, other: Path) -> None:
        """Give the sites the secrets of those in another folder."""
        for site in self.sites():
            for name in ("secret", "mask-key"):
                (self.folder / site.name / name).write_text((other / site.name / name).read_text())

    def fit(self, network=None, **options):
        given = {
            "key": jax.random.key(3),
            "num_clients": 3,
            "join_timeout": 2.0,
            "patience": BRIEF,
            "num_draws": 50,
            "correct": False,  # the check after the rounds is asked where it is what is tested
            "progress": False,
            "secure_sums": False,  # what is lost of single sites is what most tests look at
        }
        return fit_over(network or self.network(), self.study, **(given | options))

    def here(self, **options):
        """The same fit in one process."""
        given = {"key": jax.random.key(3), "num_draws": 50, "correct": False, "progress": False}
        return fb.fit_federated(self.model, self.data, method=self.method, **(given | options))


@pytest.fixture
def federation(tmp_path):
    # of the change, a square root, rounding leaves 1.5e-8: below that the number of rounds would be chance
    return lambda method=None, **options: Federation(
        tmp_path / "sites", method or fb.EP(solver="laplace", num_replicates=1, tolerance=1e-7), **options
    )


@pytest.fixture
def small_federation(tmp_path):
    """The same where nothing is asked about the method: a search for the mode of one global has small programs."""
    return lambda: Federation(tmp_path / "sites", fb.Laplace(), shared_mean)
