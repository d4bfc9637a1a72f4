"""Moments as the database has them, and as milliseconds."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def to_ms(moment: datetime | None) -> int:
    """Whole milliseconds since 1970, 0 for none."""
    return 0 if moment is None else (moment - _EPOCH) // _MILLISECOND


def in_utc(moment: datetime) -> datetime:
    """Return the moment in UTC, as it is stored and read. Raises ValueError: it is in no year there."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be in a year from 1 to 9999 in UTC") from None


def to_time(moment_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=moment_ms)
