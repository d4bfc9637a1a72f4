"""Jobs: what tenants submit, and where each stands."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, CheckConstraint, ForeignKey, Identity, Index, func, literal_column, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship
from sqlalchemy.sql.elements import Grouping

from muster.db.base import Base, EnumText, one_of
from muster.db.models.tenants import Tenant
from muster.domain.ids import JobId, TenantId
from muster.domain.states import TERMINAL_JOB_STATES, JobState

_TERMINAL = ", ".join(f"'{state}'" for state in JobState if state in TERMINAL_JOB_STATES)


IS_OPEN: Final = literal_column(f"jobs.state NOT IN ({_TERMINAL})", Boolean())
"""The condition that a job has not ended, in the words of the index of open jobs: a parameter would not match it."""


class Job(Base):
    """A job. ``request`` is what cycles and lists read; ``spec`` holds the program too, and is never read with the row.

    PostgreSQL stores a long ``spec`` apart from its row, and reads it only for a statement that names it. So the
    program costs a query nothing that reads ``request``. Release 0.1.0 writes ``spec`` alone: then ``request`` is it.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"(state IN ({_TERMINAL})) = (finished_at IS NOT NULL)", name="finished"),
        CheckConstraint("restarts_used >= 0 AND launch_failures >= 0", name="counters"),
        Index("ix_jobs_copied_from", "copied_from", postgresql_where=text("copied_from IS NOT NULL")),
        Index("ix_jobs_queue", "state", "tier", "created_at"),
        Index("ix_jobs_open", "tenant_id", postgresql_where=text(f"state NOT IN ({_TERMINAL})")),
        Index("ix_jobs_newest", text("created_at DESC"), text("id DESC")),
        Index("ix_jobs_page", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_jobs_finished_at", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
        Index(
            "ix_jobs_succeeded",
            "tenant_id",
            "name",
            text("finished_at DESC"),
            postgresql_where=text("state = 'SUCCEEDED'"),
        ),
    )

    id: Mapped[JobId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    tier: Mapped[str]
    state: Mapped[JobState] = mapped_column(EnumText(JobState), one_of("state", JobState))
    state_reason: Mapped[str] = mapped_column(default="")
    spec: Mapped[dict[str, Any]] = mapped_column(deferred=True, deferred_raiseload=True)
    submitted_by: Mapped[str]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(default=None)
    restarts_used: Mapped[int] = mapped_column(default=0)
    launch_failures: Mapped[int] = mapped_column(default=0)
    oom_doublings: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    wanted_nodes: Mapped[int | None] = mapped_column(default=None)
    """Nodes of an elastic job requested since its submission; it then aims for them and does not exceed them."""
    wait_verdict: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    """Verdict on a QUEUED job by the newest cycle that considered it: ``control.placement.wait_records``."""
    stored_request: Mapped[dict[str, Any] | None] = mapped_column(
        "request", deferred=True, deferred_raiseload=True, default=None
    )
    """``domain.job.request.JobRequest``; None: release 0.1.0 wrote the row."""
    labels: Mapped[dict[str, Any] | None] = mapped_column(deferred=True, deferred_raiseload=True, default=None)
    """The labels of ``spec``, for lists; None as ``stored_request``."""
    spec_bytes: Mapped[int | None] = mapped_column(default=None)
    """Bytes of ``spec`` as JSON; None as ``stored_request``."""
    job_class: Mapped[str | None] = mapped_column(default=None)
    """The class in which it was submitted; None: an earlier release wrote the row, and the default one counts."""
    copied_from: Mapped[JobId | None] = mapped_column(default=None)
    """The job that this one is a copy of; that job may have been removed since."""
    next_try_at: Mapped[datetime | None] = mapped_column(default=None)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(default=None)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True, init=False)
    """Given by the database, to each job another one."""
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute

    request: Mapped[dict[str, Any]] = column_property(
        Grouping(func.coalesce(stored_request, spec, type_=JSONB)), expire_on_flush=False
    )
    """The stored request, or the whole ``spec`` of a row of release 0.1.0: ``domain.job.request.read_request``."""
    tenant: Mapped[Tenant] = relationship(lazy="raise", init=False)
