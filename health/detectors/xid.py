"""XIDs, by the catalogue. Source: ``health/xid/catalogue.json``."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings, SignalDetector, signal_finding
from health.xid.catalogue import entry_of
from health.xid.recovery import SEVERITY_OF, action_of_xid_154
from muster.domain.evidence import EventKind, GpuSignal
from muster.domain.health_policy import HealthPolicy

NAME: Final = "xid"
RECOVERY_ACTION_CHANGED: Final = 154


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """One finding for each XID. Of 154 the text decides: an action is a fault of its own, apart from a bare 154."""
    if signal.kind is not EventKind.XID or signal.code is None:
        return NO_FINDINGS
    entry = entry_of(signal.code)
    fault, severity, summary = f"xid:{entry.code}", entry.severity, f"XID {entry.code}: {entry.name}"
    asked = action_of_xid_154(signal.text) if entry.code == RECOVERY_ACTION_CHANGED else None
    if asked is not None:
        fault, severity, summary = f"{fault}:{asked}", SEVERITY_OF[asked], f"{summary}, to {asked}"
    return (
        signal_finding(
            NAME,
            signal,
            fault,
            severity,
            policy,
            summary,
            threatens_correctness=entry.threatens_correctness,
            values={"code": float(entry.code)},
        ),
    )


DETECTOR: Final = SignalDetector(NAME, 1, judge)
