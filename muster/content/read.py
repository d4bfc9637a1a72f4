"""Reading of a work folder into a manifest: each file once, and not again while its metadata stay the same."""

import io
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from muster.content.faults import ChangedFileError, FolderError, shown
from muster.content.files import read_chunk_at
from muster.content.manifest import CHUNK_BYTES, VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.content.scan import Found, Limits, Scan, scan, state_of
from muster.durable import write_durably
from muster.plain_files import open_plain

_NUM_TRIES: Final = 3
_MARGIN_NS: Final = 2_000_000_000
"""A file that changed so short before it was read may have changed again at the same time stamp: it is read again. File
systems of networks state whole seconds, some two.
"""
_CHANGES: Final = "it changes while it is read; stop its writer, or name it in `.musterignore`"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A work folder as content. ``num_read``: bytes that were read for it; the rest was known from before."""

    manifest: Manifest
    digest: str
    scan: Scan
    num_read: int


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """What an earlier reading found of a file."""

    state: tuple[int, int, int, int]
    parts: tuple[str, ...]


class _Cache(msgspec.Struct, frozen=True):
    version: int = VERSION
    began_ns: int = 0
    files: dict[str, _Known] = {}

    def parts_of(self, one: Found) -> tuple[str, ...] | None:
        known = self.files.get(one.path)
        is_settled = max(one.state[2:]) < self.began_ns - _MARGIN_NS
        return known.parts if known is not None and known.state == one.state and is_settled else None


def read_folder(
    folder: Path,
    *,
    limits: Limits | None = None,
    cache: Path | None = None,
    on_read: Callable[[int], None] = lambda _: None,
    takes_all: bool = False,
) -> Bundle:
    """Return the folder's content. ``on_read`` gets the number of bytes behind each file. ``cache``: kept from
    one reading to the next; one that is damaged or cannot be written costs only time. ``takes_all``: as of ``scan``.

    Raises:
        FolderTooLargeError: it has more bytes or files than ``limits``.
        FolderError: a path cannot be taken or read, or changes all the time.
    """
    began_ns = time.time_ns()
    found = scan(folder, limits, takes_all=takes_all)
    known = _Cache() if cache is None else _load(cache)
    entries: list[Entry] = []
    files: dict[str, _Known] = {}
    num_read = 0
    for one in found.found:
        if one.kind is Kind.LINK:
            entries.append(Entry(one.path, one.kind, 0, (one.target,)))
            continue
        if one.kind is Kind.FOLDER:
            entries.append(Entry(one.path, one.kind, 0, ()))
            continue
        parts = known.parts_of(one)
        if parts is None:
            one, parts = _read(folder, one)  # noqa: PLW2901  # as it was when it was read
            num_read += one.num_bytes
        entries.append(Entry(one.path, one.kind, one.num_bytes, parts))
        files[one.path] = _Known(one.state, parts)
        on_read(one.num_bytes)
    if cache is not None:
        _store(cache, _Cache(VERSION, began_ns, files))
    manifest = Manifest(VERSION, tuple(entries))
    return Bundle(manifest, digest_of(encode(manifest)), found, num_read)


def read_chunk(folder: Path, entry: Entry, number: int) -> bytes:
    """Return chunk ``number`` of a file, as the manifest has it. Raises FolderError: the file changed since."""
    try:
        with os.fdopen(open_plain(folder / entry.path), "rb", buffering=0) as file:
            content = read_chunk_at(file.fileno(), number * CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    if digest_of(content) != entry.parts[number]:
        raise FolderError(f"{shown(entry.path)}: it has changed since its digest was taken; submit again")
    return content


def open_file(folder: Path, one: Found) -> io.FileIO:
    """Open a file of the folder, as it was scanned. Raises FolderError: it cannot be read, or has changed since."""
    try:
        file = io.FileIO(open_plain(folder / one.path))
        if state_of(os.fstat(file.fileno())) == one.state:
            return file
        file.close()
    except OSError as error:
        raise _unreadable(one.path, error) from error
    raise changed(one.path)


def changed(path: str) -> ChangedFileError:
    """Return the error of a file that is not as it was when its digest was taken."""
    return ChangedFileError(path, f"{shown(path)}: {_CHANGES}")


def _read(folder: Path, one: Found) -> tuple[Found, tuple[str, ...]]:
    """Return the file as it was while it was read, and its chunks. Raises FolderError."""
    for _ in range(_NUM_TRIES):
        try:
            with os.fdopen(open_plain(folder / one.path), "rb", buffering=0) as file:
                before = os.fstat(file.fileno())
                parts = _parts(file.fileno())
                after = os.fstat(file.fileno())
        except OSError as error:
            raise _unreadable(one.path, error) from error
        if not stat.S_ISREG(before.st_mode):
            break
        if state_of(before) == state_of(after):
            kind = Kind.PROGRAM if after.st_mode & stat.S_IXUSR else Kind.FILE
            return Found(one.path, kind, after.st_size, state_of(after)), parts
    raise changed(one.path)


def _parts(file: int) -> tuple[str, ...]:
    parts: list[str] = []
    while content := read_chunk_at(file, len(parts) * CHUNK_BYTES):
        parts.append(digest_of(content))
    return tuple(parts)


def _unreadable(path: str, error: OSError) -> FolderError:
    return FolderError(f"{shown(path)}: it cannot be read: {error.strerror}")


def _load(path: Path) -> _Cache:
    try:
        cache = msgspec.json.decode(path.read_bytes(), type=_Cache)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return _Cache()
    return cache if cache.version == VERSION else _Cache()


def _store(path: Path, cache: _Cache) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(path, msgspec.json.encode(cache))
    except OSError:
        return
