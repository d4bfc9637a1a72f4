"""One job's page: why it stands where it stands, what ended each attempt, what was done."""

import re

import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.domain.policy.document import Policy
from muster.domain.policy.limits import AttemptLimitPolicy, LimitPolicy
from tests.console.conftest import Console, words_of
from tests.console.played_job import SUCCESS, played_job, struck
from tests.fleet_factory import OPERATOR

CANARY = "canary-of-the-other-tenant"


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


def test_what_was_left_out_beyond_a_limit_stands_at_the_attempt(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    assert "Left out" not in seen.text(f"/console/jobs/{job.job_id}")
    with seen.units.begin(OPERATOR, ACTIVATE) as unit:
        limits = AttemptLimitPolicy(log_bytes=65_536)
        store_policy(unit, Policy(limits=LimitPolicy(attempt=limits)), reason="little output")
    job.prints(b"x" * 65_536)
    job.prints(b"y" * 1_500)
    page = seen.text(f"/console/jobs/{job.job_id}")
    assert "Left out 1,500 bytes of output (limits.attempt.log_bytes)" in page


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


def test_what_a_program_most_likely_did_not_mean_stands_on_its_page_once(seen: Console) -> None:
    job = played_job(seen)
    job.start()
    for number in (1, 1, *range(2, 30)):
        job.states({"type": "warning", "code": f"code_{number}", "message": f"<b>number {number}</b>"})
    page = seen.get(f"/console/jobs/{job.job_id}").text
    assert page.count("&lt;b&gt;number 1&lt;/b&gt;") == 2, "as a warning, and in the events"
    assert "number 16&lt;" in page
    assert "number 17&lt;" not in page, "only so many are kept"


@pytest.mark.parametrize("actor", ["other_tenant", None])
def test_a_job_of_another_tenant_is_not_there(seen: Console, actor: str | None) -> None:
    job_id = seen.fleet.submit(name=CANARY)
    wanted = 404 if actor else 303
    for path in ("", "/training.json", "/readings.json", "/logs.txt", "/logs/follow"):
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
