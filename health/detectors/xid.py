"""XIDs, by their own words and the catalogue. Source: ``health/xid/knowledge.json``."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings, SignalDetector, signal_finding
from health.xid.catalogue import entry_of
from health.xid.nvlink import LinkReading
from health.xid.reading import RECOVERY_ACTION_CHANGED, read_xid
from health.xid.recovery import SEVERITY_OF, Action, action_of_xid_154
from muster.domain.evidence import EventKind, GpuSignal, Severity
from muster.domain.health_policy import HealthPolicy

NAME: Final = "xid"


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """One finding for each XID. Of 154 the text decides: an action is a fault of its own, apart from a bare 154.

    Of an NVLink error its registers or unit decide, where the text has them (the driver's log; NVML's event has none).
    """
    if signal.kind is not EventKind.XID or signal.code is None:
        return NO_FINDINGS
    entry = entry_of(signal.code)
    fault, severity, summary = f"xid:{entry.code}", entry.severity, f"XID {entry.code}: {entry.name}"
    link = read_xid(entry.code, signal.text).link
    if link is not None:
        severity, summary = _severity_of(link), f"{summary}: {_words_of(link)}"
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


def _severity_of(link: LinkReading) -> Severity:
    """What is to be passed over, and yet to be looked into by somebody, is watched."""
    if link.action is Action.NONE and link.follow_up:
        return Severity.WARNING
    return SEVERITY_OF[link.action]


def _words_of(link: LinkReading) -> str:
    if link.bits:
        return "; ".join(dict.fromkeys(bit.meaning for bit in link.bits))
    return f"{link.unit}, {link.action}" + (f" ({link.follow_up})" if link.follow_up else "")


DETECTOR: Final = SignalDetector(NAME, 1, judge)
