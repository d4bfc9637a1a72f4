"""Checkpoints as records: their facts for every reader outside `control`."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.ids import AttemptId, CheckpointId, Fence, JobId
from muster.domain.states import CheckpointStatus


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A generation of a job's state. Its columns' meanings are in ``muster.db.models.checkpoints``."""

    id: CheckpointId
    job_id: JobId
    attempt_id: AttemptId
    fence: Fence
    step: int
    generation: str
    status: CheckpointStatus
    manifest: dict[str, Any]
    created_at: datetime
    committed_at: datetime | None
    verified_at: datetime | None
    num_bytes: int | None
    reason: str | None
    pinned_at: datetime | None
    pinned_by: str | None
    pin_applied_at: datetime | None
    scrubbed_at: datetime | None
