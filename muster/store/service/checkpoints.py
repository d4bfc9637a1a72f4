"""Files of checkpoints in folders that hosts share with this process: one by one, or all as one archive, with ranges.

The folder in an address is the tenant's own words, and the program that filled it is the tenant's. So no link is
followed below the operator's folders, only files of the manifest are read, with its owner, and the manifest must have
the digest that the job reported: an address leads to no other bytes, whatever rights this process has.
"""

import hashlib
import json
import os
import stat
import tarfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from muster.store.objects import FILE, FOLDER
from muster.store.service.faults import S3Error
from muster.store.service.head import Head
from muster.store.service.stream import Stream
from muster.store.service.whole_files import Piece, WholeFile, serve_file

MANIFEST: Final = "MANIFEST.json"
MAX_MANIFEST_BYTES: Final = 32 << 20
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
    """A checkpoint that was found. ``owner``: of its manifest. ``members``: its files, and the manifest as the last."""

    root: Path
    parts: tuple[str, ...]
    manifest: bytes
    owner: int
    members: tuple[_Member, ...]

    def member(self, name: str) -> _Member:
        found = next((one for one in self.members if one.name == name), None)
        if found is None:
            raise S3Error("NoSuchKey", "the checkpoint has no such file")
        return found


class CheckpointFolders:
    """Checkpoints below ``roots``. Threads share it. ``working``: so many of them at a time read manifests."""

    def __init__(self, roots: Sequence[Path], working: threading.Semaphore) -> None:
        self._roots, self._working = tuple(roots), working

    def serve(self, head: Head, stream: Stream, manifest: str, query: dict[str, str]) -> None:
        """Answer a verified GET or HEAD for a checkpoint with this manifest's digest. Raises S3Error."""
        with self._working:
            found = self._found(manifest, query.get(FOLDER, ""))
        name = query.get(FILE)
        wanted = found.members if name is None else (found.member(name),)
        segments = _archive(found, wanted) if name is None else [_Segment(wanted[0].num_bytes, wanted[0], b"")]
        etag = hashlib.sha256(f"{manifest} {name or ''}".encode()).hexdigest()[:32]

        def pieces(start: int, num_bytes: int) -> Iterator[Piece]:
            return _pieces(found, segments, start, num_bytes)

        serve_file(head, stream, query, WholeFile(sum(each.num_bytes for each in segments), etag, pieces))

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
            members = (*_members_in(content), _Member(MANIFEST, len(content)))
            return _Generation(root, parts, content, owner, members)
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
    """A part of an answer: a member's bytes, or ``plain``."""

    num_bytes: int
    member: _Member | None
    plain: bytes


def _archive(found: _Generation, members: Sequence[_Member]) -> list[_Segment]:
    """Return a tar of the checkpoint, below its own name. The manifest is last: without it nothing uses the rest."""
    segments: list[_Segment] = []
    for one in members:
        about = tarfile.TarInfo("/".join((*found.parts[-_PARTS_IN_ARCHIVE:], one.name)))
        about.size, about.mode = one.num_bytes, 0o644
        header = about.tobuf(tarfile.GNU_FORMAT)
        segments += [_Segment(len(header), None, header), _Segment(one.num_bytes, one, b"")]
        padding = bytes(-one.num_bytes % tarfile.BLOCKSIZE)
        segments.append(_Segment(len(padding), None, padding))
    end = bytes(2 * tarfile.BLOCKSIZE)
    return [*segments, _Segment(len(end), None, end)]


def _pieces(found: _Generation, segments: Sequence[_Segment], start: int, num_bytes: int) -> Iterator[Piece]:
    """Yield so many bytes from ``start`` on. Raises S3Error: a file is not as the manifest has it."""
    for one in segments:
        if num_bytes == 0:
            return
        length = min(num_bytes, one.num_bytes - start)
        if length <= 0:
            start -= one.num_bytes
            continue
        yield _piece(found, one, start, length)
        start, num_bytes = 0, num_bytes - length


def _piece(found: _Generation, segment: _Segment, start: int, length: int) -> Piece:
    if segment.member is None or segment.member.name == MANIFEST:
        plain = segment.plain if segment.member is None else found.manifest
        return Piece(memoryview(plain)[start : start + length], 0, length)
    try:
        file = _opened(found.root, found.parts, segment.member.name)
    except OSError as error:
        raise _unreadable(error) from error
    status = os.fstat(file.fileno())
    if status.st_size != segment.member.num_bytes or status.st_uid != found.owner:
        file.close()
        raise S3Error("NoSuchKey", f"{segment.member.name} is not as the checkpoint's manifest has it")
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


def _members_in(manifest: bytes) -> list[_Member]:
    try:
        found = [_Member(str(each["name"]), int(each["size"])) for each in json.loads(manifest)["files"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise S3Error("InternalError", "the checkpoint's manifest cannot be read") from None
    if any("/" in one.name or one.name in {"", ".", "..", MANIFEST} or one.num_bytes < 0 for one in found):
        raise S3Error("InternalError", "the checkpoint's manifest names what is no file of it")
    return found


def _unreadable(error: OSError) -> S3Error:
    if isinstance(error, FileNotFoundError):
        return S3Error("NoSuchKey", "a file of the checkpoint was removed meanwhile")
    words = f"the checkpoint cannot be read by this process: {error.strerror or error}"
    return S3Error("AccessDenied", f"{words}. The operator lets it read the folder, without links below it")
