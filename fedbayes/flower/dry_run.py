"""What a study would send, tried at a site before it takes part: three copies of the site, and nothing leaves."""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedbayes.network.agreeing.server import agree_over
from fedbayes.network.agreeing.site import AgreeingSite
from fedbayes.network.client import journal
from fedbayes.network.client.naming import Config
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site

_COPIES = 3
# what the rules find was shown before, and the copies are no partners
_POLICY = """[disclosure]
smallest_cell = 1
globals_per_row = 1e9
most_levels = 1000000
levels_per_row = 1.0
separation = false
[sums]
single = true
"""
# of the copies' own ledgers: the site's budget is not touched
_UNLIMITED = "[privacy]\nepsilon = 1e300\ndelta = 1e-5\n"


class Leaving(NamedTuple):
    """The messages of one kind that leave a site.

    Attributes
    ----------
    kind, update
        What is asked.
    messages
        How many.
    numbers
        In all of them.
    kilobytes
        Of all of them.
    form
        ``hidden`` in secure sums, ``single``, with noise or, without numbers, empty.
    """

    kind: str
    update: str
    messages: int
    numbers: int
    kilobytes: float
    form: str


def dry_run(site: Site | AgreeingSite, num_draws: int = 1000) -> list[Leaving]:
    """What leaves a site in a fit of its study, or in an agreement; a fit with more sites has other rounds.

    Parameters
    ----------
    site
        Its data are read, and stay.
    num_draws
        Of the posterior, per chain.
    """
    data = site.read_data()
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.toml"
        is_private = isinstance(site, Site) and site.study.configured.is_private
        policy.write_text(_POLICY + (_UNLIMITED if is_private else ""))

        def copy(name: str) -> Site | AgreeingSite:
            config: Config = {"site-id": name, "state-dir": str(Path(folder) / name), "policy": str(policy)}
            if isinstance(site, AgreeingSite):
                return AgreeingSite(site.study, lambda config: data, config)
            return Site(site.study, lambda config: data, config)

        copies = [copy(f"copy {number}") for number in range(1, _COPIES + 1)]
        network = Rehearsal(*copies)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(site, AgreeingSite):
                agree_over(network, site.study, num_clients=_COPIES)
            else:
                options: dict[str, Any] = {"num_draws": num_draws, "progress": False}
                fit_over(network, site.study, key=jax.random.key(0), num_clients=_COPIES, **options)
        return list(_leaving(list(copies[0].journal.entries()), _sizes(network, copies[0].name)))


def _sizes(network: Rehearsal, name: str) -> list[int]:
    """Bytes of one site's answers."""
    return [len(each) for each in network.answered if unpack(each).header["site"] == name]


def _leaving(entries: list[journal.Entry], sizes: list[int]) -> Iterator[Leaving]:
    pairs = list(zip(entries, sizes, strict=True))
    forms = {journal.HIDDEN: "hidden", journal.ANSWERED: "single", journal.NOISY: "single, with noise"}
    for kind, update, result in dict.fromkeys((entry.kind, entry.update, entry.result) for entry in entries):
        mine = [(e, size) for e, size in pairs if (e.kind, e.update, e.result) == (kind, update, result)]
        numbers = sum(entry.numbers for entry, _ in mine)
        form = forms.get(result, result) if numbers else ""
        yield Leaving(kind, update, len(mine), numbers, sum(size for _, size in mine) / 1e3, form)
