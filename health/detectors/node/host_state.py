"""A host's own state: pressure, disk space, driver versions. About the node; no GPU is at fault.

The numbers for pressure (PSI) and disk space are our own; a library of another version than the kernel driver keeps
NVML from answering at all (NVIDIA).
"""

from collections.abc import Mapping
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

PRESSURE: Final = "host_pressure"
DISK: Final = "host_disk"
DRIVERS: Final = "host_drivers"
PRESSURE_ABOUT: Final = About("work waits for CPU, memory or I/O", "Linux PSI; our own numbers", Severity.WARNING)
DISK_ABOUT: Final = About(
    "a disk or its inodes are nearly used up (warning), or used up, or it is read-only",
    "our own numbers",
    Severity.DEGRADED,
)
DRIVERS_ABOUT: Final = About("kernel driver and library have different versions", "NVIDIA", Severity.DEGRADED)
READ_ONLY: Final = "host_disk:read_only"
_READ_ONLY: Final = "read_only_disks"
_ROOM: Final[Mapping[str, tuple[str, str, str]]] = {
    "disk_free_fraction": ("host_disk:full", "host_disk:low", "of a disk is"),
    "inodes_free_fraction": ("host_disk:no_inodes", "host_disk:few_inodes", "of a disk's inodes are"),
}
"""Reading → the faults of a disk that is full or nearly so, and the short resource as text."""
_RESOURCES: Final = ("cpu", "memory", "io")


def judge_pressure(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limits = policy.detectors.host_pressure
    shares = {"cpu": limits.cpu_share, "memory": limits.memory_share, "io": limits.io_share}
    return tuple(
        signal_finding(
            PRESSURE,
            signal,
            f"{PRESSURE}:{resource}",
            Severity.WARNING,
            policy,
            f"work waited for {resource} in {share:.0%} of the last minute",
            values={"share": share},
        )
        for resource, limit in shares.items()
        if (share := signal.values.get(f"{resource}_pressure", 0)) > limit
    )


def handles_pressure(signal: GpuSignal) -> tuple[str, ...]:
    return tuple(f"{PRESSURE}:{each}" for each in _RESOURCES if has(signal, f"{each}_pressure"))


def judge_disk(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return a finding for each short resource of a disk.

    A disk that fills up further is another, worse fault: joining never makes evidence worse.
    """
    limits, found = policy.detectors.host_disk, list[Finding]()
    for reading, (full, low, what) in _ROOM.items():
        free = signal.values.get(reading)
        if free is None or free >= limits.low_fraction:
            continue
        key, severity = (full, Severity.DEGRADED) if free < limits.out_fraction else (low, Severity.WARNING)
        words, values = f"{free:.1%} {what} free", {"free_fraction": free}
        found.append(signal_finding(DISK, signal, key, severity, policy, words, values=values))
    num = signal.values.get(_READ_ONLY, 0)
    if num > 0:
        words = f"{num:.0f} of the folders that are written to are on a read-only file system"
        found.append(signal_finding(DISK, signal, READ_ONLY, Severity.DEGRADED, policy, words, values={"folders": num}))
    return tuple(found)


def handles_disk(signal: GpuSignal) -> tuple[str, ...]:
    of_room = (key for reading, (full, low, _) in _ROOM.items() if has(signal, reading) for key in (full, low))
    return (*of_room, READ_ONLY) if has(signal, _READ_ONLY) else tuple(of_room)


def judge_drivers(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if not signal.values.get("drivers", 0) > 0:
        return NO_FINDINGS
    words = "the kernel driver and NVML's library have different versions: reload the driver"
    return (signal_finding(DRIVERS, signal, DRIVERS, Severity.DEGRADED, policy, words),)


def handles_drivers(signal: GpuSignal) -> tuple[str, ...]:
    return (DRIVERS,) if has(signal, "drivers") else ()


_HOST_STATE_KINDS: Final = (EventKind.HOST_STATE,)
PRESSURE_DETECTOR: Final = SignalDetector(
    PRESSURE, 1, judge_pressure, _HOST_STATE_KINDS, PRESSURE_ABOUT, Nature.STATE, handles_pressure
)
DISK_DETECTOR: Final = SignalDetector(DISK, 1, judge_disk, _HOST_STATE_KINDS, DISK_ABOUT, Nature.STATE, handles_disk)
DRIVERS_DETECTOR: Final = SignalDetector(
    DRIVERS, 1, judge_drivers, _HOST_STATE_KINDS, DRIVERS_ABOUT, Nature.STATE, handles_drivers
)
