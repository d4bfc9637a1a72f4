"""The meaning of the database's errors: the unit of work is tried again, or the service is unavailable."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm.exc import StaleDataError

from muster.domain.errors import UnavailableError

CONTENTION: Final = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected: the same unit of work, begun again, can succeed."""

LOCK_TIMEOUT: Final = "55P03"
"""lock_not_available: another transaction held a row longer than our lock timeout."""

_UNAVAILABLE_CLASSES: Final = ("08", "53", "58")  # connection, insufficient resources (disk, connections), system
_UNAVAILABLE: Final = frozenset(
    {
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout
        "57014",  # query_canceled: our statement timeout
        LOCK_TIMEOUT,
        "25P03",  # idle_in_transaction_session_timeout
        "25006",  # read_only_sql_transaction: a standby, during a fail-over
    }
)


_NO_LONGER_AS_LOCKED: Final = frozenset({"attempt_hosts_attempt", "pk_gpu_holds"})
"""Constraints that refuse a write whose premise has changed.

The first: of a placement whose job is of another version than the one it locked (``queries.gang_rows``). The second:
of a hold on a GPU that an attempt has kept for its own job since the check (``control.attempts.resume_holds``).
"""


class ContentionError(UnavailableError):
    """Two units of work met on the same rows. ``retrying`` begins again; past that, the caller repeats."""


class LockTimeoutError(UnavailableError):
    """Another transaction held a lock for longer than this unit of work may wait."""


def sqlstate(error: DBAPIError) -> str | None:
    """Return PostgreSQL's five-letter code, or None if the server gave none."""
    return getattr(error.orig, "sqlstate", None)


def violated_constraint(error: IntegrityError) -> str | None:
    """Return the name of the violated constraint or unique index, such as ``uq_allocation_gpus_taken``."""
    diagnosis = getattr(error.orig, "diag", None)
    return getattr(diagnosis, "constraint_name", None)


def _is_unavailable(error: DBAPIError) -> bool:
    state = sqlstate(error)
    if state is None:
        return error.connection_invalidated or isinstance(error, OperationalError)
    return state in _UNAVAILABLE or state.startswith(_UNAVAILABLE_CLASSES)


def translation_of(error: BaseException) -> UnavailableError | None:
    """Return the error to raise instead of ``error``; None when it should stay as it is."""
    if isinstance(error, PoolTimeoutError):
        return UnavailableError("every database connection is in use", retry_after_s=1)
    if isinstance(error, StaleDataError):
        return ContentionError("the row changed meanwhile", retry_after_s=1)
    if not isinstance(error, DBAPIError):
        return None
    if isinstance(error, IntegrityError) and violated_constraint(error) in _NO_LONGER_AS_LOCKED:
        return ContentionError("the row changed under its lock", retry_after_s=1)
    if sqlstate(error) in CONTENTION:
        return ContentionError("two changes met on the same rows", retry_after_s=1)
    if sqlstate(error) == LOCK_TIMEOUT:
        return LockTimeoutError(retry_after_s=1)
    return UnavailableError(retry_after_s=1) if _is_unavailable(error) else None


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors of the block: no answer raises ``UnavailableError``, a conflict ``ContentionError``."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, StaleDataError) as error:
        translation = translation_of(error)
        if translation is None:
            raise
        raise translation from error
