"""Every table, one file per aggregate."""

from muster.db.base import Base
from muster.db.models.allocations import Allocation, AllocationGpu
from muster.db.models.attempt_usage import AttemptUsage
from muster.db.models.attempts import Attempt, AttemptHost, StopRequest
from muster.db.models.audit import AuditEntry
from muster.db.models.burn_ins import BurnIn
from muster.db.models.checkpoints import Checkpoint
from muster.db.models.cluster import Cluster, SequenceHead, StateEdge
from muster.db.models.content import (
    ContentUse,
    FolderFile,
    FolderJob,
    FolderObject,
    JobOutput,
    ObjectReport,
    StoredFolder,
    StoredObject,
)
from muster.db.models.cordons import Cordon
from muster.db.models.enrolment import JoinToken, NodeIdentity
from muster.db.models.environments import EnvironmentBuild, EnvironmentJob
from muster.db.models.events import ConsumerCursor, Event
from muster.db.models.figures import FigureFact, FigureHour
from muster.db.models.gpus import Gpu, GpuOverride, GpuStandingChange
from muster.db.models.health import Breaker, BreakerProposal, EvidenceRow, Incident, Repair
from muster.db.models.idempotency import IdempotencyKey
from muster.db.models.jobs import Job
from muster.db.models.ledger import LedgerEntry, LedgerFact, LedgerHour
from muster.db.models.ledger_history import GpuHoldSpan, GpuSpare, JobWaitChange, NodeContactChange
from muster.db.models.liveness import LeaderLeaseRow, LoopProgress
from muster.db.models.logins import CommandLogin
from muster.db.models.logs import LogChunk
from muster.db.models.money import RateVersion, TenantBudget
from muster.db.models.nodes import Node, NodeBundle
from muster.db.models.notifications import Notification, NotificationRoute, NotificationTry
from muster.db.models.objectives import ObjectiveCount, ObjectiveState
from muster.db.models.outbox import OutboxMessage
from muster.db.models.pair_probes import PairProbeResponder
from muster.db.models.persons import ConsoleSession, Person
from muster.db.models.policies import PolicyVersion
from muster.db.models.preflights import PlacementPreflight
from muster.db.models.quotas import Quota
from muster.db.models.reclaims import GpuHold, Reclaim
from muster.db.models.rollups import HealthRollup, RollupRound
from muster.db.models.secrets import JobSecret, Secret, SecretVersion
from muster.db.models.storage_faults import StorageFault
from muster.db.models.telemetry import (
    NodeLatest,
    StoredSignal,
    TelemetryBlock,
    TelemetryChunk,
    TelemetryGap,
    TelemetryPlace,
)
from muster.db.models.tenants import ApiKey, Tenant, TenantPlanning, TenantSubmissions
from muster.db.models.training import TrainingHost, TrainingRank, TrainingStep
from muster.db.models.versions import DocumentVersion
from muster.db.models.watch import AttemptTransport, LineFindingRow, StallReport, VerdictRow

__all__ = [
    "Allocation",
    "AllocationGpu",
    "ApiKey",
    "Attempt",
    "AttemptHost",
    "AttemptTransport",
    "AttemptUsage",
    "AuditEntry",
    "Base",
    "Breaker",
    "BreakerProposal",
    "BurnIn",
    "Checkpoint",
    "Cluster",
    "CommandLogin",
    "ConsoleSession",
    "ConsumerCursor",
    "ContentUse",
    "Cordon",
    "DocumentVersion",
    "EnvironmentBuild",
    "EnvironmentJob",
    "Event",
    "EvidenceRow",
    "FigureFact",
    "FigureHour",
    "FolderFile",
    "FolderJob",
    "FolderObject",
    "Gpu",
    "GpuHold",
    "GpuHoldSpan",
    "GpuOverride",
    "GpuSpare",
    "GpuStandingChange",
    "HealthRollup",
    "IdempotencyKey",
    "Incident",
    "Job",
    "JobOutput",
    "JobSecret",
    "JobWaitChange",
    "JoinToken",
    "LeaderLeaseRow",
    "LedgerEntry",
    "LedgerFact",
    "LedgerHour",
    "LineFindingRow",
    "LogChunk",
    "LoopProgress",
    "Node",
    "NodeBundle",
    "NodeContactChange",
    "NodeIdentity",
    "NodeLatest",
    "Notification",
    "NotificationRoute",
    "NotificationTry",
    "ObjectReport",
    "ObjectiveCount",
    "ObjectiveState",
    "OutboxMessage",
    "PairProbeResponder",
    "Person",
    "PlacementPreflight",
    "PolicyVersion",
    "Quota",
    "RateVersion",
    "Reclaim",
    "Repair",
    "RollupRound",
    "Secret",
    "SecretVersion",
    "SequenceHead",
    "StallReport",
    "StateEdge",
    "StopRequest",
    "StorageFault",
    "StoredFolder",
    "StoredObject",
    "StoredSignal",
    "TelemetryBlock",
    "TelemetryChunk",
    "TelemetryGap",
    "TelemetryPlace",
    "Tenant",
    "TenantBudget",
    "TenantPlanning",
    "TenantSubmissions",
    "TrainingHost",
    "TrainingRank",
    "TrainingStep",
    "VerdictRow",
]
