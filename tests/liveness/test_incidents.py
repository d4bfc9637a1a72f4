"""A loop that no process advances is an incident, until one advances it again."""

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.system.liveness import Reporter
from muster.db.models import Event, Incident, LoopProgress
from muster.progress import Progress
from tests.control.conftest import SetClock
from tests.control.conftest import clock as clock  # noqa: PLC0414  # the fixture
from tests.control.conftest import units as units  # noqa: PLC0414  # the fixture


class Loops:
    """Of one process."""

    def __init__(self, units: UnitOfWorkFactory, component: str, *names: str) -> None:
        self._now_s = 0.0
        self._reporter = Reporter(units, component)
        self.beats = {name: Progress(name, clock=lambda: self._now_s) for name in names}

    def live(self, seconds: float, *advancing: str) -> None:
        self._now_s += seconds
        for name in advancing:
            self.beats[name].advance()
        self._reporter.report(list(self.beats.values()))


@pytest.fixture
def worker(units: UnitOfWorkFactory) -> Loops:
    return Loops(units, "worker-control", "judge", "relay")


def open_incidents(units: UnitOfWorkFactory) -> list[tuple[str, str]]:
    with units.read() as session:
        found = session.scalars(select(Incident).where(Incident.closed_at.is_(None)).order_by(Incident.subject_id))
        return [(incident.kind, incident.subject_id) for incident in found]


def live(clock: SetClock, *loops: tuple[Loops, tuple[str, ...]], seconds: float = 30) -> None:
    clock.advance(seconds)
    for process, advancing in loops:
        process.live(seconds, *advancing)


def test_a_loop_that_stands_still_is_one_incident_until_it_advances(
    units: UnitOfWorkFactory, clock: SetClock, worker: Loops
) -> None:
    both = ("judge", "relay")
    for _ in range(4):
        live(clock, (worker, both))
    assert open_incidents(units) == []
    for _ in range(4):
        live(clock, (worker, ("relay",)))
    assert open_incidents(units) == [("loop_stalled", "judge")]
    with units.read() as session:
        (incident,) = session.scalars(select(Incident))
        assert incident.summary.endswith("start `muster worker control` again")
    live(clock, (worker, both))
    assert open_incidents(units) == []
    with units.read() as session:
        kinds = list(session.scalars(select(Event.kind).order_by(Event.id)))
    assert kinds == ["incident.opened", "incident.closed"]


def test_any_process_that_is_left_opens_it_and_one_that_advances_is_enough(
    units: UnitOfWorkFactory, clock: SetClock, worker: Loops
) -> None:
    api, second = Loops(units, "api", "requests"), Loops(units, "worker-control", "judge", "relay")
    for _ in range(3):
        live(clock, (api, ("requests",)), (worker, ("judge", "relay")), (second, ("judge", "relay")))
    for _ in range(3):
        live(clock, (api, ("requests",)), (second, ("judge", "relay")))
    assert open_incidents(units) == []
    for _ in range(3):  # neither worker reports any more: killed, or stopped
        live(clock, (api, ("requests",)))
    assert open_incidents(units) == [("loop_stalled", "judge"), ("loop_stalled", "relay")]


def test_a_process_that_has_just_started_judges_none(units: UnitOfWorkFactory, clock: SetClock, worker: Loops) -> None:
    live(clock, (worker, ("judge", "relay")))
    clock.advance(7200)  # all was stopped
    api = Loops(units, "api", "requests")
    live(clock, (api, ("requests",)))
    assert open_incidents(units) == []
    live(clock, (api, ("requests",)), (worker, ("judge", "relay")))
    live(clock, (api, ("requests",)), (worker, ("judge", "relay")))
    assert open_incidents(units) == []


def test_after_an_outage_of_the_database_each_has_time_to_report(
    units: UnitOfWorkFactory, clock: SetClock, worker: Loops
) -> None:
    api, both = Loops(units, "api", "requests"), ("judge", "relay")
    for _ in range(3):
        live(clock, (api, ("requests",)), (worker, both))
    clock.advance(300)  # no process could report, or all were suspended
    live(clock, (api, ("requests",)))
    live(clock, (api, ("requests",)), (worker, both))
    assert open_incidents(units) == []
    for _ in range(3):
        live(clock, (api, ("requests",)))
    assert open_incidents(units) == [("loop_stalled", "judge"), ("loop_stalled", "relay")]


def test_what_no_process_has_reported_for_a_day_is_forgotten(
    units: UnitOfWorkFactory, clock: SetClock, worker: Loops
) -> None:
    live(clock, (worker, ("judge", "relay")))
    clock.advance(86_401)
    live(clock, (Loops(units, "api", "requests"), ("requests",)))
    with units.read() as session:
        assert [row.loop for row in session.scalars(select(LoopProgress))] == ["requests"]
