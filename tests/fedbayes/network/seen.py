"""What a server sees of each answer of rehearsed fits, and the table of it in the page "What leaves a client".

``python tests/fedbayes/network/seen.py`` rehearses the fits and writes the table into the page.
"""

import json
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.append(str(Path(__file__).parents[1]))  # for the helpers above, where this is run by itself

from permissive import PERMISSIVE

import fedbayes as fb
from fedbayes.correction.correct import num_first
from fedbayes.errors import NotConvergedWarning, UnreliableWarning
from fedbayes.network.fit import fit_over
from fedbayes.network.messages import unpack
from fedbayes.network.rehearsal import Rehearsal
from fedbayes.network.site import Site
from fedbayes.network.study import Study
from fedbayes.rounds.wire import arrays_of

NAMES = ("east", "home", "west")
KINDS = ("hello", "join", "round", "after", "conclude")


def model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def with_locals(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with fb.local():
        theta = numpyro.sample("theta", dist.Normal(mu, 0.5).to_event(1))
    numpyro.sample("y", dist.Normal(x @ theta, 1.0), obs=y)


HIDDEN = ", hidden"
METHODS = {
    "EP": (model, fb.EP(solver="laplace", num_replicates=2)),
    "EP with draws": (model, fb.EP(num_replicates=2)),
    "EP with locals": (with_locals, fb.EP(num_replicates=2)),
    "FA-LD": (model, fb.FALD(num_chains=2, num_warmup=2, thinning=1)),
    "FedAvg": (model, fb.FedAvg(local_steps=2)),
    "one shot": (model, fb.OneShot(combine="consensus")),
}
METHODS |= {which + HIDDEN: METHODS[which] for which in METHODS if which != "EP with draws"}
ROWS, D, DRAWS = 20, 5, 8


def data(rows=ROWS, dim=D):
    """Three sites with so many rows; no number of theirs is a round one."""
    rng = np.random.default_rng(dim)
    clients = {}
    for name in NAMES:
        x = rng.normal(size=(rows, dim))
        clients[name] = {"x": x, "y": x.sum(axis=1) + rng.normal(size=rows)}
    return clients


def rehearse(folder, clients, which="EP", site=Site):
    """All answers of a fit, and the sites."""
    program, method = METHODS[which]
    study = Study(program, method)
    configs = [{"site-id": name, "state-dir": str(folder / name), **PERMISSIVE} for name in clients]
    network = Rehearsal(*(site(study, lambda config: clients[config["site-id"]], each) for each in configs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        warnings.simplefilter("ignore", UnreliableWarning)
        options = {"num_rounds": None if which.startswith("FA-LD") else 3, "num_draws": DRAWS}
        options |= {"secure_sums": which.endswith(HIDDEN), "progress": False}
        fit_over(network, study, key=jax.random.key(0), num_clients=len(clients), **options)
    return network


def loose(header) -> list:
    """What a header tells as text of no fixed length: numbers of rows and of the order, and one flag."""
    told = header.get("told", {})
    rows = [shape[0] for shape, *_ in told["arrays"].values()] if header["kind"] == "hello" else []
    return rows + [place[name] for place, name in ((header, "order"), (told, "agrees")) if name in place]


def size_of(answer) -> int:
    """Its bytes, without those of such texts."""
    return len(answer) - sum(len(json.dumps(each)) for each in loose(unpack(answer).header))


def sizes(answers):
    """(kind, bytes) of each answer, in order, without the digits of the numbers of rows, which are told as text."""
    return sorted((unpack(answer).header["kind"], size_of(answer)) for answer in answers)


class Seen(NamedTuple):
    """What a server sees of one answer.

    Attributes
    ----------
    numbers, hidden
        How many numbers it has, and how many of these are uniform bits, as terms of a secure sum.
    size
        Bytes, see :func:`size_of`.
    kind
        Of the message, as its header says.
    """

    numbers: int
    hidden: int
    size: int
    kind: str


def seen(answer) -> Seen:
    message = unpack(answer)
    arrays = arrays_of(message.body) if message.body else {}
    hidden = len(arrays.get("masked", ()))
    numbers = sum(array.size for array in arrays.values()) - hidden  # each hidden number is two words
    return Seen(numbers, hidden, size_of(answer), message.header["kind"])


def counts(which, formula) -> dict[str, int]:
    """The letters of a formula, by the options of the fit; a formula without replicates is that of a search with one.

    Where rounds are draws, the check is at so many of each chain.
    """
    method = METHODS[which][1]
    replicates = method.num_replicates if "R" in formula else 1
    are_draws = isinstance(method, fb.FALD)
    of_one = DRAWS if are_draws else sum(num_first(DRAWS, replicates))
    return {"d": D, "R": replicates, "N": replicates * of_one}


def by_question(network) -> dict[str, set[Seen]]:
    """What was seen, by what was asked: the name of an update, or the kind of a message whose answer has no numbers."""
    found = {}
    for asked, answer in zip(network.sent, network.answered, strict=True):
        header, one = unpack(asked).header, seen(answer)
        found.setdefault(header["update"] if one.numbers else header["kind"], set()).add(one)
    return found


GAUSSIAN = "d + d*(d+1)/2"
SEARCH = {"newton": ("its expansion, for the search for the mode", f"{GAUSSIAN} + 3")}
CHANGE = ("how its Gaussian site should change", f"R*({GAUSSIAN} + 4)")
CHECK = "its log-likelihoods at the check's draws"
NOUGHTS = "and two noughts a replicate, as without locals they have no noise"
AFTER = {"log_likelihood_sum": (f"{CHECK}, {NOUGHTS}", "N + 3*R")}
TABLE = {  # what is asked of whom, by the updates' names, and how many numbers are answered
    "EP": {"laplace": CHANGE} | AFTER,
    "EP with locals": {
        "newton": ("its expansion, and the convex part of it, for the search for the mode", f"2*({GAUSSIAN} + 2)"),
        "nested": CHANGE,
        "log_likelihood_sum": (f"{CHECK}, and for each two numbers of its noise", "3*N + R"),
    },
    "FA-LD": SEARCH
    | {
        "differences": ("curvatures at the mode", "d**2 + d + 1284"),
        "langevin": ("positions and gradients", "R*(3*d + 2)"),
    }
    | AFTER,
    "FedAvg": {
        "power": ("its largest curvature", "642"),
        "steps": ("the change of the point", "2*d + 3"),
        "expansion": ("its expansion at the end", f"{GAUSSIAN} + 2"),
    }
    | AFTER,
    "one shot": {
        "importance": ("draws of its own posterior", f"R*(1024*d + {GAUSSIAN} + 2)"),
        "log_factor": ("its log-density at 512 draws", "513*R"),
    }
    | AFTER,
}
COLUMNS = ("method", "message", "what leaves the site", "numbers", "here", "hidden of these", "bytes", "bytes, hidden")


def table(network_of) -> str:
    """The table of the page, of the networks of rehearsed fits by their names in :data:`METHODS`.

    Raises
    ------
    AssertionError
        A message was recorded that the table does not know, or has other numbers than its formula says, or in secure
        sums others are seen than result codes, one for each replicate, and a merge's single messages.
    """
    fits = {which: [by_question(network_of(which + form)) for form in ("", HIDDEN)] for which in TABLE}
    lines = [COLUMNS, ["---"] * 4 + ["---:"] * 4]
    for kind in ("hello", "join", "conclude"):
        found = [set().union(*(fit.pop(kind) for fit in forms)) for forms in zip(*fits.values(), strict=True)]
        lines.append(("every method", f"`{kind}`", "", "", *cells(*found)))
    for which, forms in fits.items():
        assert [set(fit) for fit in forms] == [set(TABLE[which])] * 2, which
        for update, (words, formula) in TABLE[which].items():
            opened, hidden = (fit[update] for fit in forms)
            letters = counts(which, formula)
            (kind,) = {one.kind for one in opened | hidden}
            numbers = eval(formula, {}, letters)
            is_single = bool(METHODS[which][1].single_messages) and kind == "round"
            assert {one.numbers for one in opened} == {numbers}, (which, update)
            assert {one.hidden for one in hidden} == {0 if is_single else numbers - letters["R"]}, (which, update)
            lines.append((which, f"`{kind}`", words, f"`{formula}`", *cells(opened, hidden)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(opened: set[Seen], hidden: set[Seen]) -> tuple[str, ...]:
    """Numbers, hidden ones, and bytes of the answers to a question, without and with secure sums."""
    assert {each.numbers for each in opened} == {each.numbers for each in hidden}
    assert {each.hidden for each in opened} == {0}
    found = [[each.numbers for each in opened], [each.hidden for each in hidden]]
    found += [[each.size for each in form] for form in (opened, hidden)]
    return tuple(map(told, found))


def told(values) -> str:
    """A number; the least and the largest where there are several."""
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


PAGE = Path(__file__).resolve().parents[3] / "docs" / "what-leaves-a-client.md"
BEGIN, END = "<!-- recorded: begin -->\n\n", "\n\n<!-- recorded: end -->"


def read_table() -> str:
    """As it stands in the page."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def main() -> None:
    """Rehearse the fits, and write the table into the page."""
    with TemporaryDirectory() as folder:

        def network_of(which):
            return rehearse(Path(folder) / which, data(), which)

        before, after = PAGE.read_text().split(read_table())
        PAGE.write_text(before + table(network_of) + after)


if __name__ == "__main__":
    main()
