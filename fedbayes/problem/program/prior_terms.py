"""Observed terms that look at the globals alone: they belong to the prior, and count once for all clients.

A model function is one client's program, and what it says of the globals alone, such as a soft constraint by
``numpyro.factor`` or an observed constant, is the same on every client. In the joint density it stands once, as the
prior does, and not once a client.
"""

from collections import Counter
from dataclasses import replace

from fedbayes.errors import ModelError
from fedbayes.problem.data.padding import pad
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.problem.program.program import Program, with_log_dets
from fedbayes.problem.program.tracing import Traced, traced


def with_prior_terms(program: Program, client: ClientArrays, trace: Traced) -> Program:
    """The program, its terms of the globals alone moved from the client's factor to the prior.

    A term that changes with the number of rows, such as ``-len(y) * log(sigma)``, stays the client's.

    Raises
    ------
    ModelError
        A term changes with an integer argument, which may be a number of rows or a setting of the prior; or no
        observed site looks at the data.
    """
    kept = _unchanged(program, _longer(client), trace.alone)
    _refuse_ambiguous(program, client, kept)
    if not trace.shapes.keys() - {*program.prior_sites, *with_log_dets(program.locals), *kept}:
        raise ModelError(
            f"The observed sites {sorted(kept)} look at the globals alone, and no site looks at the clients' data. "
            'Observe the data: `numpyro.sample("y", ..., obs=y)`.'
        )
    return replace(program, prior_terms=tuple(sorted(kept)))


def _longer(client: ClientArrays) -> ClientArrays:
    """The client with one more row: one more entry of all arrays that have the commonest length."""
    lengths = Counter(len(array) for array in client.arrays.values() if array.ndim)
    if not lengths:
        return client
    rows = lengths.most_common(1)[0][0]
    arguments = [name for name, array in client.arrays.items() if array.ndim and len(array) == rows]
    return ClientArrays(pad(client.arrays, arguments, rows + 1), client.static)


def _unchanged(program: Program, client: ClientArrays, terms: dict[str, str]) -> dict[str, str]:
    """The terms that have the same operations with a client's other arguments."""
    try:
        other = traced(replace(program, static=client.static), client).alone
    except Exception:  # arguments that only make sense together: nothing is known about the terms
        return terms
    return {name: text for name, text in terms.items() if other.get(name) == text}


def _refuse_ambiguous(program: Program, client: ClientArrays, terms: dict[str, str]) -> None:
    sizes = {name: n for name, n in client.static.items() if isinstance(n, int) and not isinstance(n, bool)}
    for argument, value in sizes.items():
        other = ClientArrays(client.arrays, client.static | {argument: value + 1})
        for name in terms.keys() - _unchanged(program, other, terms).keys():
            raise ModelError(
                f"The term '{name}' looks at the globals and at the integer argument `{argument}` = {value}, but not "
                "at the data, so it may belong to each client's likelihood or to the prior, which counts once. Write "
                f"`{argument}=np.asarray({value})` if the number is the client's, or the number itself in the model "
                "if it belongs to the prior."
            )
