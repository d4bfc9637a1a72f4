"""The state of our processes in the database: when their loops last advanced, and the work that waits.

The statements are plain text: a check runs every few seconds, and to import the models costs more than the check.
"""

from typing import Final

from sqlalchemy import Connection, text

NEWEST: Final = """
    SELECT DISTINCT ON (loop) loop, extract(epoch FROM clock_timestamp() - advanced_at), limit_s
    FROM loop_progress ORDER BY loop, advanced_at DESC
"""
"""Each loop that a process has reported, with the age of its newest progress in any process."""


def loops_of(connection: Connection, component: str, host: str) -> dict[str, tuple[float, float]]:
    """Return loop → (seconds since its newest progress, the age that is a standstill), for one part on one host.

    Only processes that reported in the last minute count: an earlier release may have had other loops.
    """
    found = connection.execute(
        text(
            "SELECT DISTINCT ON (loop) loop, extract(epoch FROM clock_timestamp() - advanced_at), limit_s"
            " FROM loop_progress WHERE component = :component AND host = :host"
            " AND reported_at > clock_timestamp() - interval '1 minute' ORDER BY loop, advanced_at DESC"
        ),
        {"component": component, "host": host},
    )
    return {loop: (float(age_s), limit_s) for loop, age_s, limit_s in found}


def is_connected(connection: Connection, application_name: str) -> bool:
    """Return whether a process of that name holds a connection from the address of this one."""
    found = connection.scalar(
        text(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = :name AND client_addr IS NOT DISTINCT FROM inet_client_addr()"
        ),
        {"name": application_name},
    )
    return bool(found)


def oldest_unsequenced_s(connection: Connection) -> float:
    """Return how long the oldest event has waited for its position; 0: none waits."""
    waited = connection.scalar(
        text("SELECT extract(epoch FROM clock_timestamp() - min(at)) FROM events WHERE position IS NULL")
    )
    return float(waited or 0.0)
