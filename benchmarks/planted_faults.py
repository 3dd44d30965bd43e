"""Faults planted one by one in both halves of EP and its local solvers: which test of `make test` notices?

    python benchmarks/planted_faults.py                     # all of them
    python benchmarks/planted_faults.py --only damping      # those whose name contains this
    python benchmarks/planted_faults.py --slow              # with the slow tests, too

Each fault is one replacement in a copy of the package, which the tests of :data:`TESTS` import in its place. The
test that has caught it before is tried first; where it passes, or none is known, all tests run, up to the first one
that fails. Results go to ``planted_faults.json``, and all of them into ``PLANTED_FAULTS.md``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pages import table

import fedbayes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NO_SUCH_TEST, NO_TESTS_RUN = 4, 5  # pytest's exit codes
TESTS = (
    "tests/inference/local",
    "tests/inference/test_mode.py",
    "tests/inference/test_starts.py",
    "tests/inference/ep",
    "tests/fedbayes/network/test_sums.py",
)
STORE, PAGE = HERE / "planted_faults.json", HERE / "PLANTED_FAULTS.md"


class Fault(NamedTuple):
    """One replacement in a file below ``fedbayes/inference``."""

    name: str
    file: str
    right: str
    wrong: str


FAULTS = (
    # those that the tests once let pass
    Fault(
        "quadratic control variate without its mean",
        "local/density/moments.py",
        "residual * scores + 1.0, axis=1",
        "residual * scores, axis=1",
    ),
    Fault("damping twice as large", "ep/step.py", "2.0 * ratio / (1.0 + ratio)", "4.0 * ratio / (1.0 + ratio)"),
    Fault(
        "moments matched in an improper cavity",
        "ep/client.py",
        "jnp.where(was_improper & (own > _MOST_OWN), _MOST_OWN / own, 1.0)",
        "jnp.where(was_improper & (own > _MOST_OWN), 1.0, 1.0)",
    ),
    # the server's half
    Fault("no trust region", "ep/step.py", "- 0.1 * identity", ""),
    Fault("a client counts in its own cavity", "ep/client.py", "everybody - site.scaled(power)", "everybody"),
    Fault("change of a damped round not undone", "ep/server.py", "jnp.inf, rms / step)", "jnp.inf, rms)"),
    Fault(
        "messages of inactive clients used",
        "../rounds/executors/executor.py",
        "usable(reply.code) & real.reshape(real.shape + (1,) * (reply.code.ndim - 1))",
        "jnp.ones_like(usable(reply.code))",
    ),
    Fault(
        "the prior's site never refined",
        "ep/server.py",
        "where(_usable(found), found.site - own, refined)",
        "refined",
    ),
    Fault(
        "the prior's site as before the last step",
        "ep/step.py",
        "return self.prior + self.prior_direction.scaled(self.step)",
        "return self.prior",
    ),
    Fault("converged at any noise", "ep/step.py", "| near) & (noise <= NOISE_TARGET)", "| near)"),
    Fault(
        "rounds without progress never forgotten",
        "ep/server.py",
        "jnp.where(fine, 0.0, state.stuck + 1.0)",
        "state.stuck + jnp.where(fine, 0.0, 1.0)",
    ),
    Fault("slope of the convex part at zero", "mode.py", "slope + precision @ position", "site.shift"),
    Fault(
        "the whole expansion kept where its convex part counts",
        "mode.py",
        "settled.replied(counted, unpacked(site), round_)",
        "settled.replied(counted, unpacked(reply.total.site), round_)",
    ),
    Fault(
        "expansions at the last position told as those at the best",
        "mode.py",
        "jnp.where(self.heard, self.best_round, NEVER)",
        "jnp.where(self.heard, self.round, NEVER)",
    ),
    Fault(
        "expansions beyond the family of the sites",
        "ep/server.py",
        "packed(family.within(unpacked(each)))",
        "packed(unpacked(each))",
    ),
    # which replies count: the server's book
    Fault(
        "a reply that was lost is counted",
        "ep/server.py",
        "_counted(state, replies.used & plain, step)",
        "_counted(state, jnp.full_like(replies.used, True) & plain, step)",
    ),
    Fault("converged although a site is lost", "ep/server.py", '"converged": plain & ~lost', '"converged": plain'),
    # the count of all sites once one is lost
    Fault("no count where a site is lost", "ep/server.py", "| (lost & ~counting)", ""),
    Fault(
        "the recount forgets the prior", "ep/server.py", "state.prior_site() + sites, state.base)", "sites, state.base)"
    ),
    Fault("the recount ends before all are heard", "ep/server.py", "counting & jnp.all(heard)", "counting"),
    Fault(
        "a client counted twice",
        "ep/server.py",
        "recount.running & ~recount.heard)",
        "recount.running & (recount.heard | True))",
    ),
    Fault("the last recount left in the next", "ep/server.py", "where(running & counting, sites, flat)", "sites"),
    Fault(
        "a step while the sites are counted",
        "ep/server.py",
        "plain = ~counting & jnp.any(used)",
        "plain = jnp.any(used)",
    ),
    Fault(
        "a step where nobody's reply is used",
        "ep/server.py",
        "plain = ~counting & jnp.any(used)",
        "plain = ~counting",
    ),
    Fault(
        "whole sites not told as counted",
        "ep/server.py",
        "jnp.where(asked, state.round, state.counted.round), jnp",
        "state.counted.round, jnp",
    ),
    # the client's book
    Fault(
        "an improper cavity forgotten",
        "ep/client.py",
        "was_improper = was_improper | (smallest",
        "was_improper = (smallest",
    ),
    Fault(
        "a singular cavity called improper",
        "ep/client.py",
        "(smallest < -_IMPROPER_SLACK)",
        "(smallest < _IMPROPER_SLACK)",
    ),
    Fault(
        "a cavity narrowed that was never improper",
        "ep/client.py",
        "jnp.where(was_improper & (own > _MOST_OWN),",
        "jnp.where(own > _MOST_OWN,",
    ),
    Fault("a lost site not reported", "ep/client.py", "lost=lost.astype(float)", "lost=0.0 * lost.astype(float)"),
    Fault(
        "a site proposed in the place of a lost one",
        "ep/client.py",
        "idle = lost | shared.recount",
        "idle = shared.recount",
    ),
    Fault(
        "a site proposed while the sites are counted",
        "ep/client.py",
        "idle = lost | shared.recount",
        "idle = lost",
    ),
    Fault("the whole site sent as a change", "ep/client.py", "proposed - site))", "proposed))"),
    Fault(
        "a change sent as the whole site", "ep/client.py", "where(told.whole, site, proposed - site)", "proposed - site"
    ),
    Fault(
        "a site other than the one sent kept",
        "ep/client.py",
        "kept.replied(told.counted, proposed,",
        "kept.replied(told.counted, found.site,",
    ),
    Fault(
        "the last reply taken for counted",
        "own_site.py",
        "is_later = counted.round == self.later_round",
        "is_later = counted.round != NEVER",
    ),
    Fault(
        "the reply before the last not kept",
        "own_site.py",
        "return self._replace(step=counted.step,",
        "return self._replace(round=counted.round + 0.5, step=counted.step,",
    ),
    Fault(
        "a loss not noticed",
        "own_site.py",
        "(counted.round != found.round) & ~none",
        "(counted.round != found.round) & False",
    ),
    Fault("a loss seen before any reply has counted", "own_site.py", " & ~none", ""),
    Fault("a site proposed but never counted kept", "own_site.py", "where(lost | none, one", "where(lost, one"),
    Fault("every step taken for a whole one", "own_site.py", "_between(self.old, self.new, self.step)", "self.new"),
    Fault(
        "the step of a reply not kept", "own_site.py", "self._replace(step=counted.step, later", "self._replace(later"
    ),
    Fault(
        "a client counts in its cavity after the rounds",
        "own_site.py",
        "everybody - settled.at(told.counted))",
        "everybody)",
    ),
    # what the server is sent
    Fault(
        "single log-likelihoods sent over a network, not their sum",
        "../results/personal.py",
        "self._problem.elsewhere and not single",
        "False",
    ),
    # the local solvers
    Fault("no proposal density in the weights", "local/sampling/draws.py", "+ 0.5 * jnp.sum(noise**2, axis=1)", ""),
    Fault(
        "smoothed weights in the wrong places",
        "../numerics/importance.py",
        ".at[order].set(ranked)",
        ".at[jnp.argsort(order)].set(ranked)",
    ),
    Fault(
        "site of the first moment without the score",
        "local/density/moments.py",
        "slopes[0] + precision @ mean, precision",
        "precision @ mean, precision",
    ),
    Fault(
        "locals not integrated out of a Laplace site",
        "local/density/moments.py",
        "curvature[:size, :size] - half.T @ half",
        "curvature[:size, :size]",
    ),
    Fault(
        "evidence of a Laplace site with the sign of its determinant",
        "local/density/tilted.py",
        "LOG_2PI - log_det(mode.white)",
        "LOG_2PI + log_det(mode.white)",
    ),
    Fault(
        "wide half of a nested proposal not in the weights", "local/sampling/nested.py", " - size * jnp.log(wide)", ""
    ),
    Fault(
        "spread of the locals not in the nested weights",
        "local/sampling/integration.py",
        " + jax.vmap(Conditional.log_spread)(given)",
        "",
    ),
    Fault(
        "integrals behind nested weights not looked at",
        "local/sampling/integration.py",
        "((k_hat <= K_HAT_LIMIT) | even) & known",
        "(k_hat <= K_HAT_LIMIT) | even",
    ),
    Fault(
        "integrals of a draw with the constant of its sides",
        "local/sampling/integration.py",
        "jnp.tile(integrals, 2)",
        "jnp.tile(integrals + 2.0, 2)",
    ),
    Fault(
        "a spline through a cliff",
        "local/density/quadrature.py",
        "_bounded(scale * slopes + places[:, None])",
        "scale * slopes + places[:, None]",
    ),
    Fault(
        "down a cliff by Newton steps alone", "local/density/conditional.py", "2.0 * carry.moved", "0.0 * carry.moved"
    ),
    Fault("nested draws weighed evenly", "local/sampling/nested.py", "jnp.where(last, draws.weight, even)", "even"),
    Fault(
        "nested draws weighed that were not made",
        "local/sampling/nested.py",
        "jnp.tile(batch.taken, 2) / both",
        "jnp.full(2 * num_samples, 0.5 / num_samples)",
    ),
    Fault(
        "the cavity left in an opening site",
        "local/density/tilted.py",
        "precision @ mean - cavity.shift, precision - cavity.precision",
        "precision @ mean, precision",
    ),
    Fault(
        "the last Newton step not taken", "local/density/laplace.py", "jnp.where(done, after[0], position)", "position"
    ),
    Fault(
        "noise of a site ten times too small",
        "local/density/moments.py",
        "jnp.sum(covariance * self.level) + 0.5 * entries",
        "0.01 * (jnp.sum(covariance * self.level) + 0.5 * entries)",
    ),
    # searches from several starts
    Fault(
        "starts: the lightest mode in place of the heaviest",
        "starts.py",
        "modes.mean[jnp.argmax(jnp.where(known, modes.log_integral, -jnp.inf))]",
        "modes.mean[jnp.argmax(jnp.where(known, -modes.log_integral, -jnp.inf))]",
    ),
    Fault(
        "starts: numbers that a sum has lost are used",
        "starts.py",
        "replies.used & fine",
        "replies.used",
    ),
    Fault(
        "starts: searches that have led nowhere are modes",
        "starts.py",
        "jnp.where(self.arrived, log_integral, jnp.nan)",
        "log_integral",
    ),
    Fault(
        "starts: all searches begin near zero",
        "starts.py",
        "jnp.concatenate([cold_start(roster.size)[None], drawn])",
        "jnp.concatenate([cold_start(roster.size)[None], 0.0 * drawn])",
    ),
    Fault(
        "starts: the rounds begin near zero whatever was found",
        "starts.py",
        "_begun(mode, roster, heaviest(found))",
        "_begun(mode, roster, cold_start(roster.size))",
    ),
    Fault(
        "starts: a search arrives while a client is away",
        "starts.py",
        'info["converged"] & jnp.all(moved.heard, axis=1)',
        'info["converged"]',
    ),
    Fault(
        "starts: rounds without answers count as failures",
        "starts.py",
        "partial(_chosen, state.ended | ~complete)",
        "partial(_chosen, state.ended)",
    ),
    Fault(
        "starts: noughts for what is not finite",
        "starts.py",
        "jnp.full_like(leaf, jnp.nan)), told)",
        "jnp.zeros_like(leaf)), told)",
    ),
    Fault(
        "starts: EP forgets the modes",
        "ep/server.py",
        "state._replace(modes=previous.modes)",
        "state._replace(modes=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), previous.modes))",
    ),
)


def plant(fault: Fault, folder: Path) -> None:
    """A copy of the package with the fault in it.

    Raises
    ------
    ValueError
        The text to replace is not, or not only once, in the file.
    """
    package = folder / "fedbayes"
    shutil.copytree(Path(fedbayes.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = package / "inference" / fault.file
    text = path.read_text()
    if text.count(fault.right) != 1:
        raise ValueError(f"'{fault.right}' is {text.count(fault.right)} times in {fault.file}; it must be there once.")
    path.write_text(text.replace(fault.right, fault.wrong))


def caught_by(fault: Fault, known: str, *, slow: bool) -> str:
    """The first test that fails; empty if none does. ``known`` is tried before all others."""
    with tempfile.TemporaryDirectory() as folder:
        plant(fault, Path(folder))
        caught = _failing(folder, _where(known), slow=slow) if _where(known) else ""
        return caught or _failing(folder, [str(ROOT / name) for name in TESTS], slow=slow)


def _where(known: str) -> list[str]:
    """The address of a test that a page names by its file's name alone; empty where it is no more."""
    name, _, test = known.strip("`").partition("::")
    found = sorted(ROOT.glob(f"tests/**/{name}")) if name else []
    return [f"{found[0]}::{test}"] if found and test.partition("[")[0] in found[0].read_text() else []


def _failing(folder: str, tests: list[str], *, slow: bool) -> str:
    """The first of these tests that fails on the package in a folder."""
    workers = ["-n", "2", "--dist", "loadfile"] if len(tests) > 1 else []
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-x", "-q", *workers, "-p", "no:cacheprovider", *(["-m", ""] * slow), *tests],
        env={**os.environ, "PYTHONPATH": folder},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (NO_SUCH_TEST, NO_TESTS_RUN) and len(tests) == 1:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) \S*?([^/\s]+\.py)::(\S+)", done.stdout, re.MULTILINE)
    if done.returncode and failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode} and names no test:\n{done.stdout[-2000:]}")
    return f"`{failed[1]}::{failed[2]}`" if failed else ""


_HEAD = """\
# Planted faults

Written by `planted_faults.py`. Each row is one replacement in a copy of the package, and a test of `make test` in
`tests/inference/ep`, `tests/inference/local`, `tests/inference/test_mode.py`, `tests/inference/test_starts.py` or
`tests/fedbayes/network/test_sums.py` that fails on it. Other tests may fail too. The first three are faults that the
tests once let pass.

Since clients keep their own sites and the server sees sums, seven faults are other replacements than before; none was
dropped then. Since a client sees to an improper cavity itself, no step is taken back, and the faults of that are gone.

- *moments matched in an improper cavity*: before, a step that the server kept although a cavity had become improper.
- *a client counts in its own cavity*: the client forms it, no longer the server.
- *messages of inactive clients used*: the server held the sites and chose among them; now the executor adds up replies,
  and the fault is in that sum.
- *slope of the convex part at zero*: each client takes the convex part of its own expansion, in `mode.py`.
- *change of a damped round not undone*, *the prior's site never refined*, *rounds without progress never forgotten*:
  the same faults, in lines that are written anew.

New are those of the book-keeping: which replies count and how far, what a client keeps and says, and the count of all
sites once one is lost; and those of the searches from several starts.
"""


def page(found: Mapping[str, str]) -> str:
    """``PLANTED_FAULTS.md``."""
    faults = [fault for fault in FAULTS if fault.name in found]
    caught = sum(bool(found[fault.name]) for fault in faults)
    lines = [_HEAD, f"{caught} of {len(faults)} are caught.", ""]
    rows = [(each.name, f"`{each.file}`", found[each.name] or "**nothing**") for each in faults]
    return "\n".join([*lines, *table(("fault", "in", "caught by"), rows)])


def main(
    only: Annotated[str, typer.Option(help="A part of the names of the faults to plant.")] = "",
    slow: Annotated[bool, typer.Option("--slow", help="Run the slow tests, too.")] = False,
) -> None:
    """Plant, test, print, and write."""
    found = json.loads(STORE.read_text()) if STORE.exists() else {}
    for fault in FAULTS:
        if only in fault.name:
            found[fault.name] = caught_by(fault, found.get(fault.name, ""), slow=slow)
            print(f"{fault.name}: {found[fault.name] or 'NOTHING'}", flush=True)
            STORE.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    typer.run(main)
