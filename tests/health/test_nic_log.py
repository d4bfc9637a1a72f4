"""Lines of the network cards' driver: which state a fault, of which card, and its severity."""

import pytest

from health.detectors.registry import judge_signal
from health.nic_log import NIC_LINE_KINDS, read_nic
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity, Source
from tests.health.case_factory import HOUR, MINUTE, NODE, NOW_MS, POLICY, signal
from tests.health.detectors.test_repeats import merged, of

CARD = "mlx5_core 0000:3b:00.0"
FATAL = {
    "command_timeout": f"{CARD}: wait_func:1143:(pid 6513): ENABLE_HCA(0x104) timeout. Will cause a leak of a command "
    "resource",
    "health": f"{CARD}: poll_health:800:(pid 0): device's health compromised - reached miss count",
    "unrecoverable": f"{CARD}: health_care:152:(pid 9): unrecoverable hardware error",
}
WARNED = {
    "power": f"{CARD}: mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W).",
    "heat": f"{CARD}: temp_warn:187:(pid 0): High temperature on sensors with bit set 0 1",
    "cable": f"{CARD}: Port module event[error]: module 0, Cable error, Bad/unsupported EEPROM",
    "transmit_timeout": f"{CARD} ib0: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5200 ms",
}
NO_FAULT = (
    f"{CARD}: Port module event: module 1, Cable unplugged",
    f"{CARD}: Port module event: module 1, Cable plugged",
    f"{CARD}: firmware version: 28.39.1002",
    f"{CARD}: mlx5_cmd_out_err:808:(pid 4): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)",
    "nvme nvme0: timeout. Will cause a leak of a command resource",
    "NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0 timed out",
    "a program says mlx5_core 0000:3b:00.0: unrecoverable",
    "",
)


def line(text: str, at_ms: int = NOW_MS) -> GpuSignal:
    return signal(EventKind.NIC_DRIVER, gpu=None, source=Source.KERNEL_LOG, text=text, at_ms=at_ms)


@pytest.mark.parametrize(
    ("name", "severity"),
    [*((name, Severity.DEGRADED) for name in FATAL), *((name, Severity.WARNING) for name in WARNED)],
)
def test_a_fault_of_a_card_is_the_nodes_and_as_bad_as_its_kind(name: str, severity: Severity) -> None:
    (found,) = judge_signal(line({**FATAL, **WARNED}[name]), POLICY)
    assert (found.fault_key, found.severity) == (f"nic_driver:{name}:0000:3b:00.0", severity)
    assert (found.gpu_uuid, found.node_id) == (None, NODE)


def test_every_kind_has_a_line() -> None:
    assert {kind.name for kind in NIC_LINE_KINDS} == {*FATAL, *WARNED}
    assert {kind.name for kind in NIC_LINE_KINDS if kind.is_fatal} == set(FATAL)


@pytest.mark.parametrize("text", NO_FAULT)
def test_other_lines_are_passed_over(text: str) -> None:
    assert read_nic(text) is None
    assert judge_signal(line(text), POLICY) == ()


def test_a_line_that_names_the_interface_alone_is_about_that() -> None:
    found = read_nic("NETDEV WATCHDOG: ib0 (mlx5_core): transmit queue 5 timed out")
    assert found is not None
    assert (found.kind.name, found.place) == ("transmit_timeout", "ib0")


def test_three_cards_of_a_node_with_one_fault_each_hold_it() -> None:
    """Per node, as the reference counts driver errors; degradation is counted per port (``nic_repeats``)."""
    text = next(iter(WARNED.values()))
    cards = [text.replace("0000:3b:00.0", f"0000:{card}:00.0") for card in ("3b", "4c", "5d")]
    assert len(set(cards)) == 3
    (found,) = of(merged([line(each, NOW_MS + at * MINUTE) for at, each in enumerate(cards)]), "nic_driver_repeats")
    assert (found.severity, found.gpu_uuid) == (Severity.DEGRADED, None)
    assert all(f"0000:{card}:00.0" in found.summary for card in ("3b", "4c", "5d"))


def test_rubbish_and_colours_in_a_line_are_blanks() -> None:
    found = read_nic(f"{CARD}: \x1b[31munrecoverable\x07\x00" + "x" * 100_000)
    assert found is not None
    assert found.text.isprintable()
    assert len(found.text) == 500


@pytest.mark.parametrize(("times", "gap_ms", "found"), [(2, MINUTE, 0), (3, MINUTE, 1), (3, HOUR // 2, 0)])
def test_three_faults_of_a_nodes_cards_in_an_hour_hold_it(times: int, gap_ms: int, found: int) -> None:
    told = [line(text, NOW_MS + at * gap_ms) for at, text in enumerate(list(WARNED.values())[:times])]
    repeats = of(merged(told), "nic_driver_repeats")
    assert [(each.severity, each.gpu_uuid) for each in repeats] == [(Severity.DEGRADED, None)] * found
