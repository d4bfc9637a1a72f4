"""A GPU that a person has taken out: its job leaves, and nothing is doubted that no evidence doubts."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from control.checkpoints.checkpoints import resume_of
from control.fleet import overrides
from control.health.evacuation import evacuate_once
from control.health.interventions import RETIRE, START_REPAIR, start_repair
from control.policy.policies import active_policy
from muster.db.models import Attempt, EvidenceRow, Gpu, GpuStandingChange
from muster.domain.evidence.repairs import RepairAction
from muster.domain.ids import GpuUuid, JobId
from muster.domain.states import Standing, StopReason
from tests.control.health.conftest import JUDGE, Court
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost


def running(court: Court) -> tuple[JobId, GpuUuid]:
    """A job on one GPU, which stands HEALTHY on its own: the override that admitted it has ended."""
    court.fleet.beat()
    job = court.fleet.submit(name="train", shape={"nodes": 1, "gpus_per_node": 1})
    court.fleet.cycle()
    uuid = court.fleet.attempts(job)[0].hosts[0].gpus[0]
    release(court, uuid)
    return job, uuid


def take_out(court: Court, uuid: GpuUuid, standing: Standing = Standing.QUARANTINED, hours: float = 1) -> None:
    with court.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=hours)
        overrides.override(unit, uuid, standing, until=until, reason="it whistles")


def release(court: Court, uuid: GpuUuid) -> None:
    with court.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, uuid, reason="seen to")


def attempt(court: Court) -> Attempt:
    (found,) = court.rows(Attempt)
    assert isinstance(found, Attempt)
    return found


def test_what_runs_there_is_queried_to_leave_with_time_to_save(court: Court) -> None:
    job, uuid = running(court)
    take_out(court, uuid)
    (told,) = [event for event in court.events("gpu.overridden") if event.payload["standing"] == "QUARANTINED"]
    assert told.payload["evacuates"] == job
    assert evacuate_once(court.units, JUDGE) == 1
    with court.units.read() as session:
        grace = timedelta(seconds=active_policy(session).evacuation.grace_s)
    stopped = attempt(court)
    assert (stopped.stop_reason, stopped.stop_deadline_at) == (StopReason.EVACUATION, court.clock.now + grace)
    assert court.standing(uuid) is Standing.HEALTHY, "its own standing is what the rules say"


def test_nothing_is_tainted_because_a_person_takes_a_gpu_out_that_was_quarantined_once_before(court: Court) -> None:
    """What took it out then is long over, and says nothing of now."""
    _, uuid = running(court)
    court.signal("old", uuid)
    court.judge()
    (evidence,) = court.rows(EvidenceRow)
    assert (evidence.threatens_correctness, court.standing(uuid)) == (True, Standing.QUARANTINED)
    with court.units.begin(JUDGE, RETIRE, quiet=True) as unit:
        row = unit.session.get_one(EvidenceRow, evidence.id)
        row.dismissed_at, row.dismissed_by, row.dismiss_reason = unit.now, "test", "a loose cable"
        gpu = unit.session.get_one(Gpu, uuid)
        gpu.standing = Standing.HEALTHY
        unit.session.add(
            GpuStandingChange(
                gpu_uuid=uuid, origin=Standing.QUARANTINED, target=Standing.HEALTHY, at=unit.now, reason="x", actor="x"
            )
        )
    take_out(court, uuid)
    assert evacuate_once(court.units, JUDGE) == 1
    assert attempt(court).tainted_since is None
    (evacuating,) = court.events("attempt.evacuating")
    assert not evacuating.payload["threatens_correctness"]


def test_evidence_that_threatens_results_taints_whoever_took_the_gpu_out(court: Court) -> None:
    _, uuid = running(court)
    take_out(court, uuid)
    court.signal("now", uuid)
    court.judge()
    assert evacuate_once(court.units, JUDGE) == 1
    assert attempt(court).tainted_since is not None


def test_what_left_the_gpu_shortly_before_is_tainted_too_received_of_or_not(court: Court) -> None:
    """Its next attempt gets the time since when, and so skips what it committed without a report."""
    host = PlayedHost(court.units, court.fleet.node_id, seq=1_000)
    host.beat()
    job_ids = []
    for _ in range(2):
        job_ids.append(court.fleet.submit(shape={"gpus_per_node": 2}))
        court.fleet.cycle()
        newest = court.fleet.attempts(job_ids[-1])[0].attempt
        assert host.claim(newest.id, newest.fence).granted
        host.report(newest.id, newest.fence, "started")
        if len(job_ids) == 1:
            host.report(newest.id, newest.fence, "exited", "cleaned", record={"launcher_exit_code": 1})
        court.clock.advance(5)
    court.signal("now", court.fleet.attempts(job_ids[1])[0].hosts[0].gpus[0])
    court.judge()
    assert evacuate_once(court.units, JUDGE) == 1
    with court.units.read() as session:
        told = [resume_of(session, job_id)["tainted_since_unix_ms"] for job_id in job_ids]
    (first,), (second,) = (each.values() for each in told)
    assert first == second


def test_what_had_ended_when_its_gpu_was_judged_is_tainted_although_nothing_is_left_to_evacuate(court: Court) -> None:
    host = PlayedHost(court.units, court.fleet.node_id, seq=1_000)
    host.beat()
    job_id = court.fleet.submit(shape={"gpus_per_node": 2})
    court.fleet.cycle()
    newest = court.fleet.attempts(job_id)[0]
    assert host.claim(newest.attempt.id, newest.attempt.fence).granted
    host.report(newest.attempt.id, newest.attempt.fence, "started")
    began = court.clock.now
    host.report(newest.attempt.id, newest.attempt.fence, "exited", "cleaned", record={"launcher_exit_code": 1})
    court.clock.advance(5)
    court.signal("now", newest.hosts[0].gpus[0])
    court.judge()
    assert evacuate_once(court.units, JUDGE) == 0
    since = attempt(court).tainted_since
    assert since is not None
    assert since < began
    with court.units.read() as session:
        assert list(resume_of(session, job_id)["tainted_since_unix_ms"].values())


@pytest.mark.parametrize("standing", [Standing.SUSPECT, Standing.HEALTHY])
def test_another_override_keeps_what_runs(court: Court, standing: Standing) -> None:
    _, uuid = running(court)
    take_out(court, uuid, standing)
    assert evacuate_once(court.units, JUDGE) == 0


def test_one_that_has_ended_or_was_released_takes_nothing_out(court: Court) -> None:
    _, uuid = running(court)
    take_out(court, uuid)
    release(court, uuid)
    take_out(court, uuid, hours=0.5)
    court.clock.advance(1801)
    assert evacuate_once(court.units, JUDGE) == 0


def test_a_repair_of_what_a_person_has_taken_out_makes_it_quarantined_by_its_own_standing(court: Court) -> None:
    uuid = GpuUuid("GPU-many-3")
    release(court, uuid)
    take_out(court, uuid)
    with court.units.begin(OPERATOR, START_REPAIR) as unit:
        start_repair(unit, uuid, action=RepairAction.RESET, reason="the fan")
    with court.units.read() as session:
        query = (
            select(GpuStandingChange).where(GpuStandingChange.gpu_uuid == uuid).order_by(GpuStandingChange.id.desc())
        )
        moves = [(move.origin, move.target, move.move_reason) for move in session.scalars(query.limit(2))]
        assert not session.scalar(select(Gpu.uuid).where(Gpu.uuid == uuid, overrides.taken_out(court.clock.now)))
    assert moves == [
        (Standing.QUARANTINED, Standing.REPAIR, "repair_started"),
        (Standing.HEALTHY, Standing.QUARANTINED, "taken_out"),
    ]
