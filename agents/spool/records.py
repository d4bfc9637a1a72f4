"""Layout of the spool's records in a file: a frame with a CRC each, so that damage costs its own record and no other.

A frame is magic, priority, lengths, seq, time, CRC, then boot id and report. The CRC is zlib's CRC-32 over all of the
frame but itself (the standard library has it; CRC-32C would need a library and detects no more at these lengths). The
magic begins with 0xFF, which never stands in UTF-8: no text inside a report can look like a frame.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

Priority = Literal["events", "health", "metrics"]
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
"""P0, P1, P2."""

_MAGIC: Final = b"\xff\xfeM1"
_HEAD: Final = struct.Struct("<4sBBHIQQ")
"""Magic, priority, nothing, bytes of the boot id, bytes of the report, seq, at_ms."""
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Record:
    """One report as it is kept: ``content`` is the wire's own JSON."""

    priority: Priority
    boot_id: str
    seq: int
    at_ms: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A whole record at ``offset`` of its file, ``length`` bytes with its frame."""

    offset: int
    length: int
    record: Record


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no whole record. ``is_tail``: the file ends in them, as a write that a crash cut short does."""

    offset: int
    length: int
    is_tail: bool


def encode(record: Record) -> bytes:
    boot_id = record.boot_id.encode()
    head = _HEAD.pack(
        _MAGIC, PRIORITIES.index(record.priority), 0, len(boot_id), len(record.content), record.seq, record.at_ms
    )
    return b"".join((head, _crc(head, boot_id, record.content), boot_id, record.content))


def decode(frame: bytes) -> Record | None:
    """Return the record that ``frame`` begins with, or None: damaged, or cut short."""
    found = _at(memoryview(frame), 0)
    return None if found is None else found.record


def scan(content: bytes) -> Iterator[Found | Damage]:
    """Yield every whole record of a file in order, and every stretch between them that is none."""
    view = memoryview(content)
    offset = 0
    while offset < len(content):
        found = _at(view, offset)
        if found is not None:
            yield found
            offset += found.length
            continue
        after = _next_record(content, view, offset + 1)
        yield Damage(offset, after - offset, is_tail=after == len(content))
        offset = after


def _next_record(content: bytes, view: memoryview, start: int) -> int:
    """Return the offset of the next whole record; the end of the file where there is none."""
    while (start := content.find(_MAGIC, start)) != -1:
        if _at(view, start) is not None:
            return start
        start += 1
    return len(content)


def _at(view: memoryview, offset: int) -> Found | None:
    if len(view) - offset < HEAD_BYTES:
        return None
    head = bytes(view[offset : offset + _HEAD.size])
    magic, priority, _, boot_bytes, report_bytes, seq, at_ms = _HEAD.unpack(head)
    body = offset + HEAD_BYTES
    end = body + boot_bytes + report_bytes
    if magic != _MAGIC or priority >= len(PRIORITIES) or end > len(view):
        return None
    boot_id, content = bytes(view[body : body + boot_bytes]), bytes(view[body + boot_bytes : end])
    if bytes(view[offset + _HEAD.size : body]) != _crc(head, boot_id, content):
        return None
    record = Record(PRIORITIES[priority], boot_id.decode("utf-8", "replace"), seq, at_ms, content)
    return Found(offset, end - offset, record)


def _crc(head: bytes, boot_id: bytes, content: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(content, zlib.crc32(boot_id, zlib.crc32(head))))
