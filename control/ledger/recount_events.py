"""Sources of a recount of the ledger: the inventory, events, and records of the time before the oldest event.

Events are dropped after ``retention.events_days``. So what stood at the oldest event is read from the histories that
are kept, and handed on as events; of everything later the events alone count.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from control.ledger.reading import Window, in_ms
from ledger.recount import RECOUNTED_KINDS, Enrolled, Event
from muster.domain.times import to_ms

_OLDEST: Final = text("""
SELECT coalesce(
    (SELECT min(at) FROM events WHERE position IS NOT NULL), (SELECT min(at) FROM events WHERE position IS NULL)
)
""")
_IS_ANYTHING_OLDER: Final = text("""
SELECT EXISTS (SELECT FROM gpu_standing_changes WHERE at < :kept_since)
    OR EXISTS (SELECT FROM node_contact_changes WHERE at < :kept_since)
""")
_INVENTORY: Final = f"""
SELECT gpus.uuid, gpus.node_id, {in_ms("first.at")}
FROM gpus CROSS JOIN LATERAL (
    SELECT at FROM gpu_standing_changes WHERE gpu_uuid = gpus.uuid ORDER BY id LIMIT 1
) AS first
WHERE first.at < :until AND (CAST(:gpu AS text) IS NULL OR gpus.uuid = :gpu) ORDER BY gpus.uuid
"""  # noqa: S608  # words of ours
_ATTEMPTS: Final = """
SELECT attempt_id, id FROM allocations
WHERE created_at < :until AND (state <> 'RELEASED' OR released_at > :since)
    AND (CAST(:gpu AS text) IS NULL OR id IN (
        SELECT allocation_id FROM allocation_gpus WHERE gpu_uuid = :gpu AND state IN ('HELD', 'CLEANING')
        UNION ALL SELECT allocation_id FROM allocation_gpus WHERE gpu_uuid = :gpu AND state = 'RELEASED'
    ))
"""
_EVENTS: Final = """
SELECT id, kind, at, subject_id, payload FROM events
WHERE subject_id = ANY(:subjects) AND kind = ANY(:kinds) AND at > :kept_since AND at < :until ORDER BY serial
"""
_RECORDS: Final[Mapping[str, str]] = {
    "gpu_standing_changes": """
        SELECT moved.id, 'gpu.' || lower(moved.target), moved.at, moved.gpu_uuid, '{}'::jsonb
        FROM gpus CROSS JOIN LATERAL (
            SELECT * FROM gpu_standing_changes WHERE gpu_uuid = gpus.uuid AND at <= :kept_since ORDER BY id DESC LIMIT 1
        ) AS moved WHERE gpus.uuid = ANY(:subjects)
    """,
    "node_contact_changes": """
        SELECT changed.id, 'node.' || lower(changed.contact), changed.at, changed.node_id, '{}'::jsonb
        FROM nodes CROSS JOIN LATERAL (
            SELECT * FROM node_contact_changes WHERE node_id = nodes.id AND at <= :kept_since
            ORDER BY at DESC, id DESC LIMIT 1
        ) AS changed WHERE nodes.id = ANY(:subjects)
    """,
    "gpu_overrides": """
        SELECT id, 'gpu.overridden', created_at, gpu_uuid,
            jsonb_build_object('override_id', id, 'standing', standing, 'until', until)
        FROM gpu_overrides WHERE gpu_uuid = ANY(:subjects) AND created_at <= :kept_since
            AND coalesce(ended_at, until) > :kept_since
    """,
    "cordons": """
        SELECT id, CASE WHEN node_id IS NULL THEN 'gpu' ELSE 'node' END || '.cordoned', created_at,
            coalesce(node_id, gpu_uuid), jsonb_build_object('cordon_id', id, 'reason_code', reason_code,
                'until', until, 'starts_at', starts_at)
        FROM cordons WHERE coalesce(node_id, gpu_uuid) = ANY(:subjects) AND created_at <= :kept_since
            AND coalesce(released_at, 'infinity') > :kept_since
    """,
    "burn_ins": """
        SELECT id, 'gpu.burn_in_began', began_at, gpu_uuid, jsonb_build_object('burn_in_id', id)
        FROM (
            SELECT id, gpu_uuid, began_at, ended_at FROM burn_ins WHERE state <> 'ORDERED'
            UNION ALL
            SELECT id, gpu_uuid, CAST(earlier ->> 0 AS timestamptz), CAST(earlier ->> 1 AS timestamptz)
            FROM burn_ins CROSS JOIN LATERAL jsonb_array_elements(earlier_tries) AS earlier
        ) AS tries
        WHERE gpu_uuid = ANY(:subjects) AND began_at <= :kept_since AND coalesce(ended_at, 'infinity') > :kept_since
    """,
    "allocations": """
        SELECT id, 'attempt.placed', created_at, attempt_id, jsonb_build_object('nodes', (
            SELECT jsonb_object_agg(node_id, uuids) FROM (
                SELECT node_id, jsonb_agg(gpu_uuid) AS uuids FROM allocation_gpus
                WHERE allocation_id = allocations.id GROUP BY node_id
            ) AS parts
        ))
        FROM allocations WHERE attempt_id = ANY(:subjects) AND created_at <= :kept_since
    """,
    "attempt_hosts": """
        SELECT attempt_id || '/' || node_id || '/' || what, 'attempt.host_' || what, at, attempt_id,
            jsonb_build_object('node_id', node_id)
        FROM attempt_hosts CROSS JOIN LATERAL (VALUES ('exited', exited_at), ('clean', clean_at)) AS part (what, at)
        WHERE attempt_id = ANY(:subjects) AND at <= :kept_since
    """,
    "attempts": """
        SELECT id, 'attempt.ended', ended_at, id, '{}'::jsonb FROM attempts
        WHERE id = ANY(:subjects) AND ended_at <= :kept_since
    """,
}
"""Tables of records that are kept for longer than events, and how their rows read as events."""


def events_kept_since(session: Session) -> datetime | None:
    """Return the time after which no event was dropped; None: there are no events."""
    found: datetime | None = session.scalar(_OLDEST)
    return found


def is_anything_older(session: Session, kept_since: datetime) -> bool:
    """Return whether there were GPUs or hosts before: otherwise nothing is missing, however long ago."""
    return bool(session.scalar(_IS_ANYTHING_OLDER, {"kept_since": kept_since}))


def inventory_of(window: Window, gpu: str | None) -> list[Enrolled]:
    """Return the GPUs that were enrolled before the window's end, or one of them."""
    return [Enrolled(*row) for row in window.rows(_INVENTORY, {"gpu": gpu})]


def records_and_events(
    window: Window, kept_since: datetime, inventory: Iterable[Enrolled], gpu: str | None
) -> tuple[list[Event], list[Event]]:
    """Return what stood at ``kept_since``, by the records, and the events since then about all that is recounted.

    ``gpu``: of one GPU of the inventory, what is about itself, its host and its attempts alone.
    """
    places = {name for one in inventory for name in (one.gpu_uuid, one.node_id)}
    attempts = {name for row in window.rows(_ATTEMPTS, {"gpu": gpu}) for name in row}
    given = {"subjects": sorted(places | attempts), "kept_since": kept_since}
    records = [
        event
        for table, statement in _RECORDS.items()
        for event in _events(window.rows(statement, given), prefix=f"{table}/")
    ]
    return records, list(_events(window.rows(_EVENTS, {**given, "kinds": sorted(RECOUNTED_KINDS)})))


def _events(rows: Sequence[Any], prefix: str = "") -> Iterator[Event]:
    for event_id, kind, at, subject_id, payload in rows:
        yield Event(f"{prefix}{event_id}", kind, to_ms(at), subject_id, payload)
