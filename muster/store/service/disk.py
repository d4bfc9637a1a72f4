"""Objects as files below one folder: each appears whole, or not at all, also if the machine loses its power.

``objects/`` has a file for each key. ``drafts/`` has uploads that have not ended; the next start removes the
uploads of a process that was killed. One process works in a folder at a time: ``lock`` holds it.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from muster.durable import place_durably, sync_folder
from muster.failpoints import declare, failpoint
from muster.plain_files import open_plain
from muster.sizes import size_in_words

IN_BODY: Final = declare("store.put.in_body")
BEFORE_RENAME: Final = declare("store.put.before_rename")
AFTER_RENAME: Final = declare("store.put.after_rename")
_NUM_TRIES: Final = 5
_MAX_KNOWN: Final = 20_000
"""Folders that are known to be on the disk. With more they are checked again."""


class DiskFullError(Exception):
    """The disk has no space for an object, or would have less than the reserve afterwards."""


class BadKeyError(Exception):
    """The key is above or below another object's key: a path is a file or a folder, not both."""


class FolderInUseError(Exception):
    """Another process works in the folder."""


class Found(NamedTuple):
    """One object of a listing."""

    key: str
    num_bytes: int
    modified_s: float


class ObjectFolder:
    """The folder of all objects. Threads share it."""

    def __init__(self, root: Path, *, reserve_bytes: int) -> None:
        self._objects, self._drafts, self._root = root / "objects", root / "drafts", root
        self._reserve_bytes = reserve_bytes
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        self._known: set[Path] = set()
        self._expected_bytes = 0

    def take(self) -> int:
        """Make this process the only one that works here, and remove uploads that never ended. Return their number.

        Raises:
            FolderInUseError: another process works here.
        """
        for folder in (self._root, self._objects, self._drafts):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._root, self._root.parent):
            sync_folder(folder)
        lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FolderInUseError(f"another `muster store serve` works in {self._root}") from None
        stale = list(self._drafts.iterdir())
        for draft in stale:
            draft.unlink()
        return len(stale)

    @property
    def is_full(self) -> bool:
        return self._free_bytes() < self._reserve_bytes

    def draft(self, num_bytes: int) -> "Draft":
        """Begin an object of that size. Raises DiskFullError."""
        with self._guard:
            left = self._free_bytes() - self._expected_bytes - num_bytes
            if left < self._reserve_bytes:
                asked, reserve = size_in_words(num_bytes), size_in_words(self._reserve_bytes)
                raise DiskFullError(f"the store's disk is full: {asked} would take from the reserve of {reserve}")
            self._expected_bytes += num_bytes
        try:
            return Draft(self, self._drafts / f"{os.getpid()}.{next(self._numbers)}", num_bytes)
        except OSError as error:
            self.release(num_bytes)
            raise full_or_same(error) from error

    def release(self, num_bytes: int) -> None:
        """Count an object no longer as expected: it is there, or never comes."""
        with self._guard:
            self._expected_bytes -= num_bytes

    def place(self, draft: Path, descriptor: int, key: str) -> None:
        """Raise DiskFullError or BadKeyError: the draft is not placed."""
        path = self._objects / key
        for left in reversed(range(_NUM_TRIES)):
            try:
                self._make_folder(path.parent)
                failpoint(BEFORE_RENAME)
                place_durably(draft, descriptor, path)
                failpoint(AFTER_RENAME)
            except FileNotFoundError:
                # The folder was empty, and a deletion in another thread has removed it.
                if not left:
                    raise
            except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                raise BadKeyError("the key is above or below the key of another object") from error
            except OSError as error:
                raise full_or_same(error) from error
            else:
                return

    def open(self, key: str) -> tuple[int, os.stat_result] | None:
        """Return an object's descriptor and state; None if there is none."""
        try:
            descriptor = open_plain(self._objects / key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            return None
        return descriptor, status

    def delete(self, key: str) -> None:
        """Delete an object, and folders that are empty then. One that is not there is no fault."""
        path = self._objects / key
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
        with self._guard, contextlib.suppress(OSError):
            for folder in path.parents:
                if folder == self._objects:
                    return
                folder.rmdir()
                self._known.discard(folder)

    def list(self, prefix: str, after: str) -> Iterator[Found]:
        """Yield objects whose keys begin with ``prefix`` and come after ``after``, in the order of their bytes."""
        folder = prefix.rpartition("/")[0]
        yield from self._walk(folder + "/" if folder else "", prefix, after)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[Found]:
        try:
            children = list(os.scandir(self._objects / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # A folder sorts with its slash: `a-b` comes before `a/b`.
        names = sorted((child.name + "/" if child.is_dir(follow_symlinks=False) else child.name) for child in children)
        for name in names:
            key = folder + name
            if not key.startswith(prefix[: len(key)]) or (key <= after and not after.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(key, prefix, after)
            elif key > after and key.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(self._objects / key, follow_symlinks=False)  # noqa: PTH116  # a Path costs more
                    yield Found(key, status.st_size, status.st_mtime)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder with those above it, so that a crash takes none of them."""
        with self._guard:
            if folder in self._known:
                return
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            for each in reversed((folder, *folder.parents)):
                if each.is_relative_to(self._objects) and each not in self._known:
                    each.mkdir(mode=0o700, exist_ok=True)
                    sync_folder(each.parent)
                    self._known.add(each)

    def _free_bytes(self) -> int:
        space = os.statvfs(self._root)
        return space.f_bavail * space.f_frsize


class Draft:
    """An upload in progress. Leave it without ``place``, and nothing of it remains."""

    def __init__(self, folder: ObjectFolder, path: Path, num_bytes: int) -> None:
        self._folder, self._path, self._num_bytes = folder, path, num_bytes
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)
        self._folder.release(self._num_bytes)

    def write(self, piece: memoryview) -> None:
        """Raise DiskFullError."""
        failpoint(IN_BODY)
        try:
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        except OSError as error:
            raise full_or_same(error) from error

    def place(self, key: str) -> os.stat_result:
        """Make it the object of ``key``, and return its state. Raises DiskFullError or BadKeyError."""
        self._folder.place(self._path, self._descriptor, key)
        return os.fstat(self._descriptor)


def full_or_same(error: OSError) -> Exception:
    """Return DiskFullError if that is what the error of a disk means; else the error."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError("the store's disk is full")
    return error
