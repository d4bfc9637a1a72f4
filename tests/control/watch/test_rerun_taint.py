"""A GPU that other GPUs have shown to be wrong taints its job's own generations since the onset, and no others."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.attempts.reruns import doubt_in
from control.checkpoints.checkpoints import resume_of
from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Allocation, AllocationGpu, Attempt, Checkpoint
from muster.domain.job.verdicts import VerdictKind
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.control.watch.test_reruns import FALSE, FAULT, REPEATED, RERUN, RIGHT, SuspectJob
from tests.filled_once import filled_world

COMMITTED, TAINTED = CheckpointStatus.COMMITTED, CheckpointStatus.TAINTED
ELSEWHERE: dict[str, Any] = {**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT}


class SavingJob(SuspectJob):
    def save(self, step: int) -> str:
        """Report a checkpoint of the running attempt."""
        self.clock.advance(10)
        generation = f"step-{step:08d}/gen-{self.attempt.fence}"
        at_ms = to_ms(self.clock.now)
        self.report({"type": "checkpoint", "step": step, "generation": generation, "status": "committed"})
        with self.units.read() as session:
            row = session.scalars(select(Checkpoint).where(Checkpoint.generation == generation)).one()
            assert row.committed_at is not None
            assert abs(to_ms(row.committed_at) - at_ms) < 10_000
        return generation

    def statuses(self) -> dict[str, CheckpointStatus]:
        with self.units.read() as session:
            rows = session.scalars(select(Checkpoint).where(Checkpoint.job_id == self.job_id))
            return {row.generation: row.status for row in rows}

    def resume(self) -> dict[str, Any]:
        """Return what the order of the running attempt states of checkpoints."""
        with self.units.read() as session:
            attempt = session.get_one(Attempt, self.attempt.id)
            return resume_of(session, self.job_id, doubt_in(session, attempt))

    def repeat_and_run_elsewhere(self) -> None:
        self.report(FAULT, {**RERUN, **REPEATED})
        self.end_as(16, "corruption")
        self.run()


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> SavingJob:
    return filled_world(units, clock, "a job that saves and may compute wrong", lambda: SavingJob(units, clock))


def test_a_persistent_fault_taints_what_was_saved_since_its_onset(job: SavingJob) -> None:
    """Its first step that is not to be trusted is 10."""
    trusted, first, second = job.save(9), job.save(10), job.save(11)
    doubted_fence = job.attempt.fence
    job.repeat_and_run_elsewhere()
    assert set(job.statuses().values()) == {COMMITTED}, "it is not decided yet"
    job.report({"type": "resumed", "step": 9, "generation": trusted})
    own = job.save(11)
    job.report(ELSEWHERE)
    assert (job.verdict().cause, job.verdict().ranks) == ("persistent", [1])
    assert job.statuses() == {trusted: COMMITTED, first: TAINTED, second: TAINTED, own: COMMITTED}
    with job.units.read() as session:
        attempts = session.scalars(select(Attempt).order_by(Attempt.number)).all()
        saved = session.scalars(select(Checkpoint.committed_at).where(Checkpoint.generation == trusted)).one()
        assert saved is not None
        assert [each.tainted_since for each in attempts] == [saved + timedelta(milliseconds=1), None]
        reason = session.scalars(select(Checkpoint.reason).where(Checkpoint.generation == first)).one()
    assert reason == "a GPU computed wrong from step 10 on, as other GPUs have shown"
    assert job.resume()["tainted_since_unix_ms"] == {str(doubted_fence): to_ms(saved) + 1}


def test_a_dismissal_shows_no_checkpoint_to_be_right(job: SavingJob) -> None:
    trusted, false = job.save(9), job.save(10)
    job.repeat_and_run_elsewhere()
    job.report(ELSEWHERE)
    job.dismiss(job.verdict())
    assert job.statuses() == {trusted: COMMITTED, false: TAINTED}
    assert job.resume()["generation"] == trusted


def test_what_continued_from_a_false_generation_is_tainted_too(job: SavingJob) -> None:
    job.save(9)
    false = job.save(10)
    job.report(FAULT, {**RERUN, **REPEATED})
    job.end_as(16, "corruption")
    job.run()
    job.report({"type": "resumed", "step": 10, "generation": false})
    after = job.save(11)
    job.end_as(1, "failed")
    job.run()
    job.report(ELSEWHERE)
    assert job.verdict().cause == "persistent"
    assert (job.statuses()[false], job.statuses()[after]) == (TAINTED, TAINTED)


def test_the_run_on_other_gpus_begins_before_the_steps_that_are_doubted(job: SavingJob) -> None:
    """So it runs all of them again; what was never reported is left out by its time."""
    trusted, doubted = job.save(8), job.save(11)
    assert job.resume()["generation"] == doubted
    fence = job.attempt.fence
    job.repeat_and_run_elsewhere()
    resume = job.resume()
    assert (resume["generation"], resume["refuse"]) == (trusted, [doubted])
    with job.units.read() as session:
        saved = session.scalars(select(Checkpoint.committed_at).where(Checkpoint.generation == trusted)).one()
    assert saved is not None
    assert resume["tainted_since_unix_ms"] == {str(fence): to_ms(saved) + 1}


def test_doubted_generations_are_used_if_there_are_no_others(job: SavingJob) -> None:
    doubted = job.save(11)
    job.repeat_and_run_elsewhere()
    resume = job.resume()
    assert (resume["generation"], resume["refuse"], resume["tainted_since_unix_ms"]) == (doubted, [], {})


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ({**ELSEWHERE, "is_again": True, "results": FALSE}, "program"),
        ({**ELSEWHERE, "from_step": 11}, "undecided"),
    ],
)
def test_another_verdict_taints_nothing(job: SavingJob, message: dict[str, Any], cause: str) -> None:
    job.save(9)
    job.save(10)
    job.repeat_and_run_elsewhere()
    job.report(message)
    assert (job.verdict().kind, job.verdict().cause) == (VerdictKind.CORRUPTION, cause)
    assert set(job.statuses().values()) == {COMMITTED}
    with job.units.read() as session:
        assert session.scalars(select(Attempt.tainted_since)).all() == [None, None]


def test_a_transient_fault_taints_nothing(job: SavingJob) -> None:
    """Its steps were trained again before anything else was saved."""
    job.save(9)
    job.save(10)
    job.report(FAULT, {**RERUN, "found": "transient", "is_again": False, "ranks": [1], "results": FALSE})
    assert job.verdict().cause == "transient"
    assert set(job.statuses().values()) == {COMMITTED}


def test_another_job_on_the_same_gpus_is_untouched(job: SavingJob) -> None:
    """A program may report any verdict, so it concerns its own job alone."""
    job.save(10)
    first_gpus = set(job.gpus())
    job.repeat_and_run_elsewhere()
    other = job.fleet.submit(name="another", shape={"nodes": 2, "gpus_per_node": 2, "ranks_per_node": 1})
    job.fleet.cycle()
    with job.units.read() as session:
        held = select(AllocationGpu.gpu_uuid).join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        assert first_gpus <= set(session.scalars(held.where(Allocation.job_id == other)))
    job.report(ELSEWHERE)
    assert job.verdict().cause == "persistent"
    with job.units.read() as session:
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == other)).one()
        assert attempt.tainted_since is None
