"""Reports on values: on the attempt's timeline, and no checkpoint is GOOD until enough usual steps follow it."""

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Attempt, Event, TrainingHost, TrainingStep
from muster.domain.states import CheckpointStatus
from tests.control.conftest import SetClock
from tests.control.training.test_checkpoint_reports import Job, Word
from tests.filled_once import filled_world


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> Job:
    return filled_world(units, clock, "a job in its second attempt", lambda: Job(units, clock))


def steps(last: int) -> list[Word]:
    return [{"type": "step", "step": last, "loss": 1.0, "step_s": 0.1}]


def saved(job: Job, step: int) -> list[Word]:
    word = job.word(1, step)
    return [word, {**word, "status": "verified"}]


def test_a_checkpoint_is_good_only_so_many_usual_steps_after_it(job: Job) -> None:
    """Twenty, by the built-in policy. The newest step counts once the next has begun."""
    job.report(1, *saved(job, 100), *steps(110))
    job.report(1, {"type": "spike", "step": 111, "what": "loss", "value": 50.0, "usual": 2.0}, *steps(125))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.VERIFIED}, "15 steps after the spike"
    job.report(1, *steps(131))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.VERIFIED}, "the last of 20 may yet be faulty"
    job.report(1, *steps(132))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.GOOD}


def test_no_checkpoint_is_good_in_the_middle_of_a_row_of_spikes(job: Job) -> None:
    spike: Word = {"type": "spike", "what": "loss", "value": 50.0, "usual": 2.0}
    rest: list[Word] = [{**spike, "step": 110 + each, "length": each, "is_shown": False} for each in range(2, 40)]
    job.report(1, *saved(job, 100), *steps(110), {**spike, "step": 111, "length": 1, "is_shown": True}, *rest)
    job.report(1, *steps(150))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.VERIFIED}
    job.report(1, *steps(171))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.GOOD}
    with job.fleet.units.read() as session:
        (event,) = session.scalars(select(Event).where(Event.kind == "attempt.spike"))
    assert event.payload["step"] == 111, "the others of the row have no event"


def test_nothing_is_good_by_steps_that_end_in_a_value_that_is_not_finite(job: Job) -> None:
    job.report(1, *saved(job, 100), *steps(120))
    job.report(1, {"type": "step", "step": 121, "loss": None}, {"type": "value_fault", "step": 121, "reason": "nan"})
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.VERIFIED}
    back: Word = {"type": "rolled_back", "from_step": 121, "step": 100, "generation": job.name(1, 100)}
    job.report(1, {**back, "cause": "value_fault"}, *steps(101))
    with job.fleet.units.read() as session:
        assert session.get_one(Attempt, job.attempts[1][0]).unusual_step == 100
    job.report(1, *steps(121))
    assert job.statuses() == {job.name(1, 100): CheckpointStatus.GOOD}
    with job.fleet.units.read() as session:
        losses = session.scalars(select(TrainingStep.loss).order_by(TrainingStep.step)).all()
    assert losses == [1.0, 1.0, 1.0], "of steps 101, 120 and 121, which was done again"


def test_each_is_an_event_of_the_attempt_and_only_the_first_rank_reports_it(job: Job) -> None:
    ranks: Word = {"verdict": "corruption", "ranks": [2], "tensor": "layer.weight", "num_tensors": 3, "num_copies": 4}
    back: Word = {"type": "rolled_back", "from_step": 12, "step": 8, "generation": job.name(1, 8)}
    job.report(
        1,
        {"type": "spike", "step": 9, "what": "grad_norm", "value": 80.0, "usual": 1.5, "length": 1},
        {"type": "replica_fault", "step": 12, "since": 9, **ranks, "reason": "the copy is false"},
        {**back, "cause": "replica_fault", "skipped_from": 96, "skipped_to": 108, "number": 1, "budget": 3},
    )
    with job.fleet.units.read() as session:
        kinds = ("attempt.spike", "attempt.replica_fault", "attempt.rolled_back")
        events = {each.kind: each for each in session.scalars(select(Event).where(Event.kind.in_(kinds)))}
    assert {each.subject_id for each in events.values()} == {job.attempts[1][0]}
    assert events["attempt.spike"].payload["reason"] == "the gradient norm is 80 at step 9, and was 1.5 before"
    fault = events["attempt.replica_fault"].payload
    assert (fault["verdict"], fault["ranks"], fault["tensor"], fault["since"]) == ("corruption", [2], "layer.weight", 9)
    assert events["attempt.rolled_back"].payload["reason"] == (
        "rolled back from step 12 to step 8; 12 samples are skipped"
    )


@pytest.mark.parametrize(
    "word",
    [
        {"type": "spike", "step": 9, "what": "temperature", "value": 1.0, "usual": 1.0},
        {"type": "value_fault", "step": -1},
        {"type": "value_fault", "step": 1, "ranks": list(range(17))},
        {"type": "replica_fault", "step": 1, "since": 0, "verdict": "guilty"},
        {"type": "rolled_back", "from_step": 1, "step": 0, "generation": "../../etc", "cause": "value_fault"},
    ],
)
def test_nonsense_is_counted_and_changes_nothing(job: Job, word: Word) -> None:
    job.report(1, word)
    with job.fleet.units.read() as session:
        assert session.get_one(Attempt, job.attempts[1][0]).unusual_step is None
        assert session.scalars(select(TrainingHost.num_refused)).one() == 1
        assert not session.scalars(select(Event).where(Event.kind.in_(("attempt.spike", "attempt.value_fault")))).all()
