"""Reads of a checkpoint's files: where they lie, and whether a caller may have them. Each read is audited."""

import re
from dataclasses import dataclass
from typing import Final

from control.attempts.mapping import spec_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.jobs.read import row_of
from muster.db.models import Checkpoint
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import CheckpointId, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import CheckpointStatus

READ: Final = declare_action("checkpoint.read")
WHOLE: Final = (CheckpointStatus.VERIFIED, CheckpointStatus.GOOD)
"""Read back equal after the commit, and not doubted since."""
_ABSENT: Final = {
    CheckpointStatus.WRITING: "is being written, and not committed yet",
    CheckpointStatus.EXPIRED: "was deleted: newer ones took its place",
}
_DOUBTED: Final = {
    CheckpointStatus.COMMITTED: "was not read back yet: it may be damaged",
    CheckpointStatus.REJECTED: "did not verify, and nothing resumes from it",
    CheckpointStatus.TAINTED: "was written while a GPU may have computed wrong results, and nothing resumes from it",
}
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NEWER_RUNTIME: Final = "Fetch another one, or submit the job with the newest muster-train."


@dataclass(frozen=True, slots=True)
class ReadableCheckpoint:
    """A checkpoint that a caller may read now, as the read is in the audit.

    ``folder``: of all checkpoints of the job's rule; None: that of the hosts' own setting. ``below``: the generation's
    folder in it. ``store``: the generation's prefix in an object store of the tenant's; then there is no folder.
    """

    tenant_id: TenantId
    step: int
    generation: str
    manifest: str
    folder: str | None
    below: str
    store: str | None

    @property
    def place(self) -> str:
        """Return the generation's folder, as an address names it."""
        return self.below if self.folder is None else f"{self.folder.rstrip('/')}/{self.below}"


def read_checkpoint(
    unit: UnitOfWork, job_id: JobId, checkpoint_id: CheckpointId, *, has_doubtful: bool, what: str
) -> ReadableCheckpoint:
    """Return where a checkpoint of a visible job is, and audit the read of ``what``.

    ``has_doubtful``: also one that was not verified, was rejected or is tainted.

    Raises:
        NotFoundError: the job has no such checkpoint.
        ConflictError: it has no files, it is doubtful, or its runtime reported no digest of its manifest.
    """
    unit.principal.require(Permission.LOG_READ)
    job = row_of(unit, job_id)
    row = unit.session.get(Checkpoint, checkpoint_id)
    if row is None or row.job_id != job_id:
        raise NotFoundError("the job has no such checkpoint")
    _require_readable(row, has_doubtful=has_doubtful)
    rule = spec_of(unit.session, job).checkpoint
    below = f"{job_id}/{row.generation}"
    detail = {"step": row.step, "generation": row.generation, "status": row.status, "what": what}
    unit.audit("checkpoint.read", "job", job_id, tenant_id=TenantId(job.tenant_id), detail=detail)
    return ReadableCheckpoint(
        tenant_id=TenantId(job.tenant_id),
        step=row.step,
        generation=row.generation,
        manifest=row.manifest["sha256"],
        folder=rule.folder,
        below=below,
        store=None if rule.store is None else f"{rule.store.rstrip('/')}/{below}",
    )


def _require_readable(row: Checkpoint, *, has_doubtful: bool) -> None:
    """Raise ConflictError."""
    named = f"the checkpoint of step {row.step} ({row.generation})"
    if row.status in _ABSENT:
        advice = "Name another step: `muster job checkpoints` lists them."
        raise ConflictError(f"{named} {_ABSENT[row.status]}", suggestion=advice)
    if row.status not in WHOLE and not has_doubtful:
        advice = "Fetch another step, or add --unverified (`unverified` in the API) to have it as it is."
        raise ConflictError(f"{named} is {row.status}: it {_DOUBTED[row.status]}", suggestion=advice)
    # A tenant's program may have another runtime, which reports any text.
    if not _SHA256.fullmatch(row.manifest.get("sha256") or ""):
        raise ConflictError(f"{named} has no digest: its runtime reported none", suggestion=_NEWER_RUNTIME)
