"""Five typical changes, by which `make quick` is measured: a file each, and a trivial edit of it.

``python -m tools.typical_changes NAME FOLDER`` edits the checkout at ``FOLDER``, a clone for this purpose, so that
``make quick`` there has a real change. ``python -m tools.quick --typical NAME`` takes the files as changed, unedited.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
ADDED: Final = '''

def typical_change(value: int) -> int:
    """Return the number after ``value``."""
    return value + 1
'''


@dataclass(frozen=True, slots=True)
class TypicalChange:
    """``files`` are edited by a function at their end, which a linter and a type checker accept."""

    files: tuple[str, ...]
    about: str


TYPICAL_CHANGES: Final[Mapping[str, TypicalChange]] = {
    "scheduler-rule": TypicalChange(("scheduler/holds/backfill.py",), "a rule of the planner"),
    "detector": TypicalChange(("health/detectors/load/heat.py",), "a detector of health"),
    "document-field": TypicalChange(("muster/documents/jobs.py", "api/v1/jobs.py"), "a field of an API document"),
    "command-text": TypicalChange(("muster/cli/admin/quotas.py",), "a text of a command"),
    "checkpoint": TypicalChange(("muster/train/checkpoint/config.py",), "a function of checkpoints in training"),
}


def apply(change: TypicalChange, root: Path) -> None:
    """Edit the files of a checkout: each gets a new function with types, which the linter accepts."""
    for name in change.files:
        path = root / name
        path.write_text(path.read_text(encoding="utf-8") + ADDED, encoding="utf-8")


def main() -> int:
    """Edit a clone."""
    parser = argparse.ArgumentParser(prog="python -m tools.typical_changes", description=__doc__)
    parser.add_argument("name", choices=sorted(TYPICAL_CHANGES))
    parser.add_argument("folder", type=Path, help="a clone that may be changed")
    given = parser.parse_args()
    apply(TYPICAL_CHANGES[given.name], given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
