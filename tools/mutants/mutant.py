"""One planted change: where it stands and what the line becomes. Nothing in it depends on a line number."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

PRODUCT: Final = (
    "muster",
    "health",
    "watch",
    "scheduler",
    "control",
    "simulator",
    "agents",
    "workers",
    "api",
    "console",
    "local",
)
"""The packages whose decisions are changed; one that a checkout lacks has no sites."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """``path`` is where the line stood when it was chosen, and no more than a hint later.

    ``line`` and ``becomes`` are stripped of indentation. ``nth`` counts equal lines within the function, from 0.
    """

    path: str
    function: str
    line: str
    nth: int
    operator: str
    becomes: str

    @property
    def key(self) -> str:
        """Return the short name of the change, which survives a move of the file."""
        identity = "\n".join((self.function, self.line, str(self.nth), self.operator, self.becomes))
        return hashlib.sha256(identity.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Placed:
    """A mutant at a line of a file of one checkout; ``number`` counts lines from 1."""

    mutant: Mutant
    path: str
    number: int

    def applied(self, text: str) -> str:
        """Return the file's text with the line changed and its indentation kept."""
        lines = text.splitlines(keepends=True)
        old = lines[self.number - 1]
        body = old.strip()
        if body != self.mutant.line:
            message = f"{self.path}:{self.number} holds {body!r}, not {self.mutant.line!r}"
            raise ValueError(message)
        lines[self.number - 1] = old.replace(body, self.mutant.becomes, 1)
        return "".join(lines)
