"""The policy, its versions and candidates, as the API answers them and as they are given."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from muster.documents.words import Json, Moment, Page, Trial


class PolicyVersion(TypedDict):
    version: int
    is_active: bool
    created_at: Moment
    created_by: str
    reason: str


class PolicyPage(Page):
    items: list[PolicyVersion]


class PolicyDetail(TypedDict):
    """``version`` and what is about it are null for the built-in policy, which is in force until one is stored.

    ``is_usable``: false for a stored document that this release does not take; while it is active the built-in policy
    is in force.
    """

    version: int | None
    is_active: bool
    created_at: Moment | None
    created_by: str | None
    reason: str | None
    is_usable: bool
    document: Json


Difference = TypedDict("Difference", {"path": str, "from": Any, "to": Any})
"""``path``: a JSON pointer. ``from`` and ``to`` are null where that policy has nothing there."""


class PolicyFault(TypedDict):
    """``pointer``: a JSON pointer into the document."""

    pointer: str
    code: str
    detail: str


class PolicyCheck(TypedDict):
    """What a candidate is worth. Where it is not valid, ``errors`` say why and nothing else is told.

    ``obstacles``: what keeps a valid one from becoming active as things are.
    """

    is_valid: bool
    errors: list[PolicyFault]
    active_version: NotRequired[int | None]
    obstacles: NotRequired[list[PolicyFault]]
    differences: NotRequired[list[Difference]]


class ActivatedPolicy(PolicyDetail, Trial):
    """The version that was made, and what it changed."""

    differences: list[Difference]


class NewPolicy(TypedDict):
    """``document``: what it leaves out has its default, not what is active now."""

    document: Json
    reason: str
