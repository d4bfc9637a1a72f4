"""The supervisor's life: lock, order, start, watch, stop, record, proof.

One thread and one poll loop. It needs no other process: neither the launcher nor the control plane has to live for the
lease to fence it, the wall time to end it or the exit record to be written.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.bundle import BundleFetch, UnfitBundleError
from workers.host.supervisor.cgroup.device_files import DeviceFiles, isolate
from workers.host.supervisor.cgroup.group import find_group, group_name, make_group
from workers.host.supervisor.cgroup.memory_kills import MemoryKills
from workers.host.supervisor.cgroup.place import find_place
from workers.host.supervisor.children import StartError
from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.container.end import has_own_group
from workers.host.supervisor.control_files import StopOrder, WatchedFile, lease_end_ns
from workers.host.supervisor.datasets import DatasetCheck, UnfitDatasetError
from workers.host.supervisor.kernel import adopt_orphans, prefer_to_kill
from workers.host.supervisor.lock import take_lock
from workers.host.supervisor.meetings import Meetings
from workers.host.supervisor.missing import TORCH, lacks_of
from workers.host.supervisor.order import OrderError, read_order
from workers.host.supervisor.preparation import UnfitFolderError, UnreadyError, check_host, write_and_read
from workers.host.supervisor.program import MissingProgramError, Program
from workers.host.supervisor.proof.cleaning import kill_leftovers, prove_in_time
from workers.host.supervisor.proof.processes import read_process
from workers.host.supervisor.quick_check import QuickCheck, WrongResultError
from workers.host.supervisor.record import exit_record
from workers.host.supervisor.stop_plan import StopPlan
from workers.host.supervisor.watch_orders import WatchOrders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from workers.host.supervisor.order import Order
    from workers.host.supervisor.order_parts import Preparation
    from workers.host.supervisor.record.log_streams import LogStream
    from workers.host.supervisor.record.rank_socket import RankSocket
    from workers.host.supervisor.standby import Standby

EXIT_LOCKED = 10
EXIT_STARTED_BEFORE = 11
EXIT_BAD_ORDER = 12
_POLL_MS = 200
_STOPPING_POLL_MS = 20
_PROOF_PATIENCE_S = 30.0
_OOM_SCORE = -900
_USAGE_ERROR = 2
"""Exit code of torchrun where it does not know one of its arguments, as an older torch does not."""
_NO_TORCH = "No module named 'torch"
LEASE = "lease"
WALL_TIME = "walltime"
HOST_SHUTDOWN = "host_shutdown"


class Supervisor:
    def __init__(self, folder: Path, order: Order, standby: Standby | None) -> None:
        self._folder = folder
        self._order = order
        self._group = make_group(
            find_place(), group_name(order.attempt_id, order.node_id), order.limits, bars_devices=has_nvidia()
        )
        self._device_files: DeviceFiles | None = None
        self._memory_kills = MemoryKills(self._group, is_elsewhere=has_own_group(order))
        self._program = Program(folder, order, self._group, standby)
        self._plan = StopPlan()
        self._lease_file = WatchedFile(folder / files.LEASE)
        self._stop_file = WatchedFile(folder / files.STOP)
        self._pins_file = WatchedFile(folder / files.PINS)
        self._watch_orders = WatchOrders(folder)
        self._lease_until_ns = order.lease_until_ns
        self._wall_time_ends_ns: int | None = None
        self._is_host_stopping = False
        self._meetings: Meetings | None = None
        self._record = exit_record.blank_record(order.attempt_id, order.fence, order.boot_id)
        self._wakeup, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        self._listen_to_signals()
        self._write_identity()
        adopt_orphans()
        self._read_control_files()
        if self._plan.is_requested:
            self._refuse("it was asked to stop, or its lease had ended, before the start", exit_record.REFUSED)
        elif self._prepare() and self._has_go() and self._start():
            self._watch()
        self._end()

    def _listen_to_signals(self) -> None:
        """Install handlers before the identity is written: from then on the launcher may send SIGUSR1, which kills by
        default.
        """
        for number in (signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, _nothing)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._note_host_stop)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def _note_host_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_host_stopping = True

    def _write_identity(self) -> None:
        own = read_process(os.getpid())
        identity = {
            "pid": os.getpid(),
            "start_ticks": own.start_ticks if own else 0,
            "boot_id": self._order.boot_id,
            "kernel_boot_id": files.kernel_boot_id(),
            "fence": self._order.fence,
            "started_at_ms": files.wall_ms(),
            "cgroup": self._group.identity(),
        }
        self._record["started_at_ms"] = identity["started_at_ms"]
        files.write_json(self._folder / files.IDENTITY, identity)

    def _prepare(self) -> bool:
        """Prepare, and report ready if the part waits for its go; without one, it continues at once."""
        preparation = self._order.preparation
        self._device_files = isolate(self._order, self._group)
        try:
            checked = self._checked(preparation)
            if checked is None:
                return False
            if preparation is not None:
                self._report_ready(preparation, checked)
        except (MissingProgramError, UnfitFolderError, UnfitDatasetError, UnfitBundleError) as fault:
            self._refuse(str(fault), exit_record.PROGRAM, lacks_of(fault))
            return False
        except UnreadyError as fault:
            if isinstance(fault, WrongResultError):
                self._record["quick_check"] = {"gpu": fault.gpu, "wrong": fault.wrong}
            self._refuse(str(fault), exit_record.PREFLIGHT, lacks_of(fault))
            return False
        except (StartError, OSError) as fault:
            side = exit_record.HOST if preparation is None else exit_record.PREFLIGHT
            self._refuse(str(fault), side, lacks_of(fault))
            return False
        return True

    def _checked(self, preparation: Preparation | None) -> list[str] | None:
        """Return the names of what was checked; None if it was asked to stop meanwhile. Raises what prevents
        the start.
        """
        if self._order.bundle is not None and not self._has_bundle(self._order.bundle):
            return None
        checked = [*(["bundle"] if self._order.bundle is not None else []), *self._program.prepare()]
        if self._order.datasets:
            if not self._wait_for(DatasetCheck(self._order)):
                return None
            checked.append("datasets")
        if preparation is None:
            return checked
        checked += check_host(self._order, self._folder, preparation)
        if preparation.quick_check_s > 0:
            checked += write_and_read(self._order)
            if not self._wait_for(QuickCheck(self._folder, preparation, self._order.gpus)):
                return None
            checked.append("GPUs computed right")
        return checked

    def _has_bundle(self, bundle: dict[str, Any]) -> bool:
        """Return whether it is here; False: it was asked to stop meanwhile."""
        fetch = BundleFetch(bundle, self._group)
        if not self._wait_for(fetch):
            return False
        if fetch.venv is not None:
            self._order.use_venv(fetch.venv)
        return True

    def _report_ready(self, preparation: Preparation, checked: list[str]) -> None:
        if preparation.has_pairwise_check:
            self._meetings = Meetings(self._folder, self._order, preparation)
        where = {} if self._meetings is None else self._meetings.facts()
        files.write_json(self._folder / files.READY, {"looked_at": checked, **where})

    def _wait_for(self, check: BundleFetch | DatasetCheck | QuickCheck) -> bool:
        """Return whether the check passed; False: it was asked to stop meanwhile."""
        try:
            return self._wait_until(check.is_over)
        finally:
            check.kill()

    def _has_go(self) -> bool:
        """Return whether the program may start. A preflight ends here: its result is in ``ready.json``, or in its exit
        record.
        """
        preparation = self._order.preparation
        if preparation is not None and preparation.is_preflight_only:
            return False
        if preparation is None:
            return True
        try:
            return self._wait_until(self._may_go)
        finally:
            if self._meetings is not None:
                self._meetings.close()

    def _may_go(self) -> bool:
        if self._meetings is not None:
            self._meetings.turn()
        return (self._folder / files.GO).exists()

    def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Wait, unless a stop or the end of the lease comes first. The launcher sends a signal after each change."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        while not self._plan.is_requested:
            if is_so():
                return True
            if poll.poll(self._pause_ms()):
                self._drain_wakeup()
            self._read_control_files()
        self._refuse("it was asked to stop, or its lease had ended, while it waited", exit_record.REFUSED)
        return False

    def _start(self) -> bool:
        try:
            self._program.start()
        except MissingProgramError as fault:
            self._refuse(str(fault), exit_record.PROGRAM, lacks_of(fault))
            return False
        except (StartError, OSError) as fault:
            self._refuse(str(fault), exit_record.HOST, lacks_of(fault))
            return False
        files.note_event(self._folder, "user", **self._order.user.facts())
        files.note_event(self._folder, "cgroup", **self._group.identity(), reason=self._group.reason)
        files.note_event(self._folder, "device_files", **self._isolation_facts())
        if self._order.wall_time_ns is not None:
            self._wall_time_ends_ns = files.boottime_ns() + self._order.wall_time_ns
        return True

    def _isolation_facts(self) -> dict[str, Any]:
        return {} if self._device_files is None else self._device_files.facts(self._group)

    def _refuse(self, why: str, fault: str, lacks: str | None = None) -> None:
        self._record |= {"spawn_error": why, "spawn_fault": fault, "lacks": lacks, "stop_reason": self._plan.reason}

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        streams: dict[int, LogStream | RankSocket] = {
            stream.descriptor: stream for stream in self._program.streams.values()
        }
        for ranks in (self._program.train_socket, self._program.watch_socket):
            if ranks is not None:
                streams[ranks.descriptor] = ranks
        for descriptor in streams:
            poll.register(descriptor, select.POLLIN)
        while not self._program.has_ended():
            for descriptor, _ in poll.poll(self._pause_ms()):
                if descriptor == self._wakeup:
                    self._drain_wakeup()
                    continue
                streams[descriptor].pump()
                if not streams[descriptor].is_open:
                    poll.unregister(descriptor)
            self._program.reap()
            self._read_control_files()
            if not self._program.has_ended() and self._plan.is_requested and self._carry_out_stop():
                return

    def _drain_wakeup(self) -> None:
        try:
            while os.read(self._wakeup, 512):
                pass
        except BlockingIOError:
            return

    def _pause_ms(self) -> int:
        """Return the time until the next deadline, and never more than the files may stay unread."""
        now = files.boottime_ns()
        moments = (self._lease_until_ns, self._wall_time_ends_ns, self._plan.kill_at_ns)
        until_ms = [(moment - now) // files.NS_PER_MS + 1 for moment in moments if moment is not None and moment > now]
        return min([_STOPPING_POLL_MS if self._plan.is_requested else _POLL_MS, *until_ms])

    def _read_control_files(self) -> None:
        renewed = self._lease_file.news()
        if renewed is not None and (until := lease_end_ns(renewed)) is not None:
            self._lease_until_ns = until
        stop = self._stop_file.news()
        now = files.boottime_ns()
        if stop is not None:
            order = StopOrder(stop)
            self._ask(order.reason, order.kill_at_ns, is_terminating=order.is_terminating)
            self._record["self_fenced"] |= order.reason == LEASE
        if now >= self._lease_until_ns and not self._record["self_fenced"]:
            self._record["self_fenced"] = True
            self._ask(LEASE, now + self._order.fence_grace_ns)
        if self._wall_time_ends_ns is not None and now >= self._wall_time_ends_ns:
            self._wall_time_ends_ns = None
            self._record["wall_time_exceeded"] = True
            self._ask(WALL_TIME, now + self._order.grace_ns)
        self._report_pins()
        self._watch_orders.turn(self._program)
        if self._is_host_stopping:
            self._is_host_stopping = False
            self._ask(HOST_SHUTDOWN, now + self._order.grace_ns)

    def _report_pins(self) -> None:
        """Send the pins when ranks are connected. Unreadable pins come with the order of the next attempt."""
        socket = self._program.train_socket
        if socket is None or not socket.is_open or (pins := self._pins_file.news()) is None:
            return
        if isinstance(names := pins.get("generations"), list):
            socket.report({"type": "pins", "generations": names})

    def _ask(self, reason: str, kill_at_ns: int, *, is_terminating: bool = True) -> None:
        before = self._plan.kill_at_ns
        has_changed = self._plan.ask(reason, kill_at_ns, is_terminating=is_terminating)
        what = "stop_changed" if has_changed else "stop_kept"
        details = {"kill_at_boottime_ns": self._plan.kill_at_ns, "before_boottime_ns": before}
        files.note_event(self._folder, what, reason=reason, asked_boottime_ns=kill_at_ns, **details)
        if has_changed:
            self._report_ranks()
            files.write_json(self._folder / files.STOPPING, {"reason": self._plan.reason, **details})

    def _report_ranks(self) -> None:
        """Send reason and deadline before the signal: a rank may then decide whether a checkpoint still fits."""
        if self._program.train_socket is None or not self._plan.is_terminating:
            return
        left_ms = max(0, (self._plan.kill_at_ns or 0) - files.boottime_ns()) // files.NS_PER_MS
        deadline_ms = files.wall_ms() + left_ms
        self._program.train_socket.report(
            {"type": "stop", "reason": self._plan.reason, "deadline_unix_ms": deadline_ms}
        )

    def _carry_out_stop(self) -> bool:
        """Carry out the stop and return whether the time is over: the caller then kills everything."""
        if self._plan.is_terminating:
            self._record["stop_reason"] = self._plan.reason
            self._program.terminate()
        if not self._plan.is_kill_due(files.boottime_ns()):
            return False
        self._record["stop_reason"] = self._plan.reason
        files.note_event(self._folder, "kill", reason=self._plan.reason)
        return True

    def _end(self) -> None:
        """Kill everything, write the record to disk, then prove that nothing is left, for as long as that may take."""
        order, program = self._order, self._program
        killed = kill_leftovers(order, self._group, supervisor_pid=os.getpid(), reap=program.reap)
        program.reap()
        dropped = program.drain()
        exit_code, number = exit_record.split_status(program.exit_code)
        self._record |= {
            "ended_at_ms": files.wall_ms(),
            "launcher": "torchrun" if order.is_torchrun else "command",
            "launcher_exit_code": exit_code,
            "launcher_signal": number,
            "ranks": exit_record.rank_outcomes(
                self._folder,
                order,
                reaped=program.reaped,
                main_code=program.exit_code,
                excerpt=program.excerpt,
                reported=None if program.train_socket is None else program.train_socket.outcomes,
            ),
            "dropped_log_bytes": dropped,
            "killed_descendants": killed,
            **exit_record.host_facts(order, self._group, is_counted=not has_own_group(order)),
            **self._isolation_facts(),
        }
        self._blame_launcher()
        self._record["oom_killed"] = self._memory_kills.have_ended(program.exit_code, self._record)
        files.write_json(self._folder / files.EXIT, self._record)
        prove_in_time(
            self._folder,
            order,
            self._group,
            supervisor_pid=os.getpid(),
            reap=program.reap,
            patience_s=_PROOF_PATIENCE_S,
        )

    def _blame_launcher(self) -> None:
        """Record torchrun or the container as the cause if no rank ever ran: no torch, no peer, no free port."""
        has_ended_itself = self._program.exit_code is not None and not self._record["stop_reason"]
        if has_ended_itself and (refusal := self._program.why_not_started()):
            self._record |= dict(zip(("spawn_error", "spawn_fault", "lacks"), refusal, strict=True))
            return
        if not self._order.is_torchrun or not has_ended_itself or self._program.exit_code == 0:
            return
        if not any((self._folder / files.RANKS / f"{rank}.json").exists() for rank in self._order.local_ranks):
            words = self._program.excerpt("launcher")
            lacks = TORCH if self._program.exit_code == _USAGE_ERROR or _NO_TORCH in words else None
            side = exit_record.PROGRAM if lacks and self._order.container is not None else exit_record.HOST
            why = f"torchrun ended before any rank started: {words}"
            self._record |= {"spawn_error": why, "spawn_fault": side, "lacks": lacks}


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal is in the wake-up descriptor, which the loop reads."""


def main(folder_name: str, standby: Standby | None = None) -> int:
    """Supervise one attempt, start to proof. The exit codes only state why nothing was run; all else stands in files.

    ``standby``: a warm torchrun, used if it fits the order.
    """
    folder = Path(folder_name)
    lock = take_lock(folder / files.LOCK)
    if lock is None:
        return _complain(EXIT_LOCKED, "another supervisor of this attempt lives")
    if (folder / files.IDENTITY).exists() or (folder / files.EXIT).exists():
        return _complain(EXIT_STARTED_BEFORE, "this attempt has been started here before")
    try:
        order = read_order(folder)
    except OrderError as fault:
        record = exit_record.refusal(folder.name, 0, "", str(fault), exit_record.HOST)
        files.write_json(folder / files.EXIT, record)
        return _complain(EXIT_BAD_ORDER, str(fault))
    prefer_to_kill(_OOM_SCORE)
    try:
        Supervisor(folder, order, standby).run()
    except Exception as fault:  # the process's edge: the launcher must receive our own bugs too
        _record_own_failure(folder, order, fault)
        raise
    return 0


def _record_own_failure(folder: Path, order: Order, fault: Exception) -> None:
    group = find_group(files.read_json(folder / files.IDENTITY), group_name(order.attempt_id, order.node_id))
    kill_leftovers(order, group, supervisor_pid=os.getpid(), reap=lambda: None)
    if not (folder / files.EXIT).exists():
        why = f"the supervisor failed: {type(fault).__name__}: {fault}"
        record = exit_record.refusal(order.attempt_id, order.fence, order.boot_id, why, exit_record.HOST)
        files.write_json(folder / files.EXIT, record)


def _complain(code: int, why: str) -> int:
    sys.stderr.write(f"supervisor {os.getpid()}: {why}\n")
    return code
