"""A GPU that computed wrong, and a job that has continued elsewhere from what was computed there."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.checkpoints.checkpoints import resume_of
from control.health.evacuation import evacuate_once
from control.policy.policies import active_policy
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import GpuUuid
from muster.domain.states import AttemptState, CheckpointStatus, StopReason
from muster.domain.times import to_ms
from tests.control.health.conftest import JUDGE, Court
from tests.control.health.test_taken_out import take_out
from tests.played_host import PlayedHost

LONG_AGO_S = 1_000.0
FAILED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}
"""By its program's own fault, so its host is not avoided."""


@dataclass
class Job:
    """Each attempt on another GPU: whatever one has left is taken out."""

    court: Court
    host: PlayedHost = field(init=False)
    offset: int = 0

    def __post_init__(self) -> None:
        self.host = PlayedHost(self.court.units, self.court.node_id, seq=1_000)
        self.host.beat()
        shape = {"gpus_per_node": 1}
        self.job_id = self.court.fleet.submit(shape=shape, restart={"max_restarts": 8})
        self.start()

    def attempts(self) -> list[Attempt]:
        return sorted(self.court.rows(Attempt), key=lambda each: each.number)

    def start(self) -> None:
        self.court.fleet.reconcile()
        self.court.fleet.cycle()
        newest = self.attempts()[-1]
        assert self.host.claim(newest.id, newest.fence).granted
        self.host.report(newest.id, newest.fence, "started")
        self.offset = 0

    def gpu(self, number: int) -> GpuUuid:
        return self.court.fleet.attempts(self.job_id)[number].hosts[0].gpus[0]

    def name(self, number: int, step: int) -> str:
        return f"step-{step:08d}/gen-{self.attempts()[number].fence}"

    def report(self, *words: dict[str, object]) -> None:
        newest = self.attempts()[-1]
        at_ms = to_ms(self.court.clock.now)
        told = self.host.report_words(newest.id, newest.fence, *words, at_ms=at_ms, offset=self.offset)
        assert told.taken == len(words)
        self.offset = told.offset

    def resume(self, generation: str) -> None:
        self.report({"type": "resumed", "step": 0, "generation": generation})

    def save(self, step: int, *, ago_s: float = 0.0) -> str:
        """Committed and verified by the newest attempt."""
        name = self.name(-1, step)
        at_ms = to_ms(self.court.clock.now - timedelta(seconds=ago_s))
        self.report({"type": "checkpoint", "step": step, "generation": name, "status": "verified", "at_unix_ms": at_ms})
        return name

    def go_on(self, generation: str | None) -> None:
        """The newest attempt dies of something else, and the next one is elsewhere."""
        newest, gpu = self.attempts()[-1], self.gpu(-1)
        self.host.report(newest.id, newest.fence, "exited", "cleaned", record=FAILED)
        take_out(self.court, gpu, hours=24)
        self.court.clock.advance(3_600)
        self.host.beat()
        self.start()
        assert self.gpu(-1) != gpu
        if generation is not None:
            self.resume(generation)

    def find_wrong(self, number: int, *, ago_s: float) -> None:
        """Of the GPU of that attempt, with its onset so long ago."""
        self.court.signal("wrong", self.gpu(number), at=self.court.clock.now - timedelta(seconds=ago_s))
        self.court.judge()

    def statuses(self) -> dict[str, CheckpointStatus]:
        with self.court.units.read() as session:
            return {row.generation: row.status for row in session.scalars(select(Checkpoint))}

    def reported_next(self) -> tuple[object, set[str]]:
        """Return where the next attempt continues, and by which fences something is tainted."""
        with self.court.units.read() as session:
            told = resume_of(session, self.job_id)
        return told["generation"], set(told["tainted_since_unix_ms"])


@pytest.fixture
def job(court: Court) -> Job:
    return Job(court)


def test_a_live_attempt_that_went_on_from_a_tainted_one_is_stopped_and_what_it_commits_is_tainted(
    court: Court, job: Job
) -> None:
    clean, doubtful = job.save(20, ago_s=LONG_AGO_S), job.save(40)
    job.go_on(doubtful)
    before = job.save(60)
    assert job.attempts()[1].tainted_since is None
    job.find_wrong(0, ago_s=3_600)
    second = job.attempts()[1]
    assert second.tainted_since == second.placed_at
    assert evacuate_once(court.units, JUDGE) == 1
    after = job.save(80)
    assert job.statuses() == {
        clean: CheckpointStatus.VERIFIED,
        doubtful: CheckpointStatus.TAINTED,
        before: CheckpointStatus.TAINTED,
        after: CheckpointStatus.TAINTED,
    }
    with court.units.read() as session:
        grace = timedelta(seconds=active_policy(session).evacuation.correctness_grace_s)
    second = job.attempts()[1]
    assert (second.stop_reason, second.stop_deadline_at) == (StopReason.EVACUATION, court.clock.now + grace)
    assert job.reported_next() == (clean, {str(each.fence) for each in job.attempts()})
    assert evacuate_once(court.units, JUDGE) == 0, "once"


def test_one_that_went_on_from_before_the_fault_runs_on(court: Court, job: Job) -> None:
    clean, doubtful = job.save(20, ago_s=LONG_AGO_S), job.save(40)
    job.go_on(clean)
    job.find_wrong(0, ago_s=3_600)
    assert evacuate_once(court.units, JUDGE) == 0
    first, second = job.attempts()
    assert (first.tainted_since is not None, second.tainted_since, second.stop_reason) == (True, None, None)
    assert job.statuses()[doubtful] is CheckpointStatus.TAINTED
    newest = job.save(60)
    assert job.statuses()[newest] is CheckpointStatus.VERIFIED


def test_it_is_followed_through_an_attempt_that_has_ended_and_a_generation_that_is_gone(court: Court, job: Job) -> None:
    doubtful = job.save(40)
    job.go_on(doubtful)
    middle = job.save(60)
    job.report({"type": "checkpoint_expired", "generation": doubtful})
    job.go_on(middle)
    last = job.save(80)
    job.find_wrong(0, ago_s=7_200)
    assert evacuate_once(court.units, JUDGE) == 1
    assert [each.tainted_since is not None for each in job.attempts()] == [True, True, True]
    assert job.attempts()[2].stop_reason is StopReason.EVACUATION
    assert job.statuses() == {
        doubtful: CheckpointStatus.EXPIRED,
        middle: CheckpointStatus.TAINTED,
        last: CheckpointStatus.TAINTED,
    }
    assert len(court.events("attempt.tainted")) == 2


def test_one_whose_word_comes_after_the_judgement_is_stopped_too(court: Court, job: Job) -> None:
    """Its order was given when no finding was known against the generation."""
    doubtful = job.save(40)
    job.go_on(None)
    job.find_wrong(0, ago_s=3_600)
    assert evacuate_once(court.units, JUDGE) == 0, "nothing is known of what it builds on"
    job.resume(doubtful)
    assert evacuate_once(court.units, JUDGE) == 1
    assert job.attempts()[1].stop_reason is StopReason.EVACUATION
    newest = job.save(60)
    assert job.statuses()[newest] is CheckpointStatus.TAINTED


@pytest.mark.parametrize("reported", ["", "anew", "step-1/gen-99999999999999999999", "own"])
def test_a_program_that_states_something_else_descends_from_nothing(court: Court, job: Job, reported: str) -> None:
    job.save(40)
    job.go_on(job.name(-1, 40) if reported == "own" else reported)
    if reported == "own":
        job.resume(job.name(-1, 40))
    second = job.attempts()[1]
    assert second.state is not AttemptState.ENDED
    assert second.resumed_from == (job.name(0, 40) if reported == "own" else None)
