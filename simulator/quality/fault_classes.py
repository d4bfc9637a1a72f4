"""The faults of a fleet, by the classes of the 419 interruptions of Llama 3's training, and which ones agents can see.

Each listed fault states what an agent would report of it. An error of the driver is the very line of the kernel log,
which goes through the parser (``health.xid.kernel_log``); readings are as samples have them; states are events.
``UNSEEN`` lists the classes of which no agent reports anything, each with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from health.xid.kernel_log import KernelLogReader, LogKind
from muster.domain.evidence.findings import EventKind, Source

NUM_INTERRUPTIONS: Final = 419
PCI: Final = "0000:41:00"


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    source: Source = Source.NVML
    code: int | None = None
    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One class of fault, and the evidence by which it is found. ``share``: of the 419.

    An agent reports it by ``event`` at once, or by ``readings`` in each of the next samples.
    """

    name: str
    share: int
    found_as: tuple[str, ...]
    event: Event | None = None
    readings: Mapping[str, float] = field(default_factory=dict)
    is_of_node: bool = False


def logged(line: str) -> Event:
    """Return the event that the agent makes of a line of the kernel log.

    Raises AssertionError if the line does not contain exactly one error.
    """
    found = KernelLogReader().read(line)
    if len(found) != 1:
        raise AssertionError(f"{len(found)} errors in {line!r}")
    kind = EventKind.SXID if found[0].kind is LogKind.SXID else EventKind.XID
    return Event(kind, Source.KERNEL_LOG, found[0].code, found[0].text)


STATE_KINDS: Final = frozenset({EventKind.GPU_STATE, EventKind.HOST_STATE, EventKind.PORT_STATE})
_PORT: Final = "mlx5_0/1"
_DOWN: Final = Event(EventKind.PORT_STATE, Source.HOST, text=_PORT, values={"state": 1.0, "was_active": 1.0})
_RISEN: Final = Event(EventKind.PORT_RATES, Source.HOST, text=_PORT, values={"link_downed": 1.0, "window_s": 60.0})
_OFF_THE_BUS: Final = (
    f"[ 812.5] NVRM: Xid (PCI:{PCI}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
_GSP: Final = (
    f"[ 812.5] NVRM: Xid (PCI:{PCI}): 119, pid=4711, name=python3, Timeout after 6s of waiting for RPC response"
)
_FATAL: Final = f"[ 812.5] nvidia-nvswitch3: SXid (PCI:{PCI}.0): 12028, Fatal, Link 32 egress non-posted PRIV error"
_FULL: Final = Event(EventKind.HOST_STATE, Source.HOST, values={"disk_free_fraction": 0.001})
_SRAM: Final = Event(EventKind.GPU_STATE, values={"sram_threshold_exceeded": 1.0})
_NARROW: Final = Event(EventKind.GPU_STATE, values={"pcie_loaded_width": 8.0, "pcie_max_width": 16.0})
_LINKS: Final = Event(EventKind.GPU_STATE, values={"nvlink_links": 18.0, "nvlink_links_down": 2.0})
FAULTS: Final = (
    Fault("off_the_bus", 74, ("xid:79",), logged(_OFF_THE_BUS)),
    Fault("uncorrected_error", 74, ("ecc_uncorrected",), readings={"ecc_uncorrected_volatile": 1.0}),
    Fault("hbm_remap_failed", 36, ("row_remap:failure",), readings={"remap_failure": 1.0}),
    Fault("hbm_remap_waits", 36, ("row_remap:pending",), readings={"remap_pending": 1.0}),
    Fault("cable", 20, ("port_down",), _DOWN, is_of_node=True),
    Fault("switch", 8, ("sxid",), logged(_FATAL), is_of_node=True),
    Fault("sram", 19, ("sram_threshold",), _SRAM),
    Fault("gsp", 17, ("xid:119",), logged(_GSP)),
    Fault("nic", 7, ("port_fatal",), _RISEN, is_of_node=True),
    Fault("thermal", 6, ("clock_events:hw_thermal",), readings={"clock_event_reasons": 0x48}),
    Fault("power_supply", 3, ("clock_events:power_brake",), readings={"clock_event_reasons": 0x88}),
    Fault("disk_full", 0, ("host_disk",), _FULL, is_of_node=True),
    Fault("io_board", 2, ("pcie_link",), _NARROW),
    Fault("nvlink", 7, ("nvlink_down",), _LINKS),
)
"""``disk_full`` is none of the 419 classes: it is tried once in each fleet all the same."""
UNSEEN: Final[Mapping[str, tuple[int, str]]] = {
    "software bug": (54, "a program's: its exit and its log show it, no hardware does"),
    "host maintenance": (32, "work by persons, who declare it"),
    "NCCL watchdog": (7, "a collective that hangs: the job's runtime reports it, and judges no GPU"),
    "silent data corruption": (6, "no reading shows it: burn-in, the quick check and re-runs look for wrong results"),
    "SSD": (3, "no agent reads a disk's own health; that it is full is seen, and tried as disk_full"),
    "chassis": (2, "no sensor of a chassis is read; what it does to GPUs, their heat or power, is seen as that"),
    "dependency": (2, "a service elsewhere"),
    "CPU": (2, "no machine check is read; a host that hangs is LOST"),
    "DRAM": (2, "no memory controller of the host is read; a host that hangs is LOST"),
}
"""Class → how many of the 419, and why no detector can see it."""
NUM_LISTED: Final = sum(fault.share for fault in FAULTS)
"""Number of the 419 that are of a listed class. If a class has several faults here, their shares are our assumption."""
