"""The page of a host: what its agent reports of itself."""

from control.fleet import inventory
from muster.db.models import NodeLatest
from muster.domain.principals import system_principal
from tests.console.conftest import Console


def test_the_agents_line_is_of_its_newest_report(seen: Console) -> None:
    page = f"/console/nodes/{seen.fleet.node_id}"
    assert "Agent no report yet" in seen.text(page)
    with seen.units.begin(system_principal("judge"), inventory.READ, quiet=True) as unit:
        latest = NodeLatest(node_id=seen.fleet.node_id, at=unit.now, received_at=unit.now)
        latest.readings = {"agent_version": "0.1.0", "port_throughput": [["mlx5_0/1", 25e9, 1.5e6, 400.0]]}
        unit.session.add(latest)
    assert "Agent 0.1.0" in seen.text(page)
    assert "mlx5_0/1 25 GB/s 1.5 MB/s 400 Gb/s 50%" in seen.text(page)
