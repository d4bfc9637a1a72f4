"""A program outlives a run that was killed by its lease, and no longer."""

import sys
from pathlib import Path

from muster.domain.ids import AttemptId, Fence
from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.states import Cause
from muster.identity import new_id
from tests.waiting import wait_until
from workers.host import supervisor
from workers.local.attempt import LocalAttempt
from workers.local.plan import RunFolder, RunPlan


def test_an_attempt_whose_run_is_gone_ends_with_its_lease(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    spec = JobSpec.model_validate({"name": "left", "program": {"launcher": "command", "argv": argv}})
    plan = RunPlan(spec, (), sys.executable, Timers.of(Policy()), 1 << 20, 20, 600.0, lease_ms=1_500)
    folder = RunFolder(tmp_path / "left", spec)
    attempt = LocalAttempt(plan, folder, AttemptId(new_id("attempt")), Fence(1))
    attempt.start(None)
    # No caller calls has_ended, as after kill -9: nothing prolongs the lease.
    wait_until(lambda: supervisor.adopt(attempt.path).state == "exited")
    assert attempt.verdict().cause is Cause.NODE_LOST
    assert attempt.left() == ""
    folder.close()
