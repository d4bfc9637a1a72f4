"""The server about itself, as the API answers it."""

from typing_extensions import TypedDict


class Health(TypedDict):
    """The health of a process. ``status``: ``ok`` where it lives, ``ready`` where it can serve."""

    status: str
    version: str


class ProblemKind(TypedDict):
    """The meaning of a problem's code, and the next action."""

    code: str
    status: int
    title: str
    suggestion: str
