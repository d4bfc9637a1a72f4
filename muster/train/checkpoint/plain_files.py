"""Reading of stored files: a regular file of an expected size, or none of its bytes.

A checkpoint folder belongs to a program that may be damaged or hostile. A pipe would wait without end, a device or a
sparse file would fill the memory, and a link would lead elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class NoPlainFileError(OSError):
    """There is something at the path, and it is no regular file."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file to read, without following a link as its last part and without waiting for a pipe.

    Raises:
        NoPlainFileError: it is a link, a folder, a pipe, a socket or a device.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as fault:
        if fault.errno in {errno.ELOOP, errno.ENXIO}:
            raise _no_plain(path) from fault
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _no_plain(path)
        yield file


def size_of(path: Path) -> int:
    """Return a regular file's size. Raises as ``opened``."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise _no_plain(path)
    return found.st_size


def content(path: Path, most_bytes: int) -> bytes:
    """Return a small file's content. Raises as ``opened``; also an OSError where it is larger than ``most_bytes``."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it holds {size} bytes, more than {most_bytes}", str(path))
        return read(file, size)


def read(file: IO[bytes], size: int) -> bytes:
    """Read up to ``size`` bytes, and one more if the file has grown meanwhile, so that the caller notices."""
    pieces, left = [], size + 1
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _no_plain(path: Path) -> NoPlainFileError:
    return NoPlainFileError(errno.EINVAL, "it is no regular file", str(path))
