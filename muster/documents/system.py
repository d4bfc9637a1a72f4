"""The server about itself, as the API answers it."""

from typing_extensions import TypedDict


class Health(TypedDict):
    """``status``: ``ok`` of a process that lives, ``ready`` of one that can serve."""

    status: str
    version: str


class ProblemKind(TypedDict):
    """What a problem's code means and what to do."""

    code: str
    status: int
    title: str
    suggestion: str
