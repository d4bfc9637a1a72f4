"""The counts that a scrape of the API's figures shows: states and kinds, and nothing of any tenant."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from control.core.unit_of_work import UnitOfWorkFactory
from control.system.liveness import loop_ages
from muster.db.models import Attempt, Event, Gpu, Incident, Job, Node, OutboxMessage
from muster.db.queries.effective_standing import effective_standing, is_cordoned
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState

_Column = ColumnElement[Any] | InstrumentedAttribute[Any]
_OPEN_JOBS: Final = Job.state.not_in(TERMINAL_JOB_STATES)
_LIVE_ATTEMPTS: Final = Attempt.state != AttemptState.ENDED
_OPEN_INCIDENTS: Final = Incident.closed_at.is_(None)


@dataclass(frozen=True, slots=True)
class Gauges:
    """Numbers by state or kind. ``oldest_message_at``: when the oldest message that waits was written.

    ``gpus``: by effective standing. ``num_cordoned_gpus``: kept out of new placements by a cordon of their own or of
    their node.
    """

    open_jobs: Mapping[str, int]
    live_attempts: Mapping[str, int]
    nodes: Mapping[str, int]
    gpus: Mapping[str, int]
    num_cordoned_gpus: int
    open_incidents: Mapping[str, int]
    num_messages: int
    oldest_message_at: datetime | None
    num_unsequenced: int
    loop_ages_s: Mapping[str, float]


def read_gauges(units: UnitOfWorkFactory) -> Gauges:
    """Return the counts of one snapshot. Raises ``UnavailableError``."""
    waits = (OutboxMessage.sent_at.is_(None), OutboxMessage.dead_at.is_(None))
    now = units.clock()
    with units.read() as session:
        num, oldest_at = session.execute(select(func.count(), func.min(OutboxMessage.created_at)).where(*waits)).one()
        return Gauges(
            open_jobs=_counted(session, Job.state, _OPEN_JOBS),
            live_attempts=_counted(session, Attempt.state, _LIVE_ATTEMPTS),
            nodes=_counted(session, Node.contact),
            gpus=_counted(session, effective_standing(now)),
            num_cordoned_gpus=_num_cordoned(session, now),
            open_incidents=_counted(session, Incident.kind, _OPEN_INCIDENTS),
            num_messages=num,
            oldest_message_at=oldest_at,
            num_unsequenced=session.scalar(select(func.count()).where(Event.position.is_(None))) or 0,
            loop_ages_s={each.loop: each.age_s for each in loop_ages(session.connection()) if each.age_s is not None},
        )


def _counted(session: Session, column: _Column, *which: ColumnElement[bool]) -> dict[str, int]:
    each = select(column.label("state")).where(*which).subquery()
    return dict(session.execute(select(each.c.state, func.count()).group_by(each.c.state)).all())


def _num_cordoned(session: Session, now: datetime) -> int:
    return session.scalar(select(func.count()).select_from(Gpu).where(is_cordoned(now))) or 0
