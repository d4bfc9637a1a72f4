"""How long phases took in a job's earlier attempts, in the order of its next one."""

from typing import Any

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.training import training
from muster.db.models import TrainingHost
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost


class Learning:
    """A job of one host that reports what it has learnt, attempt after attempt."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        self.host = PlayedHost(units, self.fleet.node_id)
        self.job_id = self.fleet.submit(restart={"max_restarts": 9})
        self.offset = 0

    def start(self) -> dict[str, tuple[float, ...]]:
        """Start the next attempt, and return the durations in its order."""
        self.clock.advance(3600)
        self.host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        self.attempt, self.offset = self.fleet.attempts(self.job_id)[-1].attempt, 0
        claimed = self.host.claim(self.attempt.id, self.attempt.fence)
        assert claimed.order is not None
        self.host.report(self.attempt.id, self.attempt.fence, "started")
        return claimed.order.durations

    def learn(self, durations: dict[str, Any], *, rank: int | None = None) -> int:
        """Report durations. Return how many lines of the attempt were refused."""
        message = {"type": "learnt", "durations": durations}
        line = TrainLine(at_ms=to_ms(self.clock.now), rank=rank, message=message)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=self.attempt.fence, offset=self.offset, next_offset=self.offset + 9,
            lines=(line,),
        )  # fmt: skip
        self.offset += 9
        with self.units.begin(self.host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt.id, batch)
        with self.units.read() as session:
            return session.get_one(TrainingHost, (self.attempt.id, self.host.node_id)).num_refused

    def end(self) -> None:
        self.host.report(self.attempt.id, self.attempt.fence, "exited", "clean", record={"launcher_signal": 9})


@pytest.fixture
def learning(units: UnitOfWorkFactory, clock: SetClock) -> Learning:
    return Learning(units, clock)


def test_the_next_attempt_knows_what_the_one_before_learnt(learning: Learning) -> None:
    assert learning.start() == {}
    assert learning.learn({"step": [2.0, 2.5, 9.0], "first_step": [40]}) == 0
    learning.end()
    assert learning.start() == {"step": (2.0, 2.5, 9.0), "first_step": (40.0,)}
    learning.end()
    assert learning.start() == {"step": (2.0, 2.5, 9.0), "first_step": (40.0,)}, "an attempt that learnt nothing"
    learning.learn({"step": [3.0]})
    learning.end()
    assert learning.start() == {"step": (3.0,)}


def test_what_no_attempt_has_learnt_recently_is_no_longer_known(learning: Learning) -> None:
    learning.start()
    learning.learn({"step": [2.0]})
    for _ in range(3):
        learning.end()
        assert learning.start() == {"step": (2.0,)}
    learning.end()
    assert learning.start() == {}


def test_a_program_cannot_state_it_and_odd_durations_are_refused(learning: Learning) -> None:
    learning.start()
    assert learning.learn({"step": [1e9]}, rank=0) == 1
    cases: list[dict[str, Any]] = [{"step": [-1.0]}, {"step": "long"}, {"from_the_future": [1.0]}]
    for refused, odd in enumerate(cases, 2):
        assert learning.learn(odd) == refused
    assert learning.learn({"step": [1.0], "from_the_future": [1.0]}) == 4
    learning.end()
    assert learning.start() == {"step": (1.0,)}
