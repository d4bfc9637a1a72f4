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
    """Return loop → (seconds since its newest progress, the age that is a standstill), for one part on one host."""
    found = connection.execute(
        text(
            "SELECT DISTINCT ON (loop) loop, extract(epoch FROM clock_timestamp() - advanced_at), limit_s"
            " FROM loop_progress WHERE component = :component AND host = :host ORDER BY loop, advanced_at DESC"
        ),
        {"component": component, "host": host},
    )
    return {loop: (float(age_s), limit_s) for loop, age_s, limit_s in found}


def oldest_unsequenced_s(connection: Connection) -> float:
    """Return how long the oldest event has waited for its position; 0: none waits."""
    waited = connection.scalar(
        text("SELECT extract(epoch FROM clock_timestamp() - min(at)) FROM events WHERE position IS NULL")
    )
    return float(waited or 0.0)
