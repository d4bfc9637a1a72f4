"""What restarts the time of a rank without a sensor in which it only uses the processor, on real processes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from muster.domain.policy.watch import WatchPolicy
from tests.waiting import wait_until
from tests.workers.host.supervisor.attempt_case import Attempt
from tests.workers.host.watch.test_part_watch import Clock, part_of
from watch.reports import RankReport
from workers.host.supervisor import files
from workers.host.watch import processes, rank_reader
from workers.host.watch.processes import usage_of
from workers.host.watch.rank_reader import RankReader

PROGRAM = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE)
print("here", flush=True)
while not os.path.exists({go_on!r}):
    pass
{does}
open({done!r}, "w").close()
while True:
    pass
"""
BEGINS = "other = subprocess.Popen([sys.executable, '-Sc', 'input()'], stdin=subprocess.PIPE)"
ENDS = "child.kill(); child.wait()"
READS = "open('/dev/zero', 'rb').read(1 << 23)"
STEP_S = 2


class Case:
    """A program in a loop, and its reader on a clock of the test."""

    def __init__(
        self, attempt: Attempt, does: str, readings: dict[str, float] | None = None, gpus: tuple[str, ...] = ()
    ) -> None:
        self.attempt, self.readings = attempt, readings or {}
        self.go_on, self.done = attempt.folder.parent / "go_on", attempt.folder.parent / "done"
        attempt.start(PROGRAM.format(go_on=str(self.go_on), done=str(self.done), does=does))
        attempt.wait_for_log("here")
        self.pid = int(attempt.read("ranks/0.json")["pid"])
        self.clock = Clock()
        part = replace(part_of(attempt), gpus=gpus)
        self.reader = RankReader(part, WatchPolicy(quiet_s=20.0), self.clock, knows_gpus=True)
        self.read()
        assert self.read_later().busy_quiet_s in {0.0, None}

    def read(self) -> RankReport:
        (report,) = self.reader.read(self.readings)
        return report

    def read_later(self) -> RankReport:
        """Read after some seconds of the clock, in which the program has used the processor."""
        used_s = usage_of({self.pid}).cpu_s
        self.clock.now_ns += STEP_S * files.NS_PER_S
        wait_until(lambda: usage_of({self.pid}).cpu_s - used_s >= 0.05 * STEP_S + 0.1)
        return self.read()

    def let_it(self) -> None:
        self.go_on.touch()
        wait_until(self.done.exists)


@pytest.mark.parametrize(
    "does", ["print('again', flush=True)", READS, BEGINS, ENDS], ids=["prints", "reads", "begins one", "ends one"]
)
def test_each_sign_of_work_restarts_the_time_and_processor_time_does_not(attempt: Attempt, does: str) -> None:
    case = Case(attempt, does)
    quiet = case.read_later()
    assert (quiet.busy_quiet_s, quiet.still_s) == (STEP_S, 0.0)
    case.let_it()
    if "print" in does:
        attempt.wait_for_log("again")
    assert case.read_later().busy_quiet_s == 0.0
    assert case.read_later().busy_quiet_s == STEP_S, "the sign itself is over"


def test_little_input_and_output_does_not(attempt: Attempt) -> None:
    case = Case(attempt, "open('/dev/zero', 'rb').read(1 << 12)")
    case.let_it()
    assert case.read_later().busy_quiet_s == STEP_S


@pytest.mark.parametrize(
    ("utilisation", "busy_quiet_s"), [(0.0, STEP_S), (30.0, 0.0), (None, None)], ids=["idle", "works", "unknown"]
)
def test_work_on_a_gpu_restarts_it_and_an_unread_gpu_leaves_it_unknown(
    attempt: Attempt, utilisation: float | None, busy_quiet_s: float | None
) -> None:
    readings = {} if utilisation is None else {"gpu.GPU-1.utilisation": utilisation}
    case = Case(attempt, "pass", readings, ("GPU-1",))
    assert case.read_later().busy_quiet_s == busy_quiet_s


def test_under_a_control_plane_the_agent_reads_the_gpus(attempt: Attempt) -> None:
    case = Case(attempt, "pass", gpus=("GPU-1",))
    case.reader.knows_gpus = False
    assert case.read_later().busy_quiet_s == 0.0, "it is known from now on"
    assert case.read_later().busy_quiet_s == STEP_S


def _full_log(case: Case, _: pytest.MonkeyPatch) -> None:
    case.reader.part = replace(case.reader.part, log_bytes=len(case.attempt.log()))


def _private_io(_: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(processes, "_io_bytes", refuse)


def _hidden(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.reader.part = replace(case.reader.part, is_hidden=True)
    monkeypatch.setattr(rank_reader, "carriers", lambda *_: set())


@pytest.mark.parametrize("hide", [_full_log, _private_io, _hidden])
def test_where_a_sign_could_not_be_seen_the_time_is_unknown(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, hide: Callable[[Case, pytest.MonkeyPatch], None]
) -> None:
    """A log that is full, bytes that this user may not read, and processes in a container."""
    case = Case(attempt, "pass")
    assert case.read_later().busy_quiet_s == STEP_S
    hide(case, monkeypatch)
    assert case.read_later().busy_quiet_s is None


def test_the_order_states_how_much_a_log_holds(attempt: Attempt, tmp_path: Path) -> None:
    case = Case(attempt, "pass")
    assert case.reader.part.log_bytes == attempt.read("order.json")["log_limit_bytes_per_stream"] > 0
