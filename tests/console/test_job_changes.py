"""Changes to a job from its page: cancel, release, copy, resize."""

from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.listing import JobFilter, list_jobs
from muster.domain.states import JobState
from tests.console.conftest import Console, words_of
from tests.console.played_job import played_job


def test_cancelling_requests_a_reason_and_shows_first_what_it_would_do(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    where = f"/console/jobs/{job.job_id}/cancel"
    assert seen.post(where, "tenant_member").status_code == 422
    preview = seen.post(where, "tenant_member", reason="enough", step="preview")
    assert preview.status_code == 200
    told = words_of(preview.text)
    assert "ends permanently" in told
    assert "deadline in" in told
    assert "job.cancel_requested" not in told
    assert seen.fleet.job(job.job_id).cancel_requested_at is None
    done = seen.post(where, "tenant_member", reason="enough")
    assert done.status_code == 303
    assert done.headers["location"].startswith(f"/console/jobs/{job.job_id}?done=")
    assert seen.fleet.job(job.job_id).cancel_requested_at is not None
    page = seen.get(f"/console/jobs/{job.job_id}", "tenant_member").text
    assert "Cancelled: its programs on" in words_of(page)
    assert f'action="{where}"' not in page, "it is not offered twice"
    assert "Must leave" in words_of(page)


def test_a_job_on_hold_is_released_from_its_page(seen: Console) -> None:
    job_id = seen.fleet.submit(name="held")
    with seen.units.begin(seen.fleet.tenant, jobs.RELEASE, quiet=True) as unit:
        job = job_reads.row_of(unit, job_id)
        job.state, job.state_reason = JobState.HELD, "3 launches failed in a row"
        unit.audit("job.hold", "job", job_id, tenant_id=seen.fleet.tenant_id)
    page = seen.text(f"/console/jobs/{job_id}", "tenant_member")
    assert "3 launches failed in a row" in page
    answer = seen.post(f"/console/jobs/{job_id}/release", "tenant_member", reason="the image is repaired")
    assert answer.status_code == 303
    assert seen.fleet.job(job_id).state is JobState.QUEUED


def test_a_job_that_waits_is_put_on_hold_from_its_page(seen: Console) -> None:
    job_id = seen.fleet.submit(name="to-be-held")
    where = f"/console/jobs/{job_id}/hold"
    assert f'action="{where}"' in seen.get(f"/console/jobs/{job_id}", "tenant_member").text
    assert seen.post(where, "tenant_member", reason="its data is being replaced").status_code == 303
    assert seen.fleet.job(job_id).state is JobState.HELD
    page = seen.get(f"/console/jobs/{job_id}", "tenant_member").text
    assert "held by request: its data is being replaced" in words_of(page)
    assert f'action="{where}"' not in page, "it is not offered twice"


def test_a_copy_is_a_new_job_of_the_same_tenant(seen: Console) -> None:
    job_id = seen.fleet.submit(name="again", labels={"team": "a"})
    assert seen.post(f"/console/jobs/{job_id}/copy", "operator", reason="again").status_code == 303
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        found = list_jobs(unit, JobFilter(name="again"), limit=50)
    assert len(found) == 2
    assert {each.job.tenant_id for each in found} == {seen.fleet.tenant_id}
    specs = [seen.fleet.job(each.job.id).spec for each in found]
    assert specs[0] == specs[1]


def test_an_elastic_job_is_resized_by_its_own_tenant_that_saw_what_it_would_do(seen: Console) -> None:
    job_id = seen.fleet.submit(name="elastic", shape={"min_nodes": 1, "nodes": 2, "max_nodes": 4, "gpus_per_node": 2})
    where = f"/console/jobs/{job_id}/resize"
    page = seen.get(f"/console/jobs/{job_id}", "tenant_member").text
    assert f'action="{where}"' in page
    assert 'min="1" max="4" value="2"' in page
    preview = seen.post(where, "tenant_member", reason="the rest is for others", nodes="1", step="preview")
    assert "job elastic is to have 1 host from now on" in words_of(preview.text)
    assert seen.fleet.job(job_id).wanted_nodes is None
    assert seen.post(where, "tenant_member", csrf="", reason="the rest is for others", nodes="1").status_code == 403
    assert seen.post(where, "other_tenant", reason="mine", nodes="1").status_code == 404
    assert seen.fleet.job(job_id).wanted_nodes is None
    assert seen.post(where, "tenant_member", reason="the rest is for others", nodes="1").status_code == 303
    assert seen.fleet.job(job_id).wanted_nodes == 1
    assert 'min="1" max="4" value="1"' in seen.get(f"/console/jobs/{job_id}", "tenant_member").text


def test_a_size_that_cannot_be_is_refused_by_name_and_a_rigid_job_offers_none(seen: Console) -> None:
    job_id = seen.fleet.submit(name="elastic", shape={"min_nodes": 1, "nodes": 2, "max_nodes": 4, "gpus_per_node": 2})
    where = f"/console/jobs/{job_id}/resize"
    for nodes, told in {"9": "must be from 1 to 4", "two": "as a whole number", "": "as a whole number"}.items():
        answer = seen.post(where, "tenant_member", reason="other", nodes=nodes)
        assert answer.status_code == 422
        assert told in words_of(answer.text)
    assert "say why" in seen.post(where, "tenant_member", nodes="1").text
    rigid = seen.fleet.submit(name="rigid")
    assert "/resize" not in seen.get(f"/console/jobs/{rigid}", "tenant_member").text
    answer = seen.post(f"/console/jobs/{rigid}/resize", "tenant_member", reason="other", nodes="1")
    assert "no other number" in words_of(answer.text)
    assert seen.fleet.job(job_id).wanted_nodes is seen.fleet.job(rigid).wanted_nodes is None
