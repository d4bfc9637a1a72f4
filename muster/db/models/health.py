"""Evidence as it is stored, repairs, the breaker's memory, and incidents."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.evidence.findings import Trust
from muster.domain.evidence.repairs import RepairAction, RepairOutcome, RepairVerb
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.states import EvidenceState


class EvidenceRow(Base):
    """One dated finding with its sources. ``control.evidence.rows`` writes and reads it.

    For one release ``values`` also has the keys of ``domain.evidence.old_keys``. A trigger derives ``state`` and the
    columns from ``suppressed_by`` on from them, so that rows of the release before have these too.
    """

    __tablename__ = "evidence"
    __table_args__ = (
        CheckConstraint("severity BETWEEN 0 AND 3", name="severity"),
        CheckConstraint("boot_mark IS NULL OR weighs_from_at IS NOT NULL", name="pending"),
        CheckConstraint("num_nonnulls(dismissed_at, dismissed_by, dismiss_reason) IN (0, 3)", name="dismissed"),
        Index(None, "gpu_uuid", "last_seen_at"),
        Index(None, "node_id", "last_seen_at"),
    )

    id: Mapped[EvidenceId] = mapped_column(primary_key=True)
    gpu_uuid: Mapped[GpuUuid | None] = mapped_column(ForeignKey("gpus.uuid"))
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"))
    detector: Mapped[str]
    detector_version: Mapped[int]
    fault_key: Mapped[str]
    severity: Mapped[int]
    trust: Mapped[Trust] = mapped_column(EnumText(Trust), one_of("trust", Trust))
    sources: Mapped[list[str]]
    onset_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    counts_for_ms: Mapped[int] = mapped_column(BigInteger)
    summary: Mapped[str]
    threatens_correctness: Mapped[bool]
    state: Mapped[EvidenceState] = mapped_column(
        EnumText(EvidenceState),
        one_of("state", EvidenceState),
        server_default=text("'ACTIVE'"),
        default=EvidenceState.ACTIVE,
    )
    is_suspended: Mapped[bool] = mapped_column(default=False)
    values: Mapped[dict[str, Any]]
    suppressed_by: Mapped[list[str]] = mapped_column(default_factory=list, server_default=text("'[]'::jsonb"))
    weighs_from_at: Mapped[datetime | None] = mapped_column(default=None)
    boot_mark: Mapped[int | None] = mapped_column(BigInteger, default=None)
    outlasted_at: Mapped[datetime | None] = mapped_column(default=None)
    closed_at: Mapped[datetime | None] = mapped_column(default=None)
    reopened_at: Mapped[datetime | None] = mapped_column(default=None)
    created_at: Mapped[datetime]
    dismissed_at: Mapped[datetime | None] = mapped_column(default=None)
    dismissed_by: Mapped[str | None] = mapped_column(default=None)
    dismiss_reason: Mapped[str | None] = mapped_column(default=None)


class Repair(Base):
    """One action on a quarantined GPU. Attempts count by board (``serial``) and by what they were for.

    ``verb``: what the agent of its host does; None, where a person does it. ``taken_at``: when the agent was given
    it, in which boot. ``cordon_id``: what keeps the node free meanwhile, where the verb is felt by the whole host.
    """

    __tablename__ = "repairs"
    __table_args__ = (
        CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name="ended"),
        CheckConstraint("(taken_at IS NULL) = (taken_boot_id IS NULL)", name="taken"),
        CheckConstraint("taken_at IS NULL OR verb IS NOT NULL", name="taken_by_agent"),
        Index("uq_repairs_open", "gpu_uuid", unique=True, postgresql_where=text("ended_at IS NULL")),
        Index(None, "gpu_uuid", "began_at"),
        Index(None, "serial", "began_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    gpu_uuid: Mapped[GpuUuid] = mapped_column(ForeignKey("gpus.uuid"))
    serial: Mapped[str | None]
    fault_group: Mapped[str]
    action: Mapped[RepairAction] = mapped_column(EnumText(RepairAction), one_of("action", RepairAction))
    reason: Mapped[str]
    started_by: Mapped[str]
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    outcome: Mapped[RepairOutcome | None] = mapped_column(
        EnumText(RepairOutcome), one_of("outcome", RepairOutcome), default=None
    )
    text: Mapped[str | None] = mapped_column("words", default=None)
    verb: Mapped[RepairVerb | None] = mapped_column(EnumText(RepairVerb), one_of("verb", RepairVerb), default=None)
    taken_at: Mapped[datetime | None] = mapped_column(default=None)
    taken_boot_id: Mapped[str | None] = mapped_column(default=None)
    cordon_id: Mapped[str | None] = mapped_column(ForeignKey("cordons.id"), default=None)


class Breaker(Base):
    """The state of a circuit breaker across every restart (I25). Its row is the lock under which it decides."""

    __tablename__ = "breakers"

    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Any]]


class BreakerProposal(Base):
    """One thing that rules would take from new work, and that the breaker holds back until a person closes a scope.

    ``subject_id``: a GPU, or the node of a hold. ``way``: a value of ``health.standing.account.Way``. ``standing``: the
    one to which a GPU would move. The row ends with the proposal.
    """

    __tablename__ = "breaker_proposals"

    subject_id: Mapped[str] = mapped_column(primary_key=True)
    way: Mapped[str] = mapped_column(primary_key=True)
    standing: Mapped[str | None] = mapped_column(default=None)
    reason: Mapped[str]
    threatens_correctness: Mapped[bool] = mapped_column(default=False)
    proposed_at: Mapped[datetime]


class Incident(Base):
    """One condition that needs an operator. ``subject_id``: what it is about; ``payload``: what its kind says of it."""

    __tablename__ = "incidents"
    __table_args__ = (
        CheckConstraint("(closed_at IS NULL) = (closed_by IS NULL)", name="closed"),
        CheckConstraint("close_reason IS NULL OR closed_at IS NOT NULL", name="close_reason"),
        Index("ix_incidents_opened_at", "opened_at"),
        Index("ix_incidents_open", "opened_at", postgresql_where=text("closed_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    subject_type: Mapped[str]
    subject_id: Mapped[str] = mapped_column(index=True)
    summary: Mapped[str]
    payload: Mapped[dict[str, Any]]
    opened_at: Mapped[datetime]
    closed_at: Mapped[datetime | None] = mapped_column(default=None)
    closed_by: Mapped[str | None] = mapped_column(default=None)
    close_reason: Mapped[str | None] = mapped_column(default=None)
