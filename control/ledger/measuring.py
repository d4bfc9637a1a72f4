"""Sums of an hour that figures need in addition to its facts: stored with the hour, and added up later.

Facts have no hosts, and entries of a month of a large fleet are millions. So the idle time by place, and the time in
which jobs run, are summed when the hour is computed.
"""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from ledger.accounts import Account
from ledger.figures.hours import HOUR
from ledger.measures import IDLE, WHILE_WAITING

_RUN_MS: Final = text("""
    SELECT coalesce(sum(size.num_gpus * extract(epoch FROM
        least(coalesce(j.finished_at, :until), :until) - greatest(run.began_at, :since)) * 1000), 0)::bigint
    FROM jobs AS j
    CROSS JOIN LATERAL (
        SELECT min(running_at) AS began_at FROM attempts WHERE job_id = j.id AND running_at < :until
    ) AS run
    CROSS JOIN LATERAL (
        SELECT coalesce(l.num_gpus, (SELECT count(*) FROM allocation_gpus WHERE allocation_id = l.id)) AS num_gpus
        FROM attempts AS a JOIN allocations AS l ON l.attempt_id = a.id
        WHERE a.job_id = j.id AND a.placed_at < :until ORDER BY a.number DESC LIMIT 1
    ) AS size
    WHERE j.created_at < :until AND (j.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') OR j.finished_at > :since)
        AND run.began_at < least(coalesce(j.finished_at, :until), :until)
""")
_PLACES: Final = text("""
    WITH hosts AS (
        SELECT node_id, rack,
            coalesce(sum(num_ms) FILTER (WHERE attempt_id IS NOT NULL), 0) > 0 AS is_used,
            coalesce(sum(num_ms) FILTER (WHERE attempt_id IS NULL AND account = ANY(:idle)), 0) AS idle_ms,
            coalesce(sum(num_ms) FILTER (WHERE attempt_id IS NULL AND account = ANY(:waiting)), 0) AS waiting_ms,
            coalesce(sum(num_ms) FILTER (WHERE attempt_id IS NOT NULL AND account = :productive), 0) AS productive_ms
        FROM ledger_entries WHERE hour = :hour GROUP BY node_id, rack
    ), placed AS (
        SELECT *, rack IS NOT NULL AND bool_or(is_used) OVER (PARTITION BY rack) AS is_in_used_rack FROM hosts
    )
    SELECT coalesce(sum(productive_ms), 0)::bigint AS productive_ms,
        coalesce(sum(idle_ms), 0)::bigint AS idle_ms,
        coalesce(sum(idle_ms) FILTER (WHERE is_used), 0)::bigint AS idle_on_used_ms,
        coalesce(sum(idle_ms) FILTER (WHERE NOT is_used AND is_in_used_rack), 0)::bigint AS idle_in_used_racks_ms,
        coalesce(sum(waiting_ms), 0)::bigint AS waiting_ms,
        coalesce(sum(waiting_ms) FILTER (WHERE is_used), 0)::bigint AS waiting_on_used_ms
    FROM placed
""").bindparams(bindparam("idle", type_=ARRAY(Text)), bindparam("waiting", type_=ARRAY(Text)))
MEASURED: Final = (
    "run_ms",
    "productive_ms",
    "idle_ms",
    "idle_on_used_ms",
    "idle_in_used_racks_ms",
    "waiting_ms",
    "waiting_on_used_ms",
)
"""Milliseconds of GPUs: ``on_used``: on hosts of which an attempt used a GPU in the hour; ``in_used_racks``: on others
of racks with such a host. ``waiting``: idle while a job waits. ``run``: from the first start of a job to its end,
pauses between attempts included.
"""


def measured_in(session: Session, hour: datetime) -> dict[str, Any]:
    """Return the sums of an hour whose entries are stored, by the names in ``MEASURED``."""
    accounts = {"idle": [str(one) for one in IDLE], "waiting": [str(one) for one in WHILE_WAITING]}
    given = {**accounts, "hour": hour, "productive": str(Account.PRODUCTIVE)}
    places = session.execute(_PLACES, given).one()
    run_ms = session.execute(_RUN_MS, {"since": hour, "until": hour + HOUR}).scalar_one()
    return {"run_ms": int(run_ms), **places._asdict()}
