"""Who disagrees with all the others about what, and what could not be compared, in words."""

from typing import TYPE_CHECKING

import numpy as np

from fedbayes.contract.answer import CLIENT, COORDINATE, shortened

if TYPE_CHECKING:
    import xarray as xr

LEVEL = 0.05  # of the adjusted p-values
_JOINTLY = "jointly"  # about no global by itself, but in the test of all of them together
_NAMED = 3  # globals of one client that are named in words


def disagreeing(conflict: "xr.Dataset") -> list[str]:
    """The clients that disagree with all the others, the clearest case first, each with the globals that it is about.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    found = []
    for place in _at_odds(conflict):
        single = conflict["p_adjusted"].isel({CLIENT: place})
        about = [str(label) for label in single[COORDINATE].values[single.values < LEVEL]]
        name = str(conflict[CLIENT].values[place])
        found.append(f"{name} ({shortened(about, _NAMED) if about else _JOINTLY})")
    return found


def left_out(conflict: "xr.Dataset") -> list[str]:
    """The clients that have no proper cavity to be compared with, in some direction or all.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    return list(conflict[CLIENT].values[np.isnan(conflict["share"].values).any(axis=1)])


def _at_odds(conflict: "xr.Dataset") -> list[int]:
    """Places of the clients that disagree, the clearest case first."""
    single = np.any(conflict["p_adjusted"].values < LEVEL, axis=1)
    disagrees = single | (conflict["p_overall_adjusted"].values < LEVEL)
    return [int(place) for place in _by_weight(conflict) if disagrees[place]]


def _by_weight(conflict: "xr.Dataset") -> np.ndarray:
    """Places of the clients, the clearest case first."""
    single, overall = conflict["p_adjusted"], conflict["p_overall_adjusted"]
    least = np.fmin(single.fillna(1.0).min(COORDINATE).values, overall.values)
    farthest = abs(conflict["z"]).fillna(0.0).max(COORDINATE).values  # where p is too small for a number
    return np.lexsort((-farthest, least))


def disagreement(conflict: "xr.Dataset") -> str:
    """Who disagrees with all the others about what, in words; empty if nobody does.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    """
    parts = []
    for client in _at_odds(conflict):
        mine = conflict.isel({CLIENT: client})
        p = mine["p_adjusted"].values
        about = [_about(mine.isel({COORDINATE: place})) for place in np.argsort(p) if p[place] < LEVEL]
        if not about:
            about = [
                f"several globals together (chi-squared {float(mine['chi2']):.1f} on {int(mine['rank'])} degrees of "
                f"freedom, adjusted p = {float(mine['p_overall_adjusted']):.2g})"
            ]
        name = str(mine[CLIENT].values)
        parts.append(f"client '{name}' disagrees with all the others about {shortened(about, _NAMED)}")
    return "; ".join(parts)


def _about(one: "xr.Dataset") -> str:
    return f"{one[COORDINATE].item()} (z = {float(one['z']):.1f}, adjusted p = {float(one['p_adjusted']):.2g})"


def remarks(conflict: "xr.Dataset", *, proper: bool) -> list[str]:
    """What could not be compared, and why.

    Parameters
    ----------
    conflict
        From :meth:`fedbayes.FederatedFit.conflict`.
    proper
        Whether the prior is: then no client knows alone what nobody else speaks of.
    """
    alone = np.isnan(conflict["share"].values)
    unheard = np.isnan(conflict["z"].values) & ~alone.any(axis=1, keepdims=True)
    silent = (conflict["rank"].values == 0) & ~alone.any(axis=1)
    without = (
        "client '{}' can't be compared about {}: the others' sites leave it an improper cavity, as where it is far "
        "from them or the rounds have not converged; a fit without it tells what they say"
        if proper
        else "nobody but client '{}' knows anything of {}"
    )
    clients, labels = conflict[CLIENT].values, conflict[COORDINATE].values
    found = [
        without.format(client, shortened(list(labels[row])))
        for client, row in zip(clients, alone, strict=True)
        if row.any()
    ]
    who: dict[tuple[str, ...], list[str]] = {}
    for client, row in zip(clients[~silent], unheard[~silent], strict=True):
        who.setdefault(tuple(labels[row]), []).append(client)
    too_little = "too little to compare is said"
    found += [f"{too_little} of {shortened(about)} by {shortened(them)}" for about, them in who.items() if about]
    return [*found, *([f"{too_little} by {shortened(list(clients[silent]))}"] if silent.any() else [])]
