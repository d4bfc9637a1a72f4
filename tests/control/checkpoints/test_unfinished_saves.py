"""A checkpoint while it is WRITING: what is seen of it, and that nothing of it is left where it comes to nothing."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from control.checkpoints.checkpoints import resume_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import pins
from muster.db.models import Checkpoint, Event
from muster.domain.errors import ConflictError
from muster.domain.states import AttemptState, CheckpointStatus
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost

GENERATION = "step-00000004/gen-1"


class Training:
    """A job that trains, and says what the test has it say."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.fleet = make_fleet(units)
        self.clock = clock
        self.host = PlayedHost(units, self.fleet.node_id)
        self.job_id = self.fleet.submit()
        self.host.beat()
        self.fleet.cycle()
        attempt = self.fleet.attempts(self.job_id)[-1].attempt
        self.attempt_id, self.fence = attempt.id, attempt.fence
        assert self.host.claim(attempt.id, attempt.fence).granted
        self.host.report(attempt.id, attempt.fence, "started")
        self._offset = 0

    def report(self, status: str) -> None:
        word = {"type": "checkpoint", "step": 4, "generation": GENERATION, "status": status, "bytes": 10}
        at_ms = to_ms(self.clock.now)
        answer = self.host.report_words(self.attempt_id, self.fence, word, at_ms=at_ms, offset=self._offset)
        self._offset = answer.offset

    def fail(self) -> None:
        self.host.report(self.attempt_id, self.fence, "exited", "clean", record={"launcher_exit_code": 1})

    def rows(self) -> list[Checkpoint]:
        with self.fleet.units.read() as session:
            return list(session.scalars(select(Checkpoint)))

    def kinds(self) -> list[str]:
        query = select(Event.kind).where(Event.kind.like("checkpoint.%")).order_by(Event.id)
        with self.fleet.units.read() as session:
            return list(session.scalars(query))


@pytest.fixture
def training(units: UnitOfWorkFactory, clock: SetClock) -> Training:
    return Training(units, clock)


def test_it_is_seen_while_it_is_written_and_nothing_resumes_from_it(training: Training) -> None:
    training.report("writing")
    training.report("writing")
    (row,) = training.rows()
    assert (row.status, row.step, row.committed_at, row.num_bytes) == (CheckpointStatus.WRITING, 4, None, None)
    with training.fleet.units.read() as session:
        told = resume_of(session, training.job_id)
    assert (told["generation"], told["refuse"], told["pinned"]) == (None, [], [])
    with (
        training.fleet.units.begin(training.fleet.tenant, pins.PIN) as unit,
        pytest.raises(ConflictError, match="still being written"),
    ):
        pins.pin(unit, training.job_id, row.id)


def test_its_commit_goes_on_with_the_same_row(training: Training) -> None:
    training.report("writing")
    (begun,) = training.rows()
    training.report("committed")
    training.report("verified")
    (row,) = training.rows()
    assert (row.id, row.status, row.num_bytes) == (begun.id, CheckpointStatus.VERIFIED, 10)
    assert row.committed_at is not None
    assert training.kinds() == ["checkpoint.writing", "checkpoint.committed", "checkpoint.verified"]


def test_where_it_fails_no_row_is_left_and_the_same_step_may_be_saved_yet(training: Training) -> None:
    training.report("writing")
    training.report("failed")
    assert training.rows() == []
    training.report("writing")
    training.report("committed")
    assert [row.status for row in training.rows()] == [CheckpointStatus.COMMITTED]


def _settles(training: Training) -> None:
    training.fail()


def _is_lost(training: Training) -> None:
    """Its host falls silent, while the server never does."""
    for _ in range(200):
        training.clock.advance(10)
        training.fleet.reconcile()
        if training.fleet.attempts(training.job_id)[-1].attempt.state is AttemptState.ENDED:
            return
    pytest.fail("its attempt has not ended")


@pytest.mark.parametrize("end", [_settles, _is_lost])
def test_where_its_attempt_ends_no_row_is_left_and_a_late_commit_still_counts(
    training: Training, end: Callable[[Training], None]
) -> None:
    training.report("writing")
    end(training)
    assert training.rows() == []
    assert training.kinds() == ["checkpoint.writing", "checkpoint.unfinished"]
    training.report("writing")
    assert training.rows() == [], "its attempt has ended"
    training.report("committed")
    (row,) = training.rows()
    assert row.status in {CheckpointStatus.COMMITTED, CheckpointStatus.REJECTED}
