"""A host's own state: pressure, disk room, driver versions. About the node; no GPU is at fault.

Pressure (PSI) and disk room are numbers of ours; a library of another version than the kernel driver keeps NVML from
answering at all (NVIDIA).
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, Tells, signal_finding
from health.detectors.readings import has
from muster.domain.evidence import EventKind, GpuSignal, Severity
from muster.domain.health_policy import HealthPolicy

PRESSURE: Final = "host_pressure"
DISK: Final = "host_disk"
DRIVERS: Final = "host_drivers"
PRESSURE_ABOUT: Final = About("work waits for CPU, memory or I/O", "Linux PSI; numbers of ours", Severity.WARNING)
DISK_ABOUT: Final = About("a disk is nearly full (warning), or full", "numbers of ours", Severity.DEGRADED)
DRIVERS_ABOUT: Final = About("kernel driver and library are of two versions", "NVIDIA", Severity.DEGRADED)
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


def tells_of_pressure(signal: GpuSignal) -> tuple[str, ...]:
    return tuple(f"{PRESSURE}:{each}" for each in _RESOURCES if has(signal, f"{each}_pressure"))


def judge_disk(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """A disk that fills up further is another, worse fault: joining never makes evidence worse."""
    free = signal.values.get("disk_free_fraction")
    limits = policy.detectors.host_disk
    if free is None or free >= limits.low_fraction:
        return NO_FINDINGS
    is_out = free < limits.out_fraction
    key, severity = (f"{DISK}:full", Severity.DEGRADED) if is_out else (f"{DISK}:low", Severity.WARNING)
    words = f"{free:.1%} of a disk is free"
    return (signal_finding(DISK, signal, key, severity, policy, words, values={"free_fraction": free}),)


def tells_of_disk(signal: GpuSignal) -> tuple[str, ...]:
    return (f"{DISK}:full", f"{DISK}:low") if has(signal, "disk_free_fraction") else ()


def judge_drivers(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if not signal.values.get("drivers", 0) > 0:
        return NO_FINDINGS
    words = "the kernel driver and NVML's library are of two versions: load the driver anew"
    return (signal_finding(DRIVERS, signal, DRIVERS, Severity.DEGRADED, policy, words),)


def tells_of_drivers(signal: GpuSignal) -> tuple[str, ...]:
    return (DRIVERS,) if has(signal, "drivers") else ()


_KINDS: Final = (EventKind.HOST_STATE,)
PRESSURE_DETECTOR: Final = SignalDetector(
    PRESSURE, 1, judge_pressure, _KINDS, PRESSURE_ABOUT, Tells.STATE, tells_of_pressure
)
DISK_DETECTOR: Final = SignalDetector(DISK, 1, judge_disk, _KINDS, DISK_ABOUT, Tells.STATE, tells_of_disk)
DRIVERS_DETECTOR: Final = SignalDetector(
    DRIVERS, 1, judge_drivers, _KINDS, DRIVERS_ABOUT, Tells.STATE, tells_of_drivers
)
