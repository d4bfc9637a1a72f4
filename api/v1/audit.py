"""Routes of the audit chain: each entry with its position and the hash that binds it to all before it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import Limit, page_of, reading
from api.views import time_of
from control.core import audit
from control.core.audit import AuditFilter, ReadEntry
from muster.documents import audit as documents
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["audit"])
Printable = Annotated[str | None, Query(min_length=1, max_length=256, pattern=r"^[ -~]+$")]
Action = Annotated[str, Query(min_length=1, max_length=64, pattern=r"^[a-z_.]+$")]


@router.get("/audit")
def list_audit(
    request: Request,
    principal: Annotated[Principal, requires(Permission.AUDIT_READ)],
    actor: Annotated[Printable, Query(description="the actor's whole name")] = None,
    action: Annotated[
        list[Action] | None, Query(max_length=20, description="such as job.cancel; with several, any of them")
    ] = None,
    subject: Annotated[Printable, Query(description="the id of the changed subject")] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 50,
) -> documents.AuditPage:
    """Return entries, the newest first; ``next_cursor`` is null on the last page.

    A tenant's admin reads entries that concern the tenant. ``position`` and ``hash`` are null for the moment until the
    entry is sealed.
    """
    dependencies = dependencies_of(request)
    actions = sorted(action or [])
    who = principal.tenant_id
    filters = {"path": "audit", "actor": actor, "actions": actions, "subject": subject, "who": who}
    before = None
    if cursor is not None:
        (serial,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
        before = int(serial)
    wanted = AuditFilter(actor, actions, subject)
    found = reading(
        dependencies.units,
        principal,
        audit.READ,
        lambda unit: audit.list_entries(unit, wanted, before=before, limit=limit + 1),
    )
    return page_of(
        found,
        limit,
        _entry_view,
        lambda last: make_cursor(dependencies.secret_key, filters, [str(last.entry.serial)]),
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
