"""Rates of a host's ports, from counters in a tree of files that a test writes: each port once, and no false rate."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.host.throughput import PortMeter
from muster.wire.telemetry import PortThroughput
from tests.agents.host.trees import HostTree

CARD = "sys/devices/card0"
PORT = "sys/class/infiniband/mlx5_0/ports/1/counters"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


class Metered:
    """A meter that is read each ten seconds, and at other times that a test names."""

    def __init__(self, tree: HostTree) -> None:
        self._meter = PortMeter(tree.root / "sys")
        self._now_s = 5_000.0

    def after(self, seconds: float = 10.0) -> dict[str, tuple[float, float, float | None]]:
        self._now_s += seconds
        return {one.port: _rates(one) for one in self._meter.read(self._now_s)}


def _rates(one: PortThroughput) -> tuple[float, float, float | None]:
    return one.sent_bytes_per_s, one.received_bytes_per_s, one.link_gbps


def bytes_of(tree: HostTree, sent: int, received: int, *, interface: str = "eth0") -> None:
    tree.write(f"sys/class/net/{interface}/statistics/tx_bytes", f"{sent}\n")
    tree.write(f"sys/class/net/{interface}/statistics/rx_bytes", f"{received}\n")


def words_of(tree: HostTree, sent: int, received: int) -> None:
    """Write the counters of the RDMA port, which count words of four bytes."""
    tree.write(f"{PORT}/port_xmit_data", f"{sent}\n")
    tree.write(f"{PORT}/port_rcv_data", f"{received}\n")


def test_rates_begin_with_the_second_reading_and_are_exact_beyond_2_to_the_53(tree: HostTree) -> None:
    tree.ethernet()
    tree.infiniband()
    bytes_of(tree, (1 << 60) + 1, 7)
    words_of(tree, 1 << 61, 1 << 61)
    meter = Metered(tree)
    assert meter.after() == {}
    bytes_of(tree, (1 << 60) + 11, 1_007)
    words_of(tree, (1 << 61) + 100_000_000_000, (1 << 61) + 25)
    assert meter.after() == {"eth0": (1, 100, 100), "mlx5_0/1": (40_000_000_000, 10, 400)}
    assert meter.after(20) == {"eth0": (0, 0, 100), "mlx5_0/1": (0, 0, 400)}


def test_a_counter_that_fell_or_leapt_or_was_not_read_for_long_is_a_gap(tree: HostTree) -> None:
    tree.ethernet(speed="100000")
    bytes_of(tree, 1_000_000, 0)
    meter = Metered(tree)
    meter.after()
    bytes_of(tree, 500, 0)
    assert meter.after() == {}, "it was reset, or wrapped around"
    bytes_of(tree, 1_500, 0)
    assert meter.after() == {"eth0": (100, 0, 100)}
    bytes_of(tree, 1 << 62, 0)
    assert meter.after() == {}, "more than the link can carry"
    bytes_of(tree, (1 << 62) + 10, 0)
    assert meter.after() == {"eth0": (1, 0, 100)}
    assert meter.after(400) == {}, "a mean over minutes is no rate of one sample"


def test_a_reading_right_after_another_repeats_its_rate(tree: HostTree) -> None:
    tree.ethernet()
    bytes_of(tree, 0, 0)
    meter = Metered(tree)
    meter.after()
    bytes_of(tree, 5_000, 0)
    first = meter.after()
    bytes_of(tree, 5_500, 0)
    assert meter.after(0.2) == first
    assert meter.after(0.8) == {"eth0": (500, 0, 100)}


def down(tree: HostTree) -> None:
    tree.ethernet(carrier="0")


def unreadable(tree: HostTree) -> None:
    tree.write("sys/class/net/eth0/statistics/tx_bytes", "12 34\n")


@pytest.mark.parametrize("change", [down, unreadable], ids=lambda change: change.__name__)
def test_a_port_that_is_down_or_unreadable_gives_nothing_and_begins_again(
    tree: HostTree, change: Callable[[HostTree], None]
) -> None:
    tree.ethernet()
    bytes_of(tree, 0, 0)
    meter = Metered(tree)
    meter.after()
    change(tree)
    assert meter.after() == {}
    tree.ethernet()
    bytes_of(tree, 9_000, 0)
    assert meter.after() == {}, "its first reading"
    bytes_of(tree, 9_100, 0)
    assert meter.after() == {"eth0": (10, 0, 100)}


def test_a_card_that_is_plugged_in_is_found_within_a_minute(tree: HostTree) -> None:
    meter = Metered(tree)
    meter.after()
    tree.ethernet()
    bytes_of(tree, 9_000, 0)
    meter.after(60)
    bytes_of(tree, 9_100, 0)
    assert meter.after() == {"eth0": (10, 0, 100)}
    shutil.rmtree(tree.root / "sys/class/net/eth0")
    assert meter.after() == {}, "a removal shows at once"


def test_a_virtual_interface_or_function_is_no_port_and_a_saturated_counter_no_rate(tree: HostTree) -> None:
    bytes_of(tree, 5, 5, interface="docker0")
    tree.ethernet(name="eth0v0")
    bytes_of(tree, 5, 5, interface="eth0v0")
    tree.write("sys/class/net/eth0v0/device/physfn/vendor", "0x15b3\n")
    tree.infiniband()
    words_of(tree, (1 << 32) - 1, 0)
    meter = Metered(tree)
    meter.after()
    assert meter.after() == {}


def card_with_interface(tree: HostTree, name: str = "ens1") -> None:
    """Make one card that is both an RDMA port and an interface, as sysfs links them."""
    tree.infiniband()
    tree.ethernet(name=name)
    (tree.root / "sys/class/net" / name / "device/infiniband/mlx5_0").mkdir(parents=True)
    folder = tree.root / "sys/class/infiniband/mlx5_0/device/net"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(tree.root / "sys/class/net" / name)
    tree.write(f"sys/class/net/{name}/dev_port", "0\n")


@pytest.mark.parametrize(("words", "interface", "sent"), [(250, 1_000, 100), (250, 9_000, 900), (9_000, 1_000, 3_600)])
def test_a_card_that_shows_twice_counts_once_by_its_greater_counter(
    tree: HostTree, words: int, interface: int, sent: int
) -> None:
    card_with_interface(tree)
    words_of(tree, 0, 0)
    bytes_of(tree, 0, 0, interface="ens1")
    meter = Metered(tree)
    meter.after()
    words_of(tree, words, 0)
    bytes_of(tree, interface, 0, interface="ens1")
    assert meter.after() == {"mlx5_0/1": (sent, 0, 400)}


def test_the_interface_of_another_port_of_the_card_is_not_this_ports(tree: HostTree) -> None:
    card_with_interface(tree)
    tree.write("sys/class/net/ens1/dev_port", "1\n")
    words_of(tree, 0, 0)
    bytes_of(tree, 0, 0, interface="ens1")
    meter = Metered(tree)
    meter.after()
    bytes_of(tree, 9_000, 0, interface="ens1")
    assert meter.after() == {"mlx5_0/1": (0, 0, 400)}
