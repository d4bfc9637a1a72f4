"""The probe responders are counted over the fleet once in a while, not for each host that asks."""

import pytest
from sqlalchemy import update

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.hosts import probe_responders, rack_pairs
from control.hosts.probe_responders import COUNTED_FOR, ProbeResponders
from muster.db.models import Node, NodeLatest, PairProbeResponder
from muster.domain.ids import NodeId
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host


class Hosts:
    """Hosts that answer, and one count of them."""

    def __init__(self, units: UnitOfWorkFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units, self.num_counts, self.answering = units, 0, ProbeResponders()
        count = rack_pairs.racks_of

        def counted(*given: object, **more: object) -> object:
            self.num_counts += 1
            return count(*given, **more)  # type: ignore[arg-type]  # handed on

        monkeypatch.setattr(probe_responders, "racks_of", counted)

    def add(self, name: str, rack: str | None = None, *, is_simulated: bool = True) -> NodeId:
        node = enrol_host(self.units, name, rack=rack)
        with self.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            unit.session.execute(update(Node).where(Node.id == node).values(is_simulated=is_simulated))
            unit.session.add(NodeLatest(node_id=node, boot_id="boot-1", received_at=unit.now))
            unit.session.add(PairProbeResponder(node_id=node, session="s", port=9420, reported_at=unit.now))
        return node

    def around(self, node: NodeId) -> dict[str, list[NodeId]]:
        with self.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            since = unit.now - 2 * COUNTED_FOR
            asking = unit.session.get_one(Node, node)
            found = self.answering.around(unit.session, asking, unit.now, reported_since=since, contact_since=since)
        return {rack: list(hosts) for rack, hosts in found.items()}


@pytest.fixture
def hosts(units: UnitOfWorkFactory, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(units, monkeypatch)


def test_hosts_that_ask_one_after_the_other_are_counted_once(hosts: Hosts, clock: SetClock) -> None:
    nodes = [hosts.add("a", "r1"), hosts.add("b", "r1"), hosts.add("c")]
    wanted = {"r1": sorted(nodes[:2]), "": nodes[2:]}
    assert [hosts.around(node) for node in nodes] == [wanted] * 3
    assert hosts.num_counts == 1
    clock.advance(COUNTED_FOR.total_seconds())
    hosts.around(nodes[0])
    assert hosts.num_counts == 2


def test_what_comes_after_the_count_is_there_for_itself_and_for_those_what_ask_later(hosts: Hosts) -> None:
    first = hosts.add("a", "r1")
    hosts.around(first)
    late = hosts.add("b", "r2")
    assert hosts.around(late) == hosts.around(first) == {"r1": [first], "r2": [late]}
    assert hosts.num_counts == 1


def test_simulated_hosts_and_real_ones_are_counted_apart(hosts: Hosts) -> None:
    simulated, real = hosts.add("a"), hosts.add("b", is_simulated=False)
    assert (hosts.around(simulated), hosts.around(real)) == ({"": [simulated]}, {"": [real]})


def test_a_clock_that_was_set_back_counts_again(hosts: Hosts, clock: SetClock) -> None:
    node = hosts.add("a")
    hosts.around(node)
    clock.advance(-5)
    hosts.around(node)
    assert hosts.num_counts == 2
