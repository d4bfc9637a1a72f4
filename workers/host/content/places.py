"""Where a host keeps folders from the content store, and the locks by which its processes share them.

Of each bundle ``TENANT/DIGEST`` is the copy, and next to it:

    DIGEST.manifest    what it consists of
    DIGEST.copy        its size, and when it was last read whole
    DIGEST.files       inode, size, time and mode of each file, as they were then
    DIGEST.draft       a folder: the copy that is being fetched
    DIGEST.lock        locked alone to change the copy, shared to read it; its time is that of the last use

Of an environment ``DIGEST.env`` is the copy, with archives, and all names begin so. ``DIGEST.env.own`` and
``DIGEST.env.host`` record what was assembled from it (``assembled``).
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from muster.content.manifest import Manifest
from muster.domain.stored_content import FolderKind

WORK: Final = "work"
"""Folder in the state folder: the work folders of attempts."""
BUILD: Final = ".build"
"""Ending of a folder next to an attempt's work folder, in which its environment is built."""
ENVIRONMENTS: Final = "environments"
"""Folder in the state folder: virtual environments, by which programs run. Programs read them."""
REMOVED: Final = "removed"
"""Folder in the state folder: what was a work folder and is being removed. No program reaches it."""
OUTPUTS: Final = "outputs"
"""Folder in the state folder: the output folders of attempts, as their programs see them."""
SET_ASIDE: Final = "set_aside"
"""Folder in the state folder: outputs of ended attempts, and copies of outputs, until they are uploaded."""
CONTENT: Final = "content"
"""Folder in the state folder: the copies."""
READ_AGAIN_S: Final = 24 * 3600
"""What is on the disk counts for so long after it was read, byte by byte."""
_ROOM_LOCK: Final = "room.lock"
_ENVIRONMENT: Final = ".env"


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one bundle or environment. ``root``: the folder of all copies."""

    root: Path
    tenant_id: str
    digest: str
    kind: FolderKind = FolderKind.BUNDLE

    @classmethod
    def named(cls, copy: Path) -> Self:
        """Return the place of the copy of this path."""
        digest = copy.name.removesuffix(_ENVIRONMENT)
        kind = FolderKind.BUNDLE if digest == copy.name else FolderKind.ENVIRONMENT
        return cls(copy.parent.parent, copy.parent.name, digest, kind)

    def file(self, ending: str) -> Path:
        return self.copy.with_name(f"{self.copy.name}.{ending}")

    @property
    def copy(self) -> Path:
        ending = _ENVIRONMENT if self.kind is FolderKind.ENVIRONMENT else ""
        return self.root / self.tenant_id / f"{self.digest}{ending}"

    @property
    def draft(self) -> Path:
        return self.file("draft")

    @contextlib.contextmanager
    def locked(self, *, alone: bool) -> Iterator[None]:
        """Lock the folder, after other processes have released it. ``alone``: to change it."""
        with _locked(self.file("lock"), fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def locked_if_free(self) -> Iterator[bool]:
        """Lock the folder alone, unless a process uses it; yield whether it is locked."""
        try:
            with _locked(self.file("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield True
        except BlockingIOError:
            yield False

    def bytes_of(self, manifest: Manifest) -> int:
        """Return the bytes that the disk needs for it: an environment's archives are unpacked next to the copy."""
        return manifest.num_bytes * (2 if self.kind is FolderKind.ENVIRONMENT else 1)

    def note_use(self) -> None:
        os.utime(self.file("lock"))

    def last_use_ns(self) -> int:
        try:
            return self.file("lock").stat().st_mtime_ns
        except FileNotFoundError:
            return 0


@contextlib.contextmanager
def room_of(root: Path) -> Iterator[None]:
    """Decide alone on this host what has room: two fetches at once would both count on the same bytes."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(root / _ROOM_LOCK, fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
