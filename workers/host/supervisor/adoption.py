"""Queries of a launcher about an attempt on its host, started by any launcher: by files, lock and /proc alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.cgroup.group import find_group, group_name
from workers.host.supervisor.cgroup.place import NONE
from workers.host.supervisor.lock import is_locked, take_lock
from workers.host.supervisor.order import OrderError, read_order
from workers.host.supervisor.proof.cleaning import kill_leftovers, prove_in_time
from workers.host.supervisor.proof.processes import is_same_process
from workers.host.supervisor.record import exit_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    AdoptionState = Literal["not_started", "running", "exited", "vanished"]


_PROOF_PATIENCE_S = 1.0
"""Longest wait of the launcher; a process that hangs longer is checked again on its next turn."""


class Adoption:
    """State of an attempt on this host.

    ``vanished``: it was started, and its supervisor has ended without an exit record: killed, or the machine rebooted.
    ``pid`` is the supervisor's while it runs (None in its first milliseconds); ``exit_record`` is there after its end.
    """

    __slots__ = ("exit_record", "pid", "state")

    def __init__(self, state: AdoptionState, pid: int | None = None, exit_record: dict[str, Any] | None = None) -> None:
        self.state = state
        self.pid = pid
        self.exit_record = exit_record

    def __repr__(self) -> str:
        return f"Adoption({self.state!r}, pid={self.pid})"


def adopt(attempt_dir: Path) -> Adoption:
    """Return an attempt's state on this host. It changes nothing, and never hinders a supervisor that starts."""
    # The order of checks matters: a supervisor writes its exit record before it releases the lock.
    holds_lock = is_locked(attempt_dir / files.LOCK)
    record = files.read_json(attempt_dir / files.EXIT)
    if record is not None:
        return Adoption("exited", exit_record=record)
    identity = files.read_json(attempt_dir / files.IDENTITY)
    if holds_lock:
        return Adoption("running", pid=_living_pid(identity))
    return Adoption("not_started" if identity is None else "vanished")


def wake(attempt_dir: Path) -> bool:
    """Make the supervisor read its files now. Returns whether there was one."""
    pid = _living_pid(files.read_json(attempt_dir / files.IDENTITY))
    if pid is None or not is_locked(attempt_dir / files.LOCK):
        return False
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return False
    return True


def refuse_start(attempt_dir: Path, why: str) -> bool:
    """Ensure that this attempt never starts here: write an exit record with the refusal, under the supervisor's own
    lock.

    False if it has been started already, or is being started at this moment.
    """
    attempt_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = take_lock(attempt_dir / files.LOCK)
    if lock is None:
        return False
    try:
        if (attempt_dir / files.IDENTITY).exists() or (attempt_dir / files.EXIT).exists():
            return False
        order = files.read_json(attempt_dir / files.ORDER) or {}
        record = exit_record.refusal(
            attempt_dir.name,
            int(order.get("fence", 0)),
            str(order.get("boot_id", "")),
            f"not started: {why}",
            exit_record.REFUSED,
        )
        files.write_json(attempt_dir / files.EXIT, {**record, "stop_reason": why})
        return True
    finally:
        os.close(lock)


def reap_vanished(attempt_dir: Path) -> dict[str, Any]:
    """Clean up after an attempt whose supervisor has ended: kill what still carries its mark, write its records.

    Returns the exit record; the supervisor's own if it wrote one after all.

    Raises:
        RuntimeError: its supervisor lives.
    """
    lock = take_lock(attempt_dir / files.LOCK)
    if lock is None:
        raise RuntimeError(f"{attempt_dir.name} has a living supervisor; nothing to reap")
    try:
        existing = files.read_json(attempt_dir / files.EXIT)
        if existing is not None:
            return existing
        order = read_order(attempt_dir)
        identity = files.read_json(attempt_dir / files.IDENTITY) or {}
        group = find_group(identity, group_name(order.attempt_id, order.node_id))
        killed = kill_leftovers(order, group, supervisor_pid=None, reap=_nothing_to_reap)
        record = {
            **exit_record.blank_record(order.attempt_id, order.fence, order.boot_id),
            "started_at_ms": identity.get("started_at_ms"),
            "ranks": exit_record.rank_outcomes(
                attempt_dir,
                order,
                reaped={},
                main_code=None,
                excerpt=lambda stream: exit_record.file_excerpt(attempt_dir, stream),
                reported=None,
            ),
            "killed_descendants": killed,
            **exit_record.host_facts(order, group),
            "supervisor_vanished": True,
        }
        files.write_json(attempt_dir / files.EXIT, record)
        prove_in_time(
            attempt_dir, order, group, supervisor_pid=None, reap=_nothing_to_reap, patience_s=_PROOF_PATIENCE_S
        )
        return record
    finally:
        os.close(lock)


def prove_clean(attempt_dir: Path) -> dict[str, Any]:
    """Prove (again) that nothing of the attempt is left here, after ending what is. Writes and returns the proof.

    While its supervisor lives, that one does it: the answer is its newest proof, or that there is none yet.
    """
    if not attempt_dir.is_dir():
        return _proof_of_nothing(is_clean=True)
    lock = take_lock(attempt_dir / files.LOCK)
    if lock is None:
        return files.read_json(attempt_dir / files.CLEAN) or _proof_of_nothing(is_clean=False)
    try:
        order = read_order(attempt_dir)
        identity = files.read_json(attempt_dir / files.IDENTITY)
        group = find_group(identity, group_name(order.attempt_id, order.node_id))
        kill_leftovers(order, group, supervisor_pid=None, reap=_nothing_to_reap)
        return prove_in_time(
            attempt_dir, order, group, supervisor_pid=None, reap=_nothing_to_reap, patience_s=_PROOF_PATIENCE_S
        )
    except OrderError:  # without an order nothing has ever been started
        proof = _proof_of_nothing(is_clean=True)
        files.write_json(attempt_dir / files.CLEAN, proof)
        return proof
    finally:
        os.close(lock)


def _nothing_to_reap() -> None:
    """Do nothing: the attempt's processes are children of init, not of the caller."""


def _proof_of_nothing(*, is_clean: bool) -> dict[str, Any]:
    return {
        "clean": is_clean,
        "processes_left": 0,
        "container_removed": is_clean,
        "uid": None,
        "cgroup": NONE,
        "cgroup_empty": is_clean,
        "ports_left": [],
        "scratch_removed": is_clean,
        "secrets_removed": is_clean,
        "gpu_processes": {} if is_clean else None,
        "gpu_processes_unknown": None if is_clean else "not asked: there is no proof yet",
        "checked_at_ms": files.wall_ms(),
    }


def _living_pid(identity: dict[str, Any] | None) -> int | None:
    """Return the pid that the identity names, if it still is that process, in this boot."""
    if identity is None or identity.get("kernel_boot_id") != files.kernel_boot_id():
        return None
    pid, start_ticks = identity.get("pid"), identity.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(start_ticks, int) or not is_same_process(pid, start_ticks):
        return None
    return pid
