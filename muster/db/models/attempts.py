"""Attempts: one try at a job on one allocation, its hosts' parts, and the stop requests on it."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from muster.db.base import Base, EnumText, one_of
from muster.db.models.jobs import Job
from muster.db.models.nodes import Node
from muster.domain.ids import AttemptId, Fence, JobId, NodeId, TenantId
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import AttemptState, Cause, HostPartState, StopReason


class Attempt(Base):
    """``ending_cause`` is known before its hosts are proved stopped; ``cause`` is set when it ENDS, and stays.

    ``tainted_since``: from then on its results may be false; what it commits after that is TAINTED. ``go_at``: when all
    hosts that prepare were ready. ``num_nodes``: its size, which the next attempt of an elastic job may change; None in
    attempts from before elastic jobs existed. ``checkpoint_interval``: at which it saves, as
    ``wire.training.CheckpointInterval`` says; None for so many steps. ``energy``: as ``control.jobs.job_energy`` read
    it once it had ended; None until then. ``training_began_at``: when its program had chosen the checkpoint to continue
    from, by its first report; a later commit of an older attempt has no effect. ``resumed_from``: the generation of an
    earlier attempt that it continued from; None: of none, or none is reported yet. ``pairwise``: the check of its hosts
    before their start, as ``health.pairwise.start`` says; None: none is made. ``charged_from``: its tenant's use counts
    from then on, since it re-ran suspect steps before; None: from its placement. ``steps_removed``: rows of its steps
    that retention has removed; ``steps_thinned_at``: since when it has no more of them than are kept. ``idle_since``:
    its GPUs are known to do nothing since then; ``idle_stop_at``: when it is stopped for that.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        CheckConstraint("(state = 'ENDED') = (cause IS NOT NULL)", name="ended_with_cause"),
        CheckConstraint("(state = 'ENDED') = (ended_at IS NOT NULL)", name="ended_at"),
        CheckConstraint("(stop_reason IS NULL) = (stop_deadline_at IS NULL)", name="stop"),
        CheckConstraint("resume_state NOT IN ('LOST', 'ENDED')", name="resume"),
        Index("uq_attempts_job_id_live", "job_id", unique=True, postgresql_where=text("state <> 'ENDED'")),
        Index("ix_attempts_live", "state", postgresql_where=text("state <> 'ENDED'")),
        Index(None, "ended_at"),
        Index(
            "ix_attempts_partly_free",
            *("tenant_id", "placed_at"),
            postgresql_where=text("charged_from IS NOT NULL"),
        ),
        Index(
            "ix_attempts_unmetered",
            "ended_at",
            postgresql_where=text("energy IS NULL AND ended_at IS NOT NULL AND claimed_at IS NOT NULL"),
        ),
        Index(
            "ix_attempts_unthinned",
            "ended_at",
            postgresql_where=text("steps_thinned_at IS NULL AND ended_at IS NOT NULL"),
        ),
    )

    id: Mapped[AttemptId] = mapped_column(primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    number: Mapped[int]
    fence: Mapped[Fence] = mapped_column(unique=True)
    state: Mapped[AttemptState] = mapped_column(EnumText(AttemptState), one_of("state", AttemptState))
    resume_state: Mapped[AttemptState | None] = mapped_column(
        EnumText(AttemptState), one_of("resume_state", AttemptState), default=None
    )
    cause: Mapped[Cause | None] = mapped_column(EnumText(Cause), one_of("cause", Cause), default=None)
    proof: Mapped[str | None] = mapped_column(default=None)
    ending_cause: Mapped[Cause | None] = mapped_column(EnumText(Cause), one_of("ending_cause", Cause), default=None)
    ending_proof: Mapped[str | None] = mapped_column(default=None)
    ending_is_cascade: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    ending_is_reported: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    placed_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None] = mapped_column(default=None)
    running_at: Mapped[datetime | None] = mapped_column(default=None)
    stopping_at: Mapped[datetime | None] = mapped_column(default=None)
    lost_at: Mapped[datetime | None] = mapped_column(default=None)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    go_at: Mapped[datetime | None] = mapped_column(default=None)
    wall_deadline_at: Mapped[datetime | None] = mapped_column(default=None)
    stop_reason: Mapped[StopReason | None] = mapped_column(
        EnumText(StopReason), one_of("stop_reason", StopReason), default=None
    )
    stop_deadline_at: Mapped[datetime | None] = mapped_column(default=None)
    tainted_since: Mapped[datetime | None] = mapped_column(default=None)
    training_began_at: Mapped[datetime | None] = mapped_column(default=None)
    resumed_from: Mapped[str | None] = mapped_column(default=None)
    checkpoint_interval: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    unusual_step: Mapped[int | None] = mapped_column(BigInteger, default=None)
    charged_from: Mapped[datetime | None] = mapped_column(default=None)
    energy: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    idle_since: Mapped[datetime | None] = mapped_column(default=None)
    idle_stop_at: Mapped[datetime | None] = mapped_column(default=None)
    steps_removed: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    steps_thinned_at: Mapped[datetime | None] = mapped_column(default=None)
    pairwise: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    on_node_loss: Mapped[NodeLossRule] = mapped_column(EnumText(NodeLossRule), one_of("on_node_loss", NodeLossRule))
    rendezvous_address: Mapped[str]
    rendezvous_port: Mapped[int]
    num_nodes: Mapped[int | None] = mapped_column(default=None)
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute

    job: Mapped[Job] = relationship(lazy="raise", init=False)


class AttemptHost(Base):
    """One host's part. Its attempt and its node are there, as a trigger sees, of all rows of a statement at once.

    ``omitted_at``: since when the host's heartbeats no longer list it as its own.

    ``awaits_go``: it starts nothing before the attempt's ``go_at``. ``is_at_fault``: the attempt ended by this host's
    fault; its job avoids it, and the other hosts of the gang no more than before.
    """

    __tablename__ = "attempt_hosts"
    __table_args__ = (
        UniqueConstraint("attempt_id", "node_rank"),
        Index("ix_attempt_hosts_node_id_unclean", "node_id", postgresql_where=text("state <> 'CLEAN'")),
    )

    attempt_id: Mapped[AttemptId] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    node_rank: Mapped[int]
    state: Mapped[HostPartState] = mapped_column(EnumText(HostPartState), one_of("state", HostPartState))
    boot_id: Mapped[str | None] = mapped_column(default=None)
    nonce: Mapped[str | None] = mapped_column(default=None)
    woken_at: Mapped[datetime | None] = mapped_column("rung_at", default=None)
    num_wakeups: Mapped[int] = mapped_column("ring_count", default=0)
    claimed_at: Mapped[datetime | None] = mapped_column(default=None)
    started_at: Mapped[datetime | None] = mapped_column(default=None)
    exited_at: Mapped[datetime | None] = mapped_column(default=None)
    clean_at: Mapped[datetime | None] = mapped_column(default=None)
    omitted_at: Mapped[datetime | None] = mapped_column(default=None)
    is_past_lease: Mapped[bool] = mapped_column(default=False)
    awaits_go: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    ready_at: Mapped[datetime | None] = mapped_column(default=None)
    is_at_fault: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    exit_record: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    clean_proof: Mapped[dict[str, Any] | None] = mapped_column(default=None)

    attempt: Mapped[Attempt] = relationship(
        primaryjoin=lambda: foreign(AttemptHost.attempt_id) == Attempt.id, lazy="raise", init=False
    )
    node: Mapped[Node] = relationship(
        primaryjoin=lambda: foreign(AttemptHost.node_id) == Node.id, lazy="raise", init=False
    )


class StopRequest(Base):
    """A request to stop an attempt, with its author, reason and deadline.

    The attempt has the most urgent one itself.
    """

    __tablename__ = "stop_requests"

    id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), index=True)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    reason: Mapped[StopReason] = mapped_column(EnumText(StopReason), one_of("reason", StopReason))
    deadline_at: Mapped[datetime]
    requested_by: Mapped[str]
    detail: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime]

    attempt: Mapped[Attempt] = relationship(lazy="raise", init=False)
