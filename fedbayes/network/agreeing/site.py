"""A site in a run that agrees on a regression: it tells sums over its own rows, within its owner's policy."""

import hashlib
import json
import logging
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedbayes.contract.algorithm import Reply
from fedbayes.errors import ClientDataError, FormulaError, MissingColumnsError, ResultCode, did_you_mean
from fedbayes.formula.design.factors import Levels
from fedbayes.formula.design.tables import Table, label_text
from fedbayes.network.agreeing.everybody import LABELS, Asked, AtSite, flat, layout
from fedbayes.network.agreeing.study import FormulaStudy
from fedbayes.network.answering import Answer, AnsweringSite, LoadData
from fedbayes.network.charter import ArrayKind, Hello
from fedbayes.network.client.naming import Config
from fedbayes.network.client.partners import own_key
from fedbayes.network.client.policy import Policy, read_policy
from fedbayes.network.client.private import check_asked
from fedbayes.network.client.secure import Sums
from fedbayes.network.client.vault import RunVault
from fedbayes.network.messages import Message, Refusal, Refused
from fedbayes.owner.columns import Roles
from fedbayes.owner.disclosure import Disclosure
from fedbayes.owner.findings import findings_of
from fedbayes.owner.rules import DisclosureRules, Finding
from fedbayes.problem.data.reading import ClientArrays
from fedbayes.rounds.wire import arrays_of

log = logging.getLogger(__name__)

BINNED = "binned"  # in the names of sums that are counts in bins, as fine as a twentieth of an sd
METHOD = "agreement"  # as an owner names it among the methods that are answered
_MOST_SCALE = 64
_MOST_RUNS = 20  # agreements on the same study about the same table


class AgreeingSite(AnsweringSite):
    """A site that agrees with others on a regression.

    Parameters
    ----------
    study
        As the server has it.
    load_data
        ``(config) -> table``: the site's rows, a table of pandas or polars, or a mapping from columns to arrays.
    config
        Of the node, as for :class:`~fedbayes.network.site.Site`.
    """

    def __init__(self, study: FormulaStudy, load_data: LoadData, config: Config) -> None:
        super().__init__(study, load_data, config)
        self.study = study
        self._table: Table | None = None
        self._greeting: str | None = None
        self._passed: tuple[str, DisclosureRules] | None = None

    def _obeyed(self, message: Message, policy: Policy) -> Answer:
        """See :class:`~fedbayes.network.answering.AnsweringSite`."""
        header = message.header
        methods = policy.answers.methods
        if methods is not None and METHOD not in methods:
            log.error("The server asks for an agreement; the owner's policy allows the methods %s.", list(methods))
            raise Refused(Refusal.METHOD)
        check_asked(policy, noisy=False)
        if header["kind"] == "hello" and header.get("greeting") != self._greeting:
            self._table = None
        table = self._read()
        self._let_out(table, policy)
        if header["kind"] == "hello":
            self._greeting = header.get("greeting")
            columns = {"columns": ArrayKind((len(self.study.reads),), "|u1")}  # how many the formula reads
            return Answer(self._reply(header, Hello(self.name, columns, {}, own_key(self.vault)).written()))
        if header["kind"] == "sum":
            return self._sum(message, table, policy)
        raise Refused(Refusal.FORMAT)

    def _read(self) -> Table:
        """The rows that the formula can read, once for each run."""
        if self._table is None:
            try:
                table = self._own_table()
            except Exception as error:
                log.exception("`load_data` failed.")
                missing = error.missing if isinstance(error, MissingColumnsError) else ()
                raise Refused(Refusal.DATA, missing=missing) from error
            self._table, self._digest = table, table.digest(self.study.reads)
        return self._table

    def _own_table(self) -> Table:
        """The site's table.

        Raises
        ------
        MissingColumnsError
            It lacks columns that the formula reads.
        """
        table = Table(self.name, self.read_data())
        if missing := [name for name in self.study.reads if name not in table.names]:
            raise MissingColumnsError(
                f"The table of site '{self.name}' lacks {missing}, which the formula reads; it has {list(table.names)}."
                f"{did_you_mean(missing[0], table.names)}",
                missing,
            )
        return table

    def _let_out(self, table: Table, policy: Policy) -> None:
        """Ask the owner's rules about the columns that the formula reads, once for these data and these rules.

        Raises
        ------
        Refused
            Something was found; the log says what, and the answer how often.
        """
        if self._passed == (self._digest, policy.rules):
            return
        found = self._disclosed(table, policy.rules)
        if found.refused:
            log.error("%r\n  The owner sets the limits in '%s', under [disclosure].", found, policy.path)
            raise Refused(Refusal.DISCLOSURE, found.counts(self.name))
        self._check_changed(table.as_bytes(self.study.told), policy.rules.smallest_cell)
        self._passed = (self._digest, policy.rules)

    def disclosure(self) -> Disclosure:
        """What the owner's disclosure rules find in the columns of which sums tell. Nothing is sent.

        Raises
        ------
        ClientDataError
            A column is not there, has missing values or an undeclared level, or is of another kind.
        """
        return self._disclosed(self._own_table(), read_policy(self._config).rules)

    def _disclosed(self, table: Table, rules: DisclosureRules) -> Disclosure:
        study, outcome = self.study, self.study.outcome
        if study.missing == "drop":
            table, _ = table.without_missing([name for name in study.reads if name not in study.imputed])
        table.check_there(study.reads, study.imputed)
        every = table
        if any(table.num_missing(name) for name in study.imputed):  # rules are about rows that lack nothing
            table, _ = table.without_missing(study.reads)
        arrays: dict[str, np.ndarray] = {}
        for name in study.told:
            if self._is_of_levels(name, table):
                arrays[name] = self._codes(name, table)
            elif not table.is_labels(name):
                arrays[name] = table.numbers(name, "the formula")
        labels = {name for name in arrays if self._is_of_levels(name, table)}
        outcomes = {outcome.name: outcome.name in labels} if outcome.name in arrays else {}
        roles = Roles(outcomes, indices=frozenset(labels - outcomes.keys()))
        found = findings_of(ClientArrays(arrays, {}), roles, 0, rules, {})
        if every is not table:
            known = {(finding.rule, finding.column) for finding in found}
            found += tuple(each for each in self._of_labels(every, rules) if (each.rule, each.column) not in known)
        looked = f"columns {', '.join(arrays)}"
        return Disclosure({self.name: table.num_rows}, {self.name: found}, 0, rules, looked)

    def _of_labels(self, table: Table, rules: DisclosureRules) -> tuple[Finding, ...]:
        """What is found in labels that are not declared: a label is told wherever a row has it."""
        names = [name for name in self.study.undeclared if self._is_of_levels(name, table)]
        arrays = ClientArrays({name: self._codes(name, table) for name in names}, {})
        return findings_of(arrays, Roles({}, indices=frozenset(names)), 0, rules, {}) if names else ()

    def _is_of_levels(self, name: str, table: Table) -> bool:
        return name in self.study.coded or (name in self.study.undeclared and table.is_labels(name))

    def _codes(self, name: str, table: Table) -> np.ndarray:
        """Each row's level as a number: its place among declared ones, or among the site's own."""
        if name in self.study.levels:
            levels = tuple(map(label_text, self.study.levels[name]))
            return Levels(name, levels, levels[0]).codes(table)
        return np.unique(table.labels(name).astype(str), return_inverse=True)[1]

    def _sum(self, message: Message, table: Table, policy: Policy) -> Answer:
        """The site's part of the sum that comes after those that it is told."""
        header, arrays = message.header, arrays_of(message.body)
        names, known, scale = _told(header, arrays)
        if self.name not in names:
            raise Refused(Refusal.FORMAT)
        self._check_run(header)
        about = {"study": self.study.digest, "run": str(header["run"])}
        sums = Sums(self.vault, names, names.index(self.name), about)
        hiding = sums.hiding(message, policy.sums, "")
        self._check_number(header)
        asked = self._asked(table, names, known, self.vault.run(str(header["run"])))
        if hiding is None and (BINNED in asked.name or asked.name.startswith(LABELS)):
            log.error(
                "The server asks for '%s' openly; binned counts of few rows, and labels, leave in secure sums alone.",
                asked.name,
            )
            raise Refused(Refusal.SINGLE)
        if asked.name != header.get("update"):
            log.error("The server asks for '%s', and the next sum is '%s'.", header.get("update"), asked.name)
            raise Refused(Refusal.FORMAT)
        reply = Reply(total=flat(asked.tree) * 2.0**-scale, code=jnp.asarray(int(ResultCode.OK)))
        sent = sums.sent(reply, hiding)
        return Answer(self._reply(header, {**sent.told, "layout": layout(asked.tree)}, sent.body), sent.failures)

    def _check_run(self, header: dict[str, Any]) -> None:
        """In one run a site has one table, and the same others: two sums over different sites differ by one's part.

        It is a run of one study, too: runs are counted by study, and one that was counted for another is not counted.
        """
        kept = self.vault.run(str(header["run"]))
        if not kept.same_data(self._digest):
            raise Refused(Refusal.CHANGED)
        charter = json.dumps([self.study.digest, header["charter"]], sort_keys=True)
        if not kept.same_charter(hashlib.sha256(charter.encode()).hexdigest()):
            raise Refused(Refusal.CHARTER)

    def _check_number(self, header: dict[str, Any]) -> None:
        """Only so many runs are answered, and a refusal is an answer.

        By made-up means and sds a server chooses in which rows an expression is not finite, which the table is refused
        for; so a run counts before anything is made of what it tells.
        """
        kept = self.vault.run(str(header["run"]))
        about = f"{self.study.digest} {self._digest}"
        if not kept.once(lambda: self.vault.count_run(about, _MOST_RUNS), "agreeing"):
            log.error("%d agreements on this study about the same table have been answered.", _MOST_RUNS)
            raise Refused(Refusal.MOST)

    def _asked(self, table: Table, names: list[str], known: dict[str, np.ndarray], kept: RunVault) -> Asked:
        """The sum that comes after those that were told; in one run each of these is told in one way.

        With sums that it makes up a server would place bins where it likes, and find numbers by bisection.
        """

        def check(name: str, numbers: np.ndarray) -> None:
            if not kept.same_sum(name, hashlib.sha256(numbers.tobytes()).hexdigest()):
                log.error("The server tells another sum '%s' than before in this run.", name)
                raise Refused(Refusal.FORMAT)

        site = AtSite(self.study.labelled, self.study.undeclared, len(names), table, known, check)
        try:
            self.study.agree(site)
        except Asked as asked:
            if site.read == list(known):
                return asked
            log.error("The server tells the sums %s, and those before '%s' are %s.", list(known), asked.name, site.read)
            raise Refused(Refusal.FORMAT) from None
        except FormulaError as error:  # of what this site's table has
            raise ClientDataError(str(error)) from error
        log.error("The server asks for a sum after the last one.")
        raise Refused(Refusal.FORMAT)


def _told(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[list[str], dict[str, np.ndarray], int]:
    """All sites, the sums so far by name, and by which power of two the next is divided.

    Raises
    ------
    Refused
        The request has other parts.
    """
    names, known = list(map(str, header["charter"]["names"])), list(map(str, header["known"]))
    wanted = {"shared/scale", *(f"shared/{place}" for place in range(len(known)))}
    scale = arrays.get("shared/scale", np.zeros(0))
    if arrays.keys() != wanted or scale.shape != () or header["order"] != len(known):
        raise Refused(Refusal.FORMAT)
    if not 0 <= int(scale) <= _MOST_SCALE:
        raise Refused(Refusal.FORMAT)
    if len(set(known)) < len(known):
        raise Refused(Refusal.FORMAT)
    return names, {name: np.asarray(arrays[f"shared/{place}"], float) for place, name in enumerate(known)}, int(scale)
