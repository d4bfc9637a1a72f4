"""Faults of the host itself in the kernel log (``health.host_log``): about the node, whatever its GPUs report.

Source: the Linux kernel's messages; the severities are our own. A fault that lost data, a device or a disk keeps new
work off the node (a release ends it); one that the kernel has recovered from, or waits for, is a warning.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, node_finding
from health.host_log import read_host
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "host_log"
ABOUT: Final = About(
    "the kernel reports uncorrectable memory, a fatal PCIe error of a GPU or card, a lost disk or file system;"
    " disks that are reset, tasks that hang (warning)",
    "Linux kernel; our own numbers",
    Severity.DEGRADED,
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    fault = read_host(signal.text)
    if fault is None:
        return NO_FINDINGS
    severity = Severity.DEGRADED if fault.kind.is_grave else Severity.WARNING
    words = f"{fault.kind.text}{f' ({fault.place})' if fault.place else ''}"
    key = f"{NAME}:{fault.kind.name}" + (f":{fault.place}" if fault.place else "")
    return (node_finding(NAME, signal, key, severity, policy, words),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.HOST_LOG,), ABOUT)
