"""What a client answers where its site gave no answer: codes, never the text of an exception, which could hold data."""

from enum import IntEnum

from fedbayes.errors import FedbayesError


class NoAnswer(IntEnum):
    """Why a site gave no answer, as the code of a Flower error. Flower's own codes are below 100."""

    BROKEN = 101
    NO_SITE_ID = 102
    NO_STATE_FOLDER = 103
    NO_WORKER = 104
    WORKER_DIED = 105
    TOO_LATE = 106

    @property
    def meaning(self) -> str:
        """The code in words; the server may see them."""
        return _MEANINGS[self]


class SiteFailure(FedbayesError):
    """There is no answer. The code goes to the server, the text to the site's own log.

    Parameters
    ----------
    code
        What the server is told.
    text
        What the site's administrator reads.
    """

    def __init__(self, code: NoAnswer, text: str) -> None:
        super().__init__(text)
        self.code = code


_WORKER_LOG = "`worker.log` in its state folder (`state-dir` of its node)"
_MEANINGS = {
    NoAnswer.BROKEN: "the client app failed; the node's log says how",
    NoAnswer.NO_SITE_ID: "the node's configuration does not name its site",
    NoAnswer.NO_STATE_FOLDER: "the site's state folder can't be used; the node's log says why",
    NoAnswer.NO_WORKER: f"the site's worker did not start; {_WORKER_LOG} says why",
    NoAnswer.WORKER_DIED: f"the site's worker died of this request, twice; {_WORKER_LOG} may say why",
    NoAnswer.TOO_LATE: "the site had no answer by the deadline",
}
