"""Attempts whose GPUs do nothing: notice, its end by work, the stop, and what never counts as idle."""

import itertools
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import ACTIVATE, store_policy
from control.telemetry.codec import pack_block
from control.watch.idle import JUDGE, NOTICE, OVER, TURNS, IdleRounds
from muster.db.models import AllocationGpu, Attempt, Event, StopRequest, TelemetryBlock
from muster.domain.gpu.metrics import INDEX, NUM_METRICS, SCHEMA
from muster.domain.policy.document import Policy
from muster.domain.policy.watch import IdlePolicy, WatchPolicy
from muster.domain.states import Cause, JobState, StopReason
from muster.failpoints import FailpointError, arming
from tests.control.conftest import SetClock
from tests.control.watch.stalled_job import WATCH, StalledJob
from tests.fleet_factory import OPERATOR

AFTER_S = 3600
NOTICE_S = 1800
SEQ = itertools.count(16)


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> StalledJob:
    """A job that has run for an hour, with the rule in force."""
    job = StalledJob(units, clock)
    set_mode(job, "on")
    clock.advance(AFTER_S)
    return job


def set_mode(job: StalledJob, mode: str, *, shrinks: bool = True) -> None:
    idle = IdlePolicy.model_validate({"mode": mode, "after_s": AFTER_S, "notice_s": NOTICE_S, "shrinks": shrinks})
    with job.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(watch=WatchPolicy(idle=idle)), reason="test")


def sample(job: StalledJob, utilisation: float, *, ago_s: range, num_gpus: int = 2) -> None:
    """Store a sample of each of the job's GPUs every so many seconds, as their agents send them."""
    with job.units.begin(WATCH, JUDGE, quiet=True) as unit:
        rows = unit.session.execute(select(AllocationGpu.node_id, AllocationGpu.gpu_uuid)).all()
        for node_id, gpu in rows[:num_gpus]:
            for each_s in ago_s:
                row = np.full((1, NUM_METRICS), np.nan)
                row[0, INDEX["utilisation_percent"]] = utilisation
                at = unit.now - timedelta(seconds=each_s)
                block, seq = pack_block([gpu], row), next(SEQ)
                unit.session.add(
                    TelemetryBlock(
                        node_id=node_id, boot_id="boot", seq=seq, at=at, received_at=at, schema=SCHEMA, content=block
                    )
                )


def judge(job: StalledJob) -> int:
    """Run the keeper until each attempt had its turn. Return how many have a notice in the end."""
    rounds = IdleRounds(job.units, WATCH)
    for _ in range(TURNS):
        rounds.once()
    return int(live(job).idle_since is not None)


def live(job: StalledJob) -> Attempt:
    with job.units.read() as session:
        return session.get_one(Attempt, job.attempt.id)


def events(job: StalledJob) -> list[Event]:
    with job.units.read() as session:
        kinds = select(Event).where(Event.kind.in_([NOTICE, OVER])).order_by(Event.serial)
        return list(session.scalars(kinds))


IDLE_HOUR = range(0, AFTER_S + 600, 600)


def test_an_idle_attempt_gets_one_notice_and_is_stopped_after_it(job: StalledJob, clock: SetClock) -> None:
    sample(job, 0.0, ago_s=IDLE_HOUR)
    assert judge(job) == 1
    assert judge(job) == 1
    [notice] = events(job)
    assert "HELD" in notice.payload["reason"]
    assert live(job).stop_reason is None, "nothing is stopped before the notice is over"
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(0, NOTICE_S, 600))
    judge(job)
    assert live(job).stop_reason is StopReason.IDLE
    for host in job.by_rank():
        host.report(
            job.attempt.id, job.attempt.fence, "exited", "clean", record={"stop_reason": "idle", "launcher_signal": 15}
        )
    assert live(job).cause is Cause.IDLE
    assert job.state() is JobState.HELD
    assert "release the job" in job.fleet.job(job.job_id).state_reason


@pytest.mark.parametrize("shrinks", [True, False])
def test_an_idle_elastic_job_continues_on_its_fewest_hosts_or_is_stopped(
    units: UnitOfWorkFactory, clock: SetClock, *, shrinks: bool
) -> None:
    job = StalledJob(units, clock, min_nodes=1)
    set_mode(job, "on", shrinks=shrinks)
    clock.advance(AFTER_S)
    sample(job, 0.0, ago_s=IDLE_HOUR)
    judge(job)
    [notice] = events(job)
    assert ("it continues on 1 of its 2 hosts" in notice.payload["reason"]) is shrinks
    assert ("HELD" in notice.payload["reason"]) is not shrinks
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(0, NOTICE_S, 600))
    judge(job)
    judge(job)
    assert live(job).stop_reason is (StopReason.RESIZE if shrinks else StopReason.IDLE)
    if shrinks:
        record = {"stop_reason": "resize", "launcher_signal": 15}
        for host in job.by_rank():
            host.report(job.attempt.id, job.attempt.fence, "exited", "clean", record=record)
        job.run()
        assert len(job.by_rank()) == 1
        clock.advance(AFTER_S)
        sample(job, 0.0, ago_s=IDLE_HOUR)
        judge(job)
        assert "HELD" in events(job)[-1].payload["reason"], "on its fewest hosts it is stopped as any other"


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_policy_that_changes_within_the_notice_gives_a_new_one_before_it_acts(
    units: UnitOfWorkFactory, clock: SetClock, *, shrinks: bool
) -> None:
    job = StalledJob(units, clock, min_nodes=1)
    set_mode(job, "on", shrinks=not shrinks)
    clock.advance(AFTER_S)
    sample(job, 0.0, ago_s=IDLE_HOUR)
    judge(job)
    set_mode(job, "on", shrinks=shrinks)
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(0, NOTICE_S, 600))
    judge(job)
    judge(job)
    _, notice = events(job)
    assert ("it continues on 1 of its 2 hosts" in notice.payload["reason"]) is shrinks
    assert live(job).stop_reason is None
    assert live(job).idle_stop_at == clock.now + timedelta(seconds=NOTICE_S)
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(0, NOTICE_S, 600))
    judge(job)
    assert live(job).stop_reason is (StopReason.RESIZE if shrinks else StopReason.IDLE)


@pytest.mark.parametrize("edge", ["before_commit", "after_commit"])
def test_a_keeper_that_dies_at_its_commit_stops_the_attempt_once(job: StalledJob, clock: SetClock, edge: str) -> None:
    sample(job, 0.0, ago_s=IDLE_HOUR)
    judge(job)
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(0, NOTICE_S, 600))
    with arming(f"{JUDGE}.{edge}=raise"), pytest.raises(FailpointError):
        judge(job)
    judge(job)
    assert live(job).stop_reason is StopReason.IDLE
    with job.units.read() as session:
        [stop] = session.scalars(select(StopRequest)).all()
    assert stop.reason is StopReason.IDLE


def test_work_within_the_notice_takes_it_back(job: StalledJob, clock: SetClock) -> None:
    sample(job, 0.0, ago_s=IDLE_HOUR)
    assert judge(job) == 1
    clock.advance(NOTICE_S)
    sample(job, 0.0, ago_s=range(600, NOTICE_S, 600))
    sample(job, 80.0, ago_s=range(60, 61), num_gpus=1)
    assert judge(job) == 0
    assert [event.kind for event in events(job)] == [NOTICE, OVER]
    assert live(job).idle_since is None
    assert live(job).stop_reason is None


@pytest.mark.parametrize("case", ["one works", "one unknown", "a gap", "worked within the hour", "too young", "trains"])
def test_what_may_be_work_is_never_idle(job: StalledJob, clock: SetClock, case: str) -> None:
    if case == "too young":
        with job.units.begin(WATCH, JUDGE, quiet=True) as unit:
            unit.session.get_one(Attempt, job.attempt.id).running_at = unit.now - timedelta(seconds=AFTER_S - 60)
    if case == "trains":
        step = {"type": "step", "step": 7, "loss": 1.0, "step_s": 1.0}
        job.send(0, step, 0)
    ago_s = {"a gap": range(0, 1200, 600), "one unknown": IDLE_HOUR}.get(case, IDLE_HOUR)
    sample(job, 0.0, ago_s=ago_s, num_gpus=1 if case == "one unknown" else 2)
    if case in {"one works", "worked within the hour"}:
        sample(job, 50.0, ago_s=range(60, 61) if case == "one works" else range(1800, 1801), num_gpus=1)
    assert judge(job) == 0
    assert events(job) == []


def test_in_shadow_the_notice_has_no_deadline_and_nothing_is_stopped(job: StalledJob, clock: SetClock) -> None:
    set_mode(job, "shadow")
    sample(job, 0.0, ago_s=IDLE_HOUR)
    assert judge(job) == 1
    assert live(job).idle_stop_at is None
    clock.advance(AFTER_S)
    sample(job, 0.0, ago_s=IDLE_HOUR)
    assert judge(job) == 1
    assert live(job).stop_reason is None
    set_mode(job, "on")
    assert judge(job) == 1
    assert live(job).idle_stop_at == clock.now + timedelta(seconds=NOTICE_S), "the notice begins with the rule"
    assert len(events(job)) == 2


def test_a_rule_that_is_turned_off_takes_its_notices_back(job: StalledJob) -> None:
    sample(job, 0.0, ago_s=IDLE_HOUR)
    assert judge(job) == 1
    set_mode(job, "off")
    assert judge(job) == 0
    assert live(job).idle_stop_at is None
