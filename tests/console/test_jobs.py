"""The list of jobs, and one job's page: why it stands where it stands, what ended each attempt, what was done."""

import re

import pytest

from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.read import JobFilter
from muster.domain.ids import JobId
from muster.domain.states import JobState
from tests.console.conftest import Console, words_of
from tests.console.played_job import EVACUATED, SUCCESS, PlayedJob, played_job

CANARY = "canary-of-the-other-tenant"


def struck(seen: Console) -> PlayedJob:
    """Trained, struck at step 30, evacuated, resumed from step 10 on other GPUs, and ended well."""
    job = played_job(seen)
    job.start()
    job.states({"type": "resumed", "step": 0, "generation": ""})
    job.trains(1, 30)
    job.trains(1, 30, rank=1)
    job.saves(30)
    job.breaks()
    job.ends(EVACUATED)
    job.start()
    job.states({"type": "resumed", "step": 10, "generation": "step-00000010/gen-1"})
    job.trains(11, 20)
    return job


def test_a_page_states_of_each_attempt_what_ended_it_and_where_the_next_went_on(seen: Console) -> None:
    job = struck(seen)
    page = seen.text(f"/console/jobs/{job.job_id}")
    assert "Attempt 2 runs on" in page
    assert re.search(r"Attempt 1 .*evacuated", page)
    assert "it was taken off faulty GPUs" in page
    assert "XID 95" in page
    assert "the infrastructure: no restart of the job" in page
    assert "Resumed" in page
    assert "from step 10" in page
    assert "1 TAINTED" in page
    assert "0 kept from attempt 1, 2 new" in page
    job.ends(SUCCESS)
    assert "Every rank ended with code 0" in seen.text(f"/console/jobs/{job.job_id}")


def test_how_often_it_saves_stands_there_with_what_it_follows_from(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    told = {"step": 9, "interval_s": 60, "bound": "max", "stall_s": 0.5, "save_s": 2, "step_s": 0.1, "mtbf_s": 3600}
    assert "Saves" not in seen.text(f"/console/jobs/{job.job_id}")
    job.states({"type": "checkpoint_interval", **told, "failures_per_gpu_hour": 0.5, "num_gpus": 2})
    page = seen.text(f"/console/jobs/{job.job_id}")
    assert "Saves a checkpoint every 60 s, about 600 steps: the most that the policy allows" in page
    assert "2 GPUs fail once in 1 h" in page


def test_a_life_is_drawn_and_also_reported_in_words(seen: Console) -> None:
    job = struck(seen)
    job.ends(SUCCESS)
    page = seen.get(f"/console/jobs/{job.job_id}").text
    (label,) = re.findall(r'class="life-bar"[^>]*aria-label="([^"]*)"', page)
    assert "attempt 1 ran" in label
    assert "attempt 1 was stopping" in label
    assert "attempt 2 ran" in label
    assert "1 of them not to be used" in label
    widths = [float(each) for each in re.findall(r'class="seg [^>]*width="([0-9.]+)%"', page)]
    assert len(widths) >= 5
    assert sum(widths) <= 100 + 0.25 * len(widths), "each part has its share of the whole"


def test_the_placement_marks_the_gpu_that_was_blamed_and_links_each(seen: Console) -> None:
    job = struck(seen)
    first, second = seen.fleet.attempts(job.job_id)
    page = seen.get(f"/console/jobs/{job.job_id}?attempt=1").text
    cells = dict(re.findall(r'<a class="(slot [^"]*)" href="/console/gpus/([^"]*)"', page))
    assert set(cells.values()) == set(first.hosts[0].gpus)
    (blamed,) = [uuid for marks, uuid in cells.items() if "slot--blamed" in marks]
    assert blamed == first.hosts[0].gpus[0]
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert len(re.findall(r'class="slot [^"]*slot--new"', page)) == len(second.hosts[0].gpus)
    assert seen.get(f"/console/jobs/{job.job_id}?attempt=3").status_code == 404


def test_checkpoints_state_their_status_and_why_one_is_never_used_again(seen: Console) -> None:
    job = struck(seen)
    page = seen.get(f"/console/jobs/{job.job_id}").text
    (row,) = re.findall(r'<tr class="spoilt">.*?</tr>', page, re.DOTALL)
    words = words_of(row)
    assert "30" in words
    assert "TAINTED" in words
    assert "Not to be used: committed after" in words


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


def test_a_part_alone_comes_where_a_part_is_requested(seen: Console) -> None:
    job = struck(seen)
    attempts, tables = "attempts-title", "ckpt-title"
    of_the_release_before = ("story", attempts, tables)
    for part, has, lacks in (("attempts", attempts, tables), of_the_release_before, ("tables", tables, attempts)):
        page = seen.get(f"/console/jobs/{job.job_id}?part={part}", hx_request="true").text
        assert has in page, part
        assert lacks not in page, part
        assert "<html" not in page
    assert "<html" not in seen.get("/console/jobs", hx_request="true").text


def test_a_name_is_shown_as_text_whatever_it_holds(seen: Console) -> None:
    job = played_job(seen, labels={"note": "<script>alert(1)</script>"})
    job.start()
    job.prints("<img src=x onerror=alert(1)>\n")
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_charts_get_a_line_an_attempt_and_marks_where_something_changed(seen: Console) -> None:
    job = struck(seen)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    loss = next(chart for chart in document["charts"] if chart["title"] == "Loss")
    assert [line["name"] for line in loss["lines"]] == ["attempt 1", "attempt 2"]
    assert [line["is_past"] for line in loss["lines"]] == [True, False]
    assert loss["lines"][0]["points"][0] == [1, 4.0]
    assert loss["lines"][1]["points"][-1] == [20, 0.2]
    marks = {(mark["kind"], mark["at"]) for mark in loss["marks"]}
    assert {("change", 11), ("bad", 30)} <= marks
    assert document["refresh_s"] == 5
    job.ends(SUCCESS)
    assert seen.get(f"/console/jobs/{job.job_id}/training.json").json()["refresh_s"] is None


def test_each_rank_has_a_line_of_its_own(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.trains(1, 500)
    job.states({"type": "step", "step": 500, "loss": 9.0, "step_s": 7.5}, rank=1)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    charts = {chart["title"]: chart["lines"] for chart in document["charts"]}
    zero, one = charts["Step time of each rank"]
    assert (zero["name"], one["name"]) == ("rank 0", "rank 1")
    assert (zero["points"][0], one["points"]) == ([1, 0.25], [[500, 7.5]])
    assert 60 <= len(zero["points"]) <= 128
    assert charts["Loss of each rank"][1]["points"] == [[500, 9.0]]


def test_where_the_time_of_a_step_goes_is_reported_for_all_ranks_and_drawn_for_the_first(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    assert "Where a step" not in seen.get(f"/console/jobs/{job.job_id}").text, "no rank reported it"
    job.trains(1, 300)
    job.paces(*range(10, 301, 10), collective_s=0.25, tokens_per_s=1000.0)
    job.paces(300, rank=1, collective_s=0.75, tokens_per_s=500.0)
    page = seen.get(f"/console/jobs/{job.job_id}").text
    for expected in ("Where a step", "500 ms", "1,500", "exchanging gradients with the other ranks"):
        assert expected in page
    charts = seen.get(f"/console/jobs/{job.job_id}/training.json").json()["charts"]
    found = {chart["title"]: chart["lines"] for chart in charts}
    lines = {line["name"]: line["points"] for line in found["Where a step's time goes"]}
    assert set(lines) == {"forward", "collective"}, "parts that take no time are not drawn"
    assert lines["collective"][0] == [10, 0.25]
    assert lines["collective"][-1] == [300, 0.25]
    assert found["Tokens a second, rank 0"][0]["points"][-1] == [300, 1000.0]
    assert found["Memory, rank 0"] == [{"name": "memory, rank 0", "points": []}]


def test_what_a_program_most_likely_did_not_mean_stands_on_its_page_once(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    for number in (1, 1, *range(2, 30)):
        job.states({"type": "warning", "code": f"code_{number}", "message": f"<b>number {number}</b>"})
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert page.count("&lt;b&gt;number 1&lt;/b&gt;") == 2, "as a warning, and in the events"
    assert "number 16&lt;" in page
    assert "number 17&lt;" not in page, "only so many are kept"


def test_a_long_curve_is_thinned_and_keeps_its_ends(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    for first in range(1, 4_001, 100):
        job.trains(first, first + 99)
    document = seen.get(f"/console/jobs/{job.job_id}/training.json").json()
    points = document["charts"][0]["lines"][0]["points"]
    assert (points[0][0], points[-1][0]) == (1, 4_000)
    assert 500 < len(points) <= 1_700


@pytest.mark.parametrize("actor", ["other_tenant", None])
def test_a_job_of_another_tenant_is_not_there(seen: Console, actor: str | None) -> None:
    job_id = seen.fleet.submit(name=CANARY)
    wanted = 404 if actor else 303
    for path in ("", "/training.json", "/logs.txt", "/logs/follow"):
        answer = seen.get(f"/console/jobs/{job_id}{path}", actor)
        assert answer.status_code == wanted, path
        assert CANARY not in answer.text
    for change in ("cancel", "release", "copy"):
        answer = seen.post(f"/console/jobs/{job_id}/{change}", actor, reason="mine", typed=CANARY)
        assert answer.status_code == wanted, change
    assert CANARY not in seen.text("/console/jobs", "other_tenant")
    assert seen.fleet.job(job_id).cancel_requested_at is None


def test_an_auditor_reads_a_job_without_its_logs_and_changes_nothing(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    job.prints("a secret of the program\n")
    page = seen.get(f"/console/jobs/{job.job_id}", "auditor").text
    assert "a secret of the program" not in page
    assert "/cancel" not in page
    assert seen.get(f"/console/jobs/{job.job_id}/logs.txt", "auditor").status_code == 403
    assert seen.post(f"/console/jobs/{job.job_id}/cancel", "auditor", reason="x").status_code == 403


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


def test_a_copy_is_a_new_job_of_the_same_tenant(seen: Console) -> None:
    job_id = seen.fleet.submit(name="again", labels={"team": "a"})
    assert seen.post(f"/console/jobs/{job_id}/copy", "operator", reason="again").status_code == 303
    with seen.units.begin(seen.fleet.tenant, jobs.READ, quiet=True) as unit:
        found = job_reads.list_jobs(unit, JobFilter(name="again"), limit=50)
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


def test_the_event_of_a_placement_counts_the_gpus_of_each_host(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    page = seen.text(f"/console/jobs/{job.job_id}")
    assert f"2 GPUs on node_…{job.newest.hosts[0].part.node_id[-6:]}" in page
    assert "{'node_" not in page


def test_a_page_states_what_the_job_requests_of_its_place(seen: Console) -> None:
    asks = {"topology": {"required": "rack"}, "node_labels": {"required": {"site": ["ams", "fra"]}}}
    page = seen.text(f"/console/jobs/{seen.fleet.submit(**asks)}")
    assert "within one rack" in page
    assert "on hosts with site ams or fra" in page
