"""The lock that shows "a supervisor of this attempt lives", held from before its first write until its end.

It is an open-file-description lock rather than flock, because that can be *queried* without being taken. So a launcher
that checks it at the moment when a supervisor starts can never make that supervisor find it taken.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_LAYOUT = "hhqqi4x"


def _whole_file(kind: int) -> bytes:
    return struct.pack(_LAYOUT, kind, os.SEEK_SET, 0, 0, 0)


def take_lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock while it is open, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_LAYOUT, answer)[0] != fcntl.F_UNLCK)
