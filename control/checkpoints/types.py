"""Checkpoints as records: their facts for every reader outside `control`."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Doubt:
    """Generations of the attempt with ``fence`` that are doubted: of ``first_step`` and later, and all after ``since``.

    ``since`` is for commits that were not reported yet.
    """

    fence: int
    first_step: int
    since: datetime

    def holds_for(self, fence: int, step: int) -> bool:
        """Return whether it holds for a generation of ``step`` that the attempt with ``fence`` made."""
        return fence == self.fence and step >= self.first_step
