"""A loop is judged by its progress: one that stands still, or whose thread has ended, ends its process."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from control.system.liveness import KEEPERS
from muster import service_manager
from muster.processes import CHECK_S, EXIT_LOOP_DEAD, Watch, Watched
from muster.progress import Progress, WatchedStop, advance, bound
from muster.progress_file import ProgressFile, marked_s_ago
from tests.hand_clock import HandClock

HANGS = """
import sys, threading
from muster.processes import Loop, run_loops
def body(stop):
    threading.Event().wait() if sys.argv[1] == "hangs" else sys.exit(0)
run_loops([Loop("judge", body, stalled_s=0.2)], threading.Event())
"""


class Thread:
    def __init__(self) -> None:
        self.lives = True

    def is_alive(self) -> bool:
        return self.lives


class Process:
    """A process of two loops, one of them vital, as its main thread sees it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.ended: list[str] = []
        self.judge = Progress("judge", clock=self.clock)
        self.inspector = Progress("inspector", is_vital=False, clock=self.clock)
        self.thread = Thread()
        watched = [Watched(self.judge, Thread()), Watched(self.inspector, self.thread)]
        self.watch = Watch(watched, clock=self.clock, end=self.ended.append)

    def live(self, seconds: float, *advancing: Progress) -> None:
        for _ in range(round(seconds / CHECK_S)):
            self.clock.now_s += CHECK_S
            for progress in advancing:
                progress.advance()
            self.watch.check()


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_vital_loop_that_stands_still_ends_the_process(process: Process) -> None:
    process.live(120, process.judge, process.inspector)
    assert process.ended == []
    process.live(61, process.inspector)
    assert process.ended[0] == "the loop judge has not advanced for 60 s"


def test_another_loop_that_stands_still_is_reported_once(process: Process) -> None:
    with capture_logs() as lines:
        process.live(200, process.judge)
    assert process.ended == []
    assert [line["loop"] for line in lines if line["event"] == "loop_stalled"] == ["inspector"]


def test_any_loop_whose_thread_has_ended_ends_the_process(process: Process) -> None:
    process.thread.lives = False
    process.live(1, process.judge, process.inspector)
    assert process.ended[0] == "the thread of the loop inspector has ended"


def test_a_process_that_was_stopped_as_a_whole_gives_its_loops_time(process: Process) -> None:
    process.live(10, process.judge, process.inspector)
    process.clock.now_s += 3600
    process.live(50)
    assert process.ended == []
    process.live(20, process.inspector)
    assert process.ended


def test_a_pause_that_is_announced_is_no_standstill() -> None:
    clock, stop = HandClock(), threading.Event()
    progress = Progress("peers", clock=clock)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.now_s += 300
            assert progress.age_s == 0
            return stop.is_set()

    assert not WatchedStop(Stop(), progress).wait(300)
    clock.now_s += 61
    assert progress.is_stalled


def test_progress_is_that_of_the_thread_s_own_loop() -> None:
    clock = HandClock()
    ours, other = Progress("ours", clock=clock), Progress("other", clock=clock)
    clock.now_s = 10
    with bound(ours):
        with bound(other):
            advance()
        assert (ours.age_s, other.age_s) == (10, 0)
        advance()
    assert ours.age_s == 0
    clock.now_s = 20
    advance()
    assert ours.age_s == 10


@pytest.mark.parametrize(
    ("how", "why"),
    [("hangs", "the loop judge has not advanced for"), ("ends", "the thread of the loop judge has ended")],
)
def test_a_dead_loop_gives_an_exit_code_and_a_message(how: str, why: str) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS, how], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == EXIT_LOOP_DEAD, ended.stderr
    assert why in ended.stdout + ended.stderr


@pytest.fixture
def manager(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What a service manager has received."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(short_folder / "notify"))
        line.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(short_folder / "notify"))

        def received() -> list[str]:
            words: list[str] = []
            while True:
                try:
                    words += line.recv(1000).decode().splitlines()
                except BlockingIOError:
                    return words

        yield received


def test_the_service_manager_receives_progress_alone(process: Process, manager: Callable[[], list[str]]) -> None:
    process.live(30, process.judge, process.inspector)
    words = manager()
    assert set(words) == {service_manager.WORKING}
    assert len(words) == 6
    process.live(35)
    words = manager()
    process.live(20)
    words += manager()
    assert len(words) == 11, "for the minute of patience"
    process.watch.end = _end
    with pytest.raises(SystemExit):
        process.live(10)
    assert len(manager()) == 1, "and not beyond"


def _end(why: str) -> None:
    raise SystemExit(why)


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not service_manager.notify(service_manager.READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not service_manager.notify(service_manager.READY)


def test_the_mark_is_renewed_while_every_loop_advances(tmp_path: Path) -> None:
    path, clock = tmp_path / "progress", HandClock()
    progress = Progress("sampler", clock=clock)
    assert marked_s_ago(path) is None
    ProgressFile(path).report([progress])
    os.utime(path, (0, 0))
    clock.now_s = 61
    ProgressFile(path).report([progress])
    assert (marked_s_ago(path) or 0) > 1_000
    progress.advance()
    ProgressFile(path).report([progress])
    assert (marked_s_ago(path) or 0) < 1_000


def test_a_mark_that_cannot_be_written_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    marked = ProgressFile(tmp_path / "file" / "progress")
    with capture_logs() as lines:
        for _ in range(3):
            marked.report([Progress("sampler")])
    assert [line["event"] for line in lines] == ["progress_not_marked"]


def test_the_control_plane_knows_each_keeper_of_its_worker() -> None:
    from control.core.unit_of_work import UnitOfWorkFactory  # noqa: PLC0415  # the others need no database's driver
    from workers.control.main import keepers  # noqa: PLC0415

    units = UnitOfWorkFactory(None)  # type: ignore[arg-type]  # nothing is asked
    assert tuple(loop.name for loop in keepers(units, "redis://127.0.0.1")) == KEEPERS


def test_a_thrifty_loop_pauses_by_what_its_work_takes_and_not_for_ever() -> None:
    from workers.control.main import THRIFTY_FACTOR, THRIFTY_S, thrifty  # noqa: PLC0415

    now_s, pauses = [0.0], []
    work_s = iter([0.001, 0.1, 0.2, 60.0, 0.001])

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return len(pauses) > 5

    def work() -> None:
        now_s[0] += next(work_s)

    thrifty(1.0, work, lambda: now_s[0])(Stop())
    assert pauses == pytest.approx([1.0, 1.0, 0.1 * THRIFTY_FACTOR, 0.2 * THRIFTY_FACTOR, THRIFTY_S, 1.0])
