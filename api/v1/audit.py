"""Routes of the audit chain: each entry with its position and the hash that binds it to all before it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from api.lists import Cursor, OfTenant, PageRequest, Within
from api.permissions import requires
from api.reading import Limit
from api.views import time_of
from control.core import audit
from control.core.audit import AuditFilter, ReadEntry
from muster.documents import audit as documents
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["audit"])
Printable = Annotated[str | None, Query(min_length=1, max_length=256, pattern=r"^[ -~]+$")]
Action = Annotated[str, Query(min_length=1, max_length=64, pattern=r"^[a-z_.]+$")]


@router.get("/audit")
def list_audit(
    request: Request,
    principal: Annotated[Principal, requires(Permission.AUDIT_READ)],
    within: Annotated[Within, Depends()],
    actor: Annotated[Printable, Query()] = None,
    action: Annotated[list[Action] | None, Query(max_length=20)] = None,
    subject: Annotated[Printable, Query()] = None,
    tenant_id: OfTenant = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.AuditPage:
    """Return entries, the newest first unless ``order`` says otherwise.

    A tenant's admin reads entries that concern the tenant. ``position`` and ``hash`` are null for the moment until the
    entry is sealed.
    """
    actions = sorted(action or [])
    of_tenant = None if tenant_id is None else TenantId(tenant_id)
    wanted = AuditFilter(actor, actions, subject, of_tenant, within.span)
    who = principal.tenant_id
    return PageRequest(request, principal, audit.SORTS[within.order], cursor, limit).answer(
        audit.READ,
        {"path": "audit", "actor": actor, "actions": actions, "subject": subject, "who": who},
        lambda unit, part: audit.list_entries(unit, wanted, part),
        _entry_view,
        newer={"tenant_id": tenant_id, **within.conditions},
    )


def _entry_view(found: ReadEntry) -> documents.AuditEntry:
    entry, shows_origin = found.entry, found.shows_origin
    return {
        "id": entry.id,
        "position": entry.position,
        "hash": None if entry.hash is None else entry.hash.hex(),
        "prev_hash": None if entry.prev_hash is None else entry.prev_hash.hex(),
        "at": time_of(entry.at),
        "actor": entry.actor,
        "role": entry.role,
        "action": entry.action,
        "subject_type": entry.subject_type,
        "subject_id": entry.subject_id,
        "tenant_id": entry.tenant_id,
        "reason": entry.reason,
        "detail": entry.detail,
        "actor_key_id": entry.actor_key_id if shows_origin else None,
        "address": entry.address if shows_origin else None,
        "request_id": entry.request_id if shows_origin else None,
    }
