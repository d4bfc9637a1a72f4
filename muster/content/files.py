"""Opening and reading of one file, safely in a folder that others write."""

import os
from pathlib import Path

from muster.content.manifest import CHUNK_BYTES


def open_plain(path: Path) -> int:
    """Open a file; not a link, and without waiting for the other end of a pipe that has taken its place."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def read_chunk_at(file: int, start: int) -> bytes:
    """Return a whole chunk from ``start``: a network's file system may return less than was requested."""
    content = os.pread(file, CHUNK_BYTES, start)
    while 0 < len(content) < CHUNK_BYTES and (more := os.pread(file, CHUNK_BYTES - len(content), start + len(content))):
        content += more
    return content
