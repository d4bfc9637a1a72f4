"""Incidents as the JSON that callers see: in their list, and next to what they are about."""

from api.views import time_of
from control.incidents.read import IncidentRecord
from muster import documents
from muster.domain.evidence.incidents import IncidentState


def incident_view(row: IncidentRecord) -> documents.Incident:
    """Return the incident. ``closes``: how an incident closes that no person may close by hand."""
    is_open = row.closed_at is None
    return {
        "id": row.id,
        "kind": row.kind,
        "state": IncidentState.OPEN if is_open else IncidentState.CLOSED,
        "subject_type": row.subject_type,
        "subject_id": row.subject_id,
        "summary": row.summary,
        "details": row.payload,
        "to_do": row.to_do,
        "closes": row.closes,
        "opened_at": time_of(row.opened_at),
        "closed_at": time_of(row.closed_at),
        "closed_by": row.closed_by,
        "close_reason": row.close_reason,
    }
