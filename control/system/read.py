"""The control plane's own figures, to read: a statement each, none of which grows with the past."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, text

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db import migrate

_NODES: Final = text("""
SELECT count(*) FILTER (WHERE contact = 'LIVE'), count(*) FILTER (WHERE contact = 'SILENT'),
       count(*) FILTER (WHERE contact = 'LOST'),
       extract(epoch FROM :now - min(last_heartbeat_at)),
       extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY :now - last_heartbeat_at)),
       extract(epoch FROM percentile_disc(0.99) WITHIN GROUP (ORDER BY :now - last_heartbeat_at))
FROM nodes
""")
_OUTBOX: Final = text("SELECT count(*), min(created_at) FROM outbox WHERE sent_at IS NULL AND dead_at IS NULL")
_DEAD: Final = text("SELECT count(*) FROM outbox WHERE dead_at IS NOT NULL")
_EVENTS: Final = text("SELECT count(*), min(at) FROM events WHERE position IS NULL")
_AUDIT: Final = text("SELECT count(*), min(at) FROM audit_entries WHERE position IS NULL")
_SIGNALS: Final = text("""
SELECT count(*) FILTER (WHERE judge_fault IS NULL), min(received_at) FILTER (WHERE judge_fault IS NULL),
       count(*) FILTER (WHERE judge_fault IS NOT NULL)
FROM gpu_signals WHERE judged_at IS NULL
""")
# Node by node through their index on time: the blocks of the last hours are many.
_BLOCKS: Final = text("""
SELECT coalesce(sum(found.num), 0)::bigint, max(nodes.received_at)
FROM node_latest nodes, LATERAL (
    SELECT count(*) AS num FROM telemetry_blocks WHERE node_id = nodes.node_id AND at > :since AND received_at > :since
) found
""")
# Each GPU of the node's newest report, and the GPUs behind it whose own report came in time.
_RECEIVED: Final = text("""
SELECT coalesce(sum(get_byte(gpu_readings, 0) * 256 + get_byte(gpu_readings, 1) - (
    SELECT count(*) FROM jsonb_each(gpus_behind) AS gpu
    WHERE (gpu.value ->> 3)::bigint <= extract(epoch FROM CAST(:since AS timestamptz)) * 1000
)), 0)::bigint
FROM node_latest WHERE received_at > :since AND gpu_readings <> ''
""")
_QUEUE: Final = text("SELECT count(*), min(created_at) FROM jobs WHERE state = 'QUEUED'")
_HEADS: Final = text("SELECT name, position FROM sequence_heads")
_LEADER: Final = text("SELECT EXISTS (SELECT FROM leader_leases WHERE name = :name AND expires_at > clock_timestamp())")
_CLUSTER: Final = text("SELECT api_alive_at, accepting_since FROM cluster")
_REVISION: Final = text("SELECT version_num FROM alembic_version")
_SERVER: Final = text("SELECT current_setting('server_version')")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queue. ``oldest_at``: since when its first item waits; None where it is empty."""

    num: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Contacts:
    """The numbers of nodes by contact, and the ages of the heartbeats of nodes that ever sent one."""

    live: int
    silent: int
    lost: int
    oldest_s: float | None
    median_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Ingest:
    """Telemetry since a moment: stored reports of that time, and GPUs with a report."""

    num_reports: int
    num_gpus: int
    newest_at: datetime | None


def contacts(connection: Connection, now: datetime) -> Contacts:
    live, silent, lost, *ages = connection.execute(_NODES, {"now": now}).one()
    oldest_s, median_s, p99_s = (None if age is None else max(0.0, float(age)) for age in ages)
    return Contacts(live, silent, lost, oldest_s, median_s, p99_s)


def outbox(connection: Connection) -> tuple[Waiting, int]:
    """Return the messages to send, and the number that were given up."""
    return _waiting(connection, _OUTBOX), int(connection.scalar(_DEAD) or 0)


def unsequenced_events(connection: Connection) -> Waiting:
    return _waiting(connection, _EVENTS)


def unsealed_entries(connection: Connection) -> Waiting:
    return _waiting(connection, _AUDIT)


def unjudged_signals(connection: Connection) -> tuple[Waiting, int]:
    """Return the signals that wait for the judge, and the number that are set aside."""
    num, oldest_at, num_set_aside = connection.execute(_SIGNALS).one()
    return Waiting(num, _utc(oldest_at)), num_set_aside


def ingest(connection: Connection, since: datetime) -> Ingest:
    num_reports, newest_at = connection.execute(_BLOCKS, {"since": since}).one()
    return Ingest(num_reports, int(connection.scalar(_RECEIVED, {"since": since}) or 0), _utc(newest_at))


def queued_jobs(connection: Connection) -> Waiting:
    return _waiting(connection, _QUEUE)


def has_leader(connection: Connection, name: str) -> bool:
    """Return whether a process has the lead ``name`` now."""
    return bool(connection.scalar(_LEADER, {"name": name}))


def sequence_heads(connection: Connection) -> dict[str, int]:
    """Return the last assigned position, by the sequence's name."""
    return {row[0]: row[1] for row in connection.execute(_HEADS)}


def cluster(connection: Connection) -> tuple[datetime | None, datetime | None]:
    """Return when the API last reported, and since when it has accepted heartbeats without a gap."""
    alive_at, accepts_heartbeats_since = connection.execute(_CLUSTER).one()
    return _utc(alive_at), _utc(accepts_heartbeats_since)


def versions(connection: Connection) -> tuple[str, str]:
    """Return the schema's revision, and PostgreSQL's version."""
    return str(connection.scalar(_REVISION)), str(connection.scalar(_SERVER))


def schema_needed() -> str:
    """Return the revision that this version needs."""
    return migrate.head()


def schema_revision(units: UnitOfWorkFactory) -> str | None:
    """Return the revision that the database is at; ``None``: it holds none."""
    with units.read() as session:
        revision: str | None = session.scalar(_REVISION)
    return revision


def _waiting(connection: Connection, query: Any) -> Waiting:
    num, oldest_at = connection.execute(query).one()
    return Waiting(num, _utc(oldest_at))


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
