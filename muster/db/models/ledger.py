"""The ledger by hours: the state of each hour, its entries by host and attempt, and sums of them by group."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import Text

from muster.db.base import Base


class LedgerHour(Base):
    """One hour. Provisional while ``closed_at`` is None: its entries may be replaced. Afterwards corrections are added.

    ``revision``: of its newest correction; 0 without. ``capacity_ms``: GPU-milliseconds of all GPUs that were enrolled,
    which the sum of its entries equals (I27). ``gaps``: by node, the time for which reports are lost.
    ``awaits``: how many hosts may still send reports of this hour. ``due_at``: when it is computed next; None: not
    again unless a report about it comes. ``measured``: sums by the names in ``control.ledger.measuring``; None in hours
    that the release before computed.
    """

    __tablename__ = "ledger_hours"
    __table_args__ = (
        CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name="hour"),
        CheckConstraint("capacity_ms >= 0", name="capacity_ms"),
        CheckConstraint("closed_at IS NOT NULL OR revision = 0", name="revision"),
        Index("ix_ledger_hours_open", "hour", postgresql_where=text("closed_at IS NULL")),
        Index("ix_ledger_hours_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    )

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    computed_at: Mapped[datetime]
    closed_at: Mapped[datetime | None] = mapped_column(default=None)
    revision: Mapped[int] = mapped_column(default=0)
    num_gpus: Mapped[int] = mapped_column(default=0)
    capacity_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    unexplained_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    awaits: Mapped[int] = mapped_column(default=0)
    gaps: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    due_at: Mapped[datetime | None] = mapped_column(default=None)
    measured: Mapped[dict[str, Any] | None] = mapped_column(default=None)


class LedgerEntry(Base):
    """Time of GPUs of one host in one hour and account. ``gpus``, ``gpu_ms``: UUIDs with the milliseconds of each.

    ``revision``: 0 of the hour's closing; more: a correction, whose milliseconds may be negative. ``num_ms``: the sum.
    Columns from ``model`` on are as they were in that hour.
    ``evidence``: ids of what explains a loss.
    """

    __tablename__ = "ledger_entries"
    __table_args__ = (
        CheckConstraint("cardinality(gpus) = cardinality(gpu_ms) AND cardinality(gpus) > 0", name="gpus"),
        Index(None, "hour", "node_id"),
        Index("ix_ledger_entries_attempt", "attempt_id", "hour", postgresql_where=text("attempt_id IS NOT NULL")),
        Index("ix_ledger_entries_job", "job_id", "hour", postgresql_where=text("job_id IS NOT NULL")),
        Index("ix_ledger_entries_tenant", "tenant_id", "hour", postgresql_where=text("tenant_id IS NOT NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    hour: Mapped[datetime] = mapped_column(ForeignKey("ledger_hours.hour"))
    revision: Mapped[int]
    node_id: Mapped[str]
    account: Mapped[str]
    cause: Mapped[str]
    num_ms: Mapped[int] = mapped_column(BigInteger)
    gpus: Mapped[list[str]] = mapped_column(ARRAY(Text))
    gpu_ms: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    evidence: Mapped[list[str]] = mapped_column(ARRAY(Text))
    model: Mapped[str]
    cohort_key: Mapped[str]
    rack: Mapped[str | None] = mapped_column(default=None)
    site: Mapped[str | None] = mapped_column(default=None)
    attempt_id: Mapped[str | None] = mapped_column(default=None)
    job_id: Mapped[str | None] = mapped_column(default=None)
    tenant_id: Mapped[str | None] = mapped_column(default=None)
    tier: Mapped[str | None] = mapped_column(default=None)
    job_class: Mapped[str | None] = mapped_column(default=None)


class LedgerFact(Base):
    """The sum of the entries of one hour or day that are alike in all that stands here.

    ``span_s``: 3600 or 86400, of the time from ``begins_at`` on. Unknown values are empty texts, so that they compare.
    """

    __tablename__ = "ledger_facts"
    __table_args__ = (
        CheckConstraint("span_s IN (3600, 86400)", name="span_s"),
        Index(None, "span_s", "begins_at", "tenant_id"),
    )

    begins_at: Mapped[datetime] = mapped_column(primary_key=True)
    span_s: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(primary_key=True)
    cause: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    job_class: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    cohort_key: Mapped[str] = mapped_column(primary_key=True)
    rack: Mapped[str] = mapped_column(primary_key=True)
    site: Mapped[str] = mapped_column(primary_key=True)
    num_ms: Mapped[int] = mapped_column(BigInteger)
