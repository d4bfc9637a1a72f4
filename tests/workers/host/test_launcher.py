"""The launcher with real supervisors and programs, against the real services and database, without HTTP between.

A launcher is killed by dropping it and starting another on the same folder: all it knows is on disk.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Engine

from muster.client.transport import Problem, UnreachableError
from muster.db.engine import make_engine
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId, JobId
from muster.domain.states import AttemptState, Cause, JobState
from muster.services import hosts, jobs
from muster.services.unit_of_work import UnitOfWork, UnitOfWorkFactory
from muster.wire.host import (
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogAnswer,
    LogBatch,
    ReportAnswer,
    ReportBatch,
)
from tests.fleet_factory import Fleet, make_fleet
from workers.host import supervisor
from workers.host.launcher import HostConfig, Launcher
from workers.host.ledger_file import LauncherIsRunningError, LedgerFile
from workers.host.log_relay import LogRelay

Answer = TypeVar("Answer")


class DirectClient:
    """Calls the host services as the API's routes do. ``is_cut`` plays a partition."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.is_cut = False

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return self._call(hosts.HEARTBEAT, lambda unit: hosts.heartbeat(unit, request), quiet=True)

    def claim(self, attempt_id: AttemptId, request: ClaimRequest) -> ClaimAnswer:
        return self._call(hosts.CLAIM, lambda unit: hosts.claim(unit, attempt_id, request))

    def report(self, attempt_id: AttemptId, batch: ReportBatch) -> ReportAnswer:
        return self._call(hosts.REPORT, lambda unit: hosts.report(unit, attempt_id, batch))

    def send_logs(self, attempt_id: AttemptId, batch: LogBatch) -> LogAnswer:
        return self._call(hosts.LOGS, lambda unit: hosts.store_logs(unit, attempt_id, batch), quiet=True)

    def _call(self, action: str, work: Callable[[UnitOfWork], Answer], *, quiet: bool = False) -> Answer:
        if self.is_cut:
            raise UnreachableError("cut off")
        try:
            with self._fleet.units.begin(self._fleet.node_principal, action, quiet=quiet) as unit:
                return work(unit)
        except MusterError as error:
            raise Problem(error.status, error.code, error.detail) from error


class HostCase:
    """One host on one folder; ``restart`` drops its launcher and starts the next."""

    def __init__(self, fleet: Fleet, state_dir: Path) -> None:
        self.fleet = fleet
        self.client = DirectClient(fleet)
        self.state_dir = state_dir
        self.boot_id = "boot-1"
        self._file: LedgerFile | None = None
        self.launcher = self.restart()
        self.launcher.turn(rung=False)  # the first heartbeat makes the host one that may be given work

    def restart(self) -> Launcher:
        self.close()
        self._file = LedgerFile(self.state_dir)
        self.relay = LogRelay(self.state_dir, self.client)  # type: ignore[arg-type]  # the same calls, without HTTP
        config = HostConfig(self.fleet.node_id, self.state_dir, sys.executable, self.boot_id)
        self.launcher = Launcher(config, self.client, self._file, self.relay)  # type: ignore[arg-type]  # as above
        self.launcher.adopt()
        return self.launcher

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def submit(self, code: str, **spec: object) -> JobId:
        program = {"launcher": "command", "argv": [sys.executable, "-c", code]}
        job_id = self.fleet.submit(program=program, **spec)
        self.fleet.cycle()
        return job_id

    def turn_until(self, is_so: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, "did not come about in time"
            self.launcher.turn(rung=True)
            self.relay.drain_all()
            time.sleep(0.02)

    def run(self, job_id: JobId) -> JobState:
        self.turn_until(lambda: self.fleet.job(job_id).finished_at is not None)
        return self.fleet.job(job_id).state

    def run_until_started(self, job_id: JobId) -> None:
        self.turn_until(lambda: self.fleet.attempts(job_id)[0].attempt.state is AttemptState.RUNNING)

    def run_until_clean(self) -> None:
        self.turn_until(lambda: self.fleet.num_taken_gpus() == 0)
        self.turn_until(lambda: not any((self.state_dir / "attempts").iterdir()))

    def log(self, job_id: JobId) -> bytes:
        with self.fleet.units.begin(self.fleet.tenant, jobs.READ) as unit:
            return b"".join(chunk.content for chunk in jobs.log_chunks(unit, job_id, limit=10_000))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[HostCase]:
    case = HostCase(make_fleet(UnitOfWorkFactory(engine)), tmp_path / "host")
    yield case
    case.close()


def test_a_program_runs_its_words_arrive_and_nothing_is_left(host: HostCase) -> None:
    job_id = host.submit("print('hello from the program')")
    assert host.run(job_id) is JobState.SUCCEEDED
    assert b"hello from the program" in host.log(job_id)
    host.run_until_clean()


def test_a_program_that_fails_says_how(host: HostCase) -> None:
    job_id = host.submit("import sys; sys.exit(3)")
    assert host.run(job_id) is JobState.FAILED
    assert "3" in host.fleet.job(job_id).state_reason


def test_a_running_program_is_adopted_by_the_next_launcher(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(1.5); print('survived')")
    host.run_until_started(job_id)
    host.restart()
    assert host.run(job_id) is JobState.SUCCEEDED
    assert b"survived" in host.log(job_id)
    assert len(host.fleet.attempts(job_id)) == 1


def test_what_ended_while_no_launcher_ran_is_reported_by_the_next(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(0.3)")
    host.run_until_started(job_id)
    folder = next((host.state_dir / "attempts").iterdir())
    host.close()
    deadline = time.monotonic() + 10
    while supervisor.adopt(folder).state != "exited" and time.monotonic() < deadline:
        time.sleep(0.05)
    host.restart()
    assert host.run(job_id) is JobState.SUCCEEDED


def test_two_launchers_never_share_a_folder(host: HostCase) -> None:
    with pytest.raises(LauncherIsRunningError):
        LedgerFile(host.state_dir)


def test_a_cancelled_program_gets_sigterm_and_may_end_by_itself(host: HostCase) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)"
    )
    job_id = host.submit(code)
    host.turn_until(lambda: b"ready" in host.log(job_id))
    host.fleet.cancel(job_id)
    assert host.run(job_id) is JobState.CANCELLED
    assert b"saved" in host.log(job_id)
    host.run_until_clean()


def test_a_program_that_ignores_sigterm_is_killed_at_the_deadline(host: HostCase) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    job_id = host.submit(code, stop_grace_s=1)
    host.run_until_started(job_id)
    time.sleep(0.3)
    host.fleet.cancel(job_id)
    assert host.run(job_id) is JobState.CANCELLED
    host.run_until_clean()


def test_a_partition_delays_the_report_and_loses_nothing(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(0.7); print('done in the dark')")
    host.run_until_started(job_id)
    host.client.is_cut = True
    for _ in range(20):
        host.launcher.turn(rung=False)
        time.sleep(0.1)
    assert host.fleet.job(job_id).state is JobState.ACTIVE
    host.client.is_cut = False
    assert host.run(job_id) is JobState.SUCCEEDED
    assert host.log(job_id).count(b"done in the dark") == 1


def test_after_a_reboot_the_job_starts_anew_and_the_old_records_go(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(30)")
    host.run_until_started(job_id)
    old = next((host.state_dir / "attempts").iterdir())
    _kill_supervisor(old)
    host.boot_id = "boot-2"
    host.restart()
    host.launcher.turn(rung=True)
    host.fleet.reconcile()
    first = host.fleet.attempts(job_id)[0].attempt
    assert (first.state, first.cause) == (AttemptState.ENDED, Cause.NODE_LOST)
    assert not old.exists()


def _kill_supervisor(folder: Path) -> None:
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    supervisor.reap_vanished(folder)
