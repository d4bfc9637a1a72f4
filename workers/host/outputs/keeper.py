"""Keeper of outputs: starts the processes that collect what was set aside, and removes what is uploaded.

It has a thread of its own in the host worker. What it needs stands in files, so the next worker continues; a process
that collects ends with the worker that started it.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec
import structlog

from muster.client.host import HostClient
from muster.domain.stored_content import OUTPUTS_GIVEN_UP
from workers.host.bundle_order import BundlesHost
from workers.host.content.places import SET_ASIDE
from workers.host.content.removal import remove_work_folder
from workers.host.outputs import notes
from workers.host.outputs.checkpoints_seen import Seen, unseen
from workers.host.outputs.collect_process import CollectOrder
from workers.host.outputs.collecting import SIZE
from workers.host.outputs.setting_aside import Collection, collection_of, make_closed, read_collection, waiting
from workers.host.supervisor.files import wall_ms

TURN_S: Final = 1.0
MOST_AT_ONCE: Final = 2
"""Uploads; a copy at a checkpoint begins at once, and there is one of an attempt at most."""
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 300.0
MOST_DAYS: Final = 31
"""The control plane takes no outputs of an attempt that ended a month ago."""
_MS_PER_DAY: Final = 86_400_000
_log = structlog.get_logger(__name__)


class OutputKeeper:
    """Keeper of one state folder. ``most_bytes``: may wait for their upload; the one that waits longest goes first."""

    def __init__(self, at: BundlesHost, client: HostClient, most_bytes: int) -> None:
        self._at = at
        self._root = at.state_dir / SET_ASIDE
        self._client = client
        self._most_bytes = most_bytes
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._unreported: deque[tuple[Collection, str, str]] = deque(maxlen=100)

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.turn()
                stop.wait(TURN_S)
        finally:
            self.close()

    def turn(self) -> None:
        self._reap()
        self._remove_broken_off()
        self._copy_at_checkpoints()
        self._bound()
        for place in waiting(self._at.state_dir):
            if self._may_begin(place.name):
                self._begin(place.name)
        self._report()

    def close(self) -> None:
        """End the processes: they continue with the next worker."""
        for process in self._running.values():
            process.kill()
            process.wait()
            _close_input(process)
        self._running.clear()

    def _reap(self) -> None:
        for name, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[name]
            _close_input(process)
            if process.returncode == 0:
                self._pauses.pop(name, None)
                self._remove(name)
                continue
            _, pause_s = self._pauses.get(name, (0.0, FIRST_PAUSE_S))
            self._pauses[name] = (time.monotonic() + pause_s, min(2 * pause_s, LONGEST_PAUSE_S))
            _log.warning("outputs_not_collected", name=name, exit_code=process.returncode)

    def _may_begin(self, name: str) -> bool:
        next_s, _ = self._pauses.get(name, (0.0, 0.0))
        return name not in self._running and len(self._running) < MOST_AT_ONCE and time.monotonic() >= next_s

    def _begin(self, name: str, copy_of: str | None = None, step: int | None = None) -> None:
        at = self._at
        order = CollectOrder(
            state_dir=str(at.state_dir),
            place=name,
            api_url=at.api_url,
            key_file=str(at.key_file),
            ca_file=None if at.ca_file is None else str(at.ca_file),
            copy_of=copy_of,
            step=step,
        )
        command = [sys.executable, "-I", "-m", "workers.host.outputs.collect_process"]
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd="/")  # noqa: S603  # our own module
        self._running[name] = process
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()

    def _remove_broken_off(self) -> None:
        """Remove copies that a kill broke off: the files are of a later step by now. Also what nothing waits for."""
        for place in self._root.glob("*/"):
            if place.name in self._running or read_collection(place) is not None:
                continue
            attempt, _, step = place.name.partition(".")
            if step or not (self._at.state_dir / "attempts" / attempt).is_dir():
                self._remove(place.name)

    def _copy_at_checkpoints(self) -> None:
        for attempt in (self._at.state_dir / "attempts").glob("*/"):
            for seen in unseen(attempt):
                self._copy_or_skip(attempt, seen)

    def _copy_or_skip(self, attempt: Path, seen: Seen) -> None:
        name, wanted = f"{attempt.name}.step-{seen.step}", collection_of(attempt)
        if wanted is None:
            return
        is_busy = seen.has_next or any(self._root.glob(f"{attempt.name}.step-*"))
        if is_busy:
            words = "outputs of an earlier checkpoint were still being uploaded"
            self._unreported.append((msgspec.structs.replace(wanted, step=seen.step), "skipped", words))
            return
        make_closed(self._root / name)
        self._begin(name, attempt.name, seen.step)

    def _bound(self) -> None:
        """Drop the one that waits longest while all together have too many bytes, copies first, and what is too old."""
        found = [(place, read_collection(place), _size_of(place)) for place in waiting(self._at.state_dir)]
        total = sum(num_bytes for *_, num_bytes in found)
        for place, wanted, num_bytes in sorted(found, key=lambda one: one[1] is None or one[1].step is None):
            if wanted is None or place.name in self._running:
                continue
            is_old = wall_ms() - wanted.since_ms > MOST_DAYS * _MS_PER_DAY
            if is_old or (total > self._most_bytes and num_bytes):
                words = "they waited for too long" if is_old else "more outputs wait on this host than have room there"
                self._unreported.append((wanted, "failed", f"{OUTPUTS_GIVEN_UP}: {words}"))
                self._remove(place.name)
                total -= num_bytes

    def _report(self) -> None:
        if not self._unreported:
            return
        wanted, found, words = self._unreported[0]
        note = notes.note_of(wanted.fence, wanted.step, notes.fields_of(found, words))
        if notes.report_once(self._client, wanted.attempt_id, note):
            self._unreported.popleft()

    def _remove(self, name: str) -> None:
        try:
            remove_work_folder(self._root / name)
        except OSError as fault:
            _log.warning("outputs_left", name=name, fault=str(fault))


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _size_of(place: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((place / SIZE).read_text(encoding="ascii"))
    return 0
