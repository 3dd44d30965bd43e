"""Posteriors of posteriordb that factor over clients, by EP's defaults, against their reference draws.

``python benchmarks/posteriordb.py --database PATH``, where PATH is a clone of github.com/stan-dev/posteriordb (with or
without a work tree). Neither its data nor its draws are part of fedbayes. Adds what it measures to
``posteriordb.json``, and writes ``POSTERIORDB.md`` from it. An interrupted run goes on where it stopped.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import pages
import typer
from federated import mixture, rounds_of
from numpyro.handlers import seed
from numpyro.infer.util import unconstrain_fn
from pages import machine
from posteriordb_sets import NUM_CLIENTS, POSTERIORS, SPLITS, Columns, Database, Posterior
from rich.console import Console
from scores import Moments, kl, of_draws, score

import fedbayes as fb
from fedbayes.problem.program.sites import trace_sites

FOLDER = Path(__file__).parent
STORE = FOLDER / "posteriordb.json"
_MEANS, _SDS = 0.1, 0.1  # errors up to which a row is right: of the means in reference sds, of the sds relatively
LONG_TAILS = "but for the sds of long tails"  # what a fit says of sds that it does not vouch for


class Reference(NamedTuple):
    """Moments of the unconstrained globals over all reference draws.

    Attributes
    ----------
    moments
        Mean and covariance.
    own_kl
        The KL that their own Monte Carlo error causes: a quarter of that between the two halves of the chains.
    """

    moments: Moments
    own_kl: float


def reference_of(posterior: Posterior, database: Database, clients: Mapping[str, Any]) -> Reference:
    """From posteriordb's draws, through the model's own bijections."""
    chains = database.read(f"reference_posteriors/draws/draws/{posterior.reference or posterior.name}.json.zip")
    halves = [_unconstrained(posterior.model, chains[start::2], next(iter(clients.values()))) for start in (0, 1)]
    own = kl(of_draws(halves[0]), of_draws(halves[1])) / 4
    return Reference(of_draws(np.concatenate(halves)), own)


def _unconstrained(model: Callable, chains: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> np.ndarray:
    """Draws of the globals, shape ``(n, d)``, in the order of the program."""
    draws = {label: np.concatenate([chain[label] for chain in chains]) for label in chains[0]}
    sites = trace_sites(model, {}, data)
    names = [name for name, site in sites.items() if site.kind == "latent" and not site.local]
    values = {name: _array(name, draws) for name in names}
    found = jax.jit(jax.vmap(lambda draw: unconstrain_fn(seed(model, 0), (), data, draw)))(values)
    return np.concatenate([np.asarray(found[name]).reshape(len(found[name]), -1) for name in names], axis=1)


def _array(name: str, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """One of Stan's parameters: a number, or a vector whose entries are ``name[1]``, ``name[2]``, ..."""
    if name in draws:
        return draws[name]
    return np.stack([values for label, values in draws.items() if label.startswith(f"{name}[")], axis=1)


def clients_of(posterior: Posterior, data: Columns, split: str) -> dict[str, dict[str, np.ndarray]]:
    """Equal shares of the rows."""
    table = posterior.table(data)
    rows = posterior.order(split, data, len(table["y"]))
    return {
        f"client{k}": {name: values[part] for name, values in table.items()}
        for k, part in enumerate(np.array_split(rows, NUM_CLIENTS))
    }


def measure(posterior: Posterior, split: str, database: Database) -> dict[str, Any]:
    """One row of the table."""
    data = database.read(f"data/data/{posterior.name.split('-')[0]}.json.zip")
    clients = clients_of(posterior, data, split)
    reference = reference_of(posterior, database, clients)
    row: dict[str, Any] = {
        "posterior": posterior.name,
        "split": posterior.words(split),
        "globals": len(reference.moments.mean),
        "rows": sum(len(client["y"]) for client in clients.values()),
        "own_kl": reference.own_kl,
    }
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = fb.fit_federated(posterior.model, clients, key=jax.random.key(0), progress=False)
    except (fb.ClientDataError, fb.FederatedError, fb.ModelError) as error:
        return row | {"refused": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - started}
    return row | {"seconds": time.perf_counter() - started} | _scored(fit, reference)


def _scored(fit: fb.FederatedFit, reference: Reference) -> dict[str, Any]:
    gaussian, found = mixture(*fit.moments()), of_draws(fit.theta.reshape(-1, fit.theta.shape[-1]))
    _, verdict_said = repr(fit).rsplit("verdict", 1)
    return {
        **_against(found, reference.moments),
        "gaussian": _against(gaussian, reference.moments),
        "rounds": " + ".join(f"{count} {name}" for name, count in rounds_of(fit).items()),
        "exchanges": int(fit.communication.exchanges),
        "converged": fit.converged,
        "usable": fit.usable,
        "monte_carlo_error": fit.monte_carlo_error,
        "says": verdict_said.strip(),
        "trouble": fit.trouble(),
    }


def _against(found: Moments, reference: Moments) -> dict[str, float]:
    """How far moments are from the reference's."""
    off = np.abs(found.mean - reference.mean) / np.sqrt(np.diagonal(reference.covariance))
    return score(found, reference)._asdict() | {"largest": float(np.max(off))}


def verdict(row: Mapping[str, Any]) -> str:
    """Right, or off and whether the fit says so."""
    if "refused" in row:
        return "refused"
    means_right = row["largest"] <= _MEANS
    sds_right = 1.0 - _SDS <= row["least_sd_ratio"] <= row["largest_sd_ratio"] <= 1.0 + _SDS
    if means_right and sds_right:
        return "right" if row["usable"] else "right, but says otherwise"
    warned = not row["usable"] or (means_right and LONG_TAILS in row["says"])
    return "off, and says so" if warned else "WRONG"


# ------------------------------------------------------------------------------------------------------------ writing


_COLUMNS = (
    "posterior",
    "split",
    "d",
    "rows",
    "rms error, sds",
    "largest",
    "sd ratios",
    "KL",
    "KL floor",
    "Gaussian's largest",
    "Gaussian's sd ratios",
    "rounds",
    "exchanges",
    "s",
    "own error, sds",
    "what the fit says",
    "verdict",
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    start = [row["posterior"], row["split"], str(row["globals"]), str(row["rows"])]
    if "refused" in row:
        return [*start, *["-"] * 4, f"{row['own_kl']:.1g}", *["-"] * 6, row["refused"], verdict(row)]
    gaussian = row["gaussian"]
    return [
        *start,
        f"{row['rms']:.3f}",
        f"{row['largest']:.3f}",
        f"{row['least_sd_ratio']:.3f} - {row['largest_sd_ratio']:.3f}",
        f"{row['kl']:.2g}",
        f"{row['own_kl']:.1g}",
        f"{gaussian['largest']:.3f}",
        f"{gaussian['least_sd_ratio']:.3f} - {gaussian['largest_sd_ratio']:.3f}",
        row["rounds"],
        str(row["exchanges"]),
        f"{row['seconds']:.1f}",
        f"{row['monte_carlo_error']:.1g}",
        row["says"],
        verdict(row),
    ]


_EXPLAINED = f"""\
Written by `posteriordb.py`. Posteriors of posteriordb (Magnusson, Bürkner and Vehtari) that factor over rows and have
reference draws, each a federation of {NUM_CLIENTS} clients with equal shares of the rows, dealt out at random, in the
order of the main covariate, and in the order of the outcome. EP with its defaults, one fit a row. The priors are
Stan's; flat ones stay flat, on `sigma` itself. posteriordb has no reference draws of a logistic or a Poisson
regression.

Errors are those of `fit.idata`'s draws, in unconstrained space, against the reference draws (10,000, nearly
independent, so that their means are uncertain by 0.01 sds): of the means in reference sds, root mean square and the
largest; their sds over the reference's; KL(fit || reference) of Gaussians with these moments. *KL floor* is the KL that
the reference's own Monte Carlo error causes, a quarter of that between two halves of its draws. *Gaussian's largest*
and *Gaussian's sd ratios* are the same errors of the Gaussian that the rounds end with, before it is corrected. *Own
error* is the Monte Carlo error of the rounds. *s* is the whole call; the first fit of a model and a shape compiles its
programs, as far as JAX has not kept them on disk, and the others use them.

*Right*: every mean within {_MEANS} sds, every sd within {_SDS:.0%}; *off* otherwise. A fit *says* that it is off where
`fit.usable` is false, or, of sds alone, where its verdict does not vouch for those of long tails. *WRONG*: off, and it
says nothing. Before the correction the sd of `log tau` of the eight schools is off by up to a fifth: its long left
tail is not Gaussian.
"""


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """``POSTERIORDB.md``."""
    verdicts = [verdict(row) for row in rows]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in sorted(set(verdicts)))
    machines = sorted({row["machine"] for row in rows})
    lines = ["# EP on posteriordb", "", *_EXPLAINED.splitlines(), "", *machines, "", f"{len(rows)} fits: {counts}.", ""]
    lines += pages.table(_COLUMNS, [[cell.replace("|", "/").replace("\n", " ") for cell in cells(row)] for row in rows])
    told = [f"- {row['posterior']}, {row['split']}: {row['trouble']}" for row in rows if row.get("trouble")]
    if told:
        lines += ["What the fits that have not converged say:", "", *told, ""]
    return "\n".join(lines)


def _key(name: str, split: str) -> str:
    return f"{name}/{split}"


def main(
    database: Annotated[Path | None, typer.Option(help="A clone of github.com/stan-dev/posteriordb.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Posteriors to measure anew, by a part of the name.")] = None,
    split: Annotated[list[str], typer.Option(help="Splits to measure; all if left out.")] = list(SPLITS),  # noqa: B006
    afresh: Annotated[bool, typer.Option(help="Measure stored rows anew.")] = False,
) -> None:
    """Measure what is not stored yet, print, and write."""
    if database is None:
        raise typer.BadParameter(
            "`--database` is missing: the data and the reference draws are not part of fedbayes. Clone "
            "github.com/stan-dev/posteriordb and give the path of the clone."
        )
    names = [name for name in POSTERIORS if not only or any(part in name for part in only)]
    if not names:
        raise typer.BadParameter(f"`--only` is {only}, which no posterior's name contains: {list(POSTERIORS)}.")
    if unknown := [name for name in split if name not in SPLITS]:
        raise typer.BadParameter(f"`--split` is {unknown}; the splits are {list(SPLITS)}.")
    jax.config.update("jax_enable_x64", True)
    source, console = Database(database), Console(soft_wrap=True, highlight=False)
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    todo = [_key(name, chosen) for name in names for chosen in POSTERIORS[name].splits if chosen in split]
    for key in todo:
        if key in stored and not (afresh or only):
            continue
        name, chosen = key.split("/")
        row = measure(POSTERIORS[name], chosen, source)
        stored[key] = row | {"machine": f"{machine()} posteriordb {source.commit()}."}
        console.print(" | ".join(cells(stored[key])), markup=False)
        order = [_key(name, each) for name, posterior in POSTERIORS.items() for each in posterior.splits]
        stored = {key: stored[key] for key in order if key in stored}
        STORE.write_text(json.dumps(stored, indent=1) + "\n")
    (FOLDER / "POSTERIORDB.md").write_text(markdown(list(stored.values())))


if __name__ == "__main__":
    typer.run(main)
