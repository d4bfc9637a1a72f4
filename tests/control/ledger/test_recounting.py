"""A recount from events agrees with the ledger to the millisecond, finds what was changed, and states its limits."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text

from control.core.paging import Span
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, inventory, overrides
from control.ledger import read, recounting
from control.ledger.recounting import NotRecounted, Recount, recount
from muster.db.models import Event
from muster.domain.errors import ForbiddenError, ValidationFailedError
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from muster.domain.times import to_ms
from tests.control.burn_in_case import enrol, figures, order_intake
from tests.control.conftest import SetClock
from tests.control.ledger.played_hour import FOUR, HOUR_MS, PlayedHour
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import played_host

FIVE = FOUR + timedelta(hours=1)
SIX = FOUR + timedelta(hours=2)
HOUR_FOUR = Span(FOUR, FIVE)
TAKEN = """
    SELECT p.gpu_uuid, l.attempt_id FROM allocation_gpus AS p JOIN allocations AS l ON l.id = p.allocation_id
"""


def recounted(played: PlayedHour, span: Span = HOUR_FOUR, **how: object) -> Recount:
    with played.units.begin(OPERATOR, read.READ, dry_run=True, is_one_snapshot=True) as unit:
        return recount(unit, span, **how)  # type: ignore[arg-type]  # as each test names it


def played_an_hour(played: PlayedHour) -> None:
    """A job from 4:10 to 4:30, a cordon, overrides, a silent host; and the ledger's closing."""
    first, second = (GpuUuid(f"GPU-alpha-{number}") for number in range(2))
    played.at(10)
    played.start()
    played.at(20)
    played.step(1, 60.0)
    played.at(25)
    with played.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordon = cordons.create(unit, reason="a cable", gpu_uuid=second, until=FOUR + timedelta(minutes=50))
    played.at(30)
    played.end()
    played.at(31)
    with played.units.begin(OPERATOR, inventory.OVERRIDE) as unit:
        overrides.override(unit, first, Standing.QUARANTINED, until=FOUR + timedelta(minutes=40), reason="heat")
    played.at(36)
    with played.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, first, reason="cooler")
    played.at(38)
    with played.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id)
    played.at(45)
    played.fleet.reconcile()
    played.at(55)
    played.host.beat()
    played.at(66)
    played.host.beat()
    played.keep()


@contextmanager
def recorded_subjects(played: PlayedHour, found: list[Sequence[str]]) -> Iterator[None]:
    """Add the subjects of each statement about events to ``found``."""

    def listener(*given: Any) -> None:
        if "FROM events" in given[2] and "subjects" in given[3]:
            found.append(given[3]["subjects"])

    event.listen(played.units.engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(played.units.engine, "before_cursor_execute", listener)


def drop_events(played: PlayedHour, which: str) -> None:
    with played.units.engine.begin() as connection:
        assert connection.execute(text(f"DELETE FROM events WHERE {which}")).rowcount  # noqa: S608  # words of ours


def test_a_recount_agrees_to_the_millisecond(played: PlayedHour) -> None:
    played_an_hour(played)
    found = recounted(played)
    assert found.differences == []
    assert (found.num_differences, found.difference_ms, found.in_gaps_ms) == (0, 0, 0)
    assert (found.num_hours, found.num_open_hours, found.num_gpus) == (1, 0, 2)
    sums = {one.group: (one.stored_ms, one.recounted_ms) for one in found.groups}
    assert all(stored_ms == recounted_ms for stored_ms, recounted_ms in sums.values())
    assert sum(stored_ms for stored_ms, _ in sums.values()) == 2 * HOUR_MS
    assert {"used", "empty", "quarantined", "cordoned", "no_contact"} <= sums.keys()
    assert sums["used"][0] == 20 * 60_000
    of_account = {account: ms / 1000 for one in found.groups for account, ms in one.accounts.items()}
    assert of_account == played.seconds()
    assert found.not_recounted[NotRecounted.WITHIN_USE] == (None, sums["used"][0])


def test_corrections_count_on_the_side_of_the_ledger(played: PlayedHour) -> None:
    played_an_hour(played)
    before = recounted(played)
    played.at(90)
    played.step(2, 240.0, at_ms=to_ms(FOUR + timedelta(minutes=29)))
    played.at(106)
    played.host.beat()
    played.keep()
    assert played.hours()[0].revision == 1
    after = recounted(played)
    assert after.num_differences == 0
    sums = [next(one for one in each.groups if one.group == "used") for each in (before, after)]
    assert sums[0].accounts != sums[1].accounts
    assert sums[0].stored_ms == sums[1].stored_ms


def test_events_without_a_position_count(played: PlayedHour) -> None:
    played_an_hour(played)
    before = recounted(played)
    with played.units.read() as session:
        assert session.scalar(select(Event.id).where(Event.position.is_(None)).limit(1)) is not None
    sequence_once(played.units)
    after = recounted(played)
    assert (after.groups, after.num_events, after.num_differences) == (before.groups, before.num_events, 0)


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ("account = 'idle'", {"cordoned", "used"}),
        ("gpu_ms = ARRAY[gpu_ms[1] - 1], num_ms = num_ms - 1", {"cordoned"}),
        ("gpus = ARRAY['GPU-alpha-0']", {"cordoned"}),
    ],
)
def test_an_entry_that_was_changed_is_found_with_the_events_that_decide(
    played: PlayedHour, change: str, groups: set[str]
) -> None:
    played_an_hour(played)
    with played.units.engine.begin() as connection:
        changed = connection.execute(text(f"UPDATE ledger_entries SET {change} WHERE account = 'cordoned'"))  # noqa: S608
        assert changed.rowcount == 1
    found = recounted(played)
    assert found.num_differences == len(found.differences) > 0
    assert found.difference_ms > 0
    assert {one.hour for one in found.differences} == {FOUR}
    assert groups <= {one.difference.group for one in found.differences}
    own = [one for one in found.differences if one.difference.gpu_uuid == "GPU-alpha-1"]
    assert {"gpu.cordoned", "gpu.uncordoned"} <= {one.kind for one in own[0].events}
    assert recounted(played, limit=1).differences == found.differences[:1]
    assert recounted(played, limit=1).num_differences == found.num_differences
    assert recounted(played, gpu="GPU-alpha-1").differences == own


def test_an_event_that_was_lost_is_a_difference(played: PlayedHour) -> None:
    played_an_hour(played)
    drop_events(played, "kind = 'gpu.override_released'")
    found = recounted(played)
    assert found.difference_ms == 4 * 60_000
    assert {one.difference.group for one in found.differences} == {"unproven", "quarantined"}


def test_a_difference_within_a_gap_is_counted_apart(played: PlayedHour) -> None:
    played_an_hour(played)
    gaps = {"nodes": {played.fleet.node_id: [[0, 180_000], [120_000, 240_000]]}}
    drop_events(played, "kind = 'gpu.override_released'")
    with played.units.engine.begin() as connection:
        connection.execute(
            text("UPDATE ledger_hours SET gaps = CAST(:gaps AS jsonb)").bindparams(gaps=json.dumps(gaps))
        )
    found = recounted(played)
    assert (found.num_differences, found.in_gaps, found.in_gaps_ms) == (0, 1, 240_000)


def test_what_stood_before_the_oldest_event_is_taken_from_records(played: PlayedHour) -> None:
    """A job, a cordon and an override begin before it and end after it."""
    gpu = GpuUuid("GPU-alpha-1")
    played.at(10)
    played.start()
    played.at(20)
    with played.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordon = cordons.create(unit, reason="a cable", gpu_uuid=gpu)
    with played.units.begin(OPERATOR, inventory.OVERRIDE) as unit:
        overrides.override(unit, gpu, Standing.QUARANTINED, until=FIVE + timedelta(minutes=20), reason="heat")
    played.at(45)
    played.fleet.reconcile()
    played.at(55)
    played.host.beat()  # the oldest event that is kept
    played.at(90)
    played.end()
    with played.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id)
    played.at(126)
    played.host.beat()
    played.keep()
    sequence_once(played.units)
    whole = recounted(played, Span(FIVE, SIX))
    drop_events(played, f"at < '{FIVE - timedelta(minutes=6)}'")
    partly = recounted(played, Span(FIVE, SIX))
    assert (whole.num_differences, partly.num_differences) == (0, 0)
    assert partly.groups == whole.groups
    assert {"used", "quarantined", "cordoned", "empty"} <= {one.group for one in partly.groups}
    assert partly.num_events < whole.num_events
    with pytest.raises(ValidationFailedError, match=r"2026-11-21T05:00:00.* or later is accepted"):
        recounted(played, Span(FOUR, SIX))


def test_each_try_of_a_burn_in_counts_and_the_time_between_them_does_not(
    units: UnitOfWorkFactory, clock: SetClock, played: PlayedHour
) -> None:
    host = enrol(units, "beta")
    for order_at, report_at, outcome in ((10, 20, "no torch"), (40, 45, "no torch"), (50, 52, figures())):
        played.at(order_at)
        host.beat()
        order_intake(units)
        (given,) = host.ask().orders
        played.at(report_at)
        host.beat()
        assert host.report(given, outcome)
    played.at(66)
    played.keep()
    found = recounted(played, gpu=host.gpus[0])
    assert found.num_differences == 0
    assert {one.group: one.stored_ms for one in found.groups}["burn_in"] == 17 * 60_000


def test_a_host_that_enrols_within_the_hour_counts_from_then(played: PlayedHour) -> None:
    played.at(15)
    enrol_host(played.units, "beta")
    played.at(66)
    played.host.beat()
    played.keep()
    found = recounted(played)
    assert (found.num_gpus, found.num_differences) == (4, 0)
    assert sum(one.recounted_ms for one in found.groups) == 2 * HOUR_MS + 2 * 45 * 60_000


@pytest.mark.parametrize("is_of_an_earlier_release", [False, True])
def test_a_host_that_a_reboot_proves_clean_counts_until_then(
    played: PlayedHour, *, is_of_an_earlier_release: bool
) -> None:
    """Of two hosts one reboots, and the other one is clean after the attempt's end. An earlier release had no event."""
    other = played_host(played.units, "beta")
    played.at(10)
    other.beat()
    played.start(shape={"nodes": 2, "gpus_per_node": 1})
    attempt_id, fence = played.attempts[0]
    assert other.claim(attempt_id, fence).granted
    other.report(attempt_id, fence, "started")
    played.at(20)
    other.beat()
    played.host.boot_id = "boot-2"
    played.host.beat()
    played.fleet.reconcile()
    played.at(24)
    other.report(attempt_id, fence, "exited", record={"launcher_exit_code": 1})
    played.at(28)
    other.report(attempt_id, fence, "cleaned", record={"clean": True})
    played.at(29)
    other.beat()
    played.host.beat()
    played.at(66)
    other.beat()
    played.host.beat()
    played.keep()
    if is_of_an_earlier_release:
        drop_events(played, "kind = 'attempt.hosts_clean'")
    found = recounted(played)
    assert (found.num_hours, found.num_differences) == (1, 0)
    lost_end = found.not_recounted.get(NotRecounted.LOST_END)
    assert lost_end == ((1, 4 * 60_000) if is_of_an_earlier_release else None)
    assert played.seconds()["cleaning"] == 4 * 60


def test_hours_without_entries_are_named_and_not_compared(played: PlayedHour) -> None:
    played_an_hour(played)
    found = recounted(played, Span(FOUR, FOUR + timedelta(hours=3)))
    assert (found.num_hours, found.num_differences) == (1, 0)
    assert found.not_recounted[NotRecounted.NOT_COMPUTED] == (2, None)
    with played.units.engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger_entries"))
    found = recounted(played)
    assert (found.num_hours, found.groups, found.num_differences) == (0, [], 0)
    assert found.not_recounted == {NotRecounted.DROPPED: (1, 2 * HOUR_MS)}
    assert recounted(played, gpu="GPU-alpha-0").not_recounted == {NotRecounted.DROPPED: (1, HOUR_MS)}


def test_missing_entries_of_one_host_are_a_difference(played: PlayedHour) -> None:
    beta = enrol_host(played.units, "beta")
    played_an_hour(played)
    whole = recounted(played, gpu="GPU-beta-0")
    assert (whole.num_hours, whole.num_differences) == (1, 0)
    with played.units.engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger_entries WHERE node_id = :node_id"), {"node_id": beta})
    found = recounted(played, gpu="GPU-beta-0")
    assert (found.num_hours, found.difference_ms) == (1, HOUR_MS)
    assert NotRecounted.DROPPED not in found.not_recounted
    assert recounted(played).difference_ms == 2 * HOUR_MS


def test_one_gpu_is_recounted_from_its_own_attempts(played: PlayedHour) -> None:
    played.at(10)
    played.start()
    played.at(20)
    played.start()
    played.at(66)
    played.host.beat()
    played.keep()
    with played.units.read() as session:
        taken = {row.gpu_uuid: row.attempt_id for row in session.execute(text(TAKEN))}
    assert len(taken) == 2
    for gpu, attempt_id in taken.items():
        statements: list[Any] = []
        with recorded_subjects(played, statements):
            found = recounted(played, gpu=gpu)
        assert found.num_differences == 0
        named = {name for subjects in statements for name in subjects if name.startswith("att_")}
        assert named == {attempt_id}


def test_what_cannot_be_recounted_is_refused_with_what_is_accepted(played: PlayedHour) -> None:
    played_an_hour(played)
    for span, how, match in (
        (Span(FIVE, FOUR), {}, "before"),
        (Span(FOUR, FOUR + timedelta(days=32)), {}, "31 days"),
        (Span(FOUR, FIVE), {"gpu": "GPU-none"}, "no such GPU"),
    ):
        with pytest.raises(ValidationFailedError, match=match):
            recounted(played, span, **how)
    with pytest.raises(ForbiddenError), played.units.begin(played.fleet.tenant, read.READ, dry_run=True) as unit:
        recount(unit, Span(FOUR, FIVE))


def test_more_gpu_hours_than_one_request_takes_are_refused(played: PlayedHour, monkeypatch: pytest.MonkeyPatch) -> None:
    played_an_hour(played)
    monkeypatch.setattr(recounting, "MOST_GPU_HOURS", 2)
    assert recounted(played).num_hours == 1
    with pytest.raises(ValidationFailedError, match="4 GPU hours; 2 at most"):
        recounted(played, Span(FOUR, SIX))
    assert recounted(played, Span(FOUR, SIX), gpu="GPU-alpha-0").num_gpus == 1
