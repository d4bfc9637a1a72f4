"""Chunks of a manifest by their places in files, read and written there."""

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from muster.content.files import read_chunk_at
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, Manifest, digest_of
from muster.plain_files import open_plain

Piece = bytes | memoryview


class Save(Protocol):
    """Keeps a chunk, which has its digest. Several threads may call it, once for each digest."""

    def __call__(self, digest: str, content: bytes, /) -> None: ...

    def in_pieces(self, digest: str, /) -> AbstractContextManager[Callable[[Piece], None]]:
        """Yield a function that takes the chunk as it arrives. It counts at the end, and not where an error leaves."""
        ...


class ChunkPlace(NamedTuple):
    path: Path
    start: int


def places_in(manifest: Manifest, root: Path) -> Iterator[tuple[str, ChunkPlace]]:
    """Yield each chunk with its place, also one that stands in several."""
    for entry in files_of(manifest):
        yield from places_of(entry, root / entry.path)


def places_of(entry: Entry, path: Path) -> Iterator[tuple[str, ChunkPlace]]:
    for number, digest in enumerate(entry.parts):
        yield digest, ChunkPlace(path, number * CHUNK_BYTES)


def files_of(manifest: Manifest) -> Iterator[Entry]:
    return (entry for entry in manifest.entries if entry.kind <= Kind.PROGRAM)


def read_right(place: ChunkPlace, digest: str) -> bytes | None:
    """Return the chunk, if it stands there with the right bytes."""
    with contextlib.suppress(OSError):
        descriptor = open_plain(place.path)
        try:
            content = read_chunk_at(descriptor, place.start)
        finally:
            os.close(descriptor)
        if digest_of(content) == digest:
            return content
    return None


def wrong_chunks(entry: Entry, path: Path) -> set[int]:
    """Return the numbers of the chunks that a file lacks or has wrong. Holes are not read: they are zeros."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return set(range(len(entry.parts)))
    try:
        return {
            number
            for number, digest in enumerate(entry.parts)
            if _digest_at(descriptor, number * CHUNK_BYTES, entry.num_bytes) != digest
        }
    finally:
        os.close(descriptor)


def lacking_in_new(entry: Entry) -> set[int]:
    """Return the numbers of the chunks that a file of the right size lacks, if nothing was written to it.

    Whole chunks of zeros are there. The last one of a file is not compared: in most folders it is all of a file.
    """
    zeros = _digest_of_zeros(CHUNK_BYTES) if entry.num_bytes >= CHUNK_BYTES else ""
    return {number for number, digest in enumerate(entry.parts) if digest != zeros}


def _digest_at(descriptor: int, start: int, file_bytes: int) -> str:
    num_bytes = min(CHUNK_BYTES, file_bytes - start)
    if _is_hole(descriptor, start, num_bytes):
        return _digest_of_zeros(num_bytes)
    return digest_of(read_chunk_at(descriptor, start))


def _is_hole(descriptor: int, start: int, num_bytes: int) -> bool:
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) >= start + num_bytes
    except OSError as fault:
        return fault.errno == errno.ENXIO  # no data up to the end


@functools.lru_cache(maxsize=8)
def _digest_of_zeros(num_bytes: int) -> str:
    return digest_of(bytes(num_bytes))


def write_at(place: ChunkPlace, content: bytes) -> None:
    with writing_at(place) as write:
        write(content)


@contextlib.contextmanager
def writing_at(place: ChunkPlace) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that writes pieces one after the other, from the place on."""
    descriptor, at = os.open(place.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), place.start

    def write(piece: Piece) -> None:
        nonlocal at
        rest = memoryview(piece)
        while rest:
            num_written = os.pwrite(descriptor, rest, at)
            rest, at = rest[num_written:], at + num_written

    try:
        yield write
    finally:
        os.close(descriptor)
