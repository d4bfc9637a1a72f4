"""The page of the person on call: what went wrong, for operators of all jobs and for a tenant of its own."""

from sqlalchemy import update

from control.policy.policies import ACTIVATE
from muster.db.models import Event, Job
from muster.domain.states import JobState
from tests.console.conftest import Console
from tests.console.played_job import JUDGE, PlayedJob, played_job

KILLED: dict[str, object] = {"stop_reason": "hang", "launcher_signal": 9}


def give_positions(seen: Console) -> None:
    """Let events be in their order, as the sequencer does."""
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Event).where(Event.position.is_(None)).values(position=Event.serial))


def end(job: PlayedJob) -> None:
    """Let its host carry out the stop that the hang led to."""
    attempt = job.newest.attempt
    job.host.report(attempt.id, attempt.fence, "exited", "clean", record=KILLED)


def test_what_went_wrong_is_on_one_page(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.trains(1, 12)
    job.saves(10)
    page = seen.text("/console/on-call")
    assert "Each attempt that ended succeeded or was cancelled." in page
    assert "0 of 0 jobs that succeeded or failed did fail" in page
    assert "No job failed." in page
    [saved] = [part for part in page.split("Last good checkpoints")[1:] if "night" in part or "10" in part]
    assert "10" in saved
    job.stalls()
    assert "hang" in seen.text("/console/on-call?range=1h").split("Newest verdicts")[1]
    end(job)
    page = seen.text("/console/on-call")
    assert "RECOVERING" in page.split("Jobs that wait")[1]
    assert "hang the job 1 1" in page
    errors = page.split("Newest errors")[1].split("Lost hosts")[0]
    assert f"{seen.fleet.job(job.job_id).name} 1 hang" in errors


def test_a_job_that_failed_without_an_attempt_counts(seen: Console) -> None:
    job_id = seen.fleet.submit(name="never-ran")
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        row = unit.session.get_one(Job, job_id)
        row.state, row.state_reason, row.finished_at = JobState.FAILED, "no host may run it", unit.now
    page = seen.text("/console/on-call")
    assert "1 of 1 jobs that succeeded or failed did fail" in page
    assert "Failed jobs 1 worse before 0, from 0" in page
    assert "never-ran" in page.split("Failed jobs")[-1].split("Jobs that wait")[0]


def test_a_tenant_sees_its_own_jobs_and_no_hosts(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.saves(10)
    name = seen.fleet.job(job.job_id).name
    own = seen.text("/console/on-call", "tenant_member")
    assert name in own.split("Last good checkpoints")[1]
    assert "Hosts lost" not in own
    assert "Open incidents" not in own
    other = seen.text("/console/on-call", "other_tenant")
    assert name not in other
    assert "No job runs." in other


def test_a_lost_host_and_a_failed_save_are_named(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    failed = {"type": "checkpoint", "step": 9, "generation": "step-00000009/gen-1", "status": "failed"}
    job.states({**failed, "why": "rank 0: disk full", "faults": []})
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.emit("node.lost", "node", job.host.node_id)
    give_positions(seen)
    page = seen.text("/console/on-call")
    assert "step 9: rank 0: disk full" in page.split("Failed saves")[-1]
    assert "Hosts lost 1 worse before 0" in page
    assert "not yet" in page.split("Lost hosts")[1]
    assert "Failed saves 1 worse before 0" in seen.text("/console/on-call", "tenant_member")
    assert "disk full" not in seen.text("/console/on-call", "other_tenant")


def test_a_stretch_of_dates_is_read_and_bad_ones_named(seen: Console) -> None:
    assert "within the chosen dates" in seen.text("/console/on-call?since=2026-01-01&until=2026-01-07")
    assert seen.get("/console/on-call.json?range=6h&compare=true").status_code == 200
    for query in ("range=9y", "since=2026-02-30", "range=1y"):
        answer = seen.get(f"/console/on-call?{query}")
        assert answer.status_code == 422, query
        assert "since" in answer.text or "range" in answer.text
