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
