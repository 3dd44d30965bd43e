"""Messages over a network: a header that JSON knows, and a body of named arrays; never pickle.

A body is read by a template, which says what names, shapes and dtypes it must have.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from fedbayes.errors import FedbayesError
from fedbayes.rounds.wire import arrays_of, decode, encode

FORMAT = 1  # of the messages; raised when one changes
HIDDEN = "masked"  # the array of a term under masks, two words for each number

# Where a site explains itself, after a sentence that speaks of its own log.
LOG = "That log is `worker.log` in the site's state folder (`state-dir` of its node)."

_LONGEST = 1 << 24  # bytes of a header
_LONGEST_LINE = 300  # characters
_DEEPEST = 16  # values within values
_TOO_DEEP = f"A message has a header of more than {_DEEPEST} values within each other."


class Refusal(Enum):
    """Why a client does not do what it is asked. Over the network goes the name: never an exception's text."""

    FORMAT = "speaks another version of the messages, or was sent something else"
    STUDY = "was built for another model, method or version of fedbayes"
    DATA = "has data that can't be used; its own log says why"
    MODEL = "can't run the model on its data; its own log says why"
    CHANGED = "has other data than when this run began"
    DISCLOSURE = "is kept out of this study by its owner's disclosure rules; its own log says where"
    POLICY = "has a policy that can't be read; its own log says why"
    PRIVATE = "was asked for what never leaves a client"
    SINGLE = (
        "lets only terms of secure sums leave, and was asked for a message of its own; its owner allows that by "
        "`single = true` under `[sums]` of its policy"
    )
    FEWEST = "wants more sites in a secure sum than this one has; its owner sets that by `fewest` under `[sums]`"
    PARTNERS = "was given keys for a secure sum that it does not know; its own log says which"
    TICKET = "was asked to use the masks of a secure sum twice, which would take them off"
    EXACT = "answers with noise alone, within its owner's privacy budget, and was asked for exact numbers"
    BUDGET = "was asked for noisy answers, and its owner has set no privacy budget; its own log says what to write"
    SPENT = (
        "has spent its owner's privacy budget, or too much of it for this answer; `fedbayes privacy` there says more"
    )
    MOST = "would tell more numbers about its data than its owner allows; `fedbayes log` there says how many have left"
    FAILURES = (
        "would tell more often than its owner allows that a number is not finite or too large for a sum, or a density "
        "is improper. By such answers a server can find what it has not been told. If the fits were honest, check that "
        "its data are in the others' units, give the model's arguments units in which its globals are near 1, or give "
        "the globals tighter priors; its owner sets the limit by `failures` under `[answers]` of its policy, and "
        "`fedbayes log` there says how often"
    )
    METHOD = "does not answer this study's method; its owner sets that by `methods` under `[answers]` of its policy"
    LOCAL_STEPS = (
        "does not answer a method that may take several local steps in a round, or whose sites the server draws; its "
        "owner sets that by `local_steps` under `[answers]` of its policy"
    )
    QUESTION = (
        "does not answer this question about a finished fit; its owner sets that by `questions` under `[answers]` of "
        "its policy"
    )
    APPROVAL = "has an owner who has not approved this study's code; at the site, `fedbayes approve` shows it and asks"
    CHARTER = "was told of other sites than when this run began; a sum over others needs a new run"
    DRAWS = "makes other draws from the same seed, since its NumPy or SciPy is of another version; it is sent the draws"
    FAILED = "has a program that failed; its own log says why"


class Refused(FedbayesError):
    """A client's no, with the reason that may leave it.

    Parameters
    ----------
    reason
        Which one.
    counts
        How often each of its owner's rules has found something.
    missing
        Columns that the study reads, and the client's file does not have: the study's words, not the file's.
    failures
        How many this refusal tells of, for the client's own log.
    """

    def __init__(
        self,
        reason: Refusal,
        counts: Mapping[str, int] | None = None,
        missing: Sequence[str] = (),
        failures: int = 0,
    ) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.counts = dict(counts or {})
        self.missing = tuple(missing)
        self.failures = failures


class Message(NamedTuple):
    """A header and a body of named arrays, still to be read.

    Attributes
    ----------
    header
        What JSON knows.
    body
        From :func:`~fedbayes.rounds.wire.encode`.
    """

    header: dict[str, Any]
    body: bytes

    def read(self, template: Any) -> Any:
        """The body, which must look like the template.

        Raises
        ------
        ValueError
            It does not.
        """
        return decode(self.body, template)


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A message as bytes, whose number depends on the header and the shapes of the body's arrays alone."""
    text = json.dumps({"format": FORMAT, **header}, sort_keys=True).encode()
    return encode({"header": np.frombuffer(text, np.uint8), "body": np.frombuffer(body, np.uint8)})


def unpack(content: bytes) -> Message:
    """The message in ``content``.

    Raises
    ------
    ValueError
        It is none, or of another version of the format.
    """
    arrays = arrays_of(content)
    if arrays.keys() != {"header", "body"}:
        raise ValueError(f"A message has the parts {sorted(arrays)}; expected a header and a body.")
    if any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays.values()):
        raise ValueError("The parts of a message are no bytes.")
    header = _header(arrays["header"].tobytes())
    if type(header.get("format")) is not int or header["format"] != FORMAT:
        raise ValueError(f"A message is of another format; this version of fedbayes reads {FORMAT}.")
    return Message(header, arrays["body"].tobytes())


def _header(text: bytes) -> dict[str, Any]:
    """A header that is not so long or so deep that whoever works with it could fail.

    Raises
    ------
    ValueError
        It is, or is none.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"A message has a header of {len(text)} bytes; at most {_LONGEST} are read.")
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not isinstance(header, dict):
        raise ValueError("A message has a header without names.")
    level: list[Any] = [header]
    for _ in range(_DEEPEST):
        level = [each for value in level for each in _inside(value)]
    if level:
        raise ValueError(_TOO_DEEP)
    return header


def plain(text: str) -> str:
    """A text of another machine's as a line for a log."""
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_LINE])


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
