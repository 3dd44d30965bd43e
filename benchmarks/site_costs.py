"""What a site's own work for its patients' privacy costs: ``python benchmarks/site_costs.py``.

CPU seconds of one site, without any network: its part in a secure sum over ten sites with a hundred globals, its
owner's disclosure rules on a hundred thousand rows, and its look at where it is asked. Writes ``SITE_COSTS.md``.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import typer
from pages import machine, table, wrapped
from rich.console import Console

import fedbayes as fb
from fedbayes.contract.algorithm import Reply
from fedbayes.network.client.masks import Masks, public_key
from fedbayes.network.client.points import num_expanded
from fedbayes.network.client.secure import Hiding, Sums
from fedbayes.network.client.vault import Vault
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.network.transport import Address, Failure

HERE, KEY = Path(__file__).parent, jax.random.key(0)
NAMES = tuple(f"site{place}" for place in range(10))
GLOBALS, ROWS, COLUMNS, REPEATS = 100, 100_000, 14, 50
# the site's rows are simulated
POLICY = "[disclosure]\nsmallest_cell = 1\nglobals_per_row = 1e9\nseparation = false\n[studies]\nany = true\n"


class Sum(NamedTuple):
    """Of one site in a round.

    Attributes
    ----------
    numbers
        How many it adds to the sum.
    plain, hidden
        CPU seconds to write its answer as it is, and under masks.
    bytes_plain, bytes_hidden
        Of the answer's body.
    agreed
        CPU seconds to make the masks' secrets, once in a run.
    """

    numbers: int
    plain: float
    hidden: float
    bytes_plain: int
    bytes_hidden: int
    agreed: float


def cpu(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, the mean after a first one."""
    run()
    started = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - started) / repeats


def secure_sum(folder: Path, repeats: int) -> Sum:
    """An answer of as many numbers as an expansion has."""
    numbers = num_expanded(GLOBALS)
    reply = Reply(total=np.random.default_rng(0).normal(size=(1, numbers)), code=np.zeros(1, np.int32))
    privates = [f"{place + 1:064x}" for place in range(len(NAMES))]
    keys = [public_key(each) for each in privates]

    def agreed() -> Masks:
        return Masks.agreed(privates[0], 0, keys, {})

    masks, sums = agreed(), Sums(Vault(folder), NAMES, 0, {})
    rounds = iter(range(10**9))

    def hidden() -> Any:
        return sums.sent(reply, Hiding(masks, str(next(rounds)).encode()))

    return Sum(
        numbers,
        cpu(lambda: sums.sent(reply, None), repeats),
        cpu(hidden, repeats),
        len(sums.sent(reply, None).body),
        len(hidden().body),
        cpu(agreed, repeats),
    )


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """A logistic regression."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def rows(num: int) -> dict[str, np.ndarray]:
    """Covariates, half of them binary, and outcomes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num, COLUMNS))
    x[:, ::2] = x[:, ::2] > 0.5
    return {"x": x, "y": (rng.random(num) < 1.0 / (1.0 + np.exp(-x @ rng.normal(size=COLUMNS) / 4.0))).astype(np.int32)}


def rules(num: int, repeats: int) -> float:
    """CPU seconds of the disclosure rules."""
    data = {"site": rows(num)}
    return cpu(lambda: fb.disclosure(model, data), repeats)


class Timed(Rehearsal):
    """CPU seconds of the first site's answers to rounds."""

    def __init__(self, *sites: Site) -> None:
        super().__init__(*sites)
        self.seconds: list[float] = []

    def send(self, requests: Mapping[Address, bytes], timeout: float) -> Iterator[tuple[Address, bytes | Failure]]:
        """See :class:`~fedbayes.network.transport.Transport`."""
        for address, request in requests.items():
            started = time.process_time()
            yield from super().send({address: request}, timeout)
            if address == 1 and unpack(request).header["kind"] == "round":
                self.seconds.append(time.process_time() - started)


def answers(folder: Path, num: int, *, look: bool) -> list[float]:
    """CPU seconds of a site's answers to Newton rounds, of a second fit: all is compiled."""
    folder.mkdir()
    policy, data = folder / "policy.toml", {name: rows(num) for name in "abc"}
    policy.write_text(POLICY + ("" if look else "[points]\nnats_per_row = inf\n"))
    study, sites = Study(model, fb.Laplace()), []
    for name in data:
        config = {"site-id": name, "state-dir": str(folder / name), "policy": str(policy)}
        sites.append(Site(study, lambda given: data[given["site-id"]], config))
    network = Timed(*sites)
    for _ in range(2):
        network.seconds.clear()
        fit_over(network, study, key=KEY, num_clients=len(data), num_draws=50, correct=False, progress=False)
    return network.seconds


def page(added: Sum, checked: float, without: list[float], looked: list[float], num: int) -> str:
    """The page."""
    milliseconds = 1e3 * (added.hidden - added.plain)
    return "\n".join(
        [
            "# What a site's own care costs\n",
            wrapped(
                f"""CPU time of one site, without a network, by `python benchmarks/site_costs.py`; {machine()}
                What an answer costs over a network is in [NETWORK.md](NETWORK.md)."""
            ),
            "## A secure sum\n",
            wrapped(
                f"""A round with {GLOBALS} globals over {len(NAMES)} sites: {added.numbers:,} numbers, an expansion to
                second order. Masks add {milliseconds:.1f} ms to the {1e3 * added.plain:.1f} ms that it takes to write
                the answer, and {1e3 * added.agreed:.1f} ms once in a run for the secrets. A number travels as
                {added.bytes_hidden / added.numbers:.1f} bytes, and without masks as
                {added.bytes_plain / added.numbers:.1f}."""
            ),
            "## Disclosure rules\n",
            wrapped(
                f"""All rules on {num:,} rows of {COLUMNS} covariates and an outcome, as before the first message and
                whenever data have changed: {checked:.2f} s."""
            ),
            "## Where a site is asked\n",
            wrapped(
                f"""A site of {num:,} rows looks for its own likeliest values once in a run, and at each round compares
                those at which it is asked. Answers to the Newton rounds of a fit that has been compiled:"""
            ),
            *table(
                ("", "first round", "later rounds, each"),
                [
                    (words, f"{each[0]:.2f} s", f"{np.mean(each[1:]):.2f} s")
                    for words, each in (("without a look", without), ("with", looked))
                ],
                right_from=1,
            ),
        ]
    )


def main(
    output: Annotated[Path, typer.Option(help="The page.")] = HERE / "SITE_COSTS.md",
    quick: Annotated[bool, typer.Option(help="Try that everything runs, and write nothing.")] = False,
) -> None:
    """Measure, and write the page."""
    logging.disable(logging.WARNING)
    num, repeats = (1_000, 2) if quick else (ROWS, REPEATS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        added, checked = secure_sum(folder / "vault", repeats), rules(num, min(repeats, 5))
        without, looked = (answers(folder / str(look), num, look=look) for look in (False, True))
    text = page(added, checked, without, looked, num)
    if quick:
        Console(stderr=True).print(text)
        return
    output.write_text(text)


if __name__ == "__main__":
    typer.run(main)
