"""A job's life over a real database, with the host played by direct calls of the host services."""

from dataclasses import dataclass

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import host_reports, protocol
from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.job_logs import EVERYTHING, chunks_after
from muster.db.models import Cordon, Event
from muster.domain.errors import ConflictError, NotFoundError, StaleFenceError, ValidationFailedError
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.principals import Principal, Role
from muster.domain.states import AttemptState, Cause, JobState
from muster.identity import new_id
from muster.wire.host import (
    PROTOCOL_VERSION,
    HostAttempt,
    HostReport,
    LogBatch,
    LogChunk,
    ReportBatch,
)
from tests.control.conftest import SetClock
from tests.fleet_factory import Fleet, make_fleet
from tests.played_host import PlayedHost, played_host

START = SetClock().now
SUCCESS = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}
AROUND_LOST_AND_LEASE_S = (*[5] * 14, *[20] * 44, *[5] * 4)
"""Pauses between heartbeats: short where a silent host is lost (60 s) and where its lease ends (960 s)."""
FAILURE = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}


@dataclass(frozen=True)
class World(Fleet):
    clock: SetClock
    host: PlayedHost

    def start(self, job_id: JobId) -> tuple[str, int]:
        """Placed, claimed and started on the played host."""
        self.cycle()
        (unclaimed,) = self.host.beat().unclaimed
        assert self.host.claim(unclaimed.attempt_id, unclaimed.fence).granted
        self.host.report(unclaimed.attempt_id, unclaimed.fence, "started")
        assert self.job(job_id).state is JobState.ACTIVE
        return unclaimed.attempt_id, unclaimed.fence


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id, boot_id="boot-of-alpha")
    host.beat()
    world = World(units, fleet.tenant, fleet.tenant_id, fleet.node_id, clock, host)
    world.reconcile()
    return world


def test_a_job_runs_from_submission_to_success_and_frees_its_gpus(world: World) -> None:
    job_id = world.submit(shape={"gpus_per_node": 2})
    attempt_id, fence = world.start(job_id)
    assert world.num_taken_gpus() == 2
    assert world.attempts(job_id)[0].attempt.state is AttemptState.RUNNING
    world.host.report(attempt_id, fence, "exited", record=SUCCESS)
    assert world.job(job_id).state is JobState.SUCCEEDED
    assert world.num_taken_gpus() == 2, "not free before it is proved clean"
    world.host.report(attempt_id, fence, "cleaned")
    assert world.num_taken_gpus() == 0
    assert world.host.beat(HostAttempt(attempt_id=attempt_id, fence=fence, phase="clean")).forget == (attempt_id,)


def test_a_repeated_report_has_effect_once(world: World) -> None:
    attempt_id, fence = world.start(world.submit())
    kinds = ("started", "exited", "cleaned")
    assert world.host.report(attempt_id, fence, *kinds, record=SUCCESS) == 2
    assert world.host.report(attempt_id, fence, *kinds, record=SUCCESS) == 0


def test_a_report_under_another_fence_is_refused(world: World) -> None:
    attempt_id, fence = world.start(world.submit())
    with pytest.raises(StaleFenceError):
        world.host.report(attempt_id, fence + 1, "exited", record=SUCCESS)


def test_a_claim_is_granted_again_to_the_same_claimer_and_to_no_other(world: World) -> None:
    world.submit()
    world.cycle()
    (unclaimed,) = world.host.beat().unclaimed
    assert world.host.claim(unclaimed.attempt_id, unclaimed.fence).granted
    assert world.host.claim(unclaimed.attempt_id, unclaimed.fence).granted
    assert not world.host.claim(unclaimed.attempt_id, unclaimed.fence, nonce="other").granted
    assert not world.host.claim(unclaimed.attempt_id, unclaimed.fence + 1).granted


def test_a_failed_program_fails_the_job_with_its_proof(world: World) -> None:
    job_id = world.submit()
    attempt_id, fence = world.start(job_id)
    world.host.report(attempt_id, fence, "exited", "cleaned", record=FAILURE)
    job = world.job(job_id)
    assert job.state is JobState.FAILED
    assert "user_error" in job.state_reason
    assert "3" in job.state_reason


def test_the_jobs_own_faults_use_up_its_restarts(world: World) -> None:
    job_id = world.submit(restart={"max_restarts": 1})
    for expected in (JobState.RECOVERING, JobState.FAILED):
        attempt_id, fence = world.start(job_id)
        world.host.report(attempt_id, fence, "exited", "cleaned", record=FAILURE)
        assert world.job(job_id).state is expected
        world.clock.advance(31)
        world.host.beat()
        world.reconcile()
    assert [view.attempt.number for view in world.attempts(job_id)] == [1, 2]


def test_a_job_that_states_nothing_of_restarts_gets_three(world: World) -> None:
    job_id = world.submit(restart={})
    pauses = []
    for expected in (*[JobState.RECOVERING] * 3, JobState.FAILED):
        attempt_id, fence = world.start(job_id)
        world.host.report(attempt_id, fence, "exited", "cleaned", record=FAILURE)
        job = world.job(job_id)
        assert job.state is expected
        if job.next_try_at is not None and expected is JobState.RECOVERING:
            pauses.append((job.next_try_at - world.clock.now).total_seconds())
        world.clock.advance(61)
        world.host.beat()
        world.reconcile()
    assert pauses == [30, 60, 60]


def test_out_of_gpu_memory_the_next_order_requests_more_and_smaller_pieces(world: World) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory"
    short = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": None, "error_excerpt": words}}}
    job_id = world.submit(restart={"max_restarts": 0, "gpu_oom_doublings": 2})
    for expected in (None, "2", "4"):
        world.cycle()
        (unclaimed,) = world.host.beat().unclaimed
        order = world.host.claim(unclaimed.attempt_id, unclaimed.fence).order
        assert order is not None
        assert order.env.get("MUSTER_ACCUMULATION") == expected
        world.host.report(unclaimed.attempt_id, unclaimed.fence, "started", "exited", "cleaned", record=short)
        world.reconcile()
    job = world.job(job_id)
    assert (job.state, job.restarts_used, job.oom_doublings) == (JobState.FAILED, 0, 2)
    assert "accumulate their gradients" in job.state_reason
    with world.units.begin(world.tenant, jobs.READ) as unit:
        told = unit.session.scalars(select(Event).where(Event.kind == "job.recovering")).all()
    assert {str(event.payload["reason"]).rsplit("; ", 1)[1] for event in told} == {
        f"continues with {2**doublings} times as many pieces a batch ({doublings} of 2 doublings)"
        for doublings in (1, 2)
    }


def test_a_newer_checkpoint_gives_the_restarts_back(world: World) -> None:
    """What fails again and again at one place uses them up, whatever it saves there."""
    job_id = world.submit(restart={"max_restarts": 1})
    for saved, expected in ((20, 1), (40, 1), (40, None)):
        attempt_id, fence = world.start(job_id)
        world.host.report_saved(attempt_id, fence, saved, at_ms=int(world.clock.now.timestamp() * 1000))
        world.host.report(attempt_id, fence, "exited", "cleaned", record=FAILURE)
        job = world.job(job_id)
        assert (job.state, job.restarts_used) == (
            (JobState.FAILED, 1) if expected is None else (JobState.RECOVERING, expected)
        )
        world.clock.advance(31)
        world.host.beat()
        world.reconcile()


def test_a_training_that_diverges_twice_in_a_row_without_a_newer_checkpoint_fails_with_restarts_left(
    world: World,
) -> None:
    """Once, chance or a passing fault may be the reason. From the same checkpoint the same training diverges again."""
    job_id = world.submit(restart={"max_restarts": 5})
    words = "muster.train: diverged at step 53: the loss is nan on rank 0"
    diverged = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 17, "signal": None, "error_excerpt": words}}}
    ends = ((diverged, 20), (diverged, 40), (FAILURE, 40), (diverged, 40), (diverged, 40))
    for number, (record, saved) in enumerate(ends):
        attempt_id, fence = world.start(job_id)
        world.host.report_saved(attempt_id, fence, saved, at_ms=int(world.clock.now.timestamp() * 1000))
        world.host.report(attempt_id, fence, "exited", "cleaned", record=record)
        assert world.job(job_id).state is (JobState.FAILED if number == 4 else JobState.RECOVERING), number
        world.clock.advance(61)
        world.host.beat()
        world.reconcile()
    job = world.job(job_id)
    assert (world.attempts(job_id)[0].attempt.cause, job.restarts_used) == (Cause.DIVERGED, 3)
    assert f"{words}; a restart from the same checkpoint repeats it" in job.state_reason


def test_a_job_whose_last_save_fails_costs_no_restart_and_waits_for_a_person_the_second_time(world: World) -> None:
    """The storage may recover once. A newer checkpoint, and an end of another cause, begin the count again."""
    job_id = world.submit(restart={"max_restarts": 0})
    words = "muster.train: the last checkpoint, of step 90, could not be saved (1 try in 0 s): rank 0: [Errno 28]"
    failed = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 74, "signal": None, "error_excerpt": words}}}
    for number, saved in enumerate((20, 40, 40)):
        attempt_id, fence = world.start(job_id)
        world.host.report_saved(attempt_id, fence, saved, at_ms=int(world.clock.now.timestamp() * 1000))
        world.host.report(attempt_id, fence, "exited", "cleaned", record=failed)
        assert world.job(job_id).state is (JobState.HELD if number == 2 else JobState.RECOVERING), number
        world.clock.advance(61)
        world.host.beat()
        world.reconcile()
    job = world.job(job_id)
    assert (world.attempts(job_id)[-1].attempt.cause, job.restarts_used) == (Cause.SAVE_FAILED, 0)
    assert job.state_reason == (
        f"save_failed: rank 0 ended with code 74: its results could not be saved: {words}; free space in the place of "
        "its checkpoints, or repair it, and release the job; held, because it is the second such end without a newer "
        "checkpoint"
    )


def test_cancel_of_a_waiting_job_is_immediate(world: World) -> None:
    job_id = world.submit()
    with world.units.begin(world.tenant, jobs.CANCEL) as unit:
        assert jobs.cancel(unit, job_id).state is JobState.CANCELLED


def test_cancel_of_a_running_job_waits_for_its_program(world: World) -> None:
    job_id = world.submit(stop_grace_s=20)
    attempt_id, fence = world.start(job_id)
    with world.units.begin(world.tenant, jobs.CANCEL) as unit:
        jobs.cancel(unit, job_id, reason="enough")
    held = HostAttempt(attempt_id=attempt_id, fence=fence, phase="started")
    (stop,) = world.host.beat(held).stops
    assert (stop.reason, stop.kill_after_s) == ("cancel", 20.0)
    world.clock.advance(5)
    assert world.host.beat(held).stops[0].kill_after_s == 15.0, "the deadline is stored, not recomputed"
    record = {**FAILURE, "stop_reason": "cancel"}
    world.host.report(attempt_id, fence, "exited", "cleaned", record=record)
    assert world.job(job_id).state is JobState.CANCELLED
    assert world.attempts(job_id)[0].attempt.cause is Cause.CANCELLED


def test_a_silent_host_is_lost_and_its_job_is_placed_again_after_the_lease(world: World) -> None:
    job_id = world.submit()
    world.start(job_id)
    other = played_host(world.units, "beta")
    for pause_s in AROUND_LOST_AND_LEASE_S:
        world.clock.advance(pause_s)
        other.beat()
        world.reconcile()
        if world.job(job_id).state is not JobState.ACTIVE:
            break
        state = world.attempts(job_id)[0].attempt.state
        silence_s = (world.clock.now - START).total_seconds()
        assert (state is AttemptState.LOST) == (silence_s >= 60)
    ended = world.attempts(job_id)[0].attempt
    assert ended.cause is Cause.NODE_LOST
    assert ended.ended_at is not None
    assert 960 <= (ended.ended_at - START).total_seconds() <= 970
    world.reconcile()
    world.cycle()
    assert [host.part.node_id for host in world.attempts(job_id)[1].hosts] == [other.node_id]
    assert world.job(job_id).restarts_used == 0


def test_a_reboot_ends_the_attempt_at_once_and_proves_its_gpus_clean(world: World) -> None:
    job_id = world.submit()
    world.start(job_id)
    world.host.boot_id = "boot-2"
    world.host.beat()
    world.reconcile()
    assert world.attempts(job_id)[0].attempt.cause is Cause.NODE_LOST
    assert world.num_taken_gpus() == 0
    world.host.boot_id = "boot-of-alpha"
    assert world.host.beat().lease_s == 0.0, "a past boot is never accepted again"


def test_an_unclaimed_attempt_is_woken_again_and_then_placed_again(world: World) -> None:
    job_id = world.submit()
    world.cycle()
    world.clock.advance(16)
    world.host.beat()
    world.reconcile()
    assert world.attempts(job_id)[0].hosts[0].part.num_wakeups == 2
    world.clock.advance(45)
    world.host.beat()
    world.reconcile()
    assert world.attempts(job_id)[0].attempt.cause is Cause.LAUNCH_FAILED
    assert world.job(job_id).state is JobState.RECOVERING
    assert world.num_taken_gpus() == 0


def test_no_lease_ends_while_the_api_was_silent(world: World) -> None:
    job_id = world.submit()
    attempt_id, fence = world.start(job_id)
    world.clock.advance(3600)
    world.reconcile()
    assert world.attempts(job_id)[0].attempt.state is AttemptState.LOST
    world.host.beat(HostAttempt(attempt_id=attempt_id, fence=fence, phase="started"))
    world.reconcile()
    assert world.attempts(job_id)[0].attempt.state is AttemptState.RUNNING


def test_wall_time_stops_the_attempt_and_fails_the_job(world: World) -> None:
    job_id = world.submit(wall_time_s=60, stop_grace_s=10)
    attempt_id, fence = world.start(job_id)
    world.clock.advance(61)
    answer = world.host.beat(HostAttempt(attempt_id=attempt_id, fence=fence, phase="started"))
    assert answer.stops == ()
    world.reconcile()
    answer = world.host.beat(HostAttempt(attempt_id=attempt_id, fence=fence, phase="started"))
    assert answer.stops[0].reason == "walltime"
    world.host.report(attempt_id, fence, "exited", "cleaned", record={**FAILURE, "stop_reason": "walltime"})
    assert world.job(job_id).state is JobState.FAILED


def test_what_cannot_be_proved_clean_is_cordoned_and_stays_kept(world: World) -> None:
    attempt_id, fence = world.start(world.submit())
    world.host.report(attempt_id, fence, "exited", record=SUCCESS)
    report = HostReport(kind="cleaned", boot_id=world.host.boot_id, fence=fence, record={"clean": False})
    batch = ReportBatch(protocol=PROTOCOL_VERSION, reports=(report,))
    with world.units.begin(world.host.principal, host_reports.REPORT) as unit:
        host_reports.report(unit, AttemptId(attempt_id), batch)
    assert world.num_taken_gpus() == 1
    with world.units.read() as session:
        assert session.scalars(select(Cordon.reason_code)).all() == ["unclean"]


def test_a_host_that_holds_a_foreign_attempt_is_ordered_to_stop_it(world: World) -> None:
    held = HostAttempt(attempt_id=new_id("attempt"), fence=7, phase="started")
    (stop,) = world.host.beat(held).stops
    assert stop.kill_after_s == 0.0


def test_logs_are_kept_once_whatever_the_host_repeats(world: World) -> None:
    job_id = world.submit()
    attempt_id, fence = world.start(job_id)
    chunk = LogChunk(stream="0", offset=0, content=b"hello\n")
    for stored in (1, 0):
        with world.units.begin(world.host.principal, protocol.LOGS, quiet=True) as unit:
            batch = LogBatch(protocol=PROTOCOL_VERSION, fence=fence, chunks=(chunk,))
            assert protocol.store_logs(unit, AttemptId(attempt_id), batch).stored == stored
    with world.units.begin(world.tenant, jobs.READ) as unit:
        assert [piece.content for piece in chunks_after(unit, job_id, EVERYTHING, after=0)] == [b"hello\n"]


def test_impossible_jobs_are_refused_and_possible_ones_state_why_they_wait(world: World) -> None:
    with pytest.raises(ValidationFailedError, match="fleet has 2"):
        world.submit(shape={"nodes": 2, "gpus_per_node": 2})
    with pytest.raises(ValidationFailedError, match="on_demand"):
        world.submit(tier="platinum")
    world.submit(shape={"gpus_per_node": 2})
    waiting = world.submit()
    world.cycle()
    assert world.job(waiting).state_reason.startswith("none of 2 GPUs is free to this tier")


def test_another_tenants_job_is_not_found(world: World) -> None:
    job_id = world.submit()
    stranger = Principal(name="other", role=Role.TENANT_ADMIN, tenant_id=TenantId(new_id("tenant")))
    with world.units.begin(stranger, jobs.READ) as unit, pytest.raises(NotFoundError):
        job_reads.get(unit, job_id)
    with pytest.raises(NotFoundError), world.units.begin(stranger, jobs.CANCEL) as unit:
        jobs.cancel(unit, job_id)


def test_an_ended_job_cannot_be_cancelled(world: World) -> None:
    job_id = world.submit()
    attempt_id, fence = world.start(job_id)
    world.host.report(attempt_id, fence, "exited", "cleaned", record=SUCCESS)
    with pytest.raises(ConflictError), world.units.begin(world.tenant, jobs.CANCEL) as unit:
        jobs.cancel(unit, job_id)


def test_every_edge_leaves_its_event(world: World) -> None:
    job_id = world.submit()
    attempt_id, fence = world.start(job_id)
    world.host.report(attempt_id, fence, "exited", "cleaned", record=SUCCESS)
    with world.units.read() as session:
        kinds = set(session.scalars(select(Event.kind).where(Event.tenant_id == world.tenant_id)))
    assert {
        "job.queued",
        "job.active",
        "job.succeeded",
        "attempt.placed",
        "attempt.claiming",
        "attempt.running",
        "attempt.ended",
        "allocation.cleaning",
        "allocation.released",
    } <= kinds


@pytest.mark.parametrize("rule", ["required", "preferred"])
def test_a_level_that_the_fleet_does_not_have_is_refused_by_its_field(world: World, rule: str) -> None:
    with pytest.raises(ValidationFailedError, match="no level pod, only: rack") as caught:
        world.submit(topology={rule: "pod"})
    assert [(fault.pointer, fault.code) for fault in caught.value.faults] == [(f"/topology/{rule}", "unknown_level")]
    world.submit(topology={rule: "rack"})
