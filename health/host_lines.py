"""Faults of a host's kernel log as lines, for the judge of a hang: the faults that may have stopped a program."""

import re
from collections.abc import Iterable
from typing import Final

from health.detectors.signals import judge_signal
from health.evidence.suppression import is_weightless
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

OF_THE_LOG: Final = (EventKind.XID, EventKind.NIC_DRIVER, EventKind.HOST_LOG)
MOST_LINES: Final = 40
LONGEST_LINE: Final = 300
_TASK: Final = re.compile(r"INFO: task .{1,64}:(\d{1,9}) blocked")


def fault_lines(signals: Iterable[GpuSignal], policy: HealthPolicy) -> list[str]:
    """Return the newest faults as the kernel writes them, a line each."""
    return [line_of(each) for each in signals if each.kind in OF_THE_LOG and may_end_work(each, policy)][-MOST_LINES:]


def may_end_work(signal: GpuSignal, policy: HealthPolicy) -> bool:
    """Return whether a fault may have stopped a program: most XIDs only report, such as a remapped row."""
    if signal.kind != EventKind.XID:
        return True
    found = judge_signal(signal, policy)
    return any(each.severity >= Severity.DEGRADED and not is_weightless(each) for each in found)


def line_of(signal: GpuSignal) -> str:
    """Return the fault as the kernel writes it, in one line. The name of a blocked task may be another tenant's."""
    text = " ".join(signal.text.split())
    if signal.kind == EventKind.XID:
        text = f"NVRM: Xid ({signal.gpu_uuid}): {signal.code}, {text}"
    return _TASK.sub(r"INFO: task a process:\1 blocked", text)[:LONGEST_LINE]
