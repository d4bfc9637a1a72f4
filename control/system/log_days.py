"""The output of jobs by day: a partition of ``log_chunks`` for each, made ahead of its day and dropped as a whole.

A fleet of 100,000 GPUs may store 500,000 pieces of output a second, which no deletion row by row keeps pace with.
Dropping a day takes the same few milliseconds, however many rows it has.

    log_chunks_until_20261204    what was stored before the upgrade, and some days after it
    log_chunks_20261204 …        a day each, UTC, up to DAYS_AHEAD from now
    log_chunks_default           rows of a day without a partition, such as after a long stop of all control workers
    log_chunks_aside             no partition: rows of a large default table, until they are moved to their days

The first and the default are ordinary tables, whose expired rows are deleted one by one.

Each new day is compared with all rows of the default table, which nothing can use meanwhile. Past a size of it, no day
could be made in the time of a statement. Then it is set aside as a whole, in milliseconds, and its rows move to days of
their own in small batches, the newest first. Until then readers do not find them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sqlalchemy import text

from control.core.unit_of_work import UnitOfWork
from control.policy.policies import active_policy

DAYS_AHEAD: Final = 7
DEFAULT: Final = "log_chunks_default"
LARGE: Final = 256 << 20
"""Bytes of the default table past which it is set aside: it is compared within some tenths of a second."""
MOST_ASIDE: Final = 100
"""Days that are made for the rows set aside; rows of further ones, of wrong clocks, are in the default table again."""
_DAY: Final = timedelta(days=1)
_NAME: Final = re.compile(r"log_chunks_(?P<until>until_)?(?P<day>[0-9]{8})")
_FOUND: Final = text(
    """
    SELECT partition.relname FROM pg_inherits JOIN pg_class AS partition ON partition.oid = inhrelid
    WHERE inhparent = 'log_chunks'::regclass
    """
)
_TURN: Final = text("SELECT pg_try_advisory_xact_lock(hashtext('muster log days'))")
# Statements on output wait behind one that waits for this lock: rather try again in the next round.
_WAIT_BRIEFLY: Final = text("SET LOCAL lock_timeout = '500ms'")
_IS_FILLED: Final = text(
    f"SELECT EXISTS (SELECT FROM {DEFAULT} WHERE received_at >= :begin AND received_at < :end)"  # noqa: S608  # constant
)
_MAKE: Final = """
CREATE TABLE {name} (LIKE log_chunks INCLUDING DEFAULTS INCLUDING CONSTRAINTS, CONSTRAINT pk_{name}
    PRIMARY KEY (attempt_id, node_id, stream, byte_offset));
ALTER TABLE log_chunks ATTACH PARTITION {name} FOR VALUES FROM ('{begin}') TO ('{end}');
"""
_IS_LARGE: Final = text(f"SELECT pg_relation_size('{DEFAULT}') > :large AND to_regclass('log_chunks_aside') IS NULL")
_SET_ASIDE: Final = text(
    """
    ALTER TABLE log_chunks DETACH PARTITION log_chunks_default;
    ALTER TABLE log_chunks_default RENAME TO log_chunks_aside;
    ALTER TABLE log_chunks_aside RENAME CONSTRAINT pk_log_chunks_default TO pk_log_chunks_aside;
    ALTER INDEX ix_log_chunks_default_received_at RENAME TO ix_log_chunks_aside_received_at;
    CREATE TABLE log_chunks_default PARTITION OF log_chunks (CONSTRAINT pk_log_chunks_default
        PRIMARY KEY (attempt_id, node_id, stream, byte_offset)) DEFAULT;
    CREATE INDEX ix_log_chunks_default_received_at ON log_chunks_default (received_at);
    """
)
_NEXT_ASIDE: Final = text("SELECT min(received_at) FROM log_chunks_aside WHERE received_at >= :begin")
_IS_ASIDE: Final = text("SELECT to_regclass('log_chunks_aside') IS NOT NULL")
_COLUMNS: Final = "attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at, position"
_MOVE: Final = text(
    f"""
    WITH moved AS (
        DELETE FROM log_chunks_aside
        WHERE ctid = ANY(ARRAY(SELECT ctid FROM log_chunks_aside ORDER BY received_at DESC LIMIT :batch))
        RETURNING {_COLUMNS}
    ), stored AS (INSERT INTO log_chunks ({_COLUMNS}) SELECT {_COLUMNS} FROM moved ON CONFLICT DO NOTHING)
    SELECT count(*) FROM moved
    """  # noqa: S608  # of constants alone
)


@dataclass(frozen=True, slots=True)
class LogDays:
    """One partition. ``end``: the day after its last; ``is_day``: it has one day alone, and goes as a whole."""

    name: str
    end: date
    is_day: bool


def make_day(unit: UnitOfWork) -> int:
    """Make the first partition that is missing of this day and the next ones. Return how many were made: 0 or 1.

    A large default table is set aside before; then the days of its rows are made in the same transaction.
    """
    if not _has_turn(unit):
        return 0
    found = _partitions(unit)
    known = {one.name for one in found}
    begins = max((one.end for one in found if not one.is_day), default=date.min)
    today = unit.now.astimezone(UTC).date()
    days = (today + number * _DAY for number in range(DAYS_AHEAD + 1))
    missing = [day for day in days if day >= begins and _name_of(day) not in known]
    if missing and unit.session.scalar(_IS_LARGE, {"large": LARGE}):
        return _set_aside(unit)
    for day in missing:
        if not _is_filled(unit, day):
            _make(unit, day)
            return 1
    return 0


def move_aside(unit: UnitOfWork, batch: int) -> int:
    """Move rows that were set aside to their days, at most ``batch``. Return how many were moved."""
    if not unit.session.scalar(_IS_ASIDE) or not _has_turn(unit):
        return 0
    num_moved = int(unit.session.scalar(_MOVE, {"batch": batch}) or 0)
    if num_moved == 0:
        unit.session.execute(text("DROP TABLE log_chunks_aside"))
    return num_moved


def _set_aside(unit: UnitOfWork) -> int:
    """Set the default table aside, and make the days of its rows. Return how many."""
    unit.session.execute(_SET_ASIDE)
    begin = datetime.min.replace(tzinfo=UTC)
    for number in range(MOST_ASIDE):
        first: datetime | None = unit.session.scalar(_NEXT_ASIDE, {"begin": begin})
        if first is None:
            return number
        day = first.astimezone(UTC).date()
        _make(unit, day)
        begin = _midnight(day + _DAY)
    return MOST_ASIDE


def _make(unit: UnitOfWork, day: date) -> None:
    name, begin, end = _name_of(day), _midnight(day), _midnight(day + _DAY)
    unit.session.execute(text(_MAKE.format(name=name, begin=begin, end=end)))


def drop_days(unit: UnitOfWork) -> int:
    """Drop the partitions in which every row is past its time. Return how many were dropped."""
    before = expired_before(unit).date()
    over = [one for one in _partitions(unit) if one.end <= before] if _has_turn(unit) else []
    for one in over:
        unit.session.execute(text(f"DROP TABLE {one.name}"))
    return len(over)


def tables_by_row(unit: UnitOfWork) -> Sequence[str]:
    """Return the partitions from which expired rows are deleted one by one."""
    return [*(one.name for one in _partitions(unit) if not one.is_day), DEFAULT]


def expired_before(unit: UnitOfWork) -> datetime:
    """Return the moment before which output of jobs has expired."""
    return unit.now.astimezone(UTC) - timedelta(days=active_policy(unit.session).retention.logs_days)


def _has_turn(unit: UnitOfWork) -> bool:
    unit.session.execute(_WAIT_BRIEFLY)
    return bool(unit.session.scalar(_TURN))


def _partitions(unit: UnitOfWork) -> list[LogDays]:
    named = [_NAME.fullmatch(name) for name in unit.session.scalars(_FOUND)]
    return [_log_days(each) for each in named if each is not None]


def _log_days(named: re.Match[str]) -> LogDays:
    day, is_day = date.fromisoformat(named["day"]), named["until"] is None
    return LogDays(named[0], day + _DAY if is_day else day, is_day)


def _is_filled(unit: UnitOfWork, day: date) -> bool:
    """Return whether rows of the day are in the table of no day: they stay there, so the day has no partition."""
    return bool(unit.session.scalar(_IS_FILLED, {"begin": _midnight(day), "end": _midnight(day + _DAY)}))


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _name_of(day: date) -> str:
    return f"log_chunks_{day:%Y%m%d}"
