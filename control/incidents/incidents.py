"""Incidents: opened and closed by rules in their own units of work, read by operators, and closed by them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.incidents import storage_attribution
from control.incidents.read import IncidentRecord
from control.policy.policies import active_policy
from muster.db.models import Incident
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.evidence.incidents import CLOSED_BY_RULE, IncidentKind, severity_of
from muster.domain.principals import Permission
from muster.identity import new_id

CLOSE: Final = declare_action("incident.close")
_OPEN: Final = Incident.closed_at.is_(None)


def open_incident(
    unit: UnitOfWork,
    kind: IncidentKind,
    subject_type: str,
    subject_id: str,
    summary: str,
    payload: Mapping[str, Any],
    *,
    lists: Collection[str] = (),
) -> Incident:
    """Open an incident about ``subject_id``. The caller has checked, under the subject's lock, that none is open.

    ``lists``: names of facts that may be long; the event leaves them out.
    """
    incident = Incident(
        id=new_id("incident"),
        kind=kind,
        subject_type=subject_type,
        subject_id=subject_id,
        summary=summary,
        payload=dict(payload),
        opened_at=unit.now,
    )
    unit.session.add(incident)
    about = {"kind": kind, "subject_type": subject_type, "subject_id": subject_id, "reason": summary}
    told = {**payload, **about, "severity": severity_of(kind, payload)}
    unit.emit("incident.opened", "incident", incident.id, payload=_without(told, lists))
    return incident


def extend_incident(
    unit: UnitOfWork,
    incident: Incident,
    summary: str,
    payload: Mapping[str, Any],
    *,
    lists: Collection[str] = (),
    added: Mapping[str, Any] | None = None,
) -> None:
    """Let an open incident say what holds now. The caller holds it.

    ``lists``: as for ``open_incident``. ``added``: what the event has in place of the whole payload.
    """
    severity, before = severity_of(incident.kind, payload), severity_of(incident.kind, incident.payload)
    incident.summary, incident.payload = summary, dict(payload)
    facts = payload if added is None else added
    told = {**facts, "kind": incident.kind, "subject_id": incident.subject_id, "reason": summary, "severity": severity}
    kind = "incident.escalated" if severity.rank > before.rank else "incident.extended"
    unit.emit(kind, "incident", incident.id, payload=_without(told, lists))


def _without(facts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in names}


def close_incident(unit: UnitOfWork, incident: Incident, *, reason: str | None) -> None:
    """Close an incident by rule, or within a person's act that leaves the audit entry.

    The caller holds the incident.
    """
    incident.closed_at, incident.closed_by, incident.close_reason = unit.now, unit.principal.name, reason
    severity = severity_of(incident.kind, incident.payload)
    told = {"kind": incident.kind, "subject_id": incident.subject_id, "reason": reason, "severity": severity}
    unit.emit("incident.closed", "incident", incident.id, payload=told)


def open_about(unit: UnitOfWork, kind: IncidentKind, subject_ids: Collection[str]) -> Sequence[Incident]:
    """Return the open ones of a kind about any of these, locked in the order of their ids."""
    query = select(Incident).where(_OPEN, Incident.kind == kind, Incident.subject_id.in_(list(subject_ids)))
    return unit.session.scalars(query.order_by(Incident.id).with_for_update()).all()


def close(unit: UnitOfWork, incident_id: str, *, reason: str) -> IncidentRecord:
    """Close an incident that a person has handled. Closing twice is the same as once.

    Raises:
        NotFoundError: there is no such incident.
        ConflictError: a rule closes incidents of its kind, as its subject recovers.
    """
    unit.principal.require(Permission.INCIDENT_WRITE)
    kind = unit.session.scalar(select(Incident.kind).where(Incident.id == incident_id))
    if kind in storage_attribution.BLAMED_BY:
        storage_attribution.take_turn(unit)
    incident = unit.session.get(Incident, incident_id, with_for_update=True)
    if incident is None:
        raise NotFoundError
    if incident.closed_at is not None:
        return record_of(incident, IncidentRecord)
    way = CLOSED_BY_RULE.get(incident.kind)
    if way is not None:
        raise ConflictError(f"an incident {incident.kind} is not closed by hand", suggestion=way, kind=incident.kind)
    if incident.kind in storage_attribution.BLAMED_BY:
        storage_attribution.clear_blame(
            unit, incident.kind, incident.subject_id, active_policy(unit.session).training.storage
        )
    close_incident(unit, incident, reason=reason)
    unit.audit("incident.close", "incident", incident.id, reason=reason, detail={"kind": incident.kind})
    unit.session.flush()
    return record_of(incident, IncidentRecord)
