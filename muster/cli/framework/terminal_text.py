"""Text that a program wrote, without what would control the terminal that shows it."""

import re
from typing import Final

_SEQUENCE: Final = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\)?"  # strings, such as a window's title
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, moves, erasures
    r"|\x1b[ -/]*[0-~]?"  # all others
)
"""Escape sequences of ECMA-48, also unfinished ones."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters without tab, and the marks that turn the direction in which a line is read."""


def plain_line(line: str) -> str:
    """Return a line as a terminal would leave it, without the sequences and characters that control one.

    A carriage return begins the line again, as progress bars do: the last text of the line remains.
    """
    shown = _SEQUENCE.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", shown)
