"""The reports and output of an attempt that were not stored because it had reached a limit of ``limits.attempt``."""

from collections.abc import Mapping
from typing import Final

COUNTED_KINDS: Final = ("log_bytes", "events", "checkpoints", "steps")
"""What is counted: the policy's fields of ``limits.attempt``, which are kinds of ``attempt_usage`` too."""
_NOUNS: Final = {
    "log_bytes": ("byte of output", "bytes of output"),
    "events": ("event", "events"),
    "checkpoints": ("checkpoint", "checkpoints"),
    "steps": ("step", "steps"),
}


def dropped_in_words(dropped: Mapping[str, int]) -> str:
    """Return what was left out and by which limits; nothing where no limit was reached."""
    counted = [(kind, dropped[kind]) for kind in COUNTED_KINDS if dropped.get(kind)]
    parts = [f"{number:,} {_NOUNS[kind][number != 1]} (limits.attempt.{kind})" for kind, number in counted]
    return ", ".join(parts)
