"""Incident of a burn-in that used all its tries without a result, open until a later one of that GPU is judged."""

from typing import Final

from control.core.unit_of_work import UnitOfWork
from control.incidents import incidents
from muster.db.models import BurnIn
from muster.domain.evidence.incidents import IncidentKind

KIND: Final = IncidentKind.BURN_IN_ABANDONED


def report_abandoned(unit: UnitOfWork, row: BurnIn, why: str) -> None:
    """Open one incident a GPU, however often it happens. The caller holds the GPU."""
    if not incidents.open_about(unit, KIND, [row.gpu_uuid]):
        summary = f"{row.gpu_uuid} could not be burnt in, tried {row.tries} times; the last time: {why}"
        payload = {"burn_in_id": row.id, "node_id": row.node_id, "tries": row.tries, "fault": why}
        incidents.open_incident(unit, KIND, "gpu", row.gpu_uuid, summary, payload)


def close_abandoned(unit: UnitOfWork, row: BurnIn) -> None:
    """Close the incident of the GPU whose burn-in ``row`` was judged. The caller holds the GPU."""
    for incident in incidents.open_about(unit, KIND, [row.gpu_uuid]):
        incidents.close_incident(unit, incident, reason=f"{row.id} was judged: {row.outcome}")
