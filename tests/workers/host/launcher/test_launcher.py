"""The launcher with real supervisors and programs, against the real services and database, without HTTP between.

A launcher is killed by dropping it and starting another on the same folder: all it knows is on disk.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from control.jobs import jobs
from muster.db.models import Event
from muster.domain.states import AttemptState, Cause, JobState
from tests.host_case import HostCase
from tests.waiting import wait_until
from tests.workers.host.supervisor.cgroup_case import needs_cgroups
from workers.host import launcher, supervisor
from workers.host.attempt_folder import AttemptFolder
from workers.host.ledger_file import LauncherIsRunningError, LedgerFile


def until_reported(host: HostCase, last: str) -> str:
    """A program that runs until ``report_to_end``, and then does ``last``."""
    word = str(host.state_dir / "end-now")
    return f"import os, time\nwhile not os.path.exists({word!r}): time.sleep(0.02)\n{last}"


def report_to_end(host: HostCase) -> None:
    (host.state_dir / "end-now").touch()


def unclean_hosts(host: HostCase) -> Sequence[Event]:
    with host.fleet.units.begin(host.fleet.tenant, jobs.READ) as unit:
        return unit.session.scalars(select(Event).where(Event.kind == "attempt.host_unclean")).all()


def test_a_program_runs_its_words_arrive_and_nothing_is_left(host: HostCase) -> None:
    job_id = host.submit("print('hello from the program')")
    assert host.run(job_id) is JobState.SUCCEEDED
    assert b"hello from the program" in host.log(job_id)
    host.run_until_clean()


def test_a_program_that_fails_states_how(host: HostCase) -> None:
    job_id = host.submit("import sys; sys.exit(3)")
    assert host.run(job_id) is JobState.FAILED
    assert "3" in host.fleet.job(job_id).state_reason


@needs_cgroups
def test_a_job_beyond_the_memory_it_requested_reports_it_and_not_another_cause(host: HostCase) -> None:
    job_id = host.submit("kept = []\nwhile True: kept.append(b'x' * (1 << 20))", limits={"memory_bytes": 64 << 20})
    assert host.run(job_id) is JobState.FAILED
    (part,) = host.fleet.attempts(job_id)
    assert part.attempt.cause is Cause.HOST_OOM
    assert "1 memory kill in the attempt's own group, limited to 0.0625 GiB" in host.fleet.job(job_id).state_reason
    host.run_until_clean()


def test_a_running_program_is_adopted_by_the_next_launcher(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(3); print('survived')")
    host.run_until_started(job_id)
    host.restart()
    assert host.run(job_id) is JobState.SUCCEEDED
    assert b"survived" in host.log(job_id)
    assert len(host.fleet.attempts(job_id)) == 1


def test_what_ended_while_no_launcher_ran_is_reported_by_the_next(host: HostCase) -> None:
    job_id = host.submit(until_reported(host, "pass"))
    host.run_until_started(job_id)
    folder = next((host.state_dir / "attempts").iterdir())
    host.close()
    report_to_end(host)
    wait_until(lambda: supervisor.adopt(folder).state == "exited")
    host.restart()
    assert host.run(job_id) is JobState.SUCCEEDED


def test_two_launchers_never_share_a_folder(host: HostCase) -> None:
    with pytest.raises(LauncherIsRunningError):
        LedgerFile(host.state_dir)


def test_a_host_that_is_not_clean_names_what_is_left(host: HostCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a real GPU, which another person's process used: that is no leftover of the job."""
    left = {"clean": False, "gpu_processes": {"GPU-1": [41]}}
    read = AttemptFolder.read
    monkeypatch.setattr(AttemptFolder, "read", lambda self, name: left if name == "clean.json" else read(self, name))
    monkeypatch.setattr(supervisor, "prove_clean", lambda _: left)
    monkeypatch.setattr(launcher, "REPORT_UNCLEAN_MS", 0)
    host.run(host.submit("pass"))
    host.turn_until(lambda: bool(unclean_hosts(host)))
    assert (
        unclean_hosts(host)[0].payload["reason"]
        == "process 41 on GPU-1, which may be another program's: `nvidia-smi` shows it"
    )
    monkeypatch.undo()
    host.run_until_clean()


def test_a_cancelled_program_gets_sigterm_and_may_end_by_itself(host: HostCase) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(600)"
    )
    job_id = host.submit(code)
    host.turn_until(lambda: b"ready" in host.log(job_id))
    host.fleet.cancel(job_id)
    assert host.run(job_id) is JobState.CANCELLED
    assert b"saved" in host.log(job_id)
    host.run_until_clean()


def test_a_program_that_ignores_sigterm_is_killed_at_the_deadline(host: HostCase) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    job_id = host.submit(code, stop_grace_s=1)
    host.turn_until(lambda: b"up" in host.log(job_id))
    host.fleet.cancel(job_id)
    assert host.run(job_id) is JobState.CANCELLED
    host.run_until_clean()


def test_a_partition_delays_the_report_and_loses_nothing(host: HostCase) -> None:
    job_id = host.submit(until_reported(host, "print('done in the dark')"))
    host.run_until_started(job_id)
    folder = next((host.state_dir / "attempts").iterdir())
    host.client.is_cut = True
    report_to_end(host)
    wait_until(lambda: supervisor.adopt(folder).state == "exited")
    for _ in range(20):
        host.launcher.turn(woken=False)
        time.sleep(0.1)
    assert host.fleet.job(job_id).state is JobState.ACTIVE
    host.client.is_cut = False
    assert host.run(job_id) is JobState.SUCCEEDED
    assert host.log(job_id).count(b"done in the dark") == 1


def test_after_a_reboot_the_job_starts_again_and_the_old_records_go(host: HostCase) -> None:
    job_id = host.submit("import time; time.sleep(600)")
    host.run_until_started(job_id)
    old = next((host.state_dir / "attempts").iterdir())
    _kill_supervisor(old)
    host.boot_id = "boot-2"
    host.restart()
    host.launcher.turn(woken=True)
    host.fleet.reconcile()
    first = host.fleet.attempts(job_id)[0].attempt
    assert (first.state, first.cause) == (AttemptState.ENDED, Cause.NODE_LOST)
    assert not old.exists()


def _kill_supervisor(folder: Path) -> None:
    wait_until(lambda: supervisor.adopt(folder).pid is not None)  # it is locked before it is named
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: supervisor.adopt(folder).state == "vanished")
    supervisor.reap_vanished(folder)
