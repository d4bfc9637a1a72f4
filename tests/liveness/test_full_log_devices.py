"""A log device that is full, under each daemon and each logger: nothing stops for it."""

import contextlib
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from sqlalchemy import Engine, select

from control.core.unit_of_work import UnitOfWorkFactory, utc_now
from local.children import Child, child_environment
from local.processes import ServerProcess
from muster import log_streams
from muster.db.models import Event, LeaderLeaseRow, LoopProgress
from muster.log_streams import LogStream
from muster.logs import configure_logs
from muster.ports import free_port
from muster.processes import EXIT_LOOP_DEAD
from muster.progress_file import marked_s_ago
from muster.settings import Settings, make_secret_key_file
from muster.wire.enrolment import AGENT_FOLDER, PROGRESS_FILE
from tests.fleet_factory import make_fleet
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from workers.host import progress as launcher
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments
from workers.wakeup.sender import WakeupSender

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="THERE IS NO /dev/full HERE")


class Daemons:
    def __init__(self, python: Path) -> None:
        self._python = str(python)
        self._children: list[Child] = []

    def start(self, *arguments: str, **settings: Any) -> Child:
        child = Child("daemon", arguments, child_environment(log_level="debug", **settings), FULL, self._python)
        child.start()
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            child.stop()


@pytest.fixture
def daemons(warm_stack: WarmPython) -> Iterator[Daemons]:
    made = Daemons(warm_stack.daemon)
    yield made
    made.close()


def progress_of(engine: Engine, component: str) -> list[Any]:
    with UnitOfWorkFactory(engine).read() as session:
        found = select(LoopProgress.reported_at).where(LoopProgress.component == component)
        return list(session.scalars(found.distinct()))


def test_the_api_serves(daemons: Daemons, database_url: str, engine: Engine, short_folder: Path) -> None:
    make_secret_key_file(short_folder / "secret.key")
    port = free_port()
    key = short_folder / "secret.key"
    api = daemons.start("api", database_url=database_url, api_port=port, secret_key_file=key)
    wait_until(lambda: bool(progress_of(engine, "api")) or not api.is_running())
    wait_until(lambda: _status(port) == 200)
    assert httpx.get(f"http://127.0.0.1:{port}/v1/jobs", trust_env=False).status_code == 401
    assert api.is_running()


def _status(port: int) -> int:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def test_the_keepers_keep(daemons: Daemons, database_url: str, engine: Engine) -> None:
    make_fleet(UnitOfWorkFactory(engine, utc_now)).submit()
    worker = daemons.start(
        "worker", "control", database_url=database_url, broker_url=f"redis://127.0.0.1:{free_port()}"
    )

    def is_sequenced() -> bool:
        with UnitOfWorkFactory(engine).read() as session:
            return not list(session.scalars(select(Event.id).where(Event.position.is_(None))))

    wait_until(is_sequenced)
    assert worker.is_running()


def test_the_scheduler_leads(daemons: Daemons, database_url: str, engine: Engine) -> None:
    scheduler = daemons.start("scheduler", database_url=database_url)

    def leads() -> bool:
        with UnitOfWorkFactory(engine).read() as session:
            return session.scalar(select(LeaderLeaseRow.term)) is not None

    wait_until(leads)
    wait_until(lambda: bool(progress_of(engine, "scheduler")))
    assert scheduler.is_running()


def test_the_agent_and_the_launcher_go_on_where_nothing_answers(daemons: Daemons, short_folder: Path) -> None:
    key = short_folder / "key"
    key.write_text("mst_none")
    where = {"api_url": f"http://127.0.0.1:{free_port()}", "api_key_file": key, "state_dir": short_folder}
    agent = daemons.start("agent", "run", "--simulated", "h100", "--gpus", "1", **where)
    host = daemons.start("worker", "host", "--node-id", "node_1", warm_start=0, **where)
    marks = [short_folder / AGENT_FOLDER / PROGRESS_FILE, short_folder / launcher.PROGRESS_FILE]
    for mark in marks:
        wait_until(lambda mark=mark: marked_s_ago(mark) is not None)  # type: ignore[misc]  # bound at once
        os.utime(mark, (0, 0))
    for mark in marks:  # each of the loops has met the server that does not answer by then, and has logged that
        wait_until(lambda mark=mark: (marked_s_ago(mark) or 1e9) < 1e6)  # type: ignore[misc]  # as above
    assert agent.is_running()
    assert host.is_running()


def test_wakeups_arrive(broker_url: str, short_folder: Path) -> None:
    path = short_folder / "wakeup.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as launcher_end:
        launcher_end.bind(str(path))
        launcher_end.settimeout(100)
        command = ListenerArguments("node_1", path, os.getpid()).command()
        environment = {BROKER_VARIABLE: broker_url}
        listener = _Listener(command, environment, short_folder)
        try:
            sender = WakeupSender(broker_url)
            sender.wake("node_1", "att_1")
            assert launcher_end.recv(100) == b"att_1"
            sender.close()
        finally:
            listener.stop()


class _Listener:
    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        # The shim is its parent for a moment, and then the listener itself: it has this process as parent.
        self._process = ServerProcess(
            command,
            owner=None,
            death_signal=signal.SIGTERM,
            log_path=FULL,
            working_dir=folder,
            variables=environment,
        )

    def stop(self) -> None:
        self._process.end()


class _Full(io.StringIO):
    """A device that takes nothing, until there is room."""

    is_full = True

    def write(self, text: str, /) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_what_was_lost_is_counted_and_reported_once_there_is_room() -> None:
    device = _Full()
    stream = LogStream(device)
    for _ in range(3):
        stream.write("lost\n")
    device.is_full = False
    stream.write("first\n")
    stream.write("second\n")
    assert device.getvalue().splitlines() == [
        "3 writes to this log were lost: its device took nothing",
        "first",
        "second",
    ]
    device.close()
    stream.write("closed\n")


class _FullRaw(io.RawIOBase):
    """The same beneath a buffer, as a log file is."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full, self.content = True, b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.content += bytes(content)
        return len(content)


def test_a_line_that_is_counted_as_lost_is_not_written_later() -> None:
    device = _FullRaw()
    stream = LogStream(io.TextIOWrapper(io.BufferedWriter(device), line_buffering=True))
    for _ in range(3):
        stream.write("lost\n")
    device.is_full = False
    stream.write("first\n")
    lines = device.content.decode().splitlines()
    assert lines == ["3 writes to this log were lost: its device took nothing", "first"]


class _Stuck(io.StringIO):
    """A pipe that no process reads, until its reader continues."""

    def __init__(self) -> None:
        super().__init__()
        self.is_met, self.is_read = threading.Event(), threading.Event()

    def write(self, text: str, /) -> int:
        self.is_met.set()
        self.is_read.wait()
        return super().write(text)


def test_a_line_waits_for_no_line_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_streams, "LOCK_S", 0.01)
    device = _Stuck()
    stream = LogStream(device)
    stuck = threading.Thread(target=stream.write, args=("stuck\n",))
    stuck.start()
    device.is_met.wait()
    stream.write("lost\n")
    stream.write("lost\n")
    device.is_read.set()
    stuck.join()
    stream.write("next\n")
    assert device.getvalue().splitlines() == [
        "stuck",
        "2 writes to this log were lost: its device took nothing",
        "next",
    ]


class _Unread:
    """A pipe or a socket between two programs, whose reader stands still until ``read``."""

    def __init__(self, kind: str) -> None:
        if kind == "socket":
            ours, theirs = socket.socketpair()
            self._reads, self.writes = theirs.detach(), ours.detach()
        else:
            self._reads, self.writes = os.pipe()
        os.set_blocking(self._reads, False)
        self._file = os.fdopen(self.writes, "w", encoding="utf-8")
        self.stream = LogStream(self._file)

    def read(self) -> str:
        content = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._reads, 1 << 20):
                content += more
        return content.decode()

    def close(self) -> None:
        self._file.close()
        os.close(self._reads)


@pytest.fixture(params=["pipe", "socket", "pipe of another user"])
def unread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Unread]:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(log_streams, "LOCK_S", 0.01)
    made = _Unread(request.param)
    if request.param == "pipe of another user":
        monkeypatch.setattr(os, "open", refuse)
    yield made
    made.close()


def test_the_only_thread_is_not_stuck_in_a_pipe_that_no_process_reads(unread: _Unread) -> None:
    """The descriptor stays as it was, since it may be another program's too."""
    lines = [f"{number} {'x' * 5000}\n" for number in range(200)]
    for line in lines:
        unread.stream.write(line)
    num_lost = unread.stream.num_lost
    assert 0 < num_lost < 200
    assert os.get_blocking(unread.writes)
    read = unread.read()
    assert read[: len(lines[0])] == lines[0]
    unread.stream.write("next\n")
    *_, reported, last = unread.read().splitlines()
    assert (reported, last) == (f"{num_lost} writes to this log were lost: its device took nothing", "next")
    assert unread.stream.num_lost == 0


def test_only_the_first_line_waits_for_a_reader_that_stands_still(
    unread: _Unread, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    has_room = log_streams._has_room

    def has_room_and_wait(descriptor: int, within_s: float) -> bool:
        waits.append(within_s)
        return has_room(descriptor, within_s)

    monkeypatch.setattr(log_streams, "_has_room", has_room_and_wait)
    for _ in range(300):
        unread.stream.write("x" * 5000)
    assert sum(wait > 0 for wait in waits) <= 2, "a line that is taken in parts may wait a second time"


TALKS = """
import sys, threading
import structlog
from muster.logs import configure_logs
from muster.processes import Loop, run_loops
from muster.settings import Settings
configure_logs(Settings(), "test")
def body(stop):
    while True:
        structlog.get_logger("test").info("line", text="x" * 2000)
run_loops([Loop("talker", body, stalled_s=0.2)], threading.Event())
"""


def test_a_loop_that_makes_no_progress_ends_its_process_while_no_process_reads_its_log() -> None:
    with subprocess.Popen([sys.executable, "-c", TALKS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == EXIT_LOOP_DEAD
        finally:
            process.kill()


@pytest.fixture
def _as_before() -> Iterator[None]:
    streams, handlers, level = (sys.stdout, sys.stderr), logging.getLogger().handlers[:], logging.getLogger().level
    own = (sys.__stdout__, sys.__stderr__)
    yield
    structlog.reset_defaults()
    sys.stdout, sys.stderr = streams
    sys.__stdout__, sys.__stderr__ = own  # type: ignore[misc]  # as they were
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_event_and_no_print_raises(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Full()
    monkeypatch.setattr(sys, "stderr", device)
    monkeypatch.setattr(sys, "stdout", device)
    configure_logs(Settings(log_format=log_format), "test")  # type: ignore[arg-type]  # one of the two
    log = structlog.get_logger("test")
    for is_full in (True, False):
        device.is_full = is_full
        log.warning("event", value=_Unprintable())
        log.error("event", stack_info=True)
        logging.getLogger("library").warning("by the standard library")
        log.error("event", exc_info=ValueError("fault"))
        print("a print")  # noqa: T201  # of a library
        sys.stderr.flush()
    assert "a log line could not be made: 'event': RuntimeError" in device.getvalue()
    assert "by the standard library" in device.getvalue()
