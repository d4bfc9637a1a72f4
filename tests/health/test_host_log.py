"""Kernel log lines about the host itself: which state a fault, its severity, and how often it is reported."""

import pytest

from health.detectors.registry import judge_signal
from health.host_log import HOST_LINE_KINDS, REPORT_EVERY_S, HostLogReader, read_host
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity, Source
from tests.health.case_factory import NODE, POLICY, signal

GRAVE = {
    "memory_uncorrected:MC0": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)",
    "memory_uncorrected": "mce: Uncorrected hardware memory error in user-access at 3eb2d40c0",
    "pcie_fatal:0000:1b:00.0": "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction",
    "pcie_fatal:0000:3b:00.0": "mlx5_core 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data",
    "nvme_gone:nvme2": "nvme nvme2: Removing after probe failure status: -19",
    "read_only:nvme0n1p2": "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
    "read_only:md0": "XFS (md0): Metadata I/O Error (0x1) detected at xfs_trans.  Shutting down filesystem.",
    "read_only:sda1": "BTRFS error (device sda1): Transaction aborted (error -5); forced readonly",
}
WARNED = {
    "pcie_uncorrected:0000:1b:00.0": "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Tra",
    "nvme_reset:nvme0": "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
    "nvme_reset:nvme1": "nvme nvme1: I/O 12 QID 3 timeout, reset controller",
    "hung_task": "INFO: task pt_main_thread:4242 blocked for more than 120 seconds.",
}
NO_FAULT = (
    "EDAC MC0: 12 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "EDAC MC: Ver: 3.0.0",
    "mce: [Hardware Error]: Machine check events logged",
    "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    "nvme nvme0: pci function 0000:5a:00.0",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
    "XFS (md0): Ending clean mount",
    "a program says EXT4-fs (sda1): Remounting filesystem read-only",
    "",
)


def line(text: str) -> GpuSignal:
    return signal(EventKind.HOST_LOG, gpu=None, source=Source.KERNEL_LOG, text=text)


@pytest.mark.parametrize(
    ("key", "severity"),
    [*((key, Severity.DEGRADED) for key in GRAVE), *((key, Severity.WARNING) for key in WARNED)],
)
def test_a_fault_is_the_nodes_and_as_bad_as_its_kind(key: str, severity: Severity) -> None:
    (found,) = judge_signal(line({**GRAVE, **WARNED}[key]), POLICY)
    assert (found.fault_key, found.severity) == (f"host_log:{key}", severity)
    assert (found.gpu_uuid, found.node_id) == (None, NODE)


def test_every_kind_has_a_line() -> None:
    assert {kind.name for kind in HOST_LINE_KINDS} == {key.partition(":")[0] for key in (*GRAVE, *WARNED)}


@pytest.mark.parametrize("text", NO_FAULT)
def test_other_lines_are_passed_over(text: str) -> None:
    assert read_host(text) is None
    assert judge_signal(line(text), POLICY) == ()


def test_one_fault_at_one_place_is_reported_once_a_minute() -> None:
    reader, broken = HostLogReader(), WARNED["nvme_reset:nvme0"]
    told = [at_s for at_s in range(300) if reader.read(broken, float(at_s)) is not None]
    assert told == [0, 60, 120, 180, 240]
    assert reader.read(WARNED["nvme_reset:nvme1"], 299.0) is not None, "another disk is another fault"
    assert reader.read(broken, 240.0 + REPORT_EVERY_S) is not None


def test_however_many_places_lines_make_up_little_is_remembered() -> None:
    reader = HostLogReader()
    for number in range(10_000):
        reader.read(f"EXT4-fs (sd{number}): Remounting filesystem read-only", 1.0)
    assert len(reader._reported_s) <= 256
