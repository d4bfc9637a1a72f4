"""The page of the person on call: what went wrong, for operators of all jobs and for a tenant of its own."""

from control.policy.policies import ACTIVATE
from muster.db.models import Job
from muster.domain.states import JobState
from tests.console.conftest import Console
from tests.console.played_job import JUDGE, PlayedJob, played_job

KILLED: dict[str, object] = {"stop_reason": "hang", "launcher_signal": 9}


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
    assert "0 of 0 that succeeded or failed" in page
    assert "No job failed." in page
    [saved] = [part for part in page.split("Last good checkpoints")[1:] if "night" in part or "10" in part]
    assert "10" in saved
    job.stalls()
    assert "hang" in seen.text("/console/on-call?span=1h").split("Newest verdicts")[1]
    end(job)
    page = seen.text("/console/on-call")
    assert "RECOVERING" in page.split("Jobs that wait")[1]
    assert "hang the job 1 1" in page


def test_a_job_that_failed_without_an_attempt_counts(seen: Console) -> None:
    job_id = seen.fleet.submit(name="never-ran")
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        row = unit.session.get_one(Job, job_id)
        row.state, row.state_reason, row.finished_at = JobState.FAILED, "no host may run it", unit.now
    page = seen.text("/console/on-call")
    assert "1 of 1 that succeeded or failed" in page
    assert "never-ran" in page.split("Failed jobs")[1].split("Jobs that wait")[0]


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


def test_an_unknown_span_is_the_usual_one(seen: Console) -> None:
    assert "In the last 24h" in seen.text("/console/on-call?span=9y")
