"""Saves that fail open an incident about a host or a storage, and saves that succeed close it."""

from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from muster.db.models import Event, EvidenceRow, Gpu, Incident
from muster.domain.states import Standing
from muster.services import nodes
from muster.services.lives import to_ms
from muster.services.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost, played_host
from tests.services.conftest import SetClock

NFS = "nfs01:/export"


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

    def say(self, **message: object) -> None:
        self.step += 1
        word = {
            "type": "checkpoint",
            "step": self.step,
            "generation": f"step-{self.step:08d}/gen-{self.fence}",
            **message,
        }
        at_ms = to_ms(self.clock.now)
        answer = self.host.say_words(self.attempt_id, self.fence, word, at_ms=at_ms, offset=self.offset)
        self.offset = answer.offset

    def fail(self, kind: str = "io", place: str = NFS, *, is_shared: bool = True, rank: int = 0) -> None:
        fault = {"rank": rank, "kind": kind, "place": place, "is_shared": is_shared}
        self.say(status="failed", why=f"rank {rank}: {kind}", faults=[fault])

    def save(self, place: str = NFS) -> None:
        self.say(status="committed", place=place, at_unix_ms=to_ms(self.clock.now))


@dataclass(frozen=True)
class World:
    fleet: Fleet
    clock: SetClock
    jobs: list[Running]

    def incidents(self, *, is_open: bool = True) -> list[tuple[str, str]]:
        with self.fleet.units.read() as session:
            query = select(Incident).where(Incident.closed_at.is_(None) if is_open else Incident.closed_at.is_not(None))
            return [(row.kind, row.subject_id) for row in session.scalars(query.order_by(Incident.kind))]


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    """Two hosts with two GPUs each, and on each a job that fills it."""
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
    assert world.incidents() == [], "the count begins anew"
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


def test_own_disks_are_two_places_and_a_save_on_one_says_nothing_of_the_other(world: World) -> None:
    for job in world.jobs:
        for _ in range(2):
            job.fail("read_only", "/mnt", is_shared=False)
    assert world.incidents() == sorted(("node_storage", job.host.node_id) for job in world.jobs)
    world.jobs[0].save("/mnt")
    world.jobs[0].save("/mnt")
    assert world.incidents() == [("node_storage", world.jobs[1].host.node_id)]


def test_a_refused_job_accuses_nobody_until_another_is_refused_too(world: World) -> None:
    first, second = world.jobs
    for _ in range(5):
        first.fail("refused", "s3://bucket")
    second.save("s3://bucket")
    assert world.incidents() == []
    second.fail("refused", "s3://bucket")
    assert world.incidents() == [("storage", "s3://bucket")]


def test_what_fits_nothing_costs_no_word_and_accuses_nobody(world: World) -> None:
    first, _ = world.jobs
    for fault in ({"rank": 7, "kind": "io", "place": "/", "is_shared": False}, {"kind": "bad luck"}, {}):
        for _ in range(3):
            first.say(status="failed", why="why", faults=[fault])
    assert world.incidents() == []
    with world.fleet.units.read() as session:
        assert len(session.scalars(select(Event).where(Event.kind == "checkpoint.failed")).all()) == 9
