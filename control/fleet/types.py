"""Nodes and GPUs, and decisions about them, as records for every reader outside `control`."""

from datetime import datetime
from typing import Any

import msgspec

from muster.domain.evidence.repairs import RepairAction, RepairOutcome, RepairVerb
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Contact, Standing


class NodeRecord(msgspec.Struct, frozen=True):
    """A node. Its columns' meanings are in ``muster.db.models.nodes``."""

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
    """The newest report of a node's agent. ``readings``: the host's own."""

    boot_id: str | None
    at: datetime | None
    received_at: datetime | None
    skew_ms: int
    readings: dict[str, Any] | None


class GpuRecord(msgspec.Struct, frozen=True):
    """A GPU. Its columns' meanings are in ``muster.db.models.gpus``."""

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


class OverrideRecord(msgspec.Struct, frozen=True):
    """A standing that a person has set, until a time."""

    id: str
    standing: Standing
    reason: str
    actor: str
    until: datetime
    created_at: datetime


class CordonRecord(msgspec.Struct, frozen=True):
    """A cordon of a node or of a GPU."""

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


class ProposalRecord(msgspec.Struct, frozen=True):
    """Something that the circuit breaker holds back: a move of a GPU, a burn-in of it, or the hold of its node."""

    subject_id: str
    way: str
    standing: Standing | None
    reason: str
    threatens_correctness: bool
    proposed_at: datetime


class RepairRecord(msgspec.Struct, frozen=True):
    """A repair of a GPU. ``verb``: the action of its host's agent; ``None``: a person does it."""

    id: str
    gpu_uuid: GpuUuid
    fault_group: str
    action: RepairAction
    reason: str
    started_by: str
    began_at: datetime
    ended_at: datetime | None
    outcome: RepairOutcome | None
    text: str | None
    verb: RepairVerb | None
    taken_at: datetime | None
