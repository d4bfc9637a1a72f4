"""Opening of files in a folder that others write, such as a tenant's."""

import errno
import os
import sys
from pathlib import Path


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
