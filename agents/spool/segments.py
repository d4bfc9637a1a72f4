"""The spool's files: segments of one priority each, to which records are only appended.

Next to a segment is its ``.done`` file: the offsets of records that are delivered or dropped. It is never flushed: a
record whose offset was lost is sent again, and the server takes each (boot_id, seq) once. A segment is deleted when it
has no live record.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agents.spool.records import PRIORITIES, Damage, Found, Priority, Record, decode, encode, scan
from muster.durable import sync_folder

_SUFFIX: Final = ".seg"
_DONE_SUFFIX: Final = ".done"
_DRAFT_SUFFIX: Final = ".draft"
_DONE: Final = struct.Struct("<II")
"""Offset, and its CRC-32: a torn entry is none."""


class Segment:
    """One file. ``size`` counts the bytes of whole records; ``num_live`` the records that still wait."""

    def __init__(self, folder: Path, number: int, priority: Priority) -> None:
        self.number = number
        self.priority = priority
        self.path = folder / f"{number:010d}.{priority}{_SUFFIX}"
        self.size = 0
        self.num_live = 0
        self.is_thin = False
        self.is_dirty = False
        self._descriptor: int | None = None
        self._done: int | None = None

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def create(self) -> None:
        """Create the file. Raises OSError: no folder, no space, no right."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sync_folder(self.path.parent)

    def append(self, record: Record) -> tuple[int, int]:
        """Append a record, and return offset and length. Raises OSError, and then the file takes no more."""
        if self._descriptor is None:
            raise OSError(f"{self.path} is closed")
        frame = encode(record)
        try:
            _write_whole(self._descriptor, frame)
        except OSError:
            self._cut()
            raise
        offset, self.size = self.size, self.size + len(frame)
        self.num_live += 1
        self.is_dirty = True
        return offset, len(frame)

    def _cut(self) -> None:
        """Cut the torn end off and close: the next segment may find space where this one found none."""
        try:
            if self._descriptor is not None:
                os.ftruncate(self._descriptor, self.size)
        except OSError:
            pass
        finally:
            self.close()

    def sync(self) -> None:
        """Flush, so that appended records survive a loss of power. Raises OSError."""
        if self.is_dirty and self._descriptor is not None:
            os.fdatasync(self._descriptor)
        self.is_dirty = False

    def read(self, offset: int, length: int) -> Record | None:
        """Return the record, None: damaged, or deleted."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return decode(file.read(length))
        except OSError:
            return None

    def mark_done(self, offset: int) -> None:
        """Mark a record as delivered or dropped.

        A lost mark means that it is sent again after a restart, without effect.
        """
        packed = struct.pack("<I", offset)
        try:
            if self._done is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._done = os.open(self.path.with_suffix(_DONE_SUFFIX), flags, 0o600)
            os.write(self._done, _DONE.pack(offset, zlib.crc32(packed)))
        except OSError:
            return

    def load(self) -> Iterator[Found | Damage]:
        """Yield the live records of the file, and damage that was not counted before. Raises OSError."""
        content = self.path.read_bytes()
        self.size = len(content)
        done = self._read_done()
        for item in scan(content):
            if item.offset not in done:
                yield item

    def _read_done(self) -> set[int]:
        try:
            content = self.path.with_suffix(_DONE_SUFFIX).read_bytes()
        except OSError:
            return set()
        whole = len(content) - len(content) % _DONE.size
        return {
            offset for offset, crc in _DONE.iter_unpack(content[:whole]) if crc == zlib.crc32(struct.pack("<I", offset))
        }

    def rewrite(self, records: list[Record]) -> list[tuple[int, int]]:
        """Replace the content by ``records``, whole or not at all. Return offsets and lengths. Raises OSError."""
        self.close()
        draft = self.path.with_suffix(_DRAFT_SUFFIX)
        frames = [encode(record) for record in records]
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(frames)
                file.flush()
                os.fsync(file.fileno())
            # Its offsets are other ones: the old marks are deleted first, so that none applies to a new record.
            self.path.with_suffix(_DONE_SUFFIX).unlink(missing_ok=True)
            draft.replace(self.path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        places = []
        self.size = 0
        for frame in frames:
            places.append((self.size, len(frame)))
            self.size += len(frame)
        self.num_live = len(records)
        return places

    def close(self) -> None:
        """Close the file for appends. Raises nothing: the system writes what cannot be flushed any more."""
        for descriptor in (self._descriptor, self._done):
            if descriptor is not None:
                _flush_and_close(descriptor, is_dirty=self.is_dirty and descriptor == self._descriptor)
        self._descriptor = self._done = None
        self.is_dirty = False

    def delete(self) -> None:
        self.is_dirty = False
        self.close()
        for path in (self.path, self.path.with_suffix(_DONE_SUFFIX)):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def found_segments(folder: Path) -> list[Segment]:
    """Return the segments that a former process left, oldest first; delete drafts. Raises OSError."""
    segments = []
    for path in sorted(folder.iterdir()):
        if path.suffix == _DRAFT_SUFFIX:
            path.unlink(missing_ok=True)
        number, _, priority = path.stem.partition(".")
        if path.suffix == _SUFFIX and number.isascii() and number.isdigit():
            found = next((known for known in PRIORITIES if known == priority), None)
            if found is not None:
                segments.append(Segment(folder, int(number), found))
    return segments


def _write_whole(descriptor: int, frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[os.write(descriptor, view) :]


def _flush_and_close(descriptor: int, *, is_dirty: bool) -> None:
    try:
        if is_dirty:
            os.fdatasync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
