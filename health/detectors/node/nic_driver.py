"""Faults that the driver of a node's network cards reports in the kernel log (``health.nic_log``).

Source: NVSentinel's NIC monitor.

A card whose firmware is dead keeps its ports up, so the node takes no new work. A warning of the driver keeps work off
the node when it recurs (``nic_driver_repeats``).
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, node_finding
from health.nic_log import read_nic
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "nic_driver"
ABOUT: Final = About(
    "the driver of a network card reports failed firmware or hardware; heat, power, cable or queue (warning)",
    "NVSentinel NIC monitor; Linux mlx5_core",
    Severity.DEGRADED,
)


def card_of(fault_key: str) -> str:
    """Return the card's PCI address or interface from a fault key of this detector."""
    return fault_key.split(":", 2)[-1]


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    fault = read_nic(signal.text)
    if fault is None:
        return NO_FINDINGS
    severity = Severity.DEGRADED if fault.kind.is_fatal else Severity.WARNING
    words = f"network card {fault.place}: {fault.kind.text}"
    key = f"{NAME}:{fault.kind.name}:{fault.place}"
    return (node_finding(NAME, signal, key, severity, policy, words),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.NIC_DRIVER,), ABOUT)
