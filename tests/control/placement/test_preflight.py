"""The preflight before placement over PostgreSQL: asked of one host, answered once, and no GPU is taken meanwhile."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import delete, select

from control.attempts.attempts import lock_job
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.jobs import holding, jobs
from control.placement import preflight
from muster.db.models import Job, OutboxMessage, PlacementPreflight
from muster.domain.errors import ConflictError
from muster.domain.ids import JobId
from muster.domain.job.preflight import Decision, PreflightState, decide
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import Cause, JobState
from muster.wire.host import HOST_CAPABILITIES, LAID_SECRETS, PreflightOrder, PreflightReport
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

GANG = {"nodes": 2, "gpus_per_node": 2}
GANGS = Policy(dispatch=DispatchPolicy(preflight_from_nodes=2, preflight_within_s=10))


@dataclass
class Looking:
    """Hosts that know of looks. ``received``: what each was asked to look at, as its last beat was answered."""

    stage: Stage
    received: dict[str, tuple[PreflightOrder, ...]] = field(default_factory=dict)

    def beat(self, host: PlayedHost, *reports: PreflightReport) -> tuple[PreflightOrder, ...]:
        self.received[host.node_id] = host.beat(
            capabilities=(*HOST_CAPABILITIES, LAID_SECRETS), checks=reports
        ).preflights
        return self.received[host.node_id]

    def beat_all(self) -> None:
        for host in self.stage.hosts:
            self.beat(host)

    def submit(self, secrets: tuple[str, ...] = (), max_restarts: int = 0) -> JobId:
        restart = {"max_restarts": max_restarts}
        job_id = self.stage.submit("on_demand", shape=GANG, secrets=secrets, restart=restart)
        self.stage.cycle()
        return job_id

    def requested(self) -> tuple[PlayedHost, PreflightOrder]:
        """The one host that is, and what it is to look at."""
        self.beat_all()
        ((host, order),) = [(host, order) for host in self.stage.hosts for order in self.received[host.node_id]]
        return host, order

    def answer(self, found: str, why: str = "") -> PlayedHost:
        host, order = self.requested()
        report = PreflightReport(preflight_id=order.order.attempt_id, found=found, why=why)  # type: ignore[arg-type]  # the test names one of the literals
        assert self.beat(host, report) == (), "what was answered is listed no more"
        return host

    def answer_all(self) -> None:
        self.beat_all()
        for host in self.stage.hosts:
            look_ids = [look.order.attempt_id for look in self.received[host.node_id]]
            self.beat(host, *(PreflightReport(preflight_id=look_id, found="fit") for look_id in look_ids))

    def row(self, job_id: JobId) -> PlacementPreflight:
        with self.stage.units.read() as session:
            return session.get_one(PlacementPreflight, job_id)


@pytest.fixture
def looking(units: UnitOfWorkFactory, clock: SetClock) -> Looking:
    """Four hosts of two GPUs each."""
    return filled_world(units, clock, "four hosts that check", lambda: _make_looking(units, clock))


def _make_looking(units: UnitOfWorkFactory, clock: SetClock) -> Looking:
    stage = make_stage(units, clock, num_hosts=4)
    stage.set_policy(GANGS)
    looking = Looking(stage)
    looking.beat_all()
    return looking


def test_a_gang_waits_for_one_host_to_check_and_holds_no_gpu(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit(secrets=("token",))
    host, look = looking.requested()
    assert stage.job(job_id).state is JobState.QUEUED
    assert stage.job(job_id).state_reason.startswith("being checked on ")
    assert stage.fleet.num_taken_gpus() == 0
    assert (look.order.gpus, look.order.secrets, look.order.job_id) == ((), ("token",), job_id)
    assert look.order.preparation is not None
    assert look.order.preparation.is_preflight_only
    assert 0 < look.within_s <= 10
    stage.cycle()
    assert looking.requested()[0] is host, "and no other host is asked meanwhile"
    looking.answer("fit")
    stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE
    assert [event.payload["found"] for event in stage.events("job.preflight_done")] == ["fit"]


def test_an_answer_that_comes_again_and_one_that_comes_late_have_no_effect(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit()
    first, look = looking.requested()
    stage.clock.advance(11)
    looking.beat_all()
    stage.cycle()
    second, _ = looking.requested()
    assert second is not first
    late = PreflightReport(preflight_id=look.order.attempt_id, found="unfit", why="no script")
    looking.beat(first, late)
    looking.beat(second, late)
    assert stage.job(job_id).state is JobState.QUEUED
    looking.answer("fit")
    looking.beat(second, PreflightReport(preflight_id=looking.row(job_id).preflight_id, found="unfit", why="no script"))
    assert looking.row(job_id).state is PreflightState.PASSED
    assert len(stage.events("job.preflight_done")) == 1


def test_what_its_tenant_has_to_see_to_holds_the_job_by_name_and_a_release_checks_again(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit()
    looking.answer("unfit", "the script /srv/train.py does not exist")
    job = stage.job(job_id)
    assert job.state is JobState.HELD
    assert "user_error" in job.state_reason
    assert "the script /srv/train.py does not exist" in job.state_reason
    stage.cycle()
    assert stage.fleet.attempts(job_id) == []
    with stage.units.begin(stage.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id)
    stage.cycle()
    looking.answer("fit")
    stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE


def test_a_host_that_is_at_fault_itself_hands_on_to_the_next(looking: Looking) -> None:
    job_id = looking.submit()
    first = looking.answer("unable", "the disk is full")
    looking.stage.cycle()
    assert looking.answer("fit") is not first
    looking.stage.cycle()
    assert looking.stage.job(job_id).state is JobState.ACTIVE


def test_when_none_can_check_it_is_placed_all_the_same_and_that_is_reported(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit()
    for _ in range(3):
        looking.answer("unable", "no engine")
        stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE
    (event,) = stage.events("job.preflight_abandoned")
    assert (len(event.payload["tried"]), event.payload["last"]) == (3, "no engine")
    numbers = [event.payload["number"] for event in stage.events("job.preflight_requested")]
    assert numbers == [1, 2, 3], "the number is the fence of an answer"


def test_hosts_that_know_of_no_check_are_not_requested(units: UnitOfWorkFactory, clock: SetClock) -> None:
    stage = make_stage(units, clock, num_hosts=2)
    stage.set_policy(GANGS)
    job_id = stage.run("on_demand", shape=GANG)
    assert stage.job(job_id).state is JobState.ACTIVE
    assert not stage.events("job.preflight_requested")


def test_a_job_of_fewer_hosts_is_placed_at_once(looking: Looking) -> None:
    job_id = looking.stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    looking.stage.cycle()
    assert looking.stage.job(job_id).state is JobState.ACTIVE


def test_a_host_checks_one_job_at_a_time_and_the_rest_state_what_they_wait_for(looking: Looking) -> None:
    stage = looking.stage
    jobs_asked = [stage.submit("on_demand", shape=GANG) for _ in range(5)]
    stage.cycle()
    looking.beat_all()
    assert sorted(len(orders) for orders in looking.received.values()) == [1, 1, 1, 1]
    assert stage.job(jobs_asked[-1]).state_reason == "waits for a host to check that it can start there"


def test_after_an_end_for_want_of_something_it_is_checked_again(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit(max_restarts=3)
    looking.answer("fit")
    stage.cycle()
    for host in stage.hosts:
        for unclaimed in host.beat(capabilities=HOST_CAPABILITIES).unclaimed:
            assert host.claim(unclaimed.attempt_id, unclaimed.fence).granted
            record: dict[str, object] = {"spawn_error": "no script", "spawn_fault": "program"}
            host.report(unclaimed.attempt_id, unclaimed.fence, "exited", "cleaned", record=record)
    assert stage.job(job_id).state is JobState.RECOVERING, stage.job(job_id).state_reason
    stage.pass_time(61)
    looking.beat_all()
    stage.cycle()
    assert stage.job(job_id).state is JobState.QUEUED
    looking.answer("fit")
    stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE


def test_a_dataset_that_a_check_has_found_is_missing_by_the_fault_of_the_host_that_lacks_it(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit()
    looking.answer("fit")
    stage.cycle()
    record: dict[str, object] = {"spawn_error": "no corpus", "spawn_fault": "program", "lacks": "dataset"}
    for host in stage.hosts:
        for unclaimed in host.beat(capabilities=HOST_CAPABILITIES).unclaimed:
            assert host.claim(unclaimed.attempt_id, unclaimed.fence).granted
            host.report(unclaimed.attempt_id, unclaimed.fence, "exited", "cleaned", record=record)
    assert stage.job(job_id).state is JobState.RECOVERING
    assert stage.fleet.attempts(job_id)[-1].attempt.cause is Cause.PREFLIGHT_FAILED


def test_a_cancelled_job_is_checked_no_more(looking: Looking) -> None:
    stage = looking.stage
    job_id = looking.submit()
    host, look = looking.requested()
    stage.cancel(job_id)
    assert looking.beat(host) == ()
    looking.beat(host, PreflightReport(preflight_id=look.order.attempt_id, found="unfit", why="no script"))
    assert stage.job(job_id).state is JobState.CANCELLED
    with pytest.raises(ConflictError), stage.units.begin(OPERATOR, jobs.RELEASE) as unit:
        jobs.release(unit, job_id)


def test_a_job_that_waits_again_is_checked_by_another_preflight(looking: Looking) -> None:
    """Its host was asked to end the one before, and what it reports of that has nothing to do with the job."""
    stage = looking.stage
    job_id = looking.submit()
    host, before = looking.requested()
    with stage.units.begin(stage.fleet.tenant, holding.HOLD) as unit:
        holding.hold(unit, job_id, reason="its data is replaced")
    with stage.units.begin(stage.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id)
    assert looking.beat(host) == ()
    stage.cycle()
    _, again = looking.requested()
    assert again.order.attempt_id != before.order.attempt_id
    ended = PreflightReport(preflight_id=before.order.attempt_id, found="unable", why="it was ended")
    looking.beat(host, ended)
    assert looking.row(job_id).tried == [looking.row(job_id).node_id], "no host was at fault"
    looking.answer("fit")
    stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE


def test_a_host_is_woken_when_the_job_that_it_checks_waits_no_more(looking: Looking) -> None:
    job_id = looking.submit()
    host, order = looking.requested()
    with looking.stage.units.begin(OPERATOR, jobs.CANCEL) as unit:
        unit.session.execute(delete(OutboxMessage))
        jobs.cancel(unit, job_id)
    with looking.stage.units.read() as session:
        [message] = session.scalars(select(OutboxMessage))
    assert (message.key, message.payload) == (host.node_id, {"attempt_id": order.order.attempt_id})


def test_a_host_takes_the_next_job_once_the_one_that_it_checks_waits_no_more(looking: Looking) -> None:
    stage = looking.stage
    job_ids = [stage.submit("on_demand", shape=GANG) for _ in range(5)]
    stage.cycle()
    stage.cancel(job_ids[0])
    stage.cycle()
    looking.beat_all()
    checked = {order.order.job_id for orders in looking.received.values() for order in orders}
    assert checked == set(job_ids[1:])


def test_one_that_came_after_the_hosts_were_requested_is_not_placed_in_that_cycle(looking: Looking) -> None:
    job_id = looking.stage.submit("on_demand", shape=GANG)
    with looking.stage.units.read() as session:
        assert preflight.not_yet(session, GANGS, [job_id], frozenset()) == {job_id}
        assert preflight.not_yet(session, GANGS, [job_id], {job_id}) == frozenset()


def test_no_more_of_the_queue_is_read_than_its_head(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MAX_QUEUE", 2)
    jobs_asked = [looking.stage.submit("on_demand", shape=GANG) for _ in range(3)]
    looking.stage.cycle()
    asked = {event.subject_id for event in looking.stage.events("job.preflight_requested")}
    assert asked == set(jobs_asked[:2])


def test_nothing_more_is_decided_once_every_host_checks(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, decided = looking.stage, []

    def counted(*about: Any, **words: Any) -> Decision:
        decided.append(about)
        return decide(*about, **words)

    monkeypatch.setattr(preflight, "decide", counted)
    jobs_asked = [stage.submit("on_demand", shape=GANG) for _ in range(6)]
    stage.cycle()
    assert len(decided) == 4, "one for each host"
    stage.cycle()
    assert len(decided) == 4, "all look still"
    assert stage.job(jobs_asked[0]).state_reason.startswith("being checked on ")
    looking.answer_all()
    stage.cycle()
    looking.answer_all()
    stage.cycle()
    assert all(looking.row(job_id).state is PreflightState.PASSED for job_id in jobs_asked)


def test_what_a_host_states_of_anothers_check_waits_for_no_lock(looking: Looking) -> None:
    job_id = looking.submit()
    host, look = looking.requested()
    other = next(each for each in looking.stage.hosts if each is not host)
    with looking.stage.units.begin(looking.stage.fleet.tenant, jobs.READ, dry_run=True) as unit:
        lock_job(unit, job_id)
        looking.beat(other, PreflightReport(preflight_id=look.order.attempt_id, found="unfit", why="no script"))
        looking.beat(host, PreflightReport(preflight_id=f"look-7-{job_id}", found="unfit", why="no script"))
    assert looking.row(job_id).state is PreflightState.REQUESTED


def test_several_answers_lock_their_jobs_in_one_order(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = sorted(looking.stage.submit("on_demand", shape=GANG) for _ in range(3))
    looking.stage.cycle()
    host = looking.stage.hosts[0]
    with looking.stage.units.begin(OPERATOR, preflight.REQUEST, quiet=True) as unit:
        for row in unit.session.scalars(select(PlacementPreflight)):
            row.node_id = host.node_id
    locked: list[JobId] = []

    def merged(unit: UnitOfWork, job_id: JobId) -> Job:
        locked.append(job_id)
        return lock_job(unit, job_id)

    monkeypatch.setattr(preflight, "lock_job", merged)
    looking.beat(
        host, *(PreflightReport(preflight_id=looking.row(job_id).preflight_id, found="fit") for job_id in job_ids[::-1])
    )
    assert locked == job_ids
