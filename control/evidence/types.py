"""The facts that a GPU is judged by, as records for every reader outside `control`."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.evidence.findings import Trust
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.states import BurnInOutcome, EvidenceState, Standing


class EvidenceRecord(msgspec.Struct, frozen=True):
    """A dated finding with its sources."""

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


class StandingChangeRecord(msgspec.Struct, frozen=True):
    """A move of a GPU's standing."""

    id: int
    gpu_uuid: GpuUuid
    origin: Standing | None
    target: Standing
    at: datetime
    reason: str
    actor: str
    policy_version: int | None
    move_reason: str | None
    evidence_ids: list[str]


class DecidedBurnInRecord(msgspec.Struct, frozen=True):
    """A burn-in's times and result alone, as judgements need them; ``covers``: null where release 0.1.0 took it."""

    began_at: datetime | None
    ended_at: datetime | None
    outcome: BurnInOutcome | None
    covers: list[str] | None = None
