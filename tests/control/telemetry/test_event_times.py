"""When an event happened, of a host whose clock may be anything."""

import json
from datetime import UTC, datetime

import pytest

from control.telemetry.reports import IncomingReport
from control.telemetry.rows import signal_rows
from muster.domain.evidence.findings import GpuSignal
from muster.domain.ids import NodeId
from muster.wire.telemetry import NodeReport
from tests.telemetry_reports import report, xid

NOW_MS = 1_790_000_000_000
YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("ahead_ms", [-YEAR_MS, YEAR_MS])
def test_events_of_a_clock_that_is_a_year_off_are_placed_with_their_report(ahead_ms: int) -> None:
    sent = report(1, NOW_MS + ahead_ms, events=(xid("boot-1:1", NOW_MS + ahead_ms - 3_000),))
    (row,) = signal_rows(IncomingReport(NodeId("node_1"), None, sent, NOW_MS), datetime.now(UTC), lambda _: False)
    assert row["at_ms"] == NOW_MS - 3_000


def test_events_of_a_clock_that_is_expected_keep_their_time_and_none_is_of_the_future() -> None:
    sent = report(1, NOW_MS - 500, events=(xid("boot-1:1", NOW_MS - 9_000), xid("boot-1:2", NOW_MS + 60_000)))
    rows = list(signal_rows(IncomingReport(NodeId("node_1"), None, sent, NOW_MS), datetime.now(UTC), lambda _: False))
    assert [row["at_ms"] for row in rows] == [NOW_MS - 9_000, NOW_MS]


@pytest.mark.parametrize(("driver", "values"), [("580.95.05", {"driver_branch": 580}), ("", {})])
def test_an_xid_is_kept_with_the_drivers_branch_of_its_report(driver: str, values: dict[str, float]) -> None:
    sent = report(1, NOW_MS, events=(xid("boot-1:1", NOW_MS),), node=NodeReport(driver_version=driver))
    seen = list[dict[str, float]]()

    def check(signal: GpuSignal) -> bool:
        seen.append(dict(signal.values))
        return False

    (row,) = signal_rows(IncomingReport(NodeId("node_1"), None, sent, NOW_MS), datetime.now(UTC), check)
    assert (json.loads(row["values"]), seen) == (values, [values])
