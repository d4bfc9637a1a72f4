"""Opening of files in a folder that others write, such as a tenant's, and of files that others must not read."""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

_MOST_PRIVATE_BYTES: Final = 1 << 20


def open_plain(path: Path) -> int:
    """Open a file to read; not a link, and without waiting for the other end of a pipe. Return its descriptor.

    Whether it is a regular file is left to ``fstat``. ``muster.train`` and ``workers.host.supervisor`` keep their own:
    they may import nothing else of Muster.

    Raises:
        OSError: it cannot be opened, or it is a link.
    """
    if sys.platform == "win32":
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(path))
        return os.open(path, os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


class UnfitFileError(Exception):
    """A private file cannot be used. The text continues a sentence that names the file, and has nothing of its own."""


def read_private(path: Path) -> str:
    """Return the text of a file of keys: of a plain file that its owner alone can read. Raises ``UnfitFileError``."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UnfitFileError("is no plain file")
            if stat.S_IMODE(mode) & 0o077:
                raise UnfitFileError(f"has the mode {stat.S_IMODE(mode):04o}: set it to 0600 or 0400")
            return file.read(_MOST_PRIVATE_BYTES).decode()
    except OSError as fault:
        raise UnfitFileError(f"cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError:
        raise UnfitFileError("cannot be read: it is no text in UTF-8") from None


def state_of(path: Path) -> tuple[int, ...]:
    """Return numbers that differ once a file is replaced, written or given another mode; none where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # on the path of each request; a Path costs more
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
