"""Audit entries, as the API answers them."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.fields import Json, Moment, OneOf, Page
from muster.domain.principals import Role


class AuditEntry(TypedDict):
    """``position`` and the hashes are null for the moment until it is sealed; ``hash`` binds it to all before it.

    ``actor_key_id``, ``address`` and ``request_id`` are null for a tenant where others than its own people acted.
    """

    id: str
    position: int | None
    hash: str | None
    prev_hash: str | None
    at: Moment
    actor: str
    role: Annotated[str, OneOf(Role)]
    action: str
    subject_type: str
    subject_id: str
    tenant_id: str | None
    reason: str | None
    detail: Json
    actor_key_id: str | None
    address: str | None
    request_id: str | None


class AuditPage(Page):
    items: list[AuditEntry]
