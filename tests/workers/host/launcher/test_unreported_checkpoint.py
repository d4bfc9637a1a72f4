"""A host dies between a commit on the disk and its report: the next attempt continues from it all the same."""

import hashlib
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from control.health.evacuation import EVACUATE
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Attempt, Checkpoint, Event, TrainingStep
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.principals import system_principal
from muster.domain.states import Cause, CheckpointStatus, JobState
from muster.train.checkpoint.manifest import MANIFEST
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.train import tiny_program
from tests.train.marks import TRAINS
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from workers.host import supervisor

pytestmark = [*TRAINS, pytest.mark.timeout(500)]
QUICK = Policy(dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2))
ARGS = ["--steps", "12", "--every", "4", "--synchronous"]
MUTE = f"""
import json, os, runpy
from muster.train.runtime import failpoints
if json.loads(os.environ["MUSTER_RESUME"])["generation"] is None:
    failpoints.arm("save.after_commit~600@2")
runpy.run_path({tiny_program.__file__!r}, run_name="__main__")
"""
"""After its second commit the first attempt stands still, before it reports the commit."""


@pytest.fixture
def job_python(warm_python: WarmPython) -> str:
    return str(warm_python.daemon)


def generation_at(host: HostCase, step: int) -> Path | None:
    found = list(host.state_dir.rglob(f"step-{step:08d}/gen-*/{MANIFEST}"))
    return found[0].parent if found else None


def rows(host: HostCase) -> list[Checkpoint]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Checkpoint).order_by(Checkpoint.step)))


@pytest.fixture
def job_id(host: HostCase, tmp_path: Path) -> JobId:
    """Its first attempt committed steps 4 and 8; its host died with the word of the second, and came back."""
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, QUICK, reason="no need to wait here")
    script = tmp_path / "train.py"
    script.write_text(MUTE, encoding="utf-8")
    job_id = host.fleet.submit(program={"script": str(script), "args": ARGS})
    host.fleet.cycle()

    def is_first_received_and_second_made() -> bool:
        is_heard = any(row.status is not CheckpointStatus.WRITING for row in rows(host))
        return is_heard and generation_at(host, 8) is not None

    host.turn_until(is_first_received_and_second_made, timeout_s=200)
    (folder,) = (host.state_dir / "attempts").iterdir()
    host.close()
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: supervisor.adopt(folder).state == "vanished")
    supervisor.reap_vanished(folder)
    assert [(row.step, row.status is CheckpointStatus.WRITING) for row in rows(host)] in (
        [(4, False)],
        [(4, False), (8, True)],
    ), "the second commit was not reported"
    host.boot_id = "boot-2"
    return job_id


def run_on(host: HostCase, job_id: JobId) -> str:
    """Run the job to its end. Return the generation from which the second attempt continued."""
    host.restart()

    def is_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return host.fleet.job(job_id).finished_at is not None

    host.turn_until(is_over, timeout_s=200)
    host.run_until_clean()
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED
    attempts = [view.attempt for view in host.fleet.attempts(job_id)]
    assert [attempt.cause for attempt in attempts] == [Cause.NODE_LOST, Cause.SUCCEEDED]
    with host.fleet.units.read() as session:
        resumed = select(Event).where(Event.kind == "attempt.resumed", Event.subject_id == attempts[1].id)
        return str(session.scalars(resumed).one().payload["generation"])


def test_a_commit_that_none_received_of_is_gone_on_from_and_reported(host: HostCase, job_id: JobId) -> None:
    unheard = generation_at(host, 8)
    assert unheard is not None
    sha256 = hashlib.sha256((unheard / MANIFEST).read_bytes()).hexdigest()
    assert run_on(host, job_id) == f"{unheard.parent.name}/{unheard.name}"
    first, second = (view.attempt for view in host.fleet.attempts(job_id))
    (row,) = (row for row in rows(host) if row.step == 8)
    assert (row.attempt_id, row.fence, row.manifest["sha256"]) == (first.id, first.fence, sha256)
    assert row.manifest["found_by"] == second.id
    assert row.verified_at is not None
    assert {row.status for row in rows(host)} <= {CheckpointStatus.VERIFIED, CheckpointStatus.GOOD}
    with host.fleet.units.read() as session:
        own = select(TrainingStep.step).where(TrainingStep.attempt_id == second.id).order_by(TrainingStep.step)
        assert session.scalars(own).all() == [9, 10, 11, 12], "no step is done again"


def test_one_that_was_made_after_the_onset_of_a_fault_is_not(host: HostCase, job_id: JobId) -> None:
    unheard = generation_at(host, 8)
    assert unheard is not None
    committed_ms = json.loads((unheard / MANIFEST).read_text(encoding="utf-8"))["committed_at_unix_ms"]
    with host.fleet.units.begin(system_principal("judge"), EVACUATE, quiet=True) as unit:
        attempt = unit.session.scalars(select(Attempt)).one()
        attempt.tainted_since = datetime.fromtimestamp(committed_ms / 1000, UTC)
    before = generation_at(host, 4)
    assert before is not None
    assert run_on(host, job_id) == f"{before.parent.name}/{before.name}"
    by_generation = {row.generation: row.status for row in rows(host)}
    assert by_generation[f"{unheard.parent.name}/{unheard.name}"] is CheckpointStatus.TAINTED
    assert list(by_generation.values()).count(CheckpointStatus.TAINTED) == 1
