"""Fence of a checkpoint folder: ``FENCE`` holds the highest that has begun, and older attempts may not write.

Each attempt of a job has a higher fence than the one before. The older one may still run when the newer one begins,
as on a host without network. The file stops it, without any message from the control plane::

    begin 7   FENCE holds 7
    begin 8   FENCE holds 8
    begin 7   StaleFenceError
    commit 7  StaleFenceError
    commit 8  gen-8
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from muster.train.runtime.durable_files import sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCE = "FENCE"
_LOCK = ".fence.lock"


class StaleFenceError(RuntimeError):
    """A newer attempt of this job has begun: this one may write nothing any more."""


def highest_fence(folder: Path) -> int:
    """Return the highest fence that has begun; 0 if no attempt has begun yet.

    Raises:
        OSError: it cannot be read, or is no number: then no attempt may write until a person has checked it.
    """
    try:
        text = (folder / FENCE).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return 0
    if not text.isdecimal():
        raise OSError(f"{folder / FENCE} holds {text[:40]!r} instead of a number")
    return int(text)


def begin(folder: Path, fence: int | None) -> int:
    """Begin under ``fence``, or under the next one if it is None because none was assigned. Returns the fence.

    Raises:
        StaleFenceError: a newer attempt has begun.
        OSError: the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with holding(folder):
        highest = highest_fence(folder)
        chosen = highest + 1 if fence is None else fence
        if highest > chosen:
            raise StaleFenceError(f"fence {chosen} is older than {highest}, which has begun in {folder}")
        if highest < chosen:
            write_durably(folder / FENCE, str(chosen).encode())
            sync_folder(folder)
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
