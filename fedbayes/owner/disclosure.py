"""``disclosure``: what the owners of the clients' data would refuse to send, before anything is sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.owner.columns import Labels, Roles, columns_of, num_rows, roles_of
from fedbayes.owner.findings import findings_of, looked_at
from fedbayes.owner.rules import DisclosureRules, Finding, Rule
from fedbayes.owner.text import aligned, as_html_table
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.data.reading import ClientArrays, prepare_clients
from fedbayes.problem.problem import Options, Problem, check_local, known_program
from fedbayes.problem.program.concrete import with_sizes
from fedbayes.problem.program.program import Model
from fedbayes.runtime.precision import computing

_HEAD = ("client", "rows", "rule", "column", "found")
_SHOWN = 40  # lines of the table in `repr`


@dataclass(frozen=True)
class Disclosure:
    """What a set of rules finds in each client's data.

    Attributes
    ----------
    rows
        Each client's rows.
    findings
        Each client's, empty where everything passes.
    num_globals
        Unconstrained globals of the model.
    rules
        The limits.
    looked_at
        What the model does with its arguments, and which of them the rules have not looked at, in words.
    """

    rows: Mapping[str, int]
    findings: Mapping[str, tuple[Finding, ...]]
    num_globals: int
    rules: DisclosureRules
    looked_at: str

    @property
    def refused(self) -> tuple[str, ...]:
        """The clients in which something was found."""
        return tuple(name for name, found in self.findings.items() if found)

    def counts(self, client: str) -> dict[str, int]:
        """How often each rule has found something in a client's data, by the rule's words."""
        found = [finding.rule for finding in self.findings[client]]
        return {rule.words: found.count(rule) for rule in Rule if rule in found}

    def table(self) -> list[tuple[str, ...]]:
        """One row for each finding: client, its rows, rule, column, and what was found, as text."""
        return [
            (name, f"{self.rows[name]:,}", finding.rule.words, finding.column, in_words(finding, self.num_globals))
            for name, found in self.findings.items()
            for finding in found
        ]

    def __repr__(self) -> str:
        table = self.table()
        shown = [f"  {line}" for line in aligned([_HEAD, *table[:_SHOWN]])] if table else []
        return "\n".join([f"Disclosure: {self._headline()}", *shown, *self._below(table)])

    def _repr_html_(self) -> str:
        table = self.table()
        return as_html_table(self._headline(), [_HEAD, *table[:_SHOWN]] if table else [], self._below(table))

    def _headline(self) -> str:
        num, total = len(self.refused), len(self.rows)
        what = "this client" if total == 1 else f"{total} clients"
        if not num:
            return f"these rules find nothing in {what}."
        return f"by these rules {what if total == 1 else f'{num} of {what}'} would not take part."

    def _below(self, table: Sequence[tuple[str, ...]]) -> Iterator[str]:
        """What does not fit, what to do about each rule that has found something, and what was looked at."""
        if len(table) > _SHOWN:
            yield f"  ... and {len(table) - _SHOWN:,} more findings: `.table()` has all."
        met = {finding.rule for found in self.findings.values() for finding in found}
        yield from (f"  {rule.words}: {rule.advice}" for rule in Rule if rule in met)
        yield f"  looked at: {self.looked_at}"


def in_words(finding: Finding, num_globals: int) -> str:
    """What was found, as counts."""
    size, limit, cells = finding.size, finding.limit, finding.cells
    rows = f"{size:,} row{'s' * (size != 1)}"
    match finding.rule:
        case Rule.ROWS:
            return f"{rows}, and {num_globals} globals need {limit:.0f}"
        case Rule.NEARLY_CONSTANT:
            return f"{rows} unlike all others"
        case Rule.LEVELS:
            return f"{size:,} levels, at most {limit:.0f}"
        case _:
            return rows if cells == 1 else f"{cells} cells, the smallest {rows}"


def disclosure(
    model: Model,
    clients: Mapping[str, Mapping[str, Any]],
    *,
    rules: DisclosureRules | None = None,
    local: Sequence[str] = (),
    columns: Labels | None = None,
) -> Disclosure:
    """Apply disclosure rules to the clients' data, without a fit, and say what their owners would refuse to send.

    Messages are sums over a client's rows. A row can be read off a sum where few others stand beside it: where there
    are few rows for the globals, or few at a value of a column, alone or together with an outcome. The rules look for
    such places in each client's own data; :class:`DisclosureRules` has the limits and where they come from. Outcomes
    are the arguments of which observed values are made. An index is an argument of whole numbers with which the model
    fails once they are decimals; one that picks entries of local latents alone is not looked at, since these never
    leave the client. Where a model turns decimals into an index itself, that is not seen.

    The rules say nothing of what *many* messages reveal, which ``docs/what-leaves-a-client.md`` is about.

    Parameters
    ----------
    model, clients, local
        As in :func:`fit_federated`.
    rules
        The owners' limits; ``None``: the defaults.
    columns
        Names of an argument's columns, ``{"x": ["age", "sex"]}``, where it is no table that names them itself.

    Returns
    -------
    Disclosure
        Printed, a table: for each client the rule, the column, the count, and what to do. ``refused`` names the
        clients in which something was found.

    Raises
    ------
    ClientDataError, ModelError
        As :func:`fit_federated` before its work starts; or ``columns`` names no argument, or another number of columns
        than it has.

    See Also
    --------
    DisclosureRules : The limits.
    describe : Table 1, without small cells.

    Examples
    --------
    >>> import fedbayes as fb
    >>> from fedbayes.models import heart_disease
    >>> names = {"x": heart_disease.COORDS["coefficient"]}
    >>> found = fb.disclosure(heart_disease.model, heart_disease.clients(), columns=names)
    >>> [row for row in found.table() if row[0] == "switzerland" and row[3] == "x[cp_2]"]
    [('switzerland', '46', 'small cell', 'x[cp_2]', '1 row')]
    """
    if rules is not None and not isinstance(rules, DisclosureRules):
        raise TypeError(f"`rules` is {rules!r}; write `fedbayes.DisclosureRules(smallest_cell=5)`.")
    check_local(local)
    with computing(), explaining(clients):
        prepared = with_sizes(model, prepare_clients(clients, np.dtype(np.float64)))
        options = Options(model, tuple(local), jnp.dtype(float))
        first = next(iter(prepared))
        program = known_program(options, prepared[first], first).program
        return _found(options, prepared, program.globals.size, rules or DisclosureRules(), columns or {})


def disclosure_of_client(options: Options, name: str, client: ClientArrays, rules: DisclosureRules) -> Disclosure:
    """The same for a client that is alone with its data.

    Raises
    ------
    Exception
        What the model raises on the client's data.
    """
    with computing():
        program = known_program(options, client, name).program
        return _found(options, {name: client}, program.globals.size, rules, {})


def disclosure_of(
    problem: Problem, rules: DisclosureRules, local: Sequence[str] = (), columns: Labels | None = None
) -> Disclosure:
    """The same for clients that were read already.

    Raises
    ------
    ClientDataError
        Their data are in other processes.
    """
    with computing():
        held = {name: problem.held(name) for name in problem.names}
        options = Options(problem.programs[0].model, tuple(local), jnp.dtype(float))
        return _found(options, held, problem.globals.size, rules, columns or {})


def _found(
    options: Options, clients: Mapping[str, ClientArrays], num_globals: int, rules: DisclosureRules, columns: Labels
) -> Disclosure:
    first = next(iter(clients.values()))
    labels = _checked(columns, first)
    known: dict[str, Roles] = {}
    rows, findings = {}, {}
    for name, client in clients.items():
        kind = repr(sorted(client.static.items()))
        if kind not in known:
            known[kind] = roles_of(options.model, client, options.local)
        rows[name] = num_rows(client, known[kind])
        findings[name] = findings_of(client, known[kind], num_globals, rules, labels)
    looked = _looked_at(first, next(iter(known.values())), rules, labels)
    return Disclosure(rows, findings, num_globals, rules, looked)


def _looked_at(client: ClientArrays, roles: Roles, rules: DisclosureRules, labels: Labels) -> str:
    """What the model does with a client's arguments, in words."""
    there = looked_at(client, roles, rules)
    outcomes = [name for name in there if name in roles.outcomes]
    indices = [name for name in there if name in roles.indices]
    others = [name for name in there if name not in (*outcomes, *indices)]
    absent = [name for name in client.arrays if name not in there]
    parts = [
        f"outcome {', '.join(outcomes)}" if outcomes else "no outcome, so nothing was looked at together with one",
        f"index {', '.join(indices)}" if indices else "",
        f"columns of {', '.join(others)}" if others else "",
        f"not looked at: {', '.join(absent)}" if absent else "",
        f"let pass: {', '.join(rules.except_columns)}" if rules.except_columns else "",
    ]
    if unknown := _without_column(client, roles, rules, labels):
        parts.append(f"of these the study has no column {', '.join(unknown)}")
    return "; ".join(filter(None, parts))


def _without_column(client: ClientArrays, roles: Roles, rules: DisclosureRules, labels: Labels) -> list[str]:
    """Exceptions that name no column, such as misspelt ones."""
    rows = num_rows(client, roles)
    names = {name for each in columns_of(client, client.arrays, rows, labels) for name in each.names}
    return [
        exception
        for exception in rules.except_columns
        if any(part not in names and not part.startswith("neither ") for part in exception.split(" by "))
    ]


def _checked(columns: Labels, client: ClientArrays) -> Labels:
    if not isinstance(columns, Mapping):
        raise TypeError(f'`columns` is a {type(columns).__name__}; write `columns={{"x": ["age", "sex"]}}`.')
    for name, labels in columns.items():
        if isinstance(labels, str) or not isinstance(labels, Sequence) or not all(isinstance(x, str) for x in labels):
            raise ClientDataError(f"`columns['{name}']` is {labels!r}; write a list of names.")
        if name not in client.arrays:
            raise ClientDataError(f"`columns` names '{name}', which is no array: {sorted(client.arrays)}.")
        shape = client.arrays[name].shape
        if len(shape) != 2 or shape[1] != len(labels):
            raise ClientDataError(
                f"`columns['{name}']` has {len(labels)} names, but `{name}` has the shape {shape}. Write one name for "
                "each column of a matrix."
            )
    return columns
