"""The answer of one file as a whole or by a range: its pieces come from chunks of the store, or from a checkpoint."""

from collections.abc import Callable, Iterator
from io import FileIO
from typing import NamedTuple

from muster.store.service.faults import S3Error
from muster.store.service.head import Head
from muster.store.service.ranges import range_of
from muster.store.service.replies import SAFE_HEADERS, head_bytes, plain
from muster.store.service.stream import BrokenError, Stream


class Piece(NamedTuple):
    """Bytes of an answer: so many of an open file from ``start`` on, or all of a view."""

    content: FileIO | memoryview
    start: int
    num_bytes: int


class WholeFile(NamedTuple):
    """A file that is answered. ``pieces``: yields the bytes of a range, given its start and length; may raise S3Error.

    ``etag``: another one for other bytes.
    """

    num_bytes: int
    etag: str
    pieces: Callable[[int, int], Iterator[Piece]]


def serve_file(head: Head, stream: Stream, query: dict[str, str], file: WholeFile) -> None:
    """Answer a verified GET or HEAD. Raises S3Error: nothing was sent. BrokenError: the rest is missing."""
    etag = f'"{file.etag}"'
    is_same = head.headers.get("if-range", etag) == etag
    part = range_of(head.headers.get("range") if is_same else None, file.num_bytes)
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
        "Content-Disposition": plain(query, "response-content-disposition", "attachment"),
        "Cache-Control": "private, no-store",
        **SAFE_HEADERS,
    }
    if part.is_partial:
        headers["Content-Range"] = f"bytes {part.start}-{part.start + part.num_bytes - 1}/{file.num_bytes}"
    answer = head_bytes(206 if part.is_partial else 200, part.num_bytes, headers)
    if head.method == "HEAD":
        stream.send(answer)
        return
    is_begun = False
    try:
        for piece in file.pieces(part.start, part.num_bytes):
            if not is_begun:
                stream.send(answer)
                is_begun = True
            _send(stream, piece)
    except S3Error as error:
        if not is_begun:
            raise
        # A short answer is what a client notices; another status cannot be sent any more.
        raise BrokenError(f"a file ends early: {error.message}") from error
    if not is_begun:
        stream.send(answer)


def _send(stream: Stream, piece: Piece) -> None:
    if isinstance(piece.content, memoryview):
        if len(piece.content) != piece.num_bytes:
            raise BrokenError("a chunk is shorter than its file says")
        stream.send_bytes(piece.content)
        return
    with piece.content:
        stream.send_file(piece.content, piece.start, piece.num_bytes)
