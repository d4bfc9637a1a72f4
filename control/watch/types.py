"""Records of verdicts, as read models give them."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.ids import AttemptId, JobId, NodeId, TenantId, VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState


class VerdictRecord(msgspec.Struct, frozen=True):
    """A verdict. Its columns' meanings are in ``muster.db.models.watch``."""

    id: VerdictId
    attempt_id: AttemptId
    job_id: JobId
    tenant_id: TenantId
    kind: VerdictKind
    cause: str
    ranks: list[int]
    node_id: NodeId | None
    gpu: str
    phase: str
    step: int
    operation: str
    frame: dict[str, Any] | None
    evidence: list[str]
    sentence: str
    reaction: VerdictReaction
    state: VerdictState
    created_at: datetime
    dismissed_at: datetime | None
    dismissed_by: str | None
    dismiss_reason: str | None
    last_step: int | None
    ended_at: datetime | None
    burn_in_id: str | None
    burn_in_note: str | None
