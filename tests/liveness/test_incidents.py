"""A loop that no process advances is an incident, until one advances it again."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWorkFactory
from control.system.liveness import Reporter
from muster.db.models import Event, Incident, LoopProgress
from muster.progress import Progress
from tests.control.conftest import SetClock
from tests.control.conftest import clock as clock  # noqa: PLC0414  # the fixture
from tests.control.conftest import units as units  # noqa: PLC0414  # the fixture
from tests.hand_clock import HandClock


class Time:
    """The clocks of the hosts, and that of the database, by which the reports become older."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self._units, self._clock = units, clock

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        with self._units.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE loop_progress SET (advanced_at, reported_at) = (advanced_at - past, reported_at - past)"
                    " FROM make_interval(secs => :seconds) AS past"
                ),
                {"seconds": seconds},
            )


@pytest.fixture
def time(units: UnitOfWorkFactory, clock: SetClock) -> Time:
    return Time(units, clock)


class Loops:
    """Of one process."""

    def __init__(self, units: UnitOfWorkFactory, component: str, *names: str) -> None:
        self._clock = HandClock()
        self._reporter = Reporter(units, component)
        self.beats = {name: Progress(name, clock=self._clock) for name in names}

    def live(self, seconds: float, *advancing: str) -> None:
        self._clock.now_s += seconds
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


def live(time: Time, *loops: tuple[Loops, tuple[str, ...]], seconds: float = 30) -> None:
    time.advance(seconds)
    for process, advancing in loops:
        process.live(seconds, *advancing)


def test_a_loop_that_stands_still_is_one_incident_until_it_advances(
    units: UnitOfWorkFactory, time: Time, worker: Loops
) -> None:
    both = ("judge", "relay")
    for _ in range(4):
        live(time, (worker, both))
    assert open_incidents(units) == []
    for _ in range(4):
        live(time, (worker, ("relay",)))
    assert open_incidents(units) == [("loop_stalled", "judge")]
    with units.read() as session:
        (incident,) = session.scalars(select(Incident))
        assert incident.summary.endswith("start `muster worker control` again")
    live(time, (worker, both))
    assert open_incidents(units) == []
    with units.read() as session:
        kinds = list(session.scalars(select(Event.kind).order_by(Event.id)))
    assert kinds == ["incident.opened", "incident.closed"]


def test_any_process_that_is_left_opens_it_and_one_that_advances_is_enough(
    units: UnitOfWorkFactory, time: Time, worker: Loops
) -> None:
    api, second = Loops(units, "api", "requests"), Loops(units, "worker-control", "judge", "relay")
    for _ in range(3):
        live(time, (api, ("requests",)), (worker, ("judge", "relay")), (second, ("judge", "relay")))
    for _ in range(3):
        live(time, (api, ("requests",)), (second, ("judge", "relay")))
    assert open_incidents(units) == []
    for _ in range(3):  # neither worker reports any more: killed, or stopped
        live(time, (api, ("requests",)))
    assert open_incidents(units) == [("loop_stalled", "judge"), ("loop_stalled", "relay")]


def test_a_process_that_has_just_started_judges_none(units: UnitOfWorkFactory, time: Time, worker: Loops) -> None:
    live(time, (worker, ("judge", "relay")))
    time.advance(7200)  # all was stopped
    api = Loops(units, "api", "requests")
    live(time, (api, ("requests",)))
    assert open_incidents(units) == []
    live(time, (api, ("requests",)), (worker, ("judge", "relay")))
    live(time, (api, ("requests",)), (worker, ("judge", "relay")))
    assert open_incidents(units) == []


def test_after_an_outage_of_the_database_each_has_time_to_report(
    units: UnitOfWorkFactory, time: Time, worker: Loops
) -> None:
    api, both = Loops(units, "api", "requests"), ("judge", "relay")
    for _ in range(3):
        live(time, (api, ("requests",)), (worker, both))
    time.advance(300)  # no process could report, or all were suspended
    live(time, (api, ("requests",)))
    live(time, (api, ("requests",)), (worker, both))
    assert open_incidents(units) == []
    for _ in range(3):
        live(time, (api, ("requests",)))
    assert open_incidents(units) == [("loop_stalled", "judge"), ("loop_stalled", "relay")]


def test_a_host_whose_clock_is_late_is_judged_by_the_database_s(units: UnitOfWorkFactory, time: Time) -> None:
    late = replace(units, clock=lambda: units.clock() - timedelta(seconds=70))
    api, worker = Loops(units, "api", "requests"), Loops(late, "worker-control", "judge", "relay")
    for _ in range(4):
        live(time, (api, ("requests",)), (worker, ("judge", "relay")))
        assert open_incidents(units) == []
    with units.read() as session:
        assert list(session.scalars(select(Event.kind))) == []


def test_what_no_process_has_reported_for_a_day_is_forgotten(
    units: UnitOfWorkFactory, time: Time, worker: Loops
) -> None:
    live(time, (worker, ("judge", "relay")))
    time.advance(86_401)
    live(time, (Loops(units, "api", "requests"), ("requests",)))
    with units.read() as session:
        assert [row.loop for row in session.scalars(select(LoopProgress))] == ["requests"]
