"""Saves that fail open an incident about a host or a storage, and saves that succeed close it."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import read as nodes
from control.hosts.read import FailingSaves
from control.incidents import incidents
from control.incidents.read import IncidentFilter, list_incidents
from control.policy.policies import ACTIVATE, store_policy
from control.system.retention import sweep_once
from control.training.storage_faults import MOST_PLACES, SETTLE, settle_once
from muster.db.models import Event, EvidenceRow, Gpu, Incident, StorageFault
from muster.domain.evidence.incidents import IncidentState
from muster.domain.ids import JobId, NodeId
from muster.domain.policy.document import Policy
from muster.domain.policy.training import StoragePolicy, TrainingPolicy
from muster.domain.states import Standing
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost, played_host

NFS = "nfs01:/export"
DAY_S = 86_400
SUCCESS = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}, "1": {"exit_code": 0}}}
WINDOW_S = StoragePolicy().window_s


@dataclass
class Running:
    """A job that runs on one host."""

    host: PlayedHost
    clock: SetClock
    job_id: str
    attempt_id: str
    fence: int
    offset: int = 0
    step: int = field(default=0)

    def report(self, **message: object) -> None:
        self.step += 1
        word = {
            "type": "checkpoint",
            "step": self.step,
            "generation": f"step-{self.step:08d}/gen-{self.fence}",
            **message,
        }
        at_ms = to_ms(self.clock.now)
        answer = self.host.report_words(self.attempt_id, self.fence, word, at_ms=at_ms, offset=self.offset)
        self.offset = answer.offset

    def fail(self, kind: str = "io", place: str = NFS, *, is_shared: bool = True, rank: int = 0) -> None:
        fault = {"rank": rank, "kind": kind, "place": place, "is_shared": is_shared}
        self.report(status="failed", why=f"rank {rank}: {kind}", faults=[fault])

    def save(self, place: str = NFS) -> None:
        self.report(status="committed", place=place, at_unix_ms=to_ms(self.clock.now))


@dataclass(frozen=True)
class World:
    fleet: Fleet
    clock: SetClock
    jobs: list[Running]

    def incidents(self, *, is_open: bool = True) -> list[tuple[str, str]]:
        with self.fleet.units.read() as session:
            query = select(Incident).where(Incident.closed_at.is_(None) if is_open else Incident.closed_at.is_not(None))
            return [
                (row.kind, row.subject_id)
                for row in session.scalars(query.order_by(Incident.kind, Incident.subject_id))
            ]

    def failing_saves(self, job: Running) -> list[FailingSaves]:
        with self.fleet.units.begin(OPERATOR, nodes.READ) as unit:
            return list(nodes.detail_of(unit, job.host.node_id).failing_saves)

    def faults(self) -> list[StorageFault]:
        with self.fleet.units.read() as session:
            return list(session.scalars(select(StorageFault).order_by(StorageFault.place)))

    def close_by_hand(self) -> None:
        with self.fleet.units.begin(OPERATOR, incidents.CLOSE) as unit:
            (row,) = list_incidents(unit, IncidentFilter(IncidentState.OPEN), Part(2))
            incidents.close(unit, row.id, reason="the share was mounted again")


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    """Two hosts with two GPUs each, and on each a job that fills it."""
    return filled_world(units, clock, "two jobs that save", lambda: _make_world(clock, units))


def _make_world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    fleet = make_fleet(units)
    hosts = [PlayedHost(units, fleet.node_id), played_host(units, "beta")]
    running = []
    for _ in hosts:
        job_id = fleet.submit(shape={"gpus_per_node": 2})
        for host in hosts:
            host.beat()
        fleet.reconcile()
        fleet.cycle()
        view = fleet.attempts(job_id)[-1]
        host = next(each for each in hosts if each.node_id == view.hosts[0].part.node_id)
        assert host.claim(view.attempt.id, view.attempt.fence).granted
        host.report(view.attempt.id, view.attempt.fence, "started")
        running.append(Running(host, clock, job_id, view.attempt.id, view.attempt.fence))
    return World(fleet, clock, running)


def test_one_host_that_fails_alone_is_at_fault_and_saves_that_succeed_close_it(world: World) -> None:
    first, second = world.jobs
    first.fail()
    assert world.incidents() == []
    first.fail("timeout")
    assert world.incidents() == [("node_storage", first.host.node_id)]
    with world.fleet.units.begin(OPERATOR, nodes.READ) as unit:
        (seen,) = nodes.detail_of(unit, first.host.node_id).failing_saves
        assert (seen.place, seen.kind, seen.num_failures, seen.job_id) == (NFS, "timeout", 2, first.job_id)
        assert nodes.detail_of(unit, second.host.node_id).failing_saves == []
    second.save()
    first.save()
    assert world.incidents() == [("node_storage", first.host.node_id)], "one good save may be chance"
    first.save()
    assert world.incidents() == []
    assert world.incidents(is_open=False) == [("node_storage", first.host.node_id)]
    first.fail()
    assert world.incidents() == [], "the count begins again"
    with world.fleet.units.read() as session:
        standings = set(session.scalars(select(Gpu.standing)))
        kinds = session.scalars(select(Event.kind).where(Event.subject_id == first.host.node_id)).all()
        assert session.scalars(select(EvidenceRow)).all() == []
    assert standings == {Standing.UNPROVEN}, "no GPU is judged by what a program says of a disk"
    assert [kind for kind in kinds if "saves" in kind] == ["node.saves_fail", "node.saves_succeed", "node.saves_fail"]


def test_a_second_host_moves_the_blame_to_the_storage_and_back(world: World) -> None:
    first, second = world.jobs
    first.fail()
    first.fail()
    second.fail()
    assert world.incidents() == [("storage", NFS)]
    with world.fleet.units.read() as session:
        incident = session.scalars(select(Incident).where(Incident.kind == "storage")).one()
    assert incident.summary.startswith(f"checkpoints cannot be saved to {NFS}: input or output failed, seen from ")
    assert incident.payload["num_failures"] == 3
    second.save()
    second.save()
    assert world.incidents() == [("node_storage", first.host.node_id)], "now it fails there alone"


def test_own_disks_are_two_places_and_a_save_on_one_states_nothing_of_the_other(world: World) -> None:
    for job in world.jobs:
        for _ in range(2):
            job.fail("read_only", "/mnt", is_shared=False)
    assert world.incidents() == sorted(("node_storage", job.host.node_id) for job in world.jobs)
    world.jobs[0].save("/mnt")
    world.jobs[0].save("/mnt")
    assert world.incidents() == [("node_storage", world.jobs[1].host.node_id)]


def test_a_refused_job_accuses_none_until_another_is_refused_too(world: World) -> None:
    first, second = world.jobs
    for _ in range(5):
        first.fail("refused", "s3://bucket")
    second.save("s3://bucket")
    assert world.incidents() == []
    second.fail("refused", "s3://bucket")
    assert world.incidents() == [("storage", "s3://bucket")]


def test_what_fits_nothing_costs_no_word_and_accuses_none(world: World) -> None:
    first, _ = world.jobs
    for fault in ({"rank": 7, "kind": "io", "place": "/", "is_shared": False}, {"kind": "bad luck"}, {}):
        for _ in range(3):
            first.report(status="failed", why="why", faults=[fault])
    assert world.incidents() == []
    with world.fleet.units.read() as session:
        assert len(session.scalars(select(Event).where(Event.kind == "checkpoint.failed")).all()) == 9


def test_failures_that_lie_further_apart_than_the_window_accuse_none(world: World) -> None:
    first, second = world.jobs
    first.fail("refused", "s3://bucket")
    first.fail()
    world.clock.advance(90 * DAY_S)
    assert world.failing_saves(first) == []
    second.fail("refused", "s3://bucket")
    first.fail()
    assert world.incidents() == []
    assert [(each.place, each.num_failures) for each in world.failing_saves(first)] == [(NFS, 1)], "counted again"
    world.clock.advance(WINDOW_S - 1)
    assert world.failing_saves(first) != []
    first.fail()
    assert world.incidents() == [("node_storage", first.host.node_id)]


def test_an_incident_closes_itself_when_nothing_has_failed_for_the_window(world: World) -> None:
    first, second = world.jobs
    for _ in range(2):
        first.fail()
        second.fail("no_space", "nfs02:/export")
    both = [("node_storage", first.host.node_id), ("storage", "nfs02:/export")]
    world.clock.advance(WINDOW_S - 1)
    assert settle_once(world.fleet.units) == 2
    assert world.incidents() == both
    second.fail("no_space", "nfs02:/export")
    world.clock.advance(1)
    settle_once(world.fleet.units)
    assert world.incidents() == both[1:], "the other has failed since"
    world.clock.advance(WINDOW_S)
    assert settle_once(world.fleet.units) == 1
    assert world.incidents() == []
    assert settle_once(world.fleet.units) == 0


def test_the_window_is_the_policys_in_what_is_judged_and_in_what_is_shown(world: World) -> None:
    policy = Policy(training=TrainingPolicy(storage=StoragePolicy(window_s=60.0)))
    with world.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="test")
    first, _ = world.jobs
    first.fail()
    assert world.failing_saves(first) != []
    world.clock.advance(61)
    assert world.failing_saves(first) == []
    first.fail()
    assert world.incidents() == []


def test_a_clock_that_is_ahead_makes_no_failure_last_longer(world: World) -> None:
    first, _ = world.jobs
    now = world.clock.now
    world.clock.advance(400 * DAY_S)
    ahead = to_ms(world.clock.now)
    world.clock.now = now
    fault = {"rank": 0, "kind": "io", "place": NFS, "is_shared": True}
    word = {"type": "checkpoint", "step": 1, "generation": "step-00000001/gen-1", "status": "failed", "faults": [fault]}
    first.host.report_words(first.attempt_id, first.fence, word, at_ms=ahead)
    (row,) = world.faults()
    assert row.last_at == now


def test_a_job_that_was_refused_accuses_none_once_it_has_ended(world: World) -> None:
    _, second = world.jobs
    for job in world.jobs:
        job.fail("refused", "s3://bucket")
    second.fail("no_space", NFS)
    second.fail("no_space", NFS)
    assert settle_once(world.fleet.units) == 2
    assert world.incidents() == [("storage", NFS), ("storage", "s3://bucket")]
    for job in world.jobs:
        job.host.report(job.attempt_id, job.fence, "exited", record=SUCCESS)
    settle_once(world.fleet.units)
    assert world.incidents() == [("storage", NFS)], "that it was full is true of it still"


def test_good_saves_of_a_job_clear_what_failed_at_a_place_of_another_name(world: World) -> None:
    first, second = world.jobs
    first.fail("stale")
    first.fail("io", "/", is_shared=False)
    first.fail("io", "/", is_shared=False)
    second.fail("io", "/", is_shared=False)
    assert world.incidents() == [("node_storage", first.host.node_id)]
    first.save("nfs02:/export")
    assert world.incidents() == [("node_storage", first.host.node_id)]
    first.save("nfs02:/export")
    assert world.incidents() == []
    assert [row.place for row in world.faults() if row.cleared_at is None] == ["/"], "the other host's own"


@pytest.mark.parametrize("kind", ["no_space", "read_only"])
def test_any_hosts_save_reports_that_a_shared_place_has_room_again(world: World, kind: str) -> None:
    first, second = world.jobs
    first.fail(kind)
    first.fail(kind)
    first.fail("read_only", "/mnt", is_shared=False)
    (opened,) = world.incidents()
    second.save()
    assert world.incidents() == [opened]
    second.save()
    assert world.incidents() == []
    second.save("/mnt")
    second.save("/mnt")
    assert [row.place for row in world.faults() if row.cleared_at is None] == ["/mnt"], "a host's own disk is its own"


@pytest.mark.parametrize("kind", ["no_space", "io"])
def test_one_failure_does_not_reopen_what_a_person_has_closed(world: World, kind: str) -> None:
    first, second = world.jobs
    for _ in range(3):
        first.fail(kind)
    second.fail("stale", "nfs02:/export")
    (opened,) = world.incidents()
    world.close_by_hand()
    assert world.incidents() == []
    assert [row.place for row in world.faults() if row.cleared_at is None] == ["nfs02:/export"], "it was not judged"
    first.fail(kind)
    assert world.incidents() == []
    first.fail(kind)
    assert world.incidents() == [opened]


def test_a_program_that_invents_places_opens_few_incidents_and_loses_no_word(world: World) -> None:
    first, second = world.jobs
    for _ in range(3):
        for start in range(0, 300, 100):
            places = [f"invented{number}:/" for number in range(start, start + 100)]
            told = [{"rank": 0, "kind": "no_space", "place": place, "is_shared": True} for place in places]
            first.report(status="failed", why="why", faults=told)
    assert len(world.faults()) == len(world.incidents()) == MOST_PLACES
    with world.fleet.units.read() as session:
        words = session.scalars(select(Event).where(Event.kind == "checkpoint.failed")).all()
    assert [len(word.payload["faults"]) for word in words] == [16] * 9
    second.fail()
    second.fail()
    assert ("node_storage", second.host.node_id) in world.incidents(), "another job's count is its own"


def test_a_node_shows_its_newest_failing_saves_and_no_more_than_twenty(world: World) -> None:
    first, _ = world.jobs
    with world.fleet.units.begin(OPERATOR, SETTLE, quiet=True) as unit:
        for age in range(25):
            unit.session.add(_fault(first, f"nfs{age:02}:/", world, age_s=age))
    assert [each.place for each in world.failing_saves(first)] == [f"nfs{age:02}:/" for age in range(20)]


def test_what_is_cleared_or_old_is_swept_and_what_stands_stays(world: World) -> None:
    first, second = world.jobs
    with world.fleet.units.begin(OPERATOR, SETTLE, quiet=True) as unit:
        unit.session.add(_fault(first, "old:/", world, age_s=WINDOW_S))
    second.fail()
    first.fail()
    first.save()
    first.save()
    assert sweep_once(world.fleet.units, batch=1)["storage_faults"] == 1, "in small batches"
    assert sweep_once(world.fleet.units)["storage_faults"] == 1
    assert [(row.place, row.node_id) for row in world.faults()] == [(NFS, second.host.node_id)]


def _fault(job: Running, place: str, world: World, *, age_s: float) -> StorageFault:
    at = world.clock.now - timedelta(seconds=age_s)
    return StorageFault(
        place=place,
        node_id=NodeId(job.host.node_id),
        job_id=JobId(job.job_id),
        is_shared=True,
        kind="io",
        num_failures=1,
        num_saves_since=0,
        first_at=at,
        last_at=at,
    )
