"""Files of outputs on the client's disk: written next to their place chunk by chunk, and put there once they are whole.

Nothing is written outside of the folder: a path's parents must be real folders in it, never links. A file that is there
with other bytes stays, unless the caller says otherwise.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from muster.content.faults import shown
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, digest_of

PART: Final = ".muster-part"
"""Ending of a file that is not whole yet; the next run continues it."""
_NOT_IN_NAMES_OF_WINDOWS: Final = frozenset('\\:*?"<>|')


class PlaceError(Exception):
    """A file cannot be written where it belongs. ``detail`` says why, with its path."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class OutputFile:
    """One file of outputs below ``root``. ``entry``: as the manifest has it; ``path``: in the folder."""

    def __init__(self, root: Path, path: str, entry: Entry) -> None:
        """Raise PlaceError: this machine cannot have a file of that name."""
        if sys.platform == "win32" and not _NOT_IN_NAMES_OF_WINDOWS.isdisjoint(path):
            raise PlaceError(f"{shown(path)}: Windows has no file of that name")
        self.path, self.entry = path, entry
        self._root = root
        self._target = root / path
        self._part = self._target.with_name(f".{digest_of(path.encode())[:16]}{PART}")

    def is_there(self) -> bool:
        """Return whether the file is there with exactly these bytes.

        Raises PlaceError: a link or a file is where a folder of its path should be.
        """
        self._require_real_parents()
        if self.entry.kind is Kind.LINK:
            return self._target.is_symlink() and str(self._target.readlink()) == self.entry.parts[0]
        if self.entry.kind is Kind.FOLDER:
            return _is_real_folder(self._target)
        is_whole = self._size_of(self._target) == self.entry.num_bytes
        return is_whole and next(self._lacking(self._target), None) is None

    def is_taken(self) -> bool:
        """Return whether something is in its place."""
        return os.path.lexists(self._target)

    def lacking(self) -> list[int]:
        """Return the numbers of the chunks that are still to be fetched, after an earlier run fetched the others."""
        return list(self._lacking(self._part))

    def write(self, number: int, content: bytes) -> None:
        """Write one chunk. Raises PlaceError."""
        try:
            with os.fdopen(self._open_part(), "r+b") as file:
                file.seek(number * CHUNK_BYTES)
                file.write(content)
        except OSError as error:
            raise self._fault(error) from error

    def begin(self) -> None:
        """Make its folder and its unfinished file. Raises PlaceError."""
        try:
            self._make_parents()
            if self.entry.kind <= Kind.PROGRAM:
                os.close(self._open_part())
        except OSError as error:
            raise self._fault(error) from error

    def finish(self, *, replaces: bool) -> None:
        """Put the whole file in its place. Raises PlaceError: other bytes are there, and not ``replaces``."""
        if not replaces and self.is_taken() and self.entry.kind is not Kind.FOLDER:
            raise PlaceError(f"{shown(self.path)}: is there with other bytes")
        try:
            self._finish()
        except OSError as error:
            raise self._fault(error) from error

    def _finish(self) -> None:
        if self.entry.kind is Kind.FOLDER:
            self._target.mkdir(exist_ok=True)
            return
        if self.entry.kind is Kind.LINK:
            self._target.unlink(missing_ok=True)
            self._target.symlink_to(self.entry.parts[0])
            return
        with self._part.open("r+b") as file:
            file.truncate(self.entry.num_bytes)
            os.fsync(file.fileno())
        if self.entry.kind is Kind.PROGRAM:
            self._part.chmod(stat.S_IMODE(self._part.stat().st_mode) | 0o111)
        self._part.replace(self._target)

    def _lacking(self, path: Path) -> Iterator[int]:
        if self._size_of(path) is None:
            yield from range(len(self.entry.parts))
            return
        with path.open("rb") as file:
            for number, digest in enumerate(self.entry.parts):
                size = min(CHUNK_BYTES, self.entry.num_bytes - number * CHUNK_BYTES)
                if digest_of(file.read(size)) != digest:
                    yield number
                    file.seek((number + 1) * CHUNK_BYTES)

    def _size_of(self, path: Path) -> int | None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def _open_part(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.open(self._part, flags, 0o666)

    def _parents(self) -> Sequence[Path]:
        return [self._root / parent for parent in reversed(Path(self.path).parents) if parent != Path()]

    def _require_real_parents(self) -> None:
        for parent in self._parents():
            if os.path.lexists(parent) and not _is_real_folder(parent):
                where = shown(parent.relative_to(self._root).as_posix())
                raise PlaceError(f"{shown(self.path)}: {where} is no folder of its own, and nothing is written past it")

    def _make_parents(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for parent in self._parents():
            parent.mkdir(exist_ok=True)
        self._require_real_parents()

    def _fault(self, error: OSError) -> PlaceError:
        return PlaceError(f"{shown(self.path)}: {error.strerror or error}")


def _is_real_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False
