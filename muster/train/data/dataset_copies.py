"""Datasets on a host's own disk: whole copies named by their SHA-256, and a record of files that were verified here.

``MUSTER_SCRATCH_DIR`` names the folder, else it is ``/var/tmp``, which outlives an attempt. If the variable is empty,
as in a container that has no folder of its host's for them, no copies are made, and ``/var/tmp`` has the other files.
Each user has a part of the folder, so that no user reads files that another could have changed. In it:

| | |
|---|---|
| ``<sha256>/`` | a copy: written as ``.<sha256>.partial``, hashed meanwhile, renamed when all of it is on disk |
| ``<sha256>.making``, ``.using`` | locks: one process copies or reads back, others wait; a copy that is in use stays |
| ``seen/`` | the files that were verified, by size, time of change and inode, so that a resume need not read them |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from muster.train.data.dataset_manifest import (
    DATASET,
    DataFile,
    DatasetError,
    DatasetManifest,
    difference,
    dump,
    num_workers,
)
from muster.train.runtime.durable_files import HashingFile, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 4 << 20
_COPYING = 4
_LEFT_FREE = 0.02
"""Fraction of a disk that is left free for others."""
_EVERYBODYS = Path("/var/tmp")  # noqa: S108  # sticky and root's; the owner of each entry is checked
_MAKING, _USING = ".making", ".using"
_MOST_NAMED = 3
_HEX_DIGITS = 64


class NoRoomError(OSError):
    """Reason why there is no copy, as text."""


def scratch_of(folder: Path | None) -> Path:
    """Return this user's own part of the folder, made if it does not exist. Raises OSError."""
    shared = _EVERYBODYS if folder is None else folder
    shared.mkdir(mode=0o755, parents=True, exist_ok=True)
    _require_no_strangers(shared)
    own = shared / f"muster-data-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(errno.EPERM, "is not a folder of this user's alone", str(own))
    (own / "seen").mkdir(exist_ok=True)
    return own


def _require_no_strangers(shared: Path) -> None:
    """Raise OSError if another user could replace our folder: as owner of its parent, or by writing into one without
    sticky bit.
    """
    found = shared.stat()
    is_open = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in {0, os.getuid()} or is_open:
        why = "lets others change its content: it should be root's, of mode 1777"
        raise OSError(errno.EPERM, why, str(shared))


@contextlib.contextmanager
def making(scratch: Path, sha256: str) -> Iterator[None]:
    """Hold the dataset's lock on this host: other processes wait here. Raises OSError."""
    descriptor = os.open(scratch / f"{sha256}{_MAKING}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Use:
    """Lock against the removal of a copy, until it and every descriptor that was inherited from it are closed.

    It is not released when the object is garbage-collected.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Release the lock once: a second close might close another file with the same number."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def use(scratch: Path, sha256: str) -> Use:
    """Lock a copy against removal. Raises OSError."""
    path = scratch / f"{sha256}{_USING}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(path)
    except OSError:
        os.close(descriptor)
        raise
    return Use(descriptor)


def require_whole(scratch: Path, folder: Path, manifest: DatasetManifest, attempt_id: str) -> bool:
    """Require each file to be as the manifest says, and return whether files were read now.

    A file is read back once, and then known by its size, time and inode. Damage is remembered for the same attempt, so
    that only one rank of a host reads everything to find it.

    Raises:
        DatasetError: naming the first files that are not.
    """
    identity = _identity(folder, manifest)
    seen = _seen(_note_of(scratch, folder, manifest))
    if seen.get("identity") == identity:
        if not seen.get("fault"):
            return False
        if attempt_id and seen.get("attempt_id") == attempt_id:
            raise DatasetError(str(seen["fault"]))
    fault = fault_of(folder, manifest)
    if identity == _identity(folder, manifest):
        note_seen(scratch, folder, manifest, fault=fault, attempt_id=attempt_id)
    if fault:
        raise DatasetError(fault)
    return True


def note_seen(scratch: Path, folder: Path, manifest: DatasetManifest, *, fault: str = "", attempt_id: str = "") -> None:
    """Record the result of a reading. A lost record costs one more reading, so a full disk is no fault."""
    said = {"identity": _identity(folder, manifest), "fault": fault, "attempt_id": attempt_id}
    with contextlib.suppress(OSError):
        write_durably(_note_of(scratch, folder, manifest), json.dumps(said).encode())


def copy(scratch: Path, source: Path, manifest: DatasetManifest, *, limit_bytes: int | None) -> Path:
    """Make a whole copy on disk, hashed while it is written. Call it within ``making``, with the copy in use.

    Raises:
        DatasetError: a file of the source is not as the manifest says.
        NoRoomError: there is no space even without the unused copies.
        OSError: the disk.
    """
    final, partial = scratch / manifest.sha256, scratch / f".{manifest.sha256}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    make_room(scratch, manifest.num_bytes, limit_bytes=limit_bytes)
    try:
        for place in sorted({(partial / file.path).parent for file in manifest.files}):
            place.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_COPYING) as pool:
            list(pool.map(lambda file: _copy_file(source, partial, file), manifest.files))
        write_durably(partial / DATASET, dump(manifest))
        for walked, _, _ in os.walk(partial):
            sync_folder(Path(walked))
        shutil.rmtree(final, ignore_errors=True)  # a damaged copy
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_folder(scratch)
    return final


def make_room(scratch: Path, num_bytes: int, *, limit_bytes: int | None) -> None:
    """Remove unused copies, the longest unused first, until there is space.

    Raises:
        NoRoomError: all remaining copies are in use.
    """
    _remove_abandoned(scratch)
    unused = sorted(_copies(scratch), key=lambda sha256: _used_at(scratch, sha256))
    if limit_bytes is not None and num_bytes > limit_bytes:
        raise NoRoomError(f"it has {num_bytes:,} bytes, and all copies together may hold {limit_bytes:,}")
    if num_bytes > room_bytes(scratch) + sum(map(_stored_bytes, _copies(scratch).values())):
        raise NoRoomError(f"it has {num_bytes:,} bytes, and the disk has room for {room_bytes(scratch):,}")
    while why := _lack(scratch, num_bytes, limit_bytes):
        if not unused:
            raise NoRoomError(why)
        with _alone(scratch, unused.pop(0), _USING) as sha256:
            if sha256 is not None:
                gone = scratch / f".{sha256}.removed"
                (scratch / sha256).rename(gone)
                shutil.rmtree(gone, ignore_errors=True)


def _lack(scratch: Path, num_bytes: int, limit_bytes: int | None) -> str:
    if limit_bytes is not None:
        held_bytes = sum(map(_stored_bytes, _copies(scratch).values()))
        if held_bytes + num_bytes > limit_bytes:
            return (
                f"it has {num_bytes:,} bytes, and copies may hold {limit_bytes:,}, of which {held_bytes:,} are in use"
            )
    free_bytes = room_bytes(scratch)
    return "" if num_bytes <= free_bytes else f"it has {num_bytes:,} bytes, and the disk has room for {free_bytes:,}"


def room_bytes(folder: Path) -> int:
    """Return the bytes that may still be written there."""
    disk = os.statvfs(folder)
    return max(disk.f_bavail * disk.f_frsize - int(disk.f_blocks * disk.f_frsize * _LEFT_FREE), 0)


def _copies(scratch: Path) -> dict[str, Path]:
    return {path.name: path for path in scratch.iterdir() if len(path.name) == _HEX_DIGITS and path.is_dir()}


def _stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _used_at(scratch: Path, sha256: str) -> float:
    with contextlib.suppress(OSError):
        return (scratch / f"{sha256}{_USING}").stat().st_mtime
    return 0.0


def _remove_abandoned(scratch: Path) -> None:
    """Remove copies that a killed process left half written or half removed."""
    for path in scratch.glob(".*.removed"):
        shutil.rmtree(path, ignore_errors=True)
    for half in scratch.glob(".*.partial"):
        with _alone(scratch, half.name.split(".")[1], _MAKING) as sha256:
            if sha256 is not None:
                shutil.rmtree(half, ignore_errors=True)


@contextlib.contextmanager
def _alone(scratch: Path, sha256: str, lock: str) -> Iterator[str | None]:
    """Yield the dataset under its lock, or None if another process has the lock."""
    descriptor = os.open(scratch / f"{sha256}{lock}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield sha256
    finally:
        os.close(descriptor)


def _copy_file(source: Path, target: Path, file: DataFile) -> None:
    with (target / file.path).open("xb") as writing:
        hashing = HashingFile(writing)
        for block in _blocks(source, file):
            hashing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
    if (hashing.size, hashing.sha256) != (file.size, file.sha256):
        found = difference(source, file)
        why = found.why if found is not None else "it was changed while it was copied"
        raise DatasetError(f"{file.path} of {source} is not as the manifest says: {why}")
    (target / file.path).chmod(0o444)


def _blocks(source: Path, file: DataFile) -> Iterator[bytes]:
    """Yield a file's blocks. A failed read is the source's fault, a failed write the copy's."""
    try:
        with (source / file.path).open("rb", buffering=0) as reading:
            while block := reading.read(_BLOCK_BYTES):
                yield block
    except OSError as fault:
        raise DatasetError(f"{file.path} of {source} cannot be read: {fault.strerror}") from None


def fault_of(folder: Path, manifest: DatasetManifest) -> str:
    """Return the differences between folder and manifest, with each byte read; an empty text if there are none."""
    with ThreadPoolExecutor(num_workers()) as pool:
        found = [each for each in pool.map(lambda file: difference(folder, file), manifest.files) if each is not None]
    named = "; ".join(f"{each.path} is {each.what}: {each.why}" for each in found[:_MOST_NAMED])
    more = f"; and {len(found) - _MOST_NAMED} more" if found[_MOST_NAMED:] else ""
    return f"{folder} is not the dataset that its manifest describes: {named}{more}" if found else ""


def _identity(folder: Path, manifest: DatasetManifest) -> str:
    """Return a hash of all files' sizes, times and inodes, without reading the files."""
    found = hashlib.sha256()
    for file in manifest.files:
        try:
            about = (folder / file.path).stat()
            found.update(f"{file.path}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}\n".encode())
        except OSError as fault:
            found.update(f"{file.path}\0{fault.errno}\n".encode())
    return found.hexdigest()


def _note_of(scratch: Path, folder: Path, manifest: DatasetManifest) -> Path:
    return scratch / "seen" / hashlib.sha256(f"{folder.resolve()}\0{manifest.sha256}".encode()).hexdigest()


def _seen(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
