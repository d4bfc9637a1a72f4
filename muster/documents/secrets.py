"""Tenants' secrets, as the API answers and accepts them: no answer has a value."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Moment, Page


class Secret(TypedDict):
    """A secret without its value. ``jobs``: names of the jobs that may use it; empty: every job of its tenant."""

    id: str
    tenant_id: str
    name: str
    jobs: list[str]
    version: int
    created_at: Moment
    created_by: str
    rotated_at: Moment | None


class ChangedSecret(Secret, Trial):
    """The secret after a change, or as it was before it was deleted."""


class SecretPage(Page):
    items: list[Secret]


class SecretValue(TypedDict):
    value: str
    encoding: NotRequired[Literal["text", "base64"]]


class NewSecret(SecretValue):
    name: str
    jobs: NotRequired[list[str]]
    tenant_id: NotRequired[str | None]


class SecretKey(TypedDict):
    """A key that protects secrets. ``is_usable``: the control plane has it. ``num_values``: that need it."""

    key_id: str
    is_active: bool
    is_usable: bool
    num_values: int


class SecretKeyPage(Page):
    items: list[SecretKey]


class ChangedSecretKeys(Trial):
    """A batch of values under the active key. ``num_left``: values that have another key.

    ``num_unusable``: values among them that do not open, by ``needed_keys``; all, once ``num_rewrapped`` is 0.
    """

    key_id: str
    num_rewrapped: int
    num_left: int
    num_unusable: int
    needed_keys: list[str]
