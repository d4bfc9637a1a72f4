"""Maintenance windows: what they keep out, what is refused, and when they stand."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, inventory, maintenance
from control.fleet.maintenance import LONGEST, Window
from control.fleet.types import CordonRecord
from muster.db.models import AuditEntry, Event
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host


def declare(units: UnitOfWorkFactory, *, starts_in_s: float | None = None, last_s: float = 600) -> CordonRecord:
    with units.begin(OPERATOR, maintenance.DECLARE) as unit:
        starts_at: datetime | None = None if starts_in_s is None else unit.now + timedelta(seconds=starts_in_s)
        until = (starts_at or unit.now) + timedelta(seconds=last_s)
        return maintenance.declare(unit, "alpha", reason="new optics", until=until, starts_at=starts_at)


def is_cordoned(units: UnitOfWorkFactory) -> bool:
    with units.read() as session:
        (view,) = inventory.gpu_views(session, units.clock(), DEFAULT_POLICY.health)
        return view.facts.is_cordoned


def test_a_window_keeps_new_work_out_from_its_start_to_its_end(units: UnitOfWorkFactory, clock: SetClock) -> None:
    enrol_host(units, "alpha", num_gpus=1)
    cordon = declare(units, starts_in_s=60)
    assert not is_cordoned(units)
    with units.begin(OPERATOR, cordons.READ, quiet=True) as unit:
        assert [each.id for each in cordons.list_open(unit)] == [cordon.id], "what is to come is listed too"
    clock.advance(60)
    assert is_cordoned(units)
    clock.advance(600)
    assert not is_cordoned(units)


def test_it_leaves_an_event_and_an_entry_in_the_audit(units: UnitOfWorkFactory) -> None:
    enrol_host(units, "alpha", num_gpus=1)
    cordon = declare(units, starts_in_s=60)
    with units.read() as session:
        (event,) = session.scalars(select(Event).where(Event.kind == "node.cordoned"))
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "node.maintenance"))
    assert cordon.starts_at is not None
    assert (event.payload["reason_code"], event.payload["starts_at"]) == ("maintenance", cordon.starts_at.isoformat())
    assert (entry.reason, entry.detail["cordon_id"]) == ("new optics", cordon.id)


@pytest.mark.parametrize(
    ("starts_in_s", "last_s", "field"),
    [(-1, 600, "/starts_at"), (None, 0, "/until"), (60, -1, "/until"), (None, LONGEST.total_seconds() + 1, "/until")],
)
def test_what_is_no_window_is_refused_by_its_field(
    units: UnitOfWorkFactory, starts_in_s: float | None, last_s: float, field: str
) -> None:
    enrol_host(units, "alpha", num_gpus=1)
    with pytest.raises(ValidationFailedError) as refused:
        declare(units, starts_in_s=starts_in_s, last_s=last_s)
    assert field in str(refused.value)


def test_a_node_that_is_not_there_has_none(units: UnitOfWorkFactory) -> None:
    with pytest.raises(NotFoundError):
        declare(units)


def test_one_that_was_released_ended_then_and_one_that_is_over_is_still_known(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    node_id = enrol_host(units, "alpha", num_gpus=1)
    began_ms = to_ms(clock.now)
    cordon = declare(units)
    clock.advance(100)
    with units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id)
    clock.advance(86_400)
    with units.begin(OPERATOR, cordons.READ, quiet=True) as unit:
        (window,) = maintenance.windows_of(unit, [node_id])[node_id]
    assert window == Window(began_ms, began_ms + 100_000)
    assert [window.holds(began_ms + ms) for ms in (-1, 0, 99_999, 100_000)] == [False, True, True, False]
