"""Preflights of jobs before their placement: an attempt's own preparation, by a supervisor, with no GPU and no start.

A preflight's folder is its ledger: it stands among the attempts' folders from the order on, holds the result, and is
removed after the control plane has stopped listing the preflight. After a kill the next launcher continues it.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from muster.domain.ids import AttemptId
from muster.wire.host import Order, PreflightOrder, PreflightReport
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder, boottime_ms
from workers.host.proof_tries import ProofTries
from workers.host.supervisor.files import NS_PER_MS, STOP
from workers.host.supervisor.record.exit_record import PROGRAM, REFUSED

PREFIX: Final = "look-"
_LONGEST_WHY: Final = 4_000
_MOST_REPORTS: Final = 64
_NO_PORT: Final = 0
"""Port of preflights, which never listen. Another process could get a port of its own, and no proof would be clean."""
_REPORT_BEFORE_S: Final = 3.0
"""Time by which a preflight ends before the control plane stops waiting, so that its reason arrives."""
_KILLED_AFTER_MS: Final = 1_000
_DIES_WITHIN_MS: Final = 1_000
_HANGING_AGAIN_MS: Final = 60_000
"""Pause between tries to end a process that hangs in the kernel, since each try takes the launcher's time."""
_KILLED: Final = "killed.json"
_UNLISTED: Final = "cancel"
"""Reason of the stop of a preflight that the control plane lists no more."""
_log = structlog.get_logger(__name__)


class Preflights:
    """Preflights of a host. ``write``: writes an order into its folder, with the port and the end of its time.

    The launcher knows what else belongs there.
    """

    def __init__(
        self, state_dir: Path, checkpoints: Path | None, write: Callable[[AttemptFolder, Order, int, int], None]
    ) -> None:
        self._attempts = state_dir / "attempts"
        self._state_dir = state_dir
        self._checkpoints = checkpoints
        self._write = write
        self._open = self._found_ids()
        self._hanging: dict[str, PreflightReport] = {}
        self._proofs: dict[str, ProofTries] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._open - self._hanging.keys())

    def turn(self) -> bool:
        """Return whether a preflight has ended clean, or was found to hang, since the last turn, and must be
        reported.
        """
        hung = [preflight_id for preflight_id in self._open if self._hangs(preflight_id)]
        over = {
            preflight_id for preflight_id in self._open if self._is_over(preflight_id) and self._is_clean(preflight_id)
        }
        self._open -= over
        for preflight_id in over:
            self._hanging.pop(preflight_id, None)
        return bool(over or hung)

    def _hangs(self, preflight_id: str) -> bool:
        """Return whether a preflight is newly found to hang. After its time it is killed with all its process group."""
        folder = self._folder(preflight_id)
        lease_ns = ((folder.read("order.json") or {}).get("lease") or {}).get("boottime_ns")
        killed_ms = (folder.read(_KILLED) or {}).get("boottime_ms")
        if lease_ns is None or preflight_id in self._hanging:
            return False
        found = supervisor.adopt(folder.path)
        if found.exit_record is not None and boottime_ms() >= lease_ns // NS_PER_MS + _KILLED_AFTER_MS:
            return self._leaves_something(preflight_id, folder, found.exit_record)
        if found.state != "running" or found.pid is None:
            return False
        if killed_ms is None:
            if boottime_ms() >= lease_ns // NS_PER_MS + _KILLED_AFTER_MS:
                folder.write_killed(boottime_ms())
                _kill_group(found.pid)
            return False
        if boottime_ms() < killed_ms + _DIES_WITHIN_MS:
            return False
        why = f"it hangs in the kernel and cannot be ended: process {found.pid}, {_wait_of(found.pid)}"
        self._hanging[preflight_id] = PreflightReport(preflight_id=preflight_id, found="unable", why=why)
        _log.error("preflight_hangs", preflight_id=preflight_id, pid=found.pid, why=why)
        return True

    def _leaves_something(self, preflight_id: str, folder: AttemptFolder, record: dict[str, Any]) -> bool:
        """Report a preflight that has ended and cannot be proved clean, such as for a child that hangs in a mount.

        The report has the preflight's own reason.
        """
        if _has_proof(folder):
            return False
        report = _report(preflight_id, folder, record)
        if report.found == "fit":
            report = PreflightReport(
                preflight_id=preflight_id, found="unable", why="something of the preflight is left and cannot be ended"
            )
        self._hanging[preflight_id] = report
        _log.error("preflight_hangs", preflight_id=preflight_id, why=report.why)
        return True

    def reports(self) -> tuple[PreflightReport, ...]:
        """Return reports of ended preflights that the control plane may not have received.

        A preflight is reported only after nothing of it is left: after the report the job may be placed here at once,
        and its attempt would find a place that is not clean.
        """
        folders = ((preflight_id, self._folder(preflight_id)) for preflight_id in sorted(self._found_ids()))
        found = [
            (preflight_id, folder, folder.read("exit.json")) for preflight_id, folder in folders if _has_proof(folder)
        ]
        done = [_report(preflight_id, folder, record) for preflight_id, folder, record in found if record is not None]
        done += [report for preflight_id, report in self._hanging.items() if not _has_proof(self._folder(preflight_id))]
        return tuple(done[:_MOST_REPORTS])

    def receive(self, orders: Sequence[PreflightOrder], reported: Sequence[PreflightReport]) -> list[AttemptFolder]:
        """Begin the preflights that the control plane lists, and return the folders of preflights that may be
        forgotten.

        These are the ones whose report was received and that the control plane does not list any more.
        """
        listed = {order.order.attempt_id for order in orders}
        for order in orders:
            self._begin(order)
        for preflight_id in self._open - listed:
            self._end_unlisted(preflight_id)
        over = {report.preflight_id for report in reported} - listed - self._hanging.keys()
        return [self._folder(preflight_id) for preflight_id in sorted(over)]

    def _begin(self, order: PreflightOrder) -> None:
        preflight_id = order.order.attempt_id
        if not _is_preflight(preflight_id) or order.order.gpus:
            _log.warning("no_preflight", preflight_id=preflight_id, why="it is not named as one, or names GPUs")
            return
        folder = self._folder(preflight_id)
        state = supervisor.adopt(folder.path).state
        if state == "not_started":  # a launcher may have died between the order and the start
            own_s = max(order.within_s / 2, order.within_s - _REPORT_BEFORE_S)
            self._write(folder, order.order, _NO_PORT, boottime_ms() + round(own_s * 1000))
            supervisor.spawn_supervisor(folder.path)
        if state in {"not_started", "running"}:
            self._open.add(preflight_id)

    def _end_unlisted(self, preflight_id: str) -> None:
        """End a preflight whose job waits no more, with all that it started, and refuse one that has not started."""
        folder = self._folder(preflight_id)
        state = supervisor.adopt(folder.path).state
        if state == "not_started":
            supervisor.refuse_start(folder.path, "it is listed no more")
        elif state == "running" and folder.read(STOP) is None:
            folder.write_stop(_UNLISTED, boottime_ms())
            supervisor.wake(folder.path)

    def _is_over(self, preflight_id: str) -> bool:
        folder = self._folder(preflight_id)
        state = supervisor.adopt(folder.path).state
        if state == "vanished":
            supervisor.reap_vanished(folder.path)
        return state in {"vanished", "exited"}

    def _is_clean(self, preflight_id: str) -> bool:
        """Return whether its secrets and files are removed. A failed proof is tried again, rarely after a while.

        Each try may take seconds, in which the host does nothing else.
        """
        folder = self._folder(preflight_id)
        if not _has_proof(folder):
            tries = self._proofs.setdefault(preflight_id, ProofTries(first_ms=boottime_ms()))
            if not tries.are_due:
                return False
            if not supervisor.prove_clean(folder.path).get("clean"):
                tries.wait()
                if preflight_id in self._hanging:
                    tries.next_ms = boottime_ms() + _HANGING_AGAIN_MS
                return False
        self._proofs.pop(preflight_id, None)
        return True

    def _found_ids(self) -> set[str]:
        if not self._attempts.is_dir():
            return set()
        return {folder.name for folder in self._attempts.iterdir() if _is_preflight(folder.name)}

    def _folder(self, preflight_id: str) -> AttemptFolder:
        return AttemptFolder(self._state_dir, AttemptId(preflight_id), self._checkpoints)


def _kill_group(pid: int) -> None:
    """Kill a supervisor's process group. It is in a session of its own; what it has started dies with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)


def _wait_of(pid: int) -> str:
    """Return what a process waits in, if the kernel states it."""
    try:
        return f"in {Path(f'/proc/{pid}/wchan').read_text(encoding='ascii').strip() or 'an unknown wait'}"
    except OSError:
        return "in an unknown wait"


def _has_proof(folder: AttemptFolder) -> bool:
    return bool((folder.read("clean.json") or {}).get("clean"))


def _is_preflight(name: str) -> bool:
    return name.startswith(PREFIX) and "/" not in name


def _report(preflight_id: str, folder: AttemptFolder, record: dict[str, Any]) -> PreflightReport:
    why = str(record.get("spawn_error") or "").replace("\x00", "\ufffd")[:_LONGEST_WHY]
    seen = folder.read("ready.json")
    if record.get("spawn_fault") == PROGRAM:
        return PreflightReport(preflight_id=preflight_id, found="unfit", why=why)
    if why and record.get("spawn_fault") != REFUSED:
        return PreflightReport(preflight_id=preflight_id, found="unable", why=why)
    if folder.read(_KILLED) is not None:
        why = "it did not end in time and was killed: a file system or device that it reads does not answer"
    elif record.get("self_fenced"):
        why = "it did not end in time"
    if why or seen is None:
        return PreflightReport(
            preflight_id=preflight_id, found="unable", why=why or "its supervisor was killed during the check"
        )
    return PreflightReport(preflight_id=preflight_id, found="fit", checked=tuple(seen.get("looked_at", ())))
