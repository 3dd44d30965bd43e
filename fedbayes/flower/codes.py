"""What a client answers where its site gave no answer: codes, never the text of an exception, which could hold data."""

from enum import IntEnum


class SiteError(IntEnum):
    """Why a site gave no answer, as the code of a Flower error. Flower's own codes are below 100."""

    NO_SITE_ID = 101
    NO_STATE_FOLDER = 102
    NO_WORKER = 103
    WORKER_DIED = 104
    TOO_LATE = 105
    BAD_REQUEST = 106

    @property
    def meaning(self) -> str:
        """The code in words; the server may see them."""
        return _MEANINGS[self]


_MEANINGS = {
    SiteError.NO_SITE_ID: "the node has no 'site-id' in its --node-config",
    SiteError.NO_STATE_FOLDER: "the site's state folder can't be used; the node's log says why",
    SiteError.NO_WORKER: "the site's worker did not start; the worker's log says why",
    SiteError.WORKER_DIED: "the site's worker died twice over this request; the worker's log says more",
    SiteError.TOO_LATE: "the site had no answer by the deadline",
    SiteError.BAD_REQUEST: "the request did not hold what a request holds",
}
