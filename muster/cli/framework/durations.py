"""Durations as people write them: 30s, 10m, 2h, 1d."""

import re
from typing import Final

from muster.cli.framework.options import unfit

_SECONDS_OF_UNIT: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
LONGEST_S: Final = 100 * 365 * 86_400
"""A hundred years: a longer duration is a typing error."""
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")


def is_duration(text: str) -> bool:
    """Return whether a text has the form of a duration."""
    return _DURATION.fullmatch(text.strip()) is not None


def seconds_of(text: str | None, option: str) -> float | None:
    """Return the seconds of a duration. Raises ``typer.BadParameter``, which names the option, for any other text."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise unfit(option, f"{text[:40]!r} is no duration: write 30s, 10m, 2h or 1d")
    found = float(match[1]) * _SECONDS_OF_UNIT[match[2]]
    if found > LONGEST_S:
        raise unfit(option, f"{text[:40]!r} is more than a hundred years")
    return found
