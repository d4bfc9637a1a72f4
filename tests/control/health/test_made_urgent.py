"""An attempt that leaves with time to save, and a finding that its results may be wrong comes meanwhile."""

from datetime import timedelta

import pytest

from control.checkpoints.checkpoints import resume_of
from control.health.evacuation import evacuate_once
from control.jobs import jobs
from control.policy.policies import active_policy
from muster.db.models import EvidenceRow, StopRequest
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import EvacuationPolicy
from muster.domain.states import Standing, StopReason
from tests.control.health.conftest import JUDGE, Court
from tests.control.health.test_taken_out import attempt, take_out
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

GPU_LOST, WRONG = 79, 95
"""Condemning both; what was computed next to a contained error may be wrong."""


def on_one_gpu(court: Court) -> GpuUuid:
    """A job that runs on a GPU, which stands HEALTHY on its own."""
    court.fleet.beat()
    job = court.fleet.submit(name="train", shape={"nodes": 1, "gpus_per_node": 1}, stop_grace_s=900.0)
    court.fleet.cycle()
    newest = court.fleet.attempts(job)[0]
    host = PlayedHost(court.units, court.fleet.node_id, seq=1_000)
    host.beat()
    assert host.claim(newest.attempt.id, newest.attempt.fence).granted
    host.report(newest.attempt.id, newest.attempt.fence, "started")
    return newest.hosts[0].gpus[0]


def graces(court: Court) -> EvacuationPolicy:
    with court.units.read() as session:
        return active_policy(session).evacuation


def find(court: Court, uuid: GpuUuid, code: int) -> None:
    court.signal(f"xid-{code}", uuid, code=code)
    court.judge()


@pytest.mark.parametrize("is_by_rule", [True, False], ids=["quarantined", "taken out by a person"])
def test_it_has_to_leave_as_soon_as_if_that_had_been_found_first(court: Court, *, is_by_rule: bool) -> None:
    uuid = on_one_gpu(court)
    if is_by_rule:
        find(court, uuid, GPU_LOST)
        assert court.standing(uuid) is Standing.QUARANTINED
    else:
        take_out(court, uuid)
    assert evacuate_once(court.units, JUDGE) == 1
    mild = attempt(court)
    assert mild.stop_deadline_at == court.clock.now + timedelta(seconds=graces(court).grace_s)
    assert mild.tainted_since is None

    court.clock.advance(10)
    assert evacuate_once(court.units, JUDGE) == 0, "nothing new was found"
    find(court, uuid, WRONG)
    assert evacuate_once(court.units, JUDGE) == 1
    urgent = attempt(court)
    assert urgent.stop_deadline_at == court.clock.now + timedelta(seconds=graces(court).correctness_grace_s)
    assert urgent.stop_reason is StopReason.EVACUATION
    (found,) = [row for row in court.rows(EvidenceRow) if row.threatens_correctness]
    assert urgent.tainted_since is not None
    assert urgent.tainted_since <= found.onset_at
    with court.units.read() as session:
        assert resume_of(session, urgent.job_id)["tainted_since_unix_ms"]
    told = [event.payload["threatens_correctness"] for event in court.events("attempt.evacuating")]
    assert told == [False, True]


def test_it_is_stated_once_and_its_deadline_never_moves_away(court: Court) -> None:
    uuid = on_one_gpu(court)
    take_out(court, uuid)
    evacuate_once(court.units, JUDGE)
    find(court, uuid, WRONG)
    evacuate_once(court.units, JUDGE)
    before = attempt(court).stop_deadline_at
    for _ in range(3):
        court.clock.advance(1)
        court.judge()
        assert evacuate_once(court.units, JUDGE) == 0
    assert attempt(court).stop_deadline_at == before
    assert len(court.rows(StopRequest)) == 2


def test_one_that_has_less_time_left_than_such_a_finding_gives_keeps_its_deadline_and_is_doubted(court: Court) -> None:
    uuid = on_one_gpu(court)
    take_out(court, uuid)
    evacuate_once(court.units, JUDGE)
    before = attempt(court).stop_deadline_at
    court.clock.advance(graces(court).grace_s - graces(court).correctness_grace_s / 2)
    find(court, uuid, WRONG)
    assert evacuate_once(court.units, JUDGE) == 1
    assert attempt(court).stop_deadline_at == before
    assert attempt(court).tainted_since is not None


def test_one_that_its_tenant_cancels_is_hurried_too_and_stays_cancelled(court: Court) -> None:
    uuid = on_one_gpu(court)
    with court.units.begin(OPERATOR, jobs.CANCEL) as unit:
        jobs.cancel(unit, attempt(court).job_id)
    promised = attempt(court).stop_deadline_at
    find(court, uuid, GPU_LOST)
    assert evacuate_once(court.units, JUDGE) == 0
    assert attempt(court).stop_deadline_at == promised, "a GPU that need only be left lets it have its time"
    find(court, uuid, WRONG)
    assert evacuate_once(court.units, JUDGE) == 1
    hurried = attempt(court)
    assert hurried.stop_reason is StopReason.CANCEL
    assert hurried.stop_deadline_at == court.clock.now + timedelta(seconds=graces(court).correctness_grace_s)
    assert hurried.tainted_since is not None


def test_a_finding_about_another_gpu_hurries_none(court: Court) -> None:
    uuid = on_one_gpu(court)
    take_out(court, uuid)
    evacuate_once(court.units, JUDGE)
    before = attempt(court).stop_deadline_at
    other = next(gpu for gpu in (GpuUuid("GPU-many-6"), GpuUuid("GPU-many-7")) if gpu != uuid)
    find(court, other, WRONG)
    assert evacuate_once(court.units, JUDGE) == 0
    assert (attempt(court).stop_deadline_at, attempt(court).tainted_since) == (before, None)
