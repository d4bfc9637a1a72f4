"""Read-only file systems, by the kernel's table of mounts, which needs no disk and no file server."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agents.host.files import read_text

_TABLE_BYTES: Final = 4 << 20
_ESCAPED: Final = re.compile(r"\\([0-7]{3})", re.ASCII)
_PLACE: Final = 4
"""Field of a line where it is mounted; after a lone dash come type, source and the file system's own options."""


def read_only(folders: Iterable[Path], proc: Path) -> dict[str, float]:
    """Return how many of the folders are on a file system that is itself read-only, such as after an error.

    By the name of ``HOST_STATE``. A mount that is read-only for this process alone (systemd's ProtectSystem) does not
    count: the file system is writable.
    """
    mounts = _mounts(read_text(proc / "self" / "mountinfo", _TABLE_BYTES) or "")
    if not mounts:
        return {}
    return {"read_only_disks": float(sum(_is_read_only(folder, mounts) for folder in folders))}


def _is_read_only(folder: Path, mounts: list[tuple[Path, bool]]) -> bool:
    """Return whether the folder's deepest mount is read-only; of several mounts on one place the last counts."""
    holding = [(len(place.parts), is_read_only) for place, is_read_only in mounts if folder.is_relative_to(place)]
    deepest = max((depth for depth, _ in holding), default=0)
    found = [is_read_only for depth, is_read_only in holding if depth == deepest]
    return bool(found) and found[-1]


def _mounts(text: str) -> list[tuple[Path, bool]]:
    found: list[tuple[Path, bool]] = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, own = head.split(" "), tail.split(" ")
        if len(fields) > _PLACE and len(own) == 3:
            place = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[_PLACE])
            found.append((Path(place), "ro" in own[2].split(",")))
    return found
