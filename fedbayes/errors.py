"""What can go wrong: bad input raises before work starts; a failure in a round is data, reported per client."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

K_HAT_LIMIT = 0.7  # tail shape of importance weights up to which they can be trusted
# What reading another machine's message may raise whose values are of other types or sizes than expected.
UNREADABLE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError, AssertionError,
)  # fmt: skip


class FedbayesError(Exception):
    """What all errors of fedbayes have in common: ``except fedbayes.FedbayesError`` catches them, and nobody else's.

    An argument that can't be meant, such as ``num_rounds=0``, is a plain ``TypeError``, ``ValueError`` or ``KeyError``,
    as everywhere in Python.

    See Also
    --------
    ClientDataError : The data can't be used.
    ModelError : The program can't be fitted.
    FederatedError : A run over a network can't go on.
    ReportError : A report can't be written.

    Examples
    --------
    >>> import fedbayes as fb
    >>> [error.__name__ for error in (fb.ClientDataError, fb.ModelError) if issubclass(error, fb.FedbayesError)]
    ['ClientDataError', 'ModelError']
    """


class ClientDataError(FedbayesError, ValueError):
    """The clients' data cannot be used; the message names the client, the argument and the value seen.

    See Also
    --------
    ModelError : The program is wrong, and not the data.
    clients_from_dataframe : Clients from one table.

    Examples
    --------
    >>> import pandas as pd, fedbayes as fb
    >>> try:
    ...     fb.clients_from_dataframe(pd.DataFrame({"y": [1.0, 2.0]}), by="site", y="y")
    ... except fb.ClientDataError as error:
    ...     print(error)
    The table has no column ['site']; its columns are ['y'].
    """


class MissingColumnsError(ClientDataError):
    """A client's file lacks columns that the study reads.

    Parameters
    ----------
    text
        For the client: it may name what else the file has.
    missing
        The columns that are not there. These are the study's words, and may be told to others.
    """

    def __init__(self, text: str, missing: Iterable[str]) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


class ModelError(FedbayesError, ValueError):
    """The program cannot be fitted by federation; the message names the site and what to write instead.

    See Also
    --------
    local : Which latents are one client's own.
    ClientDataError : The data are wrong, and not the program.

    Examples
    --------
    >>> import jax, numpy as np, fedbayes as fb
    >>> def model(y):
    ...     pass
    >>> try:
    ...     fb.fit_federated(model, {"a": {"y": np.ones(2)}, "b": {"y": np.ones(2)}}, key=jax.random.key(0))
    ... except fb.ModelError as error:
    ...     print(str(error).partition(". ")[0])
    The program has no observed site, so the clients' data say nothing about it
    """


class FormulaError(ModelError):
    """A formula that can't be read, or means nothing with these columns; the message names the part and what to write.

    See Also
    --------
    regression : What a formula may say.
    ModelError : A program that can't be fitted.

    Examples
    --------
    >>> import fedbayes as fb
    >>> issubclass(fb.FormulaError, fb.ModelError)
    True
    """


class NotDrawableError(ModelError, NotImplementedError):
    """A site of the program can't be drawn, as predictions and replicates are; the message names it."""


class ReportError(FedbayesError, ValueError):
    """A report can't be written where it was asked for, or of what was given; the message says what to give instead.

    See Also
    --------
    FederatedFit.report : Writes it.

    Examples
    --------
    >>> import fedbayes as fb
    >>> issubclass(fb.ReportError, ValueError)
    True
    """


class FederatedError(FedbayesError, RuntimeError):
    """A fit broke down; the message names the round, the clients and what to try.

    See Also
    --------
    ResultCode : What a server knows of one client's round.
    FedbayesError : All of fedbayes's errors.

    Examples
    --------
    >>> import fedbayes as fb
    >>> issubclass(fb.FederatedError, RuntimeError)
    True
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that ends a message about an unknown name, with a blank before it; empty where no name is near."""
    written = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), list(written), n=1)
    return f" Did you mean '{written[near[0]]}'?" if near else ""


class NotConvergedWarning(UserWarning):
    """A fit stopped at its round limit, or with clients whose messages could not be used.

    See Also
    --------
    UnreliableWarning : The rounds have ended, and their answer can't be checked.
    FederatedFit.trouble : The same in words, at any time.

    Examples
    --------
    >>> import warnings, fedbayes as fb
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", fb.NotConvergedWarning)  # fits in this block raise it
    """


class SlowFitWarning(UserWarning):
    """A fit in this process will take more than ten minutes; the message says what takes long, and what takes less.

    See Also
    --------
    fit_federated : Its ``progress`` has a line from a minute on.

    Examples
    --------
    >>> import warnings, fedbayes as fb
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", fb.SlowFitWarning)  # fits in this block stop where they would take so long
    """


class SiteLeftOutWarning(UserWarning):
    """A fit over a network holds fewer sites than it began with, as some kept secure sums from coming out.

    See Also
    --------
    FederatedError : The others could not go on without them.
    FederatedFit.trouble : The same in words, at any time.

    Examples
    --------
    >>> import warnings, fedbayes as fb
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", fb.SiteLeftOutWarning)  # fits in this block end in an error
    """


class UnreliableWarning(UserWarning):
    """Draws that are not to be trusted, though the rounds have converged.

    The Gaussian is so far from the posterior that importance weights can't correct it, or exact chains have not mixed.

    See Also
    --------
    NotConvergedWarning : The rounds have not ended where they should.
    FederatedFit.trouble : The same in words, at any time.

    Examples
    --------
    >>> import warnings, fedbayes as fb
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", fb.UnreliableWarning)  # fits in this block raise it
    """


class MergeWarning(UserWarning):
    """The clients' posteriors are summarised in another way than asked for, because there are too few draws.

    See Also
    --------
    OneShot : Combines the clients' posteriors.
    FedPA : Averages them in rounds.

    Examples
    --------
    >>> import fedbayes as fb
    >>> issubclass(fb.MergeWarning, UserWarning)
    True
    """


class ResultCode(IntEnum):
    """Outcome of one client's round. Compiled code returns it as an integer; :attr:`meaning` says it in words.

    It is all that a server knows of a single client's computation where replies are sums. ``fit.rounds["code"]`` has
    the codes by round and client.

    See Also
    --------
    FederatedError : A run over a network can't go on.
    FederatedFit : Its ``rounds`` have the codes.

    Examples
    --------
    >>> import fedbayes as fb
    >>> fb.ResultCode(6).name
    'NO_REPLY'
    >>> fb.ResultCode.NO_REPLY.meaning
    'did not answer before the deadline; its last message stays'
    """

    OK = 0
    INACTIVE = 1
    NOT_FINITE = 2
    IMPROPER = 3
    UNRELIABLE = 4
    NO_GRADIENT = 5
    NO_REPLY = 6
    FAILED = 7
    REFUSED = 8
    NOISY = 9
    LOST = 10
    NOT_SUMMED = 12
    IN_PART = 13

    @property
    def meaning(self) -> str:
        """The code in words."""
        return _MEANINGS[self]


def are_codes(codes: Any) -> bool:
    """Whether all of these are codes that a site may answer with."""
    known = {int(code) for code in ResultCode}
    return {int(code) for code in codes.flat} <= known


def usable(codes: Any) -> Any:
    """Whether messages with these codes count; ``codes`` is an array of NumPy or JAX, and so is the result."""
    found = codes == ResultCode.OK
    for code in (
        ResultCode.UNRELIABLE,
        ResultCode.NOISY,
        ResultCode.LOST,
        ResultCode.IN_PART,
    ):
        found = found | (codes == code)
    return found


_MEANINGS = {
    ResultCode.OK: "used",
    ResultCode.INACTIVE: "did not take part this round; its last message stays",
    ResultCode.NOT_FINITE: "message not finite: dropped, its last message stays",
    ResultCode.IMPROPER: "the tilted density is not proper: dropped, its last message stays",
    ResultCode.UNRELIABLE: f"importance weights heavy-tailed (k-hat above {K_HAT_LIMIT}): used, but not to be trusted",
    ResultCode.NOISY: "used; more than its share of the Monte Carlo noise that a fit should have in all",
    ResultCode.LOST: "it has lost what it kept, with its disk or its process: the clients' sites are counted anew",
    ResultCode.NOT_SUMMED: "another site had nothing to add to the secure sum: dropped, its last message stays",
    ResultCode.IN_PART: "some modes' messages not finite: those are dropped, the others used",
    ResultCode.NO_GRADIENT: "its gradient is not finite where the chains start: dropped",
    ResultCode.NO_REPLY: "did not answer before the deadline; its last message stays",
    ResultCode.FAILED: "its program failed, and its own log says why; its last message stays",
    ResultCode.REFUSED: "its message was damaged, of another round, or implausible: refused, its last message stays",
}
