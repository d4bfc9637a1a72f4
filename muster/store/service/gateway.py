"""Files of folders as a whole: the chunks of one file, joined for a signed address, with ranges.

A browser, or any program that reads HTTP, gets a file of a job's outputs by one request. The manifest names the file's
chunks, and is an object like any other: so this works in front of any store that has these objects.
"""

import hashlib
import json
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Final, NamedTuple, Protocol

from muster.domain.ids import TenantId
from muster.store.faults import ObjectGoneError, StoreError
from muster.store.keys import chunk_key, manifest_key
from muster.store.objects import FILE, ObjectStore
from muster.store.service.disk import ObjectFolder
from muster.store.service.faults import S3Error
from muster.store.service.head import Head
from muster.store.service.stream import Stream
from muster.store.service.whole_files import Piece, WholeFile, serve_file

CHUNK_BYTES: Final = 4 << 20
"""Bytes of each chunk of a file but the last, as ``muster.content`` cuts it."""
MAX_MANIFEST_BYTES: Final = 32 << 20
"""A longer manifest would take too much of this process's memory; `muster job get` reads it on the client's machine."""
_KEPT_BYTES: Final = 4 << 20
_MOST_KEPT: Final = 8
_LAST_KIND_OF_FILES: Final = 1


class _Entry(NamedTuple):
    """One path of a manifest."""

    path: str
    kind: int
    num_bytes: int
    parts: Sequence[str]


class Slice(NamedTuple):
    """Bytes of one chunk."""

    digest: str
    start: int
    num_bytes: int


class Chunks(Protocol):
    """Where objects are. Both may raise S3Error."""

    def manifest(self, key: str) -> bytes:
        """Return a manifest of at most ``MAX_MANIFEST_BYTES``."""

    def opened(self, key: str, one: Slice) -> "FileIO | memoryview":
        """Return a chunk's file, or the slice's bytes."""


class FolderChunks:
    """Objects of our own folder."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder

    def manifest(self, key: str) -> bytes:
        with self._open(key) as file:
            content = file.read(MAX_MANIFEST_BYTES + 1) or b""
            while piece := file.read(MAX_MANIFEST_BYTES + 1 - len(content)):
                content += piece
        return _required(content)

    def opened(self, key: str, one: Slice) -> FileIO | memoryview:
        del one
        return self._open(key)

    def _open(self, key: str) -> FileIO:
        found = self._folder.open(key)
        if found is None:
            raise _missing(key)
        return FileIO(found[0], "rb")


class StoreChunks:
    """Objects of another S3-compatible store. Each chunk is checked by its digest."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def manifest(self, key: str) -> bytes:
        return _required(self._read(key, MAX_MANIFEST_BYTES + 1))

    def opened(self, key: str, one: Slice) -> FileIO | memoryview:
        content = self._read(key, CHUNK_BYTES)
        if hashlib.sha256(content).hexdigest() != one.digest:
            raise S3Error("InvalidObjectState", "the content store has other bytes than the digest says")
        return memoryview(content)[one.start : one.start + one.num_bytes]

    def _read(self, key: str, most_bytes: int) -> bytes:
        try:
            return self._store.read(key, most_bytes)
        except ObjectGoneError:
            raise _missing(key) from None
        except StoreError as error:
            raise S3Error("SlowDown", error.detail) from error


class Gateway:
    """Answers files of folders. Threads share it. ``working``: so many threads at a time read manifests."""

    def __init__(self, chunks: Chunks, working: threading.Semaphore) -> None:
        self._chunks, self._working = chunks, working
        self._guard = threading.Lock()
        self._kept: OrderedDict[str, Sequence[_Entry]] = OrderedDict()

    def serve(self, head: Head, stream: Stream, tenant_id: TenantId, manifest: str, query: dict[str, str]) -> None:
        """Answer a verified GET or HEAD. Raises S3Error."""
        entry = self._entry(tenant_id, manifest, query.get(FILE, ""))
        etag = hashlib.sha256("".join(entry.parts).encode()).hexdigest()[:32]

        def pieces(start: int, num_bytes: int) -> Iterator[Piece]:
            for one in slices(entry.parts, start, num_bytes):
                content = self._chunks.opened(chunk_key(tenant_id, one.digest), one)
                yield Piece(content, one.start, one.num_bytes)

        serve_file(head, stream, query, WholeFile(entry.num_bytes, etag, pieces))

    def _entry(self, tenant_id: TenantId, manifest: str, path: str) -> _Entry:
        key = manifest_key(tenant_id, manifest)
        with self._guard:
            entries = self._kept.get(key)
            if entries is not None:
                self._kept.move_to_end(key)
        if entries is None:
            entries = self._read(key)
        at = bisect_left(entries, path, key=lambda one: one.path)
        if at == len(entries) or entries[at].path != path or entries[at].kind > _LAST_KIND_OF_FILES:
            raise S3Error("NoSuchKey", "the folder has no such file")
        return entries[at]

    def _read(self, key: str) -> Sequence[_Entry]:
        with self._working:
            content = self._chunks.manifest(key)
            entries = _entries_in(content)
        if len(content) <= _KEPT_BYTES:
            with self._guard:
                self._kept[key] = entries
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return entries


def _entries_in(manifest: bytes) -> Sequence[_Entry]:
    """Return the paths, which the control plane has checked before the manifest was uploaded."""
    try:
        _, entries = json.loads(manifest)
        return [_Entry(*entry) for entry in entries]
    except (ValueError, TypeError):
        raise S3Error("InvalidObjectState", "the folder's manifest cannot be read") from None


def slices(parts: Sequence[str], start: int, num_bytes: int) -> Iterator[Slice]:
    """Yield the slices of chunks that make these bytes of a file."""
    while num_bytes:
        number, within = divmod(start, CHUNK_BYTES)
        length = min(num_bytes, CHUNK_BYTES - within)
        yield Slice(parts[number], within, length)
        start, num_bytes = start + length, num_bytes - length


def _required(manifest: bytes) -> bytes:
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise S3Error("NotImplemented", "the folder has too many files for this address: use `muster job get`")
    return manifest


def _missing(key: str) -> S3Error:
    return S3Error("NoSuchKey", f"the store lacks {key.rpartition('/')[2][:12]}, which the file needs")
