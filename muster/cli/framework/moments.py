"""Moments of options: a time, or a duration before now."""

from datetime import UTC, datetime, timedelta
from typing import Final

from muster.cli.framework.durations import is_duration, seconds_of
from muster.cli.framework.options import unfit

MOMENT: Final = "A time such as 2026-11-26T09:00:00Z, or a duration before now, such as 2d."
"""The help of each such option ends so."""


def moment_in(text: str, option: str, now: datetime | None = None) -> str:
    """Return a time as RFC 3339 in UTC. A time without a zone is local. ``now``: for several options of one command.

    Raises ``typer.BadParameter``, which names the option, for any other text.
    """
    if is_duration(text):
        return ((now or datetime.now(UTC)) - timedelta(seconds=seconds_of(text, option) or 0)).isoformat()
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise unfit(option, f"{text[:40]!r} is no time: write 2026-11-26T09:00:00Z, or a duration before now") from None
