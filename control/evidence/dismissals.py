"""The dismissal of one evidence by a person: its state, with event and audit entry. What follows is the caller's."""

from typing import Any

from control.core.unit_of_work import UnitOfWork
from muster.db.models import EvidenceRow
from muster.domain.states import EVIDENCE_EDGES, EvidenceState, require_edge


def dismiss_row(unit: UnitOfWork, row: EvidenceRow, *, reason: str) -> None:
    """Take a locked evidence out of the judgement, in the name of the unit's principal."""
    require_edge(EVIDENCE_EDGES, row.state, EvidenceState.DISMISSED)
    row.state = EvidenceState.DISMISSED
    row.dismissed_at, row.dismissed_by, row.dismiss_reason = unit.now, unit.principal.name, reason
    payload = {"evidence_id": row.id, "fault_key": row.fault_key, "reason": reason}
    about: dict[str, Any] = {"node_id": row.node_id} if row.gpu_uuid is None else {"gpu_uuid": row.gpu_uuid}
    subject, subject_id = ("node", row.node_id) if row.gpu_uuid is None else ("gpu", row.gpu_uuid)
    unit.emit("evidence.dismissed", subject, str(subject_id), payload=payload)
    unit.audit("evidence.dismiss", "evidence", row.id, reason=reason, detail=about)
