"""Jobs and attempts as records: their facts for every reader outside `control`."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.ids import AttemptId, Fence, JobId, NodeId, TenantId
from muster.domain.job.request import JobRequest, read_request
from muster.domain.job.spec import JobSpec
from muster.domain.states import AttemptState, Cause, HostPartState, JobState, StopReason


class JobRecord(msgspec.Struct, frozen=True):
    """A job, without its program. ``wait_verdict``: as ``control.placement.wait_records`` stores it."""

    id: JobId
    tenant_id: TenantId
    name: str
    tier: str
    state: JobState
    state_reason: str
    request: dict[str, Any]
    submitted_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    restarts_used: int
    launch_failures: int
    oom_doublings: int
    wanted_nodes: int | None
    job_class: str | None
    copied_from: JobId | None
    wait_verdict: dict[str, Any] | None
    next_try_at: datetime | None
    cancel_requested_at: datetime | None
    number: int
    version: int

    def requested(self) -> JobRequest:
        """Return ``request``, read."""
        return read_request(self.request)


class SubmittedJob(JobRecord, frozen=True):
    """A job with ``spec``, the submitted JSON, which may be long: for a reader of this one job."""

    spec: dict[str, Any]

    def specification(self) -> JobSpec:
        """Return ``spec``, read."""
        return JobSpec.model_validate(self.spec, strict=False)


class LabelledJob(JobRecord, frozen=True):
    """A job of a list, with its labels."""

    labels: dict[str, str]


class AttemptRecord(msgspec.Struct, frozen=True):
    """An attempt. Its columns' meanings are in ``muster.db.models.attempts``."""

    id: AttemptId
    number: int
    fence: Fence
    state: AttemptState
    cause: Cause | None
    proof: str | None
    ending_cause: Cause | None
    ending_proof: str | None
    stop_reason: StopReason | None
    stop_deadline_at: datetime | None
    num_nodes: int | None
    placed_at: datetime
    claimed_at: datetime | None
    go_at: datetime | None
    running_at: datetime | None
    stopping_at: datetime | None
    lost_at: datetime | None
    ended_at: datetime | None
    idle_since: datetime | None
    idle_stop_at: datetime | None
    tainted_since: datetime | None
    checkpoint_interval: dict[str, Any] | None
    energy: dict[str, Any] | None
    steps_removed: int
    version: int


class AttemptHostRecord(msgspec.Struct, frozen=True):
    """One host's part of an attempt."""

    attempt_id: AttemptId
    node_id: NodeId
    node_rank: int
    state: HostPartState
    boot_id: str | None
    num_wakeups: int
    claimed_at: datetime | None
    awaits_go: bool
    ready_at: datetime | None
    is_at_fault: bool
    started_at: datetime | None
    exited_at: datetime | None
    clean_at: datetime | None
    exit_record: dict[str, Any] | None
    clean_proof: dict[str, Any] | None


class StopRequestRecord(msgspec.Struct, frozen=True):
    """A request to stop an attempt, with its author, reason and deadline."""

    reason: StopReason
    deadline_at: datetime
    requested_by: str
    detail: str
    created_at: datetime
