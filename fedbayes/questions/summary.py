"""What a fit says of itself: what is wrong with it, its ``repr``, and the folder that it is saved to."""

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedbayes.contract.answer import shortened
from fedbayes.contract.locals_from import Question
from fedbayes.correction.correct import correctable
from fedbayes.numerics.gaussian import Gaussian
from fedbayes.owner.disclosure import disclosure_of
from fedbayes.owner.rules import DisclosureRules
from fedbayes.questions.conflict.question import conflict
from fedbayes.questions.conflict.words import disagreeing, left_out
from fedbayes.results.corrected import check_is_due, checked, is_checked, weighed
from fedbayes.results.fitted import Fitted, cost, cost_of_posterior, labels, once, rounds, verdict, was_asked
from fedbayes.results.posterior import idata
from fedbayes.results.quantities import error, long_tailed
from fedbayes.results.rounds import unheard
from fedbayes.results.saved.folder import Said, Saved, about, check_savable, write_fit

if TYPE_CHECKING:
    import xarray as xr

_FAR = 1e-6  # adjusted p-value of a client's disagreement that may keep rounds from converging
_LABEL = len("  globals   ")
CAN_BE_USED = "fit.idata can be used as it is"
_KEPT = (
    "`fit.idata` has the answer of the rounds without correction: its error is not known, and there are no "
    "log-likelihoods."
)


def trouble(fitted: Fitted) -> str:
    """What is wrong with the fit, in words, and what to try; empty if nothing is.

    Which sites over a network were put out, what kept the rounds from converging, with the clients it concerns, and why
    the answer can't be trusted. For the last the clients are asked where they have not been yet, as those of a fit
    saved by an early version.

    Returns
    -------
    str
        Whole sentences.
    """
    found, check = verdict(fitted), checked(fitted)
    absent = "" if found.converged else unheard(rounds(fitted))
    failed = f"{fitted.unchecked} {_KEPT}" if fitted.unchecked else ""
    saved = check.despite() if check and not found.converged and not absent else ""
    unsaved = check.trouble() if check else ""
    told = (of_put_out(fitted.put_out), found.trouble, _who_is_far(fitted), absent, saved, unsaved, failed)
    return " ".join(filter(None, told))


def of_put_out(sites: Mapping[str, str]) -> str:
    """That the fit holds fewer sites than it began with, and why; empty if it does not."""
    if not sites:
        return ""
    told = ", and of ".join(f"{name}, which {why}" for name, why in sites.items())
    return f"The fit was begun anew without the data of {told}."


def _who_is_far(fitted: Fitted) -> str:
    """Who may be what kept the rounds from converging; where clients would have to be asked, how to ask them."""
    if not verdict(fitted).ask_who_disagrees:
        return ""
    if not fitted.clients.cavities_at_hand():
        return "A client that is far from all the others can keep the rounds from converging: ask `fit.conflict()`."
    try:
        found = conflict(fitted)
    except ValueError:
        return ""
    far = np.fmin(found["p_adjusted"].min(), found["p_overall_adjusted"].min()) < _FAR
    told = found.attrs["disagreement"].partition("; ")[0] if far else ""
    return f"{told[0].upper()}{told[1:]}, which can keep the rounds from converging." if told else ""


def summary(fitted: Fitted) -> str:
    """The ``repr`` of a fit: what is known of it, without asking anybody or changing anything."""
    found, globals_, names = verdict(fitted), fitted.roster.globals, fitted.roster.names
    phases = rounds(fitted)["rounds"].to_series().groupby(rounds(fitted)["phase"].values, sort=False).sum()
    done = " + ".join(f"{count:,} {name}" for name, count in phases.items())
    state = ", ".join(["converged" if found.converged else "NOT CONVERGED", *found.remarks])
    sites = ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in globals_.shapes)
    asked = ", fit.idata included" if cost_of_posterior(fitted) else "; fit.idata takes one more"
    asked = "" if fitted.unchecked or fitted.is_closed else asked
    lines = [
        f"FederatedFit by {type(fitted.method).__name__}: {state} after {done} rounds",
        f"  clients   {len(names)}: {shortened(names)}",
        *(f"  without   {name}, which {why}" for name, why in fitted.put_out.items()),
        f"  globals   {globals_.size} unconstrained: {sites}",
        *found.headline,
        *_checked_lines(fitted),
        *_agreement_lines(fitted),
        f"  network   {cost(fitted)}{asked}",
        *_refused_line(fitted),
        f"  look at   {', '.join(_worth_a_look(fitted))}",
        f"  verdict   {_conclusion(fitted)}",
    ]
    return "\n".join(lines)


def as_html(fitted: Fitted) -> str:
    """The same as a table, for notebooks."""
    first, *lines = map(escape, summary(fitted).splitlines())
    rows = "".join(f"<tr><th>{line[:_LABEL].strip()}</th><td>{line[_LABEL:]}</td></tr>" for line in lines)
    style = ' style="text-align: left"'
    rows = rows.replace("<th>", f"<th{style}>").replace("<td>", f"<td{style}>")
    return f"<table><caption{style}>{first}</caption>{rows}</table>"


def _refused_line(fitted: Fitted) -> list[str]:
    """Whose owners would refuse this study over a network, where their data are in this process."""
    if not (refused := _refused(fitted)):
        return []
    who = f"{len(refused)} of {len(fitted.roster.names)} clients ({shortened(refused)})"
    told = "would not send this by the usual disclosure rules; here nothing was withheld: fit.disclosure()"
    return [f"  owners    {who} {told}"]


@once
def _refused(fitted: Fitted) -> tuple[str, ...]:
    """Clients in which the disclosure rules find something; none where that can't be told."""
    if fitted.problem.elsewhere:
        return ()
    try:
        return disclosure_of(fitted.problem, DisclosureRules(), fitted.shown.local).refused
    except Exception:  # the model's code may have changed since the fit; `fit.disclosure()` says what is wrong
        return ()


def usable(fitted: Fitted) -> bool:
    """Whether `fit.idata` can be used as it is, see :func:`summary`'s last line."""
    return _conclusion(fitted).startswith(CAN_BE_USED)


def _conclusion(fitted: Fitted) -> str:
    """Whether `fit.idata` can be used as it is, in words."""
    if fitted.unchecked or check_is_due(fitted):
        return "fit.idata has a Gaussian's draws, whose error is not known"
    check = checked(fitted)
    if check is not None and not check.reliable:
        return "don't rely on fit.idata: its error is not known, and fit.trouble() says why"
    converged = verdict(fitted).converged
    if check is not None:
        but = ", but for the sds of long tails" if long_tailed(fitted) else ""
        # weights measure and correct the error of any Gaussian, wherever the rounds have stopped
        return f"{CAN_BE_USED}{but}" + ("" if converged else ": its draws were checked, whatever the rounds did")
    is_point = fitted.posterior is None
    if not converged:
        which = ", a point that says nothing of uncertainty" if is_point else ""
        return f"don't rely on fit.idata{which}: fit.trouble() says why"
    if is_point:
        return "fit.idata is a point: it says nothing of uncertainty"
    if isinstance(fitted.posterior, Gaussian) and correctable(fitted.answer):
        return "fit.idata has a Gaussian's draws, whose error is not known; `correct=True` measures it"
    return CAN_BE_USED


def _checked_lines(fitted: Fitted) -> list[str]:
    """What the check of the answer has shown, and who disagrees, where the answer is good enough to tell."""
    if fitted.unchecked:
        return ["  Gaussian  of unknown error: the check has failed; see fit.trouble()"]
    if check_is_due(fitted):
        return ["  Gaussian  of unknown error; fit.error asks the clients"]
    found = checked(fitted)
    if found is None:
        unknown = ["  Gaussian  not checked: neither its error is known, nor whether there are other modes"]
        return [*(unknown if isinstance(fitted.posterior, Gaussian) else []), *_disagreement_lines(fitted)]
    agreement = _disagreement_lines(fitted) if found.gaussian_enough else _unknown(fitted)
    return [*found.lines(), *_tail_lines(fitted), *agreement]


def _agreement_lines(fitted: Fitted) -> list[str]:
    """What sites over a network have found by comparing the posterior with their own data."""
    if not fitted.agreement:
        return []
    against, num = [name for name, agrees in fitted.agreement.items() if not agrees], len(fitted.roster.names)
    if not against:
        said = f"{len(fitted.agreement)} of {num} sites"
        return [f"  agreement {said} find no conflict between their data and the others'"]
    verb, its = ("finds", "its") if len(against) == 1 else ("find", "their")
    said = f"{shortened(against)} {verb} that {its} data disagree with the others'"
    return [f"  CONFLICT  {said}; {its} log says about what"]


def _tail_lines(fitted: Fitted) -> list[str]:
    """Whose sd is made of a few draws in a long tail."""
    if not (names := long_tailed(fitted)):
        return []
    them = "its quantiles" if len(names) == 1 else "their quantiles"
    return [f"  tails     too long for the sd of {shortened(list(names))}: read {them}, see fit.error"]


def _disagreement_lines(fitted: Fitted) -> list[str]:
    """Who disagrees; nothing where nobody does, or that can't be told, or clients would have to be asked."""
    found = _conflict_at_hand(fitted)
    if found is None:
        return []
    lines, names = [], disagreeing(found)
    if names:
        verb = "disagrees" if len(names) == 1 else "disagree"
        lines.append(f"{shortened(names)} {verb} with the others; see fit.conflict()")
    if fitted.roster.prior.is_proper and (unknown := left_out(found)):  # else one client may know what nobody else does
        lines.append(f"not known of {shortened(unknown)}, left an improper cavity by the others' sites")
    return [f"  conflict  {line}" for line in lines]


def _unknown(fitted: Fitted) -> list[str]:
    """That nobody knows who disagrees, where the rounds have not arrived at what clients say of each other."""
    if verdict(fitted).converged:
        return []
    return ["  conflict  not known, as the rounds did not converge"]


def _conflict_at_hand(fitted: Fitted) -> "xr.Dataset | None":
    """Who disagrees; ``None`` where that can't be told, or clients would have to be asked."""
    if not fitted.clients.cavities_at_hand():
        return None
    try:
        return conflict(fitted)
    except ValueError:
        return None


def _worth_a_look(fitted: Fitted) -> list[str]:
    """What this kind of answer can be asked."""
    source = fitted.answer.locals_from
    own = [] if source.refuses(Question.CLIENT_POSTERIOR) else ["fit.client_posterior(name)"]
    dense = isinstance(fitted.posterior, Gaussian) and not source.refuses(Question.NEW_CLIENT)
    return ["fit.idata", "fit.rounds", *own, *(["fit.adapt(data)"] if dense else []), "fit.predict(...)"]


def save(fitted: Fitted, path: str | os.PathLike) -> None:
    """Write the fit to a folder: ``posterior.nc``, ``rounds.nc``, and the rest for :func:`fedbayes.load_fit`.

    The clients' data and the model are not in it.

    Parameters
    ----------
    path
        The folder, which need not exist.

    Raises
    ------
    ValueError
        An option of the method is or holds a function, which can't be written to a file; or the path is a file.

    Examples
    --------
    >>> import jax, fedbayes as fb
    >>> from fedbayes.models import linear
    >>> clients, _ = linear.simulate(jax.random.key(0))
    >>> fit = fb.fit_federated(linear.model, clients, key=jax.random.key(1), progress=False)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit.save(folder)
    ...     again = fb.load_fit(folder, linear.model, clients)
    >>> again.converged
    True
    """
    problem, method = fitted.problem, fitted.method
    options, posterior = check_savable(method), idata(fitted)
    clients = {**about(fitted.roster), **({"elsewhere": True} if problem.elsewhere else {})}
    check = checked(fitted)
    said = Said(summary(fitted), "" if check_is_due(fitted) else trouble(fitted), labels(fitted), cost(fitted))
    saved = Saved(
        type(method).__name__,
        options,
        fitted.key,
        str(problem.programs[0].dtype),
        fitted.shown,
        clients,
        cost_of_posterior(fitted),
        None if check is None else check._replace(long_tailed=long_tailed(fitted)),
        fitted.unchecked,
        said,
        fitted.regression,
        fitted.put_out,
    )
    write_fit(Path(path), posterior, tables(fitted), saved, problem.description(), fitted.run, fitted.executor)


def tables(fitted: Fitted) -> dict[str, "xr.Dataset"]:
    """What is known of the fit beside its posterior, without asking anybody."""
    found = {"rounds": rounds(fitted)}
    if is_checked(fitted) and not fitted.unchecked and was_asked(fitted, weighed):
        found["error"] = error(fitted)
    elif fitted.saved is not None and (known := fitted.saved.error()) is not None:
        found["error"] = known
    if (disagreement := _conflict_at_hand(fitted)) is not None:
        found["conflict"] = disagreement
    return found
