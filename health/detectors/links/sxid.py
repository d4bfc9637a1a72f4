"""Errors of NVSwitches, with the severity that the log line states. Source: NVIDIA Fabric Manager guide.

They are about the fabric, never about one GPU: a fatal one stops the links of all GPUs of the node, so the node takes
no new work; none of its GPUs is at fault.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, node_finding
from health.xid.reading import read_sxid
from health.xid.recovery import SEVERITY_OF
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "sxid"
ABOUT: Final = About(
    "an NVSwitch reports an error (warning), or one that is fatal to its links",
    "NVIDIA Fabric Manager guide",
    Severity.DEGRADED,
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding, none for a line that only adds detail to an error of another line."""
    if signal.code is None:
        return NO_FINDINGS
    read = read_sxid(signal.text)
    if read.decoded.get("is_detail"):
        return NO_FINDINGS
    words = f"SXid {signal.code}: {read.name}"
    values = {"sxid": float(signal.code)}
    severity = SEVERITY_OF[read.action]
    return (node_finding(NAME, signal, f"{NAME}:{signal.code}", severity, policy, words, values=values),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.SXID,), ABOUT)
