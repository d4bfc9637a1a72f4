"""``muster ledger`` as an operator reads it: tables, and CSV for a spreadsheet."""

import csv
import io
from typing import Any

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, serving

NONE: dict[str, Any] = dict.fromkeys(
    (
        *("account", "cause", "tenant_id", "tier", "job_class", "model", "cohort_key"),
        *("rack", "site", "begins_at", "node_id", "job_id", "attempt_id"),
    )
)
SUMS: dict[str, Any] = {
    "since": "2026-11-20T04:00:00Z",
    "until": "2026-11-21T04:00:00Z",
    "num_hours": 24,
    "num_open_hours": 2,
    "num_ms": 7_200_000_000,
    "is_whole": True,
    "sums": [
        {**NONE, "account": "productive", "rack": "r1", "num_ms": 5_400_000_000, "gpu_hours": 1500.0, "share": 0.75},
        {**NONE, "account": "pending", "rack": "=r2", "num_ms": 1_800_000_000, "gpu_hours": 500.0, "share": 0.25},
    ],
}
HOUR: dict[str, Any] = {
    "hour": "2026-11-21T03:00:00Z",
    "computed_at": "2026-11-21T04:05:00Z",
    "closed_at": None,
    "revision": 0,
    "num_gpus": 8,
    "capacity_ms": 28_800_000,
    "unexplained_ms": 0,
    "awaits": 2,
    "gaps": {},
}


def answered(requested: Requested, _number: int) -> Answer:
    if requested.path.startswith("/v1/ledger/hours"):
        return Answer(200, {"items": [HOUR, {**HOUR, "closed_at": "2026-11-21T05:00:00Z"}], "next_cursor": None})
    return Answer(200, SUMS)


def test_sums_are_a_table_with_what_may_still_change(muster: Command) -> None:
    with serving(answered) as server:
        shown = muster.run("ledger", "show", "--by", "account", "--by", "rack", url=server.url, COLUMNS="80")
        hours = muster.run("ledger", "hours", url=server.url, COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    header, first, *_ = shown.stdout.splitlines()
    assert header.split() == ["ACCOUNT", "RACK", "GPU", "HOURS", "SHARE"]
    assert first.split() == ["productive", "r1", "1,500.00", "75.0%"]
    assert "2 of them may still change" in " ".join(shown.stdout.split())
    assert server.requested[0].path == "/v1/ledger?group=account&group=rack&limit=1000"
    assert "provisional" in hours.stdout
    assert "closed" in hours.stdout


def test_csv_is_for_a_spreadsheet_and_computes_nothing_there(muster: Command) -> None:
    with serving(answered) as server:
        shown = muster.run("ledger", "show", "--by", "account", "--by", "rack", "--csv", url=server.url)
        both = muster.run("ledger", "show", "--csv", "--json", url=server.url)
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [(row["account"], row["rack"], row["num_ms"]) for row in rows] == [
        ("productive", "r1", "5400000000"),
        ("pending", "'=r2", "1800000000"),
    ]
    assert both.returncode == Exit.USAGE


RECOUNT: dict[str, Any] = {
    "since": "2026-11-20T04:00:00Z",
    "until": "2026-11-21T04:00:00Z",
    "events_since": "2026-09-01T00:00:00Z",
    "num_events": 1200,
    "num_records": 16,
    "num_gpus": 8,
    "num_hours": 24,
    "num_open_hours": 1,
    "sums": [
        {"group": "used", "accounts": {"productive": 7_200_000, "idle": 60_000}, "stored_ms": 7_260_000,
         "recounted_ms": 7_260_000},
        {"group": "cordoned", "accounts": {"cordoned": 3_600_000}, "stored_ms": 3_600_000, "recounted_ms": 3_599_999},
    ],
    "num_differences": 2,
    "difference_ms": 1,
    "differences": [
        {"hour": "2026-11-20T04:00:00Z", "gpu_uuid": "GPU-alpha-0", "attempt_id": None, "group": "cordoned",
         "stored_ms": 3_600_000, "recounted_ms": 3_599_999, "events": [
             {"event_id": "event_1", "kind": "gpu.cordoned", "at": "2026-11-20T03:00:00Z", "subject_id": "GPU-alpha-0"}
         ]},
    ],
    "num_in_gaps": 3,
    "in_gaps_ms": 2_500,
    "not_recounted": [
        {"cause": "dropped", "num_hours": 2, "num_ms": 7_200_000},
        {"cause": "within_use", "num_hours": None, "num_ms": 7_260_000},
        {"cause": "lost_end", "num_hours": 1, "num_ms": 1_800_000},
        {"cause": "of_a_later_release", "num_hours": 1, "num_ms": None},
    ],
}  # fmt: skip
AGREES: dict[str, Any] = {**RECOUNT, "num_differences": 0, "difference_ms": 0, "differences": [], "num_in_gaps": 0,
                          "in_gaps_ms": 0, "sums": [], "not_recounted": []}  # fmt: skip


def test_a_recount_shows_differences_with_the_events_that_decide_and_fails(muster: Command) -> None:
    with serving(lambda *_: Answer(200, RECOUNT)) as server:
        given = ("--from", "2026-11-20T04:00:00Z", "--gpu", "GPU-1", "--wide")
        shown = muster.run("ledger", "recount", *given, url=server.url, COLUMNS="200")
    assert shown.returncode == Exit.FAILED, shown.stderr
    assert server.requested[0].path == ("/v1/ledger/recount?since=2026-11-20T04%3A00%3A00%2B00%3A00&gpu=GPU-1&limit=20")
    text = " ".join(shown.stdout.split())
    assert "24 hours of 8 GPUs" in text
    assert "1,200 events and 16 records from before 2026-09-01T00:00:00Z" in text
    assert "cordoned cordoned 1.00 h 1.00 h 0.001 s" in text
    assert (
        "2 differences outside of gaps of reports: 0.001 s in all. 1 of them is not shown: --limit shows more." in text
    )
    assert "Gaps explain 2.500 s in 3 GPU hours." in text
    assert "2026-11-20T04:00:00Z GPU-alpha-0 cordoned 3,600.000 s 3,599.999 s - gpu.cordoned" in text
    assert "2026-11-20T03:00:00Z event_1" in text
    assert "Not recounted: 2 hours with 2.00 h of GPU time (their entries are no longer kept)." in text
    assert "Not recounted: 1 GPU hour with 0.50 h of GPU time (no event says when a host" in text
    assert "Not recounted: 1 hour (of_a_later_release)." in text


def test_a_recount_without_hours_does_not_state_that_it_agrees(muster: Command) -> None:
    none = {**AGREES, "num_hours": 0, "not_recounted": [{"cause": "not_computed", "num_hours": 24, "num_ms": None}]}
    with serving(lambda *_: Answer(200, none)) as server:
        shown = muster.run("ledger", "recount", url=server.url, COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    assert "There is nothing to compare." in shown.stdout
    assert "agree" not in shown.stdout
    assert "24 hours (the ledger has not computed them yet" in shown.stdout


def test_a_recount_that_agrees_but_for_gaps_states_what_they_explain(muster: Command) -> None:
    with serving(lambda *_: Answer(200, {**AGREES, "num_in_gaps": 1, "in_gaps_ms": 2_500})) as server:
        shown = muster.run("ledger", "recount", url=server.url, COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    assert "The ledger and the events agree to the millisecond outside of gaps of reports." in shown.stdout
    assert "Gaps explain 2.500 s in 1 GPU hour." in shown.stdout


def test_a_recount_that_agrees_succeeds(muster: Command) -> None:
    with serving(lambda *_: Answer(200, AGREES)) as server:
        shown = muster.run("ledger", "recount", url=server.url, COLUMNS="200")
        refused = muster.run("ledger", "recount", "--from", "never", url=server.url)
    assert shown.returncode == 0, shown.stderr
    assert "agree to the millisecond." in shown.stdout
    assert refused.returncode == Exit.USAGE
    assert "--from" in refused.stderr
