"""Rows as PostgreSQL's own JSON tells them: columns of the models by the same names, without a session behind them."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.evidence.findings import Trust
from muster.domain.evidence.repairs import RepairAction, RepairOutcome, RepairVerb
from muster.domain.ids import AttemptId, EvidenceId, Fence, GpuUuid, JobId, NodeId, TenantId
from muster.domain.states import (
    AttemptState,
    BurnInOutcome,
    Cause,
    Contact,
    EvidenceState,
    HostPartState,
    JobState,
    Standing,
    StopReason,
)


class GpuRecord(msgspec.Struct, frozen=True):
    uuid: GpuUuid
    node_id: NodeId
    slot_index: int
    serial: str | None
    model: str
    memory_bytes: int
    compute_capability: str
    driver_version: str
    standing: Standing
    origin_standing: Standing | None
    score: int | None
    judge_at: datetime | None
    is_mig_enabled: bool
    is_simulated: bool
    cohort_key: str
    version: int
    attributes: dict[str, str] = {}


class StandingChangeRecord(msgspec.Struct, frozen=True):
    gpu_uuid: GpuUuid
    origin: Standing | None
    target: Standing
    at: datetime
    reason: str
    actor: str
    policy_version: int | None
    move_reason: str | None
    evidence_ids: list[str]


class OverrideRecord(msgspec.Struct, frozen=True):
    id: str
    standing: Standing
    reason: str
    actor: str
    until: datetime
    created_at: datetime


class EvidenceRecord(msgspec.Struct, frozen=True):
    id: EvidenceId
    gpu_uuid: GpuUuid | None
    node_id: NodeId
    detector: str
    detector_version: int
    fault_key: str
    severity: int
    trust: Trust
    sources: list[str]
    onset_at: datetime
    last_seen_at: datetime
    counts_for_ms: int
    summary: str
    threatens_correctness: bool
    state: EvidenceState
    is_suspended: bool
    values: dict[str, Any]
    suppressed_by: list[str]
    weighs_from_at: datetime | None
    boot_mark: int | None
    outlasted_at: datetime | None
    closed_at: datetime | None
    reopened_at: datetime | None
    dismissed_at: datetime | None
    dismissed_by: str | None
    dismiss_reason: str | None


class RepairRecord(msgspec.Struct, frozen=True):
    id: str
    gpu_uuid: GpuUuid
    fault_group: str
    action: RepairAction
    reason: str
    started_by: str
    began_at: datetime
    ended_at: datetime | None
    outcome: RepairOutcome | None
    words: str | None
    verb: RepairVerb | None
    taken_at: datetime | None


class BurnInRecord(msgspec.Struct, frozen=True):
    began_at: datetime | None
    ended_at: datetime | None
    outcome: BurnInOutcome | None


class CordonRecord(msgspec.Struct, frozen=True):
    id: str
    node_id: NodeId | None
    gpu_uuid: GpuUuid | None
    reason_code: str
    reason: str
    owner: str
    until: datetime | None
    created_at: datetime
    starts_at: datetime | None
    evacuate_at: datetime | None
    released_at: datetime | None
    released_by: str | None


class PolicyRecord(msgspec.Struct, frozen=True):
    """A version of the policy. ``document``: its JSON, unparsed."""

    version: int
    document: msgspec.Raw


class NodeRecord(msgspec.Struct, frozen=True):
    id: NodeId
    name: str
    contact: Contact
    boot_id: str | None
    last_heartbeat_at: datetime | None
    lease_renewed_at: datetime | None
    address: str
    num_gpus: int
    is_simulated: bool
    rack: str | None
    labels: dict[str, Any]
    rdma_ports: list[str]
    agent_version: str | None
    created_at: datetime
    version: int


class NodeLatestRecord(msgspec.Struct, frozen=True):
    boot_id: str | None
    at: datetime | None
    received_at: datetime | None
    skew_ms: int
    readings: dict[str, Any] | None


class JobRecord(msgspec.Struct, frozen=True):
    id: JobId
    tenant_id: TenantId
    name: str
    tier: str
    state: JobState
    state_reason: str
    spec: dict[str, Any]
    submitted_by: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    restarts_used: int
    oom_doublings: int
    wanted_nodes: int | None
    wait_verdict: dict[str, Any] | None
    next_try_at: datetime | None
    cancel_requested_at: datetime | None
    version: int


class AttemptRecord(msgspec.Struct, frozen=True):
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
    ended_at: datetime | None
    checkpoint_interval: dict[str, Any] | None
    energy: dict[str, Any] | None
    version: int


class AttemptHostRecord(msgspec.Struct, frozen=True):
    attempt_id: AttemptId
    node_id: NodeId
    node_rank: int
    state: HostPartState
    boot_id: str | None
    ring_count: int
    claimed_at: datetime | None
    awaits_go: bool
    ready_at: datetime | None
    is_at_fault: bool
    started_at: datetime | None
    exited_at: datetime | None
    clean_at: datetime | None
    exit_record: dict[str, Any] | None
    clean_proof: dict[str, Any] | None
