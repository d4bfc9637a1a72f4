"""What a unit of work leaves besides state: events, audit entries, outbox messages, kept until its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from muster.db.models import AuditEntry, Event, OutboxMessage
from muster.domain.ids import EventId, TenantId
from muster.domain.principals import Principal


@dataclass(slots=True)
class Consequences:
    principal: Principal
    now: datetime
    new_id: Callable[[str], str]
    _events: list[dict[str, Any]] = field(default_factory=list)
    _audits: list[dict[str, Any]] = field(default_factory=list)
    _messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_traces(self) -> bool:
        return bool(self._events or self._audits)

    @property
    def has_audit(self) -> bool:
        return bool(self._audits)

    def add_event(
        self, kind: str, subject_type: str, subject_id: str, tenant_id: TenantId | None, payload: dict[str, Any]
    ) -> EventId:
        event_id = EventId(self.new_id("event"))
        self._events.append(
            {
                "id": event_id,
                "at": self.now,
                "kind": kind,
                "subject_type": subject_type,
                "subject_id": subject_id,
                "tenant_id": tenant_id,
                "payload": payload,
            }
        )
        return event_id

    def add_audit(
        self,
        action: str,
        subject_type: str,
        subject_id: str,
        tenant_id: TenantId | None,
        reason: str | None,
        detail: dict[str, Any],
    ) -> str:
        audit_id = self.new_id("audit")
        self._audits.append(
            {
                "id": audit_id,
                "at": self.now,
                "actor": self.principal.name,
                "actor_key_id": self.principal.key_id,
                "role": self.principal.role,
                "action": action,
                "subject_type": subject_type,
                "subject_id": subject_id,
                "tenant_id": tenant_id,
                "reason": reason,
                "address": self.principal.address,
                "request_id": self.principal.request_id,
                "detail": detail,
            }
        )
        return audit_id

    def add_message(self, topic: str, key: str, payload: dict[str, Any]) -> None:
        self._messages.append(
            {
                "topic": topic,
                "key": key,
                "payload": payload,
                "created_at": self.now,
                "next_try_at": self.now,
                "tries": 0,
            }
        )

    def described(self) -> list[dict[str, Any]]:
        events = [
            {"type": "event", **{name: row[name] for name in ("kind", "subject_type", "subject_id", "payload")}}
            for row in self._events
        ]
        messages = [
            {"type": "message", **{name: row[name] for name in ("topic", "key", "payload")}} for row in self._messages
        ]
        return events + messages

    def write(self, session: Session) -> None:
        """Events, then audit entries, then messages: each batch in the order in which the unit named them."""
        cause = self._audits[0]["id"] if self._audits else None
        for table, rows in (
            (Event, [row | {"caused_by": cause} for row in self._events]),
            (AuditEntry, self._audits),
            (OutboxMessage, self._messages),
        ):
            if rows:
                session.execute(insert(table), rows)
