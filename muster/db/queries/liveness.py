"""The state of our processes in the database: whether one of this machine is connected, and the work that waits."""

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from muster.db.models import Event


def is_connected(session: Session, application_name: str) -> bool:
    """Return whether a process of that name holds a connection from the address of this session."""
    found = session.scalar(
        text(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = :name AND client_addr IS NOT DISTINCT FROM inet_client_addr()"
        ),
        {"name": application_name},
    )
    return bool(found)


def oldest_unsequenced_s(session: Session) -> float:
    """Return how long the oldest event has waited for its position; 0: none waits."""
    waited = session.scalar(
        select(func.extract("epoch", func.clock_timestamp() - func.min(Event.at))).where(Event.position.is_(None))
    )
    return float(waited or 0.0)
