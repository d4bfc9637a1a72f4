"""The attempt's folder as the supervisor sees it: names of its files, and writes that survive a crash at any moment.

This package is standard library alone, without its slow parts (dataclasses, typing, asyncio): the supervisor's start
counts in the time from submit to the first step of the program.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER = "order.json"
LOCK = "supervisor.lock"
IDENTITY = "supervisor.json"
USER = "user.json"
LEASE = "lease.json"
STOP = "stop.json"
STOPPING = "stopping.json"
READY = "ready.json"
GO = "go.json"
MEET = "meet.json"
MET = "met.json"
PINS = "pins.json"
EXIT = "exit.json"
CLEAN = "clean.json"
EVENTS = "events.jsonl"
TRAIN = "train.jsonl"
RELAYED = "logs_sent.json"
"""File of the host worker: by stream, how many bytes the control plane has."""
RELAYED_TRAINING = "training"
TRAIN_SOCKET = "train.sock"
SENSORS = "sensors"
WATCH = "watch"
"""Folder of host reports alone; the newest words of the sensors are in ``SENSORS``."""
WATCH_SOCKET = "watch.sock"
COLLECT = "collect.json"
STALLED = "stalled.json"
LEARNT = "learnt.json"
"""Durations of phases that the host's watch reports, for the job's next attempt."""
SUPERVISOR_LOG = "supervisor.log"
LOGS = "logs"
RANKS = "ranks"
PIPES = "pipes"
LAUNCH = "launch"
FLIGHT = "flight"
_LONGEST_SCRATCH = 72
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def boottime_ns() -> int:
    """Return the clock of leases and kill times: it counts suspended time and cannot be set."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    return time.time_ns() // NS_PER_MS


def kernel_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace ``path`` whole: after a crash the old file stands or the new one, never a half. Mode 0600."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(document).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_json(path: Path, document: dict[str, Any]) -> None:
    """Replace ``path`` whole, as ``write_json`` does, without waiting for the disk: it need not outlive the host."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(document).encode())
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the document, or None while there is no readable one."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def note_event(folder: Path, what: str, **details: object) -> None:
    """Append one dated line, which later explains why the program was stopped when it was."""
    line = json.dumps({"at_ms": wall_ms(), "boottime_ns": boottime_ns(), "event": what, **details}) + "\n"
    descriptor = os.open(folder / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def scratch_path(folder: Path) -> Path:
    """Return the program's TMPDIR. Unix sockets made below it (DataLoader workers) hold 107 bytes of path.

    So an attempt in a deep state folder gets a short place instead; it follows from the folder's name, so that a reaper
    finds it too.
    """
    inside = folder / "scratch"
    if len(str(inside)) <= _LONGEST_SCRATCH:
        return inside
    return Path(f"/tmp/muster-{os.getuid()}-{zlib.crc32(str(folder.resolve()).encode()):08x}")  # noqa: S108  # 0700, ours
