"""The state of our processes in the database: whether one of this machine is connected, and the work that waits.

The statements are plain text: a check runs every few seconds, and to import the models costs more than the check.
"""

from sqlalchemy import Connection, text


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
