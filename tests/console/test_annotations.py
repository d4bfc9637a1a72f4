"""Marks on charts: faults, and what changed, as far as the reader may see them."""

from datetime import timedelta

from console.annotations import marks_in
from console.ranges import Stretch
from control.core import events
from control.fleet.driver_refresh import refresh_drivers_once
from muster.db.models import Event, NodeLatest
from muster.domain.principals import Principal, Role, system_principal
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR


def marks(seen: Console, days: int, principal: Principal = OPERATOR) -> list[str]:
    with seen.units.begin(principal, events.READ, dry_run=True, quiet=True) as unit:
        found = marks_in(unit, Stretch(unit.now - timedelta(days=days), unit.now + timedelta(minutes=1)))
    return [f"{mark['label']} {mark['words']}" for mark in found if "driver" in mark["words"]]


def test_an_upgrade_of_drivers_is_one_mark(seen: Console) -> None:
    seen.fleet.beat()
    with seen.units.begin(OPERATOR, events.READ, quiet=True) as unit:
        latest = NodeLatest(node_id=seen.fleet.node_id, at=unit.now, received_at=unit.now)
        latest.readings = {"driver_version": "999.1"}
        unit.session.merge(latest)
    num_gpus = refresh_drivers_once(seen.units, system_principal("fleet"))
    with seen.units.begin(OPERATOR, events.READ, quiet=True) as unit:
        unit.session.query(Event).filter(Event.position.is_(None)).update({Event.position: Event.serial})
    assert num_gpus
    assert marks(seen, 7) == [f"▲ driver 999.1 on {num_gpus} GPUs"]
    assert marks(seen, 30) == [], "too many events to look through"
    member = Principal(name="m", role=Role.TENANT_MEMBER, tenant_id=seen.other_tenant)
    assert marks(seen, 7, member) == []
