"""A site's policy: a file of its owner, and not of the study, that says what may leave."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedbayes.errors import ClientDataError, did_you_mean
from fedbayes.network.client.naming import Config, site_folder
from fedbayes.network.fixed_point import FEWEST_SITES
from fedbayes.owner.rules import DisclosureRules

POLICY = "policy.toml"
# what a fit is asked once its rounds are over: the sum of log-likelihoods, each site's, and each site's cavity
QUESTIONS = {
    "check": ("log_likelihood_sum", "log_likelihood_finer_sum"),
    "log-likelihoods": ("log_likelihood", "log_likelihood_finer"),
    "cavities": ("cavity",),
}
_LIMITS = [field.name for field in fields(DisclosureRules)]


class SumRules(NamedTuple):
    """In which form a site's answers may leave, from the table ``[sums]``.

    Attributes
    ----------
    single
        Whether a message of this site alone may leave, and not only its term of a secure sum.
    fewest
        Sites in a sum, this one among them; ``None``: all partners and this one, and three at least.
    partners
        The sites with which it adds up, each with the fingerprint of its key; ``None``: any, and a site is known again
        by the key that it had first.
    """

    single: bool = False
    fewest: int | None = None
    partners: Mapping[str, str] | None = None


class PointRules(NamedTuple):
    """At which values of the globals a site answers, from the table ``[points]``.

    Attributes
    ----------
    farthest
        How many prior sds each global may be away from the prior's centre.
    nats_per_row
        How much less likely than the likeliest values they may be by the prior and the site's own rows, in nats for
        each row, beside 50 to 150 nats. Values beyond are implausible: a fit comes through them at its start alone,
        if at all.
    implausible_answers
        How often the site answers at implausible values all the same, about the same data in all runs together: by
        default never, since each such answer may hold the one row that is undecided there. An answer counts by its
        numbers, as one at most where it has as many as an expansion to second order at each value that is asked about.
        The same answer again is free.
    """

    farthest: float = 50.0
    nats_per_row: float = 2.0
    implausible_answers: int = 0


class AnswerRules(NamedTuple):
    """What a site answers, and how much, from the table ``[answers]``.

    Attributes
    ----------
    most
        How many numbers about the same data may leave in all runs together, those in sums among them; ``None``: any.
        Numbers with noise have a budget of their own.
    failures
        How often the site may tell about the same data, in all runs together, that a number was not finite or too large
        for a sum, or a density was improper. By choosing where this begins, a server finds the site's own numbers.
    methods
        The names of the methods whose rounds it answers, ``"agreement"`` for sums by which sites agree on a regression;
        ``None``: those of all studies that may run.
    local_steps
        Whether it answers methods that may take several local steps in a round, or whose sites the server draws. A
        server that chooses the size of the steps, or how often each site counts, can take a sum of such answers apart
        into those of single sites.
    questions
        What it answers about a finished fit, of :data:`QUESTIONS`.
    nats
        To how many nats its log-likelihoods are rounded; ``None``: not at all.
    agreement
        Whether it says at the end of a run if its data agree with the posterior.
    """

    most: int | None = None
    failures: int = 256
    methods: tuple[str, ...] | None = None
    local_steps: bool = True
    questions: tuple[str, ...] = tuple(QUESTIONS)
    nats: float | None = None
    agreement: bool = True

    def answers(self, update: str) -> bool:
        """Whether an update for after the rounds is among the questions."""
        words = [word for word, updates in QUESTIONS.items() if update in updates]
        return not words or words[0] in self.questions


class StudyRules(NamedTuple):
    """Which studies may run, from the table ``[studies]``.

    Attributes
    ----------
    any
        Whether any study may, and not only those whose code was approved at the site.
    """

    any: bool = False


class Budget(NamedTuple):
    """How much a site's answers may tell of one record, in all: (epsilon, delta)-differential privacy.

    From the table ``[privacy]``.
    """

    epsilon: float
    delta: float


_TABLES = {
    "disclosure": _LIMITS,
    "sums": SumRules._fields,
    "points": PointRules._fields,
    "answers": AnswerRules._fields,
    "studies": StudyRules._fields,
    "privacy": (*Budget._fields, "constants"),
}


class Policy(NamedTuple):
    """What a site's owner allows.

    Attributes
    ----------
    path
        The file; it need not be there, and then everything is as by default.
    rules
        Disclosure rules, from the table ``[disclosure]``.
    sums
        What may leave singly, from the table ``[sums]``.
    points
        Where the site answers, from the table ``[points]``.
    answers
        How much it answers, from the table ``[answers]``.
    studies
        Whose code may run, from the table ``[studies]``.
    privacy
        How much noisy answers may tell of one record, from the table ``[privacy]``; nothing else is answered then.
        ``None``: there is no such table, and noisy answers are refused.
    constants
        Arguments of the program that hold no records and may be known, from the same table: noise hides rows alone.
    """

    path: Path
    rules: DisclosureRules
    sums: SumRules = SumRules()
    points: PointRules = PointRules()
    answers: AnswerRules = AnswerRules()
    studies: StudyRules = StudyRules()
    privacy: Budget | None = None
    constants: tuple[str, ...] = ()


def read_policy(config: Config) -> Policy:
    """A site's policy: the file that ``policy`` of its configuration names, or ``policy.toml`` in its state folder.

    Raises
    ------
    ClientDataError
        The file can't be read, or holds what no policy has. Nothing leaves a site whose policy can't be read.
    """
    given = config.get("policy")
    if given is not None and not str(given).strip():
        raise ClientDataError("`policy` of the node's configuration is empty: name the owner's file, or leave it out.")
    path = Path(str(given)).expanduser() if given else site_folder(config) / POLICY
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # as an editor may have written it
    except FileNotFoundError:
        if given:
            raise ClientDataError(
                f"The site's policy, '{path}', is not there: the node's configuration names it."
            ) from None
        return Policy(path, DisclosureRules())
    except (OSError, ValueError) as error:
        raise ClientDataError(f"The site's policy, '{path}', can't be read: {error}.") from None
    for table, known in _TABLES.items():
        if loose := [name for name in told if name in known]:
            raise ClientDataError(f"The site's policy, '{path}': write '{loose[0]}' below a line `[{table}]`.")
    _check_known(path, told, list(_TABLES), "")
    disclosure, sums, points, answers, studies, privacy = (_table(path, told, name) for name in _TABLES)
    budget = _budget(path, privacy) if "privacy" in told else None
    rules = _rules(path, disclosure), _sums(path, sums), _points(path, points), _answers(path, answers)
    return Policy(path, *rules, _studies(path, studies), budget, _constants(path, privacy))


def _table(path: Path, told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One of the policy's tables, with no setting that it does not have; empty where it is not there."""
    table = told.get(name, {})
    if not isinstance(table, Mapping):
        raise ClientDataError(f"The site's policy, '{path}': write the rules as a table, [{name}].")
    _check_known(path, table, list(_TABLES[name]), f" of [{name}]")
    return table


def _rules(path: Path, told: Mapping[str, Any]) -> DisclosureRules:
    try:
        return DisclosureRules(**told)
    except (TypeError, ValueError) as error:
        raise ClientDataError(f"The site's policy, '{path}': {error}") from None


def _sums(path: Path, told: Mapping[str, Any]) -> SumRules:
    found = SumRules(**told)
    if not isinstance(found.single, bool):
        raise ClientDataError(f"The site's policy, '{path}': `single` is {found.single!r}; write true or false.")
    if found.fewest is not None and (type(found.fewest) is not int or found.fewest < FEWEST_SITES):
        raise ClientDataError(
            f"The site's policy, '{path}': `fewest` is {found.fewest!r}; write a whole number of sites from "
            f"{FEWEST_SITES} on. Of the sum of two sites each can subtract its own term, and see the other's."
        )
    partners = {} if found.partners is None else found.partners
    wrong = [partners] if not isinstance(partners, Mapping) else [key for key in partners.values() if not is_key(key)]
    if wrong:
        raise ClientDataError(
            f"The site's policy, '{path}', has {wrong[0]!r} for a partner's key. Write the other sites and the "
            'fingerprints of their keys as a table [sums.partners], with lines such as "st. gallen" = "SHA256:…", as '
            "`fedbayes keys` shows them at those sites."
        )
    return found


def _answers(path: Path, told: Mapping[str, Any]) -> AnswerRules:
    found = AnswerRules(**told)
    if found.most is not None and (type(found.most) is not int or found.most < 1):
        raise ClientDataError(
            f"The site's policy, '{path}': `most` is {found.most!r}; write a whole number of numbers, such as 100000. "
            "A fit takes some thousands, most of them in the check after its rounds."
        )
    if type(found.failures) is not int or found.failures < 0:
        raise ClientDataError(
            f"The site's policy, '{path}': `failures` is {found.failures!r}; write a whole number, such as 256, or 0. "
            "A fit takes none as a rule."
        )
    if found.methods is not None and not _are_words(found.methods):
        raise ClientDataError(
            f"The site's policy, '{path}': `methods` is {found.methods!r}; write the names of methods in a list."
        )
    wrong = [each for each in found.questions if each not in QUESTIONS] if _are_words(found.questions) else [0]
    if wrong:
        raise ClientDataError(
            f"The site's policy, '{path}': `questions` is {found.questions!r}; write a list of what is answered once "
            f"the rounds of a fit are over, some of {list(QUESTIONS)}, or [] for nothing."
        )
    nats = found.nats
    if nats is not None and (isinstance(nats, bool) or not isinstance(nats, int | float) or not 0.0 < nats <= 1.0):
        raise ClientDataError(
            f"The site's policy, '{path}': `nats` is {nats!r}; write to how many nats log-likelihoods are rounded, "
            "such as 0.1, and not more than 1.0."
        )
    for name in ("local_steps", "agreement"):
        if not isinstance(getattr(found, name), bool):
            value = getattr(found, name)
            raise ClientDataError(f"The site's policy, '{path}': `{name}` is {value!r}; write true or false.")
    methods = None if found.methods is None else tuple(found.methods)
    return found._replace(methods=methods, questions=tuple(found.questions))


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _studies(path: Path, told: Mapping[str, Any]) -> StudyRules:
    found = StudyRules(**told)
    if not isinstance(found.any, bool):
        raise ClientDataError(f"The site's policy, '{path}': `any` is {found.any!r}; write true or false.")
    return found


def _budget(path: Path, told: Mapping[str, Any]) -> Budget:
    """Both numbers are the owner's: there is no default that would suit all data."""
    missing = [name for name in Budget._fields if name not in told]
    if missing:
        raise ClientDataError(
            f"The site's policy, '{path}': [privacy] lacks `{missing[0]}`. Write both, such as `epsilon = 3.0` and "
            "`delta = 1e-5`."
        )
    wanted = {
        "epsilon": "a positive number, such as 3.0",
        "delta": "a number between 0 and 1, well below one over the number of records, such as 1e-5",
    }
    for name, most in (("epsilon", math.inf), ("delta", 1.0)):
        value = told[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < most:
            raise ClientDataError(
                f"The site's policy, '{path}': `{name}` of [privacy] is {value!r}; write {wanted[name]}."
            )
    return Budget(float(told["epsilon"]), float(told["delta"]))


def _constants(path: Path, told: Mapping[str, Any]) -> tuple[str, ...]:
    found = told.get("constants", ())
    if not _are_words(found):
        raise ClientDataError(
            f"The site's policy, '{path}': `constants` of [privacy] is {found!r}; write a list of arguments of the "
            'program that hold no records, such as ["knots"].'
        )
    return tuple(found)


def is_key(word: Any) -> bool:
    """Whether this is the fingerprint of a key."""
    return isinstance(word, str) and re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", word) is not None


def _points(path: Path, told: Mapping[str, Any]) -> PointRules:
    found = PointRules(**told)
    if isinstance(found.farthest, bool) or not isinstance(found.farthest, int | float) or not found.farthest > 0.0:
        raise ClientDataError(
            f"The site's policy, '{path}': `farthest` is {found.farthest!r}; write a number of prior sds, such as "
            "50.0, or inf for no limit."
        )
    nats = found.nats_per_row
    if isinstance(nats, bool) or not isinstance(nats, int | float) or not nats > 0.0:
        raise ClientDataError(
            f"The site's policy, '{path}': `nats_per_row` is {nats!r}; write a positive number of nats, such as 2.0, "
            "or inf for no limit."
        )
    answers = found.implausible_answers
    if type(answers) is not int or answers < 0:
        raise ClientDataError(
            f"The site's policy, '{path}': `implausible_answers` is {answers!r}; write a whole number, 0 for "
            "never. A fit that begins far from the posterior takes some ten."
        )
    return found


def _check_known(path: Path, told: Mapping[str, Any], known: list[str], where: str) -> None:
    """A misspelt limit would leave the default in its place, and nobody would know."""
    for name in told:
        if name not in known:
            raise ClientDataError(
                f"The site's policy, '{path}', has '{name}', which is none of the settings{where}: {known}."
                f"{did_you_mean(name, known)}"
            )
