"""A checkpoint damaged between two attempts: refused, shown in the timeline, and the good one before it used."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Checkpoint, Event, TrainingStep
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import Cause, CheckpointStatus, JobState
from muster.train.checkpoint.manifest import MANIFEST
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.train import tiny_program
from tests.train.marks import TRAINS
from tests.train.test_resume import flip
from tests.warm_python import WarmPython
from workers.host import supervisor

pytestmark = [*TRAINS, pytest.mark.timeout(500)]
QUICK = Policy(dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2))
NUM_STEPS = 24
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "one flipped byte": (lambda place: flip(place, "rank-00001.pt"), "rank-00001.pt differs from what was saved"),
    "truncated": (lambda place: os.truncate(place / "rank-00000.pt", 100), "rank-00000.pt holds 100 bytes instead of"),
    "a missing rank": (lambda place: (place / "rank-00001.pt").unlink(), "rank-00001.pt cannot be read: No such file"),
}


@pytest.fixture
def job_python(warm_python: WarmPython) -> str:
    return str(warm_python.daemon)


def _checkpoints(host: HostCase, job_id: JobId) -> list[Checkpoint]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step)))


def _timeline(host: HostCase, job_id: JobId, kind: str) -> list[Event]:
    with host.fleet.units.read() as session:
        query = select(Event).where(Event.kind == kind, Event.payload["job_id"].astext == job_id)
        return list(session.scalars(query))


def _killed_after_two_checkpoints(host: HostCase) -> JobId:
    """Two ranks trained, two generations are whole on the disk; the first attempt then waits for its death."""
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, QUICK, reason="no need to wait here")
    args = ["--steps", str(NUM_STEPS), "--every", "4", "--hang-at", "10"]
    program = {"script": str(tiny_program.__file__), "args": args}
    job_id = host.fleet.submit(program=program, shape={"gpus_per_node": 2})
    host.fleet.cycle()
    host.turn_until(lambda: len(_checkpoints(host, job_id)) >= 2, timeout_s=200)
    (folder,) = (host.state_dir / "attempts").iterdir()
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return job_id


def _generations(host: HostCase) -> list[Path]:
    """Whole ones, the oldest first."""
    return sorted(found.parent for found in host.state_dir.rglob(MANIFEST))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_generation_is_refused_and_the_one_before_it_goes_on(host: HostCase, kind: str) -> None:
    damage, why = DAMAGE[kind]
    job_id = _killed_after_two_checkpoints(host)
    *_, good, bad = _generations(host)
    damage(bad)

    def is_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return host.fleet.job(job_id).finished_at is not None

    host.turn_until(is_over, timeout_s=200)
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED
    assert [view.attempt.cause for view in host.fleet.attempts(job_id)] == [Cause.NODE_LOST, Cause.SUCCEEDED]
    (rejected,) = _timeline(host, job_id, "checkpoint.rejected")
    assert rejected.payload["generation"] == f"{bad.parent.name}/{bad.name}"
    assert str(rejected.payload["reason"]).startswith(why)
    told = {event.subject_id: event.payload["generation"] for event in _timeline(host, job_id, "attempt.resumed")}
    assert told[host.fleet.attempts(job_id)[1].attempt.id] == f"{good.parent.name}/{good.name}"
    by_generation = {row.generation: row.status for row in _checkpoints(host, job_id)}
    assert by_generation[f"{bad.parent.name}/{bad.name}"] is CheckpointStatus.REJECTED
    with host.fleet.units.read() as session:
        steps = session.scalars(select(TrainingStep.step).order_by(TrainingStep.step)).all()
    assert sorted(set(steps)) == list(range(1, NUM_STEPS + 1)), "no step is skipped"
