"""The list of jobs: why each waits, where it runs, filters and pages."""

import re

from muster.domain.ids import JobId
from tests.console.conftest import Console
from tests.console.played_job import played_job


def test_a_job_that_waits_states_why_in_one_sentence(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    waiting = seen.fleet.submit(name="too-late", shape={"nodes": 2, "gpus_per_node": 2})
    seen.fleet.cycle()
    reason = seen.fleet.job(waiting).state_reason
    assert "GPUs" in reason
    assert reason in seen.text("/console/jobs")
    page = seen.text(f"/console/jobs/{waiting}")
    assert f"Waits: {reason}" in page
    assert "It holds no GPU yet" in page


def test_the_list_states_where_a_job_runs_and_filters_by_state_tier_and_name(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    seen.fleet.submit(name="second", tier="spot")
    listed = seen.text("/console/jobs")
    assert "long-run" in listed
    assert f"on {job.newest.hosts[0].node_name}" in listed
    for query, is_there, is_not in (
        ("state=ACTIVE", "long-run", "second"),
        ("tier=spot", "second", "long-run"),
        ("name=LONG", "long-run", "second"),
        ("state=&tier=&name=", "second", "nothing"),
    ):
        found = seen.text(f"/console/jobs?{query}")
        assert is_there in found, query
        assert is_not not in found, query
    assert "No such job" in seen.text("/console/jobs?state=FAILED")


def test_a_state_that_no_job_has_is_refused_by_name(seen: Console) -> None:
    answer = seen.get("/console/jobs?state=BROKEN")
    assert answer.status_code == 422
    assert "RECOVERING" in answer.text


def test_an_empty_list_states_what_would_fill_it(seen: Console) -> None:
    assert "No job was submitted yet" in seen.text("/console/jobs")
    assert "muster job submit" in seen.text("/console/jobs", "tenant_member")


def test_the_list_goes_page_by_page_and_loses_none(seen: Console) -> None:
    submitted = {seen.fleet.submit(name=f"job-{number}") for number in range(53)}
    page, found = seen.get("/console/jobs").text, set()
    while True:
        found |= {JobId(each) for each in re.findall(r'class="job-name" href="/console/jobs/(job_\w+)"', page)}
        older = re.search(r'href="(/console/jobs\?cursor=[^"]*)"', page)
        if older is None:
            break
        page = seen.get(older.group(1).replace("&amp;", "&")).text
    assert found == submitted
