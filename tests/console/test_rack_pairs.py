"""The page of the network between racks."""

from typing import Any

from sqlalchemy import update

from control.fleet import inventory
from muster.db.models import Node
from muster.domain.principals import system_principal
from tests.console.conftest import Console
from tests.fleet_factory import enrol_host
from tests.stored_signals import add_signal


def test_the_worst_pair_of_racks_is_named_first_with_loss_and_round_trips(seen: Console) -> None:
    assert "No host has reported another" in seen.text("/console/rack-pairs")
    beta, gamma = enrol_host(seen.units, "beta", rack="r2"), enrol_host(seen.units, "gamma", rack="r3")
    told = {"window_s": 60.0, "sent": 1000.0, "round_trip_p50_us": 20.0, "round_trip_p99_us": 1_500.0}
    with seen.units.begin(system_principal("judge"), inventory.READ, quiet=True) as unit:
        unit.session.execute(update(Node).where(Node.id == seen.fleet.node_id).values(rack="r1"))
        for node, peer, lost in ((beta, gamma, 5.0), (seen.fleet.node_id, beta, 250.0), (beta, beta, 0.0)):
            values = {**told, "lost": lost}
            place: dict[str, Any] = {"node_id": node, "text": peer, "values": values}
            add_signal(unit, None, kind="pair_probe", code=None, source="host", signal_id=f"{node}-{peer}", **place)
    page = seen.text("/console/rack-pairs")
    first, second, third = (page.index(each) for each in ("r1 and r2", "r2 and r3", "0.00 %"))
    assert first < second < third
    assert "r1 and r2 1 1,000 25.00 % 20 µs 1.5 ms" in page, page


def test_a_tenant_sees_no_racks(seen: Console) -> None:
    assert seen.get("/console/rack-pairs", "tenant_member").status_code == 403
