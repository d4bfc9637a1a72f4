"""The reports of agents. The group commits of `control.telemetry` alone write them; all services read them."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, SmallInteger, false, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import GpuUuid, NodeId


class NodeLatest(Base):
    """The newest state of one node's agent, and the row that a flush locks for the node.

    ``boot_order`` counts the boots that were accepted as current; ``newest_ms`` is the latest time that one of them
    reported. ``skew_ms``: receipt minus the agent's own time. ``judge_memory``: by GPU, what the judgement of its
    samples remembers in addition to their values; of a healthy GPU that is nothing. ``gpu_readings``: the newest of
    each of its GPUs, packed (``control.telemetry.node_readings``); those in ``gpus_behind`` came with an older report
    than the row's.

    ``freshness``: when each group of signals was last delivered, and what stays away
    (``health.detectors.gpu.freshness``); None for an agent that states no ages. ``overdue_at``: no later than the time
    at which the agent counts as silent unless a report comes. It moves in large steps, so that most reports change no
    index. ``silence_stated_at``: when that silence was last stated; the next report ends it.
    """

    __tablename__ = "node_latest"
    __table_args__ = (
        Index("ix_node_latest_overdue_at", "overdue_at", postgresql_where=text("overdue_at IS NOT NULL")),
    )

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    boot_id: Mapped[str | None] = mapped_column(default=None)
    boot_order: Mapped[int] = mapped_column(BigInteger, default=0)
    past_boot_ids: Mapped[list[str]] = mapped_column(default_factory=list)
    seq: Mapped[int] = mapped_column(BigInteger, default=-1)
    newest_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    at: Mapped[datetime | None] = mapped_column(default=None)
    received_at: Mapped[datetime | None] = mapped_column(default=None)
    skew_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    readings: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    judge_memory: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    gpus_behind: Mapped[dict[str, Any] | None] = mapped_column(default=None, deferred=True)
    gpu_readings: Mapped[bytes] = mapped_column(default=b"", server_default=text("''::bytea"), deferred=True)
    freshness: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    overdue_at: Mapped[datetime | None] = mapped_column(default=None)
    silence_stated_at: Mapped[datetime | None] = mapped_column(default=None)


class TelemetryBlock(Base):
    """One report's readings, packed, until its hour is compacted; and till then the proof that the report has come.

    ``at`` is where history places it.
    """

    __tablename__ = "telemetry_blocks"
    __table_args__ = (Index(None, "node_id", "at"),)

    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    boot_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[datetime]
    received_at: Mapped[datetime]
    schema: Mapped[int] = mapped_column(SmallInteger)
    content: Mapped[bytes]


class TelemetryChunk(Base):
    """One node's hour. ``content`` is a compressed segment a GPU, ending at ``segment_ends``; stored uncompressed by
    PostgreSQL, so that one GPU's segment is read without the others. ``seconds``: when each sample was, in the hour.
    """

    __tablename__ = "telemetry_chunks"

    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True, index=True)
    schema: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    gpu_uuids: Mapped[list[str]]
    segment_ends: Mapped[list[int]] = mapped_column(JSONB)
    seconds: Mapped[bytes]
    content: Mapped[bytes]


class TelemetryPlace(Base):
    """A mark that chunks of a node hold a GPU, by which its history is found after the board has moved."""

    __tablename__ = "telemetry_places"

    gpu_uuid: Mapped[GpuUuid] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    last_hour: Mapped[datetime] = mapped_column(index=True)


class TelemetryGap(Base):
    """The reports that an agent had to drop, by its own count: the marker ``ordinal`` of its report ``report_seq``."""

    __tablename__ = "telemetry_gaps"
    __table_args__ = (Index(None, "node_id", "until_at"), Index(None, "received_at"))

    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    boot_id: Mapped[str] = mapped_column(primary_key=True)
    report_seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    ordinal: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    priority: Mapped[str]
    first_seq: Mapped[int] = mapped_column(BigInteger)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    num_reports: Mapped[int] = mapped_column(BigInteger)
    from_at: Mapped[datetime]
    until_at: Mapped[datetime]
    why: Mapped[str]
    received_at: Mapped[datetime]


class StoredSignal(Base):
    """The judge's inbox: each event of an agent once, however often it is sent, and what samples gave rise to.

    ``is_open`` goes from true to false. ``is_alarming``: it would condemn, so nothing is placed on what it is about
    until it is judged. ``judge_fault``: why it could not be judged; not before ``judge_after`` again. One judged with a
    fault is of a kind that this release does not know (``control.evidence.unknown_kinds``).
    """

    __tablename__ = "gpu_signals"
    __table_args__ = (
        Index(
            "ix_gpu_signals_unjudged", "received_at", "node_id", "signal_id", postgresql_where=text("judged_at IS NULL")
        ),
        Index("ix_gpu_signals_alarming", "node_id", postgresql_where=text("judged_at IS NULL AND is_alarming")),
        Index(
            "ix_gpu_signals_unknown_kind",
            "kind",
            postgresql_where=text("judged_at IS NOT NULL AND judge_fault IS NOT NULL"),
        ),
        Index(None, "gpu_uuid", "at"),
        Index("ix_gpu_signals_node_id_kind_received_at", "node_id", "kind", "received_at"),
        Index("ix_gpu_signals_received_at", "received_at", postgresql_where=text("judged_at IS NOT NULL")),
    )

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    signal_id: Mapped[str] = mapped_column(primary_key=True)
    gpu_uuid: Mapped[GpuUuid | None] = mapped_column(default=None)
    kind: Mapped[str]
    source: Mapped[str]
    code: Mapped[int | None] = mapped_column(default=None)
    at: Mapped[datetime]
    received_at: Mapped[datetime]
    text: Mapped[str]
    values: Mapped[dict[str, Any]]
    is_open: Mapped[bool]
    is_alarming: Mapped[bool] = mapped_column(default=False, server_default=false())
    judged_at: Mapped[datetime | None] = mapped_column(default=None)
    judge_after: Mapped[datetime | None] = mapped_column(default=None)
    judge_fault: Mapped[str | None] = mapped_column(default=None)
