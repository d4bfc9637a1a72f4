"""Files of checkpoints in folders that hosts share with this process: one by one, or all as one archive, with ranges.

The folder in an address is the tenant's own words, and the program that filled it is the tenant's. So no link is
followed below the operator's folders, only files of the manifest are read, with its owner, and the manifest must have
the digest that the job reported: an address leads to no other bytes, whatever rights this process has.
"""

import hashlib
import json
import os
import re
import stat
import sys
import tarfile
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from muster.store.objects import FILE, FOLDER
from muster.store.service.faults import S3Error
from muster.store.service.head import Head
from muster.store.service.stream import Stream
from muster.store.service.whole_files import Piece, WholeFile, serve_file

MANIFEST: Final = "MANIFEST.json"
MAX_MANIFEST_BYTES: Final = 16 << 20
MAX_FILES: Final = 1 << 16
"""Also of ranks: each has one file."""
_MAX_VALUES: Final = 1 << 19
"""In a manifest. Programs of tenants write it, and this process has little memory for what a parser makes of it."""
_AT_ONCE: Final = 2
"""So many manifests are read at a time, for their memory."""
_WAIT_S: Final = 10.0
"""So long a request waits for its turn. Where a file system hangs, requests are refused after it, not kept."""
_RANK: Final = re.compile(r"rank-([0-9]{5,9})\.pt")
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_PARTS_IN_ARCHIVE: Final = 2
"""The generation's name: ``step-N/gen-F``."""


class _Member(NamedTuple):
    """A file of a checkpoint."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Generation:
    """A checkpoint that was found. ``owner``: of its manifest. ``sizes``: of each rank's file."""

    root: Path
    parts: tuple[str, ...]
    owner: int
    sizes: "array[int]"
    manifest_bytes: int

    def members(self) -> Iterator[_Member]:
        """Yield its files. The manifest is last: without it nothing uses the rest."""
        for rank, num_bytes in enumerate(self.sizes):
            yield _Member(_name_of(rank), num_bytes)
        yield _Member(MANIFEST, self.manifest_bytes)

    def member(self, name: str) -> _Member:
        """Raise S3Error unless it has a file of this name."""
        if name == MANIFEST:
            return _Member(MANIFEST, self.manifest_bytes)
        found = _RANK.fullmatch(name)
        if found is None or (rank := int(found[1])) >= len(self.sizes) or name != _name_of(rank):
            raise S3Error("NoSuchKey", "the checkpoint has no such file")
        return _Member(name, self.sizes[rank])


class CheckpointFolders:
    """Checkpoints below ``roots``. Threads share it."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots, self._reading = tuple(roots), threading.Semaphore(_AT_ONCE)

    def serve(self, head: Head, stream: Stream, manifest: str, query: dict[str, str]) -> None:
        """Answer a verified GET or HEAD for a checkpoint with this manifest's digest. Raises S3Error."""
        name = query.get(FILE)
        with self._turn():
            found = self._found(manifest, query.get(FOLDER, ""))
        one = None if name is None else found.member(name)
        etag = hashlib.sha256(f"{manifest} {name or ''}".encode()).hexdigest()[:32]

        def pieces(start: int, num_bytes: int) -> Iterator[Piece]:
            return _pieces(_archive(found) if one is None else [_file(found, one)], start, num_bytes)

        serve_file(
            head, stream, query, WholeFile(_archive_bytes(found) if one is None else one.num_bytes, etag, pieces)
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Raise S3Error: others' checkpoints are still being found."""
        if not self._reading.acquire(timeout=_WAIT_S):  # uploads have turns of their own, and do not wait here
            raise S3Error("SlowDown", "the folders of checkpoints do not answer in time")
        try:
            yield
        finally:
            self._reading.release()

    def _found(self, manifest: str, folder: str) -> _Generation:
        """Return the checkpoint. Raises S3Error."""
        for root, parts in self._places(folder):
            try:
                with _opened(root, parts, MANIFEST) as file:
                    owner, content = os.fstat(file.fileno()).st_uid, _content(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _unreadable(error) from error
            if hashlib.sha256(content).hexdigest() != manifest:
                words = "the checkpoint's manifest is not the one that the job reported: it was replaced or damaged"
                raise S3Error("NoSuchKey", words)
            return _Generation(root, parts, owner, _sizes_in(content), len(content))
        words = "no folder that this process reads has the checkpoint (MUSTER_STORE_CHECKPOINT_DIRS): it was removed"
        raise S3Error("NoSuchKey", f"{words}, or is on its host alone")

    def _places(self, folder: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Yield where the folder may be: a root, and names below it."""
        named = PurePosixPath(folder)
        for root in self._roots:
            if named.is_absolute() and not named.is_relative_to(root):
                continue
            parts = named.relative_to(root).parts if named.is_absolute() else named.parts
            if len(parts) > _PARTS_IN_ARCHIVE and ".." not in parts:
                yield root, parts


class _Segment(NamedTuple):
    """A part of an answer. ``piece``: returns so many bytes of it from a start on; may raise S3Error."""

    num_bytes: int
    piece: Callable[[int, int], Piece]


def _archive(found: _Generation) -> Iterator[_Segment]:
    """Yield a tar of the checkpoint, below its own name; ``_archive_bytes`` has its size."""
    for one in found.members():
        yield _Segment(tarfile.BLOCKSIZE, partial(_header, found, one))
        yield _file(found, one)
        yield _Segment(-one.num_bytes % tarfile.BLOCKSIZE, _zeros)
    yield _Segment(2 * tarfile.BLOCKSIZE, _zeros)


def _archive_bytes(found: _Generation) -> int:
    size = tarfile.BLOCKSIZE
    return sum(size + one.num_bytes + -one.num_bytes % size for one in found.members()) + 2 * size


def _pieces(segments: Iterable[_Segment], start: int, num_bytes: int) -> Iterator[Piece]:
    """Yield so many bytes from ``start`` on. Raises S3Error: a file is not as the manifest has it."""
    for one in segments:
        if num_bytes == 0:
            return
        length = min(num_bytes, one.num_bytes - start)
        if length <= 0:
            start -= one.num_bytes
            continue
        yield one.piece(start, length)
        start, num_bytes = 0, num_bytes - length


def _zeros(_start: int, length: int) -> Piece:
    return Piece(memoryview(bytes(length)), 0, length)


def _header(found: _Generation, one: _Member, start: int, length: int) -> Piece:
    """Return bytes of a file's header in the archive, which is one block: its name is short."""
    about = tarfile.TarInfo("/".join((*found.parts[-_PARTS_IN_ARCHIVE:], one.name)))
    about.size, about.mode = one.num_bytes, 0o644
    return Piece(memoryview(about.tobuf(tarfile.GNU_FORMAT))[start : start + length], 0, length)


def _file(found: _Generation, one: _Member) -> _Segment:
    return _Segment(one.num_bytes, partial(_file_piece, found, one))


def _file_piece(found: _Generation, one: _Member, start: int, length: int) -> Piece:
    try:
        file = _opened(found.root, found.parts, one.name)
    except OSError as error:
        raise _unreadable(error) from error
    status = os.fstat(file.fileno())
    if status.st_size != one.num_bytes or status.st_uid != found.owner:
        file.close()
        raise S3Error("NoSuchKey", f"{one.name} is not as the checkpoint's manifest has it")
    return Piece(file, start, length)


def _opened(root: Path, parts: Sequence[str], name: str) -> FileIO:
    """Open a regular file, without a link on the way below the root. Raises OSError."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        file = FileIO(os.open(name, _FILE_FLAGS, dir_fd=descriptor), "rb")
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{name} is no regular file")
    return file


def _content(file: FileIO) -> bytes:
    if os.fstat(file.fileno()).st_size > MAX_MANIFEST_BYTES:
        raise S3Error("NotImplemented", "the checkpoint's manifest is too large for this address")
    content = b""
    while piece := file.read(MAX_MANIFEST_BYTES + 1 - len(content)):
        content += piece
    return content


def _sizes_in(manifest: bytes) -> "array[int]":
    """Return the size of each rank's file. Raises S3Error: our runtime writes no such manifest."""
    if sum(manifest.count(each) for each in (b",", b"[", b"{")) > _MAX_VALUES:
        raise S3Error("NotImplemented", "the checkpoint's manifest has too many values for this address")
    try:
        files = json.loads(manifest)["files"]
        sizes = array("Q", [each["size"] for each in files])
        is_ours = all(each["name"] == _name_of(rank) for rank, each in enumerate(files))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise S3Error("InvalidObjectState", "the checkpoint's manifest cannot be read") from None
    if not is_ours or any(size > sys.maxsize for size in sizes):
        raise S3Error("InvalidObjectState", "the checkpoint's manifest names what is no file of it")
    if len(sizes) > MAX_FILES:
        raise S3Error("NotImplemented", "the checkpoint has too many files for this address")
    return sizes


def _name_of(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def _unreadable(error: OSError) -> S3Error:
    if isinstance(error, FileNotFoundError):
        return S3Error("NoSuchKey", "a file of the checkpoint was removed meanwhile")
    words = f"the checkpoint cannot be read by this process: {error.strerror or error}"
    return S3Error("AccessDenied", f"{words}. The operator lets it read the folder, without links below it")
