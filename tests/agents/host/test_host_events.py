"""A host, on trees that a test writes: its events, their times, and the effect of bad files."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.events.naming import Naming
from agents.host.condition import disks
from agents.host.events import HostPlaces, HostTeller
from agents.host.files import read_text
from agents.probes.deadline import Callers
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import (
    HOST_RATES,
    HOST_READING_TEXTS,
    HOST_STATE,
    PORT_RATES,
    PORT_STATE,
    words_in,
)
from tests.agents.host.played_host import WALL_MS, Host, of


def test_a_quiet_host_reports_itself_and_its_ports_once(host: Host) -> None:
    events = host.minute()
    assert [(event.kind, event.text) for event in events] == [
        (EventKind.PORT_STATE, "mlx5_0/1"),
        (EventKind.PORT_STATE, "eth0"),
        (EventKind.HOST_STATE, ""),
    ]
    assert {event.source for event in events} == {Source.HOST}
    assert events[0].values == {"state": 4, "physical_state": 5, "rate_gbps": 400, "is_ethernet": 0, "was_active": 1}
    assert events[1].values == {"state": 4, "physical_state": 5, "rate_gbps": 100, "is_ethernet": 1, "was_active": 1}
    not_here = {"drivers", "clock_offset_s", "expected_ports", "found_ports", "read_only_disks"}
    told_beside = {"vbios_differs", "persistence_differs", "clocks_differ"}
    assert {*events[2].values, "inodes_free_fraction"} == set(HOST_STATE) - not_here - told_beside
    assert [host.minute() for _ in range(20)] == [[]] * 20


def test_kernel_and_network_cards_firmware_and_driver_are_reported_in_words(host: Host) -> None:
    host.tree.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    host.tree.write("sys/module/mlx5_core/version", "24.04-0.6.6\n")
    for card, firmware in (("mlx5_0", "28.39.1002"), ("mlx5_1", "28.39.1002"), ("mlx5_2", "28.40.1000")):
        host.tree.write(f"sys/class/infiniband/{card}/fw_ver", f"{firmware}\n")
    host.tree.write("sys/class/infiniband/mlx5_9/fw_ver", "1.0\n")
    host.tree.write("sys/class/infiniband/mlx5_9/device/physfn/vendor", "0x15b3\n")
    (state,) = of(EventKind.HOST_STATE, host.minute())
    told = {
        "kernel_release": "6.8.0-45-generic",
        "nic_driver": "24.04-0.6.6",
        "nic_firmware": "28.39.1002+28.40.1000",
    }
    assert words_in(state.text, HOST_READING_TEXTS) == told
    assert "kernel" not in state.origin
    assert of(EventKind.HOST_STATE, host.minute()) == []
    host.tree.write("sys/class/infiniband/mlx5_2/fw_ver", "28.39.1002\n")
    (state,) = of(EventKind.HOST_STATE, host.minute())
    assert words_in(state.text, HOST_READING_TEXTS) == {**told, "nic_firmware": "28.39.1002"}


def test_a_file_of_proc_is_read_to_its_end_and_not_to_the_end_of_a_page() -> None:
    whole = len(Path("/proc/self/maps").read_bytes())
    assert whole > 8_192
    assert len(read_text(Path("/proc/self/maps"), 1 << 20) or "") > whole // 2
    assert len(read_text(Path("/proc/self/maps"), 5_000) or "") == 5_000


def test_what_the_network_lost_is_reported_next_to_what_was_sent(host: Host) -> None:
    host.minute()
    host.tree.network(segments=5_001, retransmits=40, full=3, damaged=2, dropped=0x10)
    (event,) = host.minute()
    assert event.kind is EventKind.HOST_RATES
    assert event.values == {
        "window_s": 60,
        "tcp_segments": 5_000,
        "tcp_retransmits": 40,
        "udp_receive_errors": 5,
        "softnet_dropped": 16,
    }
    host.tree.network(segments=9_000, retransmits=40, full=3, damaged=2, dropped=0x10)
    assert host.minute() == [], "to send is no fault"


def test_datagrams_lost_over_ipv6_count_too(host: Host) -> None:
    host.minute()
    host.tree.write("proc/net/snmp6", "Udp6RcvbufErrors 4\nUdp6InCsumErrors 0\n")
    (event,) = host.minute()
    assert event.values["udp_receive_errors"] == 4


def test_a_stepped_clock_is_counted(host: Host) -> None:
    host.minute()
    host.stepped_ms = 900
    assert host.minute() == [], "a clock may be slewed"
    host.stepped_ms = -2_500
    (event,) = host.minute()
    assert event.values == {"window_s": 60, "clock_steps": 1}


def test_pressure_is_reported_when_it_moved(host: Host) -> None:
    (state,) = of(EventKind.HOST_STATE, host.minute())
    assert (state.values["cpu_pressure"], state.values["memory_pressure"]) == (0, 0)
    host.tree.pressure(cpu=4, memory=4.5, io=2)
    assert host.minute() == []
    for percent in (35.5, 28, 19):
        host.tree.pressure(cpu=4, memory=percent, io=2)
        (state,) = host.minute()
        assert state.values["memory_pressure"] == pytest.approx(percent / 100)


def test_a_gpu_that_is_missing_of_the_enrolled_ones_is_reported(host: Host) -> None:
    host.minute()
    host.counts = {"expected_gpus": 8.0, "found_gpus": 7.0}
    (state,) = host.minute()
    assert (state.values["expected_gpus"], state.values["found_gpus"]) == (8, 7)


def test_the_clocks_offset_is_reported_once_the_server_answered(host: Host) -> None:
    host.minute()
    host.clock.saw("Mon, 21 Sep 2026 14:13:20 GMT", WALL_MS + 5_000, WALL_MS + 5_200)
    (state,) = host.minute()
    assert state.values["clock_offset_s"] == 3.0


def test_the_fullest_disk_counts(host: Host) -> None:
    (state,) = of(EventKind.HOST_STATE, host.minute())
    status = os.statvfs(host.tree.root)
    assert state.values["disk_free_fraction"] == pytest.approx(status.f_bavail / status.f_blocks, abs=0.05)
    assert state.values["disk_free_bytes"] > 0


def test_the_fewest_inodes_count_and_a_file_system_without_a_number_of_them_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {"a": (1000, 30), "b": (1000, 500), "c": (0, 0)}

    def statvfs(path: Path) -> os.statvfs_result:
        inodes, free = of[path.name]
        return os.statvfs_result((4096, 4096, 100, 50, 50, inodes, free, free, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert disks([Path("/a"), Path("/b"), Path("/c")], Callers())["inodes_free_fraction"] == 0.03
    assert "inodes_free_fraction" not in disks([Path("/c")], Callers())


def test_a_file_server_that_does_not_answer_holds_up_nothing_else_and_ends_no_finding_of_a_full_disk(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    statvfs = os.statvfs

    def hanging(folder: Path) -> os.statvfs_result:
        if folder.name == "share":
            answered.wait(120)
        return statvfs(folder)

    monkeypatch.setattr(os, "statvfs", hanging)
    share = host.tree.root / "share"
    share.mkdir()
    host.teller = HostTeller(Naming("2"), HostPlaces(root=host.tree.root, folders=(share, host.tree.root)))
    try:
        (state,) = of(EventKind.HOST_STATE, host.minute())
    finally:
        answered.set()
    assert "memory_pressure" in state.values
    assert not {"disk_free_bytes", "disk_free_fraction"} & state.values.keys(), "the silent one may be the fullest"


def _driver(host: Host, *, module: str, library: str) -> float | None:
    folder = host.tree.root / "lib"
    host.tree.write(f"lib/libnvidia-ml.so.{library}", "")
    link = folder / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(f"libnvidia-ml.so.{library}")
    host.tree.write("sys/module/nvidia/version", f"{module}\n")
    host.tree.write("proc/self/maps", f"7f00-7f01 r-xp 00000000 fe:01 77  {folder}/libnvidia-ml.so.570.10\n")
    (state,) = of(EventKind.HOST_STATE, host.minute(3_600))
    return state.values.get("drivers")


def test_a_driver_that_was_upgraded_under_a_running_module_is_reported(host: Host) -> None:
    assert _driver(host, module="580.95.05", library="580.95.05") == 0
    assert _driver(host, module="580.95.05", library="590.1.2") == 1
    assert _driver(host, module="rubbish", library="590.1.2") is None


Spoil = Callable[[Path], object]


def _huge(path: Path) -> None:
    path.write_bytes(b"9" * (8 << 20))


def _unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _a_pipe(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")


SPOILT: dict[str, Spoil] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "rubbish": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "not a number": lambda path: path.write_text("١٢٣ nan -1 0x\n", encoding="utf-8"),
    "huge": _huge,
    "no file": _unreadable,
    "a file that fails at read": _a_pipe,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_no_file_whatever_is_in_it_stops_the_rest_or_makes_up_a_number(host: Host, spoil: Spoil) -> None:
    host.tree.port_counter("symbol_error", 3)
    host.tree.write("proc/net/snmp6", "Udp6RcvbufErrors 4\n")
    host.tree.write("sys/module/nvidia/version", "580.95.05\n")
    host.tree.write("proc/self/maps", "7f00-7f01 r-xp 0 fe:01 77  /lib/libnvidia-ml.so.1\n")
    host.minute()
    files = sorted(path for path in host.tree.root.rglob("*") if path.is_file())
    assert len(files) > 15
    for path in files:
        spoil(path)
    events = host.minute(3_600)
    known = {
        EventKind.HOST_STATE: HOST_STATE,
        EventKind.HOST_RATES: HOST_RATES,
        EventKind.PORT_STATE: PORT_STATE,
        EventKind.PORT_RATES: PORT_RATES,
    }
    assert of(EventKind.HOST_STATE, events), "the disk and the GPUs are reported nevertheless"
    for event in events:
        assert set(event.values) <= set(known[event.kind])
        assert all(0 <= value < 1e15 for value in event.values.values())
    assert of(EventKind.PORT_RATES, events) == []


def test_a_host_without_any_of_it_reports_its_disk_and_gpus(tmp_path: Path) -> None:
    (state,) = Host(tmp_path).minute()
    known = set(state.values) - {"inodes_free_fraction"}  # some file systems have no fixed number of them
    assert known == {"disk_free_bytes", "disk_free_fraction", "expected_gpus", "found_gpus"}


def test_where_no_place_is_named_nothing_of_the_host_is_read() -> None:
    teller = HostTeller(Naming("1"), None, gpus=lambda: {"expected_gpus": 2.0, "found_gpus": 2.0})
    assert teller.check_ports(0, 0) == ()
    (event,) = teller.report(0, 0)
    assert event.values == {"expected_gpus": 2, "found_gpus": 2}
