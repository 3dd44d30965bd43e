"""What only a federation can report: what left each client, and who disagrees with the others."""

from typing import TYPE_CHECKING

import numpy as np

from fedbayes.report.facts import Facts
from fedbayes.report.markup import UNKNOWN, Markup, joined, pairs, paragraph, table
from fedbayes.report.steps import number, todo

if TYPE_CHECKING:
    import xarray as xr

_UNSURE = (
    "`print(fit)` leaves this out, because the error of the Gaussians that are compared is large or not known. Take it "
    "as a hint."
)


def left_clients(facts: Facts) -> Markup:
    """Exchanges and bytes, of the rounds by phase and of all there was."""
    told = facts.cost
    if told is None:
        return todo("The cost of the exchanges was not saved with this fit.")
    rows = [
        ("exchanges", f"{told.exchanges:,}"),
        ("to each client", f"{told.bytes_down:,} bytes"),
        ("from each client", f"{told.bytes_up:,} bytes"),
    ]
    how = (
        "Messages went between processes. The sites' owners have decided what may leave, and their logs have all of it."
        if facts.elsewhere
        else "All clients were in one process, where nothing is sent: a network would have carried this."
    )
    return joined(
        paragraph(
            "A message holds numbers that were computed from a client's rows, and none of the rows; where these are "
            "few, it may give one away, which `fit.disclosure()` looks for. An exchange is a message to each client "
            "and one back; those below are of the rounds, the check after them, and all that the fit was asked since."
        ),
        pairs(rows, "Exchanges and bytes of a client that took part in all of them"),
        _phases(facts.tables.get("rounds")),
        paragraph(how),
    )


def _phases(rounds: "xr.Dataset | None") -> Markup | None:
    if rounds is None:
        return None
    names, rows = rounds["phase"].values, []
    for phase in dict.fromkeys(names.tolist()):
        here = names == phase
        sums = [int(rounds[what].values[here].sum()) for what in ("rounds", "bytes_down", "bytes_up")]
        rows.append([str(phase), *(f"{value:,}" for value in sums)])
    head = ["phase", "rounds", "bytes to a client", "bytes from a client"]
    return table("The rounds by phase", head, rows)


def who_disagrees(facts: Facts) -> Markup:
    """Each client against all the others, where that is known; else what the printed fit says."""
    found = facts.tables.get("conflict")
    said = [text for label, text in facts.lines if label in ("conflict", "agreement", "CONFLICT")]
    if found is None:
        return joined(
            *(paragraph(each) for each in said),
            todo(
                "A comparison of each client with all the others, `fit.conflict()`, is not part of this report: it "
                "needs each client's own Gaussian, which this fit does not have at hand."
            ),
        )
    if not said:
        told = str(found.attrs.get("disagreement", ""))
        said = [told or "No client disagrees with all the others at an adjusted p-value below 0.05."]
    unasked = found.attrs.get("disagreement") and not any(label == "conflict" for label, _ in facts.lines)
    remarks = str(found.attrs.get("remarks", ""))
    return joined(
        *(paragraph(f"{each[0].upper()}{each[1:]}") for each in said if each),
        paragraph(_UNSURE) if unasked else None,
        _clients(found),
        paragraph(
            "What a client says of the globals is compared with what all the others say. z is that of the global on "
            "which they differ most, positive where the client pulls it up; p-values are adjusted for the number of "
            "comparisons (Holm)."
        ),
        paragraph(f"{remarks[0].upper()}{remarks[1:]}.") if remarks else None,
    )


def _clients(found: "xr.Dataset") -> Markup:
    rows = []
    for place, client in enumerate(found["client"].values.tolist()):
        one = found.isel(client=place)
        z, p = one["z"].values, one["p_adjusted"].values
        overall = number(float(one["p_overall_adjusted"]), 2)
        if np.isnan(z).all():
            rows.append([str(client), UNKNOWN, UNKNOWN, UNKNOWN, overall])
            continue
        most = int(np.nanargmax(np.abs(z)))
        about = str(found["coordinate"].values[most])
        rows.append([str(client), about, number(z[most], 2), number(p[most], 2), overall])
    head = ["client", "differs most on", "z", "adjusted p", "adjusted p, all globals together"]
    return table("Each client against all the others", head, rows, 2, less=(4,))
