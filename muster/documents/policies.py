"""The policy, its versions and candidates, as the API answers and accepts them."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, Page


class PolicyVersion(TypedDict):
    version: int
    is_active: bool
    created_at: Moment
    created_by: str
    reason: str


class PolicyPage(Page):
    items: list[PolicyVersion]


class PolicyDetail(TypedDict):
    """``version`` and the fields about it are null for the built-in policy, which is in force until one is stored.

    ``is_usable``: false for a stored document that this release does not accept; while it is active the built-in policy
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
"""One field in which two policies differ. ``path``: a JSON pointer.

``from`` and ``to`` are null where that policy has nothing at the path."""


class PolicyFault(TypedDict):
    """A fault of a policy. ``pointer``: a JSON pointer into the document."""

    pointer: str
    code: str
    detail: str


class PolicyCheck(TypedDict):
    """The result of a check of a candidate. Where it is not valid, there are only ``errors``.

    ``obstacles``: conditions that prevent a valid candidate from becoming active now.
    """

    is_valid: bool
    errors: list[PolicyFault]
    active_version: NotRequired[int | None]
    obstacles: NotRequired[list[PolicyFault]]
    differences: NotRequired[list[Difference]]


class ActivatedPolicy(PolicyDetail, Trial):
    """The created version, and its changes."""

    differences: list[Difference]


class NewPolicy(TypedDict):
    """A policy to activate. ``document``: omitted fields have their defaults, not their present values."""

    document: Json
    reason: str
    despite_budget: NotRequired[str | None]
