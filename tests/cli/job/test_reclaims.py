"""``muster reclaim`` as a tenant and an operator read it."""

import json
from pathlib import Path

from tests.cli.command import Command
from tests.recorded_server import Answer, serving

RECLAIM = {
    "id": "rcl_1",
    "state": "FORCED",
    "reason": "capacity of the tier spot is taken back",
    "num_gpus": 8,
    "victim_tier": "spot",
    "victim_job_id": "job_mine",
    "beneficiary_tier": "reserved",
    "beneficiary_job_id": None,
    "notice_s": 120.0,
    "notified_at": "2026-01-01T00:00:00Z",
    "deadline_at": "2026-01-01T00:02:00Z",
    "settled_at": "2026-01-01T00:02:01Z",
    "settled_why": "reclaimed: stopped: reclaim",
    "outcome": "work_lost",
    "lost_gpu_s": 960.4,
}


def test_a_list_names_what_the_key_may_know_and_requests_what_was_wanted(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [RECLAIM], "next_cursor": None})) as server:
        words = ("reclaim", "list", "--state", "forced", "--job", "job_mine", "--limit", "5")
        shown = Command(tmp_path).run(*words, "--wide", url=server.url)
        told = Command(tmp_path).run(*words, "--json", url=server.url)
    assert shown.returncode == 0, shown.stderr
    for word in ("rcl_1", "FORCED", "job_mine", "a reserved job", "2026-01-01T00:02:00"):
        assert word in shown.stdout
    assert json.loads(told.stdout) == [RECLAIM]
    assert server.requested[0].path == "/v1/reclaims?state=FORCED&job_id=job_mine&limit=5"


def test_one_is_shown_with_its_deadline_and_what_became_of_the_work(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, RECLAIM)) as server:
        shown = Command(tmp_path).run("reclaim", "show", "rcl_1", url=server.url)
    assert "from job_mine, for a reserved job" in shown.stdout
    assert "due 2026-01-01T00:02:00" in shown.stdout
    assert "work lost, 960 GPU-seconds lost" in shown.stdout


def test_an_operator_reads_what_it_was_chosen_by_and_what_the_victim_keeps(tmp_path: Path) -> None:
    best = {"victims": ["att_1", "att_2"], "cost_gpu_s": 4000.0}
    chosen = {**RECLAIM, "num_kept_gpus": 24, "cost_gpu_s": 5760.0, "runner_up": best}
    with serving(lambda _asked, _number: Answer(200, chosen)) as server:
        shown = Command(tmp_path).run("reclaim", "show", "rcl_1", url=server.url)
    assert "elastic: it continues with 24 of its GPUs" in shown.stdout
    assert "estimated to lose 5,760 GPU-seconds" in shown.stdout
    assert "next best: 4,000 GPU-seconds of att_1, att_2" in shown.stdout
