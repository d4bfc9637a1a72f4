"""Utilisation from telemetry: by GPU and assignment, before and after compaction, whichever host a GPU is in."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import gpu_figures
from control.ledger.figure_rows import Tally
from control.ledger.gpu_figures import count_gpus_once
from control.telemetry.compaction import compact_once
from ledger.figures.definitions import Source
from muster.db.models import AllocationGpu, FigureHour, TelemetryBlock, TelemetryChunk
from muster.domain.times import to_ms
from muster.failpoints import FailpointError, arming
from tests.control.ledger.figure_case import Lived
from tests.control.telemetry.conftest import GPU, OTHER, Stored
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import reading, report


def send(placed: Lived, stored: Stored, percents: list[tuple[float | None, float | None]], *, start: int = 0) -> None:
    """Store a sample each ten seconds of both GPUs, from the beginning on."""
    stored.clock.now = placed.at(30)
    stored.take(
        *(
            report(
                start + number,
                to_ms(placed.begin) + 10_000 * (start + number),
                reading(GPU, utilisation_percent=one),
                reading(OTHER, utilisation_percent=other),
                is_history=True,
            )
            for number, (one, other) in enumerate(percents)
        )
    )


def end_attempt(placed: Lived, minutes: float) -> None:
    placed.change("UPDATE attempts SET state = 'STOPPING'")
    placed.change("UPDATE attempts SET state = 'ENDED', cause = 'succeeded', ended_at = :at", at=placed.at(minutes))


def assigned_gpu(placed: Lived) -> str:
    with placed.units.read() as session:
        return str(session.scalars(select(AllocationGpu.gpu_uuid)).one())


def both(placed: Lived, percent: float, rest: float | None) -> tuple[float | None, float | None]:
    """Return the samples of both GPUs. ``percent``: of the one that is assigned."""
    return (percent, rest) if assigned_gpu(placed) == GPU else (rest, percent)


def test_assigned_and_free_time_are_apart(stored: Stored, placed: Lived) -> None:
    rows = [both(placed, 90.0, 10.0)] * 30 + [both(placed, 50.0, None)] * 30 + [both(placed, 0.0, 0.0)] * 30
    send(placed, stored, rows)
    end_attempt(placed, 10)
    stored.clock.now = placed.at(121)
    assert count_gpus_once(stored.units)
    (assigned,) = [one for one in placed.answer("gpu_utilisation", by="tenant").series if one.group]
    assert assigned.whole.value == pytest.approx(70.0)
    assert assigned.whole.sums["assigned"].num == 60
    assert assigned.whole.sums["sustained"].sketch.percentile(0.5) == pytest.approx(70.0, rel=0.01)
    assert placed.nums("gpu_utilisation")["free"] == 30 + 30 + 30
    before = placed.facts()
    while count_gpus_once(stored.units):
        pass
    assert placed.facts() == before, "hours before it have no samples, and it is not due again"


def test_hours_are_the_same_after_compaction_with_late_reports(stored: Stored, placed: Lived) -> None:
    rows = [both(placed, float(number), None) for number in range(60)]
    send(placed, stored, rows[:40])
    stored.clock.now = placed.at(180)
    assert compact_once(stored.units) == 1
    send(placed, stored, rows[40:], start=40)
    with stored.units.read() as session:
        assert session.scalar(select(func.count()).select_from(TelemetryChunk)) == 1
        assert session.scalar(select(func.count()).select_from(TelemetryBlock)) == 20
    stored.clock.now = placed.at(121)
    assert count_gpus_once(stored.units)
    assert placed.value("gpu_utilisation") == pytest.approx(sum(range(60)) / 60)


def test_a_reading_process_that_dies_leaves_its_claim_for_a_while(stored: Stored, placed: Lived) -> None:
    send(placed, stored, [both(placed, 80.0, None)] * 6)
    stored.clock.now = placed.at(121)
    with arming(f"{gpu_figures.COUNT}.before_commit=raise"), pytest.raises(FailpointError):
        count_gpus_once(stored.units)
    while count_gpus_once(stored.units):
        pass
    assert placed.value("gpu_utilisation") is None, "another process leaves it alone"
    stored.clock.now += gpu_figures.CLAIMED_FOR
    assert count_gpus_once(stored.units)
    assert placed.value("gpu_utilisation") == pytest.approx(80.0)


def test_a_process_whose_claim_has_passed_stores_nothing(
    stored: Stored, placed: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(placed, stored, [both(placed, 80.0, None)] * 6)
    stored.clock.now = placed.at(121)
    read_hour = gpu_figures.read_hour

    def read_slowly(units: UnitOfWorkFactory, hour: datetime) -> Tally:
        found = read_hour(units, hour)
        with units.begin(OPERATOR, gpu_figures.CLAIM, quiet=True) as unit:
            later = update(FigureHour).where(FigureHour.source == Source.GPUS)
            unit.session.execute(later.values(claimed_until=unit.now + timedelta(hours=1)))
        return found

    monkeypatch.setattr(gpu_figures, "read_hour", read_slowly)
    assert not count_gpus_once(stored.units)
    assert placed.value("gpu_utilisation") is None
