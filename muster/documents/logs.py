"""The output of jobs, as the API answers it."""

from typing_extensions import TypedDict

from muster.documents.fields import Moment, Page, Stretch


class LogPiece(TypedDict):
    """A piece of a log.

    ``stream``: a global rank, or ``launcher``. ``offset``: bytes in that stream before ``text``.
    """

    position: int
    attempt_id: str
    node_id: str
    stream: str
    offset: int
    received_at: Moment
    text: str


class LogLine(TypedDict):
    """A line that was searched for. ``offset``: bytes in its stream before ``text``, which of a long line is a part."""

    attempt_id: str
    node_id: str
    stream: str
    offset: int
    received_at: Moment
    text: str


class LogLinePage(Page):
    items: list[LogLine]


class LogStretch(Stretch):
    items: list[LogPiece]
