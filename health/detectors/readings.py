"""Reading of an event's values and text, within plausible bounds."""

import re
from typing import Final

from muster.domain.evidence.findings import GpuSignal

_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.:/-]+")
_NAME_LENGTH_MAX: Final = 64
PORT_ACTIVE: Final = 4
"""``state`` of a port that is up."""


def has(signal: GpuSignal, *names: str) -> bool:
    """Return whether all of these values were reported; a missing value is unknown, never zero."""
    return all(name in signal.values for name in names)


def rate_of(signal: GpuSignal, name: str, span_s: float) -> float | None:
    """Return how much ``name`` rises in ``span_s`` seconds at this window's pace; None where it did not, or is unknown.

    A window under a second is taken as one: two reports in quick succession make no storm.
    """
    rise, window_s = signal.values.get(name), signal.values.get("window_s")
    if rise is None or window_s is None or not rise > 0 or not window_s > 0:
        return None
    return rise * span_s / max(1.0, window_s)


def name_in(signal: GpuSignal) -> str:
    """Return the port or peer that the text names, fit for a fault's key."""
    return _PLAIN.sub("_", signal.text.strip())[:_NAME_LENGTH_MAX] or "unnamed"


def link_of(signal: GpuSignal) -> str:
    """Return ``:link7`` where the rise is of one NVLink, else an empty text."""
    link = signal.values.get("link")
    return "" if link is None else f":link{link:.0f}"
