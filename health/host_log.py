"""Kernel log lines about the host itself that cost jobs: memory, PCIe, disks, file systems, tasks that hang. Pure.

Sources: the Linux kernel's messages (``drivers/edac/edac_mc.c``, ``arch/x86/kernel/cpu/mce/core.c``,
``mm/memory-failure.c``, ``drivers/pci/pcie/aer.c``, ``drivers/nvme/host/pci.c`` and ``core.c``, ``kernel/hung_task.c``,
``fs/ext4/super.c``, ``fs/xfs/xfs_fsops.c``, ``fs/btrfs``)::

    EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 …)
    Memory failure: 0x1f2e3d: recovery action for dirty LRU page: Recovered
    nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)
    nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10
    INFO: task python:4242 blocked for more than 120 seconds.
    EXT4-fs (nvme0n1p2): Remounting filesystem read-only

Correctable errors are skipped: the hardware has corrected them, and counts them elsewhere. PCIe lines count only for
GPUs, NVSwitches, network cards and NVMe disks, each by its own driver's name.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from health.xid.kernel_lines import plain

HOST_LINE_BEGINNINGS: Final = (
    "EDAC ",
    "mce: ",
    "Memory failure: ",
    "nvidia 0",
    "nvidia-nvswitch 0",
    "mlx5_core ",
    "nvme ",
    "INFO: task ",
    "EXT4-fs ",
    "XFS ",
    "BTRFS ",
)
"""Beginnings of such lines: most of the log fails this one check."""
MAX_TEXT: Final = 500
REPORT_EVERY_S: Final = 60.0
"""Least time between two reports of one kind at one place: a broken disk writes a line for each request."""
_PLACES_MAX: Final = 256
_PCI: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


@dataclass(frozen=True, slots=True)
class HostFaultKind:
    """One kind of fault. ``is_grave``: running programs have lost data, a disk or a device.

    ``pattern`` may name the ``place``.
    """

    name: str
    pattern: re.Pattern[str]
    text: str
    is_grave: bool = False


@dataclass(frozen=True, slots=True)
class HostFault:
    """A fault of the host. ``place``: the device that the line names, empty where it names none."""

    kind: HostFaultKind
    place: str
    text: str


def _kind(name: str, pattern: str, text: str, *, is_grave: bool = False) -> HostFaultKind:
    return HostFaultKind(name, re.compile(pattern, re.ASCII), text, is_grave)


HOST_LINE_KINDS: Final = (
    _kind(
        "memory_uncorrected",
        r"EDAC (?P<place>\S{1,16}): \d{1,9} UE\b|mce: Uncorrected hardware memory error"
        r"|Memory failure: 0x[0-9a-f]{1,16}: recovery action for ",
        "an uncorrectable error in the host's memory",
        is_grave=True,
    ),
    _kind(
        "pcie_fatal",
        rf"[a-z0-9_-]{{2,20}} (?P<place>{_PCI}): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)",
        "a fatal PCIe error",
        is_grave=True,
    ),
    _kind(
        "pcie_uncorrected",
        rf"[a-z0-9_-]{{2,20}} (?P<place>{_PCI}): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Non-Fatal\)",
        "an uncorrectable PCIe error that was not fatal",
    ),
    _kind(
        "nvme_gone",
        r"nvme (?P<place>nvme\d{1,4}): (?:Removing after probe failure|Disabling device after reset failure)",
        "an NVMe disk was lost",
        is_grave=True,
    ),
    _kind(
        "nvme_reset",
        r"nvme (?P<place>nvme\d{1,4}): (?:controller is down; will reset|.{0,80}\btimeout, reset controller)",
        "an NVMe disk stopped answering and is reset",
    ),
    _kind(
        "read_only",
        r"EXT4-fs \((?P<ext4>\S{1,64})\): Remounting filesystem read-only"
        r"|XFS \((?P<xfs>\S{1,64})\): .{0,120}(?:Shutting down filesystem|[Ff]ilesystem has been shut down)"
        r"|BTRFS \w{1,16} \(device (?P<btrfs>[^)\s]{1,64})\).{0,200}forced readonly",
        "a file system accepts no writes",
        is_grave=True,
    ),
    _kind(
        "hung_task",
        r"INFO: task .{1,64}:\d{1,10} blocked for more than \d{1,6} seconds",
        "a task waits for its disk, file server or device without end",
    ),
)
"""The first kind that matches is the line's."""


def read_host(line: str) -> HostFault | None:
    """Return the fault that a line states, from its first word on; None for most."""
    if not line.startswith(HOST_LINE_BEGINNINGS):
        return None
    words = plain(line)[:MAX_TEXT]
    for kind in HOST_LINE_KINDS:
        found = kind.pattern.match(words)
        if found is not None:
            place = next((name for name in found.groupdict().values() if name), "")
            return HostFault(kind, place, words)
    return None


@dataclass(slots=True)
class HostLogReader:
    """Reader of lines that returns faults, at most one of a kind and place each ``REPORT_EVERY_S``.

    The time is the kernel's clock.
    """

    _reported_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def read(self, line: str, since_boot_s: float) -> HostFault | None:
        fault = read_host(line)
        if fault is None:
            return None
        key = fault.kind.name, fault.place
        told_s = self._reported_s.get(key)
        if told_s is not None and 0 <= since_boot_s - told_s < REPORT_EVERY_S:
            return None
        if told_s is None and len(self._reported_s) >= _PLACES_MAX:
            self._reported_s.clear()
        self._reported_s[key] = since_boot_s
        return fault
