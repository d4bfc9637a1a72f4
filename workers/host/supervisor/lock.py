"""The lock that says "a supervisor of this attempt lives", held from before its first write until its end.

An open-file-description lock rather than flock: it can be *asked about* without being taken, so a launcher that looks
at the very moment a supervisor starts can never make that supervisor believe that another one holds it.
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
    """The descriptor that holds the lock while it is open, or None where another process holds it."""
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
