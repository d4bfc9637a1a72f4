"""Fence of a checkpoint folder: ``FENCE`` holds the highest that has begun, and older attempts may not write.

Each attempt of a job has a higher fence than the one before. The older one may still run when the newer one begins,
as on a host without network. The file stops it, without any message from the control plane::

    begin 7   FENCE holds 7
    begin 8   FENCE holds 8
    begin 7   StaleFenceError
    commit 7  StaleFenceError
    commit 8  gen-8

``FENCE.check`` repeats the number with its SHA-256, and names inode and time of the ``FENCE`` that it belongs to. A
byte that changes in either file shows, and the other one counts. Release 0.1.0 reads and replaces ``FENCE`` alone: then
the file's time is another one, and the higher number counts. The inode alone is not enough: file systems use it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint import plain_files
from muster.train.runtime.durable_files import sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCE = "FENCE"
CHECK = "FENCE.check"
_MOST_BYTES = 1024
_LOCK = ".fence.lock"


class StaleFenceError(RuntimeError):
    """A newer attempt of this job has begun: this one may write nothing any more."""


def highest_fence(folder: Path) -> int:
    """Return the highest fence that has begun; 0 if no attempt has begun yet.

    Raises:
        OSError: neither of its files can be read as one: then no attempt may write until a person has checked them.
    """
    return _read(folder)[0]


def _read(folder: Path) -> tuple[int, bool]:
    """Return the highest fence, and whether both files hold it. Raises OSError."""
    checked = _checked(folder)
    try:
        number, identity = _stored(folder)
    except OSError:
        if checked is None:
            raise
        return checked["fence"], False
    if checked is None:
        return number, False
    if identity is None or identity == [checked["inode"], checked["mtime_ns"]]:
        return checked["fence"], number == checked["fence"] and identity is not None
    return max(number, checked["fence"]), False


def _stored(folder: Path) -> tuple[int, list[int] | None]:
    """Return the number in ``FENCE`` with the file's inode and time; 0 and None if there is no such file. Raises
    OSError.
    """
    path = folder / FENCE
    try:
        found = path.lstat()
        text = plain_files.content(path, _MOST_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return 0, None
    if not text.isdecimal():
        raise OSError(f"{path} holds {text[:40]!r} instead of a number")
    return int(text), [found.st_ino, found.st_mtime_ns]


def _checked(folder: Path) -> dict[str, Any] | None:
    """Return the content of ``FENCE.check``; None if there is none, or none that is as it was written."""
    try:
        document = json.loads(plain_files.content(folder / CHECK, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.pop("sha256", None) != _digest(document):
        return None
    is_known = all(isinstance(document.get(name), int) for name in ("fence", "inode", "mtime_ns"))
    return document if is_known else None


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _write(folder: Path, fence: int) -> None:
    """Write both files. After a crash in between, the higher number counts, since the file is another one."""
    write_durably(folder / FENCE, str(fence).encode())
    found = (folder / FENCE).lstat()
    document = {"fence": fence, "inode": found.st_ino, "mtime_ns": found.st_mtime_ns}
    write_durably(folder / CHECK, json.dumps({**document, "sha256": _digest(document)}).encode())
    sync_folder(folder)


def begin(folder: Path, fence: int | None) -> int:
    """Begin under ``fence``, or under the next one if it is None because none was assigned. Returns the fence.

    Raises:
        StaleFenceError: a newer attempt has begun.
        OSError: the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with holding(folder):
        highest, is_whole = _read(folder)
        chosen = highest + 1 if fence is None else fence
        if highest > chosen:
            raise StaleFenceError(f"fence {chosen} is older than {highest}, which has begun in {folder}")
        if highest < chosen or not is_whole:
            _write(folder, chosen)
    return chosen


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Lock the folder: no attempt begins between a read of the fence and the action that depends on it.

    A file system without locks leaves a gap of microseconds, in which a generation of the older fence may appear
    together with the newer attempt's. Its name distinguishes it, and the control plane refuses it when it is reported.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
