"""Notifications: the routes by which events leave the system, one notification for each event of a route, its tries."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.evidence.incidents import IncidentSeverity
from muster.domain.ids import EventId, NotificationId, RouteId, TenantId
from muster.domain.notifications.routes import NotificationState, RouteKind


class NotificationRoute(Base):
    """A route. ``tenant_id`` None: of the operators.

    ``target``: its receiver without what is secret in it. The whole receiver with its secrets is an envelope, made for
    ``sealed_at_version``: ``sealed`` under a data key of its own, which is ``wrapped_key`` under ``key_id``.
    ``from_position``: it takes events behind this one. ``paused_until``: its receiver was away at the last of
    ``num_failures`` tries. ``off_reason``: why no event goes out; None: it is on. ``deleted_at``: since when only its
    notifications wait to be removed.
    """

    __tablename__ = "notification_routes"
    __table_args__ = (
        CheckConstraint("version > 0", name="version"),
        Index(
            "uq_notification_routes_name",
            text("coalesce(tenant_id, '')"),
            "name",
            unique=True,
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: Mapped[RouteId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId | None] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    kind: Mapped[RouteKind] = mapped_column(EnumText(RouteKind), one_of("kind", RouteKind))
    target: Mapped[str]
    kinds: Mapped[list[str]]
    least: Mapped[IncidentSeverity] = mapped_column(EnumText(IncidentSeverity), one_of("least", IncidentSeverity))
    version: Mapped[int]
    key_id: Mapped[str] = mapped_column(index=True)
    wrapped_key: Mapped[bytes]
    nonce: Mapped[bytes]
    sealed: Mapped[bytes]
    from_position: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    updated_at: Mapped[datetime]
    sealed_at_version: Mapped[int]
    num_failures: Mapped[int] = mapped_column(default=0)
    paused_until: Mapped[datetime | None] = mapped_column(default=None)
    off_reason: Mapped[str | None] = mapped_column(default=None)
    deleted_at: Mapped[datetime | None] = mapped_column(default=None)


class Notification(Base):
    """One event that goes over one route. Its id is that of the effect: the same in each try.

    ``fact``: the event as it is sent, at ``position``, about ``subject_id``. ``next_try_at``: when it is due.
    ``claimed_until``: until when a sender has it. ``num_refusals``: tries at which the receiver refused it alone.
    ``expires_at``: it is given up from then on.
    """

    __tablename__ = "notifications"
    __table_args__ = (
        UniqueConstraint("route_id", "event_id"),
        Index("ix_notifications_pending", "route_id", "position", postgresql_where=text("state = 'PENDING'")),
        Index("ix_notifications_due", "route_id", "next_try_at", postgresql_where=text("state = 'PENDING'")),
        Index("ix_notifications_expires_at", "expires_at", postgresql_where=text("state = 'PENDING'")),
        Index("ix_notifications_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_notifications_route_id_created_at_id", "route_id", "created_at", "id"),
        Index("ix_notifications_subject_id", "subject_id"),
    )

    id: Mapped[NotificationId] = mapped_column(primary_key=True)
    route_id: Mapped[RouteId] = mapped_column(ForeignKey("notification_routes.id", ondelete="CASCADE"))
    event_id: Mapped[EventId]
    position: Mapped[int] = mapped_column(BigInteger)
    subject_id: Mapped[str]
    fact: Mapped[dict[str, Any]]
    title: Mapped[str]
    severity: Mapped[IncidentSeverity] = mapped_column(EnumText(IncidentSeverity), one_of("severity", IncidentSeverity))
    state: Mapped[NotificationState] = mapped_column(EnumText(NotificationState), one_of("state", NotificationState))
    created_at: Mapped[datetime]
    next_try_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    tries: Mapped[int] = mapped_column(default=0)
    num_refusals: Mapped[int] = mapped_column(default=0)
    claimed_until: Mapped[datetime | None] = mapped_column(default=None)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    last_words: Mapped[str | None] = mapped_column(default=None)


class NotificationTry(Base):
    """One try to deliver a notification. ``status``: of HTTP or SMTP; None: there was no answer."""

    __tablename__ = "notification_tries"

    notification_id: Mapped[NotificationId] = mapped_column(
        ForeignKey("notifications.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    took_ms: Mapped[int]
    outcome: Mapped[str]
    words: Mapped[str]
    status: Mapped[int | None] = mapped_column(default=None)
