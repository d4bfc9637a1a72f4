"""Cleaning after the end: kill, remove, and prove that nothing of the attempt is left here."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.container import end as container_end
from workers.host.supervisor.proof import gpu_release
from workers.host.supervisor.proof.processes import attempt_processes, kill_all, listening_ports, removers
from workers.host.supervisor.proof.shared_memory import remove_tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.host.supervisor.cgroup.group import Group
    from workers.host.supervisor.order import Order

KILL_PATIENCE_S = 10.0
_TO_REMOVE_S = 1.0
"""Time for a program's own remover of shared memory, which needs a hundredth of it; well below any lease's margin."""
_REMOVAL_S = 5.0
_LAUNCHERS_REMOVAL_S = 2.0
"""Time for a container's engine, and for the GPUs' driver: of the supervisor, well below its lease's margin, and of the
launcher.
"""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


def reap_children() -> dict[int, int]:
    """Return every child that has ended: pid → exit code, or minus the signal's number."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_leftovers(order: Order, group: Group, *, supervisor_pid: int | None, reap: Callable[[], None]) -> int:
    """Send SIGKILL to all that belongs to the attempt on this host. Returns how many processes that took."""

    def find() -> set[int]:
        return _all_processes(order, group, supervisor_pid)

    def strike_group_and_reap() -> None:  # after the processes that were found by name, which are counted
        group.kill()
        reap()

    group.forbid_forks()
    killed = _kill_all_but_removers(find, reap)
    killed_last, _ = kill_all(find, strike_group_and_reap, patience_s=KILL_PATIENCE_S)
    remove_tensors_of(killed | killed_last)
    return len(killed | killed_last)


def _kill_all_but_removers(find: Callable[[], set[int]], reap: Callable[[], None]) -> set[int]:
    """Kill all but the program's own removers of shared memory, which alone know its names and need a moment longer.

    They are identified once, and a program that only looks like one gains no more than that moment.
    """
    spared = removers(find())
    if not spared:
        return set()
    deadline = time.monotonic() + _TO_REMOVE_S
    killed, _ = kill_all(lambda: find() - spared, reap, patience_s=_TO_REMOVE_S)
    while find() and time.monotonic() < deadline:
        time.sleep(_FIRST_PAUSE_S)
        reap()
    return killed


def _all_processes(order: Order, group: Group, supervisor_pid: int | None) -> set[int]:
    """Return all processes, by descent and mark, which a program may shed, and by group and user, which it may not."""
    found = attempt_processes(order.marks, supervisor_pid) | group.processes() | order.user.processes()
    return found - {supervisor_pid, os.getpid()}


def prove_in_time(
    folder: Path,
    order: Order,
    group: Group,
    *,
    supervisor_pid: int | None,
    reap: Callable[[], None],
    patience_s: float,
) -> dict[str, Any]:
    """Kill and check until it is clean or the patience is over.

    A dying process loses its environment, which identifies it, long before the kernel closes its ports. So one check
    right after the kill may well find the port still open.
    """
    pause_s = _FIRST_PAUSE_S
    deadline = time.monotonic() + patience_s
    while True:
        proof = prove(folder, order, group, supervisor_pid=supervisor_pid)
        if proof["clean"] or time.monotonic() > deadline:
            return proof
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        kill_leftovers(order, group, supervisor_pid=supervisor_pid, reap=reap)


def _rank_pids(folder: Path, order: Order) -> set[int]:
    """Return the pids of ranks, also of ended ones."""
    said = (order.user.read_json(folder / files.RANKS / f"{rank}.json") or {} for rank in order.local_ranks)
    return {started["pid"] for started in said if isinstance(started.get("pid"), int)}


def prove(folder: Path, order: Order, group: Group, *, supervisor_pid: int | None) -> dict[str, Any]:
    """Check, write ``clean.json`` and return it: clean only with nothing left.

    That is no process, container, group, port, secret or scratch, and nothing that computes on its GPUs as far as their
    driver reports.
    """
    import shutil  # noqa: PLC0415  # it loads three compressors, and the start of the program would wait for them

    removal_s = _LAUNCHERS_REMOVAL_S if supervisor_pid is None else _REMOVAL_S
    is_container_gone = container_end.remove(order, folder, removal_s)
    scratch = files.scratch_path(folder)
    for place in (scratch, folder / files.PIPES):
        shutil.rmtree(place, ignore_errors=True)
    order.user.remove_shared_memory()
    remove_tensors_of(_rank_pids(folder, order))
    are_secrets_removed = order.secrets.remove(folder)
    left = _all_processes(order, group, supervisor_pid)
    is_group_gone = group.remove()
    ports = listening_ports(left) if left else set()
    if order.node_rank == 0 and order.rendezvous_port in listening_ports():
        ports.add(order.rendezvous_port)
    is_clean = all((not left, is_container_gone, is_group_gone, not ports, not scratch.exists(), are_secrets_removed))
    if is_clean:
        gpus = gpu_release.check(order, patience_s=removal_s)
    else:
        gpus = gpu_release.GpuRelease(None, "not asked: something else is left")
    proof = {
        "clean": is_clean and not gpus.is_in_use,
        "processes_left": len(left),
        "container_removed": is_container_gone,
        "uid": order.user.uid,
        "cgroup": group.kind,
        "cgroup_empty": is_group_gone,
        "ports_left": sorted(ports),
        "scratch_removed": not scratch.exists(),
        "secrets_removed": are_secrets_removed,
        "gpu_processes": gpus.processes,
        "gpu_processes_unknown": gpus.unknown,
        "checked_at_ms": files.wall_ms(),
    }
    files.write_json(folder / files.CLEAN, proof)
    return proof
