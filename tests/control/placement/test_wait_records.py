"""Why a job waits, as its row keeps it: what the newest cycle stated, and nothing once it waits no longer."""

import pytest
from sqlalchemy import event

from api.job_views import job_view
from control.attempts.mapping import submitted_job
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.job_plans import EXPLAIN, explain_job
from control.placement.placement import NOTE_WAITING
from control.placement.wait_records import binding_of, note_waiting, reasons_of
from muster.db.models import Job
from muster.domain.ids import JobId
from muster.domain.job.wait_reasons import WAIT_REASON_TEXTS, WaitReason
from muster.domain.states import JobState
from scheduler.explain.explain import EXAMINED_LATER
from scheduler.model import Reason, Verdict, Waiting
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, SCHEDULER, Stage, make_stage


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=2)


def job_of(stage: Stage, job_id: JobId) -> SubmittedJob:
    with stage.units.read() as session:
        return submitted_job(session, session.get_one(Job, job_id))


def test_a_waiting_job_keeps_the_reasons_that_its_explanation_reports(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=3600.0)
    job_id = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    assert job_view(job_of(stage, job_id))["binding"] is None, "no cycle has planned it yet"
    stage.cycle()
    with stage.units.begin(stage.fleet.tenant, EXPLAIN, dry_run=True, quiet=True) as unit:
        verdict = explain_job(unit, job_id).verdict
    assert verdict is not None
    job = job_of(stage, job_id)
    assert binding_of(job.state, job.wait_verdict) is verdict.binding
    assert reasons_of(job.state, job.wait_verdict) == verdict.reasons
    told = job_view(job)
    assert told["binding"] == "in_use"
    assert told["reasons"][0] == {
        "token": "in_use",
        "text": WAIT_REASON_TEXTS[WaitReason.IN_USE],
        "num_gpus": 2,
        "num_hosts": 1,
    }


def test_once_it_is_placed_it_waits_for_nothing(stage: Stage) -> None:
    first = stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    job_id = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    stage.cycle()
    assert job_of(stage, job_id).wait_verdict is not None
    stage.leave(first, DONE)
    stage.cycle()
    job = job_of(stage, job_id)
    assert (job.state, job.wait_verdict) == (JobState.ACTIVE, None)
    assert (job_view(job)["binding"], job_view(job)["reasons"]) == (None, [])


def test_a_job_on_hold_waits_for_a_person(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    with stage.units.begin(SCHEDULER, jobs.CANCEL) as unit:
        job = unit.session.get_one(Job, job_id)
        job.state, job.updated_at = JobState.HELD, unit.now
        unit.audit("job.hold", "job", job_id, tenant_id=job.tenant_id)
    assert [each["token"] for each in job_view(job_of(stage, job_id))["reasons"]] == ["release_needed"]


FORMER = {
    WaitReason.HOLD_OF_OTHERS: "promised",
    WaitReason.HOLD: "place_held",
    WaitReason.RELEASE_NEEDED: "person",
    WaitReason.PREFLIGHT: "look",
}
"""The token of a reason in the release before."""


@pytest.mark.parametrize("token", FORMER)
def test_a_server_of_the_release_before_reads_the_reasons_and_its_own_are_read(stage: Stage, token: WaitReason) -> None:
    job_id = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    reasons = (Reason(WaitReason.IN_USE, 3, 1), Reason(token, 2, 1))
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        assert note_waiting(unit, [Waiting(job_id, Verdict("waits", token, reasons))]) == 1
    as_before = {"binding": FORMER[token], "reasons": [["in_use", 3, 1], [FORMER[token], 2, 1]]}
    as_now = {"binding": token.value, "reasons": [["in_use", 3, 1], [token.value, 2, 1]]}
    stored = job_of(stage, job_id).wait_verdict
    assert stored is not None
    assert {name: stored[name] for name in as_before} == as_before
    for kept in (as_before, as_now):
        assert binding_of(JobState.QUEUED, kept) is token
        assert reasons_of(JobState.QUEUED, kept) == reasons
    assert job_view(job_of(stage, job_id))["binding"] == token.value


def test_what_has_not_changed_is_not_written_again_and_a_count_that_has_is(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    job_id = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    stage.cycle()
    version = job_of(stage, job_id).version
    (waiting,) = stage.cycle().waiting
    assert job_of(stage, job_id).version == version
    changed = Verdict(waiting.why, waiting.verdict.binding, (Reason(WaitReason.IN_USE, 3, 1),))
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        assert note_waiting(unit, [Waiting(job_id, changed)]) == 1
    assert job_view(job_of(stage, job_id))["reasons"][0]["num_gpus"] == 3


@pytest.mark.parametrize(
    ("verdict", "is_another"),
    [
        (Verdict("2 of 4 are in use", WaitReason.IN_USE, (Reason(WaitReason.IN_USE, 2, 1),)), False),
        (Verdict("waits", WaitReason.CONTACT, (Reason(WaitReason.CONTACT, 3, 1),)), True),
        (Verdict("waits", WaitReason.IN_USE, (Reason(WaitReason.IN_USE, 3, 1), Reason(WaitReason.CONTACT))), True),
    ],
    ids=["counts alone", "another that binds", "one more reason"],
)
def test_a_waiting_job_is_another_version_where_other_reasons_keep_it_not_where_they_count_otherwise(
    stage: Stage, verdict: Verdict, *, is_another: bool
) -> None:
    """Else a busy fleet refuses a person who cancels a job by the version just read."""
    job_id = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    first = Verdict("3 of 4 are in use", WaitReason.IN_USE, (Reason(WaitReason.IN_USE, 3, 1),))
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        assert note_waiting(unit, [Waiting(job_id, first)]) == 1
    before = job_of(stage, job_id)
    stage.clock.advance(1)
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        assert note_waiting(unit, [Waiting(job_id, verdict)]) == 1
    after = job_of(stage, job_id)
    assert (after.state_reason, reasons_of(after.state, after.wait_verdict)) == (verdict.why, verdict.reasons)
    assert (after.version, after.updated_at != before.updated_at) == (before.version + is_another, is_another)


def test_all_that_wait_are_recorded_by_one_statement(stage: Stage) -> None:
    job_ids = [stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2}) for _ in range(3)]
    verdict = Verdict("waits", WaitReason.IN_USE, (Reason(WaitReason.IN_USE, 2, 1),))
    asked: list[str] = []

    def listen(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(stage.units.engine, "before_cursor_execute", listen)
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        before = len(asked)
        assert note_waiting(unit, [Waiting(job_id, verdict) for job_id in job_ids]) == 3
        assert len(asked) - before == 1
    assert {job_of(stage, job_id).state_reason for job_id in job_ids} == {"waits"}


def test_a_job_that_a_cycle_did_not_examine_keeps_its_reason(stage: Stage) -> None:
    """A job that no cycle has examined yet has that reason."""
    tried, new = stage.submit("on_demand", shape={"nodes": 3}), stage.submit("on_demand", shape={"nodes": 4})
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        reason = Verdict("so it is", WaitReason.CAPACITY, (Reason(WaitReason.CAPACITY),))
        note_waiting(unit, [Waiting(tried, reason)])
    with stage.units.begin(SCHEDULER, NOTE_WAITING, quiet=True) as unit:
        assert note_waiting(unit, [Waiting(one, EXAMINED_LATER) for one in (tried, new)]) == 1
    assert stage.job(tried).state_reason == "so it is"
    assert stage.job(new).state_reason == WAIT_REASON_TEXTS[WaitReason.EXAMINED_LATER]
