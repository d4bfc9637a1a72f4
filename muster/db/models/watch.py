"""The watch over running attempts: hosts' reports, verdicts, lines about faults, and chosen transports."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.exit.fault_lines import Role
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId, VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState


class StallReport(Base):
    """A host's newest report about its ranks of an attempt that makes no progress.

    ``report``: as ``watch.forensics.documents`` reads it. ``judged_at``: when a verdict took it in; None before.
    ``moved_at``: since when its ranks make progress again.
    """

    __tablename__ = "stall_reports"
    __table_args__ = (
        Index(None, "received_at"),
        Index("ix_stall_reports_unjudged", "attempt_id", postgresql_where=text("judged_at IS NULL")),
    )

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    report: Mapped[dict[str, Any]]
    received_at: Mapped[datetime]
    judged_at: Mapped[datetime | None] = mapped_column(default=None)
    moved_at: Mapped[datetime | None] = mapped_column(default=None)


class VerdictRow(Base):
    """One verdict on an attempt. ``ranks``: the ranks that caused it; ``frame``: function, file and line.

    ``step``: the step at which the fault showed; an attempt has at most one verdict of a kind and step. A straggler's
    is one for each rank and cause while it stands: ``last_step`` grows until ``ended_at``, since when it is not slow.
    ``forgotten_at``: since when its dismissal mutes no rule of the job any more, as an operator asked.
    ``rerun``: the re-runs of its steps, as ``control.watch.reruns`` keeps them; None if there are none.
    ``burn_in_id``: of the GPU that they name; ``burn_in_note``: why none is ordered, or why it was given up;
    ``burn_in_next_at``: when that is decided next, if it is.
    """

    __tablename__ = "verdicts"
    __table_args__ = (
        CheckConstraint("num_nonnulls(dismissed_at, dismissed_by, dismiss_reason) IN (0, 3)", name="dismissed"),
        CheckConstraint("(state = 'dismissed') = (dismissed_at IS NOT NULL)", name="state_dismissed"),
        Index(
            "uq_verdicts_attempt_id",
            *("attempt_id", "kind", "step"),
            unique=True,
            postgresql_where=text("kind <> 'straggler'"),
        ),
        Index(
            "uq_verdicts_straggler",
            *("attempt_id", "cause", "ranks"),
            unique=True,
            postgresql_where=text("kind = 'straggler' AND ended_at IS NULL"),
        ),
        Index(None, "attempt_id", "id"),
        Index(
            "ix_verdicts_false_alarms",
            "dismissed_at",
            postgresql_where=text("state = 'dismissed' AND forgotten_at IS NULL"),
        ),
        Index(
            "ix_verdicts_swaps",
            "id",
            postgresql_where=text(
                "kind = 'straggler' AND reaction = 'swap' AND state = 'standing' AND ended_at IS NULL"
            ),
        ),
        Index(None, "job_id", "id"),
        Index(None, "tenant_id", "id"),
        Index(None, "node_id", "id"),
        Index(None, "created_at"),
        Index(None, "burn_in_next_at", postgresql_where=text("burn_in_next_at IS NOT NULL")),
        Index(None, "tenant_id", "burn_in_id", postgresql_where=text("burn_in_id IS NOT NULL")),
    )

    id: Mapped[VerdictId] = mapped_column(primary_key=True)
    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"))
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[VerdictKind] = mapped_column(EnumText(VerdictKind), one_of("kind", VerdictKind))
    cause: Mapped[str]
    ranks: Mapped[list[int]]
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("nodes.id"))
    gpu: Mapped[str]
    phase: Mapped[str]
    step: Mapped[int] = mapped_column(BigInteger)
    operation: Mapped[str]
    frame: Mapped[dict[str, Any] | None]
    evidence: Mapped[list[str]]
    sentence: Mapped[str]
    rerun: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    reaction: Mapped[VerdictReaction] = mapped_column(EnumText(VerdictReaction), one_of("reaction", VerdictReaction))
    state: Mapped[VerdictState] = mapped_column(EnumText(VerdictState), one_of("state", VerdictState))
    created_at: Mapped[datetime]
    dismissed_at: Mapped[datetime | None] = mapped_column(default=None)
    dismissed_by: Mapped[str | None] = mapped_column(default=None)
    dismiss_reason: Mapped[str | None] = mapped_column(default=None)
    forgotten_at: Mapped[datetime | None] = mapped_column(default=None)
    last_step: Mapped[int | None] = mapped_column(BigInteger, default=None)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    burn_in_id: Mapped[str | None] = mapped_column(default=None)
    burn_in_note: Mapped[str | None] = mapped_column(default=None)
    burn_in_next_at: Mapped[datetime | None] = mapped_column(default=None)


class LineFindingRow(Base):
    """One line about a fault in the output of an attempt's rank on one host. Repeats are folded into ``count``.

    ``key``: what repeats have in common. ``pattern``: the row of ``muster.domain.exit.fault_lines``. ``host``: as the
    line itself names it. ``peer``, ``port``: the other side of a connection. ``first_at``, ``last_at``: by the host.
    """

    __tablename__ = "line_findings"
    __table_args__ = (Index(None, "received_at"),)

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    pattern: Mapped[str]
    role: Mapped[Role] = mapped_column(EnumText(Role), one_of("role", Role))
    rank: Mapped[int | None] = mapped_column(BigInteger)
    host: Mapped[str]
    peer: Mapped[str]
    port: Mapped[int]
    hca: Mapped[str]
    text: Mapped[str]
    count: Mapped[int] = mapped_column(BigInteger)
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    received_at: Mapped[datetime]


class AttemptTransport(Base):
    """The transport between hosts that NCCL chose on one host of an attempt, by its own lines.

    ``cards``: network cards with their port, such as ``mlx5_0:1``. ``warning``: RDMA was expected and is not used.
    """

    __tablename__ = "attempt_transports"
    __table_args__ = (Index(None, "received_at"),)

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    transport: Mapped[str]
    cards: Mapped[list[str]]
    warning: Mapped[str | None]
    received_at: Mapped[datetime]
