"""One unit of work for every change: state, events, audit entries and outbox messages commit together or not at all."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from control.core.consequences import Consequences
from muster.db.engine import make_engine
from muster.db.errors import ContentionError, translated_errors, translation_of, violated_constraint
from muster.db.notifications import Notifications
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.pg_pipeline import Query
from muster.db.pipeline.single_query import query_once
from muster.db.sessions import TrackedSession, has_changed_state, note_change
from muster.domain.errors import MusterError
from muster.domain.ids import EventId, TenantId
from muster.domain.principals import Principal, Role
from muster.failpoints import declare, failpoint, is_declared
from muster.identity import new_id as born_id


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of every unit: ``statement`` fails by ``constraint`` where it does not hold, and raises ``error``.

    It runs with the COMMIT, in one round trip. So it holds at the commit, however long this process was stopped before.
    """

    statement: Query
    constraint: str
    error: MusterError


Channel = Literal["muster_scheduler", "muster_outbox", "muster_events", "muster_sequenced", "muster_notifications"]
SCHEDULER_CHANNEL: Final = "muster_scheduler"
"""Channel that wakes the scheduler. Every change that placement depends on uses it."""
WAKEUP_TOPIC: Final = "ring"
"""Topic of wake-ups, as the outbox stores it: the relay of the release before refuses any other (decision 47)."""

PERSON_ROLES: Final = frozenset({Role.TENANT_MEMBER, Role.TENANT_ADMIN, Role.OPERATOR, Role.AUDITOR})
"""Roles whose every change needs an audit entry (I18). Nodes and our own services leave events."""

_BEGIN_UNDOABLE: Final = text("SAVEPOINT before_change")
_UNDO: Final = text("ROLLBACK TO SAVEPOINT before_change")
_RETRY_BASE_S: Final = 0.02
_RETRY_CAP_S: Final = 1.0
_RNG: Final = secrets.SystemRandom()

T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


def declare_action(action: str) -> str:
    """Declare a unit of work's name, and its failpoints ``<action>.before_commit`` and ``<action>.after_commit``.

    Return the name.
    """
    declare(f"{action}.before_commit")
    declare(f"{action}.after_commit")
    return action


class UnitOfWork:
    """One transaction and its consequences. Made by ``UnitOfWorkFactory.begin``; use it with ``with``.

    At normal exit it flushes state, writes events, audit entries and outbox messages in this order, and commits; on an
    exception, or when ``dry_run``, it rolls back. ``now`` is one instant for the whole unit. Objects stay readable
    after the exit, detached.

    Raises at exit:
        AssertionError: state changed without an event or audit entry, or a person's change lacks its audit entry (I18).
        UnavailableError: the database does not answer; nothing is known to have been committed.
        ContentionError: it met another unit on the same rows; ``retrying`` repeats it.
        MusterError: the error that ``write_last`` was given for a refusal.
    """

    def __init__(
        self,
        session: TrackedSession,
        principal: Principal,
        action: str,
        *,
        now: datetime,
        new_id: Callable[[str], str],
        dry_run: bool,
        quiet: bool,
        guard: Guard | None = None,
    ) -> None:
        self.session = session
        self.principal = principal
        self.action = action
        self.now = now
        self.dry_run = dry_run
        self._quiet = quiet
        self._guard = guard
        self._consequences = Consequences(principal=principal, now=now, new_id=new_id)
        self._channels: set[Channel] = set()
        self._last: list[Query] = []
        self._reading: Callable[[Session], None] | None = None
        self._refusals: dict[str, MusterError] = {}

    @property
    def consequences(self) -> list[dict[str, Any]]:
        """The unit's events and outbox messages, in order."""
        return self._consequences.described()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The unit's events alone, in order: what is done next is added at the end."""
        return self._consequences.described_events()

    @property
    def num_events(self) -> int:
        return self._consequences.num_events

    def events_since(self, num_before: int) -> list[dict[str, Any]]:
        """Return the events after the first ``num_before``."""
        return self._consequences.described_events(num_before)

    @property
    def concerns_placement(self) -> bool:
        """True if the unit wakes the scheduler: what it changes may change a plan."""
        return SCHEDULER_CHANNEL in self._channels

    def emit(
        self,
        kind: str,
        subject_type: str,
        subject_id: str,
        *,
        tenant_id: TenantId | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> EventId:
        """Add a dated fact about ``subject``; it gets its position after the commit."""
        self.wake("muster_events")
        return self._consequences.add_event(kind, subject_type, subject_id, tenant_id, dict(payload or {}))

    def audit(
        self,
        action: str,
        subject_type: str,
        subject_id: str,
        *,
        tenant_id: TenantId | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> str:
        """Add an audit entry of the unit's principal, and return its id. The unit's events name it as their cause."""
        self.wake("muster_events")
        return self._consequences.add_audit(action, subject_type, subject_id, tenant_id, reason, dict(detail or {}))

    def enqueue(self, topic: str, key: str, payload: Mapping[str, Any] | None = None) -> None:
        """Send a message to another system after the commit, at least once."""
        self.wake("muster_outbox")
        self._consequences.add_message(topic, key, dict(payload or {}))

    def wake(self, channel: Channel) -> None:
        """Notify a channel with the commit. A listener must not depend on it, and polls as well."""
        self._channels.add(channel)

    def write_last(self, statement: Query, refusals: Mapping[str, MusterError] = MappingProxyType({})) -> None:
        """Add a change that nothing more in this unit reads: it is sent at the exit, with the unit's consequences.

        COMMIT follows in the same round trip, so the statement itself fails where it must not have effect.
        ``refusals``: constraint → the error of its violation, raised at the exit.
        """
        note_change(self.session)
        self._last.append(statement)
        self._refusals.update(refusals)

    def read_before_change(self, read: Callable[[Session], None]) -> None:
        """Call ``read`` at the exit of a dry run that was begun in one snapshot, once its changes are undone.

        So it reads what held before the change, and nothing that others have changed since.
        """
        self._reading = read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with translated_errors():
                    self._finish()
        finally:
            self.session.close()
        translation = None if error is None else translation_of(error)
        if translation is not None:
            raise translation from error

    def _finish(self) -> None:
        self.session.flush()
        self._assert_traces()
        left = self._consequences.written(self._channels)
        last = self._last if left is None else [*self._last, left]
        if self._guard is not None:  # in each unit: what raw text has changed is not known
            last = [*last, self._guard.statement]
            self._refusals[self._guard.constraint] = self._guard.error
        if not self.dry_run:
            failpoint(f"{self.action}.before_commit")
        if last:
            self._write(last)
        if self.dry_run:
            self.session.expunge_all()
            if self._reading is not None:
                self._undo(self._reading)
            self.session.rollback()
            return
        self.session.commit()
        failpoint(f"{self.action}.after_commit")

    def _undo(self, read: Callable[[Session], None]) -> None:
        """Undo the changes and read in a session of its own: this one may remember what it has changed."""
        connection = self.session.connection()
        connection.execute(_UNDO)
        with Session(connection, expire_on_commit=False, autoflush=False) as session:
            read(session)

    def _write(self, last: Sequence[Query]) -> None:
        try:
            query_together(self.session, *last, commit=not self.dry_run)
        except IntegrityError as error:
            if refusal := self._refusals.get(violated_constraint(error) or ""):
                raise refusal from error
            raise

    def _assert_traces(self) -> None:
        if self._quiet or not has_changed_state(self.session):
            return
        if not self._consequences.has_traces:
            raise AssertionError(f"I18: {self.action} changed state without an event or an audit entry")
        if self.principal.role in PERSON_ROLES and not self._consequences.has_audit:
            raise AssertionError(f"I18: {self.action} by {self.principal.name} changed state without an audit entry")


@dataclass(frozen=True, slots=True)
class UnitOfWorkFactory:
    """Factory of units of work on one database, under one clock and one source of ids.

    ``guard``: a condition of each of them.
    """

    engine: Engine
    clock: Callable[[], datetime] = utc_now
    new_id: Callable[[str], str] = born_id
    guard: Guard | None = None

    @classmethod
    def connected(cls, database_url: str, *, application_name: str, pool_size: int, max_overflow: int) -> Self:
        """Return a factory on an engine of its own, as ``muster.db.engine.make_engine`` makes it; ``close`` ends it."""
        return cls(
            make_engine(database_url, application_name=application_name, pool_size=pool_size, max_overflow=max_overflow)
        )

    def begin(
        self,
        principal: Principal,
        action: str,
        *,
        dry_run: bool = False,
        quiet: bool = False,
        is_one_snapshot: bool = False,
    ) -> UnitOfWork:
        """Return a unit of work by ``principal``.

        ``quiet``: leases, log pieces and positions, which leave no trace (I18). ``is_one_snapshot``: a dry run that
        sees nothing that others change meanwhile, and raises ``ContentionError`` where it would change such a row.

        ``action`` must have been declared with ``declare_action`` where its service is defined.
        """
        if not is_declared(f"{action}.before_commit"):
            raise AssertionError(f'unit of work {action!r} has no failpoints: add declare_action("{action}")')
        session = TrackedSession(self.engine, expire_on_commit=False)
        if is_one_snapshot:
            with translated_errors():
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"}).execute(_BEGIN_UNDOABLE)
        return UnitOfWork(
            session,
            principal,
            action,
            now=self.clock(),
            new_id=self.new_id,
            dry_run=dry_run,
            quiet=quiet,
            guard=self.guard,
        )

    def ask(self, statement: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows of one statement alone, as named tuples: see ``db.pipeline.single_query``."""
        with translated_errors():
            return query_once(self.engine, statement, parameters)

    def listen(self, channel: Channel) -> Notifications:
        """Return a listener for what units ``wake``, on a connection of its own; use it with ``with``."""
        return Notifications(self.engine, channel)

    def close(self) -> None:
        """Close the connections that no unit uses."""
        self.engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a read-only transaction of one snapshot, for queries alone."""
        options = {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}
        with translated_errors(), Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            session.connection(execution_options=options)
            yield session


def retrying(work: Callable[[], T], *, attempts: int = 5, sleep: Callable[[float], None] = time.sleep) -> T:
    """Run ``work``, a whole unit of work, again when it met another on the same rows. Full jitter from 20 ms to 1 s.

    Raises:
        ContentionError: still so at the last of ``attempts``.
    """
    for tried in range(attempts - 1):
        try:
            return work()
        except ContentionError:
            sleep(_RNG.uniform(0, min(_RETRY_CAP_S, _RETRY_BASE_S * 2**tried)))
    return work()
