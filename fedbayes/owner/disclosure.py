"""``disclosure``: what the owners of the clients' data would refuse to send, before anything is sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedbayes.errors import ClientDataError
from fedbayes.owner.columns import Labels, Roles, num_rows, roles_of
from fedbayes.owner.findings import findings_of
from fedbayes.owner.rules import DisclosureRules, Finding, Rule
from fedbayes.problem.data.explained import explaining
from fedbayes.problem.data.reading import ClientArrays, prepare_clients
from fedbayes.problem.problem import Options, Problem, known_program
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
    """

    rows: Mapping[str, int]
    findings: Mapping[str, tuple[Finding, ...]]
    num_globals: int
    rules: DisclosureRules

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
            (name, f"{self.rows[name]:,}", finding.rule.words, finding.column, in_words(finding))
            for name, found in self.findings.items()
            for finding in found
        ]

    def __repr__(self) -> str:
        table, head = self.table(), f"Disclosure: {self._headline()}"
        if not table:
            return head
        return "\n".join([head, *_aligned([_HEAD, *table[:_SHOWN]]), *self._more(table), *self._advice()])

    def _repr_html_(self) -> str:
        style = ' style="text-align: left"'
        lines = [_HEAD, *self.table()] if self.refused else []
        cells = ["".join(f"<td{style}>{escape(cell)}</td>" for cell in line) for line in lines]
        body = "".join(f"<tr>{line}</tr>" for line in cells)
        advice = "".join(f"<p>{escape(line.strip())}</p>" for line in self._advice())
        return f"<table><caption{style}>{escape(self._headline())}</caption>{body}</table>{advice}"

    def _headline(self) -> str:
        num, total = len(self.refused), len(self.rows)
        if not num:
            return f"nothing was found in {total} client{'s' * (total != 1)} by these rules."
        return f"{num} of {total} client{'s' * (total != 1)} would not take part by these rules."

    def _advice(self) -> list[str]:
        """What to do about each rule that has found something."""
        met = {finding.rule for found in self.findings.values() for finding in found}
        return [f"  {rule.words}: {rule.advice}" for rule in Rule if rule in met]

    def _more(self, table: Sequence[tuple[str, ...]]) -> Iterator[str]:
        if len(table) > _SHOWN:
            yield f"  ... and {len(table) - _SHOWN} more findings: `.table()` has all."


def in_words(finding: Finding) -> str:
    """What was found, as counts."""
    size, limit, cells = finding.size, finding.limit, finding.cells
    rows = f"{size:,} row{'s' * (size != 1)}"
    match finding.rule:
        case Rule.ROWS:
            return f"{rows}, of {limit:.0f} that are asked for"
        case Rule.NEARLY_CONSTANT:
            return f"{rows} unlike all others"
        case Rule.LEVELS:
            return f"{size:,} levels, of {limit:.0f} that are let out"
        case _:
            return rows if cells == 1 else f"{cells} cells, the smallest {rows}"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip()


def disclosure(
    model: Model,
    clients: Mapping[str, Mapping[str, Any]],
    *,
    rules: DisclosureRules | None = None,
    local: Sequence[str] = (),
    columns: Labels | None = None,
) -> Disclosure:
    """Say what the owners of the clients' data would refuse to send, by disclosure rules, without a fit.

    Messages are sums over a client's rows. A row can be read off a sum where few others stand beside it: where there
    are few rows for the globals, or few at a value of a column, alone or together with an outcome. The rules look for
    such places in each client's own data (:class:`DisclosureRules` has the limits and where they come from). Outcomes
    are the arguments that the model observes; indices those that it can't do with decimals in place of.

    They say nothing of what *many* messages reveal, which ``docs/what-leaves-a-client.md`` is about.

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

    Examples
    --------
    >>> import fedbayes as fb
    >>> from fedbayes.models import heart_disease
    >>> names = {"x": heart_disease.COORDS["coefficient"]}
    >>> found = fb.disclosure(heart_disease.model, heart_disease.clients(), columns=names)
    >>> [row for row in found.table() if row[0] == "switzerland" and row[3] == "x[cp_2]"]
    [('switzerland', '46', 'small cell', 'x[cp_2]', '1 row')]
    """
    with computing(), explaining(clients):
        prepared = with_sizes(model, prepare_clients(clients, np.dtype(np.float64)))
        labels = _checked(columns or {}, next(iter(prepared.values())))
        first = next(iter(prepared))
        program = known_program(Options(model, tuple(local), jnp.dtype(float)), prepared[first], first).program
        return _found(model, prepared, program.globals.size, rules or DisclosureRules(), labels)


def disclosure_of_client(options: Options, name: str, client: ClientArrays, rules: DisclosureRules) -> Disclosure:
    """The same for a client that is alone with its data.

    Raises
    ------
    Exception
        What the model raises on the client's data.
    """
    with computing():
        program = known_program(options, client, name).program
        return _found(options.model, {name: client}, program.globals.size, rules, {})


def disclosure_of(problem: Problem, rules: DisclosureRules, columns: Labels | None = None) -> Disclosure:
    """The same for clients that were read already.

    Raises
    ------
    ClientDataError
        Their data are in other processes.
    """
    with computing():
        held = {name: problem.held(name) for name in problem.names}
        labels = _checked(columns or {}, next(iter(held.values())))
        return _found(problem.programs[0].model, held, problem.globals.size, rules, labels)


def _found(
    model: Model, clients: Mapping[str, ClientArrays], num_globals: int, rules: DisclosureRules, labels: Labels
) -> Disclosure:
    known: dict[str, Roles] = {}
    rows, findings = {}, {}
    for name, client in clients.items():
        kind = repr(sorted(client.static.items()))
        if kind not in known:
            known[kind] = roles_of(model, client)
        rows[name] = num_rows(client, known[kind])
        findings[name] = findings_of(client, known[kind], num_globals, rules, labels)
    return Disclosure(rows, findings, num_globals, rules)


def _checked(columns: Labels, client: ClientArrays) -> Labels:
    for name, labels in columns.items():
        if isinstance(labels, str):
            raise ClientDataError(f"`columns['{name}']` is the text {labels!r}; write a list of names.")
        if name not in client.arrays:
            raise ClientDataError(f"`columns` names '{name}', which is no array: {sorted(client.arrays)}.")
        shape = client.arrays[name].shape[1:]
        if shape != (len(labels),):
            raise ClientDataError(
                f"`columns['{name}']` has {len(labels)} names, but `{name}` has the columns {shape}. Write one name "
                "for each column."
            )
    return columns
