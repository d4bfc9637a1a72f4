"""Ports of network cards: their events, which are missed, and what a card that hangs delays."""

import os
import threading
from pathlib import Path

import pytest

from agents.events.naming import Naming
from agents.host import ports
from agents.host.events import HostPlaces, HostTeller
from agents.host.inventory import PORTS_FILE
from agents.host.ports import ports_under, rdma_ports_under
from agents.probes.interface import ProbeEvent
from muster.domain.evidence.findings import EventKind
from muster.domain.evidence.state_readings import PORT_COUNTERS
from tests.agents.host.played_host import Host, of
from tests.waiting import wait_until


def with_inventory(host: Host, session: str) -> None:
    """Another life of the agent, which keeps the ports that it saw."""
    places = HostPlaces(root=host.tree.root, folders=(host.tree.root,), ports_file=host.tree.root / PORTS_FILE)
    host.teller = HostTeller(Naming(session), places)


def test_a_port_that_is_slower_than_ever_is_reported_with_its_best_rate_also_by_another_life(host: Host) -> None:
    with_inventory(host, "1")
    assert host.ports()[0].values["best_rate_gbps"] == 400
    host.tree.write("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (2X HDR)\n")
    with_inventory(host, "2")
    values = host.ports()[0].values
    assert (values["rate_gbps"], values["best_rate_gbps"]) == (200, 400)
    (host.tree.root / PORTS_FILE).unlink()
    with_inventory(host, "3")
    assert host.ports()[0].values["best_rate_gbps"] == 200, "a person deleted the file"


def test_a_card_that_is_gone_before_the_agent_begins_is_missed(host: Host) -> None:
    with_inventory(host, "1")
    (state,) = of(EventKind.HOST_STATE, host.minute())
    assert (state.values["expected_ports"], state.values["found_ports"]) == (1, 1)
    (host.tree.root / "sys/class/infiniband/mlx5_0").rename(host.tree.root / "gone")
    with_inventory(host, "2")
    (state,) = of(EventKind.HOST_STATE, host.minute())
    assert (state.values["expected_ports"], state.values["found_ports"]) == (1, 0)


def enrolled_with(host: Host, *ports: str) -> None:
    """A life of the agent whose host enrolled with these ports."""
    root = host.tree.root
    places = HostPlaces(root=root, ports_file=root / PORTS_FILE, enrolled_ports=frozenset(ports))
    host.teller = HostTeller(Naming("1"), places)


def missing_in(events: list[ProbeEvent]) -> dict[str, float]:
    return {event.text: event.values["is_missing"] for event in events if "is_missing" in event.values}


def test_a_port_that_the_host_enrolled_with_is_missed_by_name_until_it_is_back(host: Host) -> None:
    enrolled_with(host, "mlx5_0/1", "mlx5_1/1")
    told = host.minute()
    assert missing_in(told) == {"mlx5_0/1": 0, "mlx5_1/1": 1}
    (missed,) = (event for event in told if event.text == "mlx5_1/1")
    assert "state" not in missed.values, "what is not there has no state"
    assert missing_in(host.minute()) == {}, "reported once"
    host.tree.infiniband(device="mlx5_1")
    assert missing_in(host.minute()) == {"mlx5_1/1": 0}
    (host.tree.root / "sys/class/infiniband/mlx5_1").rename(host.tree.root / "gone")
    told = host.minute()
    assert missing_in(told) == {"mlx5_1/1": 1}
    (counted,) = (event for event in told if event.kind is EventKind.HOST_STATE)
    assert (counted.values["expected_ports"], counted.values["found_ports"]) == (1, 1), "it is not missed twice"


def test_of_a_host_whose_sysfs_shows_nothing_no_port_is_missing(host: Host) -> None:
    enrolled_with(host, "mlx5_0/1")
    (host.tree.root / "sys").rename(host.tree.root / "gone")
    assert missing_in(host.minute()) == {}


def test_a_port_by_a_new_name_stands_for_one_that_the_host_enrolled_with(host: Host) -> None:
    enrolled_with(host, "ibp24s0/1", "ibp41s0/1")
    assert missing_in(host.minute()) == {"ibp41s0/1": 1}, "mlx5_0 is one of them"


def test_the_rdma_ports_that_are_there_are_named_for_enrolment(host: Host) -> None:
    host.tree.infiniband("1: DOWN", device="mlx5_1")
    assert rdma_ports_under(host.tree.root) == {"mlx5_0/1", "mlx5_1/1"}
    assert rdma_ports_under(host.tree.root / "nowhere") == rdma_ports_under(None) == frozenset()


@pytest.mark.parametrize("content", [b"\xff\x00", b"[]", b'{"mlx5_0/1": "fast"}'])
def test_an_inventory_that_cannot_be_read_is_begun_again(host: Host, content: bytes) -> None:
    (host.tree.root / PORTS_FILE).write_bytes(content)
    with_inventory(host, "1")
    assert host.ports()[0].values["best_rate_gbps"] == 400
    with_inventory(host, "2")
    assert host.ports()[0].values["best_rate_gbps"] == 400


def test_a_port_that_went_down_and_came_back_states_for_how_long(host: Host) -> None:
    host.minute()
    host.tree.infiniband("1: DOWN")
    (down,) = host.ports()
    assert (down.text, down.values["state"], down.values["physical_state"]) == ("mlx5_0/1", 1, 2)
    assert host.ports() == []
    host.tree.infiniband()
    (up,) = host.ports(15)
    assert (up.values["state"], up.values["was_down_s"]) == (4, 25)
    (again,) = host.ports(3_600)[:1]
    assert "was_down_s" not in again.values


def test_a_port_whose_state_cannot_be_read_for_once_neither_fell_nor_rose(host: Host) -> None:
    host.minute()
    host.tree.infiniband("1: DOWN")
    host.ports()
    host.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "gremlins")
    assert host.ports() == []
    host.tree.infiniband()
    (up,) = host.ports()
    assert up.values["was_down_s"] == 20


def test_a_card_that_is_gone_is_a_port_that_is_down(host: Host) -> None:
    host.minute()
    (host.tree.root / "sys/class/infiniband/mlx5_0").rename(host.tree.root / "gone")
    (gone,) = host.ports()
    assert (gone.text, gone.values["state"]) == ("mlx5_0/1", 1)
    (host.tree.root / "sys").rename(host.tree.root / "no-sysfs")
    assert host.ports() == []


def test_an_interface_without_hardware_is_no_port(host: Host) -> None:
    host.tree.write("sys/class/net/docker0/carrier", "0\n")
    assert set(ports_under(host.tree.root / "sys")) == {"mlx5_0", "eth0"}


def test_a_roce_port_states_that_it_is_ethernet(host: Host) -> None:
    host.tree.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
    assert host.ports()[0].values["is_ethernet"] == 1


def test_an_interface_taken_down_by_a_person_is_down(host: Host) -> None:
    """The kernel then answers EINVAL for its carrier."""
    (host.tree.root / "sys/class/net/eth0/carrier").unlink()
    host.tree.write("sys/class/net/eth0/operstate", "down\n")
    (event,) = [event for event in host.ports() if event.text == "eth0"]
    assert (event.values["state"], event.values["physical_state"]) == (1, 3)


def test_a_cable_that_is_pulled_is_no_persons_doing(host: Host) -> None:
    host.minute()
    host.tree.write("sys/class/net/eth0/carrier", "0\n")
    (event,) = host.ports()
    assert (event.values["state"], event.values["physical_state"], event.values["was_active"]) == (1, 2, 1)


def test_a_port_that_never_had_a_cable_reports_it_and_one_that_was_up_before_the_agent_began_too(host: Host) -> None:
    host.tree.infiniband("1: DOWN")
    host.tree.port_counter("link_downed", 0)
    host.tree.write("sys/class/net/eth0/carrier", "0\n")
    host.tree.write("sys/class/net/eth0/carrier_up_count", "1\n")
    told = {event.text: event.values["was_active"] for event in host.ports()}
    assert told == {"mlx5_0/1": 0, "eth0": 1}


def test_a_port_whose_state_could_not_be_read_was_not_seen_up(host: Host) -> None:
    host.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "gremlins")
    host.ports()
    host.tree.infiniband("1: DOWN")
    (event,) = host.ports()
    assert (event.values["state"], event.values["was_active"]) == (1, 0)


def test_a_card_that_hangs_when_requested_whether_it_was_up_holds_up_itself_alone_and_reports_it_later(
    host: Host,
) -> None:
    host.tree.infiniband("1: DOWN")
    pipe = host.tree.root / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    told: list[ProbeEvent] = []
    look = threading.Thread(target=lambda: told.extend(host.ports()), daemon=True)
    look.start()
    look.join(60)
    has_returned = not look.is_alive()
    pipe.write_text("3\n", encoding="ascii")  # which lets it go
    look.join(60)
    assert has_returned
    assert {event.text: event.values["was_active"] for event in told} == {"mlx5_0/1": 0, "eth0": 1}
    pipe.unlink()
    host.tree.port_counter("link_downed", 3)
    later: list[ProbeEvent] = []

    def is_reported() -> bool:
        later.extend(host.ports())
        return bool(later)

    wait_until(is_reported)
    (event,) = later
    assert (event.text, event.values["state"], event.values["was_active"]) == ("mlx5_0/1", 1, 1)


@pytest.mark.parametrize("name", PORT_COUNTERS)
def test_each_counter_of_a_port_is_reported_when_it_rose_and_only_then(host: Host, name: str) -> None:
    host.tree.port_counter(name, 5, "hw_counters")
    host.tree.port_counter("port_rcv_errors" if name != "port_rcv_errors" else "symbol_error", 2)
    host.minute()
    host.tree.port_counter(name, 12, "hw_counters")
    (event,) = host.minute()
    assert (event.kind, event.text, event.values) == (EventKind.PORT_RATES, "mlx5_0/1", {"window_s": 60, name: 7})
    host.tree.port_counter(name, 1, "hw_counters")
    assert host.minute() == [], "it fell: a reset"


def test_an_interfaces_own_counters_are_read_where_the_kernel_has_them(host: Host) -> None:
    host.tree.write("sys/class/net/eth0/carrier_changes", "2\n")
    host.tree.write("sys/class/net/eth0/statistics/rx_errors", "0\n")
    host.minute()
    host.tree.write("sys/class/net/eth0/carrier_changes", "4\n")
    host.tree.write("sys/class/net/eth0/statistics/rx_errors", "9\n")
    (event,) = host.minute()
    assert (event.text, event.values) == ("eth0", {"window_s": 60, "carrier_changes": 2, "rx_errors": 9})


def test_a_card_that_does_not_answer_holds_up_itself_alone_and_is_named_once(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host.minute()
    answered = threading.Event()
    read = ports._infiniband

    def hanging(port: Path) -> dict[str, float]:
        answered.wait(120)
        return read(port)

    monkeypatch.setattr(ports, "_infiniband", hanging)
    host.tree.write("sys/class/net/eth0/carrier", "0\n")
    try:
        told = {event.text: event.values["state"] for event in host.ports()}
        host.ports()
    finally:
        answered.set()
    assert told == {"eth0": 1}, "of the other nothing is known, so it neither fell nor is it gone"
    said = ""

    def answers_again() -> bool:
        nonlocal said
        host.ports()
        said += "".join(capsys.readouterr())
        return "ports_answer_again" in said

    wait_until(answers_again)
    (line,) = [line for line in said.splitlines() if "ports_do_not_answer" in line]
    assert "mlx5_0" in line
