"""Secrets that the launcher received for one attempt, in memory until the supervisor gives them to the program.

A folder of /dev/shm, 0700 and our own, next to the one that the program gets. Its name follows from the attempt's
folder, so that a reaper finds it too. Without its last file, the mark, it is not whole, and counts for nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import zlib
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "muster-sealed-"
MEMORY = Path("/dev/shm")  # noqa: S108  # the kernel's name for it
_FOLDER = ".folder"
"""Written first; its content is the path of the attempt's folder. The job does not see this place."""
_WHOLE = ".whole"
"""Written last; its content is the reason why there are no secrets, or empty. No secret's name begins with a dot."""


def place_in_memory(prefix: str, folder: Path) -> Path:
    """Return a place of the attempt in ``folder``, which a reaper finds by the same words."""
    return MEMORY / f"{prefix}{os.getuid()}-{zlib.crc32(str(folder.resolve()).encode()):08x}"


def place_of(folder: Path) -> Path:
    """Return the place of an attempt's received secrets."""
    return place_in_memory(PREFIX, folder)


def write_new(path: Path, value: bytes) -> None:
    """Write a value, 0400, where no file is yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(value)


def is_whole(folder: Path) -> bool:
    """Return whether the launcher has laid them, or the reason why there are none."""
    return (place_of(folder) / _WHOLE).exists()


def lay(folder: Path, values: Mapping[str, bytes], fault: str = "") -> None:
    """Write them for the supervisor, in place of files of an earlier try. Raises OSError."""
    place = place_of(folder)
    remove(folder)
    place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{place} belongs to user {found.st_uid}")
    attempt = (_FOLDER, os.fsencode(folder.resolve()))
    for name, value in (attempt, *values.items(), (_WHOLE, fault.encode("utf-8", "replace"))):
        write_new(place / name, value)


def belongs_to_attempt(place: Path) -> bool:
    """Return whether the attempt of these secrets still has its folder: it may start, or its record is redacted."""
    try:
        folder = (place / _FOLDER).read_bytes()
    except OSError:
        return False
    return Path(os.fsdecode(folder)).is_dir()


def value_of(folder: Path, name: str) -> bytes | None:
    """Return a value, or None if the server had none of that name. Raises OSError: none have been received."""
    place = place_of(folder)
    fault = (place / _WHOLE).read_text(encoding="utf-8")
    if fault:
        raise OSError(fault)
    try:
        return (place / name).read_bytes()
    except FileNotFoundError:
        return None


def remove(folder: Path) -> bool:
    """Remove them and return whether none is left."""
    place = place_of(folder)
    shutil.rmtree(place, ignore_errors=True)
    return not place.exists()
