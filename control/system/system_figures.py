"""Figures of the control plane itself for operators: contact with hosts, and the lengths of its queues."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from control.core.unit_of_work import UnitOfWork, declare_action
from control.health import breakers
from control.health.breakers import BreakerView
from control.system import liveness
from control.system import read as system
from control.system.liveness import LoopAge
from control.system.read import Contacts, Ingest, Waiting
from muster import __version__
from muster.domain.principals import Permission

READ: Final = declare_action("system.read")
INGEST_WINDOW: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """Figures of the instant ``now``. ``events_position`` and ``audit_position``: the last ones given out.

    ``schema_needed``: by this version. ``is_scheduler_active``: some process has the scheduler's lead now, and its
    work advances.
    """

    now: datetime
    version: str
    database_version: str
    schema_revision: str
    schema_needed: str
    api_alive_at: datetime | None
    accepts_heartbeats_since: datetime | None
    contacts: Contacts
    ingest: Ingest
    outbox: Waiting
    num_dead_messages: int
    events: Waiting
    events_position: int
    audit: Waiting
    audit_position: int
    signals: Waiting
    num_signals_set_aside: int
    queue: Waiting
    is_scheduler_active: bool
    loops: Sequence[LoopAge]
    breakers: Sequence[BreakerView]


def figures(unit: UnitOfWork) -> SystemFigures:
    unit.principal.require(Permission.METRICS_READ)
    connection = unit.session.connection()
    revision, database_version = system.versions(connection)
    alive_at, accepts_heartbeats_since = system.cluster(connection)
    outbox, num_dead = system.outbox(connection)
    signals, num_set_aside = system.unjudged_signals(connection)
    heads = system.sequence_heads(connection)
    return SystemFigures(
        now=unit.now,
        version=__version__,
        database_version=database_version,
        schema_revision=revision,
        schema_needed=system.schema_needed(),
        api_alive_at=alive_at,
        accepts_heartbeats_since=accepts_heartbeats_since,
        contacts=system.contacts(connection, unit.now),
        ingest=system.ingest(connection, unit.now - INGEST_WINDOW),
        outbox=outbox,
        num_dead_messages=num_dead,
        events=system.unsequenced_events(connection),
        events_position=heads["events"],
        audit=system.unsealed_entries(connection),
        audit_position=heads["audit"],
        signals=signals,
        num_signals_set_aside=num_set_aside,
        queue=system.queued_jobs(connection),
        is_scheduler_active=system.has_leader(connection, liveness.SCHEDULER),
        loops=liveness.loop_ages(connection),
        breakers=breakers.list_breakers(unit),
    )
