"""Reading of a file by chunks."""

import os

from muster.content.manifest import CHUNK_BYTES


def read_chunk_at(file: int, start: int) -> bytes:
    """Return a whole chunk from ``start``: a network's file system may return less than was requested."""
    content = os.pread(file, CHUNK_BYTES, start)
    while 0 < len(content) < CHUNK_BYTES and (more := os.pread(file, CHUNK_BYTES - len(content), start + len(content))):
        content += more
    return content
