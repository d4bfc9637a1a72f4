"""A host that reboots under a job: the job is tried again, and no report of the boot before is accepted any more."""

import os
import signal
from pathlib import Path

import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.client.transport import Problem
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import AttemptState, Cause, HostPartState, JobState
from muster.wire.host import PROTOCOL_VERSION, ClaimRequest, HeartbeatRequest, HostAttempt, HostReport, ReportBatch
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.waiting import wait_until
from workers.host import supervisor

pytestmark = pytest.mark.timeout(400)
QUICK = Policy(dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2))
PROGRAM = """
import os, time
if not os.path.exists("MARK"):
    open("MARK", "w").close()
    time.sleep(600)
"""
"""The first attempt runs on and on, the next one ends well at once."""
SUCCESS = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}


def _end_all_of_the_boot(folder: Path) -> None:
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: supervisor.adopt(folder).state == "vanished")
    supervisor.reap_vanished(folder)


@pytest.fixture
def job_id(host: HostCase, tmp_path: Path) -> JobId:
    """It ran; then nothing of that boot was left, and a launcher began in the next."""
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, QUICK, reason="no need to wait here")
    job_id = host.submit(PROGRAM.replace("MARK", str(tmp_path / "mark")))
    host.run_until_started(job_id)
    wait_until((tmp_path / "mark").exists)
    (folder,) = (host.state_dir / "attempts").iterdir()
    host.close()
    _end_all_of_the_boot(folder)
    host.boot_id = "boot-2"
    host.restart()
    return job_id


def test_the_job_of_a_host_that_rebooted_is_tried_again_on_freed_gpus(host: HostCase, job_id: JobId) -> None:
    fleet = host.fleet
    assert fleet.num_taken_gpus() == 1
    host.launcher.turn(woken=True)
    fleet.reconcile()
    (first,) = fleet.attempts(job_id)
    assert (first.attempt.state, first.attempt.cause) == (AttemptState.ENDED, Cause.NODE_LOST)
    assert "rebooted" in str(first.attempt.proof)
    assert first.hosts[0].part.state is HostPartState.CLEAN
    assert fleet.num_taken_gpus() == 0, "a reboot proves them clean"

    def is_over() -> bool:
        fleet.reconcile()
        fleet.cycle()
        return fleet.job(job_id).finished_at is not None

    host.turn_until(is_over)
    assert fleet.job(job_id).state is JobState.SUCCEEDED
    assert [view.attempt.cause for view in fleet.attempts(job_id)] == [Cause.NODE_LOST, Cause.SUCCEEDED]
    assert fleet.job(job_id).restarts_used == 0
    host.run_until_clean()


def test_words_of_the_boot_before_are_refused(host: HostCase, job_id: JobId) -> None:
    """Delayed in transit, or sent by a supervisor that some snapshot brought back."""
    fleet, client = host.fleet, host.client
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(), reason="the next try is to wait until all has been reported")
    old = fleet.attempts(job_id)[0].attempt
    host.launcher.turn(woken=True)
    fleet.reconcile()
    held = HostAttempt(attempt_id=old.id, fence=old.fence, phase="started")
    late = client.heartbeat(
        HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id="boot-1", seq=1 << 50, attempts=(held,))
    )
    assert (late.lease_s, late.unclaimed, late.stops) == (0.0, (), ())
    claim = ClaimRequest(protocol=PROTOCOL_VERSION, boot_id="boot-1", fence=old.fence, nonce="n")
    assert not client.claim(old.id, claim).granted
    said = HostReport(kind="exited", boot_id="boot-1", fence=old.fence, record=SUCCESS)
    batch = ReportBatch(protocol=PROTOCOL_VERSION, reports=(said,))
    assert client.report(old.id, batch).accepted == 0
    assert fleet.attempts(job_id)[0].attempt.cause is Cause.NODE_LOST
    assert fleet.job(job_id).state is JobState.RECOVERING
    later = HostReport(kind="exited", boot_id="boot-2", fence=old.fence + 1, record=SUCCESS)
    with pytest.raises(Problem, match="stale_fence"):
        client.report(old.id, ReportBatch(protocol=PROTOCOL_VERSION, reports=(later,)))
    assert fleet.job(job_id).state is JobState.RECOVERING
