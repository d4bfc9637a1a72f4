"""Consequences of a unit of work besides state: events, audit entries, outbox messages, collected until its end."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from muster.db.pipeline.pg_pipeline import Query
from muster.domain.ids import EventId, TenantId
from muster.domain.principals import Principal

_WRITE: Final = """
WITH event AS (
    INSERT INTO events (id, at, kind, subject_type, subject_id, tenant_id, payload, caused_by)
    SELECT id, %(now)s, kind, subject_type, subject_id, tenant_id, payload, %(caused_by)s
    FROM jsonb_to_recordset(%(events)s::jsonb)
        AS one (id text, kind text, subject_type text, subject_id text, tenant_id text, payload jsonb)
), entry AS (
    INSERT INTO audit_entries (id, at, actor, actor_key_id, role, action, subject_type, subject_id, tenant_id, reason,
        address, request_id, detail)
    SELECT id, %(now)s, %(actor)s, %(actor_key_id)s, %(role)s, action, subject_type, subject_id, tenant_id, reason,
        %(address)s, %(request_id)s, detail
    FROM jsonb_to_recordset(%(audits)s::jsonb) AS one (id text, action text, subject_type text, subject_id text,
        tenant_id text, reason text, detail jsonb)
), message AS (
    INSERT INTO outbox (topic, key, payload, created_at, next_try_at, tries)
    SELECT topic, key, payload, %(now)s, %(now)s, 0
    FROM jsonb_to_recordset(%(messages)s::jsonb) AS one (topic text, key text, payload jsonb)
)
SELECT pg_notify(channel, '') FROM unnest(%(channels)s::text[]) AS channel
"""


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
                "action": action,
                "subject_type": subject_type,
                "subject_id": subject_id,
                "tenant_id": tenant_id,
                "reason": reason,
                "detail": detail,
            }
        )
        return audit_id

    def add_message(self, topic: str, key: str, payload: dict[str, Any]) -> None:
        self._messages.append({"topic": topic, "key": key, "payload": payload})

    @property
    def num_events(self) -> int:
        return len(self._events)

    def described_events(self, start: int = 0) -> list[dict[str, Any]]:
        names = ("kind", "subject_type", "subject_id", "payload")
        return [{"type": "event", **{name: row[name] for name in names}} for row in self._events[start:]]

    def described(self) -> list[dict[str, Any]]:
        messages = [
            {"type": "message", **{name: row[name] for name in ("topic", "key", "payload")}} for row in self._messages
        ]
        return self.described_events() + messages

    def written(self, channels: Collection[str]) -> Query | None:
        """Return one statement for events, audit entries, messages and notifications; None where there is none of them.

        Each kind is in the order in which the unit added it. The notifications go to the listeners on ``channels``.
        """
        if not (self._events or self._audits or self._messages or channels):
            return None
        return _WRITE, {
            "now": self.now,
            "events": json.dumps(self._events),
            "caused_by": self._audits[0]["id"] if self._audits else None,
            "audits": json.dumps(self._audits),
            "actor": self.principal.name,
            "actor_key_id": self.principal.key_id,
            "role": self.principal.role.value,
            "address": self.principal.address,
            "request_id": self.principal.request_id,
            "messages": json.dumps(self._messages),
            "channels": sorted(channels),
        }
