"""History: filled in any order, the same before and after compaction, kept for as long as the policy says."""

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.telemetry.compaction import compact_once
from control.telemetry.history import history_of
from control.telemetry.latest import READ
from control.telemetry.reports import AcceptedReport
from control.telemetry.retention import keep_once
from muster.db.models import Gpu, StoredSignal, TelemetryBlock, TelemetryChunk, TelemetryGap
from muster.domain.errors import ForbiddenError
from muster.domain.ids import GpuUuid
from muster.domain.principals import Principal, Role
from muster.wire.telemetry import GapMarker
from tests.control.conftest import SetClock
from tests.control.telemetry.conftest import GPU, Stored, make_stored
from tests.fleet_factory import enrol_host
from tests.scaled import examples
from tests.telemetry_reports import reading, report, xid

HOUR_S = 3_600


def count(units: UnitOfWorkFactory, table: type[Any]) -> int:
    with units.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def fill(stored: Stored, numbers: list[int], *, start_ms: int, is_history: bool = True) -> None:
    """A sample each ten seconds from ``start_ms``, with its number as power."""
    reports = [
        report(
            16 * (n + 1),
            start_ms + n * 10_000,
            reading(GPU, power_w=float(n), energy_j=100.0 * n),
            is_history=is_history,
        )
        for n in numbers
    ]
    for outcome in stored.take(*reports):
        assert isinstance(outcome, AcceptedReport)


def compact_all(stored: Stored) -> int:
    total = 0
    while found := compact_once(stored.units):
        total += found
    return total


def test_history_is_the_same_in_any_order_and_after_compaction(stored: Stored) -> None:
    start = stored.clock.now
    numbers = list(range(60))
    random.Random(4).shuffle(numbers)  # noqa: S311
    start_ms = stored.now_ms
    stored.clock.advance(600)
    fill(stored, numbers[:40], start_ms=start_ms)
    span = {"since": start, "until": start + timedelta(minutes=10), "step_s": 60.0}
    stored.clock.advance(2 * HOUR_S)
    assert compact_all(stored) == 1
    assert count(stored.units, TelemetryBlock) == 0
    fill(stored, numbers[40:], start_ms=start_ms)
    means = [6.0 * n + 2.5 for n in range(10)]
    assert stored.points("power_w", **span) == means, "from a chunk and from blocks"
    assert stored.points("energy_j", **span) == [100.0 * (6 * n + 5) for n in range(10)]
    assert compact_once(stored.units) == 0, "an hour that is being filled is left alone"
    stored.clock.advance(HOUR_S)
    assert compact_all(stored) == 1
    assert stored.points("power_w", **span) == means
    assert (count(stored.units, TelemetryBlock), count(stored.units, TelemetryChunk)) == (0, 1)


@settings(
    max_examples=examples(10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_and_any_moment_of_compaction_give_one_history(
    units: UnitOfWorkFactory, clock: SetClock, numbers: list[int], cut: int
) -> None:
    name = f"host-{count(units, Gpu)}"
    stored = make_stored(units, clock, name)
    gpu = f"GPU-{name}-0"
    start, start_ms = clock.now, stored.now_ms
    clock.advance(2 * HOUR_S)
    try:
        for part in (numbers[:cut], numbers[cut:]):
            for n in part:
                stored.take(report(n + 1, start_ms + n * 10_000, reading(gpu, power_w=float(n)), is_history=True))
            clock.advance(HOUR_S)
            compact_all(stored)
        with units.begin(Principal(name="o", role=Role.OPERATOR), READ, dry_run=True, quiet=True) as unit:
            found = history_of(
                unit, GpuUuid(gpu), metrics=("power_w",), since=start, until=start + timedelta(minutes=2), step_s=10.0
            )
        assert found.series[0].values == [float(n) for n in range(12)]
    finally:
        stored.intake.close()


def test_a_repeated_report_after_compaction_changes_nothing(stored: Stored) -> None:
    start = stored.clock.now
    span = {"since": start, "until": start + timedelta(minutes=1), "step_s": 10.0}
    start_ms = stored.now_ms
    fill(stored, list(range(6)), start_ms=start_ms, is_history=False)
    stored.clock.advance(2 * HOUR_S)
    compact_all(stored)
    before = stored.points("power_w", **span)
    fill(stored, list(range(6)), start_ms=start_ms, is_history=True)
    assert stored.points("power_w", **span) == before == [float(n) for n in range(6)]
    stored.clock.advance(HOUR_S)
    compact_all(stored)
    assert stored.points("power_w", **span) == before
    assert stored.latest() == {GPU: ("boot-1", 96)}


def test_history_follows_a_board_to_its_next_host(stored: Stored) -> None:
    start = stored.clock.now
    fill(stored, [0, 1, 2], start_ms=stored.now_ms)
    stored.clock.advance(2 * HOUR_S)
    compact_all(stored)
    beta = enrol_host(stored.units, "beta", num_gpus=1)
    with stored.units.engine.begin() as connection:
        connection.execute(update(Gpu).where(Gpu.uuid == GPU).values(node_id=beta, slot_index=7))
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=9.0)), node_id=beta)
    found = stored.points("power_w", since=start, until=stored.clock.now + timedelta(seconds=10), step_s=HOUR_S)
    assert found == [1.0, None, 9.0]
    assert stored.latest()[GPU] == ("boot-1", 16)


def test_each_gap_is_listed_in_the_time_that_it_covers(stored: Stored) -> None:
    at = stored.now_ms
    gaps = tuple(
        GapMarker(
            priority="metrics", first_seq=1, last_seq=9, num_reports=9, from_ms=at - n, until_ms=at - n + 500, why="age"
        )
        for n in (1_000, 10_000_000)
    )
    stored.take(report(17, at, is_history=True, gaps=gaps))
    assert [gap.num_reports for gap in stored.history("power_w").gaps] == [9]
    hours_ago = stored.clock.now - timedelta(hours=3)
    assert len(stored.history("power_w", since=hours_ago, until=stored.clock.now).gaps) == 2


def test_what_is_past_its_time_goes_and_unjudged_signals_stay(stored: Stored) -> None:
    at = stored.now_ms
    gap = GapMarker(priority="events", first_seq=1, last_seq=1, num_reports=1, from_ms=at, until_ms=at, why="age")
    stored.take(report(16, at, reading(GPU, power_w=1.0), events=(xid("e", at), xid("f", at)), gaps=(gap,)))
    stored.clock.advance(2 * HOUR_S)
    assert keep_once(stored.units) == {"compacted": 1, "chunks": 0, "gaps": 0, "signals": 0, "places": 0}
    with stored.units.engine.begin() as connection:
        judged = update(StoredSignal).where(StoredSignal.signal_id == "e")
        connection.execute(judged.values(judged_at=stored.clock.now))
    stored.clock.advance(31 * 86_400)
    assert keep_once(stored.units) == {"compacted": 0, "chunks": 1, "gaps": 1, "signals": 1, "places": 1}
    assert [count(stored.units, table) for table in (TelemetryChunk, TelemetryGap, StoredSignal)] == [0, 0, 1]


def test_a_tenant_reads_no_telemetry(stored: Stored) -> None:
    tenant = Principal(name="t", role=Role.TENANT_ADMIN)
    with pytest.raises(ForbiddenError), stored.units.begin(tenant, READ, dry_run=True, quiet=True) as unit:
        history_of(unit, GPU)
