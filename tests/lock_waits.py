"""Waiting for a transaction that waits for a lock of another one."""

from typing import Final

from sqlalchemy import text

from control.core.unit_of_work import UnitOfWorkFactory
from tests.waiting import wait_until

_WAITING: Final = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def is_a_lock_awaited(units: UnitOfWorkFactory) -> bool:
    """Return whether a transaction on the database waits for a lock."""
    with units.read() as session:
        return bool(session.scalar(_WAITING))


def wait_for_a_lock(units: UnitOfWorkFactory) -> None:
    wait_until(lambda: is_a_lock_awaited(units))
