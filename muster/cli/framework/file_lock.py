"""Locks on files, which end with their process: by ``fcntl``, and on Windows by ``msvcrt``."""

import errno
from typing import IO, Any, Final

_FAR: Final = 1 << 30
"""The byte that is locked on Windows, far behind the content: a locked byte cannot be read there."""


def lock(file: IO[str], *, waits: bool = False) -> None:
    """Lock an open file for this process alone, until the file is closed. ``waits``: until another process releases it.

    Raises:
        OSError: another process holds the lock, or this system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        _lock_on_windows(file, waits=waits)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def _lock_on_windows(file: IO[str], *, waits: bool) -> None:
    try:
        import msvcrt
    except ImportError:
        raise OSError(errno.ENOLCK, "this system has no locks on files") from None
    system: Any = msvcrt  # its functions are known to the checker on Windows alone
    at = file.tell()
    file.seek(_FAR)
    try:
        system.locking(file.fileno(), system.LK_LOCK if waits else system.LK_NBLCK, 1)
    finally:
        file.seek(at)
